"""A bilevel problem whose losses are written in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..core._types import PyTree
from ..problem._problem import Data, DataSource, Options, Problem
from ..problem._samples import NodeData
from ._call import Module
from ._libraries import libraries
from ._model import Model, evaluate, from_torch
from ._tensors import arrays, is_tensor, to_numpy

TorchLoss = Callable[[PyTree, Module, PyTree], PyTree]  # of x, the module and a batch


def problem(
    module: Module | Model,
    *,
    upper: TorchLoss,
    lower: TorchLoss,
    upper_data: DataSource,
    lower_data: DataSource,
    x0: PyTree,
    **options: Unpack[Options],
) -> Problem:
    """A bilevel problem whose lower variable y is the parameters of a PyTorch module, with losses in PyTorch.

    A loss is called with tensors and the module itself, so that `module(inputs)`, its submodules and
    `module.parameters()` can be used as in any PyTorch code. It is converted once, by torchax, and then runs without
    PyTorch.

    Args:
        module: a `torch.nn.Module`, or one that `from_torch` has converted; `problem.y0` are its trainable parameters.
        upper: f, called as `upper(x, module, batch)`; returns a scalar tensor, the mean over the batch.
        lower: g, called as `lower(x, module, batch)`; likewise.
        upper_data: the data of f in the forms of `Problem`, as tensors or NumPy arrays.
        lower_data: the data of g.
        x0: the initial x: a tensor, a pytree of tensors or arrays, whose floats take the dtype of the module, or a
            `torch.nn.Module`, in whose place the losses are called with that module.
        **options: `personal`, `nodes`, `prox_x` and `prox_y` of `Problem`.

    Returns:
        A `Problem` as any other. `from_torch(module).back(result.y)` loads the solution into the module.

    Raises:
        ImportError: if torch or torchax is missing, or of a version that does not work.
        ValueError: as `Problem` and `from_torch`.
        TypeError: as `Problem` and `from_torch`.
    """
    torch, _ = libraries()
    model = module if isinstance(module, Model) else from_torch(module)
    outer = from_torch(x0) if isinstance(x0, torch.nn.Module) else x0 if isinstance(x0, Model) else None
    start = arrays(x0, "x0") if outer is None else outer.y0
    dtype = jnp.result_type(*jax.tree.leaves(model.y0))
    start = jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, start)
    bare = (outer and replace(outer, y0=None), replace(model, y0=None))  # their y0 is the problem's
    losses = [KeyedLoss(function, *bare) for function in (upper, lower)]
    convert = _Converted()
    traced = Problem(
        *losses, upper_data=convert(upper_data), lower_data=convert(lower_data), x0=start, y0=model.y0, **options
    )
    # A loss without dropout needs no key, and a draw of all samples need not be repeated for it.
    needed = [
        _without_key(loss, traced, data)
        for loss, data in zip(losses, (traced.upper_data, traced.lower_data), strict=True)
    ]
    return eqx.tree_at(lambda traced: (traced.upper, traced.lower), traced, tuple(needed))


class Loss(eqx.Module):
    """A loss in PyTorch as a function of arrays; what is frozen in its modules is an argument of what is compiled."""

    function: TorchLoss
    outer: Model | None  # where x is the parameters of a module
    inner: Model

    def __call__(self, x: PyTree, y: dict[str, Array], batch: PyTree) -> Array:
        return self.evaluate(x, y, batch, None)

    def evaluate(self, x: PyTree, y: dict[str, Array], batch: PyTree, key: Array | None) -> Array:
        models = (
            {"inner": (self.inner, y)} if self.outer is None else {"inner": (self.inner, y), "outer": (self.outer, x)}
        )

        def loss(modules: dict[str, Module], arguments: PyTree) -> PyTree:
            x, batch = arguments
            return self.function(modules.get("outer", x), modules["inner"], batch)

        return evaluate(loss, models, (x if self.outer is None else None, batch), batch, key)


class KeyedLoss(Loss):
    """A loss with something random in it, such as dropout."""

    def __call__(self, x: PyTree, y: dict[str, Array], batch: PyTree, *, key: Array | None = None) -> Array:
        return self.evaluate(x, y, batch, key)


def _without_key(loss: KeyedLoss, problem: Problem, data: Data) -> Loss:
    """The same loss without a key where training mode is no other than evaluation mode; that shows on a sample."""
    if not isinstance(data, NodeData):
        return loss
    arguments = jax.random.key(0), problem.x0, problem.y0, data.sample
    training = jax.make_jaxpr(lambda key, *arguments: loss(*arguments, key=key))(*arguments)
    evaluation = jax.make_jaxpr(lambda key, *arguments: loss(*arguments, key=None))(*arguments)
    return loss if str(training) != str(evaluation) else Loss(loss.function, loss.outer, loss.inner)


class _Converted:
    """Data with NumPy's arrays for tensors, the same one wherever a tensor occurs, as `Problem` stores it once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[PyTree, PyTree]] = {}

    def __call__(self, source: DataSource) -> DataSource:
        if callable(source):
            return self._once(source, lambda function: lambda node: self(function(node)))
        return jax.tree.map(lambda leaf: self._once(leaf, to_numpy) if is_tensor(leaf) else leaf, source)

    def _once(self, thing: PyTree, convert: Callable[[PyTree], PyTree]) -> PyTree:
        if id(thing) not in self._known:
            self._known[id(thing)] = convert(thing), thing  # kept, so that its id is not used again
        return self._known[id(thing)][0]
