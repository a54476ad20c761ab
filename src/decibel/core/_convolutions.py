"""Convolutions as matrix products, where a program is compiled for CPUs.

XLA's CPU back end convolves by a slow path inside loops, and a chunk of steps is a loop. There the products of patches
with kernels are several times as fast. A step that holds convolutions is traced again with its losses rewritten before
they are differentiated, since derivatives of products are faster than rewritten derivatives of convolutions. What is
left, as in custom derivatives, is rewritten afterwards. The numbers are the same to rounding. Every step is compiled
here (`compile_step`), whether or not it holds convolutions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend import core
from jax.extend.core.primitives import conv_general_dilated_p

from ._types import Loss, PyTree

MOST_SLICES = 128  # of one convolution: beyond that the program grows too long


_losses_rewritten = ContextVar("losses_rewritten", default=False)


def compile_step(function: Callable[..., PyTree], donated: int, *arguments: PyTree) -> jax.stages.Compiled:
    """Compiles a function ahead of time for arguments of these shapes. It reuses the buffers of the argument with index
    `donated`.
    """
    traced = jax.jit(function, donate_argnums=donated).trace(*arguments)
    if _platforms(arguments) != {"cpu"} or products_for_convolutions(traced.jaxpr) is traced.jaxpr:
        return traced.lower().compile()
    before = _losses_rewritten.set(True)
    try:
        again = jax.jit(lambda *arguments: function(*arguments)).trace(*arguments)
    finally:
        _losses_rewritten.reset(before)
    evaluate = core.jaxpr_as_fun(products_for_convolutions(again.jaxpr))
    structure = jax.tree.structure(again.out_info)

    def rewritten(*arguments: PyTree) -> PyTree:
        return jax.tree.unflatten(structure, evaluate(*jax.tree.leaves(arguments)))

    return jax.jit(rewritten, donate_argnums=donated).lower(*arguments).compile()


def rewritten_loss(loss: Loss) -> Loss:
    """The loss with products instead of convolutions, while a step that holds some is traced for CPUs; else itself."""
    if not _losses_rewritten.get():
        return loss

    def rewritten(*arguments: PyTree, **options: PyTree) -> Array:
        def called(arguments: PyTree, options: PyTree) -> Array:
            return loss(*arguments, **options)

        program = products_for_convolutions(jax.make_jaxpr(called)(arguments, options))
        (value,) = core.jaxpr_as_fun(program)(*jax.tree.leaves((arguments, options)))
        return value

    return rewritten


def _platforms(arguments: PyTree) -> set[str]:
    """Where arrays of these shapes lie."""
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments)]
    placed = {device.platform for sharding in shardings if sharding is not None for device in sharding.device_set}
    return placed or {jax.default_backend()}


def products_for_convolutions(jaxpr: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The same program with products instead of convolutions; itself where it holds none."""
    return _rewritten(jaxpr)


def _rewritten(value: PyTree) -> PyTree:
    """A program, or a parameter of an equation that may hold programs; the same object where nothing changes."""
    if _is_closed(value):
        jaxpr = _rewritten(value.jaxpr)
        return value if jaxpr is value.jaxpr else value.replace(jaxpr=jaxpr)
    if isinstance(value, core.Jaxpr):
        equations = [_equation(equation) for equation in value.eqns]
        same = all(new is old for new, old in zip(equations, value.eqns, strict=True))
        return value if same else value.replace(eqns=equations)
    if type(value) in (tuple, list):
        parts = [_rewritten(part) for part in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else type(value)(parts)
    return value


def _is_closed(value: PyTree) -> bool:
    """Whether it is a program and its constants. From JAX 0.11 on every program holds its own."""
    return isinstance(value, core.ClosedJaxpr) and value.jaxpr is not value


def _equation(equation: core.JaxprEqn) -> core.JaxprEqn:
    if equation.primitive is conv_general_dilated_p:
        return _convolution_equation(equation)
    params = {name: _rewritten(value) for name, value in equation.params.items()}
    same = all(params[name] is value for name, value in equation.params.items())
    return equation if same else equation.replace(params=params)


def _convolution_equation(equation: core.JaxprEqn) -> core.JaxprEqn:
    """A call of `convolve` with the same inputs and output."""
    lhs, rhs = (cast(ShapedArray, variable.aval) for variable in equation.invars)
    form = Form.of(lhs.shape, rhs.shape, equation.params)
    if form.slices > MOST_SLICES or not jnp.issubdtype(lhs.dtype, jnp.floating):
        return equation
    # Patches are many times as large as their input: a derivative makes them again.
    traced = jax.make_jaxpr(jax.checkpoint(partial(convolve, **equation.params), prevent_cse=False))(lhs, rhs)
    (call,) = traced.jaxpr.eqns
    return call.replace(invars=equation.invars, outvars=equation.outvars)


class Form(NamedTuple):
    """How a convolution is written as a product of X (groups, batch, *sizes, features) and W (groups, *kernel,
    features, outputs): by patches of X at each place of the kernel or at each position of the result, or by products
    that are spread to where they belong."""

    kind: str
    slices: int

    @classmethod
    def of(cls, lhs: Sequence[int], rhs: Sequence[int], params: dict[str, PyTree]) -> Form:
        numbers, groups = params["dimension_numbers"], params["feature_group_count"] * params["batch_group_count"]
        kernel = [rhs[axis] for axis in numbers.rhs_spec[2:]]
        places, positions = math.prod(kernel), math.prod(_positions(lhs, rhs, params))
        if positions < places:
            return cls("positions", positions)
        outputs, features = rhs[numbers.rhs_spec[0]] // groups, rhs[numbers.rhs_spec[1]]
        dilated = any(step > 1 for step in params["lhs_dilation"])
        if (dilated or outputs < features) and all(stride == 1 for stride in params["window_strides"]):
            return cls("spread", places)
        return cls("places", places)


def _positions(lhs: Sequence[int], rhs: Sequence[int], params: dict[str, PyTree]) -> list[int]:
    """The sizes of the result."""
    numbers = params["dimension_numbers"]
    sizes = []
    for i, (stride, (low, high)) in enumerate(zip(params["window_strides"], params["padding"], strict=True)):
        size, kernel = lhs[numbers.lhs_spec[2 + i]], rhs[numbers.rhs_spec[2 + i]]
        room = _dilated(size, params["lhs_dilation"][i]) + low + high - _dilated(kernel, params["rhs_dilation"][i])
        sizes.append(max(0, room // stride + 1))
    return sizes


def _dilated(size: int, step: int) -> int:
    return max(0, (size - 1) * step + 1)


def convolve(lhs: Array, rhs: Array, **params: PyTree) -> Array:
    """`lax.conv_general_dilated` with all its parameters, by matrix products."""
    numbers, feature_groups, batch_groups = (
        params[name] for name in ("dimension_numbers", "feature_group_count", "batch_group_count")
    )
    groups = feature_groups * batch_groups
    form = Form.of(lhs.shape, rhs.shape, params)
    positions = _positions(lhs.shape, rhs.shape, params)
    batch, features, *spatial = numbers.lhs_spec
    x = _split(lhs, features if batch_groups == 1 else batch, groups, (batch, *spatial, features))
    outputs, inputs, *window = numbers.rhs_spec
    w = _split(rhs, outputs, groups, (*window, inputs, outputs))
    product = partial(
        lax.dot_general, precision=params["precision"], preferred_element_type=params["preferred_element_type"]
    )
    result = FORMS[form.kind](x, w, positions, product, params)  # (groups, batch, *positions, outputs)
    rank = result.ndim
    result = lax.transpose(result, (*range(1, rank - 1), 0, rank - 1))
    result = result.reshape(*result.shape[:-2], -1)
    order = np.argsort((numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1]))
    return lax.transpose(result, order)


def _split(array: Array, axis: int, groups: int, order: tuple[int, ...]) -> Array:
    """The axes in that order, with the groups of one axis first."""
    shape = array.shape
    array = array.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    return lax.transpose(array, (axis, *(i + (i >= axis) for i in order)))


Product = Callable[..., Array]


def _by_places(x: Array, w: Array, positions: list[int], product: Product, params: dict[str, PyTree]) -> Array:
    """Patches of x at each place of the kernel, side by side, times the kernel."""
    x, kernel = _padded(x, params), w.shape[1:-2]
    slices = [
        _slice(x, np.multiply(place, params["rhs_dilation"]), positions, params["window_strides"])
        for place in _all(kernel)
    ]
    result = product(_side_by_side(slices), _as_matrices(w), (((2,), (1,)), ((0,), (0,))))
    return result.reshape(*x.shape[:2], *positions, w.shape[-1])


def _by_positions(x: Array, w: Array, positions: list[int], product: Product, params: dict[str, PyTree]) -> Array:
    """Patches of x at each position of the result, times the kernel: for kernels larger than the result, as in the
    gradient of a kernel."""
    x, kernel = _padded(x, params), w.shape[1:-2]
    rank = len(kernel)
    # Features first and the batch last, which for the gradient of a kernel is how its input lies in memory.
    x = lax.transpose(x, (0, rank + 2, *range(2, rank + 2), 1))
    w = lax.transpose(w, (0, rank + 1, *range(1, rank + 1), rank + 2))
    slices = [
        _slice(x, np.multiply(position, params["window_strides"]), kernel, params["rhs_dilation"])
        for position in _all(positions)
    ]
    if not slices:
        return jnp.zeros((x.shape[0], x.shape[-1], *positions, w.shape[-1]), x.dtype)
    result = product(_side_by_side(slices), _as_matrices(w), (((1,), (1,)), ((0,), (0,))))
    result = result.reshape(x.shape[0], *positions, x.shape[-1], w.shape[-1])
    return lax.transpose(result, (0, rank + 1, *range(1, rank + 1), rank + 2))


def _by_spreading(x: Array, w: Array, positions: list[int], product: Product, params: dict[str, PyTree]) -> Array:
    """Products of x with each place of the kernel, summed where they belong: for inputs with gaps, which are not
    filled, and for kernels with fewer outputs than features."""
    groups, batch, *sizes, features = x.shape
    kernel = w.shape[1:-2]
    flat = lax.transpose(w.reshape(groups, -1, *w.shape[-2:]), (0, 2, 1, 3)).reshape(groups, features, -1)
    products = product(x.reshape(groups, -1, features), flat, (((2,), (1,)), ((0,), (0,))))
    products = products.reshape(groups, batch, *sizes, -1, w.shape[-1])
    total = jnp.zeros((groups, batch, *positions, w.shape[-1]), products.dtype)
    for number, place in enumerate(_all(kernel)):
        spread = [(0, 0, 0), (0, 0, 0)]
        for i, index in enumerate(place):
            low = params["padding"][i][0] - index * params["rhs_dilation"][i]
            step = params["lhs_dilation"][i]
            spread.append((low, positions[i] - low - _dilated(sizes[i], step), step - 1))
        at_place = lax.index_in_dim(products, number, products.ndim - 2, keepdims=False)
        total = total + lax.pad(at_place, jnp.zeros((), at_place.dtype), [*spread, (0, 0, 0)])
    return total


FORMS = {"places": _by_places, "positions": _by_positions, "spread": _by_spreading}


def _padded(x: Array, params: dict[str, PyTree]) -> Array:
    around = [
        (low, high, step - 1) for (low, high), step in zip(params["padding"], params["lhs_dilation"], strict=True)
    ]
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *around, (0, 0, 0)])


def _slice(x: Array, start: np.ndarray, sizes: Sequence[int], steps: Sequence[int]) -> Array:
    """Entries of the axes between the first two and the last: so many from a start, at these steps."""
    spans = [_dilated(size, step) for size, step in zip(sizes, steps, strict=True)]
    begin = [0, 0, *map(int, start), 0]
    end = [*x.shape[:2], *(int(a) + span for a, span in zip(start, spans, strict=True)), x.shape[-1]]
    return lax.slice(x, begin, end, [1, 1, *steps, 1])


def _side_by_side(slices: list[Array]) -> Array:
    """Joined along the last axis: (groups, rows, features of all)."""
    joined = lax.concatenate(slices, slices[0].ndim - 1) if len(slices) > 1 else slices[0]
    return _as_matrices(joined)


def _as_matrices(array: Array) -> Array:
    """All axes between the first and the last as one."""
    return array.reshape(array.shape[0], -1, array.shape[-1])


def _all(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, sizes)))
