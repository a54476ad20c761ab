"""`python -m benchmarks`: what things cost here, always against something measured in the same run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch shares the accelerator

from rich.console import Console
from rich.table import Table

from . import (
    checkpoints,
    chunks,
    convolutions,
    engines,
    forms,
    frames,
    growth,
    keys,
    mixture,
    network,
    records,
    rings,
    steps,
    streams,
    tables,
)
from .compare import TOLERANCE, compare

Note = Callable[[str], Any]


def _network(full: bool, note: Note) -> dict[str, Any]:
    if full:
        return network.measure(network.PROCESSES, network.SIZES, 9, note)
    return network.measure(network.PROCESSES[:2], network.SIZES[:3], 3, note)


def _engines(full: bool, note: Note) -> dict[str, Any]:
    return engines.measure(engines.GROUPS if full else engines.GROUPS[1:3], 9 if full else 3, note)


def _growth(full: bool, note: Note) -> dict[str, Any]:
    names = growth.methods() if full else ["sparkle-ed", "ma-dsbo", "gossip-dsbo", "dsgd"]
    return growth.measure(
        names, growth.SIZES if full else {axis: some[:2] for axis, some in growth.SIZES.items()}, note
    )


def _target(full: bool, note: Note) -> dict[str, Any]:
    import decibel as db

    from . import target  # with its data

    return target.measure(list(db.CATALOG) if full else ["sparkle-ed", "lopa", "ed"], target.STEPS, note)


def _updates(full: bool, note: Note) -> dict[str, Any]:
    from . import updates  # with its data

    return updates.measure(1_000 if full else 50, note)


def _streams(full: bool, note: Note) -> dict[str, Any]:
    return streams.measure(streams.LARGE if full else streams.SMALL, 9 if full else 3, note)


def _rings(full: bool, note: Note) -> dict[str, Any]:
    import jax

    if not full:
        return rings.measure(rings.SIZES[:1], 3, note)
    largest = () if jax.default_backend() == "cpu" else (rings.LARGEST,)
    return rings.measure((*rings.SIZES, *largest), 15, note)


BENCHMARKS: dict[str, tuple[Callable[[bool, Note], dict[str, Any]], str]] = {
    "step": (steps.measure, "an iteration against a scan by hand and against its matrix products"),
    "torch": (steps.measure_torch, "the same, against programs in PyTorch"),
    "network": (_network, "rounds with neighbours against all-reduce, among processes"),
    "engines": (_engines, "steps of the cluster against steps of the simulator"),
    "checkpoint": (lambda full, note: checkpoints.measure(5 if full else 2, note), "runs with and without checkpoints"),
    "chunks": (lambda full, note: chunks.measure(5 if full else 2, note), "memory with and without node_chunk"),
    "convolutions": (convolutions.measure, "steps of convolutional networks against a loop over nodes"),
    "forms": (lambda full, note: forms.measure(15 if full else 3, note), "steps by Hessian products and by penalty"),
    "frames": (lambda full, note: frames.measure(9 if full else 3, note), "a silo's messages and protocol buffers"),
    "keys": (lambda full, note: keys.measure(21 if full else 5, note), "steps with our random keys and with JAX's"),
    "rings": (_rings, "rings of up to ten million nodes, against copying the state"),
    "growth": (_growth, "time and memory against nodes, degree, dimension, batch and Neumann terms"),
    "streams": (_streams, "samples that are read from files, ahead or by callback, against samples in memory"),
    "updates": (_updates, "simultaneous and alternating SPARKLE, for equal samples, bytes and seconds"),
    "mixture": (lambda full, note: mixture.measure(full, note), "a step with a language model against bare gradients"),
    "target": (_target, "time and bytes to one accuracy, method by method"),
}


def main() -> int:
    given, console = _options().parse_args(), Console()
    if not console.is_terminal:
        console.width = 160
    if given.command == "compare":
        return _compare(given, console)
    measure, _ = BENCHMARKS[given.command]
    with console.status(given.command) as status:

        def note(what: str) -> None:
            status.update(f"{given.command}: {what}")
            if not console.is_terminal:
                print(what, file=sys.stderr, flush=True)

        content = measure(given.full, note)
    _show(console, tables.of(content))
    if given.json:
        console.print(f"Written to {records.write(content, given.json)}.", soft_wrap=True)
    return 0


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    options.set_defaults(command="step", full=False, json=None)
    commands = options.add_subparsers(metavar="BENCHMARK", title="benchmarks (step, if none is named)")
    for name, (_, help) in BENCHMARKS.items():
        one = commands.add_parser(name, help=help)
        one.add_argument("--full", action="store_true", help="as the committed results were taken; takes minutes")
        one.add_argument("--json", type=Path, metavar="PATH", help="also write what was measured there")
        one.set_defaults(command=name)
    two = commands.add_parser("compare", help="what became slower than a baseline")
    two.add_argument("run", type=Path, help="a JSON that a benchmark wrote")
    two.add_argument("--baseline", type=Path, help="another one (default: the committed one of the same benchmark)")
    two.add_argument("--tolerance", type=float, default=TOLERANCE, help="allowed part more (default: %(default)s)")
    two.set_defaults(command="compare")
    return options


def _compare(given: argparse.Namespace, console: Console) -> int:
    try:
        new = records.read(given.run)
        path = given.baseline or records.RESULTS / f"{new['benchmark']}.json"
        found = compare(records.read(path), new, given.tolerance)
    except (OSError, ValueError) as mistake:
        console.print(f"[red]{mistake}[/]", soft_wrap=True)
        return 2
    for heading, ones in (("slower", found.slower), ("faster", found.faster)):
        for one in ones:
            console.print(f"{heading}  {one}", style="red" if heading == "slower" else "green", soft_wrap=True)
    for name in found.missing:
        console.print(f"missing {name}: the baseline has it and this run has not", style="red", soft_wrap=True)
    if found.good:
        console.print(f"Nothing became slower than {path} by more than {given.tolerance:.0%}.", soft_wrap=True)
    return 0 if found.good else 1


def _show(console: Console, cells: tables.Table) -> None:
    shown = Table()
    for i, heading in enumerate(cells[0]):
        shown.add_column(heading, justify="left" if i == 0 else "right")
    for row in cells[1:]:
        shown.add_row(*row)
    console.print(shown)


if __name__ == "__main__":
    sys.exit(main())
