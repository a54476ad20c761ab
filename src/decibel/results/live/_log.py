"""What is new in a run's `log.jsonl`, which may grow while it is read, end with half a line, or start over."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import BinaryIO, TypedDict

from ...core._json import JSON

MOST_BYTES = 1_000_000  # of lines in one answer; a page that is behind asks again at once
LONGEST_NAME = 65_536  # of the first line, bytes that tell one run from another
LARGEST = 1e308  # a browser's numbers end a little above it


class News(TypedDict):
    """The answer to a page that asks."""

    run: str
    offset: int
    restarted: bool
    lines: list[dict[str, JSON]]
    age: float | None
    more: bool


def news(path: Path, offset: int = 0, run: str = "") -> News:
    """The lines after `offset`, for a reader who is that far in the file whose first line has the digest `run`.

    `restarted` says that the file is another one by now, and that the lines are those of its beginning. Only the last
    row that has distances by node keeps them; every row has their reach.
    """
    try:
        with path.open("rb") as file:
            first = file.readline(LONGEST_NAME)
            if not first.endswith(b"\n") and len(first) < LONGEST_NAME:
                return _nothing(run)
            name = hashlib.sha256(first).hexdigest()[:16]
            size = file.seek(0, 2)
            restarted = run != name or not _after_a_line(file, offset, size)
            file.seek(0 if restarted else offset)
            parsed: list[dict[str, JSON] | None] = []
            end = file.tell()
            for line in file:
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                parsed.append(_read(line))
                if end - offset > MOST_BYTES:
                    break
            age = max(0.0, time.time() - path.stat().st_mtime)
    except (FileNotFoundError, NotADirectoryError):
        return _nothing(run)
    lines = [line for line in parsed if line is not None]
    for row in [line for line in lines if line.get("nodes")][:-1]:
        row["nodes"] = None
    return {
        "run": name,
        "offset": end,
        "restarted": restarted and run != "",
        "lines": lines,
        "age": age,
        "more": end < size and end - offset > MOST_BYTES,
    }


def newest_graph(path: Path) -> tuple[int, list[tuple[int, int]]]:
    """The number of nodes of the last run in the file, and its links, each once."""
    nodes, links = 0, set[tuple[int, int]]()
    try:
        with path.open("rb") as file:
            for line in file:
                if b'"begin"' in line and (begun := _parse(line)).get("kind") == "begin":
                    nodes, links = _graph(begun.get("graph"))
    except (FileNotFoundError, NotADirectoryError):
        pass
    return nodes, sorted(links)


def _nothing(run: str) -> News:
    return {"run": "", "offset": 0, "restarted": run != "", "lines": [], "age": None, "more": False}


def _after_a_line(file: BinaryIO, offset: int, size: int) -> bool:
    if not 0 < offset <= size:
        return offset == 0
    file.seek(offset - 1)
    return file.read(1) == b"\n"


def _parse(line: bytes) -> dict[str, JSON]:
    try:
        read: JSON = json.loads(line, parse_constant=lambda _: None, parse_float=lambda text: _number(float(text)))
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _read(line: bytes) -> dict[str, JSON] | None:
    """A line as the page expects it; None where it is none of the known kinds."""
    read = _parse(line)
    match read.get("kind"):
        case "begin":
            about, graph = read.get("about"), read.get("graph")
            nodes, links = _graph(graph)
            name = str(graph.get("name") or "") if isinstance(graph, dict) else ""
            shown = {"nodes": nodes, "links": len(links), "name": name}
            return {"kind": "begin", "about": about if isinstance(about, dict) else {}, "graph": shown}
        case "row" if isinstance(row := read.get("row"), dict) and _number(read.get("step")) is not None:
            nodes = [_number(value) for value in _list(read.get("nodes"))]
            known = [value for value in nodes if value is not None]
            positive = [value for value in known if value > 0]
            if known and None not in nodes and "consensus_x" not in row:
                row = row | {"consensus_x": sum(value**2 for value in known) / len(known)}
            return {
                "kind": "row",
                "step": read["step"],
                "nodes": nodes or None,
                "row": {str(name): _number(value) for name, value in row.items()},
                "reach": [min(positive), max(positive)] if positive else None,
            }
        case "end":
            message = read.get("message")
            return {"kind": "end", "message": None if message is None else str(message)}
        case _:
            return None


def _list(value: JSON) -> list[JSON]:
    return value if isinstance(value, list) else []


def _number(value: JSON) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < LARGEST else None


def _graph(graph: JSON) -> tuple[int, set[tuple[int, int]]]:
    """(nodes, links), without what cannot be a link."""
    if not isinstance(graph, dict) or not isinstance(nodes := graph.get("nodes"), int) or nodes < 1:
        return 0, set()
    links = set[tuple[int, int]]()
    for edge in _list(graph.get("edges")):
        ends = [end for end in _list(edge) if isinstance(end, int) and 0 <= end < nodes]
        if len(ends) == len(_list(edge)) == 2:
            low, high = sorted(ends)
            if low != high:
                links.add((low, high))
    return nodes, links
