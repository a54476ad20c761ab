"""The runs of an arm over all seeds, kept on disk by the fingerprint of what they depend on."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import jax

from .. import __version__
from .results import Made, Runs, S
from .study import Arm, Curve, Study, device

ROOT = Path(__file__).parent.parent
# The code that the numbers of a run depend on.
MATTERS = (
    "core/_conjugate_gradients.py", "core/_keys.py", "core/_ledger.py", "core/_vector.py", "engines/_batch.py",
    "engines/_program.py", "engines/_simulator.py", "graphs", "methods", "network/_in_memory.py", "network/_mixing.py",
    "oracles", "problem", "results/metrics.py", "strategies", "studies/cleaning.py", "studies/mixing.py",
    "studies/schedules.py",
    "studies/sources.py", "tasks",
)  # fmt: skip
# What a study's file names so serves to judge, and no run depends on it.
JUDGING = ("STUDY", "TOLERANCE", "GROWTH", "SLOPE", "SAME", "MATCH", "LITTLE", "COLLAPSED")


def fingerprint(study: Study[S], size: str, arm: Curve) -> str:
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


def code_of_study(study: Study[S]) -> str:
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


def place(folder: Path, study: Study[S], arm: Curve, mark: str) -> Path:
    """Where the runs of an arm are kept."""
    return folder / study.name / "runs" / f"{_slug(arm.case)}--{_slug(arm.label)}-{mark[:8]}.npz"


def _slug(text: str) -> str:
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
    return "-".join(part for part in kept.split("-") if part) or "all"


def run_arm(
    study: Study[S],
    size: str,
    arm: Curve,
    seeds: tuple[int, ...],
    folder: Path,
    *,
    fresh: bool,
    same: Runs | None = None,
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
    made: Made = {
        "fingerprint": mark, "size": size, "seconds": round(time.perf_counter() - begun, 1),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"{device()}, {os.cpu_count()} CPU cores, {platform.system()}",
        "decibel": __version__, "jax": jax.__version__, "python": platform.python_version(),
        "arm": about(arm), "same_as": None if same is None else [same.case, same.label],
    }  # fmt: skip
    runs = Runs(arm.case, arm.label, traces, made)
    runs.save(path)
    # Read back, so that a verdict never depends on whether the runs were kept or just made.
    return Runs.load(path), True


def about(arm: Curve) -> Mapping[str, object]:
    """What its numbers depend on, with graphs by name."""
    if not isinstance(arm, Arm):
        return arm.describe()
    known = arm.describe()
    return {**known, "graph": {level: f"{g['name']}, {g['nodes']} nodes" for level, g in known["graph"].items()}}


def forget(folder: Path, study: Study[S], keep: set[Path]) -> None:
    """Deletes runs of settings that are no longer used."""
    for path in (folder / study.name / "runs").glob("*.npz"):
        if path not in keep:
            path.unlink()
