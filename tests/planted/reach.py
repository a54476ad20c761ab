"""Which tests run which lines: measured by `measure`, and guessed from names before that.

Each test is a context of its own. A step is traced at its first use only, and the tests after it use what was compiled:
so JAX's caches are cleared before each file of tests, and a fault is given to all tests of a file in which one runs its
lines. Processes that tests start are measured as well.

This module is also the pytest plugin that tells coverage which test runs.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .places import Fault, lines, place_of

CONFIG = """[run]
source_pkgs = decibel, decibel_studies
data_file = {data}
parallel = true
sigterm = true
context = ${{PYTEST_CURRENT_TEST-}}
disable_warnings = module-not-imported, no-data-collected, module-not-measured, dynamic-conflict
"""
FILES = 8  # of tests in a process: more would hold what they compiled in memory
TESTS = 40  # that are given to a process at once


def measure(root: Path, folder: Path) -> None:
    """Runs the default tests of a tree under coverage; goes on after the files of tests that are measured."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "coverage.cfg"
    config.write_text(CONFIG.format(data=folder / "coverage"))
    done = {test.partition("::")[0] for test in _seconds(folder)}
    waiting = [file for file in _test_files(root) if file not in done]
    for start in range(0, len(waiting), FILES):
        part = waiting[start : start + FILES]
        print(f"measuring {part[0]} and {len(part) - 1} more, {start} of {len(waiting)} done", flush=True)
        notes = folder / f"seconds-{len(done) + start}.json"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "planted.reach", *part],
            cwd=root,
            env={**os.environ, "COVERAGE_PROCESS_START": str(config), "PLANTED_NOTES": str(notes)},
            stdout=subprocess.DEVNULL,
        )


def report(root: Path, folder: Path) -> str:
    """The share of lines of the library that the default tests run, in all and by package."""
    from coverage import Coverage

    whole = Coverage(data_file=str(folder / "all"), config_file=False)
    whole.combine([str(file) for file in _data(folder)], keep=True)
    run: dict[str, list[int]] = {}
    library = root / "src/decibel"
    for path in sorted(library.rglob("*.py")):
        _, statements, _, missing, _ = whole.analysis2(str(path))
        package = path.relative_to(library).parts[0].removesuffix(".py")
        for name in (package, "all of decibel"):
            counts = run.setdefault(name, [0, 0])
            counts[0] += len(statements) - len(missing)
            counts[1] += len(statements)
    return "\n".join(
        f"{name}: {100 * hit / max(1, total):.1f} % of {total} lines" for name, (hit, total) in run.items()
    )


def tests_of(fault: Fault, root: Path, folder: Path) -> list[list[str]]:
    """What may find a fault, in the order in which it is tried: tests that run its lines, the quickest first, and then
    the other tests of their files. Where none is known to: the files of tests of its package."""
    seconds = _seconds(folder)
    reaching = _covering(fault, root, folder)
    files = {test.partition("::")[0] for test in reaching}
    chosen = [test for test in seconds if test.partition("::")[0] in files]
    if not chosen:
        return [[file] for file in _likely(fault, root)]
    chosen.sort(key=lambda test: (test not in reaching, seconds[test]))
    return [chosen[start : start + TESTS] for start in range(0, len(chosen), TESTS)]


def _likely(fault: Fault, root: Path) -> list[str]:
    """The files of tests of a fault's package, those first that name what it is in."""
    path = place_of(fault, root).path
    names = [name.strip("_") for name in (*fault.within.split("."), path.stem)]
    package = path.parent.relative_to("src/decibel").parts if path.is_relative_to("src/decibel") else ()

    def distance(file: str) -> tuple[int, int]:
        text = (root / file).read_text()
        parts = Path(file).parts[1:-1]
        near = sum(a == b for a, b in zip(parts, package, strict=False)) if package else file.startswith("studies")
        return -int(near), -sum(name in text for name in names if len(name) > 2)

    return sorted(_test_files(root), key=distance)[:12]


def _test_files(root: Path) -> list[str]:
    tops = (root / "tests", root / "studies/tests")
    return [str(file.relative_to(root)) for top in tops for file in sorted(top.rglob("test_*.py"))]


def _data(folder: Path) -> list[Path]:
    return [file for file in folder.glob("coverage.*") if file.suffix != ".cfg"]


def _seconds(folder: Path) -> dict[str, float]:
    """How long each test took that passed."""
    found: dict[str, float] = {}
    for file in folder.glob("seconds-*.json"):
        found |= json.loads(file.read_text())
    return found


def _covering(fault: Fault, root: Path, folder: Path) -> set[str]:
    from coverage import CoverageData

    path, changed = lines(fault, root)
    found: set[str] = set()
    for file in _data(folder):
        data = CoverageData(str(file))
        data.read()
        contexts = data.contexts_by_lineno(str(root / path))
        found |= {context for line in changed for context in contexts.get(line, ())}
    return {context.rpartition(" (")[0] or context for context in found}


# The plugin

_file = ""
_spent: dict[str, float] = {}
_failed: set[str] = set()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item):
    global _file
    import jax
    from coverage import Coverage

    if item.location[0] != _file:
        _file = item.location[0]
        jax.clear_caches()
        gc.collect()
    if (coverage := Coverage.current()) is not None:
        coverage.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _spent[report.nodeid] = _spent.get(report.nodeid, 0.0) + report.duration
    if report.outcome != "passed":
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    passed = {test: round(spent, 2) for test, spent in _spent.items() if test not in _failed}
    Path(os.environ["PLANTED_NOTES"]).write_text(json.dumps(passed))
