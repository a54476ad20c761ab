"""What a loss computes, as a hash: the same in every process, another after a change of an operation or a constant.

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

CALLS = ("call", "checkpoint", "remat", "jit")  # in the names of operations that only call what they hold
ELSEWHERE = ("sharding", "mesh", "device", "layout", "backend", "debug", "metadata")  # in names of settings
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")


class LossHashes(NamedTuple):
    """Of the losses of a problem; `lower` is empty where there is one level only."""

    upper: str
    lower: str
    jax: str  # the version; those of another cannot be compared

    @classmethod
    def read(cls, saved: JSON) -> LossHashes | None:
        """As a checkpoint holds them."""
        return cls(*(str(saved.get(name)) for name in cls._fields)) if isinstance(saved, dict) else None

    def changed(self, other: LossHashes) -> list[str]:
        """The names of those that differ."""
        return [name for name in ("upper", "lower") if getattr(self, name) != getattr(other, name)]


def loss_hashes(problem: Problem) -> LossHashes:
    """Of a problem whose data are known, at least of one node."""
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
    """With its gradient, in which a derivative of the user's own is seen; without, where there is none backwards."""

    def value(*arguments: PyTree) -> Array:
        return loss(*arguments, **key)

    try:
        closed = jax.make_jaxpr(jax.value_and_grad(value, argnums=tuple(range(levels))))(*shapes)
    except Exception:  # whatever a rule of a loss raises; the run will, too, if it needs it
        closed = jax.make_jaxpr(value)(*shapes)
    return _written(closed.jaxpr, closed.consts)


def _written(jaxpr: core.Jaxpr, constants: list[PyTree]) -> str:
    """The operations of a jaxpr, with variables numbered in the order in which they appear."""
    numbers: dict[core.Var, int] = {}
    held = dict(zip(jaxpr.constvars, constants, strict=False))

    def defined(variable: core.Var) -> str:
        numbers[variable] = len(numbers)
        return f"{numbers[variable]}:{variable.aval.str_short()}"

    def used(atom: core.Var | core.Literal) -> str:
        if isinstance(atom, core.Literal):
            return _value(atom.val)
        return str(numbers[atom])

    lines = [f"in {[defined(var) for var in jaxpr.invars]}"]
    lines += [f"{defined(var)} = {_value(held.get(var))}" for var in jaxpr.constvars]
    for line in jaxpr.eqns:
        settings = _settings(line.primitive.name, line.params)
        arguments = [used(var) for var in line.invars]
        lines.append(f"{[defined(var) for var in line.outvars]} = {line.primitive.name} {settings} {arguments}")
    return "\n".join([*lines, f"out {[used(var) for var in jaxpr.outvars]}"])


def _settings(operation: str, params: Mapping[str, PyTree]) -> str:
    """Of an operation that only calls others, these alone."""
    if any(call in operation for call in CALLS) and "callback" not in operation:
        inner = [param for param in params.values() if isinstance(param, core.Jaxpr | core.ClosedJaxpr)]
        if inner:
            return _value(inner)
    names = [name for name in params if name != "name" and not any(word in name for word in ELSEWHERE)]
    return _value({name: params[name] for name in names})


def _value(value: PyTree) -> str:
    """Whatever an operation may be given, in words that are the same in every process."""
    match value:
        case core.ClosedJaxpr():
            return "{" + _written(value.jaxpr, value.consts) + "}"
        case core.Jaxpr():
            return "{" + _written(value, []) + "}"
        case None | bool() | int() | str() | bytes():
            return repr(value)
        case float() | complex():
            return repr(value)
        case enum.Enum():
            return f"{type(value).__name__}.{value.name}"
        case np.dtype() | type():
            return str(value)
        case Mapping():
            return "{" + ", ".join(f"{key}: {_value(value[key])}" for key in sorted(value, key=str)) + "}"
        case tuple() | list():
            return f"{type(value).__name__}({', '.join(map(_value, value))})"
        case set() | frozenset():
            return f"set({', '.join(sorted(map(_value, value)))})"
        case np.ndarray() | np.generic() | Array():
            return _array(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
            return f"{type(value).__name__}{_value(fields)}"
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
