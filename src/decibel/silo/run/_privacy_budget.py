"""What a site's noisy messages and sums have cost, over all runs from its folder, and when its budgets are spent.

A message is counted on disk before its noise is drawn, so after a crash the count is what was sent, or more. Steps that
are repeated after a restart send new noise, and count again. A sum over records counts for the records in it, and the
count is that of the record that is in most sums. Both levels' counts are added.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import threading
from bisect import bisect_left
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from decibel.core import JSON, RandomBytes, atomic_write, read_bytes
from decibel.network import ConcatCodec, Noisy
from decibel.oracles import Release
from decibel.strategies.privacy import total_epsilon

from .._errors import BudgetSpent, NotFinite

FILE = "privacy.json"
Slots = dict[tuple[int, int], np.ndarray]  # (level, slots) to how many sums each slot was in


class Budgets(NamedTuple):
    """The largest ε of a folder, at δ; None is no limit."""

    site: float | None = None  # of all data of the site
    record: float | None = None  # of one record
    delta: float = 1e-5


class Spent(NamedTuple):
    """What a folder has sent, by its noise: messages, and sums that one record was in."""

    messages: Counter[float]
    sums: Counter[float]
    budgets: Budgets | None = None  # of the last run


class PrivacyAccountant:
    """Draws the noise of a site's messages and sums from the operating system's randomness, and counts what it cost.

    Args:
        home: the site's folder; the count is in its `privacy.json`.
        budgets: the largest ε of the folder.
        source: gives random bytes.
    """

    def __init__(self, home: Path, budgets: Budgets, source: RandomBytes = os.urandom) -> None:
        self.home = home
        self.budgets = budgets
        self.source = source
        self._take(read(home))
        self.messages_per_step: Counter[float] = Counter()  # by the noise of the messages; filled when a step is traced
        self.releases: dict[int, Release] = {}  # the sums of a step, filled when it is traced
        self.noise_of_sums = 1.0
        self.sends_others = False  # whether a step sends messages without noise
        self.is_traced = False  # whether all this is known; further traces of the step tell nothing new
        self._lock_file: int | None = None
        self._lock = threading.Lock()  # calls of a step may come from several threads

    def _take(self, spent: Spent) -> None:
        self.messages_sent = spent.messages
        self._sums_before = spent.sums
        self._slots: Slots = {}

    def expect_messages(self, noise: float, messages: int) -> None:
        """Registers that the traced step sends messages with this noise."""
        if not self.is_traced:
            self.messages_per_step[noise] += messages

    def expect_plain_message(self) -> None:
        """Registers that the traced step sends a message without noise."""
        self.sends_others = True

    def expect_release(self, noise: float, release: Release) -> None:
        """Registers that the traced step takes this sum over records."""
        self.noise_of_sums = noise
        self.releases[release.position] = release

    @property
    def sums(self) -> Counter[float]:
        """By their noise, how many sums one record was in at most."""
        return self._with(self._slots)

    def _with(self, slots: Slots) -> Counter[float]:
        most = sum(int(counts.max()) for counts in slots.values())
        return self._sums_before + Counter({self.noise_of_sums: most})

    def epsilon(self, steps: int = 0) -> float:
        """ε of all messages sent so far, and of those of `steps` further steps."""
        counts = self.messages_sent + Counter({noise: steps * count for noise, count in self.messages_per_step.items()})
        return total_epsilon(counts, self.budgets.delta)

    def record_epsilon(self, steps: int = 0, first: int = 0) -> float:
        """ε of all sums so far, and of those of `steps` further steps from `first` on."""
        slots = {key: counts.copy() for key, counts in self._slots.items()}
        for release in self.releases.values():
            counts = slots.setdefault(_slots_key(release), np.zeros(release.batches_per_epoch, np.int64))
            passes, rest = divmod(steps, release.batches_per_epoch)
            counts += passes
            counts[[release.batch_of_step(first + j) for j in range(rest)]] += 1
        return total_epsilon(self._with(slots), self.budgets.delta)

    def steps_left(self, steps: int, first: int = 0) -> int:
        """How many of `steps` steps, starting at `first`, the budgets allow."""

        def exceeds(steps: int) -> bool:
            if self.messages_per_step and self.epsilon(steps) > _limit(self.budgets.site):
                return True
            return bool(self.releases) and self.record_epsilon(steps, first) > _limit(self.budgets.record)

        if not exceeds(steps):
            return steps
        return max(bisect_left(range(steps), True, key=exceeds) - 1, 0)

    def release(self, codec: ConcatCodec, new: np.ndarray) -> np.ndarray:
        """Counts a message, and encodes it with noise: (entries,) what is new at every level → (bytes,)."""
        assert isinstance(codec.code, Noisy)
        if not np.isfinite(new).all():
            raise NotFinite("this site has a NaN or infinity to send.")
        parts = np.split(new, np.cumsum(codec.widths)[:-1])
        self._charge(codec.code.noise, len(parts))
        return np.concatenate([codec.code.release(part, self.source) for part in parts])

    def _charge(self, noise: float, messages: int) -> None:
        with self._lock:
            after = self.messages_sent + Counter({noise: messages})
            if total_epsilon(after, self.budgets.delta) > _limit(self.budgets.site):
                raise BudgetSpent(f"another message would exceed the privacy budget of {self.budgets.site:g}.")
            self._write(after, self.sums)
            self.messages_sent = after

    def charge_release(self, noise: float, release: Release, k: int) -> None:
        """Counts a sum of step k before its noise is drawn."""
        with self._lock:
            before = self.sums  # with the noise so far
            self.noise_of_sums = noise
            key = _slots_key(release)
            slots = self._slots | {key: self._slots.get(key, np.zeros(release.batches_per_epoch, np.int64)).copy()}
            slots[key][release.batch_of_step(k)] += 1
            after = self._with(slots)
            if total_epsilon(after, self.budgets.delta) > _limit(self.budgets.record):
                raise BudgetSpent(f"another sum would exceed the records' privacy budget of {self.budgets.record:g}.")
            if after != before:
                self._write(self.messages_sent, after)
            self._slots = slots

    def _write(self, messages: Counter[float], sums: Counter[float]) -> None:
        content: dict[str, JSON] = {
            "version": 1,
            "sent": [{"noise": noise, "messages": count} for noise, count in sorted(messages.items())],
            "records": [{"noise": noise, "sums": count} for noise, count in sorted(sums.items())],
            "budgets": self.budgets._asdict(),
        }
        atomic_write(self.home / FILE, json.dumps(content), 0o600)

    def lock_folder(self) -> None:
        """Prevents other runs from counting in this folder until this one ends."""
        if not (self.messages_per_step or self.releases):
            return
        self._lock_file = os.open(self.home / "privacy.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.unlock_folder()
            raise ValueError(f"another run counts its noise in {self.home}: wait until it has ended.") from None
        self._take(read(self.home))
        self._write(self.messages_sent, self.sums)

    def unlock_folder(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def sentence(self, left: int, first: int = 0) -> str:
        """Why a run ends after `left` further steps."""
        site, record, delta = self.budgets
        if self.messages_per_step and self.epsilon(left + 1) > _limit(site):
            what = "all messages have"
            budget = site
            now = self.epsilon(left)
            then = self.epsilon(left + 1)
            name = "privacy budget"
        else:
            what = "all sums have"
            budget = record
            name = "records' privacy budget"
            now, then = (self.record_epsilon(steps, first) for steps in (left, left + 1))
        return (
            f"the {name} of {budget:g} (ε at δ = {short(delta)}) ends there, where {what} cost {now:.6g} and one step "
            f"more would make it {then:.6g}"
        )


def read(home: Path) -> Spent:
    """What was sent from a site's folder."""
    path = home / FILE
    try:
        content = json.loads(read_bytes(path))
        if content["version"] != 1:
            raise ValueError
        budgets = Budgets(**content["budgets"]) if "budgets" in content else None
        return Spent(_counts(content["sent"], "messages"), _counts(content.get("records", []), "sums"), budgets)
    except FileNotFoundError:
        return Spent(Counter(), Counter())
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path}, the count of this site's noisy messages, cannot be read: restore it from a copy, since without "
            "it nobody knows what was spent."
        ) from None


def _counts(entries: list[dict[str, float]], name: str) -> Counter[float]:
    counts: Counter[float] = Counter()
    for entry in entries:
        noise = float(entry["noise"])
        count = entry[name]
        if not (0 < noise < float("inf") and isinstance(count, int) and count >= 0):
            raise ValueError
        counts[noise] += count
    return counts


def short(delta: float) -> str:
    """1e-5, not 1e-05."""
    return f"{delta:g}".replace("e-0", "e-")


def _slots_key(release: Release) -> tuple[int, int]:
    return release.level, release.batches_per_epoch


def _limit(budget: float | None) -> float:
    return math.inf if budget is None else budget
