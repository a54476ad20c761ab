"""What can be wrong with a data file."""

from __future__ import annotations

from pathlib import Path


class DataError(Exception):
    """A dataset cannot be had; the message says which and what to do."""


class MissingData(DataError, FileNotFoundError):
    """A file is in neither `$DECIBEL_DATA` nor the cache."""


class DamagedData(DataError, ValueError):
    """A file is there but is not what was published."""

    def __init__(self, path: Path, reason: str):
        super().__init__(f"{path} is damaged: {reason}.")
        self.path = path
