"""A step against the programs that one would write otherwise, on every machine: gathered from the committed results."""

from __future__ import annotations

from typing import Any

from . import records
from .contest import BY_HAND, OURS, PRODUCTS

NAMES = {  # programs in the results, as they are called on the page
    OURS: "Decibel",
    BY_HAND: "hand-written scan",
    "torch vmap compiled": "PyTorch, compiled vmap",
    "torch loop": "PyTorch, loop over nodes",
    PRODUCTS: "bare products",
}
LOOP, GRADIENTS, AT_ONCE = "JAX, loop over nodes", "bare gradients", "PyTorch, all samples at once"


def gather() -> list[dict[str, Any]]:
    """A row for each network and machine: milliseconds of each program, and when it was measured."""
    return [row for name in ("torch", "convolutions", "torch-gpu", "mixture-gpu") for row in _rows(name)]


def _rows(name: str) -> list[dict[str, Any]]:
    path = records.RESULTS / f"{name}.json"
    if not path.exists():
        return []
    content = records.read(path)
    device, cores = content["place"]["device"], content["place"]["cores"]
    where = {"machine": f"{cores} cores" if device == "cpu" else device, "date": content["place"]["date"]}
    programs = PROGRAMS[content["benchmark"]]
    return [{"case": case, **where, "ms": ms} for row in content["rows"] for case, ms in programs(row)]


def _torch(row: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    if row["updates"] != "simultaneous":
        return []
    return [(row["case"], {shown: row["µs"][name] / 1e3 for name, shown in NAMES.items()})]


def _convolutions(row: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    names = {"ours": "Decibel", "loop": LOOP, "torch": AT_ONCE}
    ms = {shown: row["milliseconds"][name] for name, shown in names.items() if name in row["milliseconds"]}
    return [(f"{row['case']}, {row['levels']}", ms)]


def _mixture(row: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    if "fused" not in row["case"]:
        return []
    ms = {"Decibel": 1e3 * row["seconds"], GRADIENTS: 1e3 * row["bare_seconds"]}
    return [(f"transformer {row['case'].split(', fused')[0]}", ms)]


PROGRAMS = {"torch": _torch, "convolutions": _convolutions, "mixture": _mixture}
