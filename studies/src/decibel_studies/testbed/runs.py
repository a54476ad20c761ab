"""The runs of an arm over all seeds, kept on disk by the fingerprint of what they depend on."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import MISSING
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import cast

import jax

import decibel
from decibel import CATALOG

from ..judging.results import Made, Runs, S
from ..type_aliases import JSON
from .study import Arm, Curve, Study, device

# What a study's file names so serves to judge, or is in the set-up, and no run depends on it.
ELSEWHERE = ("STUDY", "SETUPS", "TOLERANCE", "GROWTH", "SLOPE", "SAME", "MATCH", "LITTLE", "COLLAPSED")
# Of methods and tasks by name: raise one whose numbers change. Others are at 1.
VERSIONS: Mapping[str, int] = {}
PATH = re.compile(r"(?:<class ')?(?:[A-Za-z_]\w*\.)+(\w+)(?:'>)?")  # of a function or a class


def fingerprint(study: Study[S], size: str, arm: Curve) -> str:
    """Of all that says which numbers these are: the set-up, the arm with its settings and its graph, the versions of
    its method and task, and the study's own code. Comments, docstrings, claims, names of modules, the library's other
    code and JAX may change without a run being lost; what made a run is written beside its numbers."""
    depends = {
        "study": study.name,
        "setup": dataclasses.asdict(study.setup(size)),
        "arm": described(arm),
        "code": code_of(Path(study.arms.__code__.co_filename)),
        "precision": study.precision,
    }
    return hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()[:20]


def described(arm: Curve) -> object:
    """What the numbers of an arm depend on, with versions, without the modules that things are in, and without settings
    at their defaults, so that a new option changes no fingerprint; whoever changes a default raises the version."""
    plain = _plain(arm.describe())
    if not isinstance(arm, Arm):
        return plain
    name = arm.method.name
    usual = _plain(CATALOG[name]().settings) if name in CATALOG else {}
    plain["method"] = _other_than(usual, cast(Mapping[str, JSON], plain["method"]))
    names = (name, arm.describe()["task"]["function"].rpartition(".")[2])
    return [_other_than(USUAL_ARM, plain), {name: VERSIONS.get(name, 1) for name in names}]


def _other_than(usual: Mapping[str, JSON], given: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in given.items() if name not in usual or usual[name] != value}


def _plain(values: object) -> dict[str, JSON]:
    """As JSON has it, without modules."""
    return cast(dict[str, JSON], _unplaced(json.loads(json.dumps(values, default=str))))


def _unplaced(value: JSON) -> JSON:
    if isinstance(value, dict):
        return {name: _unplaced(part) for name, part in value.items() if name not in ("class", "code")}
    if isinstance(value, list):
        return [_unplaced(part) for part in value]
    path = PATH.fullmatch(value) if isinstance(value, str) else None
    return path[1] if path else value


USUAL_ARM = _plain({field.name: field.default for field in dataclasses.fields(Arm) if field.default is not MISSING})


@cache
def code_of(path: Path) -> str:
    """A hash of a study's file, and of those beside it that it imports, without comments, docstrings, imports and
    claims: judges, whose first argument is `results`."""
    paths = [path]
    parts: list[str] = []
    for path in paths:  # grows while it is read
        tree = ast.parse(path.read_text())
        beside = [node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 1]
        siblings = [path.with_name(f"{name}.py") for name in beside if name]
        paths += [other for other in siblings if other not in paths]
        tree.body = [node for node in tree.body if not _claims(node)]
        parts.append(_bare(tree))
    return digest("\n".join(parts))


def _claims(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.FunctionDef):
        arguments = node.args.args
        return bool(arguments) and arguments[0].arg == "results"
    names = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(name, ast.Name) and name.id in ELSEWHERE for name in names)


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
    study: Study[S], size: str, arm: Curve, seeds: tuple[int, ...], folder: Path, *, fresh: bool
) -> tuple[Runs, bool]:
    """The runs of an arm, from disk where they are there, and whether they had to be computed."""
    mark = fingerprint(study, size, arm)
    path = place(folder, study, arm, mark)
    if path.exists() and not fresh:
        saved = Runs.load(path)
        if saved.made.get("fingerprint") == mark:
            return saved, False
    begun = time.perf_counter()
    with jax.default_matmul_precision(study.precision):
        traces = arm.run(seeds)
    made: Made = {
        "fingerprint": mark,
        "size": size,
        "seconds": round(time.perf_counter() - begun, 1),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"{device()}, {os.cpu_count()} CPU cores ({processor()}), {platform.system()}",
        "decibel": decibel.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "arm": about(arm),
    }
    runs = Runs(arm.case, arm.label, traces, made)
    runs.save(path)
    # Read back, so that a verdict never depends on whether the runs were kept or just made.
    return Runs.load(path), True


@cache
def processor() -> str:
    """Its model, by which rounding may differ."""
    known = Path("/proc/cpuinfo")
    models = re.findall(r"model name\s*: (.*)", known.read_text()) if known.exists() else []
    return models[0] if models else platform.processor() or platform.machine()


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
