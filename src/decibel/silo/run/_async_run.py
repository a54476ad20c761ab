"""A run of one site without a common clock: the same compiled step, using what the site has received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decibel import Program, State
from decibel.network import Message, Wave

from ..protocol._async_site import AsyncSite
from ..protocol._site import Site
from ._async_site_network import AsyncSiteNetwork, WavesPerExchange
from ._host_callback import call_site
from ._privacy_budget import PrivacyAccountant
from ._site_run import NUMBER, SiteRun
from ._traced_messages import trace_messages


class AsyncRun(SiteRun):
    """A run whose messages depend only on its state, so that they are sent after a step and before the next begins."""

    def __init__(self, program: Program, site: Site, privacy: PrivacyAccountant, home: Path | None = None) -> None:
        super().__init__(program, site, privacy, home)
        network = program.network
        assert isinstance(site, AsyncSite) and isinstance(network, AsyncSiteNetwork)
        self.site: AsyncSite = site
        self._waves = waves_sent(program, self.state)
        site.set_exchanges(network.exchange_keys(self.state, self._waves), network.neighbour_of_slot)

    def restore_order(self, saved: Sequence[int]) -> list[int]:
        last = self.resume_if_finished(saved)
        if last is not None:
            return [last]
        self.site.agree_on_start(saved)
        return list(saved)

    def close(self, *, finished: bool) -> None:
        super().close(finished=finished or bool(self.site.end_reason))

    def before_step(self, program: Program, step: Array, state: State) -> tuple[list[Array], State]:
        network = program.network
        assert isinstance(network, AsyncSiteNetwork)
        return network.post_waves(step, state, self._waves)

    def after_step(self, program: Program, before: State, after: State) -> None:
        """Records what the site's stop rule needs."""
        network = program.network
        rule = self.site.rest.rule
        assert isinstance(network, AsyncSiteNetwork)
        if rule is None:
            return
        if (rule.average or 1) == 1:
            changes = largest_change(before, after), *network.link_changes(before, after, self._waves)
            call_site(self.site, self._note_change_on_host, (NUMBER,), *changes)
        else:
            held = *jax.tree.leaves([level.s for level in after[:3] if level]), *network.held(after, self._waves)
            call_site(self.site, self._note_held_on_host, (NUMBER,), *held)

    def _begin_step_on_host(self, out: tuple[np.ndarray, ...], k: np.ndarray, *rows: np.ndarray) -> None:
        """Posts the site's messages, and then begins a step; called from the compiled step."""
        self.site.post(int(k), rows)
        super()._begin_step_on_host(out, k)

    def _note_change_on_host(self, out: tuple[np.ndarray, ...], change: np.ndarray, *by_link: np.ndarray) -> None:
        out[0][...] = 0
        self.site.note_change(float(change), by_link)

    def _note_held_on_host(self, out: tuple[np.ndarray, ...], *held: np.ndarray) -> None:
        out[0][...] = 0
        variables = len(held) - len(self.site.exchange_keys)
        self.site.note_held(held[:variables], held[variables:])


def largest_change(before: State, after: State) -> Array:
    """The largest change of any entry of a level."""
    both = zip(jax.tree.leaves(before[:3]), jax.tree.leaves(after[:3]), strict=True)
    return jnp.stack([jnp.abs(new - old).max(initial=0).astype(jnp.float32) for old, new in both]).max()


def waves_sent(program: Program, state: State) -> WavesPerExchange:
    """The messages that each exchange of a step sends, found by tracing it. Raises if it sends anything but waves of
    the levels as they were before the step.
    """
    waves: WavesPerExchange = []

    def record(state: State, exchanges: list[dict[str, Message]]) -> None:
        for messages in exchanges:
            waves.append({})
            for level, message in messages.items():
                held = jax.tree.leaves(getattr(state, level).s)
                same = zip(jax.tree.leaves(message.content), held, strict=True)
                if not isinstance(message, Wave) or any(mine is not other for mine, other in same):
                    raise ValueError(
                        f"{program.method.name} on level {level} needs the messages of a common step, and asynchronous "
                        "sites have none: choose sparkle-wave or wave, or leave out asynchronous = true."
                    )
                flow_bound = None if message.flow_bound is None else ()
                waves[-1][level] = replace(message, content=None, wait_for=None, flow_bound=flow_bound)

    trace_messages(program, state, record)
    return waves
