"""Runs for Weights & Biases."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from ...core._json import Provenance, Row
from ...core._optional import optional
from ...graphs._graph import Levels
from .._status import Status
from ._logger import Logger, finite


class WandB(Logger):
    """Logs a run to Weights & Biases, with the provenance as its configuration.

    A resumed run is a new W&B run with `resumed` in its configuration.

    Args:
        project: the W&B project.
        offline: keep the run on this machine until you call `wandb sync` on its folder; False sends it while it runs.
        **settings: further arguments of `wandb.init`, such as `name`, `dir` and `tags`.
    """

    def __init__(self, project: str, *, offline: bool = True, **settings: Any) -> None:
        with optional("wandb", caller="db.loggers.WandB", extra="wandb"):
            self._library = import_module("wandb")
        self._settings = {"project": project, "mode": "offline" if offline else "online", **settings}
        self._run: Any = None

    def begin(self, about: Provenance, graphs: Levels) -> None:
        if self.writes:
            if folder := self._settings.get("dir"):
                Path(folder).mkdir(parents=True, exist_ok=True)  # else it falls back on a temporary folder
            self._run = self._library.init(**{"name": about["method"], "config": about, **self._settings})

    def __call__(self, step: int, row: Row) -> None:
        if self._run is not None:
            self._run.log(finite(row), step=step)

    def end(self, status: Status, message: str | None) -> None:
        if self._run is not None:
            self._run.summary.update({"status": str(status), "message": message})
            self._run.finish(exit_code=1 if message else 0)
            self._run = None
