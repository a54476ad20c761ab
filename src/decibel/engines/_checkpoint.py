"""Checkpoints: states saved by orbax in the background, atomically, and restored exactly.

Random numbers depend on seed, step and node only, so a state, its step and the trace so far are all there is to save.
Leaves have the node axis, so a run may continue with another number of devices, on the simulator, or with other
members.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from ..core._files import sync_folder, sync_tree
from ..core._json import JSON
from ..core._optional import optional
from ..core._types import PyTree
from ..graphs._graph import Accelerated, Levels, Topology
from ..methods._method import Method, State
from ..problem._loss_hash import LossHashes, loss_hashes
from ..problem._problem import Problem
from ..problem._stream_trace import validate_indexed
from ..problem._streams import Samples, StreamData
from ..results._trace import Trace
from ._membership import Members, migrate_state
from ._program import RunConfig
from ._run import KeptState, Run

KEPT = 3  # checkpoints
BEST = "best-"  # before the names of leaves of the best state
ASIDE = "aside"  # a folder for checkpoints of steps to which a run went back


class CheckpointWarning(UserWarning):
    """A checkpoint could not be read and an older one was used, or its losses could not be compared."""


class Checkpoints:
    """The last `KEPT` checkpoints of one run, in their own folder."""

    def __init__(self, path: str | Path, fingerprint: dict[str, JSON], members: Members) -> None:
        with optional("orbax-checkpoint", caller="solve(checkpoint=...)", extra="checkpoint"):
            import orbax.checkpoint as ocp  # a second of import time that other runs need not pay

        logging.getLogger("absl").setLevel(logging.ERROR)
        self._ocp = ocp
        self._fingerprint = fingerprint
        self._members = members
        self._newest = -1
        self._path = Path(path).absolute()
        self._synced: set[int] = set()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=KEPT,
            enable_async_checkpointing=True,
            cleanup_tmp_directories=True,  # of a process that was killed while it saved
        )
        self._manager = ocp.CheckpointManager(self._path, options=options)

    def save(self, run: Run, trace: Trace, spent: dict[str, float]) -> None:
        """Starts writing in the background, unless this run has saved or restored the same step."""
        if run.step == self._newest:
            return
        self._newest = run.step
        columns = {name: np.asarray(trace[name]).tolist() for name in trace}
        args = self._ocp.args
        leaves = dict(_named(run.state))
        best = run.best
        meta = {
            "fingerprint": self._fingerprint,
            "members": list(self._members),
            "devices": run.devices,
            "split": run.split,
            "placement": run.placement,
            "shapes": {name: list(leaf.shape) for name, leaf in leaves.items()},
            "trace": columns,
            "spent": spent,
            "step": run.step,
            "steps_done": run.steps_done,
            "best": None if best is None else best.step,
        }
        if best is not None and best.step != run.step:
            leaves |= {BEST + name: leaf for name, leaf in _named(best.restore())}
        self._sync()
        self._synced.discard(run.step)
        if run.step in self._manager.all_steps():
            self._manager.delete(run.step)  # one that could not be read, or the end of the run before
        self._manager.save(
            run.step, args=args.Composite(state=args.StandardSave(leaves), meta=args.JsonSave(meta)), force=True
        )

    def restore(self, run: Run) -> dict[str, Any] | None:
        """Restores the newest readable checkpoint; returns its metadata, or None if there is none.

        The initial state of the run is deleted first: two states might not fit into the memory.
        """
        args, kinds = self._ocp.args, jax.tree.map(_kind, run.state)
        saved = sorted(self._manager.all_steps(), reverse=True)
        chosen = run.restore_order(saved)
        for step in chosen:
            try:
                meta = self._manager.restore(step, args=args.Composite(meta=args.JsonRestore()))["meta"]
                before = tuple(meta["members"])
                amended = _amended(run, meta["placement"])
                self._validate_same_run(meta["fingerprint"], before, amended=amended)
                if jax.tree.leaves(kinds.link_memory) and meta.get("split", "") != run.split:
                    raise OtherRunError(
                        "checkpoint holds link states of nodes that were split over devices in another way: give the "
                        "same shard."
                    )
                like = {name: _like(kind, meta["shapes"][name]) for name, kind in _named(kinds)}
                has_separate_best = meta.get("best") not in (None, meta["step"])
                if has_separate_best:
                    like |= {BEST + name: kind for name, kind in like.items()}
                run.free()
                restored = self._manager.restore(step, args=args.Composite(state=args.StandardRestore(like)))["state"]
            except OtherRunError:
                raise
            except Exception as error:  # orbax raises whatever its storage raised
                reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
                warnings.warn(
                    f"the checkpoint of step {step} cannot be read ({reason}); an older one is used.",
                    CheckpointWarning,
                    stacklevel=3,
                )
                if run.holds_one_node:  # or this site would promise it to the others again after every restart
                    self._set_aside([step])
                continue
            prefixes = ("", BEST) if has_separate_best else ("",)
            states: list[State] = []
            for prefix in prefixes:
                leaves = [restored[prefix + name] for name, _ in _named(kinds)]
                state = self._placed(leaves, run, before, int(meta["devices"]), kinds)
                states.append(run.adopt(state, meta["placement"]) if amended else state)
            run.state = states[0]
            run.step = int(meta["step"])
            run.skipped = run.step - int(meta["steps_done"])
            if has_separate_best:
                run.best = KeptState(int(meta["best"]), lambda states=states: states[1])
            elif meta.get("best") is not None:
                run.remember_best()
            self._set_aside(later for later in set(saved).difference(chosen) if later > step)
            self._newest = step
            return meta
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(run.state)):
            run.state = run.initial_state()
        if run.holds_one_node and not chosen:  # the sites agreed to begin again, so what was saved is of no use
            self._set_aside(saved)
        return None

    def _set_aside(self, steps: Iterable[int]) -> None:
        """Moves checkpoints aside without deleting them, since only other sites say that they are useless."""
        for step in steps:
            aside = self._path / ASIDE / f"{step}-{time.time_ns()}"
            aside.parent.mkdir(exist_ok=True)
            (self._path / str(step)).rename(aside)
            sync_folder(aside.parent)
            sync_folder(self._path)
            self._synced.discard(step)
        self._manager.reload()

    def _placed(self, leaves: list[Array], run: Run, before: Members, devices: int, kinds: PyTree) -> State:
        """The state of these leaves, for the present members and devices."""
        saved: State = jax.tree.unflatten(jax.tree.structure(kinds), leaves)
        shardings = jax.tree.map(lambda kind: kind.sharding, kinds)
        if before != self._members and not run.holds_one_node:
            strategies = run.program.method.strategies

            def migrated(saved: State, initial: State) -> State:
                return migrate_state(saved, initial, before, self._members, strategies)

            return jax.jit(migrated, out_shardings=shardings)(saved, run.initial_state())
        if devices != run.devices and saved.link_memory and run.migrate_links is not None:
            links = jax.jit(partial(run.migrate_links, before=devices), out_shardings=shardings.link_memory)(
                saved.link_memory
            )
            return saved._replace(link_memory=links)
        return saved

    def _validate_same_run(self, saved: dict[str, JSON], before: Members, *, amended: bool) -> None:
        current = json.loads(json.dumps(self._fingerprint))
        losses, saved_losses = current.pop("losses", None), saved.get("losses")
        # Each node's data are its own: other members, other data.
        others = () if before == self._members or amended else ("upper_data", "lower_data")
        compared = [name for name in current if name not in (*others, *(("graph", "nodes") if amended else ()))]
        changed = [name for name in compared if current[name] != saved.get(name)]
        if changed:
            differences = ", ".join(
                f"{name} (saved {_short(saved.get(name))}, now {_short(current[name])})" for name in changed
            )
            raise OtherRunError(
                f"checkpoint holds another run: {differences} changed; give the same settings, or another checkpoint "
                "folder."
            )
        if losses is not None:
            _validate_same_losses(LossHashes(**losses), LossHashes.read(saved_losses))

    def close(self) -> None:
        """Waits until the last checkpoint is on disk."""
        self._sync()
        self._manager.close()

    def _sync(self) -> None:
        """Flushes what was written to disk, before anything older is deleted. Orbax does so for arrays, but not for its
        metadata and the names of files.
        """
        self._manager.wait_until_finished()
        if jax.process_index() == 0:
            new = set(self._manager.all_steps()) - self._synced
            for step in new:
                sync_tree(self._path / str(step))
            if new:
                sync_folder(self._path)
            self._synced |= new


@contextmanager
def open_checkpoints(
    path: str | Path | None, run: Run, fingerprint: dict[str, JSON], members: Members
) -> Iterator[Checkpoints | None]:
    """The run's checkpoints while it lasts; None without a folder."""
    if path is None:
        yield None
        return
    problem = run.program.problem
    validate_indexed(problem, "checkpoint")
    data = {"upper_data": _data_checksum(problem.upper_data), "lower_data": _data_checksum(problem.lower_data)}
    losses = loss_hashes(problem)._asdict()
    checkpoints = Checkpoints(path, fingerprint | data | {"losses": losses}, members)
    try:
        yield checkpoints
    finally:
        checkpoints.close()


def _amended(run: Run, placement: str) -> bool:
    try:
        return run.amends(placement)
    except ValueError as error:
        raise OtherRunError(str(error)) from None


class OtherRunError(ValueError):
    """The checkpoint was written by a run with other settings."""


def _validate_same_losses(current: LossHashes, saved: LossHashes | None) -> None:
    """Raises OtherRunError if a loss has changed, and warns if that cannot be determined."""
    changed = ["upper", "lower"] if saved is None else saved.changed(current)
    if saved is None or (changed and saved.jax != current.jax):
        reason = "by an older release" if saved is None else f"with JAX {saved.jax}, and this is JAX {current.jax}"
        warnings.warn(
            f"the checkpoint was written {reason}, so that its losses cannot be compared: make sure that they are "
            "the same.",
            CheckpointWarning,
            stacklevel=5,
        )
    elif changed:
        raise OtherRunError(
            f"checkpoint holds another run: the {' and the '.join(changed)} loss changed, in what it computes or in a "
            "constant; give the loss that it was saved with, or another checkpoint folder."
        )


def run_fingerprint(problem: Problem, method: Method, graphs: Levels, config: RunConfig) -> dict[str, JSON]:
    """The settings that identify a run, in addition to its data. They do not depend on where nodes run."""
    return {
        "method": method.name,
        "settings": json.loads(json.dumps(method.settings, default=str)),
        "graph": {level: _digest(getattr(graphs, level)) for level in ("x", "y", "z")},
        "nodes": graphs.x.nodes,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "faults": [repr(fault) for fault in config.faults],
        "sampling": config.sampling,
        "precision": config.precision,
        "micro_batch": config.micro_batch,
        "privacy": repr(config.privacy),
        "form": problem.form,
        "prox_x": [repr(problem.prox_x), _checksum(problem.prox_x)],
        "prox_y": [repr(problem.prox_y), _checksum(problem.prox_y)],
        "x0": _checksum(problem.x0),
        "y0": _checksum(problem.y0),
    }


def _digest(graph: Topology) -> str:
    digest = hashlib.sha256(b"random" if graph.order == "random" else b"")
    if isinstance(graph, Accelerated):
        digest.update(repr((graph.rounds, graph.gossip.share)).encode())
    for phase in graph.phases:
        for matrix in phase.matrices:
            for part in (matrix.indptr, matrix.indices, np.asarray(matrix.data, np.float64)):
                digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:16]


def _checksum(tree: PyTree) -> str:
    """Shapes, dtypes and a sum of the bits, which does not depend on how arrays are spread."""
    parts = [f"{leaf.shape}{leaf.dtype}{int(_bits(leaf))}" for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def _data_checksum(data: Samples | None) -> str:
    """The checksum of all samples in memory. For a stream it covers the number of samples of each node, and three
    samples.
    """
    if not isinstance(data, StreamData):
        return _checksum(data)
    digests = data.digests()
    if jax.process_count() > 1:  # each knows those of its own nodes
        digests = np.asarray(multihost_utils.process_allgather(digests)).sum(0, dtype=np.uint32)
    return hashlib.sha256(digests.tobytes()).hexdigest()[:16]


@jax.jit
def _bits(leaf: Array) -> Array:
    narrow = leaf.astype(jnp.float32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.astype(jnp.int32)
    words = jax.lax.bitcast_convert_type(narrow, jnp.uint32).ravel()
    # Weighed by position, so that exchanged samples are noticed.
    return jnp.sum(words * (jnp.arange(words.size, dtype=jnp.uint32) * jnp.uint32(2654435761) + jnp.uint32(1)))


def _kind(leaf: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _like(kind: jax.ShapeDtypeStruct, saved: list[int]) -> jax.ShapeDtypeStruct:
    """What to restore for a leaf: placed as it is now, or whole on every device if the number of nodes has changed."""
    shape, sharding = tuple(saved), kind.sharding
    if shape != kind.shape and isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(shape, kind.dtype, sharding=sharding)


def _named(state: PyTree) -> list[tuple[str, PyTree]]:
    return [(f"leaf{number:04d}", leaf) for number, leaf in enumerate(jax.tree.leaves(state))]


def _short(value: JSON) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
