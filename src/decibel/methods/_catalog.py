"""Every method by name: what it is, where it comes from, what it needs, what leaves a node."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from jax import Array

from ..core._names import hint
from ._double_loop import dbsa, double_loop_dsgd, ma_dsbo
from ._implicit import dsgd_bilevel, gt_dsgd, interact, mdbo, slam, spdb, svr_interact, vrdbo
from ._matrices import dsbo, gossip_dsbo
from ._method import Method
from ._single_level import dsgd, ed, extra, gnsd, gt
from ._sparkle import dsoba, dsoba_fo, lopa, soba, sparkle

BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
SPARKLE = (
    "Zhu et al., SPARKLE: A Unified Single-Loop Primal-Dual Framework for Decentralized Bilevel Optimization, 2024"
)
DSOBA = "Kong et al., Decentralized Bilevel Optimization over Graphs: Loopless Algorithmic Update and Transient Iteration Complexity, 2024"  # noqa: E501
GOSSIP = (
    "Yang, Zhang, Wang, Decentralized Gossip-Based Stochastic Bilevel Optimization over Communication Networks, 2022"
)
SPDB = "Lu et al., Decentralized Bilevel Optimization for Personalized Client Learning, 2022"
INTERACT = "Liu et al., INTERACT: Achieving Low Sample and Communication Complexities in Decentralized Bilevel Learning over Networks, 2022"  # noqa: E501


@dataclass(frozen=True)
class Entry:
    """A method of the catalogue; calling it makes the method, with its default step sizes where none are given."""

    name: str
    summary: str
    paper: str
    form: str  # shared, personal or single
    loops: int
    sends: str  # what a node sends to each neighbour per iteration; p and q are the entries of x and y
    make: Callable[..., Method]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, **settings: Any) -> Method:
        known = [name for name, given in inspect.signature(self.make).parameters.items() if given.kind in BY_NAME]
        for name in settings:
            if name not in known:
                raise TypeError(f"method {self.name!r} has no setting {name!r}: {hint(name, known)}")
        return self.make(**{**self.defaults, **settings})


class Catalog(Mapping[str, Entry]):
    def __init__(self, entries: list[Entry]) -> None:
        self._entries = MappingProxyType({entry.name: entry for entry in entries})

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise KeyError(f"method {name!r} is not known: {hint(name, self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Any:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


THREE = {"alpha": 0.05, "beta": 0.1, "gamma": 0.1, "theta": 0.3}
TWO = {"alpha": 0.05, "beta": 0.1}
EDGE_ED = Entry(
    "sparkle-edge-ed",
    "SPARKLE with ED's flows kept per link: exact where messages are lost one way",
    "ours, on " + SPARKLE,
    "shared",
    1,
    "2p + 4q numbers",
    partial(sparkle, "edge-ed"),
    THREE,
)
MIXES = {"ed": 1, "extra": 1, "gt": 2, "semi-gt": 2, "non-gt": 2, "diffusion": 1, "consensus": 1}


def _sparkle(lower: str, upper: str) -> Entry:
    name = f"sparkle-{lower}" if lower == upper else f"sparkle-{lower}-{upper}"
    vectors = f"{'' if MIXES[upper] == 1 else 2}p + {2 * MIXES[lower]}q numbers"
    where = f"{lower} on every level" if lower == upper else f"{lower} below, {upper} above"
    return Entry(name, f"SPARKLE with {where}", SPARKLE, "shared", 1, vectors, partial(sparkle, lower, upper), THREE)


CATALOG = Catalog(
    [
        *(_sparkle(lower, lower) for lower in MIXES),
        *(_sparkle(lower, upper) for lower in MIXES for upper in MIXES if lower != upper),
        EDGE_ED,
        Entry(
            "d-soba",
            "diffusion on every level, all at the old point (biased where nodes differ)",
            DSOBA,
            "shared",
            1,
            "p + 2q numbers",
            dsoba,
            THREE,
        ),
        Entry(
            "d-soba-fo",
            "D-SOBA with gradient differences, no second derivatives",
            DSOBA,
            "shared",
            1,
            "p + 2q numbers",
            dsoba_fo,
            THREE,
        ),
        Entry(
            "soba",
            "centralized: one node or exact averaging",
            "Dagréou et al., 2022",
            "shared",
            1,
            "p + 2q numbers",
            soba,
            {"alpha": 0.05, "beta": 0.1, "gamma": 0.1},
        ),
        Entry(
            "gossip-dsbo",
            "averages gradients and second derivatives over the network",
            GOSSIP,
            "shared",
            1,
            "2p + 2q + pq + b q² numbers",
            gossip_dsbo,
            {"alpha": 0.02, "beta": 0.1, "theta": 0.1, "terms": 20, "smoothness": 4.0, "convexity": 0.1},
        ),
        Entry(
            "dbsa",
            "gossip on y in a growing inner loop, local Neumann hypergradient (biased where nodes differ)",
            GOSSIP,
            "shared",
            2,
            "p + ⌈√t⌉ q numbers",
            dbsa,
            TWO,
        ),
        Entry(
            "double-loop-dsgd",
            "as DBSA with t inner steps (biased where nodes differ)",
            GOSSIP,
            "shared",
            2,
            "p + t q numbers",
            double_loop_dsgd,
            TWO,
        ),
        Entry(
            "ma-dsbo",
            "inner loops on y and z, moving average above (biased where nodes differ)",
            "Chen et al., 2023",
            "shared",
            2,
            "p + (T + N) q numbers",
            ma_dsbo,
            THREE,
        ),
        Entry(
            "ma-dsbo-gt",
            "MA-DSBO with gradient tracking in the inner loops (biased above)",
            "Chen et al., 2023",
            "shared",
            2,
            "p + 2 (T + N) q numbers",
            partial(ma_dsbo, True),
            THREE,
        ),
        Entry(
            "dsbo",
            "tracks the matrix J H⁻¹",
            "Chen, Huang, Ma, 2022",
            "shared",
            2,
            "p + T q + 2 N pq numbers",
            dsbo,
            {"alpha": 0.05, "beta": 0.1, "gamma": 0.1},
        ),
        Entry(
            "mdbo",
            "momentum and tracking, local Neumann hypergradient (biased where nodes differ)",
            "Gao et al., 2022",
            "shared",
            1,
            "2p + 2q numbers",
            mdbo,
            TWO | {"theta": 0.3},
        ),
        Entry(
            "vrdbo",
            "MDBO with STORM (biased where nodes differ)",
            "Gao et al., 2022",
            "shared",
            1,
            "2p + 2q numbers",
            vrdbo,
            TWO | {"theta": 0.3},
        ),
        Entry(
            "slam",
            "EXTRA on both levels, local Neumann hypergradient (biased where nodes differ)",
            "Lu et al., 2022",
            "shared",
            1,
            "p + q numbers",
            slam,
            TWO,
        ),
        Entry("spdb", "EXTRA on x, a personal lower level", SPDB, "personal", 1, "p numbers", spdb, TWO),
        Entry(
            "interact",
            "gradient tracking on x, a personal lower level, all samples",
            INTERACT,
            "personal",
            1,
            "2p numbers",
            interact,
            TWO,
        ),
        Entry(
            "svr-interact",
            "INTERACT with SPIDER variance reduction",
            INTERACT,
            "personal",
            1,
            "2p numbers",
            svr_interact,
            TWO,
        ),
        Entry("gt-dsgd", "INTERACT with batches", INTERACT, "personal", 1, "2p numbers", gt_dsgd, TWO),
        Entry(
            "d-sgd-bilevel",
            "no tracking (biased where nodes differ)",
            INTERACT,
            "personal",
            1,
            "p numbers",
            dsgd_bilevel,
            TWO,
        ),
        Entry(
            "lopa",
            "a personal auxiliary level, no tracking (biased where nodes differ)",
            SPARKLE,
            "personal",
            1,
            "p numbers",
            lopa,
            THREE,
        ),
        Entry(
            "lopa-gt", "LoPA with gradient tracking", SPARKLE, "personal", 1, "2p numbers", partial(lopa, True), THREE
        ),
        Entry(
            "dsgd",
            "decentralized SGD (biased where nodes differ)",
            "Lian et al., 2017",
            "single",
            1,
            "p numbers",
            dsgd,
            {"alpha": 0.05},
        ),
        Entry(
            "ed", "Exact Diffusion, also D² and SPD", "Yuan et al., 2019", "single", 1, "p numbers", ed, {"alpha": 0.05}
        ),
        Entry("extra", "EXTRA", "Shi et al., 2015", "single", 1, "p numbers", extra, {"alpha": 0.05}),
        Entry(
            "gt",
            "gradient tracking, adapt then combine",
            "Xu et al., 2015",
            "single",
            1,
            "2p numbers",
            gt,
            {"alpha": 0.05},
        ),
        Entry(
            "gnsd",
            "gradient tracking that combines first",
            "Lu et al., 2019",
            "single",
            1,
            "2p numbers",
            gnsd,
            {"alpha": 0.05},
        ),
    ]
)


def gossip_rates(nodes: int, steps: int, *, scale: float = 0.1, factor: float = 1.0) -> dict[str, float]:
    """Gossip-DSBO's (5) for general objectives: α = `scale` √(K/T), β = θ = `factor` √(K/T) (0.1 and 10 in the paper's
    hyper-parameter experiment), never above 1."""
    root = (nodes / steps) ** 0.5
    return {"alpha": scale * root, "beta": min(1.0, factor * root), "theta": min(1.0, factor * root)}


def gossip_decay(convexity: float, offset: float) -> dict[str, Callable[[Array], Array]]:
    """Gossip-DSBO's (6) under the PL condition: α_t = 2 / (μ (C + t)), β_t = θ_t = C / (C + t), as schedules."""

    def alpha(t: Array) -> Array:
        return 2.0 / (convexity * (offset + jnp.asarray(t, float)))

    def weight(t: Array) -> Array:
        return offset / (offset + jnp.asarray(t, float))

    return {"alpha": alpha, "beta": weight, "theta": weight}
