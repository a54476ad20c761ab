"""Convolutions as products on CPUs: all kinds and their derivatives, and runs that stay as they were."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import decibel as db
from decibel.core import _convolutions as convolutions
from decibel.engines._program import RunConfig
from decibel.engines._run import compile_chunk

ONE, TWO = ("NWC", "WIO", "NWC"), ("NHWC", "HWIO", "NHWC")
CASES = {  # shapes of the input and the kernel of a node, and parameters
    "one axis, stride": ((3, 9, 2), (3, 2, 4), dict(window_strides=(2,), padding=[(1, 0)], dimension_numbers=ONE)),
    "groups and dilation": (
        (2, 8, 7, 4),
        (3, 2, 2, 6),
        dict(
            window_strides=(1, 2),
            padding=[(2, 1), (0, 1)],
            rhs_dilation=(2, 1),
            feature_group_count=2,
            dimension_numbers=TWO,
        ),
    ),
    "same": ((2, 5, 5, 3), (3, 3, 3, 2), dict(window_strides=(1, 1), padding="SAME", dimension_numbers=TWO)),
    "channels first": (
        (2, 3, 5, 6),
        (4, 3, 3, 2),
        dict(window_strides=(2, 2), padding="SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")),
    ),
    "each channel alone": (
        (2, 6, 6, 3),
        (3, 3, 1, 3),
        dict(window_strides=(1, 1), padding="SAME", feature_group_count=3, dimension_numbers=TWO),
    ),
    "groups of the batch": (
        (4, 5, 5, 3),
        (2, 2, 3, 4),
        dict(window_strides=(1, 1), padding="VALID", batch_group_count=2, dimension_numbers=TWO),
    ),
    "gaps in the input": (
        (2, 4, 5, 3),
        (3, 2, 3, 2),
        dict(window_strides=(1, 1), padding=[(2, 1), (1, 1)], lhs_dilation=(2, 3), dimension_numbers=TWO),
    ),
    "gaps and stride": (
        (2, 5, 3),
        (3, 3, 2),
        dict(window_strides=(2,), padding=[(2, -1)], lhs_dilation=(3,), rhs_dilation=(2,), dimension_numbers=ONE),
    ),
    "one result": ((2, 4, 4, 3), (4, 4, 3, 5), dict(window_strides=(1, 1), padding="VALID", dimension_numbers=TWO)),
}


def convolutions_in(program: object) -> int:
    return str(program).count("conv_general_dilated[")


@pytest.mark.slow_except("one axis, stride", "groups and dilation")
@pytest.mark.parametrize("case", CASES)
def test_derivatives_of_two_orders_are_those_of_xla(case):
    of_input, of_kernel, params = CASES[case]
    draw = np.random.default_rng(0)
    x, dx = draw.normal(size=(2, 2, *of_input))
    w, dw = draw.normal(size=(2, 2, *of_kernel))

    def loss(x, w):
        return jnp.sum(jnp.sin(lax.conv_general_dilated(x, w, **params)))

    def derivatives(x, w, dx, dw):
        return jax.jvp(jax.value_and_grad(loss, (0, 1)), (x, w), (dx, dw))

    ours = jax.make_jaxpr(jax.vmap(derivatives))(x, w, dx, dw)
    products = convolutions.products_for_convolutions(ours)
    assert convolutions_in(ours) > 4 and convolutions_in(products) == 0
    right, made = (jax.jit(jax.extend.core.jaxpr_as_fun(program))(x, w, dx, dw) for program in (ours, products))
    for one, other in zip(right, made, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-12)


def test_what_has_no_convolution_or_too_large_a_one_stays_as_it_is():
    plain = jax.make_jaxpr(lambda x: lax.scan(lambda x, _: (jnp.sin(x), None), x, length=3))(1.0)
    assert convolutions.products_for_convolutions(plain) is plain
    wide = jax.make_jaxpr(lambda x, w: jnp.convolve(x, w, "full"))(np.ones(400), np.ones(300))
    assert convolutions_in(wide) == 1 and convolutions.products_for_convolutions(wide) is wide
    whole = jax.make_jaxpr(lambda x, w: lax.conv(x, w, (1, 1), "SAME"))(*np.ones((2, 1, 1, 4, 4), np.int32))
    assert convolutions.products_for_convolutions(whole) is whole


def network(batch):
    """A problem with a convolution inside a jitted function, a branch and a checkpoint."""

    @jax.jit
    def layer(x, w):
        return jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=TWO))

    def fit(x, images):
        return jnp.mean((jax.checkpoint(layer)(images, x["w"]).mean((1, 2)) @ x["v"] - 1) ** 2)

    def loss(x, images):
        return lax.cond(jnp.sum(x["v"]) < 9, fit, lambda *_: jnp.zeros(()), x, images) + jnp.sum(x["w"] ** 2)

    draw = np.random.default_rng(0)
    start = {"w": draw.normal(size=(3, 3, 1, 4)), "v": draw.normal(size=4)}
    return db.Problem(loss, upper_data=draw.normal(size=(3, batch, 5, 5, 1)), x0=start)


def test_a_run_has_the_numbers_and_the_costs_that_it_had(monkeypatch):
    problem, graph, method = network(4), db.graphs.ring(3), db.ed(alpha=0.1)

    def run():
        compile_chunk.cache_clear()
        run = db.Simulator().start(problem, method, db.Levels(x=graph), RunConfig(2))
        costs = run.advance(3)
        return run.state, costs, run.compile(3).chunk.as_text()

    state, costs, text = run()
    monkeypatch.setattr(convolutions, "products_for_convolutions", lambda program: program)
    state_before, costs_before, text_before = run()
    assert " convolution(" in text_before and " convolution(" not in text
    assert costs == costs_before and text.count("may-alias") == text_before.count("may-alias") > 0
    for leaf, before in zip(jax.tree.leaves(state), jax.tree.leaves(state_before), strict=True):
        np.testing.assert_allclose(leaf, before, rtol=1e-10, atol=1e-12)
