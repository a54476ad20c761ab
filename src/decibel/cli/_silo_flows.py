"""What sites have noted of their links' flows: which neighbours are at the limit, and which limit a rehearsal needs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..core._json import JSON
from ..engines.silo._lies import Flow

MARGIN = 1.2  # of a limit over the largest flow of a rehearsal
LEAST = 1e-6  # a limit must be positive, also where nothing flowed


class Largest(NamedTuple):
    """The largest flow of a level, and its link: from a neighbour to a site."""

    size: float
    site: str
    neighbour: str
    cut: bool  # whether a limit was in its way


def saturated(flows: Mapping[str, dict[str, JSON]]) -> str:
    """The levels of a neighbour's flows that are at the limit, in brackets; nothing if there are none."""
    levels = [level for level, flow in sorted(flows.items()) if flow["saturated"]]
    return f" (saturated: {', '.join(levels)})" if levels else ""


def largest(homes: Mapping[str, Path]) -> dict[str, Largest]:
    """By level, of all sites' links."""
    found: list[tuple[str, Largest]] = []
    for site, home in homes.items():
        path = home / "status.json"
        neighbours = json.loads(path.read_text())["neighbours"] if path.is_file() else {}
        for name, one in neighbours.items():
            for level, written in one["flows"].items():
                flow = Flow(**written)
                cut = flow.limit is not None and flow.largest > flow.limit
                found.append((level, Largest(flow.largest, site, name, cut)))
    return {
        level: max(one for where, one in found if where == level) for level in sorted({level for level, _ in found})
    }


def report(homes: Mapping[str, Path]) -> list[str]:
    """How large flows were, and the limit to write into the federation file."""
    found = largest(homes)
    if not found:
        return []
    lines = ["The largest flow of a link, in the units of gradients:"]
    lines += [
        f"  {level}  {one.size:.4g}, from {one.neighbour} to {one.site}" + (", cut to the limit" if one.cut else "")
        for level, one in found.items()
    ]
    if any(one.cut for one in found.values()):
        return [*lines, "flow_limit was reached: to find the one that this run needs, rehearse without it."]
    limits = [f"{level} = {_rounded_up(MARGIN * one.size):g}" for level, one in found.items()]
    return [*lines, f"A limit on lies, {MARGIN} times as large, for the federation file:", "[flow_limit]", *limits]


def _rounded_up(value: float) -> float:
    """To three digits."""
    value = min(max(value, LEAST), 1e300)
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / unit) * unit
