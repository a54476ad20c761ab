"""Policy evaluation: nodes with different rewards agree on the value function of a Markov decision process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..problem._problem import Problem
from ..results.metrics import Snapshot, distance
from .synthetic import counts_of, deviations, spread_of
from .task import Task

STEP_SIZES = {"alpha": 1.0, "beta": 0.1, "gamma": 0.1}

Sweep = tuple[Array, Array]  # rewards (samples, states), features of the next states (samples, states, features)


class TargetError(eqx.Module):
    """f: Σ_s ω_s/2 (φ_sᵀx − y_s)² + λ/2 ‖x‖², with the batch's weights ω of the states, (samples, states)."""

    features: Array  # (states, features)
    regularization: float

    def __call__(self, x: Array, y: Array, weights: Array) -> Array:
        return 0.5 * (weights.mean(0) @ jnp.square(self.features @ x - y) + self.regularization * x @ x)


class TargetFit(eqx.Module):
    """g: Σ_s of the mean (y_s − r − γ φ_s'ᵀx)²."""

    discount: float

    def __call__(self, x: Array, y: Array, batch: Sweep) -> Array:
        rewards, following = batch
        return jnp.square(y - rewards - self.discount * following @ x).mean(0).sum()


class ResidualError(eqx.Module):
    """f: Σ_s ω_s/2 y_s² + λ/2 ‖x‖²."""

    regularization: float

    def __call__(self, x: Array, y: Array, weights: Array) -> Array:
        return 0.5 * (weights.mean(0) @ jnp.square(y) + self.regularization * x @ x)


class ResidualFit(eqx.Module):
    """g: Σ_s of the mean (y_s − φ_sᵀx + r + γ φ_s'ᵀx)²."""

    features: Array
    discount: float

    def __call__(self, x: Array, y: Array, batch: Sweep) -> Array:
        rewards, following = batch
        return jnp.square(y - self.features @ x + rewards + self.discount * following @ x).mean(0).sum()


class ValueGap(eqx.Module):
    """`value_error`: mean over states of (φ_sᵀx̄ − V(s))², over that of V²; V is the true value function."""

    features: Array
    value: Array

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        gap = self.features.astype(snapshot.x.dtype) @ snapshot.x - self.value.astype(snapshot.x.dtype)
        return {"value_error": jnp.square(gap).sum() / jnp.square(self.value.astype(gap.dtype)).sum()}


@dataclass(frozen=True, eq=False)
class Bellman:
    """The process, hidden from the nodes.

    `solution` is x* of the data that the nodes hold; `expected` is that of the process itself, the same where the data
    are expectations.
    """

    solution: np.ndarray
    expected: np.ndarray
    value: np.ndarray  # (states,) of the true process, not bound to the features
    features: np.ndarray  # (states, features)
    transition: np.ndarray  # (states, states)
    rewards: np.ndarray  # (nodes, states, states)


def policy_evaluation(
    nodes: int = 10,
    *,
    form: Literal["target", "residual"] = "target",
    states: int = 100,
    features: int = 10,
    successors: int = 5,
    discount: float = 0.9,
    heterogeneity: float | Literal["mild", "severe"] = "severe",
    sweeps: int | Sequence[int] | None = None,
    noise: float = 0.1,
    misfit: float = 0.1,
    regularization: float | None = None,
    seed: int = 0,
) -> Task:
    """Multi-agent policy evaluation: V(s) ≈ φ_sᵀx minimizes the Bellman residual of the nodes' average reward.

    With `form="target"` (SPARKLE) y is the target of the value, and with `form="residual"` (Gossip-DSBO) it is the
    residual:

        target:    f_i = 1/(2|S|) Σ_s (φ_sᵀx − y_s)²           g_i = Σ_s (y_s − E[r^i + γ φ_s'ᵀx | s])²
        residual:  f_i = 1/(2|S|) Σ_s y_s² + λ/2 ‖x‖²          g_i = Σ_s (y_s − φ_sᵀx + E[r^i + γ φ_s'ᵀx | s])²

    A sample of the lower level is a whole sweep, so that the sum over states stays as printed; the upper level is
    deterministic, and its one sample holds the weights 1/|S|. `truth.solution` is x* of these samples. Differs from the
    papers: Gossip-DSBO prints y*(x) only, so its g is the least squares that y* solves; with transitions in place of
    expectations, g gains a variance that depends on x alone and does not change the hypergradient.

    Args:
        nodes: the number of nodes.
        form: `"target"` or `"residual"`.
        states: |S|.
        features: the size of x; features φ_s are standard normal.
        successors: the number of states that can be reached from each state, with random probabilities.
        discount: γ.
        heterogeneity: h in r^i = r + h δ^i, where δ^i averages to zero over nodes; `"mild"` is 0.1, `"severe"` is 1.
        sweeps: None gives every node the expectations given s. A number, or one for each node, gives it that many
            sweeps, in each of which one transition is drawn from every state.
        noise: the standard deviation added to the reward of a transition.
        misfit: the standard deviation of the part of r that no x explains; with 0 the value function is linear in φ.
        regularization: λ; None is 0 for `"target"` and 1 for `"residual"`, as printed.
        seed: of the Markov chain, the rewards and the transitions.

    References:
        Zhu et al., SPARKLE, 2024. Yang, Zhang and Wang, Gossip-DSBO, 2022.
    """
    if form not in ("target", "residual"):
        raise ValueError(f"form={form!r} is not known: choose 'target' or 'residual'.")
    if not 0 <= discount < 1:
        raise ValueError(f"discount={discount} must lie in [0, 1).")
    if not 1 <= successors <= states or not 1 <= features <= states:
        raise ValueError(f"successors={successors} and features={features} must lie between 1 and states={states}.")
    counts = counts_of(1 if sweeps is None else sweeps, nodes, "sweeps")
    damping = float(form == "residual") if regularization is None else regularization
    h = spread_of(heterogeneity)
    rng = np.random.default_rng(seed)
    phi, p = rng.normal(size=(states, features)), _transition(rng, states, successors)
    linear = phi @ rng.normal(size=features)
    shared = linear[:, None] - discount * linear + misfit * rng.normal(size=p.shape)  # (s, s')
    rewards = shared + h * deviations(rng, nodes, p.shape)
    expected = [((p * reward).sum(1)[None], (p @ phi)[None]) for reward in rewards]
    parts = expected
    if sweeps is not None:
        parts = [
            _sample(np.random.default_rng([seed, node]), p, phi, rewards[node], noise, count)
            for node, count in enumerate(counts)
        ]
    truth = Bellman(
        solution=_solve(parts, phi, discount, damping),
        expected=_solve(expected, phi, discount, damping),
        value=np.linalg.solve(np.eye(states) - discount * p, (p * rewards.mean(0)).sum(1)),
        features=phi,
        transition=p,
        rewards=rewards,
    )
    dtype = jnp.result_type(float)
    basis = jnp.asarray(phi, dtype)
    target = form == "target"
    problem = Problem(
        TargetError(basis, damping) if target else ResidualError(damping),
        TargetFit(discount) if target else ResidualFit(basis, discount),
        upper_data=np.full((nodes, 1, states), 1 / states),
        lower_data=parts,
        x0=jnp.zeros(features),
        y0=jnp.zeros(states),
    )
    summary = {
        "form": form,
        "states": states,
        "features": features,
        "successors": successors,
        "discount": discount,
        "misfit": misfit,
        "heterogeneity": h,
        "data": "expectations" if sweeps is None else {"sweeps": counts, "noise": noise},
        "regularization": damping,
        "convention": "a sample of the lower level is one transition from every state; distance is a mean over nodes",
        "seed": seed,
    }
    metrics = distance(truth.solution), ValueGap(basis, jnp.asarray(truth.value, dtype))
    return Task(
        problem,
        metrics,
        "policy-evaluation",
        summary,
        truth=truth,
        step_sizes=STEP_SIZES,
    )


def _transition(rng: np.random.Generator, states: int, successors: int) -> np.ndarray:
    p = np.zeros((states, states))
    for row in p:
        row[rng.choice(states, successors, replace=False)] = rng.dirichlet(np.ones(successors))
    return p


def _sample(
    rng: np.random.Generator, p: np.ndarray, phi: np.ndarray, reward: np.ndarray, noise: float, sweeps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rewards (sweeps, states) and features of the states that followed (sweeps, states, features)."""
    states = len(p)
    following = np.stack([rng.choice(states, sweeps, p=row) for row in p], axis=1)
    rewards = reward[np.arange(states), following] + noise * rng.normal(size=following.shape)
    return rewards, phi[following]


def _solve(
    parts: list[tuple[np.ndarray, np.ndarray]], phi: np.ndarray, discount: float, regularization: float
) -> np.ndarray:
    """Least squares in Ψ x ≈ r̄ with Ψ = φ − γ E φ', means over each node's sweeps and then over nodes."""
    reward = np.mean([rewards.mean(0) for rewards, _ in parts], 0)
    residual = phi - discount * np.mean([following.mean(0) for _, following in parts], 0)
    gram = residual.T @ residual / len(phi) + regularization * np.eye(phi.shape[1])
    return np.linalg.solve(gram, residual.T @ reward / len(phi))
