"""Names that the shell completes, from a file that docs/tables.py writes, so that completing loads no JAX."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

PATH = Path(__file__).with_suffix(".json")


def completing(kind: str) -> Callable[[str], list[str]]:
    """For `autocompletion=`: the names of a kind, such as "methods", with the typed prefix."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in json.loads(PATH.read_text())[kind] if name.startswith(incomplete)]

    return complete


def collected() -> dict[str, list[str]]:
    """The contents of the file, collected from the library."""
    from ..methods._catalog import CATALOG
    from ._config import LOGS
    from ._registry import GRAPHS, TASKS

    return {
        "methods": list(CATALOG),
        "tasks": sorted(TASKS),
        "graphs": list(GRAPHS),
        "logs": list(LOGS),
    }
