"""A run needs the core packages only; whatever needs another says so in a sentence that names the extra."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import decibel as db
from decibel.core._optional import optional

ROOT = Path(db.__file__).parent
DECLARED = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
MODULES = {"orbax-checkpoint": "orbax", "scikit-learn": "sklearn", "grpcio": "grpc"}  # where the name differs
USED = ("cli", "plot", "tasks", "checkpoint", "silo", "hdf5", "tensorboard", "wandb", "mlflow", "torch")


def module(requirement):
    name = re.match(r"[\w-]+", requirement)[0]
    return MODULES.get(name, name.replace("-", "_"))


CORE = {module(one) for one in DECLARED["dependencies"]}
OPTIONAL = {module(one) for extra in USED for one in DECLARED["optional-dependencies"][extra]} | {"pandas"}

# All in one process, which takes seconds to begin: a solve, then what needs more than that.
SCRIPT = """
import json, sys

class Without:
    asked = set()

    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package in OPTIONAL:
            self.asked.add(package)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())

import decibel as db

task, graph = db.tasks.linear_regression(nodes=4, samples=10), db.graphs.erdos_renyi(4, 0.9)
method = db.sparkle("ed", alpha=0.01, beta=0.01, gamma=0.01)
solve = lambda **options: db.solve(task.problem, method, graph, steps=4, metrics=["upper"], **options)
result = solve()
told = {"solved": result.step, "shown": solve(progress=True).step, "asked": sorted(Without.asked)}
told["loaded"] = sorted(OPTIONAL & set(sys.modules))

from decibel.cli import main
from decibel.cli._config import toml
from decibel.core._compilation import cache_folder
from decibel.tasks.data import digits, fetch

doors = {
    "result.plot": lambda: result.plot(),
    "graph.draw": lambda: graph.draw(),
    "cycle.draw": lambda: db.graphs.cycle(graph).draw(),
    "partition.draw": lambda: db.tasks.partition.iid([0, 1, 0, 1], 2).draw(),
    "trace.to_pandas": lambda: result.trace.to_pandas(),
    "digits": digits,
    "task": lambda: db.tasks.label_cleaning("digits"),
    "fetch": lambda: fetch("a9a"),
    "checkpoint": lambda: solve(checkpoint="checkpoints"),
    "silo": lambda: db.Silo("home", "a").graph,
    "hdf5": lambda: db.sources.hdf5("file"),
    "TensorBoard": lambda: db.loggers.TensorBoard("folder"),
    "WandB": lambda: db.loggers.WandB("project"),
    "MLflow": lambda: db.loggers.MLflow(),
    "decibel": main,
    "toml": lambda: toml({}),
    "compiled": cache_folder,
    "torch": lambda: db.torch.from_torch(None),
}
told["doors"] = {}
for name, door in doors.items():
    try:
        door()
    except (ImportError, SystemExit) as error:
        told["doors"][name] = str(error)
print(json.dumps(told))
"""
SENTENCES = {
    "result.plot": 'result.plot needs matplotlib: pip install "decibel-opt[plot]".',
    "graph.draw": 'graph.draw needs matplotlib: pip install "decibel-opt[plot]".',
    "cycle.draw": 'graph.draw needs matplotlib: pip install "decibel-opt[plot]".',
    "partition.draw": 'partition.draw needs matplotlib: pip install "decibel-opt[plot]".',
    "trace.to_pandas": "trace.to_pandas needs pandas: pip install pandas.",
    "digits": 'tasks.data.digits needs scikit-learn: pip install "decibel-opt[tasks]".',
    "task": 'tasks.data.digits needs scikit-learn: pip install "decibel-opt[tasks]".',
    "fetch": 'the data cache needs platformdirs: pip install "decibel-opt[tasks]".',
    "checkpoint": 'solve(checkpoint=...) needs orbax-checkpoint: pip install "decibel-opt[checkpoint]".',
    "silo": 'db.Silo needs cryptography: pip install "decibel-opt[silo]".',
    "hdf5": 'db.sources.hdf5 needs h5py: pip install "decibel-opt[hdf5]".',
    "TensorBoard": 'db.loggers.TensorBoard needs tensorboardX: pip install "decibel-opt[tensorboard]".',
    "WandB": 'db.loggers.WandB needs wandb: pip install "decibel-opt[wandb]".',
    "MLflow": 'db.loggers.MLflow needs mlflow: pip install "decibel-opt[mlflow]".',
    "decibel": 'The decibel command needs typer and rich: pip install "decibel-opt[cli]".',
    "toml": 'decibel run needs tomli-w: pip install "decibel-opt[cli]".',
    "compiled": 'the cache of compiled steps needs platformdirs: pip install "decibel-opt[cli]".',
    "torch": 'db.torch needs torch 2.11 or 2.12 and torchax 0.0.13 (found neither): run `pip install "torch==2.12.*" '
    "--index-url https://download.pytorch.org/whl/cpu`, since the default wheel of torch brings CUDA, and then "
    '`pip install "decibel-opt[torch]"`.',
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What a process says that finds no optional package."""
    script = f"OPTIONAL = {sorted(OPTIONAL)}\nOPTIONAL = set(OPTIONAL)\n{SCRIPT}"
    folder = tmp_path_factory.mktemp("core")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_needs_the_core_only(told):
    assert told["solved"] == told["shown"] == 4
    assert told["loaded"] == [] and told["asked"] in (["rich"], [])  # for the progress bar, which is then not there


def test_what_needs_more_names_its_extra(told):
    assert told["doors"] == SENTENCES


def test_only_a_failed_import_is_put_into_words():
    with pytest.raises(ValueError, match="mine"), optional("numpy", caller="this", extra="plot"):
        raise ValueError("mine")
    with optional("numpy", caller="this"):
        import numpy  # noqa: F401


def outside(path):
    """(package, line) of each import that is neither guarded by `optional` nor for type checkers only."""
    tree = ast.parse(path.read_text())
    guarded = set()
    for node in ast.walk(tree):
        words = isinstance(node, ast.With) and _called(node.items[0].context_expr) == "optional"
        types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        if words or types:
            guarded |= {id(inner) for one in node.body for inner in ast.walk(one)}
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], ast.unparse(node)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0], ast.unparse(node)


def _called(node):
    """The name of the function that is called, if it is one."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def allowed(path):
    """The packages that a module may import without words for their absence."""
    packages = CORE | {"decibel", *sys.stdlib_module_names}
    commands = path.is_relative_to(ROOT / "cli") and path.name != "__init__.py"
    if commands or path.is_relative_to(ROOT / "silo" / "commands"):
        packages |= {"typer", "rich"}  # behind the entry of the command
    if path == ROOT / "results" / "_progress.py":
        packages |= {"rich"}  # without which there is no bar
    return packages


def test_every_optional_package_is_imported_with_words_for_its_absence():
    for path in ROOT.rglob("*.py"):
        assert [line for package, line in outside(path) if package not in allowed(path)] == [], path


def test_the_parser_sees_imports(tmp_path):
    path = tmp_path / "one.py"
    text = "import rich\nif TYPE_CHECKING:\n    import a\nwith optional('b'):\n    import b\n"
    path.write_text(text + "def f():\n    from c.d import e\n")
    assert dict(outside(path)) == {"rich": "import rich", "c": "from c.d import e"}


def test_extras():
    extras = DECLARED["optional-dependencies"]
    assert CORE.isdisjoint(OPTIONAL)
    assert set(re.findall(r"[\w-]+", extras["all"][0].partition("[")[2])) <= set(extras)
    assert "decibel-opt[all]" in extras["test"]
    named = {name for path in ROOT.rglob("*.py") for name in re.findall(r'extra="([\w,]+)"', path.read_text())}
    assert {one for name in named for one in name.split(",")} == set(USED)


def test_the_doctor_knows_the_extras():
    from decibel.cli._examination import EXTRAS

    for extra in USED:
        assert set(EXTRAS[extra]) == {module(one) for one in DECLARED["optional-dependencies"][extra]}
