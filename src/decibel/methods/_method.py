"""What every algorithm is: a start, a step, and the problems and graphs it is defined for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jax import Array

from ..core._json import JSON
from ..core._vector import Vector
from ..core._words import in_words
from ..graphs._graph import Graph, GraphSequence, Levels
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..problem._problem import Problem
from ..problem.prox import Prox
from ..strategies._table import Level, Strategy

RATES = ("alpha", "beta", "gamma", "theta", "relax", "tau")  # the step sizes, by the names they have in every method
WEIGHTS = {
    "theta": "the newest sample's weight in an average",
    "relax": "η, the part of a step that is taken, in s⁺ = s + η (W s − α p − s)",
    "tau": "τ, the part of a step that x takes, in LoPA's x⁺ = x + τ (W x − α q − x)",
}
Rate = float | Array | Callable[[Array], Array]


class State(NamedTuple):
    """What a run continues with: a `Level` per variable (None where a method has none), the method's memory, and what
    the network remembers by link, which is its own affair."""

    x: Level
    y: Any = None
    z: Any = None
    memory: Any = ()
    links: Any = ()


class Variant(NamedTuple):
    """A name under which `db.CATALOG` holds a method, and the settings that this name fixes."""

    name: str
    summary: str
    paper: str
    settings: Mapping[str, Any] = MappingProxyType({})
    mixture: bool = False  # of two strategies; tables of methods leave it out
    defaults: Mapping[str, Any] | None = None  # the step sizes of this name, where they are not those of the class


class Method(eqx.Module):
    """A point in the space of algorithms. Step sizes are array leaves: runs that differ in them share a program.

    What is known of a published method stands on its class, and `db.CATALOG` and the tables of the documentation are
    made from it. A method of your own may leave all of it out.
    """

    catalog_name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    loops: ClassVar[int] = 1
    takes_prox: ClassVar[bool] = False  # whether its step applies the problem's proximal map, by `levels`
    skips_messages: ClassVar[bool] = False  # whether a step may send nothing, which sites take for a loss
    centralized: ClassVar[bool] = False  # runs on the complete graph only, which is taken where none is given
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # settings of the catalogue, where none are given

    def __check_init__(self) -> None:
        for name in RATES:
            value = getattr(self, name, 0.0)
            number = isinstance(value, int | float | np.number)
            if not (number or hasattr(value, "dtype") or callable(value)):
                raise TypeError(f"{name}={value!r} must be a number, or a function of the step.")
            if number and name in WEIGHTS and not 0 <= value <= 1:
                raise ValueError(f"{name}={value!r} must be a number from 0 to 1: it is {WEIGHTS[name]}.")
            if number and not 0 <= value < float("inf"):
                raise ValueError(f"{name}={value!r} must be finite and not negative: give a step size such as 0.1.")

    @classmethod
    def variants(cls) -> Iterable[Variant]:
        """The names under which the catalogue holds it: one, unless its strategies are free."""
        return (Variant(cls.catalog_name, cls.summary, cls.paper),)

    @property
    def name(self) -> str:
        """Its name in the catalogue; that of its class where it has none."""
        return self.catalog_name or type(self).__name__.lower()

    @property
    def form(self) -> str:
        """The problems it solves: shared, personal (y never leaves the node) or single (there is no y)."""
        lower = self.strategies.get("y")
        return "single" if lower is None else "shared" if lower.mixes else "personal"

    @property
    def sends(self) -> str:
        """What a node sends to each neighbour per iteration; p and q are the entries of x and y."""
        vectors, numbers = {"p": 0, "q": 0}, 0
        for level, strategy in self.strategies.items():
            if strategy.vectors is None:
                raise ValueError(
                    f"strategy {strategy.name!r} does not state what it sends: give it `vectors`, or measure it with "
                    "db.cost(problem, method, graph)."
                )
            vectors["p" if level == "x" else "q"] += strategy.vectors
            numbers += strategy.numbers
        parts = [f"{number if number > 1 else ''}{size}" for size, number in vectors.items() if number]
        return " + ".join([*parts, *([str(numbers)] if numbers else [])]) + " numbers"

    @property
    @abstractmethod
    def strategies(self) -> dict[str, Strategy]:
        """The strategy of each level that exists."""

    def levels(self, oracle: Oracle) -> dict[str, Strategy]:
        """The strategy of each level, with the problem's proximal map on x."""
        strategies = self.strategies
        if oracle.problem.prox_x is not None:
            strategies["x"] = replace(strategies["x"], prox=oracle.problem.prox_x.at(oracle.nodes))
        return strategies

    def with_strategies(self, change: Callable[[Strategy], Strategy]) -> Method:
        """The same method, with every strategy that sends changed, such as wrapped in one of `db.privacy`."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        sending = {name: one for name, one in held.items() if isinstance(one, Strategy) and one.mixes}
        made = replace(self, **{name: change(one) for name, one in sending.items()})
        before, after = self.strategies, made.strategies
        if any(one.mixes and one is before[level] for level, one in after.items()):
            raise ValueError(
                f"{self.name} has strategies of its own, which cannot be changed: choose one such as 'sparkle-ed'."
            )
        return made

    @property
    def needs_links(self) -> bool:
        """Whether links remember something of the messages."""
        return any(strategy.needs_links for strategy in self.strategies.values())

    @property
    def pairwise(self) -> bool:
        """Whether a node needs its neighbours' messages one by one, and not their average alone."""
        return any(strategy.pairwise for strategy in self.strategies.values())

    @property
    def asynchronous(self) -> bool:
        """Whether no node waits for another: every level that mixes uses the newest message of each neighbour."""
        return all(strategy.asynchronous or not strategy.mixes for strategy in self.strategies.values())

    @property
    def coded(self) -> bool:
        """Whether any message travels in a code that needs all of them."""
        return any(strategy.coded and not strategy.per_link for strategy in self.strategies.values())

    @property
    def integrates(self) -> bool:
        """Whether a level sums up what neighbours send, so that what one of them sends wrong is never forgotten."""
        return any(strategy.integrates for strategy in self.strategies.values())

    @abstractmethod
    def start(self, x: Vector, y: Vector | None) -> State: ...

    @abstractmethod
    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State: ...

    @property
    def settings(self) -> dict[str, Any]:
        """Its fields as plain values, for the trace and for people."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @property
    def described(self) -> dict[str, JSON]:
        """Its settings in words, for people."""
        modules = {field.name: getattr(self, field.name) for field in fields(self)}
        own = {name: value for name, value in modules.items() if isinstance(value, eqx.Module)}
        return self.settings | {name: in_words(v) for name, v in own.items() if not isinstance(v, Strategy)}

    def __repr__(self) -> str:
        shown = {key: value for key, value in self.settings.items() if key in RATES}
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in shown.items())})"

    def validate(self, problem: Problem, graphs: Levels, batch_size: int | None) -> None:
        """Raises a sentence where the problem or a graph does not fit."""
        if problem.form != self.form:
            raise ValueError(f"{self.name} does not solve this problem: {_FIXES[problem.form]}")
        if problem.prox_x is not None:
            self._validate_prox(problem.prox_x)
        if problem.prox_y is not None:
            self.validate_prox_y()
        for level, strategy in self.strategies.items():
            graph = getattr(graphs, level)
            if self.centralized and graph.rho > 1e-12:
                raise ValueError(
                    f"{self.name} is centralized, and {graph.name} does not average exactly: use "
                    "db.graphs.complete(nodes), or a decentralized method such as db.dsoba(...) on this graph."
                )
            validate_graph(graph, strategy, level)

    def validate_prox_y(self) -> None:
        """Raises a sentence unless the method takes a proximal map of y."""
        raise ValueError(
            f"{self.name} does not take prox_y: choose db.sparkle('ed', hypergradient=db.hypergradient.penalty(), ...)."
        )

    def _validate_prox(self, prox: Prox) -> None:
        mixing = self.strategies["x"]
        if not self.takes_prox:
            raise ValueError(
                f"{self.name} does not take prox_x: choose a method such as db.sparkle('ed', ...) or db.ed."
            )
        if not mixing.allows(prox):
            exact = "'ed', 'extra', 'gt' or 'nids'" if prox.nodes is None else "'extra' or 'nids'"
            raise ValueError(
                f"strategy {mixing.name!r} on level x is not exact with prox_x={type(prox).__name__}: choose {exact}."
            )


_FIXES = {
    "single": "it has no lower level, so choose a single-level method such as db.ed(alpha=...).",
    "personal": "its lower level is personal, so choose a method that keeps y at the node, such as db.interact(...), "
    "or set personal=False.",
    "shared": "its lower level is shared, so choose a method such as db.sparkle('ed', ...), or set personal=True.",
}


def validate_graph(graph: Graph | GraphSequence, strategy: Strategy, level: str) -> None:
    # No edges at all is a choice (db.graphs.isolated); some nodes cut off from others is a mistake.
    if strategy.mixes and not graph.connected and any(phase.degrees.any() for phase in graph.phases):
        raise ValueError(f"graph {graph.name!r} on level {level} is not connected: add edges that join its parts.")
    if not (strategy.requires_spectrum or strategy.requires_self_weight):
        return
    if not graph.symmetric:
        raise ValueError(
            f"strategy {strategy.name!r} on level {level} needs a symmetric W, and {graph.name} is directed: choose "
            "'gt' or an undirected graph."
        )
    least = min(float(phase.matrix.diagonal().min()) for phase in graph.phases)
    if strategy.requires_self_weight and least < strategy.requires_self_weight - 1e-9:
        raise ValueError(
            f"strategy {strategy.name!r} on level {level} needs w_ii ≥ {strategy.requires_self_weight:.4g}, and "
            f"{graph.name} has {least:.4g}: use graph.lazy()."
        )
    if not strategy.requires_spectrum:
        return
    edge = -1 / 3 + 1e-9
    for phase in graph.phases:
        if phase.lambda_min_bound <= edge and phase.lambda_min <= edge:
            raise ValueError(
                f"strategy {strategy.name!r} on level {level} diverges where λ_min(W) ≤ −1/3, and {graph.name} has "
                f"{phase.lambda_min:.4f}: use graph.lazy()."
            )


def _plain(value: Any) -> Any:
    if isinstance(value, Strategy):
        return value.name
    if isinstance(value, eqx.Module):
        return repr(value)
    if callable(value):
        return getattr(value, "__qualname__", repr(type(value)))
    return value if isinstance(value, str | int | float | None) else float(value)


def rate(value: Rate | None, k: Array) -> Any:
    """A step size at step k: a number, or a schedule such as optax makes."""
    return value(k) if callable(value) else value
