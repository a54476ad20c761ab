"""What the scripts of the figures share: files beside them, the style, quadratics, and when a run has arrived."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

import decibel as db
from decibel.core._files import atomic_write

HERE = Path(__file__).parent
STUDIES = HERE.parents[1] / "studies" / "results"
MEASURES = "--figure" not in sys.argv  # else a script draws again what it has measured before


def write(name: str, content: Any) -> None:
    """Writes the numbers of a script to its .json, a list on one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[^\[\]]*\]", lambda numbers: " ".join(numbers[0].split()), text)
    atomic_write(HERE / f"{name}.json", text + "\n")


def read(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


def new_figure(width: float, height: float) -> Figure:
    """Empty, in the style of all figures."""
    matplotlib.style.use("decibel_studies.house")
    return Figure(figsize=(width, height))


def save(figure: Figure, name: str) -> None:
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})


def squares(x: Any, batch: Any) -> Any:
    return 0.5 * jnp.mean(jnp.sum(batch["a"] * (x - batch["c"]) ** 2, -1))


def quadratic(a: np.ndarray, c: np.ndarray) -> tuple[db.Problem, np.ndarray]:
    """Σ_k a_ik (x_k − c_ik)²/2 at node i, and the solution of all."""
    problem = db.Problem(squares, upper_data={"a": a[:, None], "c": c[:, None]}, x0=jnp.zeros(a.shape[1]))
    return problem, (a * c).sum(0) / a.sum(0)


def worst_of(solution: np.ndarray) -> Callable[[Any], Any]:
    """The metric `worst`: the largest distance of a node's entry from the solution."""

    def worst(snapshot: Any) -> Any:
        return jnp.abs(snapshot.nodes.x - solution).max()

    return worst


def arrived(errors: Any, tolerance: float) -> int | None:
    """The row from which on all errors are below the tolerance; None if there is none."""
    late = np.flatnonzero(~(np.asarray(errors) < tolerance))
    row = late[-1] + 1 if late.size else 0
    return None if row >= len(errors) else int(row)
