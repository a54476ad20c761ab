"""What every algorithm is: a start, a step, and the problems and graphs it is defined for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, cast

import equinox as eqx
import numpy as np
from jax import Array

from ..core._describe import in_words
from ..core._json import JSON
from ..core._types import PyTree, Scalar
from ..core._vector import Vector
from ..graphs._damping import growth, is_proven
from ..graphs._graph import Graph, GraphSequence, Levels
from ..network._communicator import Communicator
from ..network._messages import Message, Plain
from ..oracles._oracle import Oracle
from ..problem._problem import Problem
from ..problem.prox import Prox
from ..strategies._table import STRATEGIES, Level, Strategy
from ..strategies._table import strategy as strategy_named

# The step sizes and weights of a step, by the names they have in every method; `rates` returns them in this order.
RATES = ("alpha", "beta", "gamma", "theta", "relax", "tau")
WEIGHTS = {
    "theta": "the newest sample's weight in an average",
    "relax": "η, the part of a step that is taken, in s⁺ = s + η (W s − α p − s)",
    "tau": "τ, the part of a step that x takes, in LoPA's x⁺ = x + τ (W x − α q − x)",
}
Rate = float | Array | Callable[[Array], Array]


class State(NamedTuple):
    """What a run continues with.

    There is a `Level` per variable (None where a method has none) and the method's memory. `link_memory` is what the
    network remembers for each link: methods do not read it, and the states that they return leave it empty.
    """

    x: Level
    y: Any = None
    z: Any = None
    memory: Any = ()
    link_memory: Any = ()


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

    A published method describes itself in class variables. `db.CATALOG` and the tables of the documentation read them;
    your own method may leave all of them out.
    """

    catalog_name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    loops: ClassVar[int] = 1
    takes_prox: ClassVar[bool] = False  # whether its step applies the problem's proximal map, by `levels`
    # Whether a step may send nothing; a site would treat that as a lost message.
    may_skip_exchange: ClassVar[bool] = False
    centralized: ClassVar[bool] = False  # runs on the complete graph only, which is taken where none is given
    strategy_names: ClassVar[Mapping[str, str]] = MappingProxyType({})  # by level, the name of its strategy
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # in the catalogue, beside the usual step sizes

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
        return "single" if lower is None else "shared" if lower.communicates else "personal"

    @property
    def sends(self) -> str:
        """What a node sends to each neighbour per iteration, as a formula such as "2p + 3q numbers".

        p and q are the numbers of entries of x and y. Raises ValueError if messages are encoded.
        """
        vectors: dict[str, int] = {}
        numbers = 0
        for level, strategy in self.strategies.items():
            if strategy.message_size is None:
                raise ValueError(
                    f"strategy {strategy.name!r} sends encoded messages, whose size depends on the problem: measure "
                    "it with db.cost(problem, method, graph)."
                )
            interval = self.intervals.get(level, 1)
            size = ("p" if level == "x" else "q") + (f"/{interval}" if interval > 1 else "")
            vectors[size] = vectors.get(size, 0) + strategy.message_size[0]
            numbers += strategy.message_size[1]
        parts = [f"{count if count > 1 else ''}{size}" for size, count in sorted(vectors.items()) if count]
        return " + ".join([*parts, *([str(numbers)] if numbers else [])]) + " numbers"

    @property
    def strategies(self) -> dict[str, Strategy]:
        """The strategy of each level that exists: those that `strategy_names` names."""
        return {level: strategy_named(name) for level, name in self.strategy_names.items()}

    def levels(self, oracle: Oracle) -> dict[str, Strategy]:
        """The strategy of each level for the local nodes, with the problem's proximal map on x."""
        strategies = {level: strategy.for_nodes(oracle.node_ids) for level, strategy in self.strategies.items()}
        if oracle.problem.prox_x is not None:
            strategies["x"] = replace(strategies["x"], prox=oracle.problem.prox_x.at(oracle.node_ids))
        return strategies

    def with_strategies(self, change: Callable[[Strategy], Strategy]) -> Method:
        """The same method, with every strategy that sends changed, such as wrapped in one of `db.privacy`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        sending = {name: value for name, value in values.items() if isinstance(value, Strategy) and value.communicates}
        if any(
            strategy.communicates and all(strategy is not value for value in sending.values())
            for strategy in self.strategies.values()
        ):
            raise ValueError(
                f"{self.name} has strategies of its own, which cannot be changed: choose one such as 'sparkle-ed'."
            )
        return replace(self, **{name: change(value) for name, value in sending.items()})

    @property
    def intervals(self) -> Mapping[str, int]:
        """By level, the number of steps from one of its moves to the next; levels that move in every step are
        absent."""
        return {}

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that the strategies of all levels send in a step, as shapes."""
        return tuple(message for strategy in self.strategies.values() for message in strategy.messages)

    def start(self, x: Vector, y: Vector | None) -> State:
        """The levels, with zero carries, and the memory before the first step."""
        strategies = self.strategies
        first = {"x": x, "y": y}
        if "z" in strategies:
            first["z"] = self.first_z(x, cast(Vector, y))
        levels = {level: strategy.start(cast(Vector, first[level])) for level, strategy in strategies.items()}
        return State(**levels, memory=self.first_memory(x, y))

    def first_z(self, x: Vector, y: Vector) -> Vector:
        """z before the first step, of methods that have one."""
        return y.zeros()

    def first_memory(self, x: Vector, y: Vector | None) -> PyTree:
        """What the method remembers before the first step."""
        return ()

    def rates(self, k: Array) -> tuple[Scalar, ...]:
        """Its step sizes and weights at step k, in the order of `RATES`; those that the method lacks are left out."""
        return tuple(rate(getattr(self, name), k) for name in RATES if hasattr(self, name))

    @abstractmethod
    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State: ...

    @property
    def settings(self) -> dict[str, Any]:
        """Its fields as plain values, for the trace and for people."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @property
    def settings_in_words(self) -> dict[str, JSON]:
        """Its settings in words, for people."""
        modules = {field.name: getattr(self, field.name) for field in fields(self)}
        parts = {name: value for name, value in modules.items() if isinstance(value, eqx.Module)}
        return self.settings | {name: in_words(v) for name, v in parts.items() if not isinstance(v, Strategy)}

    def __repr__(self) -> str:
        rates = {key: value for key, value in self.settings.items() if key in RATES}
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in rates.items())})"

    def validate(self, problem: Problem, graphs: Levels, batch_size: int | None) -> None:
        """Raises ValueError if the problem or a graph does not fit."""
        if problem.form != self.form:
            raise ValueError(
                f"{self.name} is for {_KINDS[self.form]}, and the problem has {_KINDS[problem.form]}: "
                f"{_other_form(self.form, problem.form)}."
            )
        if problem.prox_x is not None:
            self._validate_prox(problem.prox_x, graphs.x)
        if problem.prox_y is not None:
            self.validate_prox_y()
        for level, strategy in self.strategies.items():
            graph = getattr(graphs, level)
            if self.centralized and graph.rho > 1e-12:
                other = "dsoba(...)" if graph.doubly_stochastic else "sparkle('push-pull', ...)"
                raise ValueError(
                    f"{self.name} is centralized, and {graph.name} does not average exactly: use "
                    f"db.graphs.complete(nodes), or a decentralized method such as db.{other} on this graph."
                )
            if strategy.nodes not in (None, graph.nodes):
                raise ValueError(
                    f"node_steps has {strategy.nodes} steps but the graph has {graph.nodes} nodes: give one for each."
                )
            validate_graph(graph, strategy, level)

    def validate_prox_y(self) -> None:
        """Raises ValueError unless the method takes a proximal map of y."""
        raise ValueError(
            f"{self.name} does not take prox_y: choose db.sparkle('ed', hypergradient=db.hypergradient.penalty(), ...)."
        )

    def _validate_prox(self, prox: Prox, graph: Graph | GraphSequence) -> None:
        upper_strategy = self.strategies["x"]
        if not self.takes_prox:
            raise ValueError(
                f"{self.name} does not take prox_x: choose a method such as db.sparkle('ed', ...) or db.ed."
            )
        if not upper_strategy.allows(prox):
            exact = "'ed', 'extra', 'gt' or 'nids'" if prox.nodes is None else "'extra' or 'nids'"
            exact = exact if graph.doubly_stochastic else f"an undirected graph, and {exact}"
            raise ValueError(
                f"strategy {upper_strategy.name!r} on level x is not exact with prox_x={type(prox).__name__}: choose "
                f"{exact}."
            )


_KINDS = {"single": "a single level", "personal": "a personal lower level", "shared": "a shared lower level"}


def _other_form(method: str, problem: str) -> str:
    """What to do where a method of one form meets a problem of another."""
    if problem == "single":
        return "choose a single-level method such as db.ed(alpha=...)"
    if problem == "personal":
        fix = "choose a method that keeps y at the node, such as db.interact(...)"
        return f"{fix}, or leave personal=True out" if method == "shared" else fix
    fix = "choose a method such as db.sparkle('ed', ...)"
    return f"{fix}, or set personal=True" if method == "personal" else fix


def validate_graph(graph: Graph | GraphSequence, strategy: Strategy, level: str) -> None:
    # No edges at all is a choice (db.graphs.isolated); some nodes cut off from others is a mistake.
    if strategy.communicates and not graph.connected and any(phase.degrees.any() for phase in graph.phases):
        raise ValueError(f"graph {graph.name!r} on level {level} is not connected: add edges that join its parts.")
    if not (graph.doubly_stochastic or strategy.takes_one_way_links):
        raise ValueError(
            f"strategy {strategy.name!r} on level {level} needs a doubly stochastic W, and {graph.name} has one-way "
            "links without one: choose 'push-pull', or make the graph undirected."
        )
    if graph.rounds > 1 and not all(type(message) is Plain for message in strategy.messages if strategy.communicates):
        raise ValueError(
            f"strategy {strategy.name!r} on level {level} treats each link separately, and {graph.name} mixes over "
            f"{graph.rounds} rounds: choose one such as 'ed' or 'gt', or the graph that is not accelerated."
        )
    if not strategy.requires_symmetric:
        return
    if not graph.symmetric:
        raise ValueError(
            f"strategy {strategy.name!r} on level {level} needs a symmetric W, and {graph.name} is directed: choose "
            "'gt', 'push-pull' or an undirected graph."
        )
    least = min(float(phase.matrix.diagonal().min()) for phase in graph.phases)
    if strategy.min_self_weight and least < strategy.min_self_weight - 1e-9:
        raise ValueError(
            f"strategy {strategy.name!r} on level {level} needs w_ii ≥ {strategy.min_self_weight:.4g}, and "
            f"{graph.name} has {least:.4g}: use graph.lazy()."
        )
    if graph.changes and strategy.requires_fixed_graph:
        _validate_damping(graph, strategy.with_default_damping(graph.damping), level)
    elif strategy.requires_spectrum:
        _validate_spectrum(graph, strategy, level)


def _validate_damping(graph: Graph | GraphSequence, strategy: Strategy, level: str) -> None:
    """Raises where a carry that sums flows would overshoot on a graph that changes."""
    if strategy.sends_parts:
        raise ValueError(
            f"strategy {strategy.name!r} on level {level} spreads its scales over several steps, which needs a "
            f"fixed graph, and {graph.name} changes: leave out scale_every."
        )
    κ = strategy.damping
    if κ is None or κ == 1.0:
        given = " with damping=1" if _is_damped_by_default(strategy) else ""
        fix = "leave damping out" if given else "choose 'ed', whose carry is damped there, or 'gt'"
        raise ValueError(
            f"strategy {strategy.name!r}{given} on level {level} diverges on {graph.name}, a graph that changes: {fix}."
        )
    if (factor := _growth(graph, κ)) is not None and factor > 1 - 1e-9:
        cyclic = graph.order == "cyclic" and κ <= graph.damping
        fix = "draw its phases (order='random')" if cyclic else f"choose damping={graph.damping:.3g}"
        raise ValueError(
            f"strategy {strategy.name!r} with damping={κ:.3g} on level {level} diverges on {graph.name}: {fix}."
        )


def _is_damped_by_default(strategy: Strategy) -> bool:
    """Whether it, or the strategy whose messages it encodes, takes its damping from the graph unless given."""
    by_name = STRATEGIES.get(strategy.name.partition(" (")[0], strategy)
    takes_local_steps = strategy.local_steps > 1 and not strategy.asynchronous
    return by_name.damping is None or takes_local_steps or strategy.min_self_weight > 0


@lru_cache(maxsize=64)
def _growth(graph: Graph | GraphSequence, damping: float) -> float | None:
    """The factor by which differences between nodes grow in a step; None if that is not known."""
    matrices, random = [phase.matrix for phase in graph.phases], graph.order == "random"
    return None if random and is_proven(matrices, damping) else growth(matrices, damping, random=random)


def _validate_spectrum(graph: Graph | GraphSequence, strategy: Strategy, level: str) -> None:
    for phase in graph.phases:
        if not strategy.stable_at(phase.lambda_min_bound) and not strategy.stable_at(phase.lambda_min):
            raise ValueError(
                f"strategy {strategy.name!r} on level {level} diverges on {graph.name}, whose W has the eigenvalue "
                f"{phase.lambda_min:.4f}: use graph.lazy()."
            )


def _plain(value: Any) -> Any:
    if isinstance(value, Strategy):
        return value.label
    if isinstance(value, eqx.Module):
        return repr(value)
    if isinstance(value, tuple):
        return list(value)
    if callable(value):
        return getattr(value, "__qualname__", repr(type(value)))
    return value if isinstance(value, str | int | float | None) else float(value)


def rate(value: Rate | None, k: Array) -> Any:
    """A step size at step k: a number, or a schedule such as optax makes."""
    return value(k) if callable(value) else value
