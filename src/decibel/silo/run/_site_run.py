"""A run of one site: the compiled step, and how the site's neighbours and signals affect it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decibel import Program, Run, State
from decibel.core import Counts, plain
from decibel.engines import Compiled, all_finite, copied, ending_at_once, oom_hint
from decibel.problem import streams_of

from .._errors import NotFinite, Stopped
from ..observe._site_status import closing_line
from ..protocol._frames import Model
from ..protocol._shared_model import row_of, with_row
from ..protocol._site import STOP, Site
from ._amendment import Placement, migrate, not_exact, why_not_exact
from ._finished import FILE, Finished, move_aside
from ._finished import read as read_finished
from ._finished import write as write_finished
from ._flow_limits import note_flows
from ._host_callback import call_site
from ._privacy_budget import PrivacyAccountant
from ._site_network import SiteNetwork

if TYPE_CHECKING:
    from ._connections import Connections

NUMBER = jax.ShapeDtypeStruct((), jnp.int32)
LARGEST_MODEL = 2**30  # bytes, of the two billion that gRPC carries
FULL = (
    "This site's model and the temporary arrays of a step do not fit into the device's memory: use smaller batches, a "
    "smaller model, or a device with more memory."
)


class ChunkResult(NamedTuple):
    """What a compiled chunk returns: the state, whether it is finite, the step that begins next, how many steps were
    done here, and how often each repeated part of a step was done."""

    state: State
    is_finite: Array
    next_step: Array
    steps_done: Array
    repetitions: list[Array]


class FetchedResult(NamedTuple):
    """A `ChunkResult` in Python's numbers; the state stays on the device."""

    state: State
    is_finite: bool
    next_step: int
    steps_done: int
    repetitions: list[float]


class LoopState(NamedTuple):
    """What the loop over steps carries: the step that the site has begun, or `STOP`, and then as in `ChunkResult`."""

    step: Array
    next_step: Array
    steps_done: Array
    state: State
    repetitions: list[Array]


class SiteRun(Run):
    """A run of one node. Its neighbours at other sites may make it wait, or skip steps that they did without it."""

    holds_one_node = True

    def __init__(self, program: Program, site: Site, privacy: PrivacyAccountant, home: Path | None = None) -> None:
        super().__init__(program, oom_message=FULL)
        self._home = home
        self._resumes = False  # whether it continues from checkpoints
        self._finished_before: Finished | None = None  # this run, if it had finished in an earlier start
        self._earlier_run: Finished | None = None  # another run that finished in this folder, to be moved aside
        self.site = site
        self.privacy = privacy
        for data in streams_of(program.problem):
            # The error is set before anything is sent that was computed without the samples.
            data.host.on_error(partial(setattr, site, "error"))
        self._trace_step()
        site.expect_model(self._row())
        self._goal = 2**62
        self._connections: Connections | None = None
        self._serve_model_seconds = 0.0
        self._any_length: Compiled | None = None

    def _trace_step(self) -> None:
        """Finds what a step costs. Tracing it also registers at the site which rows its exchanges send, and at the
        privacy accountant which of its messages have noise."""
        self.site.exchanges = 0
        self._costs = self.program.step_cost(self.state)
        self.privacy.is_traced = True

    def _row(self) -> np.ndarray:
        """The model that it gives to others; empty if that would reveal what noisy messages hide, or is too large to
        send.
        """
        row = row_of(self.program.method, self.state)
        return row[:0] if self.privacy.messages_per_step or row.nbytes > LARGEST_MODEL else row

    def connect(self, connections: Connections, *, stay: float = 0.0) -> None:
        """Connects to the neighbours; a run that had finished before gives its model for `stay` seconds."""
        self._connections = connections
        self._serve_model_seconds = stay
        connections.start()

    def compile(self, length: int) -> Compiled:
        """One program for every length."""
        if self._any_length is None:
            arrays, static = eqx.partition(self.program, eqx.is_array)

            def chunk(arrays: Program, state: State, first: Array, end: Array) -> ChunkResult:
                return self.steps(eqx.combine(arrays, static), state, first, end)

            with oom_hint(FULL), self.site.health.compiles(), ending_at_once():
                compiled = jax.jit(chunk, donate_argnums=1).lower(arrays, self.state, NUMBER, NUMBER).compile()
            self._any_length = Compiled.of(compiled, self._costs)
        return self._any_length

    def steps(self, program: Program, state: State, first: Array, end: Array) -> ChunkResult:
        """Does steps from `first` until `end` is reached; it is compiled. The site decides which step comes next."""

        def step(loop: LoopState) -> LoopState:
            state, cost = program.step(loop.step, loop.state)
            totals = [total + times for total, times in zip(loop.repetitions, cost.repetitions, strict=True)]
            self.after_step(program, loop.state, state)
            return LoopState(loop.step, loop.step + 1, loop.steps_done + 1, state, totals)

        def body(loop: LoopState) -> LoopState:
            rows, state = self.before_step(program, loop.next_step, loop.state)
            function = self._begin_step_on_host
            (begun,) = call_site(self.site, function, (NUMBER,), loop.next_step, *rows, otherwise=STOP)
            # Once, or not at all: a loop hands on the state without a copy, where `cond` might make one.
            return jax.lax.while_loop(
                lambda inner: (inner.step < STOP) & (inner.steps_done == loop.steps_done),
                step,
                loop._replace(step=begun, state=state),
            )

        none = [jnp.zeros((), jnp.float32) for _ in self._costs.repeated_parts]
        start = LoopState(first, first, jnp.int32(0), state, none)
        last = jax.lax.while_loop(lambda loop: (loop.step < STOP) & (loop.next_step < end), body, start)
        return ChunkResult(last.state, all_finite(last.state), last.next_step, last.steps_done, last.repetitions)

    def before_step(self, program: Program, step: Array, state: State) -> tuple[list[Array], State]:
        """The rows that the site sends before it begins a step, and the state with what links remember of them."""
        return [], state

    def after_step(self, program: Program, before: State, after: State) -> None:
        """Tells the site what it has to know of a step."""

    def _begin_step_on_host(self, out: tuple[np.ndarray, ...], k: np.ndarray, *rows: np.ndarray) -> None:
        """Begins a step at the site; called from the compiled step."""
        out[0][...] = self.site.begin_step(int(k))

    def restore_order(self, saved: Sequence[int]) -> list[int]:
        """The step to restore: the one that all sites have saved; this site's newest, if the others run already; or the
        last, if this run has finished here before.
        """
        last = self.resume_if_finished(saved)
        if last is not None:
            return [last]
        step = self.site.agree_on_start(saved)
        if step and step not in saved:  # a new member begins where the others are
            self.step = self.skipped = step
            return []
        if saved and not step:
            self.site.log("begins at step 0, since no step is saved at every site: its own checkpoints are set aside")
        return [step] if step else []

    def resume_if_finished(self, saved: Sequence[int]) -> int | None:
        """Takes up this run if it has finished here before, and returns its last step; no step is done then."""
        self._resumes = True
        before = None if self._home is None else read_finished(self._home)
        if before is None:
            return None
        if not before.is_of(self.site.federation.hash, self.site.run_hash) or self.site.continues_after(before.step):
            self._earlier_run = before
            return None
        if before.step not in saved:
            raise ValueError(
                f"this run has finished here before, and its last checkpoint, of step {before.step}, is gone: "
                f"solution.npz is its model; to do it again, move {FILE} away."
            )
        self._finished_before = before
        self.site.resume_finished(before.step, before.why, before.without, self._serve_model_seconds)
        self.site.log(f"this run has finished here before, at step {before.step}: no step is done")
        return before.step

    @property
    def node_ids(self) -> np.ndarray:
        """The site's position in the federation file, which is not its permanent number."""
        return np.asarray([self.site.number])

    @property
    def placement(self) -> str:
        return json.dumps(self._placement._asdict())

    @property
    def _placement(self) -> Placement:
        federation = self.site.federation
        network = self.program.network
        assert isinstance(network, SiteNetwork)
        links: list[tuple[tuple[str, float], ...]] = []
        for links_of_graph, others in zip(network.links, network.neighbour_of_slot, strict=True):
            weights = np.asarray(links_of_graph.weights).reshape(len(others), -1).mean(1).tolist()
            names = [federation.names[other] if other >= 0 else "" for other in others]
            links.append(tuple(zip(names, weights, strict=True)))
        return Placement(federation.edition, federation.names, tuple(links))

    def amends(self, placement: str) -> bool:
        """Whether it was saved under an earlier edition; raises if the run cannot continue exactly."""
        if not placement:  # no site saved it
            return False
        before = Placement.read(placement)
        self._validate_newcomers(before.edition)
        now = self._placement
        if before.edition == now.edition:
            return False
        members_changed = set(before.sites) != set(now.sites)
        graph_changed = members_changed or before.links != now.links
        federation = self.site.federation
        if federation.warm > before.edition:
            self.site.log("corrections begin at zero, as the organiser has decided for this edition (amend --warm)")
        elif why := why_not_exact(
            self.program.method.strategies, members_changed=members_changed, graph_changed=graph_changed
        ):
            raise not_exact(why)
        return True

    def _validate_newcomers(self, edition: int) -> None:
        """Raises if a site that took part when a state was saved has lost its part, and others cannot restore it."""
        federation = self.site.federation
        lost = [name for name in self.site.new_members if federation.sites[federation.number(name)].since <= edition]
        exact = not why_not_exact(self.program.method.strategies, members_changed=True, graph_changed=True)
        if lost and not exact and federation.warm <= edition:
            raise ValueError(
                f"{', '.join(lost)} has lost what it had saved, and this method needs it: restore its checkpoints, or "
                "let the organiser make an edition by `decibel silo amend --warm`."
            )

    def adopt(self, saved: State, placement: str) -> State:
        before = Placement.read(placement)
        strategies = self.program.method.strategies
        warm = self.site.federation.warm > before.edition
        return migrate(saved, self.initial_state(), before, self._placement, strategies, warm=warm)

    @property
    def end_reason(self) -> str:
        return self.site.end_reason or self.site.stop_order

    def interrupt(self) -> None:
        self.site.stop()

    def plan_goal(self, steps: int) -> tuple[int, str]:
        """The step at which the run ends, by the federation file and the privacy budget, and why it ends there if that
        is before `steps`."""
        if steps > self.site.limits.steps:
            raise ValueError(
                f"steps={steps} is more than the federation file allows: give at most {self.site.limits.steps}, or let "
                "the organiser allow more (decibel silo amend)."
            )
        if self._finished_before is not None and self.step != self._finished_before.step:
            raise ValueError(
                f"the checkpoint of step {self._finished_before.step}, the last of this finished run, cannot be read: "
                "solution.npz is its model, and another site has to give it to those who lack it."
            )
        if self._home is not None and self._earlier_run is not None:
            aside = move_aside(self._home, self._earlier_run)
            self.site.log(
                f"a run has finished here before; it continues, or this is another run: its results are in {aside}"
            )
        self.site.steps_done = self.steps_done
        left = self.privacy.steps_left(steps - self.step, self.step)
        self._goal = self.site.goal = self.step + left
        if self._goal >= steps:
            return steps, ""
        sentence = self.privacy.sentence(left, self.step)
        self.site.log(f"will end at step {self._goal}: {sentence}")
        return self._goal, sentence

    def advance(self, length: int) -> Counts | None:
        chunk, costs, temp_bytes = self.compile(length)
        with oom_hint(FULL):
            restore_state = copied(self.state, temp_bytes)
            arrays = eqx.filter(self.program, eqx.is_array)
            ends = (np.int32(self.step), np.int32(self.step + length))
            result = self._patiently(lambda: chunk(arrays, self.state, *ends))
            self.state, finite, next_step, steps_done, repetitions = result
            del result  # or the state would stay in memory beside the restored one
            if isinstance(self.site.error, Stopped):  # in the middle of a step: back to the last row
                self.state = restore_state()
                self.site.steps_done = self.steps_done
                return costs.total(0, [0.0 for _ in repetitions])
            if not finite or self.site.error is not None:
                self.state = restore_state()
                self.site.steps_done = self.steps_done
                return None
        if self.site.taken_model is not None:
            self.state = with_row(self.program.method, self.state, self.site.taken_model.row)
            next_step = self.site.taken_model.step
        self.skipped += next_step - self.step - steps_done
        self.step = next_step
        note_flows(self.program, self.site, self.state.link_memory)
        return costs.total(steps_done, repetitions)

    def _patiently(self, chunk: Callable[[], ChunkResult]) -> FetchedResult:
        """Runs a chunk in its own thread, so that Ctrl-C works while the site waits for neighbours."""
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(lambda: _fetch(chunk()))
            try:
                result = running.result()
            except KeyboardInterrupt:
                self.site.abort_waiting()
                raise
        if self.site.error is not None and not isinstance(self.site.error, NotFinite | Stopped):
            raise self.site.error
        return result

    def close(self, *, finished: bool) -> None:
        done = finished or self.step >= self._goal
        error = self.site.error or sys.exc_info()[1]
        if not done:
            reason = self.site.stop_order or "it was told to stop"
            self.site.health.reason = reason if self.site.stopping else plain(error or "")
        else:
            self.site.model = Model(self.step, self._row())
        self.site.goodbye(done)
        steps = self.site.federation.steps
        at_the_end = self.site.end_reason or (steps is not None and self.step >= steps)
        if finished and at_the_end and self._resumes and self._home is not None:
            self._note_finished(self._home)
        self.site.log(closing_line(self.site))
        if self._connections is not None:
            self._connections.close()
        self.privacy.unlock_folder()

    def _note_finished(self, home: Path) -> None:
        """Records that the run has finished, so that it does not begin again."""
        site = self.site
        without = list(site.health.without)
        if without and (site.had_finished or not self._serve_model_seconds):
            site.log.warning(f"{', '.join(without)} lacks the model: start this site again when that one is back")
        hashes = site.federation.hash.hex(), site.run_hash.hex()
        try:
            write_finished(home, Finished(*hashes, self.step, site.end_reason, without))
        except OSError as error:
            site.log.error(f"{home} cannot be written: {error.strerror or error}; a restart would begin this run again")


def _fetch(result: ChunkResult) -> FetchedResult:
    state, finite, next_step, steps_done, totals = result
    return FetchedResult(state, bool(finite), int(next_step), int(steps_done), [float(total) for total in totals])
