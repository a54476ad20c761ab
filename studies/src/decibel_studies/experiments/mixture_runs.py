"""Tasks and methods of the studies of mixtures that compare at equal gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Literal, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decibel import Method, Problem, adam_ed, hypergradient, sparkle, strategies
from decibel.graphs import ring
from decibel.strategies import Strategy
from decibel.tasks import Task, language_model
from decibel.tasks.decoder import Decoder, Shape

from ..testbed.study import Arm
from ..type_aliases import PyTree, Snapshot, Topology
from .data_mixtures import SYNTHETIC, Given, load_bytes, shuffled_letters
from .mixture_methods import Aligned, Path, Planned
from .schedules import Linear

AT_ONCE = 256  # windows that are evaluated together
SHORT = 30_000  # bytes of a text that is repeated
Kind = Literal["constrained", "free", "scores", "single", "sampled"]


@dataclass(frozen=True)
class Texts:
    """Text of a mixture and the decoder that it trains.

    `harmful` domains are made of others: "shuffled", letters of the first domain in random order; "repeated", a short
    part of a play over and over; "noise", random bytes; "reversed", the second domain from its end to its start.
    """

    domains: tuple[str, ...] = (
        "wiki",
        "books",
        "reviews_movies",
        "code_python",
        "docs_linux_kernel",
        "science_math_latex",
    )
    harmful: tuple[str, ...] = ("shuffled", "repeated")
    target: tuple[float, ...] = (0.5, 0.3, 0.2)  # of the first domains
    width: int = 256
    layers: int = 6
    heads: int = 8
    context: int = 128
    compute: Literal["float32", "bfloat16"] | None = "bfloat16"
    windows: int = 40_000  # of a node
    validation: int = 64
    test: int = 512
    floor: float = 0.16

    @property
    def texts(self) -> Texts:
        """These alone, of a set-up that has more."""
        return Texts(**{each.name: getattr(self, each.name) for each in fields(Texts)})

    @property
    def nodes(self) -> int:
        return len(self.domains) + len(self.harmful)

    @property
    def aim(self) -> np.ndarray:
        """The target's shares, with the floor."""
        wanted = np.zeros(self.nodes)
        wanted[: len(self.target)] = self.target
        return self.above_floor(wanted)

    @property
    def uniform(self) -> np.ndarray:
        return np.full(self.nodes, 1 / self.nodes)

    def above_floor(self, shares: np.ndarray) -> np.ndarray:
        return self.floor / self.nodes + (1 - self.floor) * shares / shares.sum()


@dataclass(frozen=True)
class Lengths(Texts):
    """Of runs in which every method evaluates as many gradients at a node: `gradients`."""

    batch_size: int = 8
    gradients: int = 3_750
    rows: int = 10
    beta: float = 1e-3
    warm_up: float = 0.05  # part of a run in which β rises; it falls to zero in the rest
    theta: float = 0.1
    strength: float = 10.0
    upper_every: int = 8
    alpha: float = 0.08  # of the learned mixture
    agreement: tuple[float, ...] = (1e-3, 4e-3)  # values of α of gradient alignment
    compare_every: int = 8
    averaged: bool = True  # second moments of adam-ed

    def steps(self, gradients: float) -> int:
        """So many steps are taken if one costs that many gradients on average; at least a multiple of the rows."""
        return self.rows * math.ceil(self.gradients / gradients / self.rows)

    def falling(self, steps: int) -> Linear:
        return Linear(self.beta, steps, round(self.warm_up * steps))


@cache
def texts_of(settings: Texts) -> Mapping[str, bytes]:
    known = SYNTHETIC if set(settings.domains) <= set(SYNTHETIC) else load_bytes(settings.domains)
    every = {name: known[name] for name in settings.domains}
    return every | {name: _harmful(name, every, settings) for name in settings.harmful}


def _harmful(name: str, every: Mapping[str, bytes], settings: Texts) -> bytes:
    first, second = (every[domain] for domain in settings.domains[:2])
    if name == "shuffled":
        return shuffled_letters(first)
    if name == "reversed":
        return second[::-1]
    if name == "noise":
        return np.random.default_rng(0).integers(0, 256, len(first), np.uint8).tobytes()
    play = load_bytes(["tinyshakespeare"])["tinyshakespeare"]
    return play[:SHORT] * (len(first) // SHORT)


class OnUnseenText(eqx.Module):
    """The decoder's losses on text that no node has, and the shares that it is trained with.

    `shares`: those of a run with one level.
    """

    model: PyTree
    validation: Array
    test: Array
    unseen: Array  # (domains, windows, bytes)
    mixture: Callable[[Array], Array]
    domains: tuple[str, ...] = eqx.field(static=True)
    shares: Array | None = None

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        y = snapshot.x if self.shares is not None else snapshot.y
        p = self.mixture(snapshot.x) if self.shares is None else self.shares
        losses = {f"loss_{name}": self.loss(y, part) for name, part in zip(self.domains, self.unseen, strict=True)}
        return {
            "test_loss": self.loss(y, self.test),
            "validation_loss": self.loss(y, self.validation),
            **losses,
            **{f"weight_{name}": p[d] for d, name in enumerate(self.domains)},
        }

    def loss(self, y: Decoder, windows: Array) -> Array:
        def of_window(window: Array) -> Array:
            return self.model.losses(y, window[None])[0]

        return jax.lax.map(of_window, windows, batch_size=AT_ONCE).mean()


def mixture_task(settings: Texts, kind: Kind, *, seed: int) -> Task:
    """A seed has its own samples of all texts, its own weights and batches.

    - `kind`: "constrained" shares x on the simplex; "free", the same without the constraint, for methods that set x;
      "scores", whose softmax are the shares; "single", one level, with uniform shares; "sampled", one level, with text
      sampled by the target's shares at every node.
    """
    every = texts_of(settings)
    made = language_model(
        every,
        size=Shape(settings.width, settings.layers, settings.heads, settings.context),
        target=dict(zip(every, settings.target, strict=False)),
        weights="softmax" if kind == "scores" else "simplex",
        windows=settings.windows,
        validation=settings.validation,
        test=settings.test,
        floor=settings.floor,
        compute=settings.compute,
        streamed=False,
        seed=seed,
    )
    held_out = cast(PyTree, made.metrics[0])
    problem = made.problem
    names = tuple(every)
    metric = OnUnseenText(held_out.model, held_out.validation, held_out.test, held_out.unseen, held_out.mixture, names)  # pyright: ignore
    if kind == "free":
        problem = eqx.tree_at(lambda p: p.prox_x, problem, None, is_leaf=lambda leaf: leaf is problem.prox_x)
    if kind in ("single", "sampled"):
        shares = jnp.asarray(settings.aim if kind == "sampled" else settings.uniform, float)
        data = _sampled(problem, settings, seed) if kind == "sampled" else problem.lower_data
        factors = jnp.ones(settings.nodes) if kind == "sampled" else shares
        problem = Problem(Given(held_out.model, factors), upper_data=data, x0=problem.y0)
        metric = replace(metric, shares=shares)
    return replace(made, problem=problem, metrics=(metric,))


def _sampled(problem: Problem, settings: Texts, seed: int) -> list[dict[str, np.ndarray]]:
    """For every node as many windows as before, drawn from the windows of all nodes by the target's shares."""
    rng = np.random.default_rng(seed)
    pools = np.asarray(problem.lower_data.tree["windows"])
    counts = np.round(settings.aim * pools.shape[1]).astype(int)
    nodes: list[dict[str, np.ndarray]] = []
    for _ in range(settings.nodes):
        parts = [pool[rng.permutation(len(pool))[:count]] for pool, count in zip(pools, counts, strict=True)]
        windows = np.concatenate(parts)
        domain = np.repeat(np.arange(settings.nodes, dtype=np.int32), counts)
        nodes.append({"windows": windows, "domain": domain, "factor": np.ones(len(windows))})
    return nodes


def arm(
    case: str,
    label: str,
    setup: Lengths,
    kind: Kind,
    gradients: float,
    make: Callable[[Linear], Method],
    graph: Topology | None = None,
) -> Arm:
    """A run in which a step costs so many gradients on average; `make` gets the step sizes of the decoder."""
    steps = setup.steps(gradients)
    return Arm(
        case,
        label,
        partial(mixture_task, setup.texts, kind),
        make(setup.falling(steps)),
        ring(setup.nodes) if graph is None else graph,
        steps,
        setup.batch_size,
        setup.rows,
    )


def learned(case: str, label: str, setup: Lengths, every: int, graph: Topology | None = None) -> Arm:
    """SPARKLE's penalty form, whose shares move in every so manieth step."""

    def method(falling: Linear) -> Method:
        return sparkle(
            strategy_of(setup),
            "ed",
            alpha=setup.alpha * every / setup.upper_every,
            beta=falling,
            gamma=falling,
            theta=setup.theta,
            hypergradient=hypergradient.penalty(setup.strength),
            upper_every=every,
        )

    return arm(case, label, setup, "constrained", 1 + 2 / every, method, graph)


def planned(case: str, label: str, setup: Lengths, *shares: np.ndarray) -> Arm:
    """Shares that go through these points, at equal distances."""
    plan = Path.through(*shares, steps=setup.steps(1))
    return arm(case, label, setup, "free", 1, lambda falling: Planned(falling, plan, strategy_of(setup)))


def aligned(case: str, label: str, setup: Lengths, every: int, alpha: float) -> Arm:
    """Gradient alignment, in every so manieth step; `alpha` is that of a step in `compare_every`."""
    alpha = alpha * every / setup.compare_every

    def method(falling: Linear) -> Method:
        return Aligned(alpha, falling, every, strategy_of(setup))

    return arm(case, label, setup, "scores", 1 + 1 / every, method)


def single_level(case: str, label: str, setup: Lengths, kind: Kind, graph: Topology | None = None) -> Arm:
    """One level, with adam-ed."""
    return arm(case, label, setup, kind, 1, lambda falling: adam_ed(alpha=falling), graph)


def strategy_of(setup: Lengths) -> Strategy:
    return strategies.adam_ed(averaged=setup.averaged)
