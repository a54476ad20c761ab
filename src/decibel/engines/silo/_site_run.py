"""A run of one site: the compiled step, and what the site's neighbours and signals do to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...core._ledger import Counts
from ...core._text import plain
from ...methods._method import State
from ...problem._reading import streams_of
from .. import _memory as memory
from .._program import Program, all_finite
from .._run import Compiled, Run
from .._signals import ending_at_once
from ._errors import NotFinite, Stopped
from ._host_callback import call
from ._lies import note_flows
from ._privacy import Privacy
from ._site import STOP, Site
from ._status import closing_line

if TYPE_CHECKING:
    from ._streams import Streams

Outcome = tuple[State, Array, Array, Array, list[Array]]  # the state, whether it is finite, the next step, and counts
Fetched = tuple[State, bool, int, int, list[float]]  # the same in Python's numbers
Carry = tuple[Array, Array, Array, State, list[Array]]

FULL = (
    "This site's model and the temporary arrays of a step do not fit into the device's memory: use smaller batches, a "
    "smaller model, or a device with more memory."
)


class SiteRun(Run):
    """A run of one node among others elsewhere, who may make it wait, or skip steps that they did without it."""

    alone = True

    def __init__(self, program: Program, site: Site, privacy: Privacy) -> None:
        super().__init__(program, full=FULL)
        self.site, self.privacy = site, privacy
        for data in streams_of(program.problem):
            data.host.watch(
                partial(setattr, site, "error")
            )  # before anything is sent that was computed without the samples
        site.exchanges = 0
        self._costs = program.costs(self.state)  # its trace tells the site what messages will come
        privacy.settled = True
        self._goal = 2**62
        self._streams: Streams | None = None
        self._any_length: Compiled | None = None

    def talk_by(self, streams: Streams) -> None:
        self._streams = streams
        streams.start()

    def compile(self, length: int) -> Compiled:
        """One program for every length."""
        if self._any_length is None:
            arrays, static = eqx.partition(self.program, eqx.is_array)

            def chunk(arrays: Program, state: State, first: Array, end: Array) -> Outcome:
                return self.steps(eqx.combine(arrays, static), state, first, end)

            k = jax.ShapeDtypeStruct((), jnp.int32)
            with memory.oom_hint(FULL), self.site.health.compiles(), ending_at_once():
                compiled = jax.jit(chunk, donate_argnums=1).lower(arrays, self.state, k, k).compile()
            self._any_length = Compiled.of(compiled, self._costs)
        return self._any_length

    def steps(self, program: Program, state: State, first: Array, end: Array) -> Outcome:
        """What is compiled: steps from `first` until `end` is reached."""
        return _chunk(program, self.site, len(self._costs.repeated), state, first, end)

    def restore_order(self, saved: Sequence[int]) -> list[int]:
        """The step that all sites have saved; this site's newest, where the others run already."""
        step = self.site.agree(saved)
        return [step] if step else []

    def interrupt(self) -> None:
        self.site.stop()

    def reach(self, steps: int) -> tuple[int, str]:
        """As far as the federation file and the privacy budget go."""
        if steps > self.site.limits.steps:
            raise ValueError(
                f"steps={steps} is more than the federation file allows ({self.site.limits.steps}): sites would reject "
                "the rest."
            )
        left = self.privacy.steps_left(steps - self.step, self.step)
        self._goal = self.site.goal = self.step + left
        if self._goal >= steps:
            return steps, ""
        sentence = self.privacy.sentence(left, self.step)
        self.site.say(f"will end at step {self._goal}: {sentence}")
        return self._goal, sentence

    def advance(self, length: int) -> Counts | None:
        chunk, costs, beside = self.compile(length)
        with memory.oom_hint(FULL):
            good = memory.copied(self.state, beside)
            arrays, ends = eqx.filter(self.program, eqx.is_array), (np.int32(self.step), np.int32(self.step + length))
            self.state, finite, step, steps, repetitions = self._patiently(lambda: chunk(arrays, self.state, *ends))
            if isinstance(self.site.error, Stopped):  # in the middle of a step: back to the last row
                self.state = good()
                return costs.total(0, [0.0 for _ in repetitions])
            if not finite or self.site.error is not None:
                self.state = good()
                return None
        self.step = step
        note_flows(self.program, self.site, self.state.links)
        return costs.total(steps, repetitions)

    def _patiently(self, chunk: Callable[[], Outcome]) -> Fetched:
        """In a thread of its own, so that Ctrl-C works while waiting for neighbours."""
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(lambda: _fetch(chunk()))
            try:
                outcome = running.result()
            except KeyboardInterrupt:
                self.site.give_up()
                raise
        if self.site.error is not None and not isinstance(self.site.error, NotFinite | Stopped):
            raise self.site.error
        return outcome

    def close(self, *, finished: bool) -> None:
        done = finished or self.step >= self._goal
        error = self.site.error or sys.exc_info()[1]
        if not done:
            self.site.health.reason = "it was told to stop" if self.site.stopping else plain(error or "")
        self.site.goodbye(done)
        self.site.say(closing_line(self.site))
        if self._streams is not None:
            self._streams.close()
        self.privacy.end()


def _chunk(program: Program, site: Site, repeated: int, state: State, first: Array, end: Array) -> Outcome:
    """Steps from `first` until `end` is reached: the state, whether it is finite, the next step, how many were done,
    and how often what varies (`repeated` counts) was repeated. Which step comes next is the site's to say."""

    def begin(out: tuple[np.ndarray, ...], k: np.ndarray) -> None:
        out[0][...] = STOP
        with site.failing_later():
            out[0][...] = site.begin(int(k))

    def step(carry: Carry) -> Carry:
        k, _, done, state, totals = carry
        state, cost = program.step(k, state)
        totals = [total + times for total, times in zip(totals, cost.repetitions, strict=True)]
        return k, k + 1, done + 1, state, totals

    def body(carry: Carry) -> Carry:
        _, following, done, *_ = carry
        (k,) = call(begin, (jax.ShapeDtypeStruct((), jnp.int32),), following, in_place=site.in_place)
        # Once, or not at all: a loop hands on the state without a copy, where `cond` might make one.
        return jax.lax.while_loop(lambda one: (one[0] < STOP) & (one[2] == done), step, (k, *carry[1:]))

    none = [jnp.zeros((), jnp.float32) for _ in range(repeated)]
    start = (first, first, jnp.int32(0), state, none)
    _, following, done, state, totals = jax.lax.while_loop(
        lambda carry: (carry[0] < STOP) & (carry[1] < end), body, start
    )
    return state, all_finite(state), following, done, totals


def _fetch(outcome: Outcome) -> Fetched:
    """The state as it is; numbers as Python's."""
    state, finite, step, done, totals = outcome
    return state, bool(finite), int(step), int(done), [float(total) for total in totals]
