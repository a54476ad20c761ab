"""A run of one site: the compiled step, and how the site's neighbours and signals affect it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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
from ._host_callback import ask
from ._privacy_budget import Privacy
from ._site_network import SiteNetwork

if TYPE_CHECKING:
    from ._connections import Streams

Outcome = tuple[State, Array, Array, Array, list[Array]]  # the state, whether it is finite, the next step, and counts
Fetched = tuple[State, bool, int, int, list[float]]  # the same in Python's numbers
Carry = tuple[Array, Array, Array, State, list[Array]]

NUMBER = jax.ShapeDtypeStruct((), jnp.int32)
LARGEST_MODEL = 2**30  # bytes, of the two billion that gRPC carries
FULL = (
    "This site's model and the temporary arrays of a step do not fit into the device's memory: use smaller batches, a "
    "smaller model, or a device with more memory."
)


class SiteRun(Run):
    """A run of one node. Its neighbours at other sites may make it wait, or skip steps that they did without it."""

    holds_one_node = True

    def __init__(self, program: Program, site: Site, privacy: Privacy, home: Path | None = None) -> None:
        super().__init__(program, oom_message=FULL)
        self._home = home
        self._resumes = False  # whether it continues from checkpoints
        self._before: Finished | None = None  # how this run ended before, if it did
        self._set_aside: Finished | None = None  # what has finished in this folder, and is not to be replaced
        self.site = site
        self.privacy = privacy
        for data in streams_of(program.problem):
            data.host.on_error(
                partial(setattr, site, "error")
            )  # before anything is sent that was computed without the samples
        site.exchanges = 0
        self._costs = program.step_cost(self.state)  # its trace tells the site what messages will come
        privacy.traced = True
        site.expect_model(self._row())
        self._goal = 2**62
        self._streams: Streams | None = None
        self._stay = 0.0
        self._any_length: Compiled | None = None

    def _row(self) -> np.ndarray:
        """The model that it gives to others; empty if that would reveal what noisy messages hide, or is too large to
        send.
        """
        row = row_of(self.program.method, self.state)
        return row[:0] if self.privacy.in_step or row.nbytes > LARGEST_MODEL else row

    def talk_by(self, streams: Streams, *, stay: float = 0.0) -> None:
        """Starts the streams; a run that had finished before gives its model for `stay` seconds."""
        self._streams = streams
        self._stay = stay
        streams.start()

    def compile(self, length: int) -> Compiled:
        """One program for every length."""
        if self._any_length is None:
            arrays, static = eqx.partition(self.program, eqx.is_array)

            def chunk(arrays: Program, state: State, first: Array, end: Array) -> Outcome:
                return self.steps(eqx.combine(arrays, static), state, first, end)

            with oom_hint(FULL), self.site.health.compiles(), ending_at_once():
                compiled = jax.jit(chunk, donate_argnums=1).lower(arrays, self.state, NUMBER, NUMBER).compile()
            self._any_length = Compiled.of(compiled, self._costs)
        return self._any_length

    def steps(self, program: Program, state: State, first: Array, end: Array) -> Outcome:
        """What is compiled: steps from `first` until `end` is reached. The site decides which step comes next."""

        def step(carry: Carry) -> Carry:
            k, _, done, before, totals = carry
            state, cost = program.step(k, before)
            totals = [total + times for total, times in zip(totals, cost.repetitions, strict=True)]
            self.after_step(program, before, state)
            return k, k + 1, done + 1, state, totals

        def body(carry: Carry) -> Carry:
            _, following, done, state, totals = carry
            rows, state = self.before_step(program, following, state)
            (k,) = ask(self.site, self._ask_for_step, (NUMBER,), following, *rows, otherwise=STOP)
            start = (k, following, done, state, totals)
            # Once, or not at all: a loop hands on the state without a copy, where `cond` might make one.
            return jax.lax.while_loop(lambda carried: (carried[0] < STOP) & (carried[2] == done), step, start)

        none = [jnp.zeros((), jnp.float32) for _ in self._costs.repeated_parts]
        start = (first, first, jnp.int32(0), state, none)
        _, following, done, state, totals = jax.lax.while_loop(
            lambda carry: (carry[0] < STOP) & (carry[1] < end), body, start
        )
        return state, all_finite(state), following, done, totals

    def before_step(self, program: Program, step: Array, state: State) -> tuple[list[Array], State]:
        """What the site sends before it begins a step, and the state with what links remember of it."""
        return [], state

    def after_step(self, program: Program, before: State, after: State) -> None:
        """What the site has to know of a step."""

    def _ask_for_step(self, out: tuple[np.ndarray, ...], k: np.ndarray, *rows: np.ndarray) -> None:
        out[0][...] = self.site.begin(int(k))

    def restore_order(self, saved: Sequence[int]) -> list[int]:
        """The step that all sites have saved; this site's newest, if the others run already; or the last, if this run
        has finished here before.
        """
        last = self.finished_at(saved)
        if last is not None:
            return [last]
        step = self.site.agree(saved)
        if step and step not in saved:  # a new member begins where the others are
            self.step = self.skipped = step
            return []
        if saved and not step:
            self.site.log("begins at step 0, since no step is saved at every site: its own checkpoints are set aside")
        return [step] if step else []

    def finished_at(self, saved: Sequence[int]) -> int | None:
        """The last step, if this run has finished here before; then no step is done."""
        self._resumes = True
        before = None if self._home is None else read_finished(self._home)
        if before is None:
            return None
        if not before.is_of(self.site.federation.hash, self.site.problem) or self.site.continues_after(before.step):
            self._set_aside = before
            return None
        if before.step not in saved:
            raise ValueError(
                f"this run has finished here before, and its last checkpoint, of step {before.step}, is gone: "
                f"solution.npz is its model; to do it again, move {FILE} away."
            )
        self._before = before
        self.site.resume_finished(before.step, before.why, before.without, self._stay)
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
        for links_of_graph, others in zip(network.links, network.others, strict=True):
            weights = np.asarray(links_of_graph.weights).reshape(len(others), -1).mean(1).tolist()
            names = [federation.names[other] if other >= 0 else "" for other in others]
            links.append(tuple(zip(names, weights, strict=True)))
        return Placement(federation.edition, federation.names, tuple(links))

    def amends(self, placement: str) -> bool:
        """Whether it was saved under an earlier edition; raises if the run cannot continue exactly."""
        if not placement:  # of no site
            return False
        before = Placement.read(placement)
        self._validate_newcomers(before.edition)
        now = self._placement
        if before.edition == now.edition:
            return False
        members = set(before.sites) != set(now.sites)
        graph = members or before.links != now.links
        federation = self.site.federation
        if federation.warm > before.edition:
            self.site.log("corrections begin at zero, as the organiser has decided for this edition (amend --warm)")
        elif why := why_not_exact(self.program.method.strategies, members=members, graph=graph):
            raise not_exact(why)
        return True

    def _validate_newcomers(self, edition: int) -> None:
        """Raises if a site that took part when a state was saved has lost its part, and others cannot restore it."""
        federation = self.site.federation
        lost = [name for name in self.site.new_members if federation.sites[federation.number(name)].since <= edition]
        exact = not why_not_exact(self.program.method.strategies, members=True, graph=True)
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
        return self.site.ended or self.site.ordered

    def interrupt(self) -> None:
        self.site.stop()

    def plan_goal(self, steps: int) -> tuple[int, str]:
        """As far as the federation file and the privacy budget go."""
        if steps > self.site.limits.steps:
            raise ValueError(
                f"steps={steps} is more than the federation file allows: give at most {self.site.limits.steps}, or let "
                "the organiser allow more (decibel silo amend)."
            )
        if self._before is not None and self.step != self._before.step:
            raise ValueError(
                f"the checkpoint of step {self._before.step}, the last of this finished run, cannot be read: "
                "solution.npz is its model, and another site has to give it to those who lack it."
            )
        if self._home is not None and self._set_aside is not None:
            aside = move_aside(self._home, self._set_aside)
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
            good = copied(self.state, temp_bytes)
            arrays = eqx.filter(self.program, eqx.is_array)
            ends = (np.int32(self.step), np.int32(self.step + length))
            self.state, finite, step, steps, repetitions = self._patiently(lambda: chunk(arrays, self.state, *ends))
            if isinstance(self.site.error, Stopped):  # in the middle of a step: back to the last row
                self.state = good()
                self.site.steps_done = self.steps_done
                return costs.total(0, [0.0 for _ in repetitions])
            if not finite or self.site.error is not None:
                self.state = good()
                self.site.steps_done = self.steps_done
                return None
        if self.site.taken is not None:
            self.state = with_row(self.program.method, self.state, self.site.taken.row)
            step = self.site.taken.step
        self.skipped += step - self.step - steps
        self.step = step
        note_flows(self.program, self.site, self.state.link_memory)
        return costs.total(steps, repetitions)

    def _patiently(self, chunk: Callable[[], Outcome]) -> Fetched:
        """Runs in its own thread, so that Ctrl-C works while waiting for neighbours."""
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(lambda: _fetch(chunk()))
            try:
                outcome = running.result()
            except KeyboardInterrupt:
                self.site.abort_waiting()
                raise
        if self.site.error is not None and not isinstance(self.site.error, NotFinite | Stopped):
            raise self.site.error
        return outcome

    def close(self, *, finished: bool) -> None:
        done = finished or self.step >= self._goal
        error = self.site.error or sys.exc_info()[1]
        if not done:
            told = self.site.ordered or "it was told to stop"
            self.site.health.reason = told if self.site.stopping else plain(error or "")
        else:
            self.site.model = Model(self.step, self._row())
        self.site.goodbye(done)
        steps = self.site.federation.steps
        at_the_end = self.site.ended or (steps is not None and self.step >= steps)
        if finished and at_the_end and self._resumes and self._home is not None:
            self._note_finished(self._home)
        self.site.log(closing_line(self.site))
        if self._streams is not None:
            self._streams.close()
        self.privacy.end()

    def _note_finished(self, home: Path) -> None:
        """Records that the run has finished, so that it does not begin again."""
        site = self.site
        without = list(site.health.without)
        if without and (site.had_finished or not self._stay):
            site.log.warning(f"{', '.join(without)} lacks the model: start this site again when that one is back")
        hashes = site.federation.hash.hex(), site.problem.hex()
        try:
            write_finished(home, Finished(*hashes, self.step, site.ended, without))
        except OSError as error:
            site.log.error(f"{home} cannot be written: {error.strerror or error}; a restart would begin this run again")


def _fetch(outcome: Outcome) -> Fetched:
    """The state as it is; numbers as Python's."""
    state, finite, step, done, totals = outcome
    return state, bool(finite), int(step), int(done), [float(total) for total in totals]
