"""A PyTorch module as a function of its trainable parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._types import PyTree
from ._call import BoundModule, Module, call
from ._libraries import libraries
from ._tensors import arrays, is_tensor, to_array


def from_torch(module: Module, loss: Callable[[Module, PyTree], PyTree] | None = None) -> Model:
    """A PyTorch module, and a loss of it, as functions that JAX can transform.

    Parameters with `requires_grad` become variables; tied ones are one variable. The other parameters, buffers and
    tensors that are attributes stay as they are. A submodule that is in evaluation mode while `module` is in training
    mode stays in it, as one does with a frozen BatchNorm.

    Args:
        module: a `torch.nn.Module`, in float32 or float64.
        loss: called as `loss(module, batch)`, in PyTorch; returns a scalar tensor, the mean over the batch.

    Raises:
        ImportError: if torch or torchax is missing, or of a version that does not work.
        TypeError: if `module` is not a module, or in half precision.
        ValueError: if no parameter is trainable, or the parameters are float64 and JAX has not enabled it.
    """
    torch, _ = libraries()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is a {type(module).__name__}: give a torch.nn.Module.")
    trainable: dict[str, Array] = {}
    frozen: dict[str, Array] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"module's {name} is {parameter.dtype}: call module.float() first.")
        (trainable if parameter.requires_grad else frozen)[name] = to_array(parameter, f"module's {name}")
    if not trainable:
        raise ValueError("module has no trainable parameters: call requires_grad_() on those to train.")
    attributes = [
        (f"{path}.{name}" if path else name, value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if is_tensor(value)
    ]
    for name, tensor in (*module.named_buffers(), *attributes):
        frozen[name] = to_array(tensor, f"module's {name}")
    dropout = torch.nn.modules.dropout._DropoutNd
    # Dropout of nothing would ask for random numbers in vain.
    modes = tuple(
        (part.training or not module.training) and not (isinstance(part, dropout) and getattr(part, "p", None) == 0)
        for part in module.modules()
    )
    return Model(trainable, frozen, loss, module, modes)


class Model(eqx.Module):
    """A PyTorch module as a function of its trainable parameters, from `from_torch`.

    With a `loss` it is itself a loss of them, for a single level: `db.Problem(model, upper_data=..., x0=model.y0)`.

    Attributes:
        y0: the trainable parameters, a dictionary of arrays.
        frozen: the other parameters, buffers and tensors.
    """

    y0: dict[str, Array] | None
    frozen: dict[str, Array]
    loss: Callable[[Module, PyTree], PyTree] | None
    module: Module = eqx.field(static=True)
    training: tuple[bool, ...] = eqx.field(static=True)  # of all modules in it, while it is trained

    def apply(self, y: dict[str, Array], *inputs: PyTree, key: Array | None = None) -> PyTree:
        """What the module returns, as arrays.

        Args:
            y: a dictionary of arrays shaped like `y0`.
            *inputs: arrays or tensors.
            key: a random key: the module is in training mode, with dropout by this key and BatchNorm by the batch. None
                is evaluation mode.
        """
        modes = self.training if key is not None else (False,) * len(self.training)

        def forward(modules: dict[str, PyTree], inputs: PyTree) -> PyTree:
            return modules["module"](*inputs)

        return call(
            forward, {"module": BoundModule(self.module, self.tensors(y), modes)}, arrays(inputs, "an input"), key
        )

    def __call__(self, y: dict[str, Array], batch: PyTree, *, key: Array | None = None) -> Array:
        """The loss on a batch.

        BatchNorm uses the statistics of the batch, also if there is no `key`, since a run does not update running ones.

        Args:
            y: a dictionary of arrays shaped like `y0`.
            batch: a pytree of arrays.
            key: of what is random in training mode, such as dropout; None is evaluation mode.
        """
        if self.loss is None:
            raise TypeError("the model has no loss: give from_torch(module, loss), or call apply.")
        loss = self.loss
        return evaluate(lambda modules, batch: loss(modules["module"], batch), {"module": (self, y)}, batch, batch, key)

    def back(self, y: dict[str, Array], batches: Iterable[PyTree] | None = None) -> Module:
        """Loads parameters into the module, and recalibrates the running statistics of BatchNorm.

        Args:
            y: a dictionary of arrays shaped like `y0`, such as `result.y`.
            batches: inputs of the module, such as a `DataLoader`; of a tuple or list the first entry is the input.
                Running statistics become the averages over them. Needed only if the module keeps such statistics.

        Returns:
            The module itself.

        Raises:
            ValueError: if y is not shaped like the module, or the running statistics are those of other parameters and
                `batches` are missing.
        """
        torch, _ = libraries()
        parameters = {name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad}
        if {name: np.shape(leaf) for name, leaf in y.items()} != {
            name: tuple(leaf.shape) for name, leaf in parameters.items()
        }:
            raise ValueError("y is not shaped like the module: give result.y or, of a personal level, one node's y.")
        stale = [part for part, on in zip(self.module.modules(), self.training, strict=True) if on and _tracks(part)]
        if stale and batches is None:
            raise ValueError(
                "batches is missing: the module has running statistics (BatchNorm), which a run does not update; give "
                "back(y, batches) inputs to take them from."
            )
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.from_numpy(np.array(y[name])))
        if stale and batches is not None:
            _recalibrate(self.module, stale, batches)
        return self.module

    def tensors(self, y: dict[str, Array]) -> dict[str, Array]:
        """What takes the place of the module's tensors; frozen ones are of the precision of y."""
        narrow = jnp.result_type(*y.values()) == jnp.bfloat16

        def cast(leaf: Array) -> Array:
            return leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        return {**(jax.tree.map(cast, self.frozen) if narrow else self.frozen), **y}

    def bound(self, y: dict[str, Array], *, random: bool, by_batch: bool) -> BoundModule:
        """The module as a loss uses it.

        Args:
            y: the trainable parameters.
            random: whether what is random is on: training mode.
            by_batch: whether BatchNorm normalizes by the batch.
        """
        modes = tuple(
            on and (by_batch if _tracks(part) else random)
            for part, on in zip(self.module.modules(), self.training, strict=True)
        )
        return BoundModule(self.module, self.tensors(y), modes)


def evaluate(
    function: Callable[..., PyTree],
    models: dict[str, tuple[Model, dict[str, Array]]],
    arguments: PyTree,
    batch: PyTree,
    key: Array | None,
) -> Array:
    """A loss of modules at their parameters, as `call` has it; BatchNorm uses the statistics of the batch.

    For a single sample PyTorch cannot compute batch statistics and raises; the running statistics are used then, so
    that shapes can be checked on one sample.
    """

    def bound(by_batch: bool) -> dict[str, BoundModule]:
        return {name: model.bound(y, random=key is not None, by_batch=by_batch) for name, (model, y) in models.items()}

    try:
        return call(function, bound(True), arguments, key)
    except ValueError as error:
        single = all(jnp.shape(leaf)[:1] == (1,) for leaf in jax.tree.leaves(batch))
        if not single or "more than 1 value per channel" not in str(error):
            raise
        return call(function, bound(False), arguments, key)


def _tracks(module: Module) -> bool:
    """Whether it keeps running statistics, as BatchNorm does."""
    return getattr(module, "running_mean", None) is not None and hasattr(module, "track_running_stats")


def _recalibrate(module: Module, layers: list[PyTree], batches: Iterable[PyTree]) -> None:
    """Running statistics as the averages over batches; all other layers are in evaluation mode."""
    torch, _ = libraries()
    before = [(part, part.training) for part in module.modules()]
    momenta = [layer.momentum for layer in layers]
    device = next(parameter.device for _, parameter in module.named_parameters())
    try:
        for part, _ in before:
            part.training = False
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum, layer.training = None, True  # a cumulative average
        seen = 0
        with torch.no_grad():
            for batch in batches:
                first = batch[0] if isinstance(batch, tuple | list) else batch
                tensor = first if is_tensor(first) else torch.from_numpy(np.array(first))
                module(tensor.to(device))  # pyright: ignore[reportCallIssue]
                seen += 1
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for part, training in before:
            part.training = training
    if not seen:
        raise ValueError("batches is empty: give inputs to take the running statistics from.")
