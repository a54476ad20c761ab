"""What a neighbour's wrong numbers may do to a site: no more than the limit in the federation file allows.

Sites check who sends and in what form, but a member may send any numbers. A strategy that sums them up never forgets a
wrong one; `"edge-ed"` with a limit on what a link may carry bounds what it does (`network/_limited`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax

from ...core._json import JSON
from ...methods._method import Method
from ...network._limited import sizes_by_graph
from ...network._links import LinkStates
from ...strategies._limited import LimitedDiffusion, edge_ed
from ...strategies._table import STRATEGIES, Strategy
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
    """The method with the federation's limit on every `"edge-ed"`; raises where members could do anything, unless the
    federation says that they are trusted."""
    limit = federation.flow_limit
    if isinstance(limit, dict):
        lacking = [level for level in method.strategies if level not in limit and _by_link(method.strategies[level])]
        if lacking:
            raise ValueError(f"flow_limit of the federation file lacks level {lacking[0]}: add it.")

    def limited(leaf: object) -> object:
        if not (isinstance(leaf, Strategy) and _by_link(leaf)):
            return leaf
        if limit is not None:
            return edge_ed(limit)
        return leaf if isinstance(leaf, LimitedDiffusion) else edge_ed(math.inf)  # which is measured

    made = jax.tree.map(limited, method, is_leaf=lambda leaf: isinstance(leaf, Strategy))
    if made.integrates and federation.edges and not federation.trust_members:
        raise ValueError(
            f"{method.name} sums up what neighbours send, so that one wrong message may move every site for good: use "
            "'edge-ed' with flow_limit in the federation file, or write trust_members = true there."
        )
    return made


def note_flows(program: Program, site: Site, links: tuple[LinkStates, ...]) -> None:
    """For the site's status: how large the flow of every link is, how large it was at most, and whether it is cut."""
    network, strategies = program.network, program.method.strategies
    assert isinstance(network, Wire)
    noted: dict[int, dict[str, JSON]] = {}
    for graph, level, sizes in sizes_by_graph(links):
        strategy = strategies[level]
        limit = strategy.limits[level] if isinstance(strategy, LimitedDiffusion) else math.inf
        limit = limit if math.isfinite(limit) else None
        for other, (now, largest) in zip(network.others[graph], sizes.reshape(-1, 2).tolist(), strict=True):
            if other >= 0:
                flow = Flow(now=now, largest=largest, limit=limit, saturated=limit is not None and now > limit)
                noted.setdefault(other, {})[level] = flow._asdict()
    with site.lock:
        for other, flows in noted.items():
            site.edges[other].flows = flows


def _by_link(strategy: Strategy) -> bool:
    return strategy.move is STRATEGIES["edge-ed"].move
