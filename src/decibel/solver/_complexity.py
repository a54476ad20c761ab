"""The columns of the papers' comparison tables as functions: asymptotic rate, computation and communication.

Orders with constants dropped, for nonconvex stochastic problems and small ε: the transient is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..core._names import hint
from ..methods._method import Method


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
    neighbour, until the rate is ε."""

    rate: Formula
    computation: Formula
    communication: Formula


def _linear_speedup(at: Setting) -> float:
    return 1 / math.sqrt(at.nodes * at.steps)


def _no_speedup(at: Setting) -> float:
    return 1 / math.sqrt(at.steps)


def _steps(at: Setting) -> float:
    """From which 1/√(nT) is at most ε."""
    return 1 / (at.nodes * at.epsilon**2)


def _neumann(at: Setting) -> float:
    """As many steps with batches, inner loops or Neumann series of order log(1/ε)."""
    return _steps(at) * at.log


def _both(at: Setting) -> float:
    return (at.p + at.q) * _steps(at)


# SPARKLE's table (talk) where it has the method, else D-SOBA's or the method's own paper.
_DSBO = Row(
    _no_speedup,
    lambda at: at.epsilon**-3,
    lambda at: (at.p * at.q * at.log + at.q / at.epsilon) / at.epsilon**2,
)
_MA_DSBO = Row(_no_speedup, lambda at: at.log / at.epsilon**2, lambda at: (at.q * at.log + at.p) / at.epsilon**2)
_LOCAL_NEUMANN = Row(_linear_speedup, _neumann, _both)
_GOSSIP = Row(_linear_speedup, _neumann, lambda at: (at.q**2 * at.log + at.p * at.q) * _steps(at))
_LOPA = Row(_no_speedup, lambda at: at.epsilon**-2, lambda at: (at.p + at.q) / at.epsilon**2)  # p + q as printed
_DSOBA = Row(_linear_speedup, _steps, _both)
_SPARKLE = Row(_linear_speedup, _steps, lambda at: (at.sparsity * at.p + at.q) * _steps(at))
_SINGLE = Row(_linear_speedup, _steps, lambda at: at.p * _steps(at))
# D-SOBA's table has no communication: it is the steps times what SPARKLE's table has the method send in one.
_MDBO_1 = Row(
    lambda at: 1 / (at.gap * math.sqrt(at.steps)),
    lambda at: at.log / (at.gap * at.epsilon) ** 2,
    lambda at: (at.p + at.q) / (at.gap * at.epsilon) ** 2,
)
# SPDB's Theorem 1 and Remarks 2 and 4: batches of order log T for x. Its rate is that of ‖∇L‖², not of ‖∇Φ(x̄)‖².
_SPDB = Row(_linear_speedup, _neumann, lambda at: at.p * _steps(at))
# INTERACT's Corollaries 2 and 4 and its Table 1, with K of order log(1/ε).
_INTERACT = Row(lambda at: 1 / at.steps, lambda at: at.size / at.epsilon, lambda at: at.p / at.epsilon)
_SVR_INTERACT = Row(
    _INTERACT.rate, lambda at: math.sqrt(at.size) * at.log / at.epsilon + at.size, _INTERACT.communication
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
        rho: ρ of the graph, which `"mdbo-theorem-1"` needs.
        samples: the number of samples of a node, which `"interact"` and `"svr-interact"` need.
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
        rho: ρ of the graph, which `"mdbo-theorem-1"` needs.
        sparsity: SPARKLE's a in (ap+q)/(nε²): how sparse the graph of x is relative to that of y and z.
    """
    p, q = dimension
    if min(p, q) < 0 or not sparsity > 0:
        raise ValueError(f"dimension={dimension} must not be negative and sparsity={sparsity} must be positive.")
    at = Setting(positive_integer("nodes", nodes), epsilon=_small(epsilon), p=p, q=q, sparsity=sparsity, rho=rho)
    return _row(method).communication(at)


def _row(method: str | Method) -> Row:
    name = method if isinstance(method, str) else method.name
    if name not in ROWS:
        raise ValueError(f"method={name!r} is in none of the papers' tables: {hint(name, ROWS)}")
    return ROWS[name]


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
