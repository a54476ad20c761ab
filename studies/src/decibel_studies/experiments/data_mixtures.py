"""Ways to choose a mixture of text: learned by two levels, given, by excess loss (DoReMi), or by a bandit (ODM).

All train the same decoder by the same steps (adam-ed over the same graph) on as many tokens of every domain. Only the
mixture differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal, Protocol, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decibel import (
    Communicator,
    Graph,
    Method,
    Oracle,
    Problem,
    Result,
    Simulator,
    State,
    Status,
    Strategy,
    Trace,
    Vector,
    adam_ed,
    hypergradient,
    solve,
    sparkle,
)
from decibel.graphs import complete, ring
from decibel.methods import rate
from decibel.strategies import strategy
from decibel.tasks import Task, data, language_model
from decibel.tasks.decoder import Decoder, Shape, start_decoder

from ..type_aliases import Metric, PyTree, Snapshot
from .schedules import Linear

Way = Literal["learned", "uniform", "by size", "target", "doremi", "odm"]
SYNTHETIC = {"counting": b"one two three four five six. " * 400, "vowels": b"a e i o u. " * 900}
REPEATED = 30_000  # bytes of a play that are repeated
# The same samples for all seeds, so that runs share what is compiled; seeds differ in weights and batches.
DATA_SEED = 0


@dataclass(frozen=True)
class Setup:
    """Of a study of mixtures. `harmful` domains are made of others: letters in random order, a short text repeated."""

    domains: tuple[str, ...] = (
        "wiki",
        "books",
        "reviews_movies",
        "code_python",
        "docs_linux_kernel",
        "science_math_latex",
    )
    harmful: bool = True
    target: tuple[float, ...] = (0.5, 0.3, 0.2)  # of the first domains
    width: int = 384
    layers: int = 6
    heads: int = 6
    context: int = 256
    compute: Literal["float32", "bfloat16"] | None = "bfloat16"
    windows: int = 20_000
    validation: int = 64
    test: int = 512
    floor: float = 0.16
    batch_size: int = 8
    steps: int = 400
    warm_up: int = 0  # steps until beta is reached, from where it falls to zero
    rows: int = 8
    alpha: float = 0.01
    beta: float = 3e-3
    theta: float = 0.1
    strength: float = 10.0
    doremi: float = 1.0
    others: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (2001, 2002, 2003, 2004, 2005)
    remat: bool = False
    chunk: int | None = None  # nodes whose gradients are computed at a time


def texts(setup: Setup) -> dict[str, bytes]:
    """The text of every domain; harmful ones are made of the first and of Shakespeare's."""
    known = SYNTHETIC if set(setup.domains) <= set(SYNTHETIC) else load_bytes(setup.domains)
    every = {name: known[name] for name in setup.domains}
    if setup.harmful:
        every["shuffled"] = shuffled_letters(every[setup.domains[0]])
        play = load_bytes(["tinyshakespeare"])["tinyshakespeare"]
        every["repeated"] = play[:REPEATED] * (len(play) // REPEATED)
    return every


def load_bytes(domains: Sequence[str]) -> dict[str, bytes]:
    return {name: "\n\n".join(documents).encode() for name, documents in data.load_text(list(domains)).items()}


def shuffled_letters(text: bytes) -> bytes:
    """The same bytes in a random order: its frequencies, and no words."""
    letters = np.frombuffer(text, np.uint8)
    return letters[np.random.default_rng(0).permutation(len(letters))].tobytes()


def shape(setup: Setup) -> Shape:
    return Shape(setup.width, setup.layers, setup.heads, setup.context, setup.remat)


def base_task(setup: Setup, nodes: int | None, spread: Literal["domains", "iid"]) -> Task:
    """The task with the weights of one seed, kept for all runs on the same samples."""
    still = replace(
        setup,
        chunk=None,
        batch_size=1,
        steps=1,
        warm_up=0,
        rows=1,
        alpha=0,
        beta=0,
        theta=0,
        strength=0,
        doremi=0,
        seeds=(),
    )
    return _base_task(still, nodes, spread)


@lru_cache(maxsize=4)
def _base_task(setup: Setup, nodes: int | None, spread: Literal["domains", "iid"]) -> Task:
    every = texts(setup)
    return language_model(
        every,
        nodes,
        size=shape(setup),
        target=dict(zip(every, setup.target, strict=False)),
        windows=setup.windows,
        validation=setup.validation,
        test=setup.test,
        floor=setup.floor,
        spread=spread,
        compute=setup.compute,
        seed=DATA_SEED,
    )


class DecoderMetric(Protocol):
    """The task's metric: the decoder's losses, and what is measured on text that no node has."""

    model: Any
    domains: tuple[str, ...]

    def measured(self, x: Array, y: Decoder) -> dict[str, Array]: ...


class Given(eqx.Module):
    """One level: the loss of the model under a mixture that stays."""

    model: PyTree
    shares: Array

    def __call__(self, y: Decoder, batch: dict[str, Array]) -> Array:
        losses = self.model.losses(y, batch["windows"]).astype(self.shares.dtype)
        return (batch["factor"] * self.shares[batch["domain"]] * losses).mean()


@eqx.filter_jit
def _measured(held_out: DecoderMetric, x: Array, y: Decoder) -> dict[str, Array]:
    return held_out.measured(x, y)


@dataclass(frozen=True, eq=False)
class MixtureMetrics:
    """The task's metrics, compiled once for all arms, with the mixture of each."""

    held_out: DecoderMetric
    shares: Array | None = None  # where there is one level

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        state = snapshot.state
        if self.shares is not None:
            return _measured(self.held_out, self.shares, snapshot.x)
        x = snapshot.x
        if isinstance(state.memory, Vector) and state.z is None:  # Online's sum of all mixtures
            sums = state.memory.mean()
            x = jnp.where(sums.sum() > 0, sums / jnp.maximum(sums.sum(), 1e-9), jnp.full_like(x, 1 / x.size))
        spread = jnp.ptp(state.x.s.tree, axis=0).max()
        return {**_measured(self.held_out, x, snapshot.y), "node_spread": spread}


class Excess(eqx.Module):
    """Whose gradient in y is that of Σ_d x_d loss_d, and in x every domain's loss above that of a reference model."""

    model: PyTree
    reference: Decoder

    def __call__(self, x: Array, y: Decoder, batch: dict[str, Array]) -> Array:
        still = jax.lax.stop_gradient
        losses = self.model.of_tokens(y, batch["windows"])
        above = jnp.maximum(still(losses - self.model.of_tokens(self.reference, batch["windows"])), 0).mean(1)
        share = batch["factor"] * x[batch["domain"]]
        return (share * above.astype(x.dtype) + still(share) * losses.mean(1).astype(x.dtype)).mean()


class Online(Method):
    """y⁺ = L(y, β ∇_y g(p, y)) under a mixture p that follows from scores x of domains, and these from their losses.

    - `"doremi"`: x⁺ = U(x, −α excess), p = (1 − ε) softmax(x) + ε / K (Xie et al., 2023).
    - `"odm"`: x⁺ = U(x, α (x − loss / p)), p = (1 − K ε_k) softmax(ε_k x) + ε_k with ε_k = min(1/K, √(ln K / (K k)))
      (Albalak et al., 2023), with every domain drawn in each step.

    The memory is the sum of all mixtures.
    """

    alpha: float
    beta: Linear
    floor: float
    rule: str = eqx.field(static=True)

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": strategy("ed"), "y": strategy("adam-ed")}

    def start(self, x: Vector, y: Vector | None) -> State:
        assert y is not None
        levels = self.strategies
        return State(levels["x"].start(x.zeros()), levels["y"].start(y), memory=x.zeros())

    def shares(self, k: Array, x: Array) -> Array:
        count = x.shape[-1]
        if self.rule == "doremi":
            return (1 - self.floor) * jax.nn.softmax(x) + self.floor / count
        each = jnp.minimum(1 / count, jnp.sqrt(float(np.log(count)) / (count * (k.astype(x.dtype) + 1))))
        return (1 - count * each) * jax.nn.softmax(each * x) + each

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        levels = self.strategies
        draw = oracle.draw()
        oracle.ledger.add(gradients=1)
        p = Vector(self.shares(k, state.x.s.tree))

        def node(p: Array, y: PyTree, lower: PyTree) -> tuple[PyTree, ...]:
            return jax.grad(oracle.problem.lower_loss, (0, 1))(p, y, lower)

        gains, v = oracle.config.over_nodes(node)(p.tree, state.y.s.tree, draw.lower)
        scores = -gains if self.rule == "doremi" else state.x.s.tree - gains / p.tree
        x, y = network(
            x=levels["x"](state.x, Vector(scores), self.alpha), y=levels["y"](state.y, Vector(v), rate(self.beta, k))
        )
        return State(x, y, memory=state.memory + p)


@dataclass(frozen=True)
class Mixture:
    """An arm: one way to a mixture, for every seed. `form`: of the hypergradient, for the learned one."""

    case: str
    label: str
    way: Way
    setup: Setup
    graph: Literal["ring", "one node"] = "ring"
    spread: Literal["domains", "iid"] = "domains"
    form: Literal["penalty", "products"] = "penalty"

    @property
    def key(self) -> tuple[str, str]:
        return self.case, self.label

    def describe(self) -> Mapping[str, object]:
        return asdict(self)

    def run(self, seeds: Sequence[int]) -> list[Trace]:
        return [self.run_seed(seed) for seed in seeds]

    @property
    def nodes(self) -> int:
        return len(self.setup.domains) + 2 * self.setup.harmful

    def topology(self) -> Graph:
        return complete(1) if self.graph == "one node" else ring(self.nodes)

    def run_seed(self, seed: int) -> Trace:
        alone = self.graph == "one node"
        setup = self.setup
        whole = replace(setup, validation=setup.validation * self.nodes) if alone else setup  # the samples of all nodes
        task = base_task(whole, 1 if alone else None, self.spread)
        batch = setup.batch_size * (self.nodes if alone else 1)
        y0 = start_decoder(shape(setup), 256, seed)
        problem: Problem = eqx.tree_at(lambda p: p.y0, task.problem, y0)
        held_out = cast(DecoderMetric, task.metrics[0])
        train = partial(_train, setup=setup, graph=self.topology(), batch_size=batch, seed=seed)
        given = partial(_given, problem, held_out)
        falling = Linear(setup.beta, setup.steps, setup.warm_up)
        if self.way == "learned":
            products = self.form == "products"
            form = hypergradient.auxiliary() if products else hypergradient.penalty(setup.strength)
            method = sparkle(
                "adam-ed", "ed", alpha=setup.alpha, beta=falling, gamma=falling, theta=setup.theta, hypergradient=form
            )
            return _trace(train(problem, method, (MixtureMetrics(held_out),)))
        scored = eqx.tree_at(lambda p: p.prox_x, problem, None, is_leaf=lambda leaf: leaf is problem.prox_x)
        if self.way == "odm":
            method = Online(0.1, falling, setup.floor, self.way)
            return _trace(train(scored, method, (MixtureMetrics(held_out),)))
        if self.way != "doremi":
            return _trace(train(*given(_shares(self.way, task), falling)))
        reference = train(*given(_shares("uniform", task), falling)).x
        excess = eqx.tree_at(lambda p: p.lower, scored, Excess(held_out.model, reference))
        proxy = train(excess, Online(setup.doremi, falling, setup.floor, self.way), (MixtureMetrics(held_out),))
        learned = np.array([proxy.trace.last[f"weight_{name}"] for name in held_out.domains])
        return _trace(train(*given(learned / learned.sum(), falling)))


def _shares(way: Way, task: Task) -> np.ndarray:
    """A mixture that is known beforehand; none has a share below the floor."""
    names, least = list(task.summary["domains"]), float(task.summary["least_share"])
    if way == "target":
        wanted = np.array([task.truth[name] for name in names])
    elif way == "by size":
        wanted = np.array([task.summary["domains"][name] for name in names], float)
    else:
        wanted = np.ones(len(names))
    return least + (1 - least * len(names)) * wanted / wanted.sum()


def _given(
    problem: Problem, held_out: DecoderMetric, shares: np.ndarray, falling: Linear
) -> tuple[Problem, Method, tuple[Metric]]:
    """A run with one level, on the same samples."""
    kept = jnp.asarray(shares, problem.dtype)
    single = Problem(Given(held_out.model, kept), upper_data=problem.lower_data, x0=problem.y0)
    return single, adam_ed(alpha=falling), (MixtureMetrics(held_out, kept),)


def _train(
    problem: Problem,
    method: Method,
    metrics: Sequence[Metric],
    *,
    setup: Setup,
    graph: Graph,
    batch_size: int,
    seed: int,
) -> Result:
    return solve(
        problem,
        method,
        graph,
        steps=setup.steps,
        batch_size=batch_size,
        seed=seed,
        eval_every=max(1, setup.steps // setup.rows),
        metrics=list(metrics),
        progress=False,
        engine=Simulator(node_chunk=setup.chunk, keep_copy=False),
    )


def _trace(result: Result) -> Trace:
    result.trace.provenance["stopped"] = result.message if result.status is Status.DIVERGED else None
    return result.trace
