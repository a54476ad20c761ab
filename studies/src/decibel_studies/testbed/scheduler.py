"""Studies on a machine that is there for minutes: runs what fits into a given time, and continues the next time.

    python -m decibel_studies.testbed.scheduler OUT apps/mixtures sparkle/hyper-cleaning --seconds 470 --processes 3
    python -m decibel_studies.testbed.scheduler OUT apps/mixtures --collect studies/results

A job is an arm with one seed, or with `--seeds` of them. Processes share the jobs of all studies, one seed after the
other, and write each as it ends; what OUT or OUT/results.tar has is not run again. With `--tune` they share the search
of step sizes first, and runs begin when it has ended. `--collect` judges the studies of which all jobs are done.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .. import find
from ..files import write_file
from ..judging.results import Runs, Setup
from . import step_sizes
from .reproduce import collect
from .runs import about, digest, fingerprint, place, run_arm
from .study import Curve, Study

MODULE = "decibel_studies.testbed.scheduler"
ARCHIVE = "results.tar"
EVERY = 5.0  # seconds between two archives
MOST_BYTES = 2**30


@dataclass(frozen=True)
class Job:
    """An arm of a study with some of its seeds."""

    study: Study[Setup]
    size: str
    arm: Curve
    seeds: tuple[int, ...]

    def folder(self, out: Path) -> Path:
        return out / "jobs" / "-".join(map(str, self.seeds))

    def path(self, out: Path) -> Path:
        return place(self.folder(out), self.study, self.arm, fingerprint(self.study, self.size, self.arm))

    def done(self, out: Path) -> Runs | None:
        """Its runs with these very settings, whatever code and version of JAX made them; the newest."""
        path = self.path(out)
        wanted = json.loads(json.dumps(about(self.arm), default=str))
        files = path.parent.glob(path.stem.rpartition("-")[0] + f"-{'[0-9a-f]' * 8}.npz")
        newest_last = [Runs.load(file) for file in sorted(files, key=lambda file: file.stat().st_mtime)]
        return next((runs for runs in reversed(newest_last) if runs.made["arm"] == wanted), None)

    def run(self, out: Path) -> Runs:
        return run_arm(self.study, self.size, self.arm, self.seeds, self.folder(out), fresh=False)[0]


def jobs(names: list[str], size: str, at_once: int, case: str = "") -> Iterator[Job]:
    """Of all studies, the first seeds of every arm first; only arms whose case has that in its name."""
    studies = [find(name) for name in names]
    most = max(len(study.setup(size).seeds) for study in studies)
    for first in range(0, most, at_once):
        for study in studies:
            if seeds := tuple(study.setup(size).seeds[first : first + at_once]):
                yield from (Job(study, size, arm, seeds) for arm in step_sizes.applied(study, size) if case in arm.case)


def work(out: Path, names: list[str], size: str, at_once: int, case: str) -> int:
    """Runs jobs that no other process has begun; how many failed, which the next call tries again."""
    failed = 0
    for job in jobs(names, size, at_once, case):
        path = job.path(out)
        if path.exists() or not claimed(path.with_suffix(".begun")):
            continue
        start = time.time()
        what = f"{job.study.name}: {job.arm.case}, {job.arm.label}, {job.seeds}"
        try:
            job.run(out)
            print(f"{what}: {time.time() - start:.1f} s", flush=True)
        except Exception as error:  # one arm must not end the others' runs
            failed += 1
            print(f"{what}: {type(error).__name__}: {error}", flush=True)
    return failed


def claimed(file: Path) -> bool:
    """Whether this process is the first of the call to make the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def search(out: Path, names: list[str], size: str) -> None:
    """Searches step sizes of methods that no other process has begun."""
    for study in map(find, names):
        step_sizes.search(study, size, mine=partial(_mine, out, study.name), say=partial(print, flush=True))


def _mine(out: Path, study: str, key: str) -> bool:
    return claimed(out / f"{digest(study + key)}.begun")


def merge_settings(into: Path, other: Path) -> None:
    """Adds the step sizes of another file that this one does not have, or has of an older search."""
    if not other.exists():
        return
    whole, read = (json.loads(path.read_text()) if path.exists() else {} for path in (into, other))
    for size, methods in read.items():
        known = whole.setdefault(size, {})
        known |= {
            key: searched
            for key, searched in methods.items()
            if key not in known or searched["search"]["date"] > known[key]["search"]["date"]
        }
    into.parent.mkdir(parents=True, exist_ok=True)
    write_file(into, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def restore_settings(out: Path, names: list[str]) -> None:
    """Puts step sizes that an earlier call found beside the studies."""
    for beside in map(step_sizes.path_of, map(find, names)):
        merge_settings(beside, out / "settings" / beside.name)


def keep_settings(out: Path, names: list[str]) -> None:
    """Puts the studies' step sizes into OUT."""
    for beside in map(step_sizes.path_of, map(find, names)):
        merge_settings(out / "settings" / beside.name, beside)


def pack(out: Path) -> None:
    """All files in one, whole or not at all."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for path in sorted(out.rglob("*")):
            if path.suffix in (".npz", ".json", ".log"):
                archive.add(path, path.relative_to(out))
    write_file(out / ARCHIVE, held.getvalue())


def unpack(out: Path) -> None:
    """What an earlier call left, where it is not there yet."""
    if (out / ARCHIVE).exists():
        with tarfile.open(out / ARCHIVE) as archive:
            entries = [entry for entry in archive if entry.isfile() and not (out / entry.name).exists()]
            if sum(entry.size for entry in entries) > MOST_BYTES:
                raise ValueError(
                    f"{out / ARCHIVE} unpacks to more than {MOST_BYTES} bytes: this call did not write it."
                )
            archive.extractall(out, entries, filter="data")


def forget_begun(out: Path) -> None:
    """Runs that an earlier call had begun and not ended may be begun again."""
    for claim in out.rglob("*.begun"):
        claim.unlink()


def work_in_processes(
    out: Path, names: list[str], stage: str, options: list[str], processes: int, until: float
) -> list[int | None]:
    """Processes that work at a stage, `search` or `work`, until the time is over: how each ended, None if stopped."""
    command = [sys.executable, "-m", MODULE, str(out), *names, *options, f"--{stage}"]
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    with ExitStack() as files:
        logs = [files.enter_context(open(out / f"{stage}-{rank}.log", "a")) for rank in range(processes)]
        running = [subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT) for log in logs]
        while any(process.poll() is None for process in running) and time.time() < until:
            time.sleep(EVERY)
            keep(out, names, stage)
        codes = [process.poll() for process in running]
        for process in running:
            process.kill()
            process.wait()
    ends = ["stopped" if code is None else "done" if code == 0 else f"failed with {code}" for code in codes]
    print(f"{stage}: {', '.join(ends)}")
    keep(out, names, stage)
    return codes


def keep(out: Path, names: list[str], stage: str) -> None:
    """What there is so far, in one file; with the step sizes, if they are being searched."""
    if stage == "search":
        keep_settings(out, names)
    pack(out)


def gather(out: Path, names: list[str], size: str, at_once: int, into: Path) -> None:
    """Puts the jobs of whole studies together, and judges them."""
    for name in names:
        parts: dict[tuple[str, str], list[Runs]] = {}
        missing: list[str] = []
        for job in jobs([name], size, at_once):
            if runs := job.done(out):
                parts.setdefault((job.arm.case, job.arm.label), []).append(runs)
            else:
                missing.append(f"{job.arm.case}, {job.arm.label}, {job.seeds}")
        if missing:
            print(f"{name}: {len(missing)} jobs are missing; the first is {missing[0]}")
            continue
        for verdict in collect(find(name), size, into, list(map(joined, parts.values()))):
            print(f"{name} {verdict.claim}: {verdict.verdict}")


def joined(parts: list[Runs]) -> Runs:
    """The runs of an arm, of which every part has some seeds: with all devices and versions that made them."""
    made = parts[-1].made.copy()
    made["seconds"] = round(sum(part.made["seconds"] for part in parts), 1)
    for name in ("device", "decibel", "jax", "python"):
        made[name] = "; ".join(sorted({part.made[name] for part in parts}))
    return Runs(parts[0].case, parts[0].label, [trace for part in parts for trace in part.traces], made)


def main() -> None:
    options = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    options.add_argument("out", type=Path)
    options.add_argument("studies", nargs="+")
    options.add_argument("--size", default="full")
    options.add_argument("--seconds", type=float, default=470, help="after which it stops (default: %(default)s)")
    options.add_argument("--processes", type=int, default=2, help="that share the jobs (default: %(default)s)")
    options.add_argument("--seeds", type=int, default=1, help="seeds that run as one job (default: %(default)s)")
    options.add_argument("--case", default="", help="only arms whose case has this in its name")
    options.add_argument("--tune", action="store_true", help="search step sizes first")
    options.add_argument("--collect", type=Path, metavar="FOLDER", help="judge what is complete, into FOLDER")
    options.add_argument("--search", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.seeds < 1:
        options.error(f"--seeds {given.seeds} must be at least 1")
    names = given.studies
    if given.search:
        return search(given.out, names, given.size)
    if given.work:
        sys.exit(bool(work(given.out, names, given.size, given.seeds, given.case)))
    until = time.time() + given.seconds
    given.out.mkdir(parents=True, exist_ok=True)
    unpack(given.out)
    restore_settings(given.out, names)
    if given.collect:
        return gather(given.out, names, given.size, given.seeds, given.collect)
    forget_begun(given.out)
    passed = ["--size", given.size, "--seeds", str(given.seeds), "--case", given.case]
    stages = ("search", "work") if given.tune else ("work",)
    for stage in stages:
        codes = work_in_processes(given.out, names, stage, passed, given.processes, until)
        if any(codes) or None in codes:  # no run begins before all step sizes are there
            sys.exit(any(codes))


if __name__ == "__main__":
    main()
