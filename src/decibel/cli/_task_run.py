"""The work of `decibel run`: solves a task by name and saves in its folder what repeating and resuming need."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from .. import __version__
from ..core._json import JSON, Provenance
from ..core._ledger import COSTS
from ..core._names import hint
from ..core._optional import optional
from ..graphs._graph import Levels
from ..methods._catalog import CATALOG
from ..results import loggers
from ..results._callbacks import Callback
from ..results._result import Result
from ..results._status import Status
from ..solver._solve import NonFiniteWarning, solve
from ..solver._validate import graph_per_level, validate
from ..tasks import Task
from ._config import LOGS, Config
from ._registry import make_graph, make_method, make_task

CONFIG = "config.toml"
LOG = "log.jsonl"
CHECKPOINT = "checkpoint"
FEW_ENTRIES = 2_000_000  # of data, up to which the losses are measured
ROWS_PER_SAVE = 10  # an interrupted run also saves; saving every row would slow down short runs


def run(
    config: Config,
    *,
    resume: bool = False,
    fresh: bool = False,
    live: bool = False,
    browser: bool = False,
    console: Console,
) -> Result:
    """Solves a task; saves the resolved config, the log, the checkpoint, the trace and the figure in its folder."""
    CATALOG[config.method](**config.for_method)  # a wrong setting raises before any data are read
    chosen_loggers = _loggers(config)
    task = make_task(config.task, config.nodes, config.seed, config.for_task)
    config = replace(config.with_settings(task.settings(config.method)), eval_every=_every(config))
    method = make_method(config.method, config.for_method, task)
    nodes = task.nodes or config.nodes  # some tasks fix their nodes, such as one for each speaker
    network = make_graph(config.graph, nodes)
    validate(
        task.problem, method, graph_per_level(task.problem, method, network), config.steps, config.batch_size, None
    )
    with optional("orbax-checkpoint and matplotlib", caller="decibel run", extra="checkpoint,plot"):
        import matplotlib  # noqa: F401 - draws at the end
        import orbax.checkpoint  # noqa: F401
    _make_room(config, resume=resume, fresh=fresh)
    console.print(f"[bold]{task.name}[/] by {method} over {network.name} of {nodes} nodes")
    for key, value in task.summary.items():
        console.print(f"  {key}: {_describe(value)}", style="dim", soft_wrap=True)
    with _live(config.folder, live, browser, console), warnings.catch_warnings():
        warnings.simplefilter("ignore", NonFiniteWarning)  # the command says it, with its exit code
        result = solve(
            task.problem,
            method,
            network,
            steps=config.steps,
            batch_size=config.batch_size,
            seed=config.seed,
            eval_every=config.eval_every,
            metrics=[*task.metrics, *_losses(task)],
            callbacks=[SaveConfig(config), *chosen_loggers],
            checkpoint=checkpoint(config),
            checkpoint_every=ROWS_PER_SAVE,
            resume=resume,
        )
    console.print(table(result))
    if result.stuck and result.status is Status.COMPLETED:
        console.print(_advice(config, result), soft_wrap=True)
    trace = result.trace.save(files(config)["trace"])
    result.plot().savefig(files(config)["figure"], dpi=150)
    console.print(f"Config, log, trace and figure are in {trace.parent}.", soft_wrap=True)
    return result


def _losses(task: Task) -> list[str]:
    """The losses of both levels, where evaluating them on all samples is cheap."""
    leaves = jax.tree.leaves((task.problem.upper_data, task.problem.lower_data))
    if sum(leaf.size for leaf in leaves if hasattr(leaf, "size")) > FEW_ENTRIES:
        return []
    return ["upper"] if task.problem.single_level else ["upper", "lower"]


def _advice(config: Config, result: Result) -> str:
    moved = f"x has barely moved (by {result.moved:.2g})"
    search = f"`decibel tune {config.task}`"
    alpha = config.for_method.get("alpha")
    if not isinstance(alpha, int | float):
        return f"{moved}: give it more --steps, or search step sizes by {search}."
    return f"{moved}: try larger steps, such as --set alpha={10 * alpha:g}, or {search}."


class SaveConfig(Callback):
    """Writes the config once the run has begun; a run that fails to start keeps the previous config."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def begin(self, about: Provenance, graphs: Levels) -> None:
        path = self._config.folder / CONFIG
        repeat = shlex.join(["decibel", "run", "--config", str(path)])
        self._config.save(path, f"decibel {__version__}; to repeat this run: {repeat}")


def files(config: Config) -> dict[str, Path]:
    """The files that a run writes."""
    name = f"{config.task.replace('-', '_')}-{config.method}"
    return {
        "config": config.folder / CONFIG,
        "log": config.folder / LOG,
        "trace": config.folder / f"{name}.npz",
        "figure": config.folder / f"{name}.png",
        "checkpoint": checkpoint(config),
    }


def summary(config: Config, result: Result) -> dict[str, object]:
    """The run as one document."""
    return {
        "task": config.task,
        "method": config.method,
        "graph": config.graph,
        "nodes": result.trace.provenance["nodes"],
        "steps": config.steps,
        "step": result.step,
        "status": str(result.status),
        "message": result.message or None,
        "first": {name: float(result.trace[name][0]) for name in result.trace},
        "last": {name: float(value) for name, value in result.trace.last.items()},
        "settings": result.method.settings,
        "files": {name: str(path) for name, path in files(config).items()},
    }


def checkpoint(config: Config) -> Path:
    return Path(config.checkpoint) if config.checkpoint else config.folder / CHECKPOINT


def resuming(config: Config) -> str:
    """The command that continues the run."""
    return shlex.join(["decibel", "run", "--config", str(config.folder / CONFIG), "--resume"])


def _every(config: Config) -> int:
    return min(config.eval_every or max(1, config.steps // 50), config.steps)


def _loggers(config: Config) -> list[Callback]:
    """The JSONL log and the requested ones; unknown names raise before anything is built."""
    folder = config.folder
    constructors = {
        "jsonl": lambda: loggers.JSONL(folder / LOG, {"task": config.task.replace("_", " ")}),
        "tensorboard": lambda: loggers.TensorBoard(folder / "tensorboard"),
        "wandb": lambda: loggers.WandB("decibel", dir=str(folder), name=f"{config.task} {config.method}"),
        "mlflow": lambda: loggers.MLflow(uri=_mlflow(folder), name=f"{config.task} {config.method}"),
    }
    for name in config.log:
        if name not in LOGS:
            raise ValueError(f"--log {name!r} is not known: {hint(name, LOGS)}")
    return [constructors[name]() for name in LOGS if name == "jsonl" or name in config.log]


def _mlflow(folder: Path) -> str | None:
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{(folder / 'mlflow.db').absolute()}"


def _make_room(config: Config, *, resume: bool, fresh: bool) -> None:
    """Deletes the checkpoints of an earlier run; those of a run that can be resumed only with --fresh."""
    if config.folder.exists() and not config.folder.is_dir():
        raise ValueError(f"--out {config.folder} is a file: name a folder.")
    folder = checkpoint(config)
    saved = [int(path.name) for path in folder.glob("*") if path.name.isdigit()] if folder.is_dir() else []
    if resume or not saved:
        return
    if not (fresh or _ended(config.folder / LOG)):
        raise ValueError(
            f"{folder} holds a run that was interrupted at step {max(saved)}: add --resume to continue it, or --fresh "
            "to start over."
        )
    if folder != config.folder / CHECKPOINT and not fresh:
        raise ValueError(
            f"--checkpoint {folder} holds a finished run: add --resume to extend it, or --fresh to start over."
        )
    for path in folder.iterdir():
        if path.name.isdigit():
            shutil.rmtree(path)


def _ended(log: Path) -> bool:
    """Whether the run that wrote this log finished or diverged."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    try:
        last = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError):
        return False
    return last.get("kind") == "end" and last.get("status") in (Status.COMPLETED, Status.STOPPED, Status.DIVERGED)


@contextmanager
def _live(folder: Path, enabled: bool, browser: bool, console: Console) -> Generator[None]:
    if not enabled:
        yield
        return
    from ..results.live import serve_beside

    with serve_beside(folder, open_browser=browser) as url:
        console.print(f"Watch it at {url} while it runs; `decibel watch {folder}` shows it again.", soft_wrap=True)
        yield


def _describe(value: JSON) -> str:
    """Settings as a person would list them."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_describe(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_describe, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(result: Result) -> Table:
    summary = Table(box=None, padding=(0, 2, 0, 0))
    summary.add_column("")
    summary.add_column("at the start", justify="right")
    summary.add_column(f"after {result.step} steps", justify="right")
    for name in result.trace:
        if name != "step":
            first, last = result.trace[name][0], result.trace[name][-1]
            summary.add_row(name.replace("_", " "), "" if name in COSTS else f"{first:.4g}", f"{last:.6g}")
    return summary
