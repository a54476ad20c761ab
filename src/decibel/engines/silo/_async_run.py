"""A run of one site without a common clock: the same compiled step, between what the site sends and what it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...core._ledger import Ledger
from ...core._types import PyTree
from ...methods._method import State
from ...network._communicator import Communicator
from ...network._messages import Message, as_message
from ...network._wave import Wave
from .._program import Program, all_finite
from ._async_site import AsyncSite
from ._async_wire import AsyncWire, Sent
from ._host_callback import call
from ._privacy import Privacy
from ._site import STOP, Site
from ._site_run import Carry, Outcome, SiteRun


class AsyncRun(SiteRun):
    """What a site sends depends on its state only, so that it is sent when a step has ended, before the next begins."""

    def __init__(self, program: Program, site: Site, privacy: Privacy) -> None:
        super().__init__(program, site, privacy)
        network = program.network
        assert isinstance(site, AsyncSite) and isinstance(network, AsyncWire)
        self.site: AsyncSite = site
        self._sent = waves_sent(program, self.state)
        site.exchange_at(network.at(self.state, self._sent), network.others)

    @property
    def ended(self) -> str:
        return self.site.ended

    def restore_order(self, saved: Sequence[int]) -> list[int]:
        self.site.agree(saved)
        return list(saved)

    def close(self, *, finished: bool) -> None:
        super().close(finished=finished or bool(self.site.ended))

    def steps(self, program: Program, state: State, first: Array, end: Array) -> Outcome:
        """Steps from `first` until `end` is reached, or the site says that it is enough."""
        site, sent, network = self.site, self._sent, program.network
        assert isinstance(network, AsyncWire)

        def begin(out: tuple[np.ndarray, ...], k: np.ndarray, *rows: np.ndarray) -> None:
            out[0][...] = STOP
            with site.failing_later():
                site.post(int(k), rows)
                out[0][...] = site.begin(int(k))

        def note(out: tuple[np.ndarray, ...], change: np.ndarray, *by_link: np.ndarray) -> None:
            out[0][...] = 0
            with site.failing_later():
                site.note(float(change), by_link)

        def step(carry: Carry) -> Carry:
            k, _, done, before, totals = carry
            state, cost = program.step(k, before)
            totals = [total + times for total, times in zip(totals, cost.repetitions, strict=True)]
            if site.rest.rule is not None:
                changes = largest_change(before, state), *network.changes(before, state, sent)
                call(note, (number,), *changes, in_place=site.in_place)
            return k, k + 1, done + 1, state, totals

        def body(carry: Carry) -> Carry:
            _, following, done, state, totals = carry
            rows, state = network.waves(following, state, sent)
            (k,) = call(begin, (number,), following, *rows, in_place=site.in_place)
            # Once, or not at all, as in steps with a common clock.
            start = (k, following, done, state, totals)
            return jax.lax.while_loop(lambda one: (one[0] < STOP) & (one[2] == done), step, start)

        number = jax.ShapeDtypeStruct((), jnp.int32)
        none = [jnp.zeros((), jnp.float32) for _ in self._costs.repeated]
        start = (first, first, jnp.int32(0), state, none)
        _, following, done, state, totals = jax.lax.while_loop(
            lambda carry: (carry[0] < STOP) & (carry[1] < end), body, start
        )
        return state, all_finite(state), following, done, totals


def largest_change(before: State, after: State) -> Array:
    """Of any entry of a level."""
    both = zip(jax.tree.leaves(before[:3]), jax.tree.leaves(after[:3]), strict=True)
    return jnp.stack([jnp.abs(new - old).max(initial=0).astype(jnp.float32) for old, new in both]).max()


class Recorder(Communicator):
    """Exchanges nothing, and keeps what was to be sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Message]] = []

    def flow(self, messages: dict[str, PyTree]) -> dict[str, PyTree]:
        self.sent.append({level: as_message(message) for level, message in messages.items()})
        return {level: message.placeholder() for level, message in self.sent[-1].items()}


def waves_sent(program: Program, state: State) -> Sent:
    """What each exchange of a step carries, from tracing it; raises where it carries anything else than waves of the
    levels as they were before the step."""
    found: Sent = []

    def trace(k: Array, state: State) -> None:
        recorder = Recorder()
        program.method.step(k, state, program.oracle(k, Ledger()), recorder)
        for messages in recorder.sent:
            found.append({})
            for level, message in messages.items():
                held = jax.tree.leaves(getattr(state, level).s)
                same = zip(jax.tree.leaves(message.content), held, strict=True)
                if not isinstance(message, Wave) or any(mine is not other for mine, other in same):
                    raise ValueError(
                        f"{program.method.name} sends what it computes in a step, on level {level}, so that sites need "
                        "common steps: choose sparkle-wave or wave, or leave out asynchronous = true."
                    )
                within = None if message.within is None else ()
                found[-1][level] = replace(message, content=None, after=None, within=within)

    jax.eval_shape(trace, jnp.int32(0), state)
    return found
