"""An iteration of the library against a scan by hand, against its bare matrix products and, where asked, PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from .cases import Case, label_cleaning, regression
from .contest import contest, ratios
from .records import record

RINGS = ((10, 1000), (100, 200), (1000, 30), (10_000, 5))  # nodes, and steps per turn
ON_GPU = 10  # times as many, as in a run; a few steps end there before their start has been paid for


def measure(full: bool, note: Callable[[str], Any]) -> dict[str, Any]:
    """SPARKLE-ED in float32: a small problem, a neural network, and rings of many nodes."""
    rows = []
    for case, parallel, steps in _cases():
        note(f"{case.name}, {'simultaneous' if parallel else 'alternating'}")
        rows.append(contest(case, parallel, _here(steps), repetitions=21 if full else 7))
    return record("step", rows, {name: value for row in rows for name, value in ratios(row).items()})


def _cases() -> Iterator[tuple[Case, bool, int]]:
    """(case, parallel, steps per turn)"""
    for case, steps in ((regression("small, 20 nodes", 20, 10, 10, 100), 2000), (label_cleaning(), 5)):
        yield from ((case, parallel, steps) for parallel in (True, False))
    for nodes, steps in RINGS:
        yield regression(f"ring of {nodes:,}", nodes, 100, 10, 20), True, steps


def _here(steps: int) -> int:
    return steps if jax.default_backend() == "cpu" else ON_GPU * steps


def measure_torch(full: bool, note: Callable[[str], Any]) -> dict[str, Any]:
    """The first two of them, the small one in float64, also by programs in PyTorch."""
    try:
        import torch  # noqa: F401

        from .torch_runners import device, runners
    except ModuleNotFoundError as missing:
        raise SystemExit("PyTorch is not installed: pip install -e '.[bench]'") from missing

    with jax.enable_x64(True):
        small = regression("small, 20 nodes", 20, 10, 10, 100, np.float64)
    rows = []
    for case, steps, fewer in ((small, 2000, 10), (label_cleaning(), 5, 3)):
        for parallel in (True, False) if full else (True,):
            note(f"{case.name}, {'simultaneous' if parallel else 'alternating'}")
            rivals = partial(runners, length=fewer)
            rows.append(contest(case, parallel, _here(steps), repetitions=11 if full else 3, rivals=rivals))
    named = {name: value for row in rows for name, value in ratios(row).items()}
    return record("torch", rows, named, torch_device=device())
