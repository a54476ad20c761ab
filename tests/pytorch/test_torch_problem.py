"""Problems with losses in PyTorch: solved as their twins in JAX are, on every engine."""

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
from torch import nn

NODES, SAMPLES = 4, 16
METHOD = db.sparkle("ed", alpha=0.5, beta=0.2, gamma=0.2)
RING = db.graphs.ring(NODES)


def data(dtype=torch.float32):
    """Tensors (nodes, samples, ...): inputs, labels, and the number of each sample."""
    torch.manual_seed(0)
    inputs = torch.randn(NODES, SAMPLES, 5, dtype=dtype)
    labels = (inputs[..., 0] + 0.5 * torch.randn(NODES, SAMPLES, dtype=dtype) > 0).long()
    return inputs, labels, torch.arange(NODES * SAMPLES).reshape(NODES, SAMPLES)


def network(dtype=torch.float32, dropout=0.0):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2)).to(dtype)


def upper(x, module, batch):
    inputs, labels, _ = batch
    return F.cross_entropy(module(inputs), labels)


def lower(x, module, batch):
    inputs, labels, e = batch
    ridge = sum(parameter.square().sum() for parameter in module.parameters())
    return (torch.sigmoid(x[e]) * F.cross_entropy(module(inputs), labels, reduction="none")).mean() + 1e-2 * ridge


def problem(module, **changed):
    given = {"upper": upper, "lower": lower, "upper_data": data(), "lower_data": data(), "x0": torch.zeros(64)}
    return db.torch.problem(module, **{**given, **changed})


def twin(module):
    """The same problem, written in JAX."""

    def losses(y, inputs, labels):
        logits = jnp.tanh(inputs @ y["0.weight"].T + y["0.bias"]) @ y["3.weight"].T + y["3.bias"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)[:, 0]

    def below(x, y, batch):
        inputs, labels, e = batch
        ridge = sum(jnp.sum(leaf**2) for leaf in y.values())
        return (jax.nn.sigmoid(x[e]) * losses(y, inputs, labels)).mean() + 1e-2 * ridge

    arrays = tuple(leaf.numpy() for leaf in data())
    y0 = {name: jnp.asarray(leaf.detach().numpy()) for name, leaf in module.named_parameters()}
    above = lambda x, y, batch: losses(y, *batch[:2]).mean()  # noqa: E731
    return db.Problem(above, below, upper_data=arrays, lower_data=arrays, x0=jnp.zeros(64, jnp.float32), y0=y0)


def solve(problem, **options):
    return db.solve(problem, METHOD, RING, **{"steps": 20, "batch_size": 4, "metrics": [], **options})


def far(one, other):
    """The largest difference between entries of two pytrees."""
    return max(jax.tree.leaves(jax.tree.map(lambda a, b: float(abs(np.asarray(a) - np.asarray(b)).max()), one, other)))


@pytest.mark.parametrize("batch_size", [None, 4])
def test_it_is_solved_as_its_twin_in_jax(batch_size):
    module = network()
    ours = solve(problem(module), steps=200, batch_size=batch_size)
    theirs = solve(twin(module), steps=200, batch_size=batch_size)
    assert far(ours.y, theirs.y) < 1e-5 and far(ours.x, theirs.x) < 1e-5
    assert far(ours.y, problem(module).y0) > 0.1 and ours.y["0.weight"].dtype == jnp.float32


def test_costs_are_those_of_its_twin():
    module = network()
    counts = [db.cost(one, METHOD, RING, batch_size=4) for one in (problem(module), twin(module))]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("engine", [db.Cluster(devices=4), db.Simulator(node_chunk=2)], ids=["cluster", "chunks"])
def test_engines_agree(engine):
    module = network()
    module[0].requires_grad_(False)
    assert far(solve(problem(module)).y, solve(problem(module), engine=engine).y) < 1e-6


@pytest.mark.slow
def test_dropout_is_on_while_a_run_trains():
    made = problem(network(dropout=0.5))
    assert made.takes_keys == (True, True)
    result = solve(made, metrics=["upper"])
    assert far(result.y, solve(made).y) == 0
    assert far(result.y, solve(problem(network())).y) > 1e-3  # the same network without dropout
    for engine in (db.Cluster(devices=4), db.Simulator(node_chunk=2)):
        assert far(result.y, solve(made, engine=engine).y) < 1e-6
    inputs, labels, _ = data()
    start = F.cross_entropy(network(dropout=0.5).eval()(inputs.flatten(0, 1)).detach(), labels.flatten())
    np.testing.assert_allclose(result.trace["upper"][0], start, rtol=1e-6)  # metrics are of evaluation mode


def test_only_losses_that_differ_in_training_take_a_key():
    class Louder(nn.Linear):
        def forward(self, inputs):
            return (2 if self.training else 1) * super().forward(inputs)

    class Functional(nn.Linear):
        def forward(self, inputs):
            return F.dropout(super().forward(inputs), 0.1, self.training)

    norm = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    for module, taken in ((network(), False), (norm, False), (Louder(5, 2), True), (Functional(5, 2), True)):
        assert problem(module).takes_keys == (taken, taken)
    assert problem(network(dropout=0.1), lower=lambda x, m, b: x.square().sum() + m[0](b[0]).sum()).takes_keys == (
        True,
        False,
    )


@pytest.mark.parametrize("precision, micro_batch", [("bfloat16", None), (None, 2)])
def test_precision_and_micro_batches(precision, micro_batch):
    module = network()
    module[0].requires_grad_(False)
    other = solve(problem(module), precision=precision, micro_batch=micro_batch)
    assert far(other.y, solve(problem(module)).y) < (1e-2 if precision else 1e-5)
    assert {leaf.dtype for leaf in other.y.values()} == {np.dtype("float32")}


def test_arrays_of_both_levels_are_stored_once():
    shared = data()
    assert problem(network(), upper_data=shared, lower_data=(*shared,)).own_lower_data is None
    assert problem(network()).own_lower_data is not None  # equal, but others
    build = lambda node: tuple(leaf[node] for leaf in shared)  # noqa: E731
    assert problem(network(), upper_data=build, lower_data=build, nodes=NODES).own_lower_data is None


def test_data_in_all_forms_are_the_same():
    module, tensors = network(), data()
    reference = solve(problem(module)).y
    forms = [
        tuple(leaf.numpy() for leaf in tensors),
        [tuple(leaf[i] for leaf in tensors) for i in range(NODES)],
        lambda node: tuple(leaf[node] for leaf in tensors),
    ]
    for form in forms:
        assert far(solve(problem(module, upper_data=form, lower_data=form)).y, reference) == 0


@pytest.mark.slow
def test_x_may_be_a_module():
    weigh = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1), nn.Sigmoid())

    def below(x, module, batch):
        inputs, labels, _ = batch
        losses = F.cross_entropy(module(inputs), labels, reduction="none")[:, None]
        ridge = sum(parameter.square().sum() for parameter in module.parameters())
        return (x(losses.detach()) * losses).mean() + 1e-2 * ridge

    model = db.torch.from_torch(weigh)
    for given in (weigh, model):
        result = solve(problem(network(), lower=below, x0=given))
        assert set(result.x) == {name for name, _ in weigh.named_parameters()}
        assert far(result.x, model.y0) > 1e-4
    model.back(result.x)
    np.testing.assert_array_equal(weigh[0].weight.detach(), result.x["0.weight"])


def test_x_takes_the_dtype_of_the_module():
    for dtype in (torch.float32, torch.float64):
        made = problem(
            network(dtype), x0={"a": np.zeros(64), "b": torch.ones(2)}, lower=lambda x, m, b: lower(x["a"], m, b)
        )
        assert {str(leaf.dtype) for leaf in jax.tree.leaves((made.x0, made.y0))} == {str(dtype).removeprefix("torch.")}
        assert made.upper_data.tree[0].dtype == made.x0["a"].dtype


@pytest.mark.slow
def test_its_derivatives_are_checked_as_any():
    made = problem(nn.Linear(5, 2).double())  # whose lower level is convex
    assert made.check().ok
    assert jax.tree.leaves(made.hypergradient(made.x0))[0].shape == (64,)


def test_the_module_is_used_by_its_parts_and_left_as_it_was():
    module = network()
    before = {name: leaf.clone() for name, leaf in module.state_dict().items()}

    def by_parts(x, module, batch):
        return F.cross_entropy(module[3](torch.tanh(module[0](batch[0]))), batch[1])

    assert far(solve(problem(module, upper=by_parts)).y, solve(problem(module)).y) < 1e-6
    assert all(torch.equal(leaf, before[name]) for name, leaf in module.state_dict().items())
    assert all(part.training for part in module.modules())


def test_batch_norm_is_trained_by_the_batch():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    inputs, labels, _ = tensors = data()
    made = problem(module, upper_data=tensors, lower_data=tensors)
    result = solve(made, steps=100, batch_size=None, metrics=["upper"])
    db.torch.from_torch(module).back(result.y, list(inputs))
    module.eval()
    loss = float(F.cross_entropy(module(inputs.flatten(0, 1)).detach(), labels.flatten()))
    assert result.trace["upper"][-1] < 0.7 * result.trace["upper"][0]
    assert abs(loss - result.trace["upper"][-1]) < 0.05


def test_a_single_level_takes_the_model_itself():
    model = db.torch.from_torch(network(), lambda module, batch: upper(None, module, batch))
    made = db.Problem(model, upper_data=tuple(leaf.numpy() for leaf in data()), x0=model.y0)
    result = db.solve(made, db.ed(alpha=0.3), RING, steps=100, metrics=["upper"])
    assert result.trace["upper"][-1] < 0.7 * result.trace["upper"][0]


def test_what_is_frozen_is_an_argument_of_the_program():
    module = network()
    module[0].requires_grad_(False)
    made = problem(module)
    held = [leaf.shape for leaf in jax.tree.leaves(eqx.filter((made.upper, made.lower), eqx.is_array))]
    assert sorted(held) == sorted([(8, 5), (8,)] * 2)  # and not y0, which the problem holds


def test_sentences_name_the_loss():
    with pytest.raises(ValueError, match=r"^upper must return a real scalar, the mean over its batch, but returned"):
        problem(network(), upper=lambda x, module, batch: module(batch[0]))
    outside = torch.zeros(64)
    with pytest.raises(ValueError, match=r"^lower\(x, y, batch, key=key\) fails on .* \(a loss or the module uses a"):
        problem(network(), lower=lambda x, module, batch: (x * outside).sum() + module(batch[0]).sum())
    with pytest.raises(TypeError, match=r"^upper asks for the number .* if on a tensor: .* torch\.where instead of if"):
        problem(network(), upper=lambda x, module, batch: module(batch[0]).mean() if batch[1].sum() > 0 else x.sum())
