"""One level: x⁺ = U(x, α r⁺), r⁺ = (1−θ) r + θ ∇f(x) on one batch. SPARKLE without a lower level is exactly this.

Single-level methods differ in their strategy only: each is a row of the catalogue and a constructor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from jax import Array

from ..core._vector import Vector
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..strategies._local import with_local_steps
from ..strategies._nids import nids as with_steps
from ..strategies._table import STRATEGIES, Level, Strategy, led, strategy
from ._entry import Make, register
from ._method import Method, Rate, State, Variant, rate

XU = (
    "Xu, Zhu, Soh, Xie, Augmented Distributed Gradient Methods for Multi-Agent Optimization under Uncoordinated "
    "Constant Stepsizes, 2015"
)
NIDS = (
    "Li, Shi, Yan, A Decentralized Proximal-Gradient Method with Network Independent Step-Sizes and Separated "
    "Convergence Rates, 2019"
)
PUSH_PULL = (
    "Xin, Khan, A Linear Algorithm for Optimization over Directed Graphs with Geometric Convergence, 2018 (AB); Pu, "
    "Shi, Xu, Nedić, Push-Pull Gradient Methods for Distributed Optimization in Networks, 2018"
)
LED = "Alghunaim, Local Exact-Diffusion for Decentralized Optimization and Learning, 2023"
LT_ADMM = (
    "Ren, Bastianello, Johansson, Parisini, Communication-Efficient Stochastic Distributed Learning, 2025 (LT-ADMM "
    "with one local step); over lossy, asynchronous networks Bastianello, Carli, Schenato, Todescato, Asynchronous "
    "Distributed Optimization over Lossy Networks via Relaxed ADMM: Stability and Linear Convergence, 2021"
)
ADA_ED = f"ours, on {NIDS} (NIDS, which it is with constant steps)"
NAMES: dict[str, str] = {}  # of the methods in the catalogue, by the name of their strategy


class SingleLevel(Method):
    """r⁺ = (1−θ) r + θ ∇f(x) moves x, by a strategy."""

    takes_prox: ClassVar = True

    alpha: Rate
    theta: Rate
    mixing: Strategy

    @property
    def name(self) -> str:
        return self.catalog_name or NAMES.get(self.mixing.name, self.mixing.name)

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": self.mixing}

    def start(self, x: Vector, y: Vector | None) -> State:
        return State(self.mixing.start(x), memory=x.zeros())

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        strategy = self.levels(oracle)["x"]
        α = rate(self.alpha, k)
        θ = rate(self.theta, k)

        def direction(draw_index: int | Array, x: Level, r: Vector) -> Vector:
            return (1 - θ) * r + θ * oracle.draw(draw_index).at(x.s).fx

        def local_step(j: Array, level_and_average: tuple[Level, Vector]) -> tuple[Level, Vector]:
            x, r = level_and_average
            r = direction(j + 1, x, r)
            return strategy.local_step(x, r, α), r

        x, r = state.x, state.memory
        if strategy.local_steps > 1:
            x = network(x=strategy.begin_local_steps(x, α))
            x, r = oracle.ledger.loop(strategy.local_steps - 1, local_step, (x, r))
        r = direction(0, x, r)
        return State(network(x=strategy(x, r, α)), memory=r)


def given_rate(name: str, value: Rate | None, strategy: Strategy) -> Rate:
    """The step size, or the strategy's own where none is given."""
    rate = strategy.default_rate if value is None else value
    if rate is None:
        raise TypeError(f"{name} is missing: give a step size such as 0.05, or use the strategy 'ada-ed'.")
    return rate


def row(name: str, strategy_name: str, summary: str, paper: str, **settings: Any) -> Callable[[Make], Make]:
    """Puts a single-level method into the catalogue, by the name of its strategy and the settings that choose it."""
    NAMES[strategy_name] = name
    strategy_row = STRATEGIES.get(strategy_name)
    defaults = {} if strategy_row is not None and strategy_row.default_rate is not None else None
    return register(SingleLevel, Variant(name, summary, paper, settings, defaults=defaults))


@row(
    "dsgd",
    "diffusion",
    "decentralized SGD (biased where nodes differ)",
    "Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for Decentralized "
    "Parallel Stochastic Gradient Descent, 2017",
)
def dsgd(*, alpha: Rate, theta: Rate = 1.0) -> SingleLevel:
    """Decentralized SGD, adapt then combine: x⁺ = W (x − α ∇f). Biased if nodes differ. Draws: one batch."""
    return SingleLevel(alpha, theta, strategy("diffusion"))


@row("led", "led", "Local Exact Diffusion: several steps for each exchange", LED, local_steps=4)
@row(
    "ed",
    "ed",
    "Exact Diffusion, also D² and SPD",
    "Yuan, Ying, Zhao, Sayed, Exact Diffusion for Distributed Optimization and Learning, Part I: Algorithm "
    "Development, 2019",
)
def ed(*, alpha: Rate, theta: Rate = 1.0, local_steps: int = 1) -> SingleLevel:
    """Exact Diffusion (= D², SPD): x⁺⁺ = W (2 x⁺ − x − α Δ∇f). Draws: one batch for each local step.

    With τ local steps it is LED: f = x, then τ times f ← f − α r + c; δ = (W − I) f, c ← c + δ/τ, x⁺ = f + δ.

    Args:
        local_steps: how many steps a node takes for each exchange (LED, Alghunaim, 2023).
    """
    return SingleLevel(alpha, theta, led(local_steps))


@row(
    "extra",
    "extra",
    "EXTRA",
    "Shi, Ling, Wu, Yin, EXTRA: An Exact First-Order Algorithm for Decentralized Consensus Optimization, 2015",
)
def extra(*, alpha: Rate, theta: Rate = 1.0) -> SingleLevel:
    """EXTRA (Shi et al., 2015): x⁺⁺ = W (2 x⁺ − x) − α Δ∇f.

    Draws: one batch. Differs from the paper: its W̃ = (I + W)/2 form is `graph.lazy()`'s; here C = W as in SPARKLE's
    table.
    """
    return SingleLevel(alpha, theta, strategy("extra"))


@row("wave", "wave", "EXTRA by link in wave variables: exact without a common clock", LT_ADMM)
def wave(*, alpha: Rate, theta: Rate = 1.0, local_steps: int = 1) -> SingleLevel:
    """EXTRA by link, in wave variables: exact where messages are late or lost and nodes differ in speed.

    x⁺ = x − α r⁺ + Σ_j (z_ij − ρ_ij x_i), z_ij ← ½ (z_ij + q_ji), q_ij = 2 ρ_ij x_i − z_ij, ρ_ij = 2 w_ij. Draws: one
    batch for each local step. With all messages in time it is LT-ADMM (Ren et al., 2025) with β = 1, relaxation ½ and a
    penalty 2 w_ij for each link. Differs from that paper: messages may be late or lost, by the rule of relaxed ADMM
    over lossy networks (Bastianello et al., 2021), and τ local steps divide the penalty by τ.

    Args:
        alpha: the step size of x: a number, or a function of the step. Keep α L + 3 (1 − w_ii) below 2 where
            messages are late, for a smoothness L.
        local_steps: τ, how many steps a node takes for each exchange, with the same Σ_j (z_ij − ρ_ij x_i).
    """
    return SingleLevel(alpha, theta, with_local_steps(strategy("wave"), local_steps))


@row("gt", "gt", "gradient tracking, adapt then combine", XU)
def gt(*, alpha: Rate, theta: Rate = 1.0) -> SingleLevel:
    """Gradient tracking, adapt then combine: x⁺ = W (x − α h), h⁺ = W (h + Δ∇f). Draws: one batch.

    GNSD does not adapt first: `gnsd`.
    """
    return SingleLevel(alpha, theta, strategy("gt"))


@row("push-pull", "push-pull", "gradient tracking over one-way links, also AB", PUSH_PULL)
def push_pull(*, alpha: Rate, theta: Rate = 1.0) -> SingleLevel:
    """Push-pull, also AB: gradient tracking over one-way links, with a row-stochastic R and a column-stochastic C.

    h⁺ = C (h + Δ∇f), x⁺ = R (x − α h⁺). Draws: one batch.

    Differs from the papers: x moves before it is combined, and the first tracked gradient is split by C, so that it is
    `gt` where R = C = W. It runs in flow form.
    """
    return SingleLevel(alpha, theta, strategy("push-pull"))


@row(
    "sgp",
    "push-sum",
    "stochastic gradient push over one-way links (biased where nodes differ)",
    "Assran, Loizou, Ballas, Rabbat, Stochastic Gradient Push for Distributed Deep Learning, 2019; Nedić, Olshevsky, "
    "Distributed Optimization over Time-Varying Directed Graphs, 2015 (subgradient-push)",
)
def sgp(*, alpha: Rate, theta: Rate = 1.0) -> SingleLevel:
    """Stochastic gradient push (Assran et al., 2019): a node pushes shares of w x − α ∇f, and of its weight w.

    w⁺ = C w from w = 1, x⁺ = C (w x − α ∇f) / w⁺. Biased if nodes differ, as `dsgd` is. Draws: one batch.
    Where messages may be lost, rounding errors grow with the steps: take float64 for more than a few thousand.

    Subgradient-push (Nedić, Olshevsky, 2015) mixes first, and takes gradients after.
    """
    return SingleLevel(alpha, theta, strategy("push-sum"))


@row(
    "gnsd",
    "non-gt",
    "gradient tracking that combines first",
    "Lu, Zhang, Sun, Hong, GNSD: A Gradient-Tracking Based Nonconvex Stochastic Algorithm for Decentralized "
    "Optimization, 2019",
)
def gnsd(*, alpha: Rate, theta: Rate = 1.0) -> SingleLevel:
    """GNSD (Lu et al., 2019): gradient tracking that does not adapt first, x⁺ = W x − α h, h⁺ = W h + Δ∇f.

    Draws: one batch.
    """
    return SingleLevel(alpha, theta, strategy("non-gt"))


@row("nids", "nids", "Exact Diffusion in which each node may have its own step sizes and proximal terms", NIDS)
def nids(*, alpha: Rate, theta: Rate = 1.0, node_steps: Sequence[float] | None = None) -> SingleLevel:
    """NIDS (Li, Shi, Yan, 2019): Exact Diffusion with the proximal map inside, and a step for each node.

    Draws: one batch. Differs from the paper: c is 1 over the largest step, for a W without negative eigenvalues as
    `graph.lazy()` has it; the first step is mixed, as ED's.

    Args:
        alpha: the step size of x: a number, or a function of the step. With `node_steps` a constant.
        node_steps: what `alpha` is multiplied by at each node, such as 1/L_i for a loss of smoothness L_i; None gives
            all nodes the same step.
    """
    return SingleLevel(alpha, theta, strategy("nids") if node_steps is None else with_steps(node_steps))


@row(
    "ada-ed-scalar",
    "ada-ed-scalar",
    "adaptive Exact Diffusion: a step size for each node, nothing to tune",
    ADA_ED,
    scalar=True,
)
@row("ada-ed", "ada-ed", "adaptive Exact Diffusion: a step size for each node and coordinate, nothing to tune", ADA_ED)
def ada_ed(*, alpha: Rate = 0.3, theta: Rate = 1.0, scalar: bool = False, local_steps: int = 1) -> SingleLevel:
    """Adaptive Exact Diffusion: AdaGrad's steps D at every node, and still the exact solution. Draws: one batch for
    each local step.

    r = g − e, φ = x − D r, e⁺ = e + F, x⁺ = φ + D F. With constant steps it is NIDS with uncoordinated steps (Li, Shi,
    Yan, 2019). With τ local steps x ← x − D_t r is taken τ times, and D is the sum of the D_t.

    Args:
        alpha: AdaGrad's step size, which seldom needs to be changed.
        scalar: one step for each node instead of one for each coordinate; a message is half as long.
        local_steps: how many steps a node takes for each exchange.
    """
    mixing = strategy("ada-ed-scalar" if scalar else "ada-ed")
    return SingleLevel(alpha, theta, with_local_steps(mixing, local_steps))


@row(
    "adam-ed",
    "adam-ed",
    "adaptive Exact Diffusion with Adam's steps, for neural networks",
    f"ours, on {NIDS} (NIDS); neighbours agree on second moments as in Chen, Karimi, Zhao, Li, On the Convergence of "
    "Decentralized Adaptive Gradient Methods, 2022",
)
def adam_ed(*, alpha: Rate = 1e-3, theta: Rate = 1.0, local_steps: int = 1) -> SingleLevel:
    """Adaptive Exact Diffusion with Adam's steps, on which neighbours agree, for neural networks. Draws: one batch for
    each local step.

    Biased if the noise of gradients is skewed, as Adam is: see `strategies.adam_ed`.

    Args:
        alpha: Adam's step size, best a schedule that falls to zero.
        local_steps: how many steps a node takes for each exchange.
    """
    return SingleLevel(alpha, theta, with_local_steps(strategy("adam-ed"), local_steps))


@row(
    "gt-ada",
    "gt-ada",
    "gradient tracking with a step size for each node and coordinate, nothing to tune",
    f"{XU} (AugDGM), with AdaGrad's steps",
)
def gt_ada(*, alpha: Rate = 0.3, theta: Rate = 1.0) -> SingleLevel:
    """AugDGM (Xu et al., 2015) with AdaGrad's steps: each node applies its own step to the gradient that it tracks.

    h⁺ = W (h + Δr), x⁺ = W (x − D h⁺), with AdaGrad's D by node and coordinate from h. Exact, as `ada_ed` is; it sends
    two vectors, one after the other. Draws: one batch.

    Differs from the paper: AdaGrad's steps by coordinate instead of a constant one for each node, and the first tracked
    gradient is mixed. A published relative with a step for each node is AdGT (Ghaderyan, Werner, 2025).

    Args:
        alpha: AdaGrad's step size, which seldom needs to be changed.
    """
    return SingleLevel(alpha, theta, strategy("gt-ada"))


@row(
    "dadam",
    "adam-diffusion",
    "local Adam, then averaging (biased where nodes differ)",
    "Nazari, Tarzanagh, Michailidis, DADAM: A Consensus-Based Distributed Adaptive Gradient Method, 2019",
)
def dadam(*, alpha: Rate = 1e-3, theta: Rate = 1.0) -> SingleLevel:
    """DADAM (Nazari et al., 2019): a local step of Adam, then averaging with neighbours. Draws: one batch.

    Differs from the paper: bias corrections as in Adam, and no maximum over second moments.

    Args:
        alpha: Adam's step size: a number, or a function of the step.
    """
    return SingleLevel(alpha, theta, strategy("adam-diffusion"))


@row(
    "gt-adam",
    "adam-gt",
    "Adam along tracked gradients",
    "Carnevale, Farina, Notarnicola, Notarstefano, GTAdam: Gradient Tracking with Adaptive Momentum for Distributed "
    "Online Optimization, 2020",
)
def gt_adam(*, alpha: Rate = 1e-3, theta: Rate = 1.0) -> SingleLevel:
    """GTAdam (Carnevale et al., 2020): steps of Adam along tracked gradients. Draws: one batch.

    Differs from the paper: bias corrections as in Adam, no maximum over second moments, tracking in flow form.

    Args:
        alpha: Adam's step size: a number, or a function of the step.
    """
    return SingleLevel(alpha, theta, strategy("adam-gt"))
