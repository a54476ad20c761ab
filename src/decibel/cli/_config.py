"""The configuration of `decibel run`: defaults, a TOML file, then flags; saved so that a run can be repeated.

Nothing here needs JAX.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from ..core._files import atomic_write
from ..core._json import JSON
from ..core._names import hint
from ..core._optional import optional

PERSONAL = ("auprc", "meta_learning", "personalization")  # tasks whose lower level is personal
LOGS = ("jsonl", "tensorboard", "wandb", "mlflow")
INTEGERS = {"nodes": 1, "steps": 1, "batch_size": 1, "seed": 0, "eval_every": 1}  # with the smallest allowed value


@dataclass(frozen=True)
class Config:
    """A run by name. `set` holds the method's settings, and under `task` those of the task."""

    task: str
    method: str = "sparkle-ada-ed"
    graph: str = "ring"
    nodes: int = 10
    steps: int = 1000
    batch_size: int | None = None
    seed: int = 0
    eval_every: int | None = None
    out: str = "decibel-run"
    checkpoint: str | None = None
    log: list[str] = field(default_factory=list[str])
    set: dict[str, JSON] = field(default_factory=dict[str, JSON])

    @property
    def for_task(self) -> dict[str, JSON]:
        return dict(cast("Mapping[str, JSON]", self.set.get("task", {})))

    @property
    def for_method(self) -> dict[str, JSON]:
        return {name: value for name, value in self.set.items() if name != "task"}

    @property
    def folder(self) -> Path:
        return Path(self.out)

    def with_settings(self, defaults: Mapping[str, JSON]) -> Config:
        """The same, with the method's defaults filled in."""
        return replace(self, set={**defaults, **self.set})

    def save(self, path: Path, heading: str) -> Path:
        values = {name: value for name, value in asdict(self).items() if value not in (None, [], {})}
        return atomic_write(path, f"# {heading}\n{toml(values)}")


def resolve(
    file: str | Path | None, flags: Mapping[str, JSON], pairs: Sequence[str] = (), method: str = "sparkle-ada-ed"
) -> Config:
    """The file's values, overridden by the flags that are not None and the KEY=VALUE pairs.

    `method` is the default where the lower level is shared.
    """
    values = read(file) if file is not None else {}
    values |= {name: value for name, value in flags.items() if value is not None}
    values["set"] = merge(values.get("set", {}), settings(pairs))
    if "task" not in values:
        raise ValueError("TASK is missing: name one of `decibel list`, or give a --config file with a line task = ….")
    values.setdefault("method", method if values["task"].replace("-", "_") not in PERSONAL else "spdb")
    return Config(**values)


def read(path: str | Path) -> dict[str, Any]:
    """A config file; unknown keys raise."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"--config {path} is not a file: give the path of a TOML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ValueError(f"--config {path} cannot be read ({reason}): give the path of a TOML file.") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"--config {path} is not TOML: {error}: fix that line.") from None
    keys = [item.name for item in fields(Config)]
    for name, value in values.items():
        if name not in keys:
            raise ValueError(f"--config {path} has the unknown key {name!r}: {hint(name, keys)}")
        _validate(path, name, value)
    return values


def _validate(path: str | Path, name: str, value: JSON) -> None:
    if name in INTEGERS:
        valid = isinstance(value, int) and not isinstance(value, bool) and value >= INTEGERS[name]
        expected = f"an integer of at least {INTEGERS[name]}"
    elif name == "log":
        valid, expected = isinstance(value, list), "a list of names"
    elif name == "set":
        valid = isinstance(value, dict) and isinstance(value.get("task", {}), dict)
        expected = "a table, and task as a table in it"
    else:
        valid, expected = isinstance(value, str), "a string in quotes"
    if not valid:
        raise ValueError(f"--config {path} has {name} = {value!r}: give {expected}.")


def settings(pairs: Sequence[str]) -> dict[str, JSON]:
    """KEY=VALUE for the method and task.KEY=VALUE for the task; values are JSON where they can be."""
    merged: dict[str, JSON] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"--set {pair!r} must read KEY=VALUE, such as alpha=0.1 or task.corruption=0.4.")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        if value is None:
            raise ValueError(f"--set {pair!r} has the value null: leave it out.")
        table, _, name = key.partition(".")
        merged = merge(merged, {table: {name: value}} if name else {key: value})
    return merged


def merge(defaults: Mapping[str, JSON], overrides: Mapping[str, JSON]) -> dict[str, JSON]:
    """The defaults with the overrides on top; tables are merged."""
    merged = dict(defaults)
    for name, value in overrides.items():
        default = merged.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            merged[name] = merge(default, value)
        else:
            merged[name] = value
    return merged


def toml(values: Mapping[str, JSON]) -> str:
    with optional("tomli-w", caller="decibel run", extra="cli"):
        import tomli_w
    try:
        return tomli_w.dumps(values)
    except TypeError as error:
        raise ValueError(f"a config cannot hold a setting ({error}): use numbers, strings and lists.") from None
