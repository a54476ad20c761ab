"""SPARKLE: any strategy for the lower and the auxiliary level, and any for the upper one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import equinox as eqx
from jax import Array

from ..network._communicator import Communicator
from ..oracles._eval_config import Products
from ..oracles._oracle import Oracle
from ..oracles._penalty import Penalty
from ..oracles.hypergradient import auxiliary, penalty
from ..strategies._local import with_local_steps
from ..strategies._table import Strategy, strategy
from ._auxiliary import Auxiliary
from ._dsgda_gt import DsgdaGt
from ._entry import register
from ._f2sa import F2sa
from ._method import Rate, State, Variant
from ._single_level import LED, LT_ADMM, NIDS, PUSH_PULL, given_rate


class Sparkle(Auxiliary):
    """y⁺ = L(y, β v); z⁺ = L(z, γ p); r⁺ = (1−θ) r + θ u; x⁺ = U(x, α r⁺), simultaneous or alternating."""

    paper = (
        "Zhu et al., SPARKLE: A Unified Single-Loop Primal-Dual Framework for Decentralized Bilevel Optimization, 2024"
    )
    defaults: ClassVar = {"theta": 0.3}
    mixed: ClassVar[tuple[str, ...]] = ("ed", "extra", "gt", "semi-gt", "non-gt", "diffusion", "consensus")

    lower: Strategy
    upper: Strategy
    updates: str = eqx.field(static=True)
    upper_every: int = eqx.field(static=True, default=1)

    @classmethod
    def variants(cls) -> Iterator[Variant]:
        for lower in cls.mixed:
            yield Variant(f"sparkle-{lower}", f"SPARKLE with {lower} on every level", cls.paper, {"lower": lower})
            for upper in cls.mixed:
                if upper != lower:
                    placement, levels = f"{lower} below, {upper} above", {"lower": lower, "upper": upper}
                    yield Variant(
                        f"sparkle-{lower}-{upper}", f"SPARKLE with {placement}", cls.paper, levels, mixture=True
                    )
        yield from cls.extensions()

    @classmethod
    def extensions(cls) -> Iterator[Variant]:
        """What SPARKLE's paper does not have, with the papers that it builds on; docs/credits.md says what is whose."""
        adaptive = f"ours, on {cls.paper}; {NIDS} (NIDS)"
        for name, steps in (("ada-ed", "coordinate"), ("ada-ed-scalar", "level")):
            summary = f"SPARKLE with adaptive Exact Diffusion: a step size for each node and {steps}, nothing to tune"
            yield Variant(f"sparkle-{name}", summary, adaptive, {"lower": name}, defaults={})
        summary = "SPARKLE with adaptive Exact Diffusion and Adam's steps, for neural networks (biased by skewed noise)"
        yield Variant("sparkle-adam-ed", summary, adaptive, {"lower": "adam-ed"}, defaults={})
        copies = f"ours, on {cls.paper}; {F2sa.paper} (F2SA)"
        tracked = f"{DsgdaGt.paper} (DSGDA-GT, which it is in other coordinates where γ = β)"
        for name, paper in (("ed", copies), ("extra", copies), ("gt", tracked)):
            summary = f"SPARKLE's penalty form with {name}: first derivatives only, g may be flat in y (error O(1/λ))"
            yield Variant(f"penalty-{name}", summary, paper, {"lower": name, "hypergradient": penalty()})
        summary = "SPARKLE with four local steps for each exchange"
        local = f"ours, on {cls.paper}; {LED}"
        yield Variant("sparkle-led", summary, local, {"lower": "ed", "local_steps": 4})
        summary = "SPARKLE with ED's flows kept per link: exact where messages are lost one way"
        flows = (
            f"ours, on {cls.paper}; Jesus, Baquero, Almeida, Flow Updating: Fault-Tolerant Aggregation for Dynamic "
            "Networks, 2015"
        )
        yield Variant("sparkle-edge-ed", summary, flows, {"lower": "edge-ed"})
        summary = "SPARKLE with push-pull on every level: exact over one-way links"
        yield Variant("sparkle-push-pull", summary, f"ours, on {cls.paper}; {PUSH_PULL}", {"lower": "push-pull"})
        summary = "SPARKLE with EXTRA by link in wave variables: exact without a common clock"
        yield Variant("sparkle-wave", summary, f"ours, on {cls.paper}; {LT_ADMM}", {"lower": "wave"})

    @property
    def name(self) -> str:
        low, up = self.lower.name, self.upper.name
        family = "penalty" if isinstance(self.hypergradient, Penalty) else "sparkle"
        return f"{family}-{low}" if low == up else f"{family}-{low}-{up}"

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": self.upper, "y": self.lower, "z": self.lower}

    @property
    def intervals(self) -> Mapping[str, int]:
        return {} if self.upper_every == 1 else {"x": self.upper_every, "z": self.upper_every}

    def validate_prox_y(self) -> None:
        super().validate_prox_y()
        assert isinstance(self.hypergradient, Penalty)
        if self.upper_every > 1 and self.hypergradient.central:
            raise ValueError("prox_y with upper_every needs penalty(central=False): the central copies move with z.")

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        update = self.simultaneous if self.updates == "simultaneous" else self.alternating
        if self.upper_every == 1:
            return update(k, state, oracle, network)

        # Draws depend on the loop's index, or XLA would make them before the loop, also in steps in which x rests.
        def all_levels(state: State, loop_index: Array, network: Communicator) -> State:
            return update(k, state, oracle.inside(loop_index), network)

        def lower_level(state: State, loop_index: Array, network: Communicator) -> State:
            return self.lower_only(k, state, oracle.inside(loop_index), network)

        return network.cond(k % self.upper_every == 0, all_levels, lower_level, state._replace(link_memory=()))


@register(Sparkle)
def sparkle(
    lower: str | Strategy,
    upper: str | Strategy | None = None,
    *,
    alpha: Rate | None = None,
    beta: Rate | None = None,
    gamma: Rate | None = None,
    theta: Rate = 1.0,
    updates: Literal["simultaneous", "alternating"] = "simultaneous",
    hypergradient: Products | Penalty | None = None,
    local_steps: int = 1,
    upper_every: int = 1,
) -> Sparkle:
    """SPARKLE-L-U (Zhu et al., 2024): strategy `lower` for y and z, `upper` (the same if None) for x.

    Draws: an upper batch, and one lower batch for all levels (`"alternating"`: one for each), for each local step.

    On quadratics the mean of a run ends at the same point with batches as with all samples. The exception is
    `"adam-ed"` under skewed noise.

    Differs from the paper: runs in flow form; C = W for ED (the paper's table prints W²); by default all directions are
    taken at the old point.

    Args:
        lower: the strategy of y and z, as a name or a `db.Strategy`.
        upper: the strategy of x; None takes `lower`.
        alpha: the step size of x: a number, or a function of the step. Adaptive strategies have a default.
        theta: the weight of the newest sample in the running average of the upper direction, from 0 to 1; 1 keeps no
            average.
        updates: `"simultaneous"` takes all directions at the old point: one vjp, one lower batch and one message per
            step. `"alternating"`, as in the paper, takes each at the newest point: three of each. With both tuned,
            alternating was no better for the same bytes and worse for the same samples.
        hypergradient: `db.hypergradient.auxiliary()`, the default; `.difference(delta)`, which needs no second
            derivatives; or `.penalty(strength)`, for lower levels that are not strongly convex.
        local_steps: how many steps all levels take for each exchange, with `"ed"` (LED), `"wave"` (LT-ADMM),
            `"ada-ed"` or `"adam-ed"`.
        upper_every: k. From step 0 on, x and z move only in every k-th step, and y in every step. The steps between
            compute, draw and send nothing for x and z, so they cost one gradient. The solution is the same. Step sizes
            are used as given: `alpha` may be about k times larger. Schedules receive the step number.
    """
    if updates not in ("simultaneous", "alternating"):
        raise ValueError(f"updates={updates!r} is not known: choose 'simultaneous' or 'alternating'.")
    hypergradient = _validated(hypergradient)
    low = with_local_steps(strategy(lower), local_steps)
    up = low if upper is None else with_local_steps(strategy(upper), local_steps)
    if low.local_steps != up.local_steps:
        raise ValueError(
            f"lower takes {low.local_steps} local steps and upper {up.local_steps}: give both the same strategy."
        )
    if updates == "alternating" and (isinstance(hypergradient, Penalty) or low.local_steps > 1):
        taker = (
            "the penalty form takes" if isinstance(hypergradient, Penalty) else f"local_steps={low.local_steps} takes"
        )
        raise ValueError(f"{taker} all directions at the old point: leave out updates='alternating'.")
    if isinstance(upper_every, bool) or not isinstance(upper_every, int) or upper_every < 1:
        raise ValueError(f"upper_every={upper_every!r} must be a positive integer: give 8, for one step in eight.")
    return Sparkle(
        alpha=given_rate("alpha", alpha, up),
        beta=given_rate("beta", beta, low),
        gamma=given_rate("gamma", gamma, low),
        theta=theta,
        hypergradient=hypergradient,
        lower=low,
        upper=up,
        updates=updates,
        upper_every=upper_every,
    )


def _validated(hypergradient: Products | Penalty | None) -> Products | Penalty:
    if hypergradient is None:
        return auxiliary()
    if not isinstance(hypergradient, Products | Penalty):
        raise TypeError(
            f"hypergradient={hypergradient!r} does not fit a shared lower level: give db.hypergradient.auxiliary(), "
            ".difference(delta) or .penalty(strength)."
        )
    return hypergradient
