"""A new edition of the federation file: what may change, which sites accept it, and how a saved state continues.

Flows that links sum up (`keeps_link_flows`) cancel over each link. A link of both editions continues, a removed link is
dropped at both ends, and a new one begins at zero at both. Corrections that a node keeps for all its links together
cancel only over all members. So they stay exact on another graph, but not with other members. Then all members begin
them at zero, from their saved variables, if the organiser says so (`warm`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from decibel import State
from decibel.network import ExchangeMemory, LinkMemory, WaveLinks
from decibel.strategies import Level, Strategy

from .._federation import Federation, Member

# What makes a run the same run, besides its members and its graph.
FIXED = ("name", "method", "settings", "batch_size", "seed", "sampling", "privacy", "asynchronous")


class Placement(NamedTuple):
    """Where a site's state was saved: the edition, the names of all sites, and by graph the name of the neighbour and
    the weight of each of the site's slots."""

    edition: int
    sites: tuple[str, ...]
    links: tuple[tuple[tuple[str, float], ...], ...]

    @classmethod
    def read(cls, text: str) -> Placement:
        saved = json.loads(text)
        links = tuple(tuple((str(name), float(weight)) for name, weight in slots) for slots in saved["links"])
        return cls(int(saved["edition"]), tuple(saved["sites"]), links)


def succeed(before: Federation, written: Federation, *, warm: bool) -> Federation:
    """The edition after `before`, as `written` by the organiser; raises if it is another run.

    A site that stays keeps its permanent number, and a new one gets the next.
    """
    for name in FIXED:
        if getattr(before, name) != getattr(written, name):
            raise ValueError(
                f"{name} changed, which makes it another run: leave it as it was, or make a new federation by "
                "`decibel silo init --out ANOTHER`."
            )
    if before.steps is not None and (written.steps or 0) < before.steps:
        raise ValueError(
            f"steps={written.steps} is less than before ({before.steps}), and sites may have done more: keep "
            f"steps = {before.steps}. To end the run, stop all sites (decibel silo stop)."
        )
    edition = before.edition + 1
    known = {site.name: replace(site, node=before.node_id(number)) for number, site in enumerate(before.sites)}
    following = max(before.node_id(number) for number in range(len(before.sites))) + 1
    sites: list[Member] = []
    for site in written.sites:
        if site.name in known:
            sites.append(replace(site, node=known[site.name].node, since=known[site.name].since))
        else:
            sites.append(replace(site, node=following, since=edition))
            following += 1
    return replace(
        written,
        sites=tuple(sites),
        history=(*before.history, before.hash.hex()),
        warm=edition if warm else before.warm,
    )


def changes(before: Federation, after: Federation) -> list[str]:
    """What differs between two editions, in words."""
    came = [name for name in after.names if name not in before.names]
    left = [name for name in before.names if name not in after.names]
    said = [f"{name} comes" for name in came] + [f"{name} leaves" for name in left]
    if _edges(before) != _edges(after):
        said.append("the graph changes")
    kept = {"sites", "edges", "history", "warm"}
    for field in fields(Federation):
        old = getattr(before, field.name)
        new = getattr(after, field.name)
        if field.name not in kept and old != new:
            said.append(f"steps {old} → {new}" if field.name == "steps" else f"{field.name} changes")
    addresses = {site.name: (site.address, site.listen) for site in before.sites}
    said += [
        f"the address of {site.name} changes"
        for site in after.sites
        if site.name in addresses and addresses[site.name] != (site.address, site.listen)
    ]
    return said


def _edges(federation: Federation) -> set[frozenset[str]]:
    return {frozenset((federation.names[a], federation.names[b])) for a, b in federation.edges}


def why_not_exact(strategies: Mapping[str, Strategy], *, members_changed: bool, graph_changed: bool) -> str:
    """Why a saved state cannot continue exactly when the members or the graph change; empty if it can."""
    for level, strategy in strategies.items():
        if not strategy.communicates or strategy.keeps_link_flows:
            continue
        if strategy.coded and (members_changed or graph_changed):
            return f"{strategy.name} on level {level} sends codes of differences, which new neighbours cannot read"
        if strategy.carries and members_changed:
            return f"the corrections of {strategy.name} on level {level} cancel only over the members that made them"
    return ""


def not_exact(why: str) -> ValueError:
    return ValueError(
        f"saved states do not continue exactly: {why}. Add --warm to `decibel silo amend`, by which all sites keep "
        "their variables and begin corrections at zero; or use 'edge-ed', which needs none of this."
    )


def migrate(
    saved: State, start: State, before: Placement, now: Placement, strategies: Mapping[str, Strategy], *, warm: bool
) -> State:
    """A site's state under another edition. Links of both editions continue, others begin at zero. With `warm` all
    links and corrections begin at zero; variables and the method's memory stay.
    """
    if not warm:
        return saved._replace(link_memory=_links(saved.link_memory, start.link_memory, before, now))

    def level(name: str) -> Level | None:
        old = getattr(saved, name)
        return old and Level(old.s, strategies[name].repair(old.carry) if name in strategies else old.carry)

    x = level("x")
    assert x is not None
    return saved._replace(x=x, y=level("y"), z=level("z"), link_memory=start.link_memory)


def _links(
    saved: tuple[ExchangeMemory, ...], start: tuple[ExchangeMemory, ...], before: Placement, now: Placement
) -> tuple[ExchangeMemory, ...]:
    def move(old: LinkMemory, new: LinkMemory, graph: int) -> LinkMemory:
        # A wave is in units of its link's weight, so that it starts from zero where that has changed.
        weighed = isinstance(new.per_link, WaveLinks)
        places = {name: (slot, weight) for slot, (name, weight) in enumerate(before.links[graph])}
        both = [
            (places[name][0], slot)
            for slot, (name, weight) in enumerate(now.links[graph])
            if name in places and not (weighed and places[name][1] != weight)
        ]
        slots_before = jnp.asarray([old_slot for old_slot, _ in both], jnp.int32)
        slots_now = jnp.asarray([slot for _, slot in both], jnp.int32)

        def put(a: Array, b: Array) -> Array:
            return b.at[:, slots_now].set(a[:, slots_before])

        return LinkMemory(jax.tree.map(put, old.per_link, new.per_link), old.per_node)

    return tuple(
        tuple(
            tuple(move(*memories, graph) for memories in zip(*kinds, strict=True))
            for graph, kinds in enumerate(zip(*graphs, strict=True))
        )
        for graphs in zip(saved, start, strict=True)
    )
