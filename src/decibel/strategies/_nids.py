"""NIDS (Li, Shi and Yan, 2019) with a step size for each node.

With step sizes D_i of the nodes and D the largest of them, the mixing matrix is W̃ = I − (D_i/D)(I − W), which is the
paper's I − c Λ (I − W) for c = 1/D. The carry c is in units of the largest step size, and node i uses its share D_i/D
of it:

    φ = s − D_i g + (D_i/D) c − e,   c⁺ = c + δ(φ),   v = s − D_i g + (D_i/D) c⁺,   s⁺ = prox(v; D_i),   e⁺ = v − s⁺.

Where nothing moves, φ is common to all nodes. Without a proximal map D_i (g_i − c_i/D) = 0 at every node, and
Σ c_i = 0, so Σ g_i = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ..core._vector import Scalar, Vector, scale_nodes
from ..network._communicator import Move
from ._table import STRATEGIES, Level, Strategy, as_subclass, damped, no_flow_form
from ._table import nids as nids_flow_form


class NodeSteps(Strategy):
    """`"nids"` with a step size for each node.

    Attributes:
        node_steps: the step size of every node of the graph, divided by the level's step size.
        shares: for the local nodes, the node's step size divided by the largest of all nodes.
    """

    node_steps: tuple[float, ...] = eqx.field(static=True, default=())
    shares: Float[Array, " nodes"] | None = None

    @property
    def label(self) -> str:
        return f"{super().label}, steps {', '.join(f'{step:g}' for step in self.node_steps)}"

    @property
    def nodes(self) -> int:
        return len(self.node_steps)

    def for_nodes(self, node_ids: Int[Array, " nodes"]) -> Strategy:
        largest = max(self.node_steps)
        return replace(self, shares=jnp.asarray([step / largest for step in self.node_steps])[node_ids])

    def update(self, level: Level, direction: Vector, rate: Scalar) -> Move:
        assert self.shares is not None
        largest = max(self.node_steps) * rate
        c, e = level.carry
        prox = partial(self.apply_prox, rate=largest * self.shares)
        share = partial(scale_nodes, self.shares)
        return (yield from nids_flow_form(level.s, largest * direction, c, e, prox, share))


def nids(node_steps: Sequence[float] | None = None, *, damping: float | None = None) -> Strategy:
    """NIDS with a step size for each node: that of node i is `node_steps[i]` times the level's step size.

    The fixed point is exact, also with a proximal map for each node. Step sizes below 2/L_i are stable for a
    smoothness L_i of node i and a W without negative eigenvalues, whatever the graph. They must not change: see
    `ada_ed`.

    Args:
        node_steps: one positive number for each node, in the order of nodes. None gives every node the level's step
            size.
        damping: κ of c⁺ = c + κ δ(φ), as in `ed`.

    References:
        Li, Shi, Yan, A Decentralized Proximal-Gradient Method with Network Independent Step-Sizes and Separated
        Convergence Rates, 2019.
    """
    same_for_all = damped(STRATEGIES["nids"], damping)
    if node_steps is None:
        return same_for_all
    return as_subclass(same_for_all, NodeSteps, flow_form=no_flow_form, node_steps=positive_steps(node_steps))


def positive_steps(node_steps: Sequence[float]) -> tuple[float, ...]:
    """The step sizes as floats; raises ValueError unless all are positive and finite."""
    steps = tuple(float(step) for step in node_steps)
    if not steps or not all(0 < step < float("inf") for step in steps):
        raise ValueError(f"node_steps={node_steps!r} must be positive numbers: give one for each node, such as 1/L_i.")
    return steps
