"""What neighbours exchange: messages and their codes, mixing in memory, links, faults."""

from . import faults, privacy

__all__ = ["faults", "privacy"]
