"""The house rules that a machine can read: imports point one way, the public face is complete and documented."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import decibel as db

ROOT = Path(db.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").removesuffix("."): path
    for path in ROOT.rglob("*.py")
}

# From the ground up. A module imports from its own layer or from those before it; a package's name covers its modules.
LAYERS = (
    ("names", "keys", "vector", "ledger", "trace", "spectrum", "weights", "drawing", "environment", "files", "linear"),
    ("samples", "exact", "check", "problem", "graph", "graphs"),
    ("network", "faults", "strategies", "privacy", "oracles", "hypergradient", "estimators"),
    ("algorithms",),
    ("engines",),
    ("metrics",),
    ("callbacks", "loggers", "plots", "progress", "result", "solver", "tuning", "complexity", "theory"),
    ("tasks",),
    ("studies",),
    ("silo", "report", "demo", "launch", "launched", "live"),
    ("jobs",),
    ("commands", "cli"),
)
FACE = ""  # `from decibel import …` is for whoever stands above all it shows


def layer(module: str) -> int:
    for number, names in enumerate(LAYERS):
        if module.split(".")[0] in names:
            return number
    raise AssertionError(f"{module} is in no layer: add it to LAYERS where it belongs.")


def imported(path: Path, at: str) -> list[tuple[str, str]]:
    """(module of this package, or the outer package; the line) for every import, also those inside functions.

    What stands under `if TYPE_CHECKING` is for readers and does not run.
    """
    tree = ast.parse(path.read_text())
    unread = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    package = at.split(".") if path.name == "__init__.py" else at.split(".")[:-1]
    package = [part for part in package if part]
    found = []
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, ast.unparse(node)) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else None
            start = [*(["decibel", *base] if base is not None else []), *([node.module] if node.module else [])]
            names = [".".join([*start, alias.name]) for alias in node.names]
            found += [(name, ast.unparse(node)) for name in names]
    return found


def inside(name: str) -> str | None:
    """The longest module of this package that a dotted name stands for."""
    parts = name.split(".")
    if parts[0] != "decibel":
        return None
    return next(".".join(parts[1:end]) for end in range(len(parts), 0, -1) if ".".join(parts[1:end]) in MODULES)


def upward(path: Path, module: str) -> list[str]:
    """The imports that point up."""
    found = [(inside(name), line) for name, line in imported(path, module)]
    height = lambda target: layer("tasks") - 1 if target == FACE else layer(target)  # noqa: E731
    return [line for target, line in found if target is not None and height(target) > layer(module)]


@pytest.mark.parametrize("module", sorted(set(MODULES) - {FACE, "__main__"}))
def test_imports_point_one_way(module):
    assert not upward(MODULES[module], module)


def test_the_parser_sees_imports(tmp_path):
    """The test above would pass on a parser that finds nothing."""
    down = ["from ..graph import Graph", "from . import method", "import jax", "from decibel.vector import Vector"]
    up = ["from ..engines.simulator import Simulator", "from .. import solver", "import decibel.metrics"]
    hidden = ["if TYPE_CHECKING:", "    from ..solver import solve"]
    late = ["def late():", "    from ..result import Result"]
    path = tmp_path / "new.py"
    path.write_text("\n".join([*down, *up, *hidden, *late]))
    assert upward(path, "algorithms.new") == [*up, late[1].strip()]
    assert {inside(name) for name, _ in imported(path, "algorithms.new")} >= {"graph", "algorithms.method", "vector"}


def test_layers_name_no_module_twice():
    names = [name for layer in LAYERS for name in layer]
    assert len(names) == len(set(names))


def test_the_public_face():
    assert list(db.__all__) == sorted(db.__all__) and len(set(db.__all__)) == len(db.__all__)
    for name in db.__all__:
        thing = getattr(db, name)
        if inspect.ismodule(thing) or inspect.isclass(thing) or inspect.isroutine(thing):
            documented = inspect.cleandoc(thing.__doc__ or "")
            assert len(documented) > 15, f"{name} has no docstring"
    public = {name for name, value in vars(db).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert public <= set(db.__all__), f"not in __all__: {public - set(db.__all__)}"


@pytest.mark.parametrize("name", ["sparkle", "dsoba", "soba", "dsgd", "ed", "extra", "gt"])
def test_the_same_names_mean_the_same_in_every_method(name):
    parameters = inspect.signature(getattr(db, name)).parameters
    assert set(parameters) <= {
        "lower",
        "upper",
        "order",
        "alpha",
        "beta",
        "gamma",
        "theta",
        "delta",
        "forward",
        "difference",
    }
    assert "alpha" in parameters


def test_every_module_says_what_it_is():
    for module, path in MODULES.items():
        assert ast.get_docstring(ast.parse(path.read_text())), f"{module} has no docstring"


def test_no_torch():
    for module, path in MODULES.items():
        outer = {name.split(".")[0] for name, _ in imported(path, module)}
        assert not outer & {"torch", "tensorflow"}, module
