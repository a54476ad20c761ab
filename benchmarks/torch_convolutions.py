"""The derivatives of the convolutional networks in PyTorch, of the samples of all nodes at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def derivatives(weights: dict[str, Any], data: tuple[np.ndarray, ...], bilevel: bool) -> Callable[[], list[Tensor]]:
    """What the loop over nodes computes: the gradient, or with two levels ∇_y g, its pullback at y, and ∇_y f."""
    images = torch.tensor(np.ascontiguousarray(np.moveaxis(data[0], -1, 1)))
    labels = torch.tensor(data[1].astype(np.int64))
    y = {name: _leaf(weight).requires_grad_() for name, weight in weights.items()}
    leaves, z = list(y.values()), [leaf.detach().clone() for leaf in y.values()]
    x = torch.zeros(10, requires_grad=True)

    def losses() -> Tensor:
        return functional.cross_entropy(_logits(y, images), labels, reduction="none")

    def single() -> list[Tensor]:
        return list(torch.autograd.grad(losses().mean(), leaves))

    def both() -> list[Tensor]:
        ridge = sum(leaf.square().sum() for leaf in leaves)
        below = (torch.sigmoid(x)[labels] * losses()).mean() + 1e-3 * ridge
        v = torch.autograd.grad(below, leaves, create_graph=True)
        pulled = torch.autograd.grad(sum((a * b).sum() for a, b in zip(v, z, strict=True)), [x, *leaves])
        return [*(one.detach() for one in v), *pulled, *single()]

    return both if bilevel else single


def as_arrays(found: list[Tensor]) -> list[np.ndarray]:
    """Kernels as JAX has them."""
    return [np.moveaxis(one.numpy(), (0, 1), (3, 2)) if one.ndim == 4 else one.numpy() for one in found]


def _leaf(weight: Any) -> Tensor:
    array = np.asarray(weight)
    return torch.tensor(np.ascontiguousarray(np.moveaxis(array, (2, 3), (1, 0))) if array.ndim == 4 else array)


def _logits(y: dict[str, Tensor], images: Tensor) -> Tensor:
    if "stem" not in y:
        hidden = torch.relu(_convolve(images, y["first"]))
        stride = round((hidden[0, 0].numel() * y["second"].shape[0] / len(y["last"])) ** 0.5)
        hidden = torch.relu(_convolve(hidden, y["second"], stride))
        return hidden.movedim(1, -1).flatten(1) @ y["last"]
    hidden = torch.relu(_convolve(images, y["stem"]))
    for block, stride in (("16", 1), ("32", 2), ("64", 2)):
        inner = torch.relu(_convolve(hidden, y[f"{block} in"], stride))
        skip = _convolve(hidden, y[f"{block} skip"], stride)
        hidden = torch.relu(skip + _convolve(inner, y[f"{block} out"]))
    return hidden.mean((2, 3)) @ y["last"]


def _convolve(images: Tensor, kernel: Tensor, stride: int = 1) -> Tensor:
    """With margins as JAX makes them, which are not the same on both sides for a stride of 2."""
    side, width = images.shape[-1], kernel.shape[-1]
    margin = max(0, (-(-side // stride) - 1) * stride + width - side)
    if margin % 2 == 0:
        return functional.conv2d(images, kernel, stride=stride, padding=margin // 2)
    before = margin // 2
    return functional.conv2d(functional.pad(images, (before, margin - before) * 2), kernel, stride=stride)
