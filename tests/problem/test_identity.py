"""The hash of losses: the same in every process, another after every change of what they compute."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.engines._checkpoint import CheckpointWarning
from decibel.problem._loss_hash import loss_hashes

DATA = np.random.default_rng(0).normal(size=(2, 4, 3))
TABLE = np.arange(50.0)


def problem(upper=None, lower=None, data=DATA):
    return db.Problem(
        upper or (lambda x, y, batch: ((y - batch) ** 2).mean() + (x**2).sum()),
        lower or (lambda x, y, batch: ((y - x - batch) ** 2).mean()),
        upper_data=data, lower_data=data, x0=np.ones(3), y0=np.zeros(3),
    )  # fmt: skip


def own_rule(slope):
    @jax.custom_vjp
    def through(x):
        return jnp.sign(x)

    through.defvjp(lambda x: (through(x), None), lambda _, g: (slope * g,))
    return through


def network(key_share=0.5, steps=2, table=TABLE, slope=1.0, shift=0.25):
    """Much of what prints addresses and names: rules of one's own, loops, conditions, keys, callbacks, constants."""
    through = own_rule(slope)

    @jax.jit
    def inner(y, row):
        return jax.nn.gelu(y * row).sum() + jax.nn.logsumexp(y)

    def loss(x, y, batch, *, key=None):
        total, _ = jax.lax.scan(lambda sum_, row: (sum_ + inner(y, row), None), 0.0, batch, unroll=1)
        total += jax.lax.fori_loop(0, steps, lambda i, v: v * 0.5, total)
        total += jax.lax.cond(total > 0, jnp.sin, jnp.cos, total) + jnp.asarray(table)[2:5] @ through(x)
        total += jax.checkpoint(lambda v: jnp.tanh(v + shift).sum())(x)
        kept = 1.0 if key is None else jax.random.bernoulli(key, key_share, y.shape).astype(y.dtype)
        return total + (kept * y).sum()

    return loss


def hashes(**options):
    return loss_hashes(problem(network(**options)))


SCRIPT = """
    import jax
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    from test_identity import hashes, problem
    from decibel.problem._loss_hash import loss_hashes
    print(hashes().upper, loss_hashes(problem()).lower)
"""


@pytest.mark.slow
def test_two_processes_agree():
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {"PATH": "/usr/bin", "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()
    assert found == [hashes().upper, loss_hashes(problem()).lower]


@pytest.mark.parametrize(
    "change",
    [{"key_share": 0.6}, {"steps": 3}, {"slope": 2.0}, {"shift": np.nextafter(0.25, 1)}, {"table": TABLE + 1e-12}],
    ids=lambda change: next(iter(change)),
)
def test_a_change_is_seen(change):
    assert hashes().changed(hashes(**change)) == ["upper"]


def test_what_is_not_a_change():
    """Another name, another object, other data of the same shapes, more nodes."""

    def renamed(x, y, batch):
        return ((y - batch) ** 2).mean() + (x**2).sum()

    for same in (problem(renamed), problem(data=DATA + 1), problem(data=np.concatenate([DATA, DATA]))):
        assert loss_hashes(same) == loss_hashes(problem())
    assert hashes() == hashes()


def test_a_loss_without_a_derivative_backwards_has_a_hash():
    def loss(x, y, batch, steps=3):
        return jax.lax.while_loop(lambda c: c[0] < steps, lambda c: (c[0] + 1, c[1] * 0.5), (0, y.sum()))[1]

    first, second = (loss_hashes(problem(lower=lambda x, y, b, n=n: loss(x, y, b, n))) for n in (3, 4))
    assert first.changed(second) == ["lower"]


class TestCheckpoints:
    def solve(self, folder, steps, loss=lambda x, batch: ((x - batch) ** 2).mean()):
        made = db.Problem(loss, upper_data=DATA, x0=np.ones(3))
        options = {"steps": steps, "checkpoint": folder, "resume": True, "metrics": []}
        return db.solve(made, db.ed(alpha=0.1), db.graphs.ring(2), **options)

    def test_of_another_loss_are_not_resumed(self, tmp_path):
        self.solve(tmp_path, 4)
        with pytest.raises(ValueError, match=r"the upper loss changed, .*; give the loss that it was saved with"):
            self.solve(tmp_path, 8, lambda x, batch: ((x - batch) ** 2).mean() + 1e-9 * (x**2).sum())
        assert self.solve(tmp_path, 8).step == 8

    def test_of_another_jax_are_resumed_with_a_warning(self, tmp_path, monkeypatch):
        self.solve(tmp_path, 4)
        with monkeypatch.context() as other:
            other.setattr(jax, "__version__", "0.99.0")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.solve(tmp_path, 6)  # which JAX prints alike
            with pytest.warns(CheckpointWarning, match=r"with JAX 0\.99\.0, and this is JAX 0\.99\.1.*make sure"):
                other.setattr(jax, "__version__", "0.99.1")
                self.solve(tmp_path, 8, lambda x, batch: ((x - batch) ** 2).sum())
