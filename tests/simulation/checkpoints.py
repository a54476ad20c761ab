"""A site's checkpoints on the simulated disk: the product's own, and a stand-in for them that can be driven by calls.

Orbax writes in threads and C++ of its own, so that a schedule cannot make its calls fail one by one. Schedules of the
kind "orbax" use it nonetheless: what a crash leaves of what it wrote is drawn for every checkpoint as a whole.
Elsewhere `Checkpoints` stands in for it, with the product's `sync_tree` and `sync_folder`.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from decibel.core import _files as files
from decibel.engines import _checkpoint as product
from decibel.methods._method import State

from .disk import Disk

KEEP = 3
Agree = Callable[[Sequence[int]], int]  # from the steps that are saved to the one to start from; 0 is the beginning


class Saved(NamedTuple):
    """Where a run is, how many steps were done here, and its state."""

    step: int
    steps_done: int
    state: bytes


class Checkpoints:
    """Folders, synced before the next is saved, as the product does."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._folder = disk.root / "checkpoints"
        self.synced: set[int] = set()

    @property
    def steps(self) -> list[int]:
        return sorted(int(name) for name in _os().listdir(self._folder) if name.isdigit())

    def save(self, saved: Saved) -> None:
        self.sync()
        step, steps_done, state = saved
        target, beside = f"{self._folder}/{step}", f"{self._folder}/{step}.tmp"
        for old in (target, beside):
            if _os().path.exists(old):
                _os().rmtree(old)
        self.synced.discard(step)
        _os().makedirs(beside)
        content = steps_done.to_bytes(8) + state
        for name, part in (("state", content), ("digest", hashlib.sha256(content).digest())):
            number = _os().open(f"{beside}/{name}", _os().O_WRONLY | _os().O_CREAT, 0o644)
            with _os().fdopen(number, "wb") as file:
                file.write(part)
        _os().replace(beside, target)
        for old in self.steps[:-KEEP]:
            self.delete(old)

    def sync(self) -> None:
        """As `engines._checkpoint.Checkpoints._sync`."""
        new = set(self.steps) - self.synced
        for step in sorted(new):
            files.sync_tree(self._folder / str(step))
        if new:
            files.sync_folder(self._folder)
        self.synced |= new

    def holds(self, step: int, state: bytes) -> bool:
        """Whether that is saved, whatever calls would fail."""
        content = self._disk.read_as_it_is(f"checkpoints/{step}/state")
        return content is not None and content[8:] == state

    def restore(self, agree: Agree) -> Saved | None:
        """What to start from; None is the beginning."""
        saved = self.steps
        step = agree(saved)
        if not step:
            return None
        content = self._load(step)
        if content is None:
            self.delete(step)  # so that the next start does not offer it
            raise ValueError(f"the checkpoint of step {step} is damaged.")
        for newer in [one for one in saved if one > step]:
            self.delete(newer)  # of a future that will not be
        return Saved(step, int.from_bytes(content[:8]), content[8:])

    def _load(self, step: int) -> bytes | None:
        """None where it is damaged."""
        try:
            content, digest = (files.read_bytes(self._folder / str(step) / name) for name in ("state", "digest"))
        except FileNotFoundError:
            return None
        return content if hashlib.sha256(content).digest() == digest else None

    def delete(self, step: int) -> None:
        _os().rmtree(self._folder / str(step))

    def interrupt(self, chance: random.Random) -> None:
        """The process is killed: all that it wrote is there."""

    def close(self) -> None:
        pass


class OrbaxCheckpoints:
    """The product's checkpoints of a run whose state is bytes."""

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk = disk
        self._folder = disk.root / "checkpoints"
        self._size = size
        self._newest: int | None = None  # that this process has saved
        self._saves = product.Checkpoints(self._folder, {}, ("site",))
        disk.adopt()

    @property
    def steps(self) -> list[int]:
        return sorted(self._saves._manager.all_steps())

    @property
    def synced(self) -> set[int]:
        return self._saves._synced

    def save(self, saved: Saved) -> None:
        run = _Run(saved)
        self._saves.save(run, {}, {})  # pyright: ignore[reportArgumentType]
        self._saves._manager.wait_until_finished()
        self._newest = saved.step
        self._disk.adopt()

    def sync(self) -> None:
        self._saves._sync()

    def holds(self, step: int, state: bytes) -> bool:
        return True  # `restore` tells

    def restore(self, agree: Agree) -> Saved | None:
        run = _Run(Saved(0, 0, bytes(self._size)), agree)
        found = self._saves.restore(run)  # pyright: ignore[reportArgumentType]
        self._disk.adopt()
        return None if found is None else Saved(run.step, run.steps_done, np.asarray(run.state.x).tobytes())

    def delete(self, step: int) -> None:
        self._saves._manager.delete(step)
        self._disk.adopt()

    def interrupt(self, chance: random.Random) -> None:
        """The process is killed, perhaps while the newest is written: that is there, in part under another name, or
        not at all."""
        if self._newest is None or self._newest in self.synced:
            return
        left = chance.choice(["all", "a part", "nothing"])
        path = self._folder / str(self._newest)
        if left == "a part":
            shutil.rmtree(path / "meta")
            path.rename(f"{path}.orbax-checkpoint-tmp")
        elif left == "nothing":
            shutil.rmtree(path)
        self._disk.adopt()

    def close(self) -> None:
        self._saves._manager.close()


class _Run:
    """What `engines._checkpoint` asks of a run."""

    holds_one_node = True
    best = None
    devices = 1
    split = ""
    migrate_links = None
    placement = ""

    def __init__(self, saved: Saved, agree: Agree = lambda saved: 0) -> None:
        self.step = saved.step
        self.skipped = saved.step - saved.steps_done
        self.state = self._initial = _state(saved.state)
        self._agree = agree

    @property
    def steps_done(self) -> int:
        return self.step - self.skipped

    def restore_order(self, saved: Sequence[int]) -> list[int]:
        step = self._agree(saved)
        return [step] if step else []

    def amends(self, placement: str) -> bool:
        return False

    def free(self) -> None:
        pass

    def initial_state(self) -> State:
        return self._initial


def _state(raw: bytes) -> State:
    return State(jnp.asarray(np.frombuffer(raw, np.uint8)))  # pyright: ignore[reportArgumentType]


def _os():
    return files.os  # whatever stands there now
