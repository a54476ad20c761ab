"""Wave with late messages: the theorems of docs/evidence/proofs.md in plain NumPy, and warnings about step sizes."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from wave_reference import wave

import decibel as db

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
LATE = db.faults.late(1)


def stability_script():
    spec = importlib.util.spec_from_file_location("wave_stability", FIGURES / "wave_stability.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def energy(s, z, ρ):
    """V of Theorem 1, of one node."""
    R = ρ.sum()
    flows = z - ρ * s
    return s**2 + (flows**2 / ρ).sum() + flows.sum() ** 2 / (2 - R)


def surplus(s, z, ρ, received, d):
    """By how much V grows in a step beyond half of the energy that the node receives less that it sends."""
    sent = 2 * ρ * s - z
    new_z = (z + received) / 2
    new_s = s - d + (new_z - ρ * s).sum()
    supplied = ((received**2 - sent**2) / ρ).sum() / 2
    return energy(new_s, new_z, ρ) - energy(s, z, ρ) - supplied


def drawn_node(rng, factor):
    """A node with random links and state, at `factor` times the proven step size."""
    ρ = rng.random(rng.integers(1, 5)) + 0.05
    ρ *= rng.uniform(0.05, 1.32) / ρ.sum()
    s = rng.normal()
    z = rng.normal(size=len(ρ))
    received = rng.normal(size=len(ρ))
    bound = factor * db.theory.wave_step_size(1 - ρ.sum() / 2)
    return s, z, ρ, received, bound


def test_a_node_at_the_proven_step_size_makes_no_energy():
    """For the gradient of any convex, smooth loss: any d with d·s ≥ d²/(αL) is one at the point s."""
    rng = np.random.default_rng(0)
    for _ in range(3_000):
        s, z, ρ, received, bound = drawn_node(rng, 1.0)
        d = bound * rng.random() * s
        assert surplus(s, z, ρ, received, d) < 1e-12


def test_the_bound_is_sharp_for_this_energy():
    """At 2 % more some node makes energy: the form in (Δ, γ, U) of the proof has a negative eigenvalue."""
    for R in (0.2, 0.6, 1.0, 1.3):
        eigenvalues = []
        for factor in (1.0, 1.02):
            d = 1 / (2 - R)
            inverse = 2 / (factor * db.theory.wave_step_size(1 - R / 2))
            form = [
                [(1 - R) + d * R * (2 - R), 1 + d * R, d],
                [1 + d * R, inverse, d],
                [d, d, 1 / R + d],
            ]
            eigenvalues.append(np.linalg.eigvalsh(form)[0])
        assert eigenvalues[0] > -1e-12
        assert eigenvalues[1] < -1e-4


def gain(R, h):
    """The largest gain of a node from the waves that it receives to those that it sends (Theorem 2)."""
    w = np.exp(1j * np.linspace(0, np.pi, 400))
    z = w / (2 * w - 1)
    s = w * R / (w - 1 + h + R)
    return np.abs(z * (2 * s - 1)).max()


def test_a_quadratic_node_has_gain_one_up_to_the_bound_and_more_beyond():
    for R in np.linspace(0.05, 1.3, 26):
        bound = db.theory.wave_step_size(1 - R / 2, quadratic=True)
        assert gain(R, bound) <= 1 + 1e-12
        assert gain(R, bound + 0.01) > 1


@pytest.mark.parametrize("τ", [2, 3, 8])
def test_a_node_with_local_steps_has_gain_one_for_every_curvature_up_to_the_bound(τ):
    """One step of u = 1 − (1 − a)^τ over links of 2 w u/(τ a); beyond the bound some curvature has more."""
    for R in np.linspace(0.05, 1.3, 12):
        bound = db.theory.wave_step_size(1 - R / 2, quadratic=True, local_steps=τ)
        for a in np.linspace(bound / 50, 0.999 * bound, 50):
            u = 1 - (1 - a) ** τ
            assert gain(R * u / (τ * a), u) <= 1 + 1e-12
        if bound < 2:
            u = 1 - (1 - bound - 0.01) ** τ
            ρ = R * u / (τ * (bound + 0.01))
            assert gain(ρ, u) > 1 or u + ρ > 2, "or the node diverges by itself"


def test_beyond_the_bound_two_nodes_diverge_without_delay():
    step = lambda h: lambda i, s: h * (s - i)  # noqa: E731
    for R, factor, stable in ((1.0, 0.98, True), (1.0, 1.02, False), (1.2, 0.98, True), (1.2, 1.02, False)):
        W = np.array([[1 - R / 2, R / 2], [R / 2, 1 - R / 2]])
        h = factor * db.theory.wave_step_size(1 - R / 2, quadratic=True)
        s = wave(step(h), np.array([[0.0], [3.0]]), W, 3_000)
        assert (np.abs(s - 0.5).max() < 1e-6) == stable


@pytest.mark.slow
def test_random_networks_are_stable_with_late_messages_up_to_the_bound():
    script = stability_script()
    unstable = script.measure(cases=25, seed=1)
    assert unstable["αL + 1.5R = 1.99"] == 0
    assert unstable["αL = 2(4 − 3R)/(4 + R), the proven bound"] == 0
    assert unstable["αL + 1.5R = 2.25"] > 4
    assert set(script.measure_periods(cases=25, seed=1).values()) == {0}
    local = script.measure_local_steps(cases=25, seed=1)
    assert all(found["ρ = 2w/τ"] == 0 for found in local.values())
    assert all(found["ρ = 2w"] > 2 for found in local.values())


def test_the_script_sees_that_a_ring_of_thirds_is_unstable():
    """At every step size, with all messages one step late; without delay an odd ring is stable there."""
    script = stability_script()
    links = np.array([(i, j) for i in range(5) for j in sorted({(i - 1) % 5, (i + 1) % 5})])
    ρ = np.full(10, 2 / 3)
    R = np.full(5, 4 / 3)
    radii = [script.radius(script.Case(links, ρ, R, np.full(5, 0.05), np.full(10, delay, int))) for delay in (0, 1)]
    assert radii[0] < 1 + 1e-9
    assert radii[1] > 1.04


def quadratic(nodes, curvature):
    targets = np.arange(float(nodes))[:, None, None]

    def loss(x, batch):
        return 0.5 * curvature * jnp.mean((x - batch) ** 2)

    return db.Problem(loss, upper_data=targets, x0=jnp.zeros(1))


def solve(graph, alpha, faults=LATE, curvature=1.0, **options):
    problem, method = quadratic(graph.nodes, curvature), db.wave(alpha=alpha)
    return db.solve(problem, method, graph, faults=faults, metrics=[], **({"steps": 2} | options))


def test_a_graph_that_is_unstable_with_late_messages_raises():
    thirds = db.graphs.ring(5, weights="metropolis")
    with pytest.raises(ValueError, match=r"late messages where w_ii ≤ 1/3, and ring has 0.3333: use graph.lazy"):
        solve(thirds, 0.1)
    with pytest.raises(ValueError, match="late messages"):
        solve(thirds, 0.1, faults=db.faults.slow(0, 3))


class Apart(db.Simulator):
    """As asynchronous sites say that they are."""

    asynchronous = True


def test_asynchronous_sites_have_late_messages():
    thirds = db.graphs.ring(5, weights="metropolis")
    with pytest.raises(ValueError, match="late messages"):
        solve(thirds, 0.1, faults=None, engine=Apart())
    with pytest.warns(db.DelayWarning, match=r"alpha=0.6 .* use alpha below 0.5"):
        solve(db.graphs.ring(4), 0.6, faults=None, engine=Apart())


@pytest.mark.slow
def test_a_step_size_that_is_too_large_for_late_messages_warns():
    ring = db.graphs.ring(4)  # R = 1, so that α L must be below 1/2
    thirds = db.graphs.ring(5, weights="metropolis")
    with pytest.warns(db.DelayWarning, match=r"alpha=0.6 .* curvature 1: use alpha below 0.5, or graph.lazy"):
        solve(ring, 0.6)
    with pytest.warns(db.DelayWarning, match=r"alpha=0.2 .* curvature 3: use alpha below 0.167"):
        solve(ring, 0.2, curvature=3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(ring, 0.45)
        solve(ring, 0.6, faults=None)
        solve(thirds, 0.1, faults=None)
        solve(thirds.lazy(), 0.1)
        db.solve(quadratic(4, 1.0), db.wave(alpha=0.6, local_steps=2), ring, steps=2, faults=LATE, metrics=[])
    with pytest.raises(ValueError, match=r"local_steps=2 has a proof for quadratic losses only: add quadratic=True."):
        db.theory.wave_step_size(0.5, local_steps=2)


@pytest.mark.slow
def test_the_warning_is_right():
    ring = db.graphs.ring(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", db.DelayWarning)
        warnings.simplefilter("ignore", db.GrowthWarning)
        runs = {alpha: solve(ring, alpha, steps=1_500) for alpha in (0.48, 0.55)}
    distances = {alpha: float(jnp.abs(run.nodes.x - 1.5).max()) for alpha, run in runs.items()}
    assert distances[0.48] < 1e-6
    assert not distances[0.55] < 1.0
