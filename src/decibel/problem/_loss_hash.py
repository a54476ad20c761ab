"""Hashes of what a loss computes: equal in every process, different after a change of an operation or constant.

A loss and its gradient are traced at the start, on a batch of one sample, and the operations are written down in order:
their kinds, settings, shapes and constants, but no names, no addresses and no devices. JAX decides which operations
these are, so hashes of different versions of JAX cannot be compared.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend import core

from ..core._json import JSON
from ..core._types import Loss, PyTree
from ._keyed import takes_key
from ._streams import Samples

if TYPE_CHECKING:
    from ._problem import Problem

CALLS = ("call", "checkpoint", "remat", "jit")  # in the names of operations that only call a jaxpr
ELSEWHERE = ("sharding", "mesh", "device", "layout", "backend", "debug", "metadata")  # in names of settings
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")


class LossHashes(NamedTuple):
    """Hashes of the losses of a problem; `lower` is empty for a single level."""

    upper: str
    lower: str
    jax: str  # the version; those of another cannot be compared

    @classmethod
    def read(cls, saved: JSON) -> LossHashes | None:
        """The hashes in a checkpoint; None if it has none."""
        return cls(*(str(saved.get(name)) for name in cls._fields)) if isinstance(saved, dict) else None

    def changed(self, other: LossHashes) -> list[str]:
        """The names of the losses that differ."""
        return [name for name in ("upper", "lower") if getattr(self, name) != getattr(other, name)]


def loss_hashes(problem: Problem) -> LossHashes:
    """The hashes of a problem's losses; requires the data of at least one node."""
    point = (problem.x0,) if problem.single_level else (problem.x0, problem.y0)
    upper = _hash(problem.upper, point, problem.upper_data)
    lower = "" if problem.lower is None else _hash(problem.lower, point, problem.lower_data)
    return LossHashes(upper, lower, jax.__version__)


def _hash(loss: Loss, point: tuple[PyTree, ...], data: Samples) -> str:
    def kind(leaf: PyTree) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))

    shapes = (*jax.tree.map(kind, point), data.sample)
    written = hashlib.sha256()
    for key in _keys() if takes_key(loss) else ({},):
        written.update(_traced(loss, len(point), shapes, key).encode())
    return written.hexdigest()


def _keys() -> tuple[dict[str, Array | None], ...]:
    return {"key": jax.random.key(0)}, {"key": None}


def _traced(loss: Loss, levels: int, shapes: tuple[PyTree, ...], key: Mapping[str, Array | None]) -> str:
    """The jaxpr of the loss and its gradient, so that custom derivatives are included; of the loss alone if it has no
    reverse-mode gradient."""

    def value(*arguments: PyTree) -> Array:
        return loss(*arguments, **key)

    try:
        closed = jax.make_jaxpr(jax.value_and_grad(value, argnums=tuple(range(levels))))(*shapes)
    except Exception:  # whatever a rule of a loss raises; the run will, too, if it needs it
        closed = jax.make_jaxpr(value)(*shapes)
    return _serialize_jaxpr(closed.jaxpr, closed.consts)


def _serialize_jaxpr(jaxpr: core.Jaxpr, constants: list[PyTree]) -> str:
    """The operations of a jaxpr, with variables numbered in the order in which they appear."""
    numbers: dict[core.Var, int] = {}
    held = dict(zip(jaxpr.constvars, constants, strict=False))

    def defined(variable: core.Var) -> str:
        numbers[variable] = len(numbers)
        return f"{numbers[variable]}:{variable.aval.str_short()}"

    def used(atom: core.Var | core.Literal) -> str:
        if isinstance(atom, core.Literal):
            return _serialize_value(atom.val)
        return str(numbers[atom])

    lines = [f"in {[defined(var) for var in jaxpr.invars]}"]
    lines += [f"{defined(var)} = {_serialize_value(held.get(var))}" for var in jaxpr.constvars]
    for equation in jaxpr.eqns:
        settings = _serialize_params(equation.primitive.name, equation.params)
        arguments = [used(var) for var in equation.invars]
        lines.append(f"{[defined(var) for var in equation.outvars]} = {equation.primitive.name} {settings} {arguments}")
    return "\n".join([*lines, f"out {[used(var) for var in jaxpr.outvars]}"])


def _serialize_params(operation: str, params: Mapping[str, PyTree]) -> str:
    """Of an operation that only calls others, these alone."""
    if any(call in operation for call in CALLS) and "callback" not in operation:
        inner = [param for param in params.values() if isinstance(param, core.Jaxpr | core.ClosedJaxpr)]
        if inner:
            return _serialize_value(inner)
    names = [name for name in params if name != "name" and not any(word in name for word in ELSEWHERE)]
    return _serialize_value({name: params[name] for name in names})


def _serialize_value(value: PyTree) -> str:
    """Whatever an operation may be given, in words that are the same in every process."""
    match value:
        case core.ClosedJaxpr():
            return "{" + _serialize_jaxpr(value.jaxpr, value.consts) + "}"
        case core.Jaxpr():
            return "{" + _serialize_jaxpr(value, []) + "}"
        case None | bool() | int() | float() | complex() | str() | bytes():
            return repr(value)
        case enum.Enum():
            return f"{type(value).__name__}.{value.name}"
        case np.dtype() | type():
            return str(value)
        case Mapping():
            return "{" + ", ".join(f"{key}: {_serialize_value(value[key])}" for key in sorted(value, key=str)) + "}"
        case tuple() | list():
            return f"{type(value).__name__}({', '.join(map(_serialize_value, value))})"
        case set() | frozenset():
            return f"set({', '.join(sorted(map(_serialize_value, value)))})"
        case np.ndarray() | np.generic() | Array():
            return _array(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
            return f"{type(value).__name__}{_serialize_value(fields)}"
        case _ if callable(value):
            return _function(value)
        case _:
            return ADDRESS.sub("", repr(value))


def _function(function: Callable[..., object]) -> str:
    """What is called outside of JAX is known by its name only."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"


def _array(value: np.ndarray | np.generic | Array) -> str:
    dtype = str(value.dtype)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)  # pyright: ignore[reportArgumentType]
    array = np.ascontiguousarray(np.asarray(value))
    return f"{dtype}{list(array.shape)}#{hashlib.sha256(array.tobytes()).hexdigest()}"
