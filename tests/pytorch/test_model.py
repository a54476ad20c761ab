"""Converted modules: dropout by key, frozen tensors as arguments, BatchNorm and the way back."""

import equinox as eqx
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

import torch.nn.functional as F
import torch_networks as networks
from torch import nn


def rows(kind):
    """One node's inputs and labels, as arrays."""
    return [jnp.asarray(leaf[0, 0].numpy()) for leaf in networks.batches(kind)]


@pytest.mark.parametrize("kind", ["mlp", "encoder", "gpt"])
def test_dropout_follows_the_key(kind):
    model, (inputs, _) = db.torch.from_torch(networks.network(kind)), rows(kind)
    apply = jax.jit(lambda key: model.apply(model.y0, inputs, key=key))
    one, same, other = apply(jax.random.key(0)), apply(jax.random.key(0)), apply(jax.random.key(1))
    np.testing.assert_array_equal(one, same)
    assert abs(one - other).max() > 1e-3
    keys = jax.random.split(jax.random.key(2), 3)  # of three nodes
    nodes = jax.vmap(apply)(keys)
    np.testing.assert_allclose(nodes, jnp.stack([apply(key) for key in keys]), rtol=1e-12)
    assert abs(nodes[0] - nodes[1]).max() > 1e-3


@pytest.mark.parametrize("kind", networks.NETWORKS)
def test_without_a_key_it_is_in_evaluation_mode(kind):
    module, (inputs, _) = networks.network(kind), rows(kind)
    model = db.torch.from_torch(module)
    out = model.apply(model.y0, inputs)
    np.testing.assert_array_equal(out, model.apply(model.y0, torch.from_numpy(np.array(inputs))))
    assert all(part.training for part in module.modules())  # as it was
    expected = module.eval()(torch.from_numpy(np.array(inputs))).detach()
    np.testing.assert_allclose(out, expected, rtol=1e-11, atol=1e-13)


def test_dropout_keeps_the_mean():
    model = db.torch.from_torch(nn.Sequential(nn.Identity(), nn.Dropout(0.3), nn.Linear(1, 1, bias=False)).double())
    y, ones = {"2.weight": jnp.ones((1, 1))}, jnp.ones((20_000, 1))
    out = model.apply(y, ones, key=jax.random.key(0))
    assert set(np.unique(out).round(6)) == {0.0, round(1 / 0.7, 6)} and abs(out.mean() - 1) < 0.02


def test_modules_that_were_in_evaluation_mode_stay_in_it():
    module = networks.network("cnn")
    module.features[1].eval()
    model, (inputs, _) = db.torch.from_torch(module, networks.loss), rows("cnn")
    trained, evaluated = model.apply(model.y0, inputs, key=jax.random.key(0)), model.apply(model.y0, inputs)
    np.testing.assert_array_equal(trained, evaluated)
    assert model.back(model.y0) is module  # nothing is stale


def test_frozen_tensors_are_arguments():
    module = networks.network("cnn")
    module.features[0].requires_grad_(False)
    before = {name: leaf.clone() for name, leaf in module.state_dict().items()}
    model, batch = db.torch.from_torch(module, networks.loss), rows("cnn")
    assert not any(name.startswith("features.0") for name in model.y0)
    assert {"features.0.weight", "features.1.running_mean"} <= set(model.frozen)
    arrays, static = eqx.partition(model, eqx.is_array)
    traced = jax.make_jaxpr(lambda arrays, y: eqx.combine(arrays, static)(y, batch))(arrays, model.y0)
    shapes = [np.shape(const) for const in traced.consts if np.size(const) > 1]
    assert sorted(shapes) == sorted(leaf.shape for leaf in batch)  # the batch alone is compiled in, and on purpose
    other = eqx.tree_at(lambda model: model.frozen["features.0.weight"], model, replace_fn=jnp.zeros_like)
    assert abs(other(model.y0, batch) - model(model.y0, batch)) > 1e-3
    moved = jax.tree.map(lambda leaf: leaf + 1, model.y0)
    model.back(moved, [batch])
    for name, leaf in module.state_dict().items():
        if name.startswith("features.0"):
            assert torch.equal(leaf, before[name])
        elif name in moved:
            np.testing.assert_array_equal(leaf, moved[name])
    np.testing.assert_array_equal(model.frozen["features.1.running_mean"], before["features.1.running_mean"])


def descend(model, batch, steps):
    """Some steps of gradient descent."""
    body = lambda y, _: (jax.tree.map(lambda a, b: a - 0.3 * b, y, jax.grad(model)(y, batch)), None)  # noqa: E731
    return jax.jit(lambda y: jax.lax.scan(body, y, None, steps)[0])(model.y0)


def test_the_way_back_recalibrates_batch_norm():
    torch.manual_seed(0)
    layers = nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)
    module = nn.Sequential(*layers).double()
    inputs = torch.randn(64, 5, dtype=torch.float64) * 3 + 2
    labels = (inputs[:, 0] > 2).long()
    model = db.torch.from_torch(module, lambda module, batch: F.cross_entropy(module(batch[0]), batch[1]))
    batch = tuple(jnp.asarray(leaf.numpy()) for leaf in (inputs, labels))
    y = descend(model, batch, 300)
    reached = float(model(y, batch))
    with pytest.raises(
        ValueError, match=r"^batches is missing: .* give back\(y, batches\) inputs to take them from\.$"
    ):
        model.back(y)
    with pytest.raises(ValueError, match=r"^batches is empty: "):
        model.back(y, [])
    momentum = module[1].momentum
    assert model.back(y, [(inputs, labels)]) is module
    assert module.training and module[1].training and module[1].momentum == momentum
    module.eval()
    loss = float(F.cross_entropy(module(inputs).detach(), labels))
    stale = float(F.cross_entropy(torch.from_numpy(np.array(model.apply(y, inputs))), labels))
    assert reached < 0.05 and abs(loss - reached) < 0.01 and stale > 2 * loss


def test_the_way_back_is_exact():
    module = networks.network("gpt", torch.float32)
    model = db.torch.from_torch(module)
    y = jax.tree.map(lambda leaf: leaf * 1.5, model.y0)
    start = jax.tree.map(np.array, model.y0)
    model.back(y)
    again = db.torch.from_torch(module)
    jax.tree.map(np.testing.assert_array_equal, again.y0, y)
    jax.tree.map(np.testing.assert_array_equal, model.y0, start)  # shares no memory with the module
    with pytest.raises(ValueError, match=r"^y is not shaped like the module: give result\.y"):
        model.back(jax.tree.map(lambda leaf: leaf[None], y))


def test_outputs_may_be_any_pytree():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, a, b):
            return {"sum": self.layer(a + b), "pair": (a, b)}

    model = db.torch.from_torch(Two())
    out = model.apply(model.y0, jnp.ones((1, 2), jnp.float32), jnp.zeros((1, 2), jnp.float32))
    assert jax.tree.map(jnp.shape, out) == {"sum": (1, 2), "pair": ((1, 2), (1, 2))}


def test_sentences():
    with pytest.raises(TypeError, match=r"^module is a function: give a torch.nn.Module\.$"):
        db.torch.from_torch(lambda x: x)
    with pytest.raises(ValueError, match=r"^module has no trainable parameters: call requires_grad_\(\) on "):
        db.torch.from_torch(networks.mlp().requires_grad_(False))
    with pytest.raises(TypeError, match=r"^module's 0.weight is torch.bfloat16: call module.float\(\) first\.$"):
        db.torch.from_torch(networks.mlp().bfloat16())
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"^module's 0.weight is float64, which JAX has not"):
        db.torch.from_torch(networks.network("mlp"))
    with pytest.raises(TypeError, match="the model has no loss"):
        db.torch.from_torch(networks.mlp())({}, None)


def test_tensors_from_outside_are_named():
    outside = torch.ones(4, dtype=torch.float64)
    model = db.torch.from_torch(networks.network("mlp"), lambda module, batch: (module(batch[0]) * outside).mean())
    with pytest.raises(ValueError, match="uses a tensor from outside: make it a buffer of the module"):
        model(model.y0, rows("mlp"))
