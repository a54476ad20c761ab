"""`problem.check()` in plain words: what it passes, and what it must not let pass."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db

QUADRATIC = random_quadratic(3, p=2, q=2)
NAMES = ("∇_x f", "∇_y f", "∇_y g", "H z = ∇²_yy g z", "J z = ∇²_xy g z")


def problem(lower=None, upper=None, **options):
    right = QUADRATIC.problem()
    return db.Problem(
        upper or right.upper,
        lower or right.lower,
        upper_data=right.upper_data,
        lower_data=right.lower_data,
        x0=jnp.zeros(2),
        y0=jnp.zeros(2),
        **options,
    )


def wrong_texts(report):
    return [finding.text for finding in report.findings if not finding.ok]


def test_a_right_problem_passes():
    report = problem().check()
    assert report.ok and not wrong_texts(report)
    texts = [finding.text for finding in report.findings]
    assert texts[:5] == [f"{name} agrees with finite differences." for name in NAMES]
    assert texts[5].startswith("g looks strongly convex in y: curvature of g in y between")
    assert str(report).count("\n") == 5 and str(report).startswith("ok   ∇_x f agrees")


def test_float32_and_a_single_level_pass():
    report = QUADRATIC.single(dtype=jnp.float32).check()
    assert report.ok and [finding.text for finding in report.findings] == ["∇f agrees with finite differences."]


def test_a_stopped_gradient_in_the_lower_level_is_named():
    """y Bx with x held fixed for differentiation: J is missing, everything else is right."""
    right = problem().lower
    report = problem(lower=lambda x, y, batch: right(jax.lax.stop_gradient(x), y, batch)).check()
    (text,) = wrong_texts(report)
    assert text.startswith("J z = ∇²_xy g z differs from finite differences (0 against") and "stop_gradient" in text
    assert not report.ok and "WARN J z" in str(report)


def test_a_stopped_gradient_in_the_upper_level_is_named():
    right = problem().upper
    report = problem(upper=lambda x, y, batch: right(x, jax.lax.stop_gradient(y), batch)).check()
    (text,) = wrong_texts(report)
    assert text.startswith("∇_y f differs from finite differences")


@pytest.mark.slow
def test_a_custom_derivative_that_is_off_is_named():
    @jax.custom_jvp
    def half_square(x):
        return 0.5 * jnp.sum(x**2)

    @half_square.defjvp
    def slope(primals, tangents):
        return half_square(*primals), 1.01 * jnp.vdot(primals[0], tangents[0])

    right = problem().upper
    report = problem(upper=lambda x, y, batch: right(x, y, batch) + 5 * half_square(x)).check()
    (text,) = wrong_texts(report)
    assert text.startswith("∇_x f differs")


@pytest.mark.slow_except("concave")
@pytest.mark.parametrize("sign", [0.0, -1.0], ids=["linear", "concave"])
def test_a_lower_level_that_is_not_strongly_convex(sign):
    report = problem(lower=lambda x, y, batch: sign * jnp.sum(y**2) + jnp.vdot(x, y) + 0 * jnp.sum(batch["c"])).check()
    *others, text = wrong_texts(report)
    assert len(others) == (sign == 0.0)  # a linear loss is also said not to depend on y as it must
    assert text.startswith("g is not strongly convex in y") and "add a regularizer such as 1e-3 ‖y‖² to lower" in text


def test_a_lower_level_that_is_flat_along_some_directions_is_seen():
    """Random directions all have some curvature here; the penalty form is named with the error to expect."""
    rows = np.random.default_rng(0).normal(size=(3, 30))

    def lower(x, y, batch):
        return 0.5 * jnp.sum((rows @ y - x[0]) ** 2) + 0 * jnp.sum(batch["c"])

    def upper(x, y, batch):
        return 1.5 * jnp.sum(y**2) + jnp.sum(x**2) + 0 * jnp.sum(batch["a"])

    right = problem()
    data = dict(upper_data=right.upper_data, lower_data=right.lower_data)
    (text,) = wrong_texts(db.Problem(upper, lower, **data, x0=jnp.zeros(2), y0=jnp.zeros(30)).check())
    assert "use db.sparkle('ed', hypergradient=db.hypergradient.penalty(λ), ...)" in text
    most = np.linalg.eigvalsh(rows.T @ rows).max()
    assert f"and {most:.3g} at 4 random points" in text and f"off by about {3 / most:.1g}/λ where g is most" in text


def test_unequal_nodes_are_checked_by_one_program():
    """Losses are traced as often as with equal nodes, of which the parts of an exact mean would need many more."""

    def traces(sizes):
        shapes = []

        def lower(x, y, batch):
            shapes.append(batch.shape)
            return jnp.mean((y - batch - x) ** 2)

        data = [np.random.default_rng(size).normal(size=(size, 2)) for size in sizes]
        start = dict(x0=jnp.zeros(2), y0=jnp.zeros(2))
        unequal = db.Problem(lambda x, y, batch: jnp.sum(y**2), lower, upper_data=data, lower_data=data, **start)
        shapes.clear()
        unequal.check()
        return shapes

    assert traces((3, 9, 40)) == traces((40, 40, 40)) and set(traces((3, 9, 40))) == {(40, 2)}


@pytest.mark.slow
def test_one_bad_node_of_a_personal_problem_is_seen():
    """Every node must solve its own lower level, so the average over nodes proves nothing."""
    H = QUADRATIC.H.copy()
    H[1] = -0.1 * np.eye(2)
    bad = QUADRATIC._replace(H=H)
    assert bad.problem().check().ok  # on average it is strongly convex, and shared that is enough
    report = bad.problem(personal=True).check()
    assert [text[:36] for text in wrong_texts(report)] == ["g is not strongly convex in y: curva"]
