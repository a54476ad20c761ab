"""The house rules that a machine can read: imports point one way, the public face is complete and documented."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import networkx as nx
import pytest
from public_names import private_uses

import decibel as db

ROOT = Path(db.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").removesuffix("."): path
    for path in ROOT.rglob("*.py")
}

# From the ground up: a package imports from itself and from those before it.
LAYERS = (
    "core", "graphs", "problem", "oracles", "network", "strategies", "methods", "results", "engines", "solver", "torch",
    "tasks", "cli", "silo",
)  # fmt: skip
SILO_ROOMS = ("trust", "protocol", "observe", "run", "commands")  # likewise; modules outside of rooms are used by all
APPLICATIONS = ("tasks", "cli")  # their modules are scripts and tables, and need not be private
MOST_ANY = 49  # lines that say `Any`
API = ""  # `from decibel import …` is for whoever stands above all it shows


def layer(module: str) -> int:
    return LAYERS.index(module.split(".")[0])


def imported(path: Path, at: str) -> list[tuple[str, str]]:
    """(what is imported, as a dotted name; the line) for every import, also inside functions and for type checkers."""
    package = at.split(".") if path.name == "__init__.py" else at.split(".")[:-1]
    package = [part for part in package if part]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, ast.unparse(node)) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else None
            start = [*(["decibel", *base] if base is not None else []), *([node.module] if node.module else [])]
            found += [(".".join([*start, alias.name]), ast.unparse(node)) for alias in node.names]
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
    height = lambda target: layer("tasks") - 1 if target == API else layer(target)  # noqa: E731
    return [line for target, line in found if target is not None and height(target) > layer(module)]


def cycles(needs: dict[str, set[str]]) -> list[list[str]]:
    return [sorted(part) for part in nx.strongly_connected_components(nx.DiGraph(needs)) if len(part) > 1]


def test_imports_point_one_way():
    assert {
        module: lines for module, path in MODULES.items() if module != API and (lines := upward(path, module))
    } == {}


def test_no_modules_import_each_other():
    needs = {
        module: {inside(name) for name, _ in imported(path, module)} - {None, API, module}
        for module, path in MODULES.items()
        if module != API
    }
    assert cycles(needs) == []
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == [["a", "b", "c"]]


def test_rooms_of_the_silo_import_one_way():
    heights = {"silo": -1} | {f"silo.{room}": height for height, room in enumerate(SILO_ROOMS)}
    rooms = {module: ".".join(module.split(".")[:2]) for module in MODULES if module.startswith("silo.")}
    height = {module: heights.get(room, -1) for module, room in rooms.items()}
    assert set(heights) <= {*rooms.values(), "silo"}
    for module in rooms:
        used = {inside(name) for name, _ in imported(MODULES[module], module)}
        assert [name for name in used if name in height and height[name] > height[module]] == [], module


def test_the_silo_uses_public_names_only():
    """Relative imports stay within it."""
    for module, path in MODULES.items():
        if module.split(".")[0] == "silo":
            outer = [name for name, line in imported(path, module) if "from ." in line and "decibel.silo" not in name]
            assert outer == [], module
            assert list(private_uses(ast.parse(path.read_text()))) == [], module


def test_layers_are_the_packages():
    """And few enough to be seen at once."""
    others = ("__init__.py", "__init__.pyi", "py.typed")
    # A folder without files is what is left of a package that was moved.
    there = [path for path in ROOT.iterdir() if path.name not in others and (path.is_file() or list(path.glob("*.py")))]
    assert sorted(path.name for path in there) == sorted(LAYERS) and len(there) <= 15


def test_modules_are_private_unless_they_are_the_api():
    public = {
        f"{thing.__name__.removeprefix('decibel.')}"
        for name in db.__all__
        if inspect.ismodule(thing := getattr(db, name))
    }
    for module, path in MODULES.items():
        name = module.split(".")[-1]
        if module.split(".")[0] not in APPLICATIONS and path.name != "__init__.py":
            assert name.startswith("_") or module in public, f"{module} is neither private nor in decibel.__all__"


def test_the_parser_sees_imports(tmp_path):
    """The tests above would pass on a parser that finds nothing."""
    down = [
        "from ..graphs import Graph",
        "from . import _method",
        "import jax",
        "from decibel.core._vector import Vector",
    ]
    up = ["from ..engines._simulator import Simulator", "from .. import solver", "import decibel.results.metrics"]
    hidden = ["if TYPE_CHECKING:", "    from ..solver._solve import solve"]
    late = ["def late():", "    from ..results._result import Result"]
    path = tmp_path / "new.py"
    path.write_text("\n".join([*down, *up, *hidden, *late]))
    assert sorted(upward(path, "methods.new")) == sorted([*up, hidden[1].strip(), late[1].strip()])
    found = {inside(name) for name, _ in imported(path, "methods.new")}
    assert found >= {"graphs", "methods._method", "core._vector"}


def test_the_public_face():
    assert list(db.__all__) == sorted(db.__all__) and len(set(db.__all__)) == len(db.__all__)
    for name in db.__all__:
        thing = getattr(db, name)
        if inspect.ismodule(thing) or inspect.isclass(thing) or inspect.isroutine(thing):
            documented = inspect.cleandoc(thing.__doc__ or "")
            assert len(documented) > 15, f"{name} has no docstring"
    public = {name for name, value in vars(db).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert public <= set(db.__all__), f"not in __all__: {public - set(db.__all__)}"


def test_packages_import_the_modules_that_the_public_face_takes_from_them():
    """`decibel.prox` is looked up in `decibel.problem`, which has it only where it imports it."""
    for node in ast.parse((ROOT / "__init__.pyi").read_text()).body:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        modules = [f"decibel.{node.module}.{alias.name}" for alias in node.names]
        modules = [name for name in modules if inside(name) == name.removeprefix("decibel.")]
        held = [name for name, _ in imported(MODULES[node.module], node.module)]
        assert set(modules) <= set(held), node.module


@pytest.mark.parametrize("name", ["sparkle", "dsoba", "soba", "dsgd", "ed", "extra", "gt"])
def test_the_same_names_mean_the_same_in_every_method(name):
    parameters = inspect.signature(getattr(db, name)).parameters
    assert set(parameters) <= {
        "lower",
        "upper",
        "updates",
        "hypergradient",
        "alpha",
        "beta",
        "gamma",
        "theta",
        "delta",
        "forward",
        "difference",
        "local_steps",
        "upper_every",
    }
    assert "alpha" in parameters


def test_methods_take_settings_by_name_only():
    """But for the strategies of SPARKLE."""
    for make in {entry.make for entry in db.CATALOG.values()}:
        named = {name for name, given in inspect.signature(make).parameters.items() if given.kind is given.KEYWORD_ONLY}
        assert set(inspect.signature(make).parameters) - named == ({"lower", "upper"} if make is db.sparkle else set())


def test_each_class_of_methods_is_one_published_method_or_shared_code():
    """SPARKLE's forms and single levels alone share a class; a constructor is named like its method and exported."""
    shared = (type(db.CATALOG["sparkle-ed"]()), type(db.CATALOG["ed"]()))
    kinds = [entry.kind for entry in db.CATALOG.values() if entry.kind not in shared]
    assert len(set(kinds)) == len(kinds)
    for entry in db.CATALOG.values():
        assert getattr(db, entry.make.__name__) is entry.make
        assert entry.kind is type(entry()) and entry.kind.__module__ == entry.make.__module__


def test_every_module_says_what_it_is():
    for module, path in MODULES.items():
        assert ast.get_docstring(ast.parse(path.read_text())), f"{module} has no docstring"


def test_any_is_the_exception():
    """Nothing is checked where a type is `Any`, so that the number may only fall."""
    lines = [line for path in MODULES.values() for line in path.read_text().splitlines() if "import" not in line]
    assert sum(bool(re.search(r"\bAny\b", line)) for line in lines) <= MOST_ANY


def test_no_torch():
    for module, path in MODULES.items():
        outer = {name.split(".")[0] for name, _ in imported(path, module)}
        assert not outer & {"torch", "tensorflow"}, module
