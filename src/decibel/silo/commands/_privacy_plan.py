"""What privacy costs: what a site's folder has spent, in words, and a plan for a run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from decibel.core import validate_delta, validate_positive
from decibel.strategies.privacy import epsilon, noise_for, total_epsilon

from ..run._privacy_budget import read, short

MOST_STEPS = 2**30  # that a plan counts


def spending(home: Path) -> str:
    """What the noise in a site's folder has cost, and what its last run was allowed."""
    spent = read(home)
    if spent.budgets is None:
        return ""
    site, record, delta = spent.budgets
    both = (
        ("for all data", spent.messages, site),
        ("per record", spent.sums, record),
    )
    return "; ".join(
        in_words(total_epsilon(counts, delta), what, delta, budget)
        for what, counts, budget in both
        if counts or budget is not None
    )


def in_words(cost: float, what: str, delta: float, budget: float | None) -> str:
    """`ε = 5.98 per record (δ = 1e-5), no budget set`, or `ε = 0.585 of 0.6 per record (δ = 1e-4)`."""
    if budget is None:
        return f"ε = {cost:.3g} {what} (δ = {short(delta)}), no budget set"
    return f"ε = {cost:.3g} of {budget:g} {what} (δ = {short(delta)})"


class Counts(NamedTuple):
    """What a method does with a site's data in a step: sums that a record is in, and messages that it sends."""

    sums: int
    messages: int

    @classmethod
    def of(cls, method: str) -> Counts:
        from decibel import CATALOG
        from decibel.core import hint

        if method not in CATALOG:
            raise ValueError(f"method {method!r} is not known: {hint(method, CATALOG)}")
        strategies = CATALOG[method]().strategies
        mixing = sum(strategy.communicates for strategy in strategies.values())
        return cls(sums=1 if set(strategies) == {"x"} else 3, messages=mixing)


def plan(
    *,
    ε: float | None,
    noise: float | None,
    steps: int | None,
    delta: float,
    clip: float,
    method: str,
    samples: int | None,
    batch_size: int | None,
) -> list[str]:
    """Given two of ε, noise and steps, the third: with `records`, and with `messages`.

    Args:
        ε: the budget.
        noise: of the federation file's [privacy].
        steps: of the run.
        delta: δ.
        clip: the largest norm of a message, or of what a record adds.
        method: a name of `CATALOG`.
        samples: records of a site, where batches are smaller.
        batch_size: records in a step; None for all.
    """
    if sum(value is None for value in (ε, noise, steps)) != 1:
        raise ValueError("give two of --epsilon, --noise and --steps, and the third is computed.")
    validate_delta(delta)
    for name, value in (("epsilon", ε), ("noise", noise), ("clip", clip)):
        if value is not None:
            validate_positive(name, value, "give a number such as 3.0")
    counts = Counts.of(method)
    batches = _batches(samples, batch_size)

    def sums(steps: int) -> int:
        return counts.sums * -(-steps // batches)

    def messages(steps: int) -> int:
        return counts.messages * steps

    lines: list[str] = []
    for kind, what, count in (("records", "per record", sums), ("messages", "for all data", messages)):
        if count(1) == 0:
            continue
        known_steps = steps if steps is not None else _most_steps(ε, noise, delta, count)
        # Rounded up, so that the ε that was asked for is kept.
        known_noise = noise if noise is not None else rounded_up(noise_for(ε or 0.0, count(known_steps), delta))
        cost = epsilon(known_noise, count(known_steps), delta)
        unit = "sums that a record is in" if kind == "records" else "messages"
        hidden = "one record" if kind == "records" else "all data of a site"
        lines += [
            f"# To hide {hidden}, in the federation file:",
            "[privacy]",
            f"{kind} = {{ clip = {clip:g}, noise = {known_noise:g} }}",
            f"# ε = {cost:.3g} {what} (δ = {short(delta)}) after {known_steps} steps, {count(known_steps)} {unit}",
        ]
        if kind == "records" and (size := batch_size or samples):
            deviation = clip * known_noise / size
            lines.append(
                f"# every entry of a mean over {size} samples gets noise of standard deviation {deviation:.3g}"
            )
    return lines


def _batches(samples: int | None, batch_size: int | None) -> int:
    """The number of batches in a pass over a site's records."""
    if batch_size is None:
        return 1
    if samples is None:
        raise ValueError("--batch-size needs --samples: how many records the site has.")
    if batch_size > samples:
        raise ValueError(f"--batch-size {batch_size} is more than the {samples} samples: give at most as many.")
    return samples // batch_size


def _most_steps(ε: float | None, noise: float | None, delta: float, count: Callable[[int], int]) -> int:
    """How many steps the budget allows."""
    assert ε is not None and noise is not None
    return bisect_right(range(1, MOST_STEPS), ε, key=lambda steps: epsilon(noise, count(steps), delta))


def rounded_up(value: float) -> float:
    """The value, rounded up to three digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit) * unit:.3g}")
