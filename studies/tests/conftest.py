"""What the tests of studies share.

Fixtures import what they need: this file is also read by the process that only hands out tests.
"""

from __future__ import annotations

import pytest


@pytest.fixture
def counted(monkeypatch):
    """The arms that were run, which takes no time here: their traces are made up."""
    from decibel import Trace
    from decibel_studies.testbed.study import Arm

    ran: list[tuple[str, str]] = []

    def counting(self: Arm, seeds):
        ran.append(self.key)
        return [Trace({"step": [0, 1], "distance": [2.0, 1.0]}, {"seed": seed, "stopped": None}) for seed in seeds]

    monkeypatch.setattr(Arm, "run", counting)
    return ran


@pytest.fixture
def beside(monkeypatch, tmp_path):
    from decibel_studies.testbed import step_sizes

    monkeypatch.setattr(step_sizes, "path_of", lambda study: tmp_path / "step_sizes.json")
    return tmp_path / "step_sizes.json"
