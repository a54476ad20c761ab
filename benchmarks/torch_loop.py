"""SPARKLE-ED on a ring as research code writes it in PyTorch: a loop over nodes, each with tensors of its own."""

from __future__ import annotations

import torch
from torch.autograd import grad

from .torch_losses import LOSSES

Tensors = tuple[torch.Tensor, ...]


class Node:
    """x, y, z, the running average r, and the sums of past flows cx, cy, cz; all of them tuples of tensors."""

    def __init__(self, x0: torch.Tensor, y0: Tensors) -> None:
        zeros = lambda tensors: tuple(torch.zeros_like(t) for t in tensors)  # noqa: E731
        self.x, self.y, self.z = (x0.clone(),), tuple(t.clone() for t in y0), zeros(y0)
        self.r = self.cx = zeros(self.x)
        self.cy = self.cz = zeros(y0)

    def upper_gradients(self, f, batch: Tensors) -> tuple[Tensors, Tensors]:
        x, y = _leaves(self.x), _leaves(self.y)
        fx, *fy = grad(f(*x, y, batch), [*x, *y], allow_unused=True)
        return (torch.zeros_like(self.x[0]) if fx is None else fx,), tuple(fy)

    def linearize(self, g, batch: Tensors) -> Tensors:
        """∇_y g at (x, y), kept with its graph for products."""
        self._at = _leaves(self.x), _leaves(self.y)
        self._v = grad(g(*self._at[0], self._at[1], batch), self._at[1], create_graph=True)
        return tuple(v.detach() for v in self._v)

    def jacobian_product(self) -> Tensors:
        return grad(self._v, self._at[0], self.z, retain_graph=True)

    def hessian_product(self) -> Tensors:
        return grad(self._v, self._at[1], self.z, retain_graph=True)

    def both_products(self) -> tuple[Tensors, Tensors]:
        x, y = self._at
        jz, *hz = grad(self._v, [*x, *y], self.z)
        return (jz,), tuple(hz)


class Loop:
    def __init__(self, kind: str, rates: tuple[float, ...], parallel: bool) -> None:
        (self.f, self.g), self.rates = LOSSES[kind], rates
        self.step = self._parallel if parallel else self._sequential

    def _parallel(self, nodes: list[Node], above: list[Tensors], below: list[Tensors]) -> None:
        α, β, γ, θ = self.rates
        v, p = [], []
        for node, upper, lower in zip(nodes, above, below, strict=True):
            fx, fy = node.upper_gradients(self.f, upper)
            v.append(node.linearize(self.g, lower))
            jz, hz = node.both_products()
            p.append(_combine(1, hz, -1, fy))
            node.r = _combine(1 - θ, node.r, θ, _combine(1, fx, -1, jz))
        exact_diffusion(nodes, "x", α, [node.r for node in nodes])
        exact_diffusion(nodes, "y", β, v)
        exact_diffusion(nodes, "z", γ, p)

    def _sequential(self, nodes: list[Node], above: list[Tensors], *below: list[Tensors]) -> None:
        α, β, γ, θ = self.rates
        v = [node.linearize(self.g, batch) for node, batch in zip(nodes, below[0], strict=True)]
        exact_diffusion(nodes, "y", β, v)
        fx, p = [], []
        for node, upper, lower in zip(nodes, above, below[1], strict=True):
            x_part, fy = node.upper_gradients(self.f, upper)
            node.linearize(self.g, lower)
            fx.append(x_part)
            p.append(_combine(1, node.hessian_product(), -1, fy))
        exact_diffusion(nodes, "z", γ, p)
        for node, x_part, lower in zip(nodes, fx, below[2], strict=True):
            node.linearize(self.g, lower)
            node.r = _combine(1 - θ, node.r, θ, _combine(1, x_part, -1, node.jacobian_product()))
        exact_diffusion(nodes, "x", α, [node.r for node in nodes])


def exact_diffusion(nodes: list[Node], level: str, rate: float, directions: list[Tensors]) -> None:
    """φ = s − rate·d + c; δ_i = ¼ (φ_{i−1} − φ_i) + ¼ (φ_{i+1} − φ_i); s ← φ + δ; c ← c + δ."""
    sums = [getattr(node, f"c{level}") for node in nodes]
    moved = [
        tuple(s - rate * d + c for s, d, c in zip(getattr(node, level), direction, total, strict=True))
        for node, direction, total in zip(nodes, directions, sums, strict=True)
    ]
    for i, node in enumerate(nodes):
        before, own, after = moved[i - 1], moved[i], moved[(i + 1) % len(nodes)]
        flow = tuple(0.25 * (a - b) + 0.25 * (c - b) for a, b, c in zip(before, own, after, strict=True))
        setattr(node, level, _combine(1, own, 1, flow))
        setattr(node, f"c{level}", _combine(1, sums[i], 1, flow))


def _leaves(tensors: Tensors) -> Tensors:
    return tuple(t.detach().requires_grad_() for t in tensors)


def _combine(a: float, left: Tensors, b: float, right: Tensors) -> Tensors:
    return tuple(a * s + b * t for s, t in zip(left, right, strict=True))
