"""How often something may happen: tokens that are taken, and come back with time."""

from __future__ import annotations


class TokenBucket:
    """`rate` tokens come back in a second, up to `burst`."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at = 0.0

    def takes(self, now: float) -> bool:
        """Whether there was one to take."""
        self._left = min(self._burst, self._left + self._rate * (now - self._at))
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
