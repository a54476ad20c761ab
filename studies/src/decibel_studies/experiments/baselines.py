"""Baselines with loops of other lengths than their own, which studies search besides."""

from __future__ import annotations

from collections.abc import Sequence

from decibel import Method, ma_dsbo, mdbo

from ..testbed.study import Rates


def other_lengths(
    rates: Rates, loops: Sequence[int], series: Sequence[int], *, double: str = "MA-DSBO", tracking: bool = False
) -> dict[str, Method]:
    """MA-DSBO, called `double`, with other numbers of inner steps T = N than 5; MDBO with other numbers of terms than
    10."""
    double_loops = {
        f"{double}, {count} inner": ma_dsbo(**rates, tracking=tracking, lower_steps=count, auxiliary_steps=count)
        for count in loops
    }
    without_gamma = {name: rates[name] for name in ("alpha", "beta", "theta")}
    truncated = {f"MDBO, {terms} terms": mdbo(**without_gamma, terms=terms) for terms in series}
    return {**double_loops, **truncated}
