"""What a neighbour's wrong numbers may do to a site: no more than the limit in the federation file allows.

Sites check who sends and in what form, but a member may send any numbers. A strategy that sums them up never forgets a
wrong one; `"edge-ed"` and `"wave"` with a limit on what a link may carry bound what it does (`network/_cut`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax

from ...core._json import JSON
from ...methods._method import Method
from ...network._limited import sizes_by_graph
from ...network._links import LinkStates
from ...strategies._limited import LimitedStrategy, takes_limit, with_limit
from ...strategies._table import Strategy
from .._program import Program
from ._federation import Federation
from ._site import Site
from ._wire import Wire


class Flow(NamedTuple):
    """The size of a link's flow on one level, in the units of gradients and before it is cut."""

    now: float
    largest: float
    limit: float | None
    saturated: bool


def protected(method: Method, federation: Federation) -> Method:
    """The method with the federation's limit on every `"edge-ed"` and `"wave"`; raises where members could do anything,
    unless the federation says that they are trusted."""
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
        return leaf if isinstance(leaf, LimitedStrategy) else with_limit(leaf, math.inf)  # which is measured

    made = jax.tree.map(limited, method, is_leaf=lambda leaf: isinstance(leaf, Strategy))
    if made.integrates and federation.edges and not federation.trust_members:
        raise ValueError(
            f"{method.name} sums up what neighbours send, so that one wrong message may move every site for good: use "
            "'edge-ed' or 'wave' with flow_limit in the federation file, or write trust_members = true there."
        )
    return made


def note_flows(program: Program, site: Site, links: tuple[LinkStates, ...]) -> None:
    """For the site's status: how large the flow of every link is, how large it was at most, and whether it is cut."""
    network, strategies = program.network, program.method.strategies
    assert isinstance(network, Wire)
    noted: dict[int, dict[str, JSON]] = {}
    for graph, level, sizes in sizes_by_graph(links):
        strategy = strategies[level]
        limit = strategy.limits[level] if isinstance(strategy, LimitedStrategy) else math.inf
        limit = limit if math.isfinite(limit) else None
        for other, (now, largest) in zip(network.others[graph], sizes.reshape(-1, 2).tolist(), strict=True):
            if other >= 0:
                flow = Flow(now=now, largest=largest, limit=limit, saturated=limit is not None and now > limit)
                noted.setdefault(other, {})[level] = flow._asdict()
    with site.lock:
        for other, flows in noted.items():
            site.edges[other].flows = flows
