"""A run as lines of JSON, which any program can follow while it is written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jaxtyping import Float

from ...core._files import atomic_write
from ...core._json import JSON, Provenance, Row, without_nan
from ...core._vector import Vector
from ...graphs._graph import Levels
from .._status import Status
from ..metrics import Snapshot
from ._logger import Logger, resumed

MOST_EDGES = 100_000  # a drawing shows no more


class JSONL(Logger):
    """Logs a run to a file with one JSON object per line, written at once; non-finite numbers are null.

    - `{"kind": "begin", "about": {…}, "graph": {"name": …, "nodes": N, "edges": [[i, j], …]}}`: the provenance, and the
      edges of the graph of x in any phase (empty if there are more than 100,000).
    - `{"kind": "row", "step": s, "row": {…}, "nodes": […]}`: a row of the trace, and ‖x_i − x̄‖ of each node (empty if
      other organisations hold the other nodes).
    - `{"kind": "end", "status": "completed", "message": null}`: how the run ended, and why if it ended early.

    A new run replaces the file. A resumed run keeps the rows up to the step it resumes from and appends to them.

    Args:
        path: the file.
        about: what else to write of the run, such as the name of its task.
    """

    def __init__(self, path: str | os.PathLike[str], about: Mapping[str, JSON] | None = None) -> None:
        self.path, self._more = Path(path), dict(about or {})
        self._file: TextIO | None = None
        self._apart: list[float] = []
        self._nodes = 0

    def begin(self, about: Provenance, graphs: Levels) -> None:
        self._nodes = graphs.nodes
        if not self.writes:
            return
        before = resumed(about)
        earlier_lines = [] if before is None else list(rows_until(self.path, before))
        first: dict[str, JSON] = {"kind": "begin", "about": {**about, **self._more}, "graph": _drawn(graphs)}
        try:
            atomic_write(self.path, "".join(_line(entry) for entry in (first, *earlier_lines)))
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise OSError(f"path={str(self.path)!r} cannot be written ({reason}): name another file.") from None

    def see(self, step: int, snapshot: Snapshot) -> None:
        apart = _from_the_mean(snapshot.state.x.s)
        distances = multihost_utils.process_allgather(apart, tiled=True) if jax.process_count() > 1 else apart
        numbers = np.asarray(distances, np.float64).tolist()
        self._apart = numbers if len(numbers) == self._nodes else []

    def __call__(self, step: int, row: Row) -> None:
        self._write({"kind": "row", "step": step, "row": dict(row), "nodes": self._apart})

    def end(self, status: Status, message: str | None) -> None:
        self._write({"kind": "end", "status": status, "message": message})
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, entry: dict[str, JSON]) -> None:
        if self._file is not None:
            self._file.write(_line(entry))
            self._file.flush()


def rows_until(path: Path, step: int) -> Iterator[dict[str, JSON]]:
    """The rows of a file that are whole and not beyond that step."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    for line in lines:
        try:
            entry: JSON = json.loads(line)
        except json.JSONDecodeError:  # cut off where the process was killed
            continue
        if isinstance(entry, dict) and entry.get("kind") == "row" and cast("int", entry["step"]) <= step:
            yield entry


@jax.jit
def _from_the_mean(s: Vector) -> Float[Array, " nodes"]:
    return jnp.sqrt(s.centred().squared_norms())


def _drawn(graphs: Levels) -> dict[str, JSON]:
    pairs = {tuple(sorted(pair)) for phase in graphs.x.phases for pair in phase.edges.tolist()}
    edges = sorted(map(list, pairs)) if len(pairs) <= MOST_EDGES else []
    return {"name": graphs.x.name, "nodes": graphs.nodes, "edges": edges}


def _line(entry: dict[str, JSON]) -> str:
    return json.dumps(without_nan(entry), default=str, ensure_ascii=False, allow_nan=False) + "\n"
