"""Names that the shell completes: from a generated file, so that completing loads no JAX (docs/tables.py writes it)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

PATH = Path(__file__).with_suffix(".json")


def completing(kind: str) -> Callable[[str], list[str]]:
    """For `autocompletion=`: the names of a kind, such as "methods", that begin like what is typed."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in json.loads(PATH.read_text())[kind] if name.startswith(incomplete)]

    return complete


def collected() -> dict[str, list[str]]:
    """What the file holds, from the library itself."""
    from ..methods._catalog import CATALOG
    from ..studies.study import SIZES
    from ._config import LOGS
    from ._registry import GRAPHS, TASKS

    return {
        "methods": list(CATALOG),
        "tasks": sorted(TASKS),
        "graphs": list(GRAPHS),
        "logs": list(LOGS),
        "sizes": list(SIZES),
    }
