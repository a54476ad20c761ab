"""Scalars for TensorBoard, by tensorboardX, which needs neither TensorFlow nor PyTorch."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from ...core._json import Provenance, Row
from ...core._optional import optional
from ...graphs._graph import Levels
from .._status import Status
from ._logger import Logger, finite, resumed


class TensorBoard(Logger):
    """Logs a run to TensorBoard event files: a scalar per column of the trace, and the provenance as text.

    View them with `tensorboard --logdir folder`. A resumed run hides what was logged after the step it resumes from.

    Args:
        folder: where the event files are written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        with optional("tensorboardX", caller="db.loggers.TensorBoard", extra="tensorboard"):
            self._library = import_module("tensorboardX")
        self._writer: Any = None

    def begin(self, about: Provenance, graphs: Levels) -> None:
        if not self.writes:
            return
        before = resumed(about)
        self._writer = self._library.SummaryWriter(str(self.folder), purge_step=None if before is None else before + 1)
        self._writer.add_text("about", f"```json\n{json.dumps(about, indent=2, default=str)}\n```")

    def __call__(self, step: int, row: Row) -> None:
        if self._writer is not None:
            for name, value in finite(row).items():
                if name != "step":
                    self._writer.add_scalar(name, value, step)
            self._writer.flush()

    def end(self, status: Status, message: str | None) -> None:
        if self._writer is not None:
            if message:
                self._writer.add_text("message", message)
            self._writer.close()
            self._writer = None
