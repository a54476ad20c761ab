"""INTERACT, SVR-INTERACT and the baselines of their paper: a personal lower level, an inverse at the node."""

from __future__ import annotations

from typing import ClassVar

from ..graphs._graph import Levels
from ..oracles import estimators
from ..oracles import hypergradient as inverses
from ..oracles.hypergradient import LocalHypergradient
from ..problem._problem import Problem
from ._entry import register
from ._implicit import Implicit
from ._method import Rate


class InteractBase(Implicit):
    """y stays at the node: y⁺ = y − β v."""

    paper = (
        "Liu et al., INTERACT: Achieving Low Sample and Communication Complexities in Decentralized Bilevel Learning "
        "over Networks, 2022"
    )
    strategy_names: ClassVar = {"x": "non-gt", "y": "local"}


class Interact(InteractBase):
    """x⁺ = M x − α h, h⁺ = M h + Δ∇̄f, on all samples."""

    catalog_name = "interact"
    summary = "gradient tracking on x, a personal lower level, all samples"

    def validate(self, problem: Problem, graphs: Levels, batch_size: int | None) -> None:
        super().validate(problem, graphs, batch_size)
        if batch_size is not None:
            raise ValueError(
                f"{self.name} uses all samples in every step: leave batch_size out, or use db.gt_dsgd(...)."
            )


class SvrInteract(InteractBase):
    """INTERACT's directions in a SPIDER estimator."""

    catalog_name = "svr-interact"
    summary = "INTERACT with SPIDER variance reduction"


class GtDsgd(InteractBase):
    """INTERACT on batches."""

    catalog_name = "gt-dsgd"
    summary = "INTERACT with batches"


class DsgdBilevel(InteractBase):
    """x⁺ = M x − α ∇̄f."""

    catalog_name = "d-sgd-bilevel"
    summary = "no tracking (biased where nodes differ)"
    strategy_names: ClassVar = {"x": "consensus", "y": "local"}


@register(Interact)
def interact(*, alpha: Rate, beta: Rate, hypergradient: LocalHypergradient | None = None) -> Interact:
    """INTERACT (Liu et al., 2022): x⁺ = M x − α u, y⁺ = y − β ∇_y g, u⁺ = M u + Δ∇̄f; exact local inverse.

    Draws: none, every step uses all samples. Differs from the paper: the tracker runs in flow form.

    Args:
        hypergradient: how a node finds its hypergradient, such as `db.hypergradient.cg(10)`; None inverts exactly.
    """
    inverse = hypergradient or inverses.personal()
    return Interact(alpha, beta, inverse, estimators.plain())


@register(SvrInteract)
def svr_interact(
    *,
    alpha: Rate,
    beta: Rate,
    hypergradient: LocalHypergradient | None = None,
    period: int | None = None,
    terms: int = 10,
    scale: float | None = None,
) -> SvrInteract:
    """SVR-INTERACT (Liu et al., 2022): INTERACT's directions in a SPIDER estimator. All samples every `period` steps
    (⌈√n⌉), in between differences on the same batch (`batch_size`, or ⌈√n⌉) by the randomized Neumann estimator (22) of
    `terms` terms with L = `scale`, averaged over the batch as in (23); a given `hypergradient` serves both.

    Draws between full batches: one upper and one lower batch S, for v and J; for every sample of S its own number k of
    factors and k lower samples; one lower batch for L where `scale` is None. All are the same at both points of a
    difference.

    Args:
        hypergradient: how a node finds its hypergradient, such as `db.hypergradient.cg(10)`; None takes (22) on batches
            and inverts exactly on all samples.
        period: steps between full batches; None takes ⌈√n⌉ for n samples.
    """
    inverse = hypergradient or inverses.personal(terms, scale)
    return SvrInteract(alpha, beta, inverse, estimators.spider(period))


@register(GtDsgd)
def gt_dsgd(
    *,
    alpha: Rate,
    beta: Rate,
    hypergradient: LocalHypergradient | None = None,
    terms: int = 10,
    scale: float | None = None,
) -> GtDsgd:
    """GT-DSGD, a baseline of INTERACT's paper: INTERACT with batches, ∇̄f by (22), averaged over the batch.

    Draws: as SVR-INTERACT between its full batches. Differs from the paper: the tracker runs in flow form.

    Args:
        hypergradient: how a node finds its hypergradient, such as `db.hypergradient.cg(10)`; None takes (22).
    """
    inverse = hypergradient or inverses.personal(terms, scale)
    return GtDsgd(alpha, beta, inverse, estimators.plain())


@register(DsgdBilevel)
def dsgd_bilevel(
    *,
    alpha: Rate,
    beta: Rate,
    hypergradient: LocalHypergradient | None = None,
    terms: int = 10,
    scale: float | None = None,
) -> DsgdBilevel:
    """D-SGD, bilevel, a baseline of INTERACT's paper: x⁺ = M x − α ∇̄f, y⁺ = y − β ∇_y g; no tracking, so biased where
    nodes differ. Draws: as GT-DSGD.

    Args:
        hypergradient: how a node finds its hypergradient, such as `db.hypergradient.cg(10)`; None takes (22).
    """
    inverse = hypergradient or inverses.personal(terms, scale)
    return DsgdBilevel(alpha, beta, inverse, estimators.plain())
