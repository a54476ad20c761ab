"""What a study has run: the traces of its arms, by case and label, from which its claims are judged."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypedDict, TypeVar, cast

import numpy as np
from jaxtyping import Float

from decibel import Trace, metrics

from ..files import read_arrays, write_file

MOST_ROWS = 200


class Setup(Protocol):
    """Of a study at one size: a dataclass of numbers and names."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def seeds(self) -> tuple[int, ...]: ...


S = TypeVar("S", bound=Setup)


class Made(TypedDict):
    """When, where and from what the runs of an arm were made."""

    fingerprint: str
    size: str
    seconds: float
    date: str
    device: str
    decibel: str
    jax: str
    python: str
    arm: Mapping[str, object]


class Runs:
    """The traces of an arm, one per seed, and what they were made from."""

    def __init__(self, case: str, label: str, traces: Iterable[Trace], made: Made | None = None) -> None:
        self.case = case
        self.label = label
        self.traces = list(traces)
        self.made = cast(Made, dict(made or {}))

    @property
    def columns(self) -> list[str]:
        return [name for name in self.traces[0] if name not in metrics.COSTS]

    @property
    def stopped(self) -> list[str | None]:
        return [cast("str | None", trace.provenance.get("stopped")) for trace in self.traces]

    def last(
        self, column: str, share: float = 0.1, *, against: str | None = None, limit: float = np.inf
    ) -> Float[np.ndarray, " seeds"]:
        """The mean over the last rows, which evens out noise; NaN for a run that diverged. With `against` a run ends at
        the last row at which this cost is no more than `limit`."""
        values: list[float] = []
        for trace, stopped in zip(self.traces, self.stopped, strict=True):
            rows = trace.rows if against is None else max(1, int(np.sum(trace[against] <= limit)))
            tail = trace[column][:rows][-max(1, round(share * rows)) :]
            values.append(np.nan if stopped else float(np.mean(tail)))
        return np.array(values)

    def first(self, column: str) -> Float[np.ndarray, " seeds"]:
        return np.array([trace[column][0] for trace in self.traces])

    def mean(
        self, column: str, against: str = "step", limit: float | None = None, *, log: bool = False
    ) -> Float[np.ndarray, " seeds"]:
        """The average height of the curve against a cost, up to `limit`: small where a fall is fast."""
        values: list[float] = []
        for trace, stopped in zip(self.traces, self.stopped, strict=True):
            cost, height = np.asarray(trace[against], float), np.asarray(trace[column], float)
            end = cost[-1] if limit is None else min(limit, cost[-1])
            grid = np.linspace(cost[0], end, 201)
            curve = np.interp(grid, cost, np.log10(np.maximum(height, 1e-300)) if log else height)
            values.append(np.nan if stopped else float(curve.mean()))
        return np.array(values)

    def at(self, column: str, against: str, value: float) -> Float[np.ndarray, " seeds"]:
        """The column where the cost is `value`; NaN for a run that diverged."""
        values = [np.interp(value, trace[against], trace[column]) for trace in self.traces]
        return np.where([stopped is not None for stopped in self.stopped], np.nan, values)

    def reach(
        self, column: str, level: float, against: str = "samples", *, window: int = 3
    ) -> Float[np.ndarray, " seeds"]:
        """The cost at which the column, averaged over `window` rows, is first at or below `level`."""
        costs: list[float] = []
        for trace in self.traces:
            width = min(window, trace.rows)
            smooth = np.convolve(trace[column], np.ones(width) / width, "valid")
            below = np.flatnonzero(smooth <= level)
            costs.append(float(trace[against][below[0] + width - 1]) if below.size else np.inf)
        return np.array(costs)

    def slope(self, column: str) -> Float[np.ndarray, " seeds"]:
        """Of log(column) against log(step), over the last nine tenths of the steps."""
        slopes: list[float] = []
        for trace in self.traces:
            steps, values = np.asarray(trace["step"], float), np.asarray(trace[column], float)
            late = (steps >= (1 - 0.9) * steps[-1]) & (steps > 0) & (values > 0)
            slopes.append(np.polyfit(np.log(steps[late]), np.log(values[late]), 1)[0] if late.sum() > 1 else np.nan)
        return np.array(slopes)

    def save(self, path: Path) -> Path:
        """One .npz, whole or not at all: columns (seeds, rows) in single precision, thinned to at most 200 rows."""
        rows = max(trace.rows for trace in self.traces)
        keep = np.unique(np.linspace(0, rows - 1, min(rows, MOST_ROWS)).round().astype(int))
        columns: dict[str, np.ndarray] = {}
        for name in self.traces[0]:
            table = np.full((len(self.traces), len(keep)), np.nan)
            for row, trace in zip(table, self.traces, strict=True):
                mine = keep[keep < trace.rows]
                row[: len(mine)] = trace[name][mine]
            columns[f"column/{name}"] = table if name in metrics.COSTS else table.astype(np.float32)
        about: dict[str, object] = {"case": self.case, "label": self.label, "made": self.made}
        about["seeds"] = [trace.provenance.get("seed") for trace in self.traces]
        about["stopped"] = self.stopped
        columns["about"] = np.array(json.dumps(about, default=str))
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **columns)
        return write_file(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> Runs:
        try:
            file = read_arrays(path)
            about = json.loads(str(file["about"]))
            columns = {n.removeprefix("column/"): file[n] for n in file if n.startswith("column/")}
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{path} does not hold runs saved by Decibel, or it is damaged: delete it.") from error
        traces: list[Trace] = []
        for i, (seed, stopped) in enumerate(zip(about["seeds"], about["stopped"], strict=True)):
            there = ~np.isnan(columns["step"][i]) if "step" in columns else slice(None)
            rows = {name: table[i][there].astype(float) for name, table in columns.items()}
            traces.append(Trace(rows, {"seed": seed, "stopped": stopped}))
        return cls(about["case"], about["label"], traces, about["made"])


class Results(Mapping[tuple[str, str], Runs], Generic[S]):
    """The runs of a study by case and label; what claims are judged from."""

    def __init__(self, setup: S, runs: Mapping[tuple[str, str], Runs]) -> None:
        self.setup, self._runs = setup, dict(runs)

    def __getitem__(self, key: tuple[str, str]) -> Runs:
        if key not in self._runs:
            raise KeyError(f"the study has no arm {key}: it has {', '.join(map(str, self._runs))}.")
        return self._runs[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)
