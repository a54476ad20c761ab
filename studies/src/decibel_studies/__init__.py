"""The papers' experiments, each run by one command, with its claims tested."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .testbed.study import Study

__version__ = "0.1.0"

# A study has a registration, `interact_edges.json` that of `interact/edges`.
NAMES: tuple[str, ...] = tuple(
    sorted(
        path.stem.replace("_", "/", 1).replace("_", "-")
        for path in Path(__file__).parent.glob("experiments/registered/*.json")
    )
)
SIZES = ("smoke", "small", "full")


def find(name: str) -> Study[Any]:
    """A study by its name."""
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(NAMES)}."
        raise ValueError(f"study {name!r} is not known: {hint}")
    module = name.replace("/", "_").replace("-", "_")
    return import_module(f".experiments.{module}", __name__).STUDY
