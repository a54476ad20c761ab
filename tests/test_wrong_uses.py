"""What a new user does wrong, and what is said then: one sentence that names the argument and the fix."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from quadratics import random_quadratic
from typer.testing import CliRunner

import decibel as db
from decibel.cli._app import app
from decibel.problem._mistakes import suspected_mistakes
from decibel.problem._problem import _mention_float32

QUADRATIC = random_quadratic(6)
PROBLEM, SINGLE = QUADRATIC.problem(), QUADRATIC.single()
RING = db.graphs.ring(6)
RATES = dict(alpha=0.1, beta=0.1, gamma=0.1)
ED = db.sparkle("ed", **RATES)
DATA = np.ones((6, 4, 3))


def solve(problem=PROBLEM, method=ED, graph=RING, **options):
    return db.solve(problem, method, graph, **{"steps": 1, "progress": False, "metrics": [], **options})


def problem(**changes):
    given = dict(
        upper=lambda x, y, batch: jnp.sum((y - batch) ** 2),
        lower=lambda x, y, batch: jnp.sum((y - x - batch) ** 2),
        upper_data=DATA, lower_data=DATA, x0=jnp.zeros(3), y0=jnp.zeros(3),
    )  # fmt: skip
    return db.Problem(**given | changes)


def tune(**options):
    return db.tune(PROBLEM, ED, RING, **options)


def odd(snapshot):
    return snapshot.x


PYTHON = {
    # the problem
    "problem must be a db.Problem, not Task: give its .problem.": lambda: solve(db.tasks.linear_regression(6)),
    "problem must be a db.Problem, not NoneType": lambda: solve(None),
    "problem must be a db.Problem, not function": lambda: solve(odd),
    "upper is a str: give a function": lambda: problem(upper="loss"),
    "upper is a ndarray: give a function": lambda: problem(upper=DATA, upper_data=odd),
    "upper is called as upper(x, y, batch): give it these": lambda: problem(upper=lambda x, batch: jnp.sum(x)),
    "upper is called as upper(x, batch): give it these": (
        lambda: db.Problem(lambda x, y, batch: jnp.sum(x), upper_data=DATA, x0=jnp.zeros(3))
    ),
    "upper(x, y, batch) fails on a batch of one sample": lambda: problem(upper=lambda x, y, batch: jnp.sum(y @ batch)),
    "lower(x, y, batch) fails on a batch of one sample": lambda: problem(
        upper=lambda x, y, batch: jnp.sum(y), y0=jnp.zeros(4)
    ),
    "upper branches on a traced value: write jnp.where instead of if": (
        lambda: problem(upper=lambda x, y, batch: 1.0 if y[0] > 0 else 2.0)
    ),
    "x0 holds a str: give floating-point arrays": lambda: problem(x0="zeros"),
    "x0 has a leaf of type int": lambda: problem(x0=np.zeros(3, int)),
    "x0 has a leaf of type complex": lambda: problem(x0=jnp.zeros(3, complex)),
    "upper_data holds no arrays": lambda: problem(upper_data=None),
    "upper_data holds <U1 instead of numbers: encode words": lambda: problem(upper_data=np.array([[["a"]]] * 6)),
    "upper_data[0] holds no arrays: give every node": lambda: solve(
        problem(upper_data=lambda node: None, lower_data=lambda node: DATA[node])
    ),
    "nodes='6' must be a positive integer": lambda: problem(nodes="6"),
    "x is not shaped like x0": lambda: PROBLEM.hypergradient(jnp.zeros(9)),
    "x is not shaped like x0: give a pytree": lambda: PROBLEM.solve_lower([0.0, 0.0, 0.0]),
    "solve_lower needs a lower level": lambda: SINGLE.solve_lower(jnp.zeros(3)),
    # the method
    "method must be a db.Method such as db.sparkle('ed', ...), not function": lambda: solve(method=db.sparkle),
    "such as db.sparkle('ed', ...), not Entry": lambda: solve(method=db.CATALOG["ed"]),
    "alpha='0.1' must be a number, or a function of the step": lambda: db.ed(alpha="0.1"),
    "alpha=-0.1 must be finite and not negative": lambda: db.sparkle("ed", **RATES | {"alpha": -0.1}),
    "beta=nan must be finite and not negative": lambda: db.sparkle("ed", **RATES | {"beta": float("nan")}),
    "gamma is missing: give a step size such as 0.05, or use the strategy 'ada-ed'.": (
        lambda: db.sparkle("ed", **RATES | {"gamma": None})
    ),
    "strategy None is not known: choose from": lambda: db.sparkle(None, **RATES),
    "method 'foo' is not known: choose from ": lambda: db.CATALOG["foo"],
    "method 'd-sobba' is not known: did you mean 'd-soba'?": lambda: db.CATALOG["d-sobba"],
    "theta=1.5 must be a number from 0 to 1": lambda: db.sparkle("ed", **RATES, theta=1.5),
    "theta=np.float32(1.5) must be a number from 0 to 1": lambda: db.ed(alpha=0.1, theta=np.float32(1.5)),
    "theta=-0.5 must be a number from 0 to 1": lambda: db.dsoba(theta=-0.5, **RATES),
    "relax=2.0 must be a number from 0 to 1": lambda: db.mdbo(alpha=0.1, beta=0.1, theta=0.5, relax=2.0),
    "relax=1.5 must be a number from 0 to 1: it is η, the part of a step that is taken": lambda: db.vrdbo(
        alpha=0.1, beta=0.1, theta=0.5, relax=1.5
    ),
    "tau=1.01 must be a number from 0 to 1: it is τ, the part of a step that x takes, in LoPA's x⁺ = x + τ": (
        lambda: db.lopa(tau=1.01, **RATES)
    ),
    "method 'lopa-gt' has no setting 'tracking': choose from": lambda: db.CATALOG["lopa-gt"](tracking=False),
    "theta=3 must be a number from 0 to 1: it is the newest sample's weight.": (
        lambda: db.mdbo(alpha=0.1, beta=0.1, theta=3)
    ),
    "theta=nan must be a number from 0 to 1": lambda: db.vrdbo(alpha=0.1, beta=0.1, theta=float("nan")),
    "theta=2.0 must be a number from 0 to 1": lambda: db.tune(
        PROBLEM, db.sparkle("ed", **RATES, theta=0.5), RING, search={"theta": [0.5, 2.0]}
    ),
    "method 'ed' has no setting 'gamma': choose from alpha, theta, local_steps.": lambda: db.CATALOG["ed"](gamma=1.0),
    "decibel has no 'sparkel': did you mean 'sparkle'?": lambda: db.sparkel,
    "strategy 'ed (top 0.1)' sends encoded messages, whose size depends on the problem: measure it with db.cost": (
        lambda: db.sparkle(db.privacy.top_k("ed", share=0.1), **RATES).sends
    ),
    # graphs
    "graph must be a Graph or Levels, not str: see db.graphs.ring(nodes).": lambda: solve(graph="ring"),
    "graph must be a Graph or Levels, not int": lambda: solve(graph=6),
    "graph is a networkx graph: give db.graphs.from_networkx(graph).": lambda: solve(graph=nx.cycle_graph(6)),
    "graph is missing: give one such as db.graphs.ring(6).": lambda: solve(graph=None),
    "nodes must be an integer of at least 1, not 5.5.": lambda: db.graphs.ring(5.5),
    "probability must be above 0 and at most 1, not 'half'.": lambda: db.graphs.erdos_renyi(5, "half"),
    "radius must be a positive number, not 'near'.": lambda: db.graphs.geometric(5, "near"),
    "nodes of a hypercube must be a power of two, not 6; use 4 or 8.": lambda: db.graphs.hypercube(6),
    "W has shape ('rows of unequal length',); give a square matrix": lambda: db.graphs.from_matrix([[1, 2], [3]]),
    "W has shape (2, 3); give a square matrix": lambda: db.graphs.from_matrix(np.ones((2, 3))),
    "W is not doubly stochastic: row 0 sums to 2": (
        lambda: db.graphs.from_matrix(nx.to_numpy_array(nx.cycle_graph(4)))
    ),
    "The graph 'networkx' is not connected": lambda: db.graphs.from_networkx(nx.Graph([(0, 1), (2, 3)])),
    "weights='lazy-metropolis' needs an undirected graph": lambda: db.graphs.from_networkx(nx.DiGraph([(0, 1)])),
    "Levels(x=...) is a int; give a Graph.": lambda: db.Levels(x=6),
    # solve
    "steps='10' must be a positive integer": lambda: solve(steps="10"),
    "seed=0.5 must be an integer": lambda: solve(seed=0.5),
    "seed=-1 must be an integer": lambda: solve(seed=-1),
    "seed='a' must be an integer": lambda: solve(seed="a"),
    "metrics='upper' is a single metric: give a list": lambda: solve(metrics="upper"),
    "metric 'odd' returned an array of shape (3,): return a number": lambda: solve(metrics=[odd]),
    "callbacks is a single callback: give a list": lambda: solve(callbacks=print),
    "callbacks holds a int: give functions of (step, row), or db.loggers.": lambda: solve(callbacks=[3]),
    "engine is str: give db.Simulator(), db.Cluster() or db.Silo(...).": lambda: solve(engine="cluster"),
    "engine is the class Cluster: give db.Simulator()": lambda: solve(engine=db.Cluster),
    "devices=99, but JAX sees 8: choose from 1 to 8.": lambda: solve(engine=db.Cluster(devices=99)),
    "checkpoint_every=0 must be a positive integer": lambda: solve(checkpoint_every=0),
    "cannot be a folder (File exists): give one that you may write to": lambda: solve(checkpoint=__file__),
    "cannot be written (": lambda: solve(callbacks=[db.loggers.JSONL(Path(__file__).parent)]),
    "resume=True needs checkpoint": lambda: solve(resume=True),
    "faults holds a str: give faults such as db.faults.drop(0.2).": lambda: solve(faults="drop"),
    "sampling='shuffle' is not known: choose from 'random', 'shuffle-once'.": lambda: solve(sampling="shuffle"),
    "precision='fp16' is not known": lambda: solve(precision="fp16"),
    # results
    "the trace has no column 'steps': did you mean 'step'?": lambda: solve().trace["steps"],
    "there is nothing to plot: solve with metrics": lambda: solve().plot(),
    "is not a trace saved by Decibel, or it is damaged: give": lambda: db.Trace.load(__file__),
    "is not a file: give the path of a trace": lambda: db.Trace.load("nowhere.npz"),
    # tuning, theory and tasks
    "budget=0 must be a positive integer": lambda: tune(budget=0),
    "moments=0 must be a positive integer": lambda: tune(moments=0),
    "seeds=3 must list the seeds": lambda: tune(seeds=3),
    "seeds=() must list the seeds": lambda: tune(seeds=()),
    "search is empty: give settings to try": lambda: tune(search=[]),
    "search='bayes' is not known: choose": lambda: tune(search="bayes"),
    "bytes_per_step needs dimension=(p, q)": lambda: db.theory.advise(8, bytes_per_step=1),
    "name='mnits' is not a dataset: did you mean 'mnist'?": lambda: db.tasks.label_cleaning("mnits"),
    "corruption=2.0 must lie in [0, 1].": lambda: db.tasks.label_cleaning(corruption=2.0),
    "nodes=5000 with at least 2 samples each need more than 1438: ask": lambda: db.tasks.label_cleaning(nodes=5000),
}  # fmt: skip


class Mistake(NamedTuple):
    """What is done wrong, what is said, and the words of it that a reader acts on."""

    do: Callable[[], object]
    said: str
    fix: str


class Tensor:
    """As PyTorch has it, as far as NumPy can tell."""

    __module__ = "torch"
    dtype, shape = "torch.float32", (3,)

    def __array__(self, *_, **__):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


class DataLoader:
    def __iter__(self):
        return iter([DATA[0]])


class Dataset:
    """One sample for one index."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return DATA[0, range(4)[i]]


class HuggingFace(Dataset):
    __module__ = "datasets.arrow_dataset"


def loss_of_y(value):
    """A problem whose upper loss is a function of y."""
    return lambda: problem(upper=lambda x, y, batch: value(y))


def other_names():
    return problem(upper=lambda lam, w, batch: jnp.sum(w), lower=lambda w, lam, batch: jnp.sum((w - lam) ** 2))


def other_shapes():
    def lower(w, lam, batch):
        return jnp.sum((w @ jnp.ones((5, 3)) - lam - batch) ** 2)

    return problem(upper=lambda x, y, batch: jnp.sum(y), lower=lower, y0=jnp.zeros(5))


def directed():
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)])
    W = nx.to_numpy_array(graph) + np.eye(4)
    return db.graphs.from_matrix(W / W.sum(1, keepdims=True))


TWO_LEVELS = "the problem has a shared lower level"
MISTAKES = {
    # the losses
    "swap the arguments of lower": Mistake(
        lambda: problem(lower=lambda y, x, batch: jnp.sum((y - x) ** 2)),
        "lower is written as lower(y, x, batch)",
        "called as lower(x, y, batch)",
    ),
    "swap the arguments of lower, by other names": Mistake(
        other_names, "upper takes (lam, w, ...) and lower (w, lam, ...)", "in the order x, y, batch"
    ),
    "swap the arguments of lower, with other shapes": Mistake(
        other_shapes, "lower runs only with x and y exchanged", "write x before y"
    ),
    "take the batch first": Mistake(
        lambda: problem(upper=lambda batch, x, y: jnp.sum(y)),
        "upper is written as upper(batch, x, y)",
        "called as upper(x, y, batch)",
    ),
    "call float()": Mistake(
        loss_of_y(lambda y: float(y.sum())), "upper asks for the number in a traced array", "leave the conversion out"
    ),
    "call .item()": Mistake(
        loss_of_y(lambda y: y.sum().item()),
        "upper asks for the number in a traced array, by float(), int(), .item()",
        "leave the conversion out",
    ),
    "call math.sqrt": Mistake(loss_of_y(lambda y: math.sqrt(y.sum())), "or a function of math", "use jax.numpy"),
    "call np.exp": Mistake(
        loss_of_y(lambda y: np.exp(y).sum()),
        "upper calls a function of NumPy on a traced array",
        "jnp.exp instead of np.exp",
    ),
    "select by a mask": Mistake(
        loss_of_y(lambda y: y[y > 0].sum()), "upper selects entries by a mask", "write jnp.where(mask, values, 0.0)"
    ),
    "index a list": Mistake(
        loss_of_y(lambda y: [1.0, 2.0, 3.0][jnp.argmax(y)]),
        "upper uses a traced value as a Python integer",
        "index an array of jax.numpy",
    ),
    "call max": Mistake(
        loss_of_y(lambda y: max(y.sum(), 0.0)), "upper branches on a traced value", "jnp.maximum instead of max"
    ),
    "forget return": Mistake(loss_of_y(lambda y: None), "upper returns nothing", "end it with `return`"),
    "return a dict": Mistake(loss_of_y(lambda y: {"loss": y.sum()}), "upper returns a dict", "return a scalar"),
    "return a list": Mistake(loss_of_y(lambda y: [y.sum()]), "upper returns a list", "return a scalar"),
    "return an integer": Mistake(
        loss_of_y(lambda y: (y > 0).sum()), "upper returns int", "return a real floating-point scalar"
    ),
    "return a complex number": Mistake(
        loss_of_y(lambda y: jnp.fft.fft(y).sum()), "upper returns complex", "return a real floating-point scalar"
    ),
    # the start and the data
    "start from a tensor": Mistake(
        lambda: problem(x0=Tensor()), "x0 holds a tensor of PyTorch", "tensor.detach().numpy()"
    ),
    "start from a state_dict": Mistake(
        lambda: problem(y0={"weight": Tensor()}), "y0 holds a tensor of PyTorch", "make the problem by db.torch.problem"
    ),
    "give tensors with gradients": Mistake(
        lambda: problem(upper_data={"a": Tensor()}),
        "upper_data holds tensors of PyTorch that NumPy cannot read",
        "tensor.detach().cpu().numpy()",
    ),
    "give one DataLoader": Mistake(
        lambda: problem(upper_data=DataLoader()),
        "upper_data is a DataLoader",
        "[db.sources.iterator(loader) for loader in loaders]",
    ),
    "give DataLoaders": Mistake(
        lambda: problem(upper_data=[DataLoader()] * 6), "upper_data holds a DataLoader", "db.sources.iterator(loader)"
    ),
    "give one Dataset": Mistake(
        lambda: problem(upper_data=Dataset()), "upper_data is one Dataset", "[db.sources.items(part) for part in parts]"
    ),
    "give Datasets": Mistake(
        lambda: problem(upper_data=[Dataset()] * 6),
        "upper_data[0] is a Dataset that does not take an array of indices",
        "wrap it in db.sources.items(...)",
    ),
    "give Hugging Face data sets": Mistake(
        lambda: problem(lower_data=[HuggingFace()] * 6),
        "lower_data[0] is a HuggingFace that",
        "wrap it in db.sources.hugging_face(...)",
    ),
    "give a generator": Mistake(
        lambda: problem(upper_data=(part for part in DATA)),
        "upper_data is a generator",
        "give a list with one pytree per node",
    ),
    "give a path": Mistake(
        lambda: problem(upper_data=Path("train.npy")), "upper_data is the name of a file", "np.load(upper_data)"
    ),
    "give lists of lists": Mistake(
        lambda: problem(upper_data=DATA.tolist()), "upper_data[0] holds single numbers", "np.array(upper_data[0])"
    ),
    # the method and the graph
    "ed with two levels": Mistake(
        lambda: solve(method=db.ed(alpha=0.1)), f"ed is for a single level, and {TWO_LEVELS}", "db.sparkle('ed', ...)"
    ),
    "a step size by position": Mistake(lambda: db.ed(0.1), "ed takes nothing by position", "ed(alpha=...)"),
    "no step size": Mistake(lambda: db.ed(), "ed lacks alpha", "ed(alpha=...)"),
    "an attribute of the catalogue": Mistake(
        lambda: db.CATALOG.sparkle_ed, "db.CATALOG has no attribute 'sparkle_ed'", "db.CATALOG['sparkle-ed']"
    ),
    "a directed graph": Mistake(
        directed, "W is not doubly stochastic: column 2 sums to", "from_networkx(graph.to_undirected())"
    ),
    "a graph for a matrix": Mistake(
        lambda: db.graphs.from_matrix(nx.cycle_graph(4)), "W is a networkx graph", "from_networkx(graph)"
    ),
    "a matrix for a graph": Mistake(lambda: solve(graph=np.eye(6)), "graph is a matrix", "db.graphs.from_matrix(W)"),
    "a family for a graph": Mistake(
        lambda: solve(graph=db.graphs.ring), "graph is a function", "call it with the number of nodes"
    ),
    "far too few edges": Mistake(
        lambda: db.graphs.erdos_renyi(100_000, 8 / 100_000),
        "gives no connected graph of 100000 nodes with any seed",
        "raise it above log(nodes)/nodes = 0.00012",
    ),
    "too small a radius": Mistake(
        lambda: db.graphs.geometric(3000, 0.01),
        "gives no connected graph of 3000 nodes with any seed",
        "raise it above",
    ),
    # the run
    "a metric of two arguments": Mistake(
        lambda: solve(metrics=[lambda x, y: 0.0]),
        "metric '<lambda>' is called as <lambda>(snapshot)",
        "give it one argument",
    ),
    "a callback of one argument": Mistake(
        lambda: solve(callbacks=[odd]),
        "callbacks holds odd, which is called as odd(step, row)",
        "give it these two arguments",
    ),
    "a callback's class": Mistake(
        lambda: solve(callbacks=[db.EarlyStopping]), "callbacks holds the class EarlyStopping", "EarlyStopping(...)"
    ),
    "checkpoint=True": Mistake(
        lambda: solve(checkpoint=True), "checkpoint=True must be a folder", "checkpoint='runs/first'"
    ),
    "resume from a name": Mistake(lambda: solve(resume="runs"), "resume='runs' must be True or False", "as checkpoint"),
    "a number of faults": Mistake(lambda: solve(faults=0.2), "faults is a float", "db.faults.drop(0.2)"),
    "a fault that is not called": Mistake(
        lambda: solve(faults=db.faults.drop), "faults is a function that is not called", "db.faults.drop(0.2)"
    ),
    "no steps": Mistake(lambda: db.solve(PROBLEM, ED, RING), "solve lacks steps", "solve(steps=...)"),
    "search=None": Mistake(lambda: tune(search=None), "search=None is not known", "give 'random', 'grid', a mapping"),
    "search by one number": Mistake(
        lambda: tune(search={"alpha": 0.1}),
        "search has alpha=0.1, which must be a list",
        "give the values to try, [0.1]",
    ),
    "a column as an attribute": Mistake(
        lambda: db.Trace({"upper": [1.0]}).upper, "the trace has no attribute 'upper'", "write trace['upper']"
    ),
    "folders of text that are not there": Mistake(
        lambda: db.tasks.language_model({"docs": "txt/docs", "code": "txt/code"}),
        "domains['docs']='txt/docs' holds no files",
        "give a file, a folder or documents",
    ),
    **{
        f"misspell a name of db.{module}": Mistake(
            partial(getattr, getattr(db, module), wrong), f"db.{module} has no {wrong!r}", f"did you mean {right!r}?"
        )
        for module, wrong, right in [
            ("graphs", "rings", "ring"),
            ("prox", "nonegative", "nonnegative"),
            ("faults", "dorp", "drop"),
            ("metrics", "uper", "upper"),
            ("loggers", "tensorboard", "TensorBoard"),
            ("privacy", "recrods", "records"),
            ("theory", "advize", "advise"),
            ("tasks", "linear_regresion", "linear_regression"),
            ("hypergradient", "neuman", "neumann"),
            ("sources", "array", "arrays"),
        ]
    },
}


def assert_sentence(text):
    assert "\n" not in text and text.endswith((".", "?")) and len(text) <= 200, text
    assert not re.search(r"Tracer|NoneType. object|\[Errno", text), text


@pytest.mark.parametrize("sentence", PYTHON)
def test_said_in_python(sentence):
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError, OSError)) as refusal:
        PYTHON[sentence]()
    text = str(refusal.value.args[0])
    assert sentence in text
    assert_sentence(text)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_and_its_fix(mistake):
    do, said, fix = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError, AttributeError)) as refusal:
        do()
    text = str(refusal.value.args[0])
    assert said in text
    assert fix in text.partition(said)[2]
    assert_sentence(text)


COUPLED, FITTED = "lower does not couple x and y", "lower is linear in y"
SILENT = {
    "lower ignores x": (dict(lower=lambda x, y, batch: jnp.sum((y - batch) ** 2)), COUPLED),
    "lower stops the gradient in x": (
        dict(lower=lambda x, y, batch: jnp.sum((y - jax.lax.stop_gradient(x) - batch) ** 2)),
        COUPLED,
    ),
    "lower has x times nothing": (dict(lower=lambda x, y, batch: jnp.sum((y - 0.0 * x - batch) ** 2)), COUPLED),
    "lower has x times next to nothing": (
        dict(lower=lambda x, y, batch: jnp.sum((y - 1e-13 * x - batch) ** 2)),
        COUPLED,
    ),
    "lower is linear in y": (dict(lower=lambda x, y, batch: jnp.sum(y * (x - batch))), FITTED),
    "lower has kinks only": (dict(lower=lambda x, y, batch: jnp.sum(jnp.abs(y - x - batch))), FITTED),
    "lower is regularized by nothing": (
        dict(lower=lambda x, y, batch: jnp.sum(y * (x - batch)) + 0.0 * jnp.sum(y**2)),
        FITTED,
    ),
    "lower ignores y": (dict(lower=lambda x, y, batch: jnp.sum((x - batch) ** 2)), FITTED),
    "lower sees features that are zero": (
        dict(lower=lambda x, y, batch: jnp.sum((batch * y - 1) ** 2) + jnp.vdot(x, y), lower_data=0 * DATA),
        FITTED,
    ),
    "upper ignores y": (dict(upper=lambda x, y, batch: jnp.sum((x - batch) ** 2)), "upper does not depend on y"),
}


@pytest.mark.parametrize("mistake", SILENT)
def test_a_run_warns_of_what_would_be_silent(mistake):
    changes, said = SILENT[mistake]
    with pytest.warns(db.ProblemWarning, match=said) as seen:
        solve(problem(**{"lower_data": DATA + 1} | changes))
    assert_sentence(str(seen[0].message))


@pytest.mark.parametrize("mistake", ["lower ignores x", "lower is regularized by nothing", "upper ignores y"])
def test_a_check_says_it_too(mistake):
    changes, said = SILENT[mistake]
    report = problem(**{"lower_data": DATA + 1} | changes).check()
    assert not report.ok and said in str(report)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_a_problem_of_another_scale_is_genuine(size):
    def upper(x, y, batch):
        return size * jnp.sum((y - batch) ** 2)

    def lower(x, y, batch):
        return size * jnp.sum((y - 1e-6 * x - batch) ** 2 + jnp.exp(x) * y**2)

    rows = np.random.default_rng(0).normal(size=(6, 8, 3))
    assert suspected_mistakes(problem(upper=upper, lower=lower, upper_data=rows, lower_data=rows + 1)) == []
    assert problem(upper=upper, lower=lower, upper_data=rows, lower_data=rows + 1).check().ok
    starts = dict(x0=np.full(3, 1e-6), y0=np.full(3, 1e6))
    assert suspected_mistakes(problem(lower=lambda x, y, batch: jnp.sum((y - 1e12 * x - batch) ** 2), **starts)) == []


def test_a_start_that_becomes_float32_is_mentioned_once():
    _mention_float32.cache_clear()
    with jax.enable_x64(False), pytest.warns(UserWarning, match="x0 or y0 is float64 and becomes float32") as seen:
        for _ in range(2):
            assert problem(x0=np.zeros(3), y0=np.zeros(3)).dtype == np.float32
    assert len(seen) == 1 and seen[0].filename == __file__
    problem(x0=np.zeros(3), y0=np.zeros(3))  # which stays


def test_validation_data_that_are_trained_on_are_mentioned():
    rows = np.random.default_rng(0).normal(size=(6, 8, 3))
    with pytest.warns(db.ProblemWarning, match="48 of 48 rows of upper_data"):
        solve(problem(upper_data=rows, lower_data=np.concatenate([rows, rows + 1], 1)))
    assert not suspected_mistakes(problem(upper_data=rows, lower_data=rows))  # the same array for both levels is meant
    assert not suspected_mistakes(problem(upper_data=rows, lower_data=rows + 1))


RUN = ("run", "linear_regression")
COMMANDS = {
    "task 'linear_regresion' is not known: did you mean 'linear_regression'?": ("run", "linear_regresion"),
    "method 'sparkl-ed' is not known: did you mean 'sparkle-ed'?": (*RUN, "--method", "sparkl-ed"),
    "graph 'rings' is not known: did you mean 'ring'?": (*RUN, "--graph", "rings"),
    "graph 'erdos_renyi:half' needs a number after the colon: write erdos_renyi:0.5.": (
        *RUN, "--graph", "erdos_renyi:half",
    ),
    "graph 'ring:3' takes no parameter: write ring.": (*RUN, "--graph", "ring:3"),
    "nodes of a hypercube must be a power of two": (*RUN, "--graph", "hypercube", "--nodes", "6"),
    "--set 'alpha' must read KEY=VALUE": (*RUN, "--set", "alpha"),
    "--set 'alpha=null' has the value null: leave it out.": (*RUN, "--set", "alpha=null"),
    "method 'sparkle-ada-ed' has no setting 'alhpa': did you mean 'alpha'?": (*RUN, "--set", "alhpa=1"),
    "alpha='fast' must be a number": (*RUN, "--set", "alpha=fast"),
    "task 'linear_regression' has no setting 'nosie': did you mean 'noise'?": (*RUN, "--set", "task.nosie=1"),
    "method 'ed' is for a single level, and linear-regression has a shared lower level": (*RUN, "--method", "ed"),
    "method 'sparkle-ed' is for a shared lower level, and meta-learning has a personal lower level": (
        "run", "meta_learning", "--method", "sparkle-ed",
    ),
    "TASK is missing: name one of `decibel list`": ("run",),
    "--log 'tensorbord' is not known: did you mean 'tensorboard'?": (*RUN, "--log", "tensorbord"),
    "--config nowhere.toml is not a file": ("run", "--config", "nowhere.toml"),
    "--config broken.toml is not TOML": ("run", "--config", "broken.toml"),
    "--config key.toml has the unknown key 'stepz': did you mean 'steps'?": ("run", "--config", "key.toml"),
    "--config type.toml has steps = '10': give an integer of at least 1.": ("run", "--config", "type.toml"),
    "--config zero.toml has nodes = 0: give an integer of at least 1.": ("run", "--config", "zero.toml"),
    "--out taken is a file: name a folder.": (*RUN, "--out", "taken"),
    "METHODS names 'd-soba' twice: name each once.": ("compare", "linear_regression", "d-soba", "d-soba"),
    "--set soba.… is for a method that is not compared": (
        "compare", "linear_regression", "d-soba", "--set", "soba.alpha=1",
    ),
    "metric 'acuracy' is not known": ("tune", "linear_regression", "--metric", "acuracy"),
    "graph 'gird' is not known: did you mean 'grid'?": ("graphs", "gird"),
    "bytes_per_step needs dimension": ("advise", "8", "--bytes-per-step", "100"),
    "a predicted time needs entries: give --entries P Q": ("advise", "8", "--latency", "1"),
    "loss=1.0 must be at least 0 and below 1": ("advise", "8", "--entries", "1", "1", "--loss", "1"),
    "personal=True needs a lower level": ("advise", "8", "--personal", "--single"),
    "did you mean 'fashion-mnist'?": ("data", "fetch", "fashion-mnits"),
    "RUN nowhere is not a folder: give the --out folder": ("watch", "nowhere"),
}  # fmt: skip
FAILING = {
    "a9a is not on this machine: run `decibel data fetch a9a`": ("run", "auprc", "--method", "interact"),
    'needs wandb: pip install "decibel-opt[wandb]".': (*RUN, "--log", "wandb"),
    'needs mlflow: pip install "decibel-opt[mlflow]".': (*RUN, "--log", "mlflow"),
    'decibel silo needs grpcio and cryptography: pip install "decibel-opt[silo]".': (
        "silo",
        "run",
        "a",
        "--problem",
        "m:f",
    ),
    'decibel demo needs scikit-learn and matplotlib: pip install "decibel-opt[tasks,plot]".': ("demo",),
    'decibel run needs orbax-checkpoint and matplotlib: pip install "decibel-opt[checkpoint,plot]".': RUN,
    'decibel compare needs matplotlib: pip install "decibel-opt[plot]".': ("compare", "linear_regression", "d-soba"),
}


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A folder with a few bad files, no data, and no extras."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "broken.toml": "task = ", "key.toml": 'task = "a"\nstepz = 3', "type.toml": 'steps = "10"',
        "zero.toml": "nodes = 0", "taken": "",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("DECIBEL_DATA", str(tmp_path))
    monkeypatch.setattr(db.tasks.data.cache, "cache_folder", lambda: tmp_path)
    for module in ("wandb", "mlflow", "grpc", "cryptography"):
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize("sentence", [*COMMANDS, *FAILING])
def test_said_on_the_command_line(sentence, bare, monkeypatch):
    if sentence.startswith("decibel "):
        for module in ("matplotlib", "orbax", "sklearn"):
            monkeypatch.setitem(sys.modules, module, None)
    answer = CliRunner().invoke(app, {**COMMANDS, **FAILING}[sentence])
    assert answer.exit_code == (2 if sentence in COMMANDS else 1), answer.output
    assert sentence in answer.stderr
    assert_sentence(answer.stderr.removesuffix("\n"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((*RUN, "--nodes", "0"), "--nodes"),
        ((*RUN, "--steps", "many"), "--steps"),
        ((*RUN, "--stepz", "3"), "--steps"),
        (("comapre", "linear_regression"), "compare"),
        (("advise",), "nodes"),
        (("launch", "nowhere.py"), "nowhere.py"),
    ],
)
def test_options_and_commands_that_do_not_exist(arguments, named, bare):
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 2 and named in answer.output and "Traceback" not in answer.output


def test_there_are_at_least_fifty():
    assert len(PYTHON) + len(COMMANDS) + len(FAILING) >= 50
    assert len(MISTAKES) >= 40
