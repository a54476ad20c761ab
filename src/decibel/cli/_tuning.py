"""The work of `decibel tune`: several step sizes on one task."""

from __future__ import annotations

import json
import shlex

from rich.console import Console
from rich.table import Table

from ..core._json import JSON
from ..solver._tune import Tuned
from ..solver._tune import tune as search
from ._config import Config
from ._registry import make_graph, make_method, make_task


def tune(config: Config, *, budget: int, metric: str, seeds: int | None, console: Console) -> tuple[Tuned, str]:
    """The best step sizes found, and the command that runs with them."""
    task = make_task(config.task, config.nodes, config.seed, config.for_task)
    method = make_method(config.method, config.for_method, task)
    network = make_graph(config.graph, task.nodes or config.nodes)
    console.print(f"[bold]{task.name}[/]: about {budget} settings of {method.name}, {config.steps} steps each")
    tuned = search(
        task.problem,
        method,
        network,
        budget=budget,
        steps=config.steps,
        batch_size=config.batch_size,
        metric=metric,
        seeds=None if seeds is None else range(config.seed, config.seed + seeds),
        seed=config.seed,
    )
    best = Table(box=None, padding=(0, 2, 0, 0))
    for heading in tuned.table[0]:
        best.add_column(heading, justify="right")
    for row in tuned.table[:10]:
        best.add_row(*(f"{value:.4g}" for value in row.values()))
    console.print(best)
    return tuned, command(config, tuned)


def command(config: Config, tuned: Tuned) -> str:
    """The command that runs with the best step sizes."""
    options = {"method": config.method, "graph": config.graph, "nodes": config.nodes, "seed": config.seed}
    options |= {} if config.batch_size is None else {"batch-size": config.batch_size}
    words = ["decibel", "run", config.task]
    for key, value in options.items():
        words += [f"--{key}", str(value)]
    task_settings = {f"task.{name}": value for name, value in config.for_task.items()}
    rates = tuned.best_rates
    others = {name: value for name, value in config.for_method.items() if name not in rates}
    for name, value in {**rates, **others, **task_settings}.items():
        words += ["--set", f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={_text(value)}"]
    return shlex.join(words)


def _text(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value)
