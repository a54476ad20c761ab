"""DSGDA-GT: descent and ascent on the penalized problem, with gradient tracking on every level."""

from __future__ import annotations

from typing import ClassVar

from ._copies import TwoCopies
from ._entry import register
from ._method import Rate


class DsgdaGt(TwoCopies):
    """Descent in x and y and ascent in z on f(x, y) + λ (g(x, y) − g(x, z)), each tracked."""

    catalog_name = "dsgda-gt"
    summary = "first derivatives only: two copies of y and a penalty, tracked on every level (error O(1/λ))"
    paper = "Wang, Chen, Ma, Zhang, Fully First-Order Methods for Decentralized Bilevel Optimization, 2024"
    defaults: ClassVar = {"beta": 0.01}
    strategy_names: ClassVar = dict.fromkeys("xyz", "gt")


@register(DsgdaGt)
def dsgda_gt(*, alpha: Rate, beta: Rate, gamma: Rate, strength: Rate = 10.0) -> DsgdaGt:
    """DSGDA-GT (Wang et al., 2024), reconstructed from the abstract: gradient descent in x and y and ascent in z on
    f(x, y) + λ (g(x, y) − g(x, z)), in a single loop with gradient tracking on all three.

    Draws: an upper and a lower batch, the same at both copies. Differs from the paper: z's ascent direction is divided
    by λ, so that `gamma` does not depend on it; trackers run in flow form; single loop, as far as the abstract says.

    Args:
        beta: the step size of y, the copy that f pulls at, likewise; γ/λ is a good start.
        gamma: the step size of z, the copy that minimizes g, likewise.
        strength: λ: a number, or a function of the step.
    """
    return DsgdaGt(alpha, beta, gamma, strength)
