"""`db.Silo`: the same step, with one node here and its neighbours in other organisations.

The network calls the site's transport from inside the compiled step; all arithmetic is that of `network`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...core import _keys as keys
from ...core._ledger import Counts
from ...core._text import plain
from ...graphs._graph import Graph, Levels
from ...methods._method import Method, State
from ...problem._problem import Data, Problem
from ...problem._reading import streams_of, validate_indexed
from ...problem._samples import lay_out
from ...problem._streams import Samples, StreamData, samples_of
from ...strategies.privacy import validate_delta, validate_positive
from .. import _memory as memory
from .._checkpoint import identity
from .._engine import Engine
from .._program import Program, RunConfig, all_finite
from .._run import Compiled, Run
from .._signals import ending_at_once
from ._build import build_of
from ._errors import NotFinite, Stopped
from ._federation import Federation
from ._host_callback import call, in_place_works
from ._lies import note_flows, protected
from ._logging import Log
from ._privacy import Budgets, Privacy, read
from ._record_noise import SystemNoise
from ._site import STOP, Site
from ._status import farewell, note_word
from ._wire import Wire

Outcome = tuple[State, Array, Array, Array, list[Array]]  # the state, whether it is finite, the next step, and counts
Fetched = tuple[State, bool, int, int, list[float]]  # the same in Python's numbers
Carry = tuple[Array, Array, Array, State, list[Array]]

if TYPE_CHECKING:
    from ._credentials import Credentials
    from ._streams import Streams


STATUS = "status.json"  # in a site's folder
FULL = (
    "This site's model and the temporary arrays of a step do not fit into the device's memory: use smaller batches, a "
    "smaller model, or a device with more memory."
)


class Silo(Engine):
    """One site of a federation: this process runs one node, and its neighbours run at other organisations.

    `solve` needs the graph of the federation file (`engine.graph`), or one with fewer edges. Data given as functions
    are called for this site's node only. The result and all metrics are those of this site's own copy.

    Args:
        home: the site's folder, created by `decibel silo join` and completed by `decibel silo sign`.
        name: the site's name in the federation file; its position there is the index of its node.
        budget: the largest ε that all noisy messages from `home` may cost together, over all runs: a run stops before
            the step that would exceed it, and every message must be of `db.privacy.noisy`. None counts only.
        record_budget: the largest ε of one record over all runs from `home`, with `privacy=db.privacy.records(...)`.
        delta: the δ of both; well below 1/samples.
        say: called with one sentence when there is something to tell; None logs it, with its time and level, by the
            logger `decibel.silo`, which writes to standard error unless you have given it a handler.
        progress_every: seconds between lines of progress; None leaves them out.
        metrics_port: a port of 127.0.0.1 at which `/healthz` and `/metrics` (Prometheus) are served; None serves none.
    """

    home: Path = eqx.field(static=True)
    name: str = eqx.field(static=True)
    budget: float | None = eqx.field(static=True)
    record_budget: float | None = eqx.field(static=True)
    delta: float = eqx.field(static=True)
    say: Callable[[str], None] | None = eqx.field(static=True)
    progress_every: float | None = eqx.field(static=True)
    metrics_port: int | None = eqx.field(static=True)

    def __init__(
        self,
        home: str | Path,
        name: str,
        *,
        budget: float | None = None,
        record_budget: float | None = None,
        delta: float = 1e-5,
        say: Callable[[str], None] | None = None,
        progress_every: float | None = 60.0,
        metrics_port: int | None = None,
    ) -> None:
        for argument, value in (("budget", budget), ("record_budget", record_budget)):
            if value is not None:
                validate_positive(argument, value, "give the largest ε, such as 4.0, or None")
        validate_delta(delta)
        if progress_every is not None:
            validate_positive("progress_every", progress_every, "give seconds, such as 60.0, or None")
        if metrics_port is not None and not 0 < metrics_port < 65536:
            raise ValueError(f"metrics_port={metrics_port!r} must be a port from 1 to 65535, or None.")
        self.progress_every, self.metrics_port = progress_every, metrics_port
        self.home, self.name, self.delta, self.say = Path(home), name, delta, say
        self.budget, self.record_budget = budget, record_budget

    @property
    def credentials(self) -> Credentials:
        """The site's key, its certificate and the federation, read from `home`."""
        from ._credentials import Credentials

        return Credentials.load(self.home, self.name)

    @property
    def graph(self) -> Graph:
        """The graph of the federation file."""
        return self.credentials.federation.graph

    @property
    def epsilon(self) -> float:
        """ε of all data of the site, at `delta`: of all noisy messages that were sent from `home` so far."""
        return read(self.home).site_epsilon(self.delta)

    @property
    def record_epsilon(self) -> float:
        """ε of one record, at `delta`: of all noisy sums of `db.privacy.records` that were taken in `home` so far."""
        return read(self.home).record_epsilon(self.delta)

    def active_nodes(self, nodes: int) -> tuple[int, ...] | None:
        return None

    def start(self, problem: Problem, method: Method, graphs: Levels, config: RunConfig) -> Run:
        notes = self.home / STATUS
        note_word(notes, self.name, "starting")
        try:
            return self._start(problem, method, graphs, config, notes)
        except BaseException as error:
            note_word(notes, self.name, "stopped", str(error))
            raise

    def _start(self, problem: Problem, method: Method, graphs: Levels, config: RunConfig, notes: Path) -> Run:
        from ._streams import Streams

        credentials, say = self.credentials, Log(self.name, self.say)
        federation = credentials.federation
        number = federation.number(self.name)
        _validate_graphs(graphs, federation)
        if method.skips_messages:
            raise ValueError(
                f"{method.name} leaves out messages, and sites expect one in every step: choose one such as db.k_gt."
            )
        method = protected(method, federation)
        common = json.dumps(identity(problem, method, graphs, config), sort_keys=True)
        fingerprint = hashlib.sha256(common.encode()).digest()
        kinds = _without_a_clock(method, config) if federation.asynchronous else (Site, Wire, SiteRun)
        site = kinds[0](federation, number, fingerprint, credentials, lossy=_lossy(method), say=say)
        here = jnp.asarray([number], jnp.int32)
        # The seed is known to all, so what must stay secret has a key of its own, new at every start.
        secret = keys.from_bits(np.frombuffer(secrets.token_bytes(8), np.uint32))
        privacy = Privacy(self.home, Budgets(self.budget, self.record_budget, self.delta))
        if self.record_budget is not None and config.privacy is None:
            raise ValueError(f"record_budget={self.record_budget:g} needs solve(privacy=db.privacy.records(...)).")
        sums = config.privacy and SystemNoise(config.privacy, privacy, site)
        network = kinds[1].of(site, graphs, config.link_faults(here, secret), privacy)
        validate_indexed(problem := _alone(problem, number), "Silo(...)")
        site.build = build_of(problem)
        program = Program.of(problem, method, network, here, config, record_noise=sums)
        program = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, program)
        run = kinds[2](program, site, privacy)
        if self.budget is not None and privacy.sends_others:
            raise ValueError(
                f"budget={self.budget:g} needs every message with noise, and {method.name} sends others: wrap every "
                "strategy that sends in db.privacy.noisy, or leave out budget."
            )
        site.in_place = (federation.asynchronous or site.exchanges == 1) and in_place_works()
        privacy.begin()
        try:
            observed = {"every": self.progress_every, "metrics_port": self.metrics_port}
            run.talk_by(Streams(site, credentials, say, notes, **observed))
        except BaseException:
            privacy.end()
            raise
        return run


class SiteRun(Run):
    """A run of one node among others elsewhere, who may make it wait, or skip steps that they did without it."""

    alone = True

    def __init__(self, program: Program, site: Site, privacy: Privacy) -> None:
        super().__init__(program, full=FULL)
        self.site, self.privacy = site, privacy
        for data in streams_of(program.problem):
            data.host.watch(
                partial(setattr, site, "error")
            )  # before anything is sent that was computed without the samples
        site.exchanges = 0
        self._costs = program.costs(self.state)  # its trace tells the site what messages will come
        privacy.settled = True
        self._goal = 2**62
        self._streams: Streams | None = None
        self._any_length: Compiled | None = None

    def talk_by(self, streams: Streams) -> None:
        self._streams = streams
        streams.start()

    def compile(self, length: int) -> Compiled:
        """One program for every length."""
        if self._any_length is None:
            arrays, static = eqx.partition(self.program, eqx.is_array)

            def chunk(arrays: Program, state: State, first: Array, end: Array) -> Outcome:
                return self.steps(eqx.combine(arrays, static), state, first, end)

            k = jax.ShapeDtypeStruct((), jnp.int32)
            with memory.oom_hint(FULL), self.site.health.compiles(), ending_at_once():
                compiled = jax.jit(chunk, donate_argnums=1).lower(arrays, self.state, k, k).compile()
            self._any_length = Compiled.of(compiled, self._costs)
        return self._any_length

    def steps(self, program: Program, state: State, first: Array, end: Array) -> Outcome:
        """What is compiled: steps from `first` until `end` is reached."""
        return _chunk(program, self.site, len(self._costs.repeated), state, first, end)

    def restore_order(self, saved: Sequence[int]) -> list[int]:
        """The step that all sites have saved; this site's newest, where the others run already."""
        step = self.site.agree(saved)
        return [step] if step else []

    def interrupt(self) -> None:
        self.site.stop()

    def reach(self, steps: int) -> tuple[int, str]:
        """As far as the federation file and the privacy budget go."""
        if steps > self.site.limits.steps:
            raise ValueError(
                f"steps={steps} is more than the federation file allows ({self.site.limits.steps}): sites would reject "
                "the rest."
            )
        left = self.privacy.steps_left(steps - self.step, self.step)
        self._goal = self.site.goal = self.step + left
        if self._goal >= steps:
            return steps, ""
        sentence = self.privacy.sentence(left, self.step)
        self.site.say(f"will end at step {self._goal}: {sentence}")
        return self._goal, sentence

    def advance(self, length: int) -> Counts | None:
        chunk, costs, beside = self.compile(length)
        with memory.oom_hint(FULL):
            good = memory.copied(self.state, beside)
            arrays, ends = eqx.filter(self.program, eqx.is_array), (np.int32(self.step), np.int32(self.step + length))
            self.state, finite, step, steps, repetitions = self._patiently(lambda: chunk(arrays, self.state, *ends))
            if isinstance(self.site.error, Stopped):  # in the middle of a step: back to the last row
                self.state = good()
                return costs.total(0, [0.0 for _ in repetitions])
            if not finite or self.site.error is not None:
                self.state = good()
                return None
        self.step = step
        note_flows(self.program, self.site, self.state.links)
        return costs.total(steps, repetitions)

    def _patiently(self, chunk: Callable[[], Outcome]) -> Fetched:
        """In a thread of its own, so that Ctrl-C works while waiting for neighbours."""
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(lambda: _fetch(chunk()))
            try:
                outcome = running.result()
            except KeyboardInterrupt:
                self.site.give_up()
                raise
        if self.site.error is not None and not isinstance(self.site.error, NotFinite | Stopped):
            raise self.site.error
        return outcome

    def close(self, *, finished: bool) -> None:
        done = finished or self.step >= self._goal
        error = self.site.error or sys.exc_info()[1]
        if not done:
            self.site.health.reason = "it was told to stop" if self.site.stopping else plain(error or "")
        self.site.goodbye(done)
        self.site.say(farewell(self.site))
        if self._streams is not None:
            self._streams.close()
        self.privacy.end()


def _chunk(program: Program, site: Site, repeated: int, state: State, first: Array, end: Array) -> Outcome:
    """Steps from `first` until `end` is reached: the state, whether it is finite, the next step, how many were done,
    and how often what varies (`repeated` counts) was repeated. Which step comes next is the site's to say."""

    def begin(out: tuple[np.ndarray, ...], k: np.ndarray) -> None:
        out[0][...] = STOP
        with site.failing_later():
            out[0][...] = site.begin(int(k))

    def step(carry: Carry) -> Carry:
        k, _, done, state, totals = carry
        state, cost = program.step(k, state)
        totals = [total + times for total, times in zip(totals, cost.repetitions, strict=True)]
        return k, k + 1, done + 1, state, totals

    def body(carry: Carry) -> Carry:
        _, following, done, *_ = carry
        (k,) = call(begin, (jax.ShapeDtypeStruct((), jnp.int32),), following, in_place=site.in_place)
        # Once, or not at all: a loop hands on the state without a copy, where `cond` might make one.
        return jax.lax.while_loop(lambda one: (one[0] < STOP) & (one[2] == done), step, (k, *carry[1:]))

    none = [jnp.zeros((), jnp.float32) for _ in range(repeated)]
    start = (first, first, jnp.int32(0), state, none)
    _, following, done, state, totals = jax.lax.while_loop(
        lambda carry: (carry[0] < STOP) & (carry[1] < end), body, start
    )
    return state, all_finite(state), following, done, totals


def _fetch(outcome: Outcome) -> Fetched:
    """The state as it is; numbers as Python's."""
    state, finite, step, done, totals = outcome
    return state, bool(finite), int(step), int(done), [float(total) for total in totals]


def _alone(problem: Problem, number: int) -> Problem:
    """The problem with this node's data only; functions are called for this node only."""

    def own(data: Data, argument: str) -> Samples:
        if isinstance(data, StreamData):
            return data.only([number], whole=False)
        if callable(data):
            return samples_of([data(number)], argument, problem.dtype, number=number)
        count = np.asarray(data.counts)[number : number + 1]
        return lay_out(jax.tree.map(lambda leaf: leaf[number : number + 1, : int(count[0])], data.tree), count)

    return problem.with_data(own)


def _without_a_clock(method: Method, config: RunConfig) -> tuple[type[Site], type[Wire], type[SiteRun]]:
    """What serves sites that do not wait for each other; raises where they cannot do without."""
    from ._async_run import AsyncRun
    from ._async_site import AsyncSite
    from ._async_wire import AsyncWire

    if not method.asynchronous:
        raise ValueError(
            f"{method.name} needs the messages of every step, and the federation file says asynchronous = true: choose "
            "'wave' for every level that mixes, or leave that out there."
        )
    if any(strategy.coded for strategy in method.strategies.values()):
        raise ValueError("messages in code need common steps in a silo: leave out db.privacy, or asynchronous = true.")
    if config.faults:
        raise ValueError("faults are drawn for common steps, and asynchronous sites have none: leave out faults.")
    return AsyncSite, AsyncWire, AsyncRun


def _lossy(method: Method) -> bool:
    """Whether every level that mixes tolerates lost messages."""
    return all(strategy.per_link or not strategy.mixes for strategy in method.strategies.values())


def _validate_graphs(graphs: Levels, federation: Federation) -> None:
    allowed = {frozenset(edge) for edge in federation.edges}
    for level in ("x", "y", "z"):
        graph = getattr(graphs, level)
        if graph.nodes != len(federation.sites):
            raise ValueError(
                f"graph has {graph.nodes} nodes, and federation {federation.name!r} has {len(federation.sites)}."
            )
        if graph.period > 1 or not graph.symmetric:
            raise ValueError(f"graph {graph.name!r} on level {level} must be undirected and the same in every step.")
        for a, b in graph.edges:
            if a != b and frozenset((int(a), int(b))) not in allowed:
                raise ValueError(f"graph {graph.name!r} has an edge {(a, b)} that the federation file does not have.")
