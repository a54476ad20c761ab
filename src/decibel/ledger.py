"""What a step costs, counted by the step itself while it is traced.

The oracle and the network report every sample, derivative and message to a `Ledger` at the moment they compute it, so
the numbers cannot disagree with the program. Counts that depend on the step (growing inner loops) or on chance
(random truncation) are traced values; the rest are plain integers and cost nothing at run time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

COLUMNS = ("samples", "gradients", "hvps", "jvps", "rounds", "bytes")


class Ledger:
    """Per node: `samples` drawn, `gradients` (backward passes), `hvps` (H z), `jvps` (J z), `bytes` sent; and
    communication `rounds`."""

    def __init__(self) -> None:
        self.counts: dict[str, Any] = dict.fromkeys(COLUMNS, 0)
        self._times: Any = 1

    def add(self, **amounts: Any) -> None:
        for column, amount in amounts.items():
            self.counts[column] = self.counts[column] + self._times * amount

    @contextmanager
    def repeated(self, times: Any) -> Iterator[None]:
        """The body of an inner loop is traced once and runs `times` times."""
        before, self._times = self._times, self._times * times
        try:
            yield
        finally:
            self._times = before
