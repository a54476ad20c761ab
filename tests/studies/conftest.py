"""What the tests of studies share."""

from __future__ import annotations

import pytest

from decibel.studies import settings
from decibel.studies.study import Arm


@pytest.fixture
def counted(monkeypatch):
    """The arms that were really run."""
    ran: list[tuple[str, str]] = []
    run = Arm.run

    def counting(self: Arm, seeds):
        ran.append(self.key)
        return run(self, seeds)

    monkeypatch.setattr(Arm, "run", counting)
    return ran


@pytest.fixture
def beside(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "path_of", lambda study: tmp_path / "settings.json")
    return tmp_path / "settings.json"
