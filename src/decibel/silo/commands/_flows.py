"""The flows that sites have recorded: which neighbours are at the limit, and which limit a rehearsal suggests."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from decibel.core import JSON

from .._federation import Federation
from ..protocol._edge import Flow
from ..trust._colluders import tolerated
from ._privacy_plan import rounded_up

MARGIN = 1.2  # of a limit over the largest flow of a rehearsal
LEAST = 1e-6  # a limit must be positive, also where nothing flowed


class Largest(NamedTuple):
    """The largest flow of a level, and its link: from a neighbour to a site."""

    size: float
    site: str
    neighbour: str
    cut: bool  # whether a limit was in its way


NOTHING = Largest(-1.0, "", "", False)


def saturated(flows: Mapping[str, dict[str, JSON]]) -> str:
    """The levels of a neighbour's flows that are at the limit, in brackets; nothing if there are none."""
    levels = [level for level, flow in sorted(flows.items()) if flow["saturated"]]
    return f" (saturated: {', '.join(levels)})" if levels else ""


def explain(gone: Collection[str]) -> str:
    """Explains flows at the limit, for a site that these others have left."""
    sentence = (
        "saturated means that a flow is at flow_limit: the neighbour sends wrong numbers, or the limit is too low for "
        "honest data"
    )
    if not gone:
        return sentence
    return (
        f"{sentence}; without {', '.join(gone)} the flows between the others are different, and a limit from a "
        "rehearsal with all sites can be too low for them"
    )


def largest(homes: Mapping[str, Path]) -> dict[str, Largest]:
    """The largest flow of any site's link, by level."""
    by_level: dict[str, Largest] = {}
    for site, neighbour, level, flow in _noted(homes):
        cut = flow.limit is not None and flow.largest > flow.limit
        by_level[level] = max(by_level.get(level, NOTHING), Largest(flow.largest, site, neighbour, cut))
    return dict(sorted(by_level.items()))


def _noted(homes: Mapping[str, Path]) -> Iterator[tuple[str, str, str, Flow]]:
    """What sites have noted: the site, its neighbour, the level, and the flow."""
    for site, home in homes.items():
        path = home / "status.json"
        neighbours = json.loads(path.read_text())["neighbours"] if path.is_file() else {}
        for name, noted in neighbours.items():
            for level, written in noted["flows"].items():
                yield site, name, level, Flow(**written)


def report(homes: Mapping[str, Path], federation: Federation) -> list[str]:
    """How large flows were, the limit to write into the federation file, and what it does against colluders."""
    flows = largest(homes)
    if not flows:
        return []
    return [*_sizes(flows), *_colluders(homes, federation)]


def _sizes(flows: Mapping[str, Largest]) -> list[str]:
    lines = ["The largest flow of a link, in the units of gradients:"]
    lines += [
        f"  {level}  {flow.size:.4g}, from {flow.neighbour} to {flow.site}" + (", cut to the limit" if flow.cut else "")
        for level, flow in flows.items()
    ]
    if any(flow.cut for flow in flows.values()):
        return [*lines, "flow_limit was reached: to find the one that this run needs, rehearse without it."]
    limits = [f"{level} = {_limit(MARGIN * flow.size):g}" for level, flow in flows.items()]
    return [*lines, f"For the federation file, limits {MARGIN} times as large:", "[flow_limit]", *limits]


def _colluders(homes: Mapping[str, Path], federation: Federation) -> list[str]:
    """Lines that name, by level, the limits with which the others still agree, whatever so many members send."""
    names = [site.name for site in federation.sites]
    by_level = _by_link(homes, federation)
    answers = [tuple(tolerated(len(names), flows)) for flows in by_level.values()]
    lines = ["Members who collude, and the flow_limit with which the others still agree with each other:"]
    for same_count in zip(*answers, strict=False):
        worst = max(same_count, key=lambda answer: answer.limit)
        if math.isinf(worst.limit):
            lines.append(f"  any {worst.colluders}: no limit is enough{_exposed(worst.worst, federation)}")
            break
        limits = (f"{level} = {_limit(answer.limit):g}" for level, answer in zip(by_level, same_count, strict=True))
        lines.append(f"  any {worst.colluders}: {', '.join(limits)}")
    return lines if len(lines) > 1 else []


def _by_link(homes: Mapping[str, Path], federation: Federation) -> dict[str, dict[tuple[int, int], float]]:
    """How large the flow of every link was in the end, by level."""
    by_level: dict[str, dict[tuple[int, int], float]] = {}
    for site, neighbour, level, flow in _noted(homes):
        a, b = sorted((federation.number(site), federation.number(neighbour)))
        flows = by_level.setdefault(level, {})
        flows[a, b] = max(flows.get((a, b), 0.0), flow.now)
    return dict(sorted(by_level.items()))


def _exposed(colluders: Collection[int], federation: Federation) -> str:
    """An example: a site with the largest number of colluders among its neighbours."""
    names = [site.name for site in federation.sites]
    neighbours = {site: federation.neighbours(site) for site in range(len(names)) if site not in colluders}
    among = {site: [name for name in others if name in colluders] for site, others in neighbours.items()}
    site = max(among, key=lambda site: len(among[site]) / max(len(neighbours[site]), 1))
    if not among[site]:
        return ""
    who = " and ".join(names[colluder] for colluder in among[site])
    return f", such as against {who}: {len(among[site])} of {len(neighbours[site])} neighbours of {names[site]}"


def _limit(flow: float) -> float:
    """A limit to write into the federation file, for flows up to this size."""
    return rounded_up(min(max(flow, LEAST), 1e300))
