"""Other settings of the study apps/mixtures-gradients: descriptive, two seeds each.

    python docs/figures/mixture_settings.py OUT            # a quarter of an hour on an H200
    python docs/figures/mixture_settings.py OUT --tiny     # the same but "replay" on a CPU, with hardly any steps
    python docs/figures/mixture_settings.py OUT --only scarce other

Writes OUT/mixture_settings.json as runs end, and continues where it was interrupted. The runs of 2026-11-19 had float64
weights; those of now have float32, as the study has.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np

from decibel import Strategy, adam_ed, dadam
from decibel.core._files import atomic_write
from decibel.graphs import complete, one_peer_hypercube
from decibel_studies.experiments.apps_mixtures_gradients import SETUPS, Setup
from decibel_studies.experiments.data_mixtures import Online
from decibel_studies.experiments.local_adam import AVERAGE, DILOCO, NOLOCO, LocalAdam
from decibel_studies.experiments.mixture_runs import aligned, arm, learned, planned, single_level, strategy_of
from decibel_studies.judging.results import Runs
from decibel_studies.testbed.study import Arm

HERE = Path(__file__).parent
SEEDS = (12001, 12002)
SCARCE = 3_750  # windows of a node
LOCAL = 32
TINY = SETUPS["smoke"]
Group = Callable[[Setup, Path], Iterator[Arm]]


class Bandit(Online):
    """ODM or DoReMi with another strategy of the decoder."""

    lower: Strategy

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {**super().strategies, "y": self.lower}


def every_step(setup: Setup, _: Path) -> Iterator[Arm]:
    """The shares of the learned mixture move in every step or in every fourth."""
    for every in (1, 4):
        yield learned("how often shares move", f"every {every} steps", setup, every)


def fixed(setup: Setup, _: Path) -> Iterator[Arm]:
    """Between uniform and the target, and the target's shares as samples instead of weights."""
    for part in (0.5, 0.75):
        shares = (1 - part) * setup.uniform + part * setup.aim
        yield planned("fixed mixtures", f"{part:g} of the way to the target", setup, shares)
    yield planned("fixed mixtures", "from uniform to the target in the whole run", setup, setup.uniform, setup.aim)
    yield single_level("fixed mixtures", "target, sampled", setup, "sampled")


def replay(setup: Setup, results: Path) -> Iterator[Arm]:
    """The shares that the learned mixture went through, on average over seeds, at one gradient a step."""
    shares = _learned_shares(setup, results)
    yield planned("replay", "learned shares, replayed", setup, *shares)
    yield planned("replay", "learned shares, the last from the start", setup, shares[-1])


def scarce(setup: Setup, _: Path) -> Iterator[Arm]:
    """A node draws each of its windows eight times in 3,750 steps."""
    few = replace(setup, windows=min(setup.windows, SCARCE))
    yield from _three("scarce text", few)


def other(setup: Setup, _: Path) -> Iterator[Arm]:
    """Another target with other harmful domains."""
    if setup.harmful:
        domains = (*setup.domains[3:], *setup.domains[:3])
        setup = replace(setup, domains=domains, harmful=("noise", "reversed"))
    yield from _three("code, documentation and mathematics", setup)


def rivals(setup: Setup, _: Path) -> Iterator[Arm]:
    """ODM with three lengths of its memory, and gradient alignment in every step."""
    for part in (0.03, 0.1, 0.3):

        def odm(falling, part: float = part) -> Bandit:
            return Bandit(part, falling, setup.floor, "odm", strategy_of(setup))

        yield arm("rivals", f"ODM, newest reward {part:g}", setup, "free", 1, odm)
    for alpha in setup.agreement:
        yield aligned("rivals", f"gradient alignment in every step, {alpha:g}", setup, 1, alpha)


def moments(setup: Setup, _: Path) -> Iterator[Arm]:
    """Second moments of adam-ed, at two step sizes, with the uniform mixture."""
    for averaged in (True, False):
        for beta in (1e-3, 2e-3):
            other = replace(setup, averaged=averaged, beta=beta)
            kind = "averaged difference" if averaged else "newest difference"
            yield planned("second moments", f"{kind}, {beta:g}", other, setup.uniform)


def bytes_sent(setup: Setup, _: Path) -> Iterator[Arm]:
    """One peer a step and local steps."""
    case = "bytes"
    pairs = one_peer_hypercube(setup.nodes)
    yield learned(case, "learned, one peer", setup, setup.upper_every, pairs)
    yield single_level(case, "adam-ed, one peer", setup, "single", pairs)
    yield arm(case, "DADAM, one peer", setup, "single", 1, lambda rate: dadam(alpha=rate), pairs)
    for times in (8, LOCAL):
        few = replace(setup, gradients=setup.gradients // times)
        yield arm(
            case,
            f"adam-ed, one peer, {times} local steps",
            few,
            "single",
            1,
            lambda rate, times=times: adam_ed(alpha=rate, local_steps=times),
            pairs,
        )
    few = replace(setup, gradients=setup.gradients // LOCAL)
    local = {"DADAM": (AVERAGE, pairs), "NoLoCo": (NOLOCO, pairs), "DiLoCo": (DILOCO, complete(setup.nodes))}
    for name, (mixing, graph) in local.items():
        make = partial(_local, mixing)
        yield arm(case, f"{name}, {LOCAL} local steps", few, "single", 1, make, graph)


def _local(mixing, rate) -> LocalAdam:
    return LocalAdam(mixing, rate, LOCAL)


def _three(case: str, setup: Setup) -> Iterator[Arm]:
    yield learned(case, "learned mixture", setup, setup.upper_every)
    yield planned(case, "uniform mixture", setup, setup.uniform)
    yield planned(case, "mixture as the target", setup, setup.aim)


def _learned_shares(setup: Setup, results: Path) -> np.ndarray:
    """(rows, domains)"""
    (path,) = (results / "apps" / "mixtures-gradients" / "runs").glob("*--learned-mixture-*.npz")
    traces = Runs.load(path).traces
    names = [*setup.domains, *setup.harmful]
    return np.array([np.mean([trace[f"weight_{name}"] for trace in traces], 0) for name in names]).T


GROUPS: dict[str, Group] = {
    "every_step": every_step,
    "fixed": fixed,
    "replay": replay,
    "scarce": scarce,
    "other": other,
    "rivals": rivals,
    "moments": moments,
    "bytes": bytes_sent,
}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("out", type=Path)
    options.add_argument("--tiny", action="store_true")
    options.add_argument("--results", type=Path, default=HERE.parents[1] / "studies" / "results")
    options.add_argument("--only", nargs="*", choices=GROUPS, default=list(GROUPS))
    given = options.parse_args()
    setup = TINY if given.tiny else SETUPS["full"]
    jax.config.update("jax_enable_x64", False)
    path = given.out / "mixture_settings.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for group in [name for name in given.only if not (given.tiny and name == "replay")]:
        for each in GROUPS[group](setup, given.results):
            done = found.setdefault(each.case, {})
            if each.label in done:
                continue
            runs = each.run(SEEDS)
            done[each.label] = [{name: [float(f"{v:.6g}") for v in run[name]] for name in run} for run in runs]
            found["about"] = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "seeds": SEEDS}
            atomic_write(path, json.dumps(found) + "\n")
            ends = [run["test_loss"][-1] for run in runs]
            print(f"{each.case}, {each.label}: {', '.join(f'{end:.4f}' for end in ends)}", flush=True)


if __name__ == "__main__":
    main()
