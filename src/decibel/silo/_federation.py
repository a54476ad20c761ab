"""The federation file: the sites, the edges between them, and the run. Written by hand, signed by the authority.

Sites compare its SHA-256 before they talk. If one letter differs, they do not talk.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path

from decibel import Graph
from decibel.core import JSON, hint
from decibel.strategies.privacy import noisy, records

from ._errors import NotTrusted

NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
LOOPBACK = "127.0.0.1"
LEVELS = ("x", "y", "z")
SAMPLINGS = ("random", "shuffle-once")
QUORUMS = ("wait", "continue", "stop")
VERSION = 1  # of the signed text; a site reads no other


@dataclass(frozen=True)
class Member:
    """A site of the federation: where its neighbours reach it (None: it only dials) and, where that differs, where it
    listens.

    - `node`: its permanent number, by which it has its data and its random numbers; None is its position.
    - `since`: the edition of the federation file in which it joined.
    """

    name: str
    address: str | None = None
    listen: str | None = None
    node: int | None = None
    since: int = 1

    @property
    def listens(self) -> str | None:
        return self.listen or self.address


@dataclass(frozen=True)
class FaultTolerance:
    """When a neighbour counts as gone, and what a site does then.

    - `quorum`: without a neighbour, `wait` for it, `continue` with the others, or `stop`.
    - `beat`, `missed`: a neighbour is gone after `beat` × `missed` seconds without a sign of life.
    - `deadline`: seconds to wait for one message of a neighbour that is alive.
    - `waiting`: the largest share of its time for which a site waits for one neighbour, while others have sent; 1 sets
      no limit. A neighbour that takes more is suspended, whether hostile or only slow: with 0.95 one that is twenty
      times slower than the others is not. Under `continue` only, and only if no more than `faulty` neighbours are late.
    """

    quorum: str = "wait"
    beat: float = 1.0
    missed: int = 10
    deadline: float = 600.0
    waiting: float = 0.95

    @property
    def forgets(self) -> bool:
        """Whether the flow of an edge is dropped when its other end has gone."""
        return self.quorum != "wait"

    @property
    def patience(self) -> float:
        return self.beat * self.missed


@dataclass(frozen=True)
class StopRule:
    """When a run without a common clock ends before its last step: all sites say that they are at rest.

    - `tolerance`: the largest change in a step of any number of a site at rest, in its variables or its links.
    - `seconds`: for how long.
    - `average`: compare averages of this many steps instead of single steps, which never rest with batches.
    """

    tolerance: float
    seconds: float = 10.0
    average: int | None = None


@dataclass(frozen=True)
class Federation:
    """Names, addresses, edges, weights, method, steps: what every site must agree on.

    - `flow_limit`: the largest flow of a link, in the units of gradients, for every level or by level, of
      `"edge-ed"`, `"wave"`, `"diffusion"` and `"consensus"`.
    - `trust_members`: also run methods without such limits, which sum up whatever neighbours send.
    - `faulty`: how many members may be malicious, collude or be absent. They cannot make an honest site start at, skip
      to or end at a step that no honest site has reached. None is `Federation.most_faulty`. With 0 every member is
      believed.
    - `asynchronous`: no site waits for another; each uses the newest message of every neighbour (`"wave"`).
    - `stop`: when such a run ends before its last step.
    - `history`: the hashes of all editions before this one, the first one first; `amend` writes it.
    - `warm`: the newest edition that begins with saved variables and zero corrections; `amend --warm` writes it.
    """

    name: str
    sites: tuple[Member, ...]
    edges: tuple[tuple[int, int], ...]
    weights: str | Sequence[Sequence[float]] = "lazy-metropolis"
    method: str | None = None
    settings: dict[str, JSON] = field(default_factory=dict[str, JSON])
    steps: int | None = None
    batch_size: int | None = None
    seed: int = 0
    eval_every: int | None = None
    checkpoint_every: int = 1
    fault_tolerance: FaultTolerance = FaultTolerance()
    flow_limit: float | dict[str, float] | None = None
    trust_members: bool = False
    faulty: int | None = None
    sampling: str = "random"
    privacy: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])  # see `_private`
    asynchronous: bool = False
    stop: StopRule | None = None
    history: tuple[str, ...] = ()
    warm: int = 0

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def text(self) -> str:
        """The federation as canonical JSON, which is signed and hashed."""
        content = {"version": VERSION, **asdict(self)}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @cached_property
    def hash(self) -> bytes:
        return hashlib.sha256(self.text.encode()).digest()

    @property
    def edition(self) -> int:
        """1 for the file of `init`, and one more with each `amend`."""
        return len(self.history) + 1

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites)

    def node_id(self, number: int) -> int:
        """The permanent number of the site at a position."""
        node = self.sites[number].node
        return number if node is None else node

    @property
    def confirmations_needed(self) -> int:
        """How many members must confirm something before a site believes it: one more than may be faulty."""
        return 1 + (self.most_faulty if self.faulty is None else self.faulty)

    @property
    def most_faulty(self) -> int:
        """The largest number that leaves every site an honest neighbour, and a majority of honest members: a site whose
        neighbours all lie is under their control. With three sites or more it is at least 1.
        """
        sites = len(self.sites)
        if sites < 3:
            return 0
        fewest_neighbours = min(len(self.neighbours(number)) for number in range(sites))
        return max(1, min(fewest_neighbours - 1, (sites - 1) // 2))

    @property
    def graph(self) -> Graph:
        import networkx as nx

        from decibel import graphs

        if not isinstance(self.weights, str):
            return graphs.from_matrix(self.weights)
        network = nx.Graph()
        network.add_nodes_from(range(len(self.sites)))
        network.add_edges_from(self.edges)
        return graphs.from_networkx(network, weights=self.weights)

    def number(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"site {name!r} is not in federation {self.name!r}: {hint(name, self.names)}")
        return self.names.index(name)

    def neighbours(self, number: int) -> list[int]:
        return sorted({b if a == number else a for a, b in self.edges if number in (a, b)})

    def dials(self, number: int, other: int) -> bool:
        """Whether `number` opens the stream to `other`: the later site in the list dials, unless the earlier one cannot
        be reached.
        """
        return self.sites[other].address is not None and (number > other or self.sites[number].address is None)

    def at(self, addresses: Sequence[str]) -> Federation:
        """The same federation with other addresses, as host:port. A site without an address still has none."""
        sites = (
            replace(site, address=None if site.address is None else address, listen=None)
            for site, address in zip(self.sites, addresses, strict=True)
        )
        return replace(self, sites=tuple(sites))

    @classmethod
    def from_text(cls, text: str) -> Federation:
        written = json.loads(text)
        if (version := written.pop("version", None)) != VERSION:
            raise ValueError(
                f"the federation file has version {version}, and this decibel reads version {VERSION}: all sites and "
                "the organiser need the same version of decibel."
            )
        written["sites"] = tuple(Member(**site) for site in written["sites"])
        written["edges"] = tuple((a, b) for a, b in written["edges"])
        written["fault_tolerance"] = FaultTolerance(**written["fault_tolerance"])
        written["stop"] = written.get("stop") and StopRule(**written["stop"])
        written["history"] = tuple(written.get("history", ()))
        return cls(**written)

    @classmethod
    def from_toml(cls, path: str | Path) -> Federation:
        """Reads the file that people write: edges by names, an address as host:port, or as a port of this machine."""
        try:
            written = tomllib.loads(Path(path).read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"{path} cannot be read as TOML: {error}.") from None
        known = {field.name for field in fields(cls)} - {"history", "warm"}
        _validate_known(written, known, str(path))
        for needed in ("name", "sites", "edges"):
            if needed not in written:
                raise ValueError(f"{path} lacks {needed!r}: see the example in docs/silo.md.")
        sites = []
        for site in written["sites"]:
            _validate_known(site, {"name", "address", "listen"}, f"a site of {path}")
            address, listen = (_address(site[key], key) if key in site else None for key in ("address", "listen"))
            sites.append(Member(str(site.get("name", "")), address, listen))
        numbers = {site.name: number for number, site in enumerate(sites)}
        for edge in written["edges"]:
            for name in edge:
                if name not in numbers:
                    raise ValueError(f"edges of {path} name {name!r}, which is not a site: {hint(str(name), numbers)}")
        fault_tolerance = written.get("fault_tolerance", {})
        _validate_known(
            fault_tolerance, {field.name for field in fields(FaultTolerance)}, f"[fault_tolerance] of {path}"
        )
        read = {"sites": tuple(sites), "edges": tuple((numbers[a], numbers[b]) for a, b in written["edges"])}
        if "stop" in written:
            _validate_known(written["stop"], {field.name for field in fields(StopRule)}, f"[stop] of {path}")
            if "tolerance" not in written["stop"]:
                raise ValueError(f"[stop] of {path} lacks 'tolerance': write tolerance = 1e-6.")
            read["stop"] = StopRule(**written["stop"])
        return cls(**{**written, **read, "fault_tolerance": FaultTolerance(**fault_tolerance)})


def validate_successor(edition: int, digest: str, federation: Federation, what: str) -> None:
    """Raises unless a federation file is the edition of that number and hash, or follows it."""
    if federation.edition < edition:
        raise NotTrusted(
            f"{what} is edition {federation.edition}, and this site has had edition {edition}: get the newest "
            "from the organiser."
        )
    same = federation.hash.hex() if federation.edition == edition else federation.history[edition - 1]
    if same != digest:
        raise NotTrusted(
            f"{what} is edition {federation.edition}, which does not follow edition {edition} that this site has had: "
            "ask the organiser by telephone which one is right."
        )


def _address(value: JSON, key: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"{LOOPBACK}:{value}"
    host, colon, port = str(value).rpartition(":")
    if not (colon and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{key}={value!r} must be host:port, or a port of this machine.")
    return f"{host or LOOPBACK}:{port}"


def _validate(federation: Federation) -> None:
    names = [site.name for site in federation.sites]
    for name in (federation.name, *names):
        if not NAME.fullmatch(name):
            raise ValueError(f"name {name!r} must be lower-case letters, digits and dashes, and begin with a letter.")
    if len(set(names)) < len(names):
        raise ValueError(f"federation {federation.name!r} has two sites of the same name: give each its own.")
    for a, b in federation.edges:
        if a == b or not (0 <= a < len(names) and 0 <= b < len(names)):
            raise ValueError(f"edge {(a, b)} of federation {federation.name!r} must join two different sites.")
        if federation.sites[a].address is None and federation.sites[b].address is None:
            raise ValueError(
                f"{names[a]} and {names[b]} are neighbours and neither has an address: give one of them an address."
            )
    _validate_limits(federation.flow_limit, federation.trust_members)
    _validate_faulty(federation)
    _validate_privacy(federation)
    _validate_clock(federation.asynchronous, federation.stop)
    validate_rest(federation.stop, drawn=federation.batch_size is not None or "records" in federation.privacy)
    fault_tolerance = federation.fault_tolerance
    if fault_tolerance.quorum not in QUORUMS:
        raise ValueError(f"quorum={fault_tolerance.quorum!r} is not known: choose from {', '.join(QUORUMS)}.")
    if not 0 < fault_tolerance.waiting <= 1:
        raise ValueError(f"waiting={fault_tolerance.waiting!r} must be a share of the time, above 0 and at most 1.")
    for name in ("beat", "missed", "deadline"):
        if not getattr(fault_tolerance, name) > 0:
            raise ValueError(f"{name}={getattr(fault_tolerance, name)!r} must be positive.")


def _validate_limits(flow_limit: JSON, trust_members: JSON) -> None:
    by_level = flow_limit if isinstance(flow_limit, dict) else {"x": flow_limit}
    if flow_limit is not None:
        _validate_known(by_level, set(LEVELS), "flow_limit")
        if not by_level or not all(_is_positive(limit) for limit in by_level.values()):
            raise ValueError(
                f"flow_limit={flow_limit!r} must be a positive number, or one for each of x, y and z: "
                "`decibel silo rehearse` suggests them."
            )
    if not isinstance(trust_members, bool):
        raise ValueError(f"trust_members={trust_members!r} must be true or false.")


def _validate_faulty(federation: Federation) -> None:
    faulty = federation.faulty
    sites = len(federation.sites)
    if faulty is None:
        return
    most = max(0, sites - 2)  # or the words of all others together were too few
    if not isinstance(faulty, int) or isinstance(faulty, bool) or not 0 <= faulty <= most:
        raise ValueError(
            f"faulty={faulty!r} must be an integer from 0 to {most}, of {sites} sites; left out, it is "
            f"{federation.most_faulty}."
        )


def _validate_clock(asynchronous: JSON, stop: StopRule | None) -> None:
    if not isinstance(asynchronous, bool):
        raise ValueError(f"asynchronous={asynchronous!r} must be true or false.")
    if stop is None:
        return
    if not asynchronous:
        raise ValueError("[stop] is for sites without a common clock: add asynchronous = true, or leave it out.")
    for name in ("tolerance", "seconds"):
        if not _is_positive(getattr(stop, name)):
            raise ValueError(f"{name}={getattr(stop, name)!r} of [stop] must be a positive number.")
    if stop.average is not None and not (type(stop.average) is int and stop.average > 0):
        raise ValueError(f"average={stop.average!r} of [stop] must be a number of steps, such as 1000.")


def validate_rest(stop: StopRule | None, *, drawn: bool) -> None:
    """Raises if a stop rule could never hold: steps that are `drawn` at random, by batches or noise, never rest."""
    if stop is not None and stop.average is None and drawn:
        raise ValueError(
            "[stop] compares single steps, and steps of batches or with noise never rest: add average = 1000 to "
            "compare averages of 1000 steps, or leave out [stop]."
        )


def _is_positive(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _validate_privacy(federation: Federation) -> None:
    """Raises if [privacy] is wrong: `messages` are settings of `db.privacy.noisy`, and `records` of
    `db.privacy.records`."""
    if federation.sampling not in SAMPLINGS:
        raise ValueError(f"sampling={federation.sampling!r} is not known: choose from {', '.join(SAMPLINGS)}.")
    known = {"messages": {"clip", "noise", "mixing"}, "records": {"clip", "noise", "products"}}
    _validate_known(federation.privacy, set(known), "[privacy] of the federation file")
    for kind, settings in federation.privacy.items():
        where = f"[privacy] {kind} of the federation file"
        _validate_known(settings, known[kind], where)
        for needed in ("clip", "noise"):
            if needed not in settings:
                raise ValueError(f"{where} lacks {needed!r}: write {kind} = {{ clip = ..., noise = ... }}.")
        # These raise on numbers that are none.
        _ = records(**settings) if kind == "records" else noisy("diffusion", **settings)
    if "records" in federation.privacy and federation.batch_size is not None and federation.sampling == "random":
        raise ValueError("[privacy] records needs every record in one batch of a pass: add sampling = 'shuffle-once'.")


def _validate_known(given: Mapping[str, JSON], known: set[str], where: str) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"{where} has {name!r}, which is not known: {hint(name, sorted(known))}")
