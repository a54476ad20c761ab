"""Plants faults and says which test finds each.

`python -m planted` tries those that `found.json` does not say anything about, `--again` all of them, and names those
with these names; what is done is kept, so that an interrupted call goes on. `--measure` finds out which tests run which
lines (once, as long as the default tests take), and prints the share of lines that they run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import cache_from_source
from pathlib import Path

from xla import flags

from . import reach
from .faults import FAULTS
from .places import Fault, planted
from .worker import run_tests

ROOT = Path(__file__).resolve().parents[2]
FOUND = Path(__file__).with_name("found.json")
BUILD = ROOT / "build/planted"
DONE = BUILD / "done.json"
TREE = BUILD / "tree"  # what was measured: lines are looked up there, and the source may go on changing
IMPORTED = ("jax", "optax", "equinox", "optimistix", "lineax", "networkx", "scipy.stats", "scipy.sparse.linalg")
MOST_SECONDS = 900  # for the tests that one process is given; beyond it the fault has made one hang


def main() -> int:
    parser = argparse.ArgumentParser(prog="planted", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults; all that are not noted yet if none is given")
    parser.add_argument("--again", action="store_true", help="all, also those that are noted")
    parser.add_argument("--measure", action="store_true", help="find out which tests run which lines")
    given = parser.parse_args()
    if given.measure:
        return _measure()
    known = {fault.name: fault for fault in FAULTS}
    if unknown := set(given.names) - set(known):
        parser.error(f"no fault is called {', '.join(map(repr, sorted(unknown)))}: see faults.py")
    found = {name: test for name, test in _noted().items() if name in known}
    if given.names:
        chosen = list(given.names)
    else:
        chosen = [name for name in known if name not in (_tried() if given.again else found)]
    failing = _plant([known[name] for name in chosen], found, again=given.again)
    missed = [name for name in known if found.get(name) is None]
    print(f"{len(known) - len(missed)} of {len(known)} faults are found", *missed, sep="\nnot found: ")
    return int(bool(missed or failing))


def _measure() -> int:
    if not TREE.exists():
        _copy(TREE)
    _set_environment(TREE)
    reach.measure(TREE, BUILD)
    print(reach.report(TREE, BUILD))
    return 0


def _plant(faults: list[Fault], found: dict[str, str | None], *, again: bool) -> list[str]:
    """Plants the faults, one after the other, and notes what finds them; the noted tests that fail without them."""
    tried = _tried() if again else []
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder) / "tree"
        _copy(copy)
        _set_environment(copy)
        server = multiprocessing.get_context("forkserver")  # each fault in a process that has imported what is slow
        server.set_forkserver_preload(list(IMPORTED))
        for number, fault in enumerate(faults, 1):
            test = _find(server, fault, copy, found.get(fault.name))
            print(f"{number}/{len(faults)} {fault.name}: {test or 'not found'}", flush=True)
            found[fault.name] = test
            _note(found)
            if again:
                tried.append(fault.name)
                BUILD.mkdir(parents=True, exist_ok=True)
                DONE.write_text(json.dumps(tried))
        failing = _failing(server, copy, sorted({test for test in found.values() if test}))
    for name in [name for name, test in found.items() if test in failing]:
        print(f"{name}: {found.pop(name)} fails without the fault, too")
    _note(found)
    DONE.unlink(missing_ok=True)
    return failing


def _noted() -> dict[str, str | None]:
    """By fault: the test that finds it, or None if none does."""
    return json.loads(FOUND.read_text()) if FOUND.exists() else {}


def _note(found: dict[str, str | None]) -> None:
    in_order = {fault.name: found[fault.name] for fault in FAULTS if fault.name in found}
    FOUND.write_text(json.dumps(in_order, indent=1, ensure_ascii=False) + "\n")


def _tried() -> list[str]:
    """What an interrupted `--again` has done."""
    return json.loads(DONE.read_text()) if DONE.exists() else []


def _find(server: multiprocessing.context.BaseContext, fault: Fault, copy: Path, noted: str | None) -> str | None:
    """The test that finds a fault: the noted one first, then those that reach it."""
    path, text = planted(fault, copy)
    whole = (copy / path).read_text()
    tries = reach.tests_of(fault, TREE if TREE.exists() else copy, BUILD)
    _write(copy / path, text)
    try:
        for tests in [[noted], *tries] if noted else tries:
            if failing := _failing(server, copy, tests, most=1):
                return failing[0]
    finally:
        _write(copy / path, whole)
    return None


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)  # times of files are too coarse to tell


def _failing(server: multiprocessing.context.BaseContext, copy: Path, tests: list[str], most: int = 0) -> list[str]:
    """Those of the tests that fail, and one that does not end; at most so many, 0 for all."""
    if not tests:
        return []
    receiving, sending = server.Pipe(duplex=False)
    process = server.Process(target=run_tests, args=(copy, ROOT / ".pytest_cache", tests, most, sending))  # pyright: ignore[reportAttributeAccessIssue]
    process.start()
    sending.close()
    failing: list[str] = []
    running = ""
    try:
        while receiving.poll(MOST_SECONDS):
            kind, test = receiving.recv()
            running = test
            if kind == "fails" and test not in failing:
                failing.append(test)
        process.kill()
        failing.append(running)
    except EOFError:
        process.join()
        if process.exitcode not in (0, 1, 4, 5):  # the fault has ended the process; 4 knows no such test
            failing.append(running)
        if process.exitcode == 1 and not failing:
            raise RuntimeError(f"pytest does not run:\n{(copy.parent / 'log').read_text()}") from None
    return failing


def _copy(copy: Path) -> None:
    """What git knows or would add, as it is now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)


def _set_environment(copy: Path) -> None:
    """That of the tests, which the processes inherit; some of it is read when a package is imported."""
    parts = ("src", "studies/src", "tests")
    os.environ["PYTHONPATH"] = os.pathsep.join(str(copy / part) for part in parts)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["MPLBACKEND"] = "Agg"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled once, for all faults
    os.environ["XLA_FLAGS"] = flags(devices=8)


if __name__ == "__main__":
    sys.exit(main())
