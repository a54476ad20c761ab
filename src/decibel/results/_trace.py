"""What was measured, step by step, with what it cost: columns of equal length and where they came from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ..core import _html as html
from ..core._files import atomic_writer, read_arrays
from ..core._json import JSON, Row
from ..core._names import hint
from ..core._optional import optional

if TYPE_CHECKING:
    import pandas

_PROVENANCE = "provenance"
SHOWN = 10  # rows in a notebook


class Trace(Mapping[str, np.ndarray]):
    """The metrics and costs of a run: columns of equal length, one entry per evaluation.

    A mapping from a column's name to an array. Besides the metrics there are `step` and the cumulative costs `samples`,
    `gradients`, `hvps` (Hessian-vector products), `jvps` (Jacobian-vector products) and `bytes` per node, `rounds` and
    `seconds`.

    Args:
        columns: values by column.
        provenance: versions, seed, graph and settings.
    """

    def __init__(
        self, columns: Mapping[str, Iterable[float]] | None = None, provenance: Mapping[str, JSON] | None = None
    ) -> None:
        self._columns = {name: list(values) for name, values in (columns or {}).items()}
        self.provenance = dict(provenance or {})
        if len({len(values) for values in self._columns.values()}) > 1:
            raise ValueError("columns have different lengths: give every column one value per evaluation.")

    def append(self, row: Mapping[str, float]) -> None:
        """Adds a row, which must have the columns of the trace."""
        if self._columns and row.keys() != self._columns.keys():
            raise ValueError(f"a row must have the columns {', '.join(self._columns)}, but has {', '.join(row)}.")
        for name, value in row.items():
            self._columns.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            raise KeyError(f"the trace has no column {name!r}: {hint(name, self._columns)}")
        return np.asarray(self._columns[name])

    def __getattr__(self, name: str) -> NoReturn:
        columns = self.__dict__.get("_columns", {})
        fix = f"write trace[{name!r}]" if name in columns else hint(name, columns)
        raise AttributeError(f"the trace has no attribute {name!r}: {fix.removesuffix('.')}.", name=name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Trace({self.rows} rows: {', '.join(self._columns)})"

    def _repr_html_(self) -> str:
        first = max(0, self.rows - SHOWN)
        values = [[html.number(value) for value in row] for row in zip(*self._columns.values(), strict=True)]
        title = f"Trace: {self.rows} rows" + (f", the last {SHOWN}" if first else "")
        return html.table(title, values[first:], tuple(self._columns))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self._columns.values()), ()))

    @property
    def last(self) -> Row:
        """The last row."""
        return {name: values[-1] for name, values in self._columns.items()}

    def to_pandas(self) -> pandas.DataFrame:
        """The columns as a `pandas.DataFrame`."""
        with optional("pandas", caller="trace.to_pandas"):
            import pandas
        return pandas.DataFrame({name: self[name] for name in self})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the trace to an .npz file, atomically.

        Args:
            path: the file; the suffix .npz is appended if missing.

        Returns:
            The path written.
        """
        path = npz_path(path)
        columns = {f"column/{name}": self[name] for name in self}
        columns[_PROVENANCE] = np.array(json.dumps(self.provenance, default=str))
        with atomic_writer(path) as file:
            np.savez_compressed(file, allow_pickle=False, **columns)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Reads a trace that `save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if the file is not a trace.
        """
        try:
            file = read_arrays(path)
            columns = {n.removeprefix("column/"): file[n] for n in file if n.startswith("column/")}
            return cls(columns, json.loads(str(file[_PROVENANCE])))
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is not a file: give the path of a trace that Trace.save wrote.") from None
        except Exception as error:
            raise ValueError(
                f"{path} is not a trace saved by Decibel, or it is damaged: give a file that Trace.save wrote."
            ) from error


def npz_path(path: str | os.PathLike[str]) -> Path:
    """The path, with the suffix .npz appended if missing."""
    path = Path(path)
    return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
