"""Step sizes that fall, as the papers print them."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from decibel_studies import find
from decibel_studies.experiments.gossip_hyperparameter import _more
from decibel_studies.experiments.gossip_mdp import CURVATURE, OURS, methods


def test_step_sizes_of_gossip_dsbo_under_the_pl_condition():
    """(6): α = 2/(μ (C₁ + t)), β = γ = C₁/(C₁ + t), of which the step of y is divided by the curvature of g."""
    setup = find("gossip/mdp").setup("full")
    method = methods(setup)[OURS]
    for t in (0, 1, 300):
        k = jnp.int32(t)
        weight = setup.offset / (setup.offset + t)
        assert float(method.alpha(k)) == pytest.approx(2 / (setup.convexity * (setup.offset + t)))
        assert float(method.theta(k)) == pytest.approx(weight) == CURVATURE * float(method.beta(k))


def test_step_sizes_of_gossip_dsbo_for_general_objectives():
    """(5): α = 0.1 √(K/T), β = γ = 10 √(K/T), and no average takes more than all of the newest sample."""
    setup = find("gossip/hyperparameter").setup("full")
    for nodes, horizon in ((20, setup.horizon), (100, 50)):
        root = (nodes / horizon) ** 0.5
        arm = _more(type(setup)(horizon=horizon), "", nodes, lambda: None, 1)
        assert arm.method.alpha == pytest.approx(0.1 * root)
        assert arm.method.beta == arm.method.theta == pytest.approx(min(1.0, 10 * root))
