"""How large wave's steps may be when messages are late: the table of docs/proofs.md, as it is measured.

    python docs/figures/wave_stability.py     # about two minutes on one core; writes wave_stability.json

Every case draws a connected graph of 2 to 7 nodes, symmetric weights, a curvature for each node, and a constant delay
of 0 to 6 steps for each directed link. On quadratic losses wave is a linear map of s, z and the messages under way
then. A case is unstable if an eigenvalue of that map lies outside the unit circle. NumPy alone, not the library.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

CASES = 2_000
OUTSIDE = 1 + 1e-6
PROVEN = "αL = 2(4 − 3R)/(4 + R), the proven bound"


def usual(bound: np.ndarray, R: np.ndarray) -> np.ndarray:
    """The bound where all R are at most 1, as with the default weights of `db.graphs`; other networks are not drawn."""
    return bound if (R <= 1).all() else np.zeros_like(R)


SWEEPS = {
    "αL + 1.5R = 1.99": lambda R: 1.99 - 1.5 * R,
    "αL + 1.5R = 2.05": lambda R: 2.05 - 1.5 * R,
    "αL + 1.5R = 2.25": lambda R: 2.25 - 1.5 * R,
    "αL + R = 1.5": lambda R: 1.5 - R,
    "αL + R = 1.75": lambda R: 1.75 - R,
    PROVEN: lambda R: 2 * (4 - 3 * R) / (4 + R),
    "αL + R = 1.5, R ≤ 1": lambda R: usual(1.5 - R, R),
    "αL + R = 1.6, R ≤ 1": lambda R: usual(1.6 - R, R),
}


class Case(NamedTuple):
    """A network: its directed links (i, j), their ρ, and by node R and step size times curvature."""

    links: np.ndarray
    ρ: np.ndarray
    R: np.ndarray
    curvature: np.ndarray
    delay: np.ndarray

    @property
    def opposite(self) -> np.ndarray:
        """Of every link, the number of the one that goes back."""
        number = {tuple(link): k for k, link in enumerate(self.links.tolist())}
        return np.array([number[j, i] for i, j in self.links.tolist()])


def draw(rng: np.random.Generator, bound: Callable[[np.ndarray], np.ndarray]) -> Case:
    """A random network whose nodes take steps up to a bound on αL, which depends on R."""
    while True:
        nodes = rng.integers(2, 8)
        joined = np.triu(rng.random((nodes, nodes)) < rng.uniform(0.3, 1), 1)
        joined = joined | joined.T
        degrees = joined.sum(1)
        laplacian = np.diag(degrees) - joined.astype(float)
        if np.linalg.eigvalsh(laplacian)[1] < 1e-9:
            continue
        if rng.random() < 0.5:
            weights = np.triu(rng.random((nodes, nodes)), 1)
            weights = weights + weights.T
        else:
            weights = 1 / np.maximum.outer(degrees, degrees)
        weights = np.where(joined, weights, 0.0)
        weights *= rng.uniform(0.05, 0.66) / weights.sum(1).max()
        R = 2 * weights.sum(1)
        W = weights + np.diag(1 - weights.sum(1))
        if np.linalg.eigvalsh(W)[0] <= -1 / 3 or (bound(R) <= 0).any():
            continue
        share = [np.ones(nodes), rng.random(nodes), np.where(rng.random(nodes) < 0.5, 1.0, 0.05)][rng.integers(3)]
        links = np.argwhere(joined)
        longest = rng.integers(1, 7)
        drawn = rng.integers(0, longest + 1, len(links))
        delay = [drawn, np.full(len(links), longest), np.where(drawn > longest / 2, longest, 0)][rng.integers(3)]
        return Case(links, 2 * weights[links[:, 0], links[:, 1]], R, share * bound(R), delay)


def radius(case: Case, local_steps: int = 1) -> float:
    """The spectral radius of one step of wave on all nodes, with the messages under way as part of the state.

    With local steps ρ and R are used as they are: divide them before.
    """
    left, length = (1 - case.curvature) ** local_steps, sum((1 - case.curvature) ** t for t in range(local_steps))
    nodes, count, longest = len(case.R), len(case.links), int(case.delay.max())
    receivers, senders = case.links.T
    each = np.arange(count)
    size = nodes + count * (1 + longest)
    sent = np.zeros((count, size))  # q_ji = 2 ρ s_j − z_ji, by the link on which it arrives
    sent[each, senders] = 2 * case.ρ
    sent[each, nodes + case.opposite] = -1
    arriving = np.where((case.delay == 0)[:, None], sent, 0.0)
    late = np.flatnonzero(case.delay)
    arriving[late, nodes + count * case.delay[late] + late] = 1
    z = 0.5 * arriving
    z[each, nodes + each] += 0.5
    s = np.zeros((nodes, size))
    s[np.arange(nodes), np.arange(nodes)] = left - length * case.R
    np.add.at(s, receivers, length[receivers][:, None] * z)
    older = np.zeros((count * longest, size))
    if longest:
        older[:count] = sent
        rest = np.arange(count * (longest - 1))
        older[count + rest, nodes + count + rest] = 1
    return float(np.abs(np.linalg.eigvals(np.concatenate([s, z, older]))).max())


def periodic_radius(rng: np.random.Generator, case: Case, trouble: str) -> float:
    """The spectral radius over a random period of up to six steps in which messages are lost or nodes pause.

    Args:
        rng: draws the period.
        case: the network; its delays are not used.
        trouble: `"loss"`: messages are lost; `"pause"`: nodes neither move nor send; `"reread"`: nodes that wake use
            their neighbours' current waves, whether used before or not.
    """
    nodes = len(case.R)
    count = len(case.links)
    receivers, senders = case.links.T
    each = np.arange(count)
    opposite = case.opposite
    period = np.eye(nodes + count)
    for _ in range(rng.integers(1, 7)):
        awake = np.ones(nodes, bool) if trouble == "loss" else rng.random(nodes) < 0.6
        used = {"loss": rng.random(count) < 0.7, "pause": awake[senders], "reread": np.ones(count, bool)}[trouble]
        used = used & awake[receivers]
        z = np.zeros((count, nodes + count))
        z[each, nodes + each] = np.where(used, 0.5, 1.0)
        z[each, senders] = np.where(used, case.ρ, 0.0)
        z[each, nodes + opposite] = np.where(used, -0.5, 0.0)
        s = np.zeros((nodes, nodes + count))
        s[np.arange(nodes), np.arange(nodes)] = 1 - case.curvature - case.R
        np.add.at(s, receivers, z)
        s[~awake] = np.eye(nodes, nodes + count)[~awake]
        period = np.concatenate([s, z]) @ period
    return float(np.abs(np.linalg.eigvals(period)).max())


def measure_periods(cases: int = CASES, seed: int = 0) -> dict[str, int]:
    """How many networks at the proven bound are unstable, by what goes wrong in them."""
    unstable = {}
    for trouble in ("loss", "pause", "reread"):
        rng = np.random.default_rng(seed)
        unstable[trouble] = sum(
            periodic_radius(rng, draw(rng, SWEEPS[PROVEN]), trouble) > OUTSIDE for _ in range(cases)
        )
    return unstable


def measure(cases: int = CASES, seed: int = 0) -> dict[str, int]:
    """How many cases of each sweep are unstable."""
    unstable = {}
    for name, bound in SWEEPS.items():
        rng = np.random.default_rng(seed)
        unstable[name] = sum(radius(draw(rng, bound)) > OUTSIDE for _ in range(cases))
    return unstable


def largest(R: float, local_steps: int) -> float:
    """The smallest a with u + 1.5 R u/(τ a) ≥ 2, u = 1 − (1 − a)^τ; 2 where there is none below."""
    a = np.linspace(1e-4, 2, 20_000)
    u = 1 - (1 - a) ** local_steps
    beyond = np.flatnonzero(u + 1.5 * R * u / (local_steps * a) >= 2)
    return float(a[beyond[0]]) if beyond.size else 2.0


def measure_local_steps(cases: int = CASES // 5, seed: int = 0) -> dict[str, dict[str, int]]:
    """How many networks are unstable at 0.99 of the bound for local steps, and how many with ρ not divided by τ."""
    unstable = {}
    for τ in (2, 4, 8):
        rng = np.random.default_rng(seed)
        drawn = [
            draw(rng, lambda R: np.array([0.99 * largest(each, τ) if each < 4 / 3 else 0 for each in R]))  # noqa: B023
            for _ in range(cases)
        ]
        divided = [radius(case._replace(ρ=case.ρ / τ, R=case.R / τ), τ) > OUTSIDE for case in drawn]
        whole = [radius(case, τ) > OUTSIDE for case in drawn]
        unstable[str(τ)] = {"ρ = 2w/τ": sum(divided), "ρ = 2w": sum(whole)}
    return unstable


if __name__ == "__main__":
    result = {"cases": CASES, "unstable": measure(), "unstable with periods": measure_periods()}
    result["unstable with local steps"] = measure_local_steps()
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=1, ensure_ascii=False))
