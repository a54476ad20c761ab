"""SPARKLE-ED on a ring in PyTorch without a loop over nodes: stacked tensors, `torch.func.vmap`, one vjp per step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.func import grad, vjp, vmap

from .torch_losses import LOSSES

Tensors = tuple[torch.Tensor, ...]
State = tuple[torch.Tensor, torch.Tensor, Tensors, Tensors, Tensors, Tensors, torch.Tensor]  # x, cx, y, cy, z, cz, r


def start(x0: torch.Tensor, y0: Tensors, nodes: int) -> State:
    copy = lambda t: t[None].repeat(nodes, *[1] * t.ndim)  # noqa: E731
    zero = lambda t: torch.zeros_like(copy(t))  # noqa: E731
    y, zeros = tuple(map(copy, y0)), [tuple(map(zero, y0)) for _ in range(3)]
    return copy(x0), zero(x0), y, zeros[0], zeros[1], zeros[2], zero(x0)


def step_of(kind: str, rates: tuple[float, ...], parallel: bool) -> Callable[..., State]:
    """A function of the state and of stacked batches."""
    f, g = LOSSES[kind]
    α, β, γ, θ = rates

    def curvature(x: torch.Tensor, y: Tensors, batch: Tensors):
        return vjp(lambda x, y: vmap(grad(g, 1))(x, y, batch), x, y)

    def step(state: State, above: Tensors, *below: Tensors) -> State:
        x, cx, y, cy, z, cz, r = state
        v, pullback = curvature(x, y, below[0])
        if not parallel:
            y, cy = _each(exact_diffusion, y, cy, β, v)
            _, pullback = curvature(x, y, below[1])
        fx, fy = vmap(grad(f, (0, 1)))(x, y, above)
        jz, hz = pullback(z)
        new_z, cz = _each(exact_diffusion, z, cz, γ, tuple(h - d for h, d in zip(hz, fy, strict=True)))
        if not parallel:
            jz, _ = curvature(x, y, below[2])[1](new_z)
        r = (1 - θ) * r + θ * (fx - jz)
        x, cx = exact_diffusion(x, cx, α, r)
        if parallel:
            y, cy = _each(exact_diffusion, y, cy, β, v)
        return x, cx, y, cy, new_z, cz, r

    return step


def exact_diffusion(s: torch.Tensor, c: torch.Tensor, rate: float, d: torch.Tensor) -> Tensors:
    φ = s - rate * d + c
    δ = 0.25 * (torch.roll(φ, 1, 0) - φ) + 0.25 * (torch.roll(φ, -1, 0) - φ)
    return φ + δ, c + δ


def _each(move: Callable, s: Tensors, c: Tensors, rate: float, d: Tensors) -> tuple[Tensors, Tensors]:
    moved = [move(*parts[:2], rate, parts[2]) for parts in zip(s, c, d, strict=True)]
    return tuple(new for new, _ in moved), tuple(total for _, total in moved)
