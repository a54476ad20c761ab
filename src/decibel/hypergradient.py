"""Ways to the hypergradient ∇_x f − J H⁻¹ ∇_y f without forming an inverse."""

from __future__ import annotations

import equinox as eqx


class Auxiliary(eqx.Module):
    """H⁻¹ ∇_y f is a level of its own, z, that descends on ½ zᵀHz − zᵀ∇_y f along with x and y."""

    difference: float | None = eqx.field(static=True, default=None)
    forward: bool = eqx.field(static=True, default=False)


def auxiliary(difference: float | None = None, *, forward: bool = False) -> Auxiliary:
    """For a shared lower level. `difference=δ` replaces H z and J z by differences of gradients at y ± δz."""
    if difference is not None and not difference > 0:
        raise ValueError(f"difference={difference} must be positive: 1e-3 is a good start.")
    return Auxiliary(difference, forward)
