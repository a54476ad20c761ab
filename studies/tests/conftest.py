"""What the tests of studies share.

Fixtures import what they need: this file is also read by the process that only hands out tests.
"""

from __future__ import annotations

import pytest


@pytest.fixture
def counted(monkeypatch):
    """The arms that were really run."""
    from decibel_studies.testbed.study import Arm

    ran: list[tuple[str, str]] = []
    run = Arm.run

    def counting(self: Arm, seeds):
        ran.append(self.key)
        return run(self, seeds)

    monkeypatch.setattr(Arm, "run", counting)
    return ran


@pytest.fixture
def beside(monkeypatch, tmp_path):
    from decibel_studies.testbed import step_sizes

    monkeypatch.setattr(step_sizes, "path_of", lambda study: tmp_path / "step_sizes.json")
    return tmp_path / "step_sizes.json"
