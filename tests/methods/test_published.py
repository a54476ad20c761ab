"""D-SVRBGD: what it is without its parts, and what its variance reduction and its normalization are good for."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from method_runs import CURVED, FLAT, GRAPH, NODES, QUADRATIC, close, run

import decibel as db

THREE = dict(alpha=0.05, beta=0.1, gamma=0.12, theta=0.4)


@pytest.mark.slow
def test_dsvrbgd_is_sparkle_with_storm():
    rates = THREE | dict(theta=1.0)
    plain, same = (run(CURVED, method).nodes for method in (db.sparkle("non-gt", **rates), db.dsvrbgd(**rates)))
    for a, b in zip(plain, same, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.slow
def test_storm_in_dsvrbgd_has_less_noise_than_plain_directions():
    """With batches of one sample of a fixed noise, at the same step sizes and the same mean."""
    noisy, steps = scattered(lambda rng, shape: rng.normal(size=shape)), 3000
    rates = dict(alpha=0.03, beta=0.1, gamma=0.1)
    x = QUADRATIC.solution()
    errors = [
        np.abs(run(noisy, method, steps=steps, batch_size=1).nodes.x - x).max()
        for method in (db.dsvrbgd(**rates, theta=0.05), db.sparkle("non-gt", **rates))
    ]
    assert errors[0] < 0.5 * errors[1], errors


def scattered(noise, samples=400):
    """The quadratic whose c and e of every sample are displaced, by noise with mean zero over a node's samples."""
    rng, shape = np.random.default_rng(5), (NODES, samples)
    data = {name: np.repeat(value[:, None], samples, 1) for name, value in QUADRATIC._asdict().items()}
    for name in "ce":
        drawn = noise(rng, (*shape, data[name].shape[-1]))
        data[name] = data[name] + drawn - drawn.mean(1, keepdims=True)
    plain = QUADRATIC.problem()
    below, above = ({name: data[name] for name in names} for names in ("HBc", "MaRe"))
    start = dict(x0=jnp.zeros(3), y0=jnp.zeros(4))
    return db.Problem(plain.upper, plain.lower, upper_data=above, lower_data=below, **start)


@pytest.mark.slow
def test_normalized_dsvrbgd_with_constant_steps_ends_within_their_order():
    """Steps keep their length, so x ends 0.77 α away (measured, for α = 0.01 and 0.005); decreasing, it arrives."""
    x, theta = QUADRATIC.solution(), 1.0
    errors = []
    for scale in (0.5, 0.25):
        rates = dict(alpha=0.02 * scale, beta=0.06 * scale, gamma=0.06 * scale)
        found = run(FLAT, db.normalized_dsvrbgd(**rates, theta=theta), steps=round(1000 / scale)).nodes.x
        errors.append(np.abs(found - x).max() / rates["alpha"])
    assert all(0.3 < error < 1.5 for error in errors), errors
    rates = {name: lambda k, a=a: a / (1 + k / 100) ** 0.75 for name, a in zip(RATES, (0.02, 0.06, 0.06), strict=True)}
    found = run(FLAT, db.normalized_dsvrbgd(**rates, theta=theta), steps=10_000).nodes.x
    close(found, x, 1e-3)


RATES = ("alpha", "beta", "gamma")


@pytest.mark.slow
def test_normalized_dsvrbgd_is_not_thrown_about_by_heavy_tails():
    """Student's t with 1.5 degrees of freedom, which has no variance: one sample throws plain directions far away."""
    noisy, x = scattered(lambda rng, shape: rng.standard_t(1.5, size=shape), 4000), QUADRATIC.solution()
    rates = dict(alpha=0.01, beta=0.03, gamma=0.03)

    def far(snapshot):
        return np.abs(np.asarray(snapshot.nodes.x) - x).max()

    def worst(method):
        options = dict(steps=2000, eval_every=10, metrics=[far], progress=False, batch_size=1)
        return np.max(db.solve(noisy, method, GRAPH, **options).trace["far"][100:])

    plain, normal = worst(db.sparkle("non-gt", **rates)), worst(db.normalized_dsvrbgd(**rates, theta=0.1))
    assert normal < 0.7 and plain > 5 * normal, (plain, normal)
