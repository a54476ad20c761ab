"""Bounds what a neighbour's wrong numbers can do to a site, by the limit in the federation file.

Sites check who sends and in what form, but a member may send any numbers. In a strategy that sums them up a wrong
number stays, and any other strategy can be driven to where a loss is no longer finite. A limit on the flow of a link
(`network/_clip`) bounds both.
"""

from __future__ import annotations

import math

import jax

from decibel import Method, Program, State
from decibel.network import ExchangeMemory, Message, sizes_by_graph
from decibel.strategies import LimitedStrategy, Strategy, takes_limit, with_limit

from .._federation import Federation
from ..protocol._edge import Flow
from ..protocol._site import Site
from ._site_network import SiteNetwork
from ._traced_messages import trace_messages


def protected(method: Method, federation: Federation) -> Method:
    """The method with the federation's limit on every strategy that takes one. Raises if members could send anything,
    unless the federation says that they are trusted.
    """
    limit = federation.flow_limit
    if isinstance(limit, dict):
        lacking = [level for level in method.strategies if level not in limit and takes_limit(method.strategies[level])]
        if lacking:
            raise ValueError(f"flow_limit of the federation file lacks level {lacking[0]}: add it.")

    def limited(leaf: object) -> object:
        if not (isinstance(leaf, Strategy) and takes_limit(leaf)):
            return leaf
        if limit is not None:
            return with_limit(leaf, limit)
        if isinstance(leaf, LimitedStrategy) or method.loops > 1:  # links cannot measure what a loop repeats
            return leaf
        return with_limit(leaf, math.inf)  # which is measured

    bounded = jax.tree.map(limited, method, is_leaf=lambda leaf: isinstance(leaf, Strategy))
    if federation.edges and not federation.trust_members and not all(map(_bounded, bounded.strategies.values())):
        raise unprotected(method)
    return bounded


def unprotected(method: Method) -> ValueError:
    """Why a silo does not run a method among members that are not trusted."""
    return ValueError(
        f"{method.name} has no limit on what neighbours send, so that one wrong message may move or end the run of "
        "every site: use 'edge-ed', 'wave' or 'diffusion' with flow_limit in the federation file, or write "
        "trust_members = true there."
    )


def _bounded(strategy: Strategy) -> bool:
    return not strategy.communicates or (isinstance(strategy, LimitedStrategy) and strategy.bounded)


def validate_messages(program: Program, state: State, federation: Federation) -> None:
    """Raises if a step sends anything without a limit to members that are not trusted, whether by a strategy or not."""

    def look(state: State, exchanges: list[dict[str, Message]]) -> None:
        if any(message.flow_bound is None for messages in exchanges for message in messages.values()):
            raise unprotected(program.method)

    if federation.edges and not federation.trust_members:
        trace_messages(program, state, look)


def note_flows(program: Program, site: Site, links: tuple[ExchangeMemory, ...]) -> None:
    """Records for the site's status how large the flow of every link is, how large it was at most, and whether it is
    clipped.
    """
    network = program.network
    strategies = program.method.strategies
    assert isinstance(network, SiteNetwork)
    noted: dict[int, dict[str, Flow]] = {}
    for graph, level, sizes in sizes_by_graph(links):
        strategy = strategies[level]
        limit = strategy.limits[level] if isinstance(strategy, LimitedStrategy) else math.inf
        limit = limit if math.isfinite(limit) else None
        for other, (now, largest) in zip(network.neighbour_of_slot[graph], sizes.reshape(-1, 2).tolist(), strict=True):
            if other >= 0:
                flow = Flow(now=now, largest=largest, limit=limit, saturated=limit is not None and now > limit)
                noted.setdefault(other, {})[level] = flow
    with site.lock:
        for other, flows in noted.items():
            site.edges[other].flows = flows
