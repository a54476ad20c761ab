"""Runs tests in a process of its own, which tells another one what fails."""

from __future__ import annotations

import os
import resource
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest


class Teller:
    """A pytest plugin that tells another process what runs and what fails."""

    def __init__(self, told: Connection) -> None:
        self._told = told

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._told.send(("runs", nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._told.send(("fails", report.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._told.send(("fails", report.nodeid))


def run_tests(copy: Path, cache: Path, tests: list[str], most: int, told: Connection) -> None:
    log = os.open(copy.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for output in (1, 2):
        os.dup2(log, output)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(copy)
    sys.dont_write_bytecode = False
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    told.send(("begins", tests[0]))
    options = [
        "-q",
        "--tb=short",
        f"--maxfail={most}",
        f"--override-ini=cache_dir={cache}",
        "-Wignore::pytest.PytestAssertRewriteWarning",  # a plugin is imported already
    ]
    code = pytest.main([*options, *tests], plugins=[Teller(told)])
    sys.stdout.flush()
    told.close()
    os._exit(int(code))
