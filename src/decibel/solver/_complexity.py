"""The columns of the papers' comparison tables as functions: asymptotic rate, computation and communication.

Orders with constants dropped, for nonconvex stochastic problems and small ε: the transient is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core._names import hint
from ..methods._method import Method
from ..methods._sparkle import Sparkle
from ..oracles._eval_config import SECOND_DERIVATIVES
from ..oracles._penalty import Penalty


@dataclass(frozen=True)
class Setting:
    """Where a formula is evaluated: n nodes, T steps, ε, p and q entries of x and y, and what single methods need."""

    nodes: int
    steps: int = 1
    epsilon: float = 0.5
    p: int = 0
    q: int = 0
    sparsity: float = 1.0
    rho: float | None = None
    samples: int | None = None

    @property
    def log(self) -> float:
        return math.log(1 / self.epsilon)

    @property
    def gap(self) -> float:
        if self.rho is None:
            raise ValueError("this method's order depends on the network: give rho, that of the graph.")
        return spectral_gap(self.rho)

    @property
    def size(self) -> int:
        if self.samples is None:
            raise ValueError("this method's order depends on the data: give samples, how many a node has.")
        return positive_integer("samples", self.samples)


Formula = Callable[[Setting], float]


@dataclass(frozen=True)
class Row:
    """A row of a table: the asymptotic rate after T steps; the samples of a node, and the numbers that it sends to each
    neighbour, until the rate is ε; and where the row is printed."""

    rate: Formula
    computation: Formula
    communication: Formula
    source: str


def _linear_speedup(setting: Setting) -> float:
    return 1 / math.sqrt(setting.nodes * setting.steps)


def _no_speedup(setting: Setting) -> float:
    return 1 / math.sqrt(setting.steps)


def _steps(setting: Setting) -> float:
    """From which 1/√(nT) is at most ε."""
    return 1 / (setting.nodes * setting.epsilon**2)


def _neumann(setting: Setting) -> float:
    """As many steps with batches, inner loops or Neumann series of order log(1/ε)."""
    return _steps(setting) * setting.log


def _both(setting: Setting) -> float:
    return (setting.p + setting.q) * _steps(setting)


def _gossip_steps(setting: Setting) -> float:
    """From which 1/√(KT) is at most ε, and with the network K/(T(1−ρ)²) as well."""
    network = 0.0 if setting.rho is None else setting.nodes / (setting.gap**2 * setting.epsilon)
    return _steps(setting) + network


SPARKLE = 'SPARKLE (talk), slide "Unified convergence analysis: Comparison"'
DSOBA = 'D-SOBA (talk), slide "Comparison with existing algorithms"'
_DSBO = Row(
    _no_speedup,
    lambda setting: setting.epsilon**-3,
    lambda setting: (setting.p * setting.q * setting.log + setting.q / setting.epsilon) / setting.epsilon**2,
    SPARKLE,
)
_MA_DSBO = Row(
    _no_speedup,
    lambda setting: setting.log / setting.epsilon**2,
    lambda setting: (setting.q * setting.log + setting.p) / setting.epsilon**2,
    SPARKLE,
)
_LOCAL_NEUMANN = Row(_linear_speedup, _neumann, _both, SPARKLE)
_GOSSIP = Row(
    _linear_speedup,
    lambda setting: _gossip_steps(setting) * setting.log,
    lambda setting: (setting.q**2 * setting.log + setting.p * setting.q) * _gossip_steps(setting),
    f"{SPARKLE}; the term of the network: Gossip-DSBO, §2, Table 1",
)
_LOPA = Row(
    _no_speedup,
    lambda setting: setting.epsilon**-2,
    lambda setting: (setting.p + setting.q) / setting.epsilon**2,  # p + q as printed, though y stays at the node
    SPARKLE,
)
_DSOBA = Row(_linear_speedup, _steps, _both, SPARKLE)
_SPARKLE = Row(
    _linear_speedup, _steps, lambda setting: (setting.sparsity * setting.p + setting.q) * _steps(setting), SPARKLE
)
_SINGLE = Row(_linear_speedup, _steps, lambda setting: setting.p * _steps(setting), SPARKLE)
_MDBO_1 = Row(
    lambda setting: 1 / (setting.gap * math.sqrt(setting.steps)),
    lambda setting: setting.log / (setting.gap * setting.epsilon) ** 2,
    lambda setting: (setting.p + setting.q) / (setting.gap * setting.epsilon) ** 2,
    f"{DSOBA}, which has no communication: it is the steps times what SPARKLE's table has MDBO send in one",
)
_SPDB = Row(
    _linear_speedup,
    _neumann,
    lambda setting: setting.p * _steps(setting),
    "SPDB, §4, Theorem 1 and Remark 4, with its batches of order log T for x; §3, Remark 2, for communication",
)
_INTERACT = Row(
    lambda setting: 1 / setting.steps,
    lambda setting: setting.size / setting.epsilon,
    lambda setting: setting.p / setting.epsilon,
    "INTERACT, §4.2, Theorem 1 and Corollary 2",
)
_SVR_INTERACT = Row(
    _INTERACT.rate,
    lambda setting: math.sqrt(setting.size) * setting.log / setting.epsilon + setting.size,
    _INTERACT.communication,
    "INTERACT, §1, Table 1, and §5.2, Corollary 4, with K of order log(1/ε)",
)

CORRECTED = ("ed", "extra", "gt", "semi-gt", "non-gt")
ROWS: dict[str, Row] = {
    "dsbo": _DSBO,
    "ma-dsbo": _MA_DSBO,
    "slam": _LOCAL_NEUMANN,
    "mdbo": _LOCAL_NEUMANN,
    "mdbo-theorem-1": _MDBO_1,
    "gossip-dsbo": _GOSSIP,
    "lopa": _LOPA,
    "d-soba": _DSOBA,
    "d-soba-fo": _DSOBA,
    **{f"sparkle-{lower}": _SPARKLE for lower in CORRECTED},
    **{f"sparkle-{lower}-{upper}": _SPARKLE for lower in CORRECTED for upper in CORRECTED if lower != upper},
    "dsgd": _SINGLE,
    "ed": _SINGLE,
    "extra": _SINGLE,
    "gt": _SINGLE,
    "gnsd": _SINGLE,
    "spdb": _SPDB,
    "interact": _INTERACT,
    "svr-interact": _SVR_INTERACT,
}


class Rival(NamedTuple):
    """A method of one machine or of a central server with which a paper compares, for general nonconvex F.

    Attributes:
        upper: the power of 1/ε in its samples of f.
        lower: that in its samples of g.
        log: whether log(1/ε) multiplies the samples of g (Õ).
        full: whether both are multiplied by the samples of a node, where every step takes them all.
        source: where it is printed.
    """

    upper: float
    lower: float
    log: bool
    full: bool
    source: str


GOSSIP_TABLE = "Gossip-DSBO, §2, Table 1"
INTERACT_TABLE = "INTERACT, §1, Table 1"
RIVALS: dict[str, Rival] = {
    "bsa": Rival(2, 3, True, False, GOSSIP_TABLE),
    "stocbio": Rival(2, 2, True, False, GOSSIP_TABLE),
    "alset": Rival(2, 2, True, False, GOSSIP_TABLE),
    "fednest": Rival(2, 2, True, False, GOSSIP_TABLE),
    "scgd, compositional": Rival(4, 4, False, False, GOSSIP_TABLE),
    "nasa, compositional": Rival(2, 2, False, False, GOSSIP_TABLE),
    "alset, compositional": Rival(2, 2, False, False, GOSSIP_TABLE),
    "fednest, compositional": Rival(2, 2, False, False, GOSSIP_TABLE),
    "ttsa": Rival(5 / 2, 5 / 2, False, False, INTERACT_TABLE),
    "mstsa": Rival(2, 2, False, False, INTERACT_TABLE),
    "stable": Rival(2, 2, False, False, INTERACT_TABLE),
    "sustain": Rival(3 / 2, 3 / 2, False, False, INTERACT_TABLE),
    "vrbo": Rival(3 / 2, 3 / 2, False, False, INTERACT_TABLE),
    "rsvrb": Rival(3 / 2, 3 / 2, False, False, INTERACT_TABLE),
    "itd-bio": Rival(1, 1, False, True, INTERACT_TABLE),
    "aid-bio": Rival(1, 1, False, True, INTERACT_TABLE),
}


class Samples(NamedTuple):
    """How many samples a machine draws: of f, `upper`, and of g, `lower`."""

    upper: float
    lower: float


def rival_samples(name: str, epsilon: float, *, samples: int | None = None) -> Samples:
    """The order of the samples that a method of one machine or of a central server needs until ‖∇F‖² is `epsilon`: the
    rivals in the tables of Gossip-DSBO and INTERACT. For these two see `computation`.

    Args:
        name: `"bsa"`, `"stocbio"`, `"alset"`, `"fednest"`, `"ttsa"`, `"mstsa"`, `"stable"`, `"sustain"`, `"vrbo"`,
            `"rsvrb"`, `"itd-bio"` or `"aid-bio"`; or `"scgd, compositional"` and the like, where g is that of a
            compositional problem.
        epsilon: ε, between 0 and 1.
        samples: the number of samples, which `"itd-bio"` and `"aid-bio"` need.

    References:
        Gossip-DSBO, §2, Table 1; INTERACT, §1, Table 1.
    """
    if name not in RIVALS:
        raise ValueError(f"name={name!r} is not a rival in the papers' tables: {hint(name, RIVALS)}")
    row = RIVALS[name]
    setting = Setting(1, epsilon=_small(epsilon), samples=samples)
    factor = setting.size if row.full else 1
    log = setting.log if row.log else 1.0
    return Samples(factor * setting.epsilon**-row.upper, factor * setting.epsilon**-row.lower * log)


def asymptotic_rate(method: str | Method, nodes: int, steps: int, *, rho: float | None = None) -> float:
    """The asymptotic rate: the order of the mean of ‖∇Φ(x̄)‖² over `steps` steps after the transient.

    It is 1/√(nT) for most methods, and 1/√T for DSBO, MA-DSBO and LoPA. Two rates are of other measures: INTERACT's 1/T
    is of 𝔐 and with full batches; SPDB's 1/√(nT) is of its Lagrangian's ‖∇L‖², where ‖∇Φ(x̄)‖² ≤ n ‖∇L‖² if nodes
    agree.

    Args:
        method: a method of the papers' tables, by its name in `db.CATALOG` or as an object; `"mdbo-theorem-1"` is MDBO
            by its Theorem 1, 1/((1−ρ)√T).
        nodes: n.
        steps: T.
        rho: ρ of the graph, which `"mdbo-theorem-1"` needs.

    References:
        SPARKLE (talk), slide "Unified convergence analysis: Comparison", column A. Rate; D-SOBA (talk), slide
        "Comparison with existing algorithms"; INTERACT, §4.2, Theorem 1; SPDB, §4, Theorem 1.
    """
    return _row(method).rate(Setting(positive_integer("nodes", nodes), positive_integer("steps", steps), rho=rho))


def computation(
    method: str | Method, nodes: int, epsilon: float, *, rho: float | None = None, samples: int | None = None
) -> float:
    """The order of the samples per node until the asymptotic rate is `epsilon`, such as 1/(nε²).

    Args:
        method: a method of the papers' tables, by name or as an object.
        nodes: n.
        epsilon: ε, between 0 and 1.
        rho: ρ of the graph, which `"mdbo-theorem-1"` needs. `"gossip-dsbo"` with it is decentralized, and adds the
            network's n/((1−ρ)²ε) to 1/(nε²); without, it is its form with a central server.
        samples: the number of samples of a node, which `"interact"` and `"svr-interact"` need.

    References:
        SPARKLE (talk), slide "Unified convergence analysis: Comparison", column A. Comp.; Gossip-DSBO, §2, Table 1;
        INTERACT, §1, Table 1, and Corollaries 2 and 4; SPDB, §4, Theorem 1 and Remark 4.
    """
    return _row(method).computation(
        Setting(positive_integer("nodes", nodes), epsilon=_small(epsilon), rho=rho, samples=samples)
    )


def communication(
    method: str | Method,
    nodes: int,
    epsilon: float,
    dimension: tuple[int, int],
    *,
    rho: float | None = None,
    sparsity: float = 1.0,
) -> float:
    """The order of the numbers sent per neighbour until the asymptotic rate is `epsilon`, such as (p+q)/(nε²).

    Args:
        method: a method of the papers' tables, by name or as an object.
        nodes: n.
        epsilon: ε, between 0 and 1.
        dimension: (p, q), the numbers of entries of x and y.
        rho: ρ of the graph, which `"mdbo-theorem-1"` needs and with which `"gossip-dsbo"` counts the network's steps.
        sparsity: SPARKLE's a in (ap+q)/(nε²): how sparse the graph of x is relative to that of y and z.

    References:
        SPARKLE (talk), slide "Unified convergence analysis: Comparison", column A. Comm.; INTERACT, Corollaries 2 and
        4; SPDB, §3, Remark 2.
    """
    p, q = dimension
    if min(p, q) < 0 or not sparsity > 0:
        raise ValueError(f"dimension={dimension} must not be negative and sparsity={sparsity} must be positive.")
    setting = Setting(positive_integer("nodes", nodes), epsilon=_small(epsilon), p=p, q=q, sparsity=sparsity, rho=rho)
    return _row(method).communication(setting)


def _row(method: str | Method) -> Row:
    name = method if isinstance(method, str) else method.name
    form = None if isinstance(method, str) else uncovered_form(method)
    if form is not None:
        raise ValueError(f"method={name!r} is in none of the papers' tables: no theorem covers {form}.")
    if name not in ROWS:
        raise ValueError(f"method={name!r} is in none of the papers' tables: {hint(name, ROWS)}")
    return ROWS[name]


def uncovered_form(method: Method) -> str | None:
    """What no theorem on SPARKLE covers, of a SPARKLE without second derivatives; None for all others."""
    if not isinstance(method, Sparkle) or method.hypergradient == SECOND_DERIVATIVES:
        return None
    return "the penalty form" if isinstance(method.hypergradient, Penalty) else "SPARKLE with gradient differences"


def _small(epsilon: float) -> float:
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon={epsilon} must lie between 0 and 1: the orders are those of small ε.")
    return float(epsilon)


def positive_integer(name: str, value: int) -> int:
    """`value` as an integer of at least 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} must be an integer of at least 1.")
    return int(value)


def spectral_gap(rho: float) -> float:
    """1 − ρ."""
    if not 0 <= rho < 1:
        raise ValueError(f"rho={rho} must be at least 0 and below 1: at 1 the graph does not mix.")
    return 1.0 - float(rho)
