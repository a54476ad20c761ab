"""The rules of this distribution: public names of Decibel only, imports that point one way, declared packages."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from public_names import private_uses

import decibel_studies

ROOT = Path(decibel_studies.__file__).parent
DECLARED = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
# From the ground up: a room imports from itself and from those before it. What lies outside of rooms is used by all.
ROOMS = ("judging", "testbed", "experiments", "league", "report")


@cache
def modules() -> dict[Path, ast.Module]:
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}


def test_only_public_names_of_decibel_are_used():
    assert {str(path): found for path, tree in modules().items() if (found := list(private_uses(tree)))} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import decibel as db\ndb.solve(db.graphs.ring(3))", []),
        ("from decibel.tasks import Task, data\ndata.load('digits')", []),
        ("from decibel.methods import rate", []),
        ("from decibel.core._files import atomic_write", ["from decibel.core._files import atomic_write"]),
        ("from decibel.solver import _tune", ["from decibel.solver import _tune"]),
        ("from decibel.tasks.classification import find", ["from decibel.tasks.classification import find"]),
        ("import decibel.engines._batch_run", ["import decibel.engines._batch_run"]),
        ("import decibel as db\ndb.graphs._families.ring(3)", ["db.graphs._families"]),
        ("from decibel import metrics\nmetrics.Distance", ["metrics.Distance"]),
        ("def f(run):\n    return run._state", ["run._state"]),
    ],
)
def test_the_parser_sees_private_uses(source, found):
    assert list(private_uses(ast.parse(source))) == found


def rooms_above(path: Path, tree: ast.Module) -> list[str]:
    """The imports of a module that point to a room above its own."""
    if len(path.parts) == 1:
        return []
    above = ROOMS[ROOMS.index(path.parts[0]) + 1 :]
    relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 2]
    return [ast.unparse(node) for node in relative if (node.module or node.names[0].name).split(".")[0] in above]


def test_imports_point_one_way():
    assert {path.parts[0] for path in modules() if len(path.parts) > 1} == set(ROOMS)
    assert {str(path): found for path, tree in modules().items() if (found := rooms_above(path, tree))} == {}
    up = ast.parse("from ..testbed.study import Arm\nfrom .results import Runs\nfrom .. import report")
    assert len(rooms_above(Path("judging/new.py"), up)) == 2


def test_every_module_says_what_it_is():
    assert [str(path) for path, tree in modules().items() if not ast.get_docstring(tree)] == []


def test_every_package_is_declared():
    known = {re.match(r"[\w-]+", requirement)[0] for requirement in DECLARED["dependencies"]}
    allowed = {"decibel" if name == "decibel-opt" else name for name in known} | sys.stdlib_module_names
    used = set()
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                used.add(node.module.split(".")[0])
    assert used <= allowed and allowed - sys.stdlib_module_names <= used


def test_entry_points_can_be_loaded():
    for group, points in DECLARED["entry-points"].items():
        for name, value in points.items():
            loaded = EntryPoint(name, value, group).load()
            assert loaded is decibel_studies.NAMES or loaded.__name__ == name
