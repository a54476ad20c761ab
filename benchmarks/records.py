"""What a benchmark leaves behind: rows, the ratios that may be compared between runs, and where they were taken."""

from __future__ import annotations

import json
import math
import os
import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from decibel.core._files import atomic_write

RESULTS = Path(__file__).parent / "results"


def record(benchmark: str, rows: list[dict[str, Any]], ratios: dict[str, float], **more: Any) -> dict[str, Any]:
    """`ratios`: numbers by name, of which smaller is better, taken within one run and so nearly the machine's own."""
    content = {"benchmark": benchmark, "place": place(), **more, "ratios": ratios, "rows": rows}
    return _rounded(content)


def place() -> dict[str, Any]:
    import jax

    return {
        "date": date.today().isoformat(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "load before": round(os.getloadavg()[0], 2),
        **({"XLA_FLAGS": flags} if (flags := os.environ.get("XLA_FLAGS")) else {}),
        "versions": {name: found for name in ("jax", "jaxlib", "numpy", "torch") if (found := _version(name))},
    }


def write(content: dict[str, Any], path: Path) -> Path:
    return atomic_write(path, _text(content))


def _text(content: dict[str, Any]) -> str:
    """JSON with a row on each line."""
    head = json.dumps({key: value for key, value in content.items() if key != "rows"}, indent=1, ensure_ascii=False)
    rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in content["rows"])
    return head.removesuffix("\n}") + f',\n "rows": [\n{rows}\n ]\n}}\n'


def read(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    if not isinstance(content.get("ratios"), dict):
        raise ValueError(f"{path} holds no ratios: write it with `python -m benchmarks NAME --json {path}`.")
    return content


def _rounded(value: Any) -> Any:
    """Four digits: what lies beyond them is noise."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return value


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
