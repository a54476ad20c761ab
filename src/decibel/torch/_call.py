"""Calls of PyTorch code on arrays of JAX: every operation becomes one of JAX, so that the call can be transformed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import jax
from jax import Array

from ..core._types import PyTree
from ._libraries import VERSIONS, libraries

TRACING = threading.RLock()  # a module holds other tensors while it is called


class Module(Protocol):
    """What is used of a `torch.nn.Module`."""

    training: bool

    def modules(self) -> Iterator[Module]: ...

    def named_modules(self) -> Iterator[tuple[str, Module]]: ...

    def named_parameters(self) -> Iterator[tuple[str, PyTree]]: ...

    def named_buffers(self) -> Iterator[tuple[str, PyTree]]: ...


class BoundModule(NamedTuple):
    """A module, the arrays that take the place of its tensors, and which of its modules are in training mode."""

    module: Module
    arrays: dict[str, Array]
    modes: tuple[bool, ...]


def call(
    function: Callable[..., PyTree], bound: dict[str, BoundModule], arguments: PyTree, key: Array | None
) -> PyTree:
    """`function(modules, arguments)`, both in PyTorch's terms, on arrays of JAX and to arrays of JAX.

    Args:
        function: of a dictionary of modules, named like `bound`, and of the arguments as tensors.
        bound: the modules.
        arguments: a pytree of arrays.
        key: of everything random in it; None takes the same numbers in every call.

    Raises:
        ValueError: if the code uses what torchax does not convert, or tensors that are not arguments.
    """
    torch, torchax = libraries()
    environment = torchax.default_env()

    class FunctionalModule(torch.nn.Module):
        def forward(self, arguments: PyTree) -> PyTree:
            return function({name: getattr(self, name) for name in bound}, arguments)

    host = FunctionalModule()
    named = {f"{name}.{path}": leaf for name, module in bound.items() for path, leaf in module.arrays.items()}
    for name, module in bound.items():
        setattr(host, name, module.module)
    with jax.ensure_compile_time_eval():  # so that it leaves no trace where nothing is random
        fixed = jax.random.key(0)
    random = environment.override_property(prng=fixed if key is None else key)
    # PyTorch promotes types by rules of its own, so that strict promotion would only forbid what it allows.
    with TRACING, _modes(bound), jax.numpy_dtype_promotion("standard"), random:
        try:
            with environment, torch.device("jax"):
                tensors = torchax.interop.torch_view((named, arguments))
                out = torch.func.functional_call(host, tensors[0], (tensors[1],))
            return torchax.interop.jax_view(out)
        except torchax.tensor.OperatorNotFound as error:
            fix = "write that part with other operations"
            raise ValueError(
                f"torchax {VERSIONS['torchax'][0]} cannot convert an operation ({error}): {fix}."
            ) from error
        except AssertionError as error:
            if "mixed math" not in str(error):
                raise
            fix = "make it a buffer of the module, or part of x0 or of the data"
            raise ValueError(f"a loss or the module uses a tensor from outside: {fix}.") from error


@contextmanager
def _modes(bound: dict[str, BoundModule]) -> Generator[None]:
    """Every module in its mode, and afterwards in the one that it had."""
    before = [(module, module.training) for bound_module in bound.values() for module in bound_module.module.modules()]
    try:
        for bound_module in bound.values():
            for module, training in zip(bound_module.module.modules(), bound_module.modes, strict=True):
                module.training = training
        yield
    finally:
        for module, training in before:
            module.training = training
