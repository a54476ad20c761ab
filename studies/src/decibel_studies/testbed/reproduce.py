"""`decibel reproduce`: runs a study, judges its claims and leaves traces, verdicts and settings in a folder."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Literal, NamedTuple, NotRequired, TypedDict

import numpy as np

from ..files import write_file
from ..judging import registration
from ..judging.results import Results, Runs, S, Setup
from ..judging.verdicts import ClaimRecord, Verdict
from ..type_aliases import JSON
from . import step_sizes
from .runs import fingerprint, forget, place, run_arm
from .study import Arm, Call, Curve, Study


class Verdicts(TypedDict):
    """verdicts.json: what was judged, and when, where and with what the runs were made."""

    study: str
    size: str
    command: str
    date: str
    device: str
    seconds: float
    seeds: list[int]
    registered: str | None  # when the set-up was registered
    fresh: bool  # whether the seeds were not looked at before
    note: str
    versions: dict[str, str]
    claims: list[ClaimRecord]


class ArmRecord(TypedDict):
    """An arm as settings.json holds it."""

    case: str
    label: str
    step_sizes: str
    method: NotRequired[dict[str, JSON]]
    steps: NotRequired[int]
    batch_size: NotRequired[int | None]
    samples: NotRequired[float | None]
    task: NotRequired[Call]
    graph: NotRequired[dict[str, str]]


class Chosen(TypedDict):
    """settings.json: the set-up, the arms and the searches."""

    setup: dict[str, JSON]
    arms: list[ArmRecord]
    searched: step_sizes.Settings


def reproduce(
    study: Study[S], size: str, out: Path, *, fresh: bool = False, say: Callable[[str], None] = print
) -> list[Verdict[S]]:
    """Runs what is not there yet, and judges."""
    setup = study.setup(size)
    arms = step_sizes.applied(study, size)
    runs: list[Runs] = []
    kept: set[Path] = set()
    for arm in arms:
        ran, new = run_arm(study, size, arm, setup.seeds, out, fresh=fresh)
        runs.append(ran)
        kept.add(place(out, study, arm, fingerprint(study, size, arm)))
        took = f"{ran.made['seconds']:.1f} s" if new else "kept"
        diverged = sum(stop is not None for stop in ran.stopped)
        say(f"  {arm.case}, {arm.label}: {took}" + (f"; {diverged} of {len(setup.seeds)} diverged" if diverged else ""))
    forget(out, study, kept)
    _write(out / study.name / "settings.json", _settings(setup, arms, step_sizes.load(study, size)))
    return _judge(study, size, out, runs)


def collect(study: Study[S], size: str, out: Path, runs: list[Runs]) -> list[Verdict[S]]:
    """Keeps runs of all arms that were made elsewhere in a folder, instead of those there, and judges them."""
    arms = step_sizes.applied(study, size)
    paths = [ran.save(place(out, study, arm, ran.made["fingerprint"])) for arm, ran in zip(arms, runs, strict=True)]
    kept = list(map(Runs.load, paths))
    forget(out, study, set(paths))
    _write(out / study.name / "settings.json", _settings(study.setup(size), arms, step_sizes.load(study, size)))
    return _judge(study, size, out, kept)


def judge(study: Study[S], out: Path) -> list[Verdict[S]]:
    """Judges once more the runs that a folder holds, whatever machine and code made them."""
    loaded = load(study, out)
    size = loaded.verdicts["size"]
    if loaded.settings["setup"] != _plain(dataclasses.asdict(study.setup(size))):
        command = loaded.verdicts["command"]
        raise ValueError(f"{out / study.name} was run with another set-up: run `{command}` again.")
    return _judge(study, size, out, loaded.runs)


def _judge(study: Study[S], size: str, out: Path, runs: list[Runs]) -> list[Verdict[S]]:
    """The verdicts; beside the traces they leave when, where and with what these were made."""
    setup = study.setup(size)
    results = Results(setup, {(each.case, each.label): each for each in runs})
    registered = registration.find(study.name)
    with np.errstate(divide="ignore"):  # log₁₀ of no samples, where a small run begins below a level
        verdicts = [
            claim(
                results,
                registration.stated(study.name, claim.name)["whose"],
                registration.looks(study.name, claim.name),
            )
            for claim in study.claims
        ]
    about: Verdicts = {
        "study": study.name,
        "size": size,
        "command": f"decibel reproduce {study.name} --size {size}",
        "date": max(each.made["date"] for each in runs),
        "device": _all(runs, "device"),
        "seconds": round(sum(each.made["seconds"] for each in runs), 1),
        "seeds": list(setup.seeds),
        "registered": registered.date if registered and registered.full is not None and size == "full" else None,
        "fresh": registered is not None and registered.fresh,
        "note": registered.note if registered else "",
        "versions": {"decibel": _all(runs, "decibel"), "jax": _all(runs, "jax"), "python": _all(runs, "python")},
        "claims": [verdict.as_dict() for verdict in verdicts],
    }
    _write(out / study.name / "verdicts.json", about)
    return verdicts


def _all(runs: list[Runs], name: Literal["device", "decibel", "jax", "python"]) -> str:
    return "; ".join(sorted({each.made[name] for each in runs}))


class Loaded(NamedTuple):
    """What a run of a study left in a folder, its runs in the order of the arms."""

    verdicts: Verdicts
    settings: Chosen
    runs: list[Runs]


def load(study: Study[S], out: Path) -> Loaded:
    """What a run of the study left in a folder."""
    folder = out / study.name
    if not (folder / "verdicts.json").exists():
        raise ValueError(f"{folder} holds no results: run `decibel reproduce {study.name} --out {out}` first.")
    verdicts: Verdicts = json.loads((folder / "verdicts.json").read_text())
    chosen: Chosen = json.loads((folder / "settings.json").read_text())
    order = {(arm["case"], arm["label"]): i for i, arm in enumerate(chosen["arms"])}
    runs = [Runs.load(path) for path in sorted((folder / "runs").glob("*.npz"))]
    return Loaded(verdicts, chosen, sorted(runs, key=lambda run: order.get((run.case, run.label), len(order))))


def in_processes(
    names: list[str], size: str, out: Path, *, jobs: int, options: list[str]
) -> Iterator[tuple[str, str, bool]]:
    """Every study in a process of its own, `jobs` at a time; what each said, and whether it failed, as they end."""

    def reproduced(name: str) -> tuple[str, str, bool]:
        command = [sys.executable, "-m", "decibel_studies", "reproduce", name, "--several", *options]
        command += ["--size", size, "--out", str(out)]
        # Processes share an accelerator, so none may take all of its memory at the start.
        environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        failed = done.returncode != 0
        return name, done.stdout + (done.stderr if failed else ""), failed

    with ThreadPoolExecutor(jobs) as pool:
        for ended in as_completed([pool.submit(reproduced, name) for name in names]):
            yield ended.result()


def _settings(setup: Setup, arms: Sequence[Curve], settings: step_sizes.Settings) -> Chosen:
    rows: list[ArmRecord] = []
    for arm in arms:
        row: ArmRecord = {"case": arm.case, "label": arm.label, "step_sizes": step_sizes.status(arm, settings)}
        if isinstance(arm, Arm):
            about = arm.describe()
            row = {
                **row,
                "method": about["method"],
                "steps": arm.steps,
                "batch_size": arm.batch_size,
                "samples": arm.samples,
                "task": about["task"],
                "graph": {level: g["name"] for level, g in about["graph"].items()},
            }
        rows.append(row)
    return {"setup": dataclasses.asdict(setup), "arms": rows, "searched": settings}


def _write(path: Path, content: Mapping[str, object]) -> None:
    write_file(path, json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n")


def _plain(content: Mapping[str, object]) -> JSON:
    """As it comes back from a file."""
    return json.loads(json.dumps(content, default=str))
