"""How messages are exchanged: the only part that knows where nodes run."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import equinox as eqx
from jax import Array


class Exchange(eqx.Module):
    """How messages travel; its tables are arguments of the compiled chunk."""

    def conditions(self, k: Array) -> Any:
        """What all exchanges of step k have in common."""
        return k

    @abstractmethod
    def __call__(self, now: Any, number: int, messages: dict[str, Any], memory: Any) -> tuple[dict[str, Any], Any]:
        """The answers to every level's message in a step's exchange of that number, and what it remembers of it."""

    @abstractmethod
    def sends(self, level: str, *, per_link: bool = False, coded: bool = False) -> float:
        """How many copies of its message a node sends, on average; of messages that differ by link; or of one in
        code."""

    def remembers(self, messages: dict[str, Any]) -> Any:
        """The shapes of what it remembers of an exchange of such messages."""
        return ()

    def active(self, now: Any) -> Array | None:
        """Which nodes take part in the step; None if all always do."""
        return None
