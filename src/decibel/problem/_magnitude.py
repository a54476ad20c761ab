"""How large the results of a traced program can be: nothing is compiled, and no array is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax.extend import core

from ..core._types import PyTree

CALLED = ("jaxpr", "call_jaxpr")  # where an operation that calls a program once holds it
ONE = ("and", "cos", "eq", "erf", "ge", "gt", "le", "logistic", "lt", "ne", "not", "or", "sign", "sin", "tanh")
LARGEST = (
    "abs", "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "max", "min", "neg", "pad", "reduce_max",
    "reduce_min", "reshape", "rev", "slice", "squeeze", "stop_gradient", "transpose",
)  # fmt: skip


def largest_entry(value: PyTree) -> float:
    """The largest absolute value in an array; infinity where it is no array of numbers."""
    if not jnp.issubdtype(jnp.result_type(value), jnp.number):
        return math.inf
    return float(np.abs(np.asarray(value)).max(initial=0))


def magnitudes(program: core.ClosedJaxpr, arguments: Sequence[float]) -> list[float]:
    """A bound on the largest entry of each result, for arguments of at most these; infinity where none is known."""
    jaxpr = program.jaxpr
    known = dict(zip(jaxpr.constvars, map(largest_entry, program.consts), strict=True))
    known |= dict(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: core.Var | core.Literal) -> float:
        return largest_entry(atom.val) if isinstance(atom, core.Literal) else known[atom]

    for line in jaxpr.eqns:
        known |= dict(zip(line.outvars, _results(line, [read(atom) for atom in line.invars]), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _results(line: core.JaxprEqn, given: list[float]) -> list[float]:
    called = next((line.params[name] for name in CALLED if name in line.params), None)
    if isinstance(called, core.ClosedJaxpr) and line.primitive.name != "scan":
        return magnitudes(called, given)
    rule = RULES.get(line.primitive.name, _unknown)
    return [rule(line, *given)] * len(line.outvars)


def _kind(line: core.JaxprEqn, argument: int) -> PyTree:
    """An argument's shape and type."""
    return line.invars[argument].aval


def _unknown(_: core.JaxprEqn, *given: float) -> float:
    return math.inf


def _product(_: core.JaxprEqn, *given: float) -> float:
    return 0.0 if 0.0 in given else math.prod(given)


def _quotient(line: core.JaxprEqn, a: float, b: float) -> float:
    """By a number; of an array the smallest entry is not known."""
    known = isinstance(line.invars[1], core.Literal) and b > 0
    return a / b if known else _product(line, a, math.inf)


def _power(line: core.JaxprEqn, a: float) -> float:
    exponent = line.params.get("y", 2)
    return _product(line, *[a] * exponent) if exponent > 0 else math.inf


def _contraction(line: core.JaxprEqn, a: float, b: float) -> float:
    (axes, _), _ = line.params["dimension_numbers"]
    return _product(line, a, b, *(_kind(line, 0).shape[axis] for axis in axes))


def _sum(line: core.JaxprEqn, a: float) -> float:
    return _product(line, a, _kind(line, 0).size)


Rule = Callable[..., float]  # of an operation, and of how large its arguments are
RULES: dict[str, Rule] = {
    "add": lambda _, a, b: a + b,
    "add_any": lambda _, a, b: a + b,
    "div": _quotient,
    "dot_general": _contraction,
    "gather": lambda _, a, where: a,
    "integer_pow": _power,
    "mul": _product,
    "reduce_sum": _sum,
    "scatter-add": lambda line, a, where, b: a + _product(line, b, _kind(line, 2).size),
    "select_n": lambda _, which, *cases: max(cases),
    "square": _power,
    "sub": lambda _, a, b: a + b,
    **{name: lambda _, *given: 1.0 for name in ONE},
    **{name: lambda _, *given: max(given) for name in LARGEST},
}
