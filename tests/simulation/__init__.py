"""A whole silo in one process: every site's own code, on a virtual clock, network and disk, driven by one seed."""

from __future__ import annotations

from .monitor import Violation
from .schedule import Schedule
from .world import World

__all__ = ["Schedule", "Violation", "World"]
