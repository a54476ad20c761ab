"""A run of one site without a common clock: the same compiled step, between what the site sends and what it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decibel import Program, State
from decibel.engines import all_finite
from decibel.network import Message, Wave

from ..protocol._async_site import AsyncSite
from ..protocol._site import STOP, Site
from ._async_wire import AsyncWire, Sent
from ._host_callback import call
from ._privacy_budget import Privacy
from ._site_run import Carry, Outcome, SiteRun
from ._traced_messages import trace_messages


class AsyncRun(SiteRun):
    """What a site sends depends on its state only, so that it is sent when a step has ended, before the next begins."""

    def __init__(self, program: Program, site: Site, privacy: Privacy, home: Path | None = None) -> None:
        super().__init__(program, site, privacy, home)
        network = program.network
        assert isinstance(site, AsyncSite) and isinstance(network, AsyncWire)
        self.site: AsyncSite = site
        self._sent = waves_sent(program, self.state)
        site.exchange_at(network.at(self.state, self._sent), network.others)

    def restore_order(self, saved: Sequence[int]) -> list[int]:
        last = self.finished_at(saved)
        if last is not None:
            return [last]
        self.site.agree(saved)
        return list(saved)

    def close(self, *, finished: bool) -> None:
        super().close(finished=finished or bool(self.site.ended))

    def steps(self, program: Program, state: State, first: Array, end: Array) -> Outcome:
        """Steps from `first` until `end` is reached, or the site says that it is enough."""
        site = self.site
        sent = self._sent
        network = program.network
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

        def note_held(out: tuple[np.ndarray, ...], *held: np.ndarray) -> None:
            out[0][...] = 0
            variables = len(held) - len(site.places)
            with site.failing_later():
                site.note_held(held[:variables], held[variables:])

        def tell_rest(before: State, after: State) -> None:
            """What the site's stop rule looks at."""
            rule = site.rest.rule
            if rule is None:
                return
            if (rule.average or 1) == 1:
                changes = largest_change(before, after), *network.changes(before, after, sent)
                call(note, (number,), *changes, in_place=site.in_place)
            else:
                held = *jax.tree.leaves([level.s for level in after[:3] if level]), *network.held(after, sent)
                call(note_held, (number,), *held, in_place=site.in_place)

        def step(carry: Carry) -> Carry:
            k, _, done, before, totals = carry
            state, cost = program.step(k, before)
            totals = [total + times for total, times in zip(totals, cost.repetitions, strict=True)]
            tell_rest(before, state)
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


def waves_sent(program: Program, state: State) -> Sent:
    """What each exchange of a step carries, from tracing it; raises where it carries anything else than waves of the
    levels as they were before the step."""
    waves: Sent = []

    def record(state: State, exchanges: list[dict[str, Message]]) -> None:
        for messages in exchanges:
            waves.append({})
            for level, message in messages.items():
                held = jax.tree.leaves(getattr(state, level).s)
                same = zip(jax.tree.leaves(message.content), held, strict=True)
                if not isinstance(message, Wave) or any(mine is not other for mine, other in same):
                    raise ValueError(
                        f"{program.method.name} sends what it computes in a step, on level {level}, so that sites need "
                        "common steps: choose sparkle-wave or wave, or leave out asynchronous = true."
                    )
                within = None if message.within is None else ()
                waves[-1][level] = replace(message, content=None, after=None, within=within)

    trace_messages(program, state, record)
    return waves
