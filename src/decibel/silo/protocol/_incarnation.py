"""The incarnation of a site: a number that is larger at every start, whatever the clock of the machine says."""

from __future__ import annotations

from pathlib import Path

from decibel.core import atomic_write, read_file

INCARNATION = "incarnation"  # the file in a site's folder
LARGEST = 2**64 - 1


def next_incarnation(home: Path, time: int) -> int:
    """A number that this folder has never given before; it is on the disk when this returns.

    A folder that was lost or restored from a backup may not have the last number. So the number is at least `time`, in
    nanoseconds, which exceeds every number that others know.
    """
    path = home / INCARNATION
    last = _last(path) if path.exists() else 0
    number = max(last + 1, time)
    atomic_write(path, f"{number}\n", mode=0o600)
    return number


def _last(path: Path) -> int:
    raw = read_file(path, largest=32)
    if not raw.strip().isdigit() or not int(raw) < LARGEST:
        raise ValueError(f"{path} is damaged: delete it, and make sure that the clock of this machine is right.")
    return int(raw)
