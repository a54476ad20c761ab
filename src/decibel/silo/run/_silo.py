"""`db.Silo`: the same step, with one node here and its neighbours in other organisations.

The network calls the site's transport from inside the compiled step; all arithmetic is that of `network`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from decibel import Engine, Graph, Levels, Method, Problem, Program, Run, RunConfig
from decibel.core import validate_delta, validate_positive
from decibel.engines import run_fingerprint
from decibel.network import Cumulative, Push, Wave
from decibel.problem import Data, Samples, StreamData, lay_out, samples_of, validate_indexed
from decibel.strategies.privacy import total_epsilon

from .._federation import Federation, validate_rest
from .._logging import Log
from ..observe._site_status import STATUS_FILE, write_state
from ..protocol._async_site import AsyncSite
from ..protocol._clock import Clock
from ..protocol._compatibility import build_of
from ..protocol._incarnation import next_incarnation
from ..protocol._lockstep_site import LockstepSite
from ._async_run import AsyncRun
from ._async_site_network import AsyncSiteNetwork
from ._flow_limits import protected, validate_messages
from ._host_callback import in_place_works
from ._privacy_budget import Budgets, PrivacyAccountant, read
from ._record_noise import SystemNoise
from ._site_network import SiteNetwork
from ._site_run import SiteRun

if TYPE_CHECKING:
    from ..trust._credentials import Credentials


class Silo(Engine):
    """One site of a federation: this process runs one node, and its neighbours run at other organisations.

    `solve` needs the graph of the federation file (`engine.graph`), or one with fewer edges, or a sequence whose phases
    have no others, such as `graphs.matchings(engine.graph)`. Data given as functions are called for this site's node
    only. The result and all metrics are those of this site's own copy.

    Args:
        home: the site's folder, created by `decibel silo join` and completed by `decibel silo sign`.
        name: the site's name in the federation file; its position there is the index of its node.
        budget: the largest ε that all noisy messages from `home` may cost together, over all runs: a run stops before
            the step that would exceed it, and every message must be of `db.privacy.noisy`. None counts only.
        record_budget: the largest ε of one record over all runs from `home`, with `privacy=db.privacy.records(...)`.
        delta: the δ of both; well below 1/samples.
        say: called with one sentence when there is something to tell; None logs it, with its time and level, by the
            logger `decibel.silo`, which writes to standard error unless you have given it a handler.
        restart: whether to begin again at step 0 where this site has saved states and the sites have saved no step in
            common; what it has saved is moved aside. Otherwise it ends with a sentence, and people decide.
        progress_every: seconds between lines of progress; None leaves them out.
        stay: seconds for which a site that is started again after its run has finished gives its model to neighbours
            that were away; None does not wait for them.
        metrics_port: a port of 127.0.0.1 at which `/healthz` and `/metrics` (Prometheus) are served; None serves none.
    """

    home: Path = eqx.field(static=True, converter=Path)
    name: str = eqx.field(static=True)
    budget: float | None = eqx.field(static=True, default=None, kw_only=True)
    record_budget: float | None = eqx.field(static=True, default=None, kw_only=True)
    delta: float = eqx.field(static=True, default=1e-5, kw_only=True)
    restart: bool = eqx.field(static=True, default=False, kw_only=True)
    say: Callable[[str], None] | None = eqx.field(static=True, default=None, kw_only=True)
    progress_every: float | None = eqx.field(static=True, default=60.0, kw_only=True)
    metrics_port: int | None = eqx.field(static=True, default=None, kw_only=True)
    stay: float | None = eqx.field(static=True, default=None, kw_only=True)

    def __check_init__(self) -> None:
        for name, unit in (
            ("budget", "the largest ε, such as 4.0"),
            ("record_budget", "the largest ε, such as 4.0"),
            ("progress_every", "seconds, such as 60.0"),
            ("stay", "seconds, such as 3600.0"),
        ):
            if (value := getattr(self, name)) is not None:
                validate_positive(name, value, f"give {unit}, or None")
        validate_delta(self.delta)
        if self.metrics_port is not None and not 0 < self.metrics_port < 65536:
            raise ValueError(f"metrics_port={self.metrics_port!r} must be a port from 1 to 65535, or None.")

    @property
    def credentials(self) -> Credentials:
        """The site's key, its certificate and the federation, read from `home`."""
        from ..trust._credentials import Credentials

        return Credentials.load(self.home, self.name)

    @property
    def graph(self) -> Graph:
        """The graph of the federation file."""
        return self.credentials.federation.graph

    @property
    def asynchronous(self) -> bool:
        """Whether the federation file lets no site wait for another."""
        return self.credentials.federation.asynchronous

    @property
    def epsilon(self) -> float:
        """ε of all data of the site, at `delta`: of all noisy messages that were sent from `home` so far."""
        return total_epsilon(read(self.home).messages, self.delta)

    @property
    def record_epsilon(self) -> float:
        """ε of one record, at `delta`: of all noisy sums of `db.privacy.records` that were taken in `home` so far."""
        return total_epsilon(read(self.home).sums, self.delta)

    def active_nodes(self, nodes: int) -> tuple[int, ...] | None:
        return None

    def start(self, problem: Problem, method: Method, graphs: Levels, config: RunConfig) -> Run:
        status_file = self.home / STATUS_FILE
        write_state(status_file, self.name, "starting")
        try:
            return self._start(problem, method, graphs, config, status_file)
        except BaseException as error:
            write_state(status_file, self.name, "stopped", str(error))
            raise

    def _start(self, problem: Problem, method: Method, graphs: Levels, config: RunConfig, status_file: Path) -> Run:
        from ._connections import Connections

        credentials = self.credentials
        say = Log(self.name, self.say)
        federation = credentials.federation
        if (order := credentials.trust.order) is not None and order.stop:
            raise ValueError(
                f"{order.sentence}: put the organiser's newer order (decibel silo stop --lift) into {self.home}, and "
                "start again."
            )
        number = federation.number(self.name)
        _validate_graphs(graphs, federation)
        if any(isinstance(message, Push) for message in method.messages):
            raise ValueError(
                f"{method.name} sends different vectors to different neighbours, which a silo does not support: choose "
                "one such as 'edge-ed'."
            )
        if method.may_skip_exchange:
            raise ValueError(
                f"{method.name} leaves out messages, and sites expect one in every step: choose one such as db.k_gt."
            )
        method = protected(method, federation)
        common = json.dumps(run_fingerprint(problem, method, graphs, config), sort_keys=True)
        run_hash = hashlib.sha256(common.encode()).digest()
        if federation.asynchronous:
            _validate_asynchronous(method, graphs, config, federation)
            site_type = AsyncSite
            network_type = AsyncSiteNetwork
            run_type = AsyncRun
        else:
            site_type = LockstepSite
            network_type = SiteNetwork
            run_type = SiteRun
        clock = Clock()
        incarnation = next_incarnation(self.home, clock.time())
        site = site_type(
            federation,
            number,
            run_hash,
            credentials,
            incarnation=incarnation,
            tolerates_loss=_tolerates_loss(method),
            restart=self.restart,
            say=say,
            clock=clock,
        )
        number_array = jnp.asarray([number], jnp.int32)
        node_id = federation.node_id(number)
        # The seed is known to all, so what must stay secret has a key of its own, new at every start.
        secret_bits = np.frombuffer(secrets.token_bytes(8), np.uint32)
        secret = jax.random.wrap_key_data(jnp.asarray(secret_bits), impl="threefry2x32")
        privacy = PrivacyAccountant(self.home, Budgets(self.budget, self.record_budget, self.delta))
        if self.record_budget is not None and config.privacy is None:
            raise ValueError(f"record_budget={self.record_budget:g} needs solve(privacy=db.privacy.records(...)).")
        record_noise = None if config.privacy is None else SystemNoise(config.privacy, privacy, site)
        network = network_type.of(site, graphs, config.link_faults(number_array, secret), privacy)
        problem = _with_own_data(problem, number, node_id)
        validate_indexed(problem, "Silo(...)")
        site.build = build_of(problem)
        node_ids = jnp.asarray([node_id], jnp.int32)
        program = Program.of(problem, method, network, node_ids, config, record_noise=record_noise)
        program = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, program)
        run = run_type(program, site, privacy, self.home)
        validate_messages(program, run.state, federation)
        if self.budget is not None and privacy.sends_others:
            raise ValueError(
                f"budget={self.budget:g} needs every message with noise, and {method.name} sends others: wrap every "
                "strategy that sends in db.privacy.noisy, or leave out budget."
            )
        site.in_place = (federation.asynchronous or site.exchanges == 1) and in_place_works()
        privacy.lock_folder()
        try:
            connections = Connections(
                site,
                credentials,
                say,
                status_file,
                progress_seconds=self.progress_every,
                metrics_port=self.metrics_port,
            )
            run.connect(connections, stay=self.stay or 0.0)
        except BaseException:
            privacy.unlock_folder()
            raise
        return run


def _with_own_data(problem: Problem, number: int, node_id: int) -> Problem:
    """The problem with this site's data only. Arrays have them at the site's position, `number`; functions are called
    with its permanent number, `node_id`."""

    def of_this_site(data: Data, argument: str) -> Samples:
        if isinstance(data, StreamData):
            return data.select_nodes([number], keep_longest=False)
        if callable(data):
            return samples_of([data(node_id)], argument, problem.dtype, number=node_id)
        count = np.asarray(data.counts)[number : number + 1]
        return lay_out(jax.tree.map(lambda leaf: leaf[number : number + 1, : int(count[0])], data.tree), count)

    return problem.map_data(of_this_site)


def _validate_asynchronous(method: Method, graphs: Levels, config: RunConfig, federation: Federation) -> None:
    """Raises where sites cannot do without waiting for each other."""
    for graph in graphs.distinct()[0]:
        if graph.period > 1:
            raise ValueError(
                f"graph {graph.name!r} changes with the step, and asynchronous sites have no common steps: give "
                "engine.graph, or leave out asynchronous = true in the federation file."
            )
    if not all(isinstance(message, Wave) for message in method.messages):
        raise ValueError(
            f"{method.name} needs the messages of every step, and the federation file says asynchronous = true: choose "
            "'wave' for every level that mixes, or leave that out there."
        )
    if method.intervals:
        raise ValueError(
            f"upper_every={max(method.intervals.values())} counts common steps, and asynchronous sites have none: "
            "leave it out, or leave out asynchronous = true in the federation file."
        )
    if config.faults:
        raise ValueError("faults are drawn for common steps, and asynchronous sites have none: leave out faults.")
    validate_rest(federation.stop, drawn=config.batch_size is not None or config.privacy is not None)


def _tolerates_loss(method: Method) -> bool:
    """Whether every level that mixes tolerates lost messages."""
    return all(isinstance(message, Cumulative | Wave) for message in method.messages)


def _validate_graphs(graphs: Levels, federation: Federation) -> None:
    allowed = {frozenset(edge) for edge in federation.edges}
    for level in ("x", "y", "z"):
        graph = getattr(graphs, level)
        if graph.nodes != len(federation.sites):
            raise ValueError(
                f"graph has {graph.nodes} nodes, and federation {federation.name!r} has {len(federation.sites)} sites: "
                "give engine.graph."
            )
        if not graph.symmetric:
            raise ValueError(
                f"graph {graph.name!r} on level {level} is directed, and links between sites go both ways: "
                "give engine.graph."
            )
        for a, b in (edge for phase in graph.phases for edge in phase.edges.tolist()):
            if a != b and frozenset((a, b)) not in allowed:
                raise ValueError(
                    f"graph {graph.name!r} has an edge {(a, b)} that the federation file does not have: give "
                    "engine.graph, or graphs of its edges."
                )
