"""The runs of an arm over all seeds, kept on disk by the fingerprint of what they depend on."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import platform
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import __version__
from ..core._files import atomic_writer
from ..core._ledger import COSTS
from ..results._trace import Trace
from .study import Arm, Study, device

ROOT = Path(__file__).parent.parent
# The code that the numbers of a run depend on.
MATTERS = (
    "core/_conjugate_gradients.py", "core/_keys.py", "core/_ledger.py", "core/_vector.py", "engines/_batch.py",
    "engines/_program.py", "engines/_simulator.py", "graphs", "methods", "network/_in_memory.py", "network/_mixing.py",
    "oracles", "problem", "results/metrics.py", "strategies", "studies/cleaning.py", "studies/schedules.py",
    "studies/sources.py", "tasks",
)  # fmt: skip
# What a study's file names so serves to judge, and no run depends on it.
JUDGING = ("STUDY", "TOLERANCE", "GROWTH", "SLOPE", "SAME", "MATCH", "LITTLE", "COLLAPSED")
MOST_ROWS = 200


class Runs:
    """The traces of an arm, one per seed, and what they were made from."""

    def __init__(self, case: str, label: str, traces: Iterable[Trace], made: Mapping[str, Any] | None = None) -> None:
        self.case, self.label, self.traces, self.made = case, label, list(traces), dict(made or {})

    @property
    def columns(self) -> list[str]:
        return [name for name in self.traces[0] if name not in COSTS]

    @property
    def stopped(self) -> list[str | None]:
        return [trace.provenance.get("stopped") for trace in self.traces]

    def last(self, column: str, share: float = 0.1) -> np.ndarray:
        """(seeds,) the mean over the last rows, which evens out noise; NaN for a run that diverged."""
        values = []
        for trace, stopped in zip(self.traces, self.stopped, strict=True):
            tail = trace[column][-max(1, round(share * trace.rows)) :]
            values.append(np.nan if stopped else float(np.mean(tail)))
        return np.array(values)

    def first(self, column: str) -> np.ndarray:
        return np.array([trace[column][0] for trace in self.traces])

    def mean(self, column: str, against: str = "step", limit: float | None = None, *, log: bool = False) -> np.ndarray:
        """(seeds,) the average height of the curve against a cost, up to `limit`: small where a fall is fast."""
        values = []
        for trace, stopped in zip(self.traces, self.stopped, strict=True):
            cost, height = np.asarray(trace[against], float), np.asarray(trace[column], float)
            end = cost[-1] if limit is None else min(limit, cost[-1])
            grid = np.linspace(cost[0], end, 201)
            curve = np.interp(grid, cost, np.log10(np.maximum(height, 1e-300)) if log else height)
            values.append(np.nan if stopped else float(curve.mean()))
        return np.array(values)

    def at(self, column: str, against: str, value: float) -> np.ndarray:
        """(seeds,) the column where the cost is `value`; NaN for a run that diverged."""
        found = [np.interp(value, trace[against], trace[column]) for trace in self.traces]
        return np.where([stopped is not None for stopped in self.stopped], np.nan, found)

    def reach(self, column: str, level: float, against: str = "samples", *, window: int = 3) -> np.ndarray:
        """(seeds,) the cost at which the column, averaged over `window` rows, is first at or below `level`."""
        found = []
        for trace in self.traces:
            width = min(window, trace.rows)
            smooth = np.convolve(trace[column], np.ones(width) / width, "valid")
            below = np.flatnonzero(smooth <= level)
            found.append(float(trace[against][below[0] + width - 1]) if below.size else np.inf)
        return np.array(found)

    def slope(self, column: str, share: float = 0.9, against: str = "step") -> np.ndarray:
        """(seeds,) of log(column) against log(cost), over the last `share` of the cost."""
        slopes = []
        for trace in self.traces:
            cost, values = np.asarray(trace[against], float), np.asarray(trace[column], float)
            late = (cost >= (1 - share) * cost[-1]) & (cost > 0) & (values > 0)
            slopes.append(np.polyfit(np.log(cost[late]), np.log(values[late]), 1)[0] if late.sum() > 1 else np.nan)
        return np.array(slopes)

    def save(self, path: Path) -> Path:
        """One .npz, whole or not at all: columns (seeds, rows) in single precision, thinned to at most 200 rows."""
        rows = max(trace.rows for trace in self.traces)
        keep = np.unique(np.linspace(0, rows - 1, min(rows, MOST_ROWS)).round().astype(int))
        columns = {}
        for name in self.traces[0]:
            table = np.full((len(self.traces), len(keep)), np.nan)
            for row, trace in zip(table, self.traces, strict=True):
                mine = keep[keep < trace.rows]
                row[: len(mine)] = trace[name][mine]
            columns[f"column/{name}"] = table if name in COSTS else table.astype(np.float32)
        about = {"case": self.case, "label": self.label, "made": self.made}
        about["seeds"] = [trace.provenance.get("seed") for trace in self.traces]
        about["stopped"] = self.stopped
        columns["about"] = np.array(json.dumps(about, default=str))
        with atomic_writer(path) as file:
            np.savez_compressed(file, allow_pickle=False, **columns)
        return path

    @classmethod
    def load(cls, path: Path) -> Runs:
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                columns = {n.removeprefix("column/"): file[n] for n in file.files if n.startswith("column/")}
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{path} does not hold runs saved by Decibel, or it is damaged: delete it.") from error
        traces = []
        for i, (seed, stopped) in enumerate(zip(about["seeds"], about["stopped"], strict=True)):
            there = ~np.isnan(columns["step"][i]) if "step" in columns else slice(None)
            own = {name: table[i][there].astype(float) for name, table in columns.items()}
            traces.append(Trace(own, {"seed": seed, "stopped": stopped}))
        return cls(about["case"], about["label"], traces, about["made"])


def fingerprint(study: Study, size: str, arm: Any) -> str:
    """Of all that the numbers depend on: the set-up, the arm with its settings and its graph, the seeds, the code that
    runs it and JAX's version and precision. Comments, docstrings and claims may change without a run being lost."""
    setup = study.setup(size)
    depends = {
        "study": study.name,
        "setup": dataclasses.asdict(setup),
        "arm": arm.describe(),
        "code": [code(), code_of_study(study)],
        "jax": [jax.__version__, bool(jax.config.read("jax_enable_x64")), study.precision],
    }
    return hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()[:20]


@cache
def code() -> str:
    """A hash of the source that runs depend on, without comments and docstrings."""
    paths = [path for name in MATTERS for path in sorted((ROOT / name).rglob("*.py")) or [ROOT / name]]
    return digest("\n".join(_bare(ast.parse(path.read_text())) for path in paths))


def code_of_study(study: Study) -> str:
    """A hash of the study's file without its claims: judges, whose first argument is `results`, and `JUDGING`."""
    tree = ast.parse(Path(study.arms.__code__.co_filename).read_text())
    tree.body = [node for node in tree.body if not _claims(node)]
    return digest(_bare(tree))


def _claims(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        arguments = node.args.args
        return bool(arguments) and arguments[0].arg == "results"
    names = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(name, ast.Name) and name.id in JUDGING for name in names)


def _bare(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def place(folder: Path, study: Study, arm: Any, mark: str) -> Path:
    """Where the runs of an arm are kept."""
    return folder / study.name / "runs" / f"{_slug(arm.case)}--{_slug(arm.label)}-{mark[:8]}.npz"


def _slug(text: str) -> str:
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
    return "-".join(part for part in kept.split("-") if part) or "all"


def run_arm(
    study: Study, size: str, arm: Arm, seeds: tuple[int, ...], folder: Path, *, fresh: bool, same: Runs | None = None
) -> tuple[Runs, bool]:
    """The runs of an arm, from disk where they are there, and whether they had to be made: computed, or taken from
    `same`, an arm of the same settings."""
    mark = fingerprint(study, size, arm)
    path = place(folder, study, arm, mark)
    if path.exists() and not fresh:
        found = Runs.load(path)
        if found.made.get("fingerprint") == mark:
            return found, False
    begun = time.perf_counter()
    if same is None:
        with jax.default_matmul_precision(study.precision):
            traces = arm.run(seeds)
    else:
        traces = same.traces
    made = {
        "fingerprint": mark, "size": size, "seconds": round(time.perf_counter() - begun, 1),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"{device()}, {os.cpu_count()} CPU cores, {platform.system()}",
        "decibel": __version__, "jax": jax.__version__, "python": platform.python_version(),
        "arm": _without_matrices(arm.describe()), "same_as": None if same is None else [same.case, same.label],
    }  # fmt: skip
    runs = Runs(arm.case, arm.label, traces, made)
    runs.save(path)
    # Read back, so that a verdict never depends on whether the runs were kept or just made.
    return Runs.load(path), True


def _without_matrices(about: dict[str, Any]) -> dict[str, Any]:
    graph = about.get("graph")
    if graph is None:
        return about
    return {**about, "graph": {level: f"{g['name']}, {g['nodes']} nodes" for level, g in graph.items()}}


def forget(folder: Path, study: Study, keep: set[Path]) -> None:
    """Deletes runs of settings that are no longer used."""
    for path in (folder / study.name / "runs").glob("*.npz"):
        if path not in keep:
            path.unlink()
