"""The record of a finished run in a site's folder: a site that is started again does not begin it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from decibel.core import atomic_write, read_file, sync_folder

FILE = "finished.json"
RESULTS = ("solution.npz", "trace.npz")  # that `decibel silo run` writes beside it
ASIDE = "finished"  # the folder to which the results of an earlier run are moved


class Finished(NamedTuple):
    """A run that has finished.

    Attributes:
        federation: the SHA-256 of the federation file, in hexadecimal.
        problem: the SHA-256 of method, step sizes, seed and initial values, in hexadecimal.
        step: the step of the last checkpoint.
        why: why it ended before its last step; empty if it did not.
        without: neighbours that were away at the end, and lack the model.
    """

    federation: str
    problem: str
    step: int
    why: str
    without: list[str]

    def is_of(self, federation_hash: bytes, run_hash: bytes) -> bool:
        return (self.federation, self.problem) == (federation_hash.hex(), run_hash.hex())


def read(home: Path) -> Finished | None:
    """The record of the run that finished last in a folder; None if none has."""
    path = home / FILE
    if not path.is_file():
        return None
    try:
        record = Finished(**json.loads(read_file(path)))
        texts = (record.federation, record.problem, record.why, *record.without)
        if not (all(isinstance(text, str) for text in texts) and isinstance(record.step, int)):
            raise ValueError
    except (ValueError, TypeError):
        raise ValueError(f"{path} is damaged: restore it, or move it and the checkpoints beside it away.") from None
    return record


def write(home: Path, finished: Finished) -> None:
    atomic_write(home / FILE, json.dumps(finished._asdict()))


def move_aside(home: Path, finished: Finished) -> Path:
    """Moves aside what a run has left, before another one begins in the same folder; the record goes last."""
    aside = home / ASIDE / f"{finished.step}-{finished.federation[:8]}-{finished.problem[:8]}"
    aside.mkdir(parents=True, exist_ok=True)
    for name in (*RESULTS, FILE):
        if (home / name).exists():
            (home / name).rename(aside / name)
    for folder in (aside, aside.parent, home):
        sync_folder(folder)
    return aside
