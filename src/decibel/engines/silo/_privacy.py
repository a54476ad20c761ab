"""What a site's noisy messages have cost, kept in its folder over all its runs, and where its budget ends.

A message is written down before it leaves, on the disk before its noise is drawn: after a crash the count is what was
sent, or more. Steps that are done again after a restart send new noise, and count again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np

from ...core import _zcdp
from ...core._discrete_gaussian import Source
from ...core._files import atomic_write
from ...network._codecs import ConcatCodec
from ...network._noisy import Noisy
from ._errors import BudgetSpent, NotFinite

FILE = "privacy.json"


class Privacy:
    """A site's noisy messages: sent with the operating system's randomness, and counted by their noise.

    Args:
        home: the site's folder; the count is in its `privacy.json`.
        budget: the largest ε of all messages of the folder, at `delta`; None for no limit.
        delta: δ.
        source: gives random bytes.
    """

    def __init__(self, home: Path, budget: float | None, delta: float, source: Source = os.urandom) -> None:
        self.home, self.budget, self.delta, self._source = home, budget, delta, source
        self.sent = read(home)
        self.in_step: Counter[float] = Counter()  # what a step sends, by its noise
        self.sends_others = False  # whether a step sends messages without noise
        self.settled = False  # whether both are known; further traces of the step tell nothing new
        self._lock: int | None = None

    def expect(self, noise: float | None, messages: int = 1) -> None:
        """A step that is traced sends such messages; None has no noise."""
        if noise is None:
            self.sends_others = True
        elif not self.settled:
            self.in_step[noise] += messages

    def epsilon(self, steps: int = 0) -> float:
        """Of all that was sent, and of so many further steps."""
        counts = self.sent + Counter({noise: steps * count for noise, count in self.in_step.items()})
        return _epsilon(counts, self.delta)

    def steps_left(self, steps: int) -> int:
        """How many of so many steps the budget allows."""
        if self.budget is None or not self.in_step or self.epsilon(steps) <= self.budget:
            return steps
        low, high = -1, steps  # whether so many are allowed: not known of −1, and not so of `steps`
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= self.budget else (low, middle)
        return max(low, 0)

    def release(self, codec: ConcatCodec, new: np.ndarray) -> np.ndarray:
        """(entries,) what is new at every level → (bytes,) to send, counted."""
        assert isinstance(codec.code, Noisy)
        if not np.isfinite(new).all():
            raise NotFinite("this site has a NaN or infinity to send.")
        parts = np.split(new, np.cumsum(codec.widths)[:-1])
        self._charge(codec.code.noise, len(parts))
        return np.concatenate([codec.code.release(part, self._source) for part in parts])

    def _charge(self, noise: float, messages: int) -> None:
        after = self.sent + Counter({noise: messages})
        if self.budget is not None and _epsilon(after, self.delta) > self.budget:
            raise BudgetSpent(f"another message would exceed the privacy budget of {self.budget:g}.")
        self._write(after)
        self.sent = after

    def _write(self, counts: Counter[float]) -> None:
        messages = [{"noise": noise, "messages": count} for noise, count in sorted(counts.items())]
        atomic_write(self.home / FILE, json.dumps({"version": 1, "sent": messages}), 0o600)

    def begin(self) -> None:
        """No other run counts in this folder until the end of this one."""
        if not self.in_step:
            return
        self._lock = os.open(self.home / "privacy.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.end()
            raise ValueError(f"another run sends noisy messages from {self.home}: wait until it has ended.") from None
        self.sent = read(self.home)

    def end(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def sentence(self, left: int) -> str:
        """Why a run ends after so many steps more."""
        return (
            f"the privacy budget of {self.budget:g} (ε at δ = {self.delta:g}) ends there, where all messages have cost "
            f"{self.epsilon(left):.6g} and one step more would make it {self.epsilon(left + 1):.6g}"
        )


def read(home: Path) -> Counter[float]:
    """How many messages were sent from a site's folder, by their noise."""
    path = home / FILE
    try:
        found = json.loads(path.read_text())
        if found["version"] != 1:
            raise ValueError
        counts: Counter[float] = Counter()
        for entry in found["sent"]:
            noise, messages = float(entry["noise"]), entry["messages"]
            if not (0 < noise < float("inf") and isinstance(messages, int) and messages >= 0):
                raise ValueError
            counts[noise] += messages
        return counts
    except FileNotFoundError:
        return Counter()
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path}, the count of this site's noisy messages, cannot be read: restore it from a copy, since without "
            "it nobody knows what was spent."
        ) from None


def spent(home: Path, delta: float) -> float:
    """ε of all noisy messages that were sent from a site's folder."""
    return _epsilon(read(home), delta)


def _epsilon(counts: Counter[float], delta: float) -> float:
    return _zcdp.epsilon(sum(_zcdp.rho(noise, messages) for noise, messages in counts.items()), delta)
