"""Errors of data files."""

from __future__ import annotations

from pathlib import Path


class DataError(Exception):
    """A dataset is not available; the message names it and the fix."""


class MissingData(DataError, FileNotFoundError):
    """A file is in neither `$DECIBEL_DATA` nor the cache."""


class DamagedData(DataError, ValueError):
    """A file differs from what was published."""

    def __init__(self, path: Path, reason: str):
        super().__init__(f"{path} is damaged: {reason}.")
        self.path = path
