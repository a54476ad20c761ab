"""Where faults go in the source: by the name of a function or class, so that modules may be renamed or moved."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCES = ("src/decibel", "studies/src/decibel_studies")


class Fault(NamedTuple):
    """One replacement of text.

    Attributes:
        name: its name in `found.json`.
        within: the function or class that holds the text, such as `"Vector.mean"`.
        before: the text as it is, which occurs there once.
        after: the text with the fault.
        breaks: what goes wrong, in a sentence.
    """

    name: str
    within: str
    before: str
    after: str
    breaks: str


class Place(NamedTuple):
    """A file, relative to the root of the repository, and the first character of a fault in it."""

    path: Path
    start: int


def places(fault: Fault, root: Path) -> list[Place]:
    """Everywhere that a fault could go; a fault that fits its source has one place."""
    found: list[Place] = []
    for path, start, end in _definitions(root).get(fault.within, []):
        text = _text(root / path)
        position = text.find(fault.before, start, end)
        while position >= 0:
            found.append(Place(path, position))
            position = text.find(fault.before, position + 1, end)
    return found


def lines(fault: Fault, root: Path) -> tuple[Path, range]:
    """The file and the lines that a fault changes."""
    place = place_of(fault, root)
    first = _text(root / place.path).count("\n", 0, place.start) + 1
    return place.path, range(first, first + fault.before.count("\n") + 1)


def place_of(fault: Fault, root: Path) -> Place:
    """The one place of a fault; raises where its source has changed."""
    found = places(fault, root)
    if len(found) != 1:
        raise ValueError(
            f"fault {fault.name!r} fits {len(found)} places: rewrite it in tests/planted/faults.py, so that `before` "
            f"occurs once in {fault.within}."
        )
    return found[0]


def planted(fault: Fault, root: Path) -> tuple[Path, str]:
    """The file of a fault, and its text with the fault in it."""
    place = place_of(fault, root)
    text = _text(root / place.path)
    return place.path, text[: place.start] + fault.after + text[place.start + len(fault.before) :]


@cache
def _text(path: Path) -> str:
    return path.read_text()


@cache
def _definitions(root: Path) -> dict[str, list[tuple[Path, int, int]]]:
    """By qualified name: the files and the spans of characters of all functions and classes."""
    found: dict[str, list[tuple[Path, int, int]]] = {}
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            text = _text(path)
            starts = [0]
            for line in text.splitlines(keepends=True):
                starts.append(starts[-1] + len(line))
            for name, node in _named(ast.parse(text), ""):
                assert node.end_lineno is not None
                span = (path.relative_to(root), starts[node.lineno - 1], starts[node.end_lineno])
                found.setdefault(name, []).append(span)
    return found


def _named(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name, node
            yield from _named(node, f"{prefix}{node.name}.")
