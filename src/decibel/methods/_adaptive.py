"""One level with adaptive steps: x⁺ = U(x, r⁺), where the strategy makes the steps from the directions."""

from __future__ import annotations

from typing import ClassVar

from ._entry import register
from ._method import Rate
from ._single_level import SingleLevel


class AdaEd(SingleLevel):
    """r = g − e, φ = x − D r, e⁺ = e + F, x⁺ = φ + D F, with AdaGrad's D by node and coordinate"""

    catalog_name = "ada-ed"
    summary = "adaptive Exact Diffusion: a step for each node and coordinate, and none to tune"
    paper = "ours"
    defaults: ClassVar = {}
    strategy_name = "ada-ed"


class AdaEdScalar(SingleLevel):
    """r = g − e, φ = x − D r, e⁺ = e + F, x⁺ = φ + D F, with AdaGrad's D by node"""

    catalog_name = "ada-ed-scalar"
    summary = "adaptive Exact Diffusion: a step for each node, and none to tune"
    paper = "ours"
    defaults: ClassVar = {}
    strategy_name = "ada-ed-scalar"


class AdamEd(SingleLevel):
    """r = m̂ − e, φ = x − D r, e⁺ = e + F, x⁺ = φ + D F, with Adam's D, on which neighbours agree"""

    catalog_name = "adam-ed"
    summary = "adaptive Exact Diffusion with Adam's steps, for neural networks"
    paper = "ours"
    defaults: ClassVar = {}
    strategy_name = "adam-ed"


class Dadam(SingleLevel):
    """x⁺ = W (x − α m̂/(√v̂ + ε))"""

    catalog_name = "dadam"
    summary = "local Adam, then averaging (biased where nodes differ)"
    paper = "Nazari, Tarzanagh, Michailidis, DADAM: A Consensus-Based Distributed Adaptive Gradient Method, 2019"
    defaults: ClassVar = {}
    strategy_name = "adam-diffusion"


class GtAdam(SingleLevel):
    """x⁺ = W x − α m̂/(√v̂ + ε), h⁺ = W h + Δr, with the moments of h⁺"""

    catalog_name = "gt-adam"
    summary = "Adam along tracked gradients"
    paper = (
        "Carnevale, Farina, Notarnicola, Notarstefano, GTAdam: Gradient Tracking with Adaptive Momentum for "
        "Distributed Online Optimization, 2020"
    )
    defaults: ClassVar = {}
    strategy_name = "adam-gt"


@register(AdaEdScalar, scalar=True)
@register(AdaEd)
def ada_ed(*, alpha: Rate = 0.3, theta: Rate = 1.0, scalar: bool = False) -> AdaEd | AdaEdScalar:
    """Adaptive Exact Diffusion: AdaGrad's steps at every node, and still the exact solution. Draws: one batch.

    Args:
        alpha: AdaGrad's step size, which seldom needs to be changed.
        theta: the weight of the newest sample in a running average of the gradient, from 0 to 1; 1 keeps no average.
        scalar: one step for each node instead of one for each coordinate; a message is half as long.
    """
    return AdaEdScalar(alpha, theta) if scalar else AdaEd(alpha, theta)


@register(AdamEd)
def adam_ed(*, alpha: Rate = 1e-3, theta: Rate = 1.0) -> AdamEd:
    """Adaptive Exact Diffusion with Adam's steps, for neural networks. Draws: one batch.

    Args:
        alpha: Adam's step size, best a schedule that falls to zero.
        theta: the weight of the newest sample in a running average of the gradient, from 0 to 1; 1 keeps no average.
    """
    return AdamEd(alpha, theta)


@register(Dadam)
def dadam(*, alpha: Rate = 1e-3, theta: Rate = 1.0) -> Dadam:
    """DADAM (Nazari et al., 2019): a local step of Adam, then averaging with neighbours. Draws: one batch.

    Differs from the paper: bias corrections as in Adam, and no maximum over second moments.

    Args:
        alpha: Adam's step size: a number, or a function of the step.
        theta: the weight of the newest sample in a running average of the gradient, from 0 to 1; 1 keeps no average.
    """
    return Dadam(alpha, theta)


@register(GtAdam)
def gt_adam(*, alpha: Rate = 1e-3, theta: Rate = 1.0) -> GtAdam:
    """GTAdam (Carnevale et al., 2020): steps of Adam along tracked gradients. Draws: one batch.

    Differs from the paper: bias corrections as in Adam, no maximum over second moments, tracking in flow form.

    Args:
        alpha: Adam's step size: a number, or a function of the step.
        theta: the weight of the newest sample in a running average of the gradient, from 0 to 1; 1 keeps no average.
    """
    return GtAdam(alpha, theta)
