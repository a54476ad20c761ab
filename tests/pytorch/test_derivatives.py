"""Gradients and Hessian products of converted modules are those of PyTorch's autograd."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.torch._libraries import libraries

try:
    torch, _ = libraries()
except ImportError as error:
    pytest.skip(str(error), allow_module_level=True)

import torch_networks as networks
from torch_networks import NODES, STEPS


def as_arrays(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf.detach().numpy()), tree)


def gap(ours, theirs):
    """‖ours − theirs‖ / ‖theirs‖ over all parameters."""
    names = sorted(theirs)
    a, b = (np.concatenate([np.ravel(tree[name]).astype(np.float64) for name in names]) for tree in (ours, theirs))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def points(model, dtype):
    """A point and a direction for every node: dictionaries of tensors (nodes, ...)."""
    generator = torch.Generator().manual_seed(2)
    noise = lambda leaf: torch.randn(NODES, *leaf.shape, generator=generator, dtype=dtype)  # noqa: E731
    y = {name: torch.tensor(np.asarray(leaf)) + 0.1 * noise(leaf) for name, leaf in model.y0.items()}
    return y, {name: noise(leaf) for name, leaf in model.y0.items()}


def both(loss):
    """(gradient, Hessian product) of every node and step, as a run computes them."""

    def node(y, v, batch):
        gradient, pullback = jax.vjp(jax.grad(lambda y: loss(y, batch)), y)
        return gradient, pullback(v)[0]

    @jax.jit
    def steps(y, v, batches):
        body = lambda carry, batch: (carry, jax.vmap(node)(y, v, batch))  # noqa: E731
        return jax.lax.scan(body, 0, batches)[1]

    return steps


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("kind", networks.NETWORKS)
def test_derivatives_are_those_of_autograd(kind, dtype, tolerance):
    kept = getattr(torch, dtype)
    module = networks.network(kind, kept)
    if kind != "cnn":
        module.eval()  # no dropout; BatchNorm takes the batch's statistics
    model = db.torch.from_torch(module, networks.loss)
    (y, v), batches = points(model, kept), networks.batches(kind, kept)
    gradients, products = both(model)(as_arrays(y), as_arrays(v), as_arrays(batches))
    worst = 0.0
    for step in range(STEPS):
        for i in range(NODES):
            at = lambda tree, i=i: {name: leaf[i] for name, leaf in tree.items()}  # noqa: E731
            theirs = networks.derivatives(module, at(y), at(v), [leaf[step, i] for leaf in batches])
            for mine, reference in zip((gradients, products), theirs, strict=True):
                ours = {name: leaf[step, i] for name, leaf in mine.items()}
                assert {leaf.dtype for leaf in ours.values()} == {np.dtype(dtype)}
                worst = max(worst, gap(ours, {name: leaf.detach().numpy() for name, leaf in reference.items()}))
    assert worst <= tolerance


def test_tied_weights_are_one_variable():
    module = networks.network("gpt")
    model = db.torch.from_torch(module, networks.loss)
    assert set(model.y0) == {name for name, _ in module.named_parameters()}
    assert "words.weight" in model.y0 and "head.weight" not in model.y0
    batch = as_arrays([leaf[0, 0] for leaf in networks.batches("gpt")])
    moved = {**model.y0, "words.weight": 2 * model.y0["words.weight"]}
    with torch.no_grad():
        module.words.weight.mul_(2)
    assert module.head.weight is module.words.weight
    inputs = torch.from_numpy(np.array(batch[0]))
    np.testing.assert_allclose(model.apply(moved, batch[0]), module.eval()(inputs).detach(), rtol=1e-12)
