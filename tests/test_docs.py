"""The pages tell the truth: their Python runs, page by page, and their tables are the library's."""

import importlib.util
import inspect
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Hashable
from pathlib import Path
from statistics import median

import pytest

import decibel
from decibel import CATALOG

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "studies" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_PYTHON = [page for page in PAGES if BLOCK.search(page.read_text())]
TORCH = "from decibel.torch._libraries import libraries; libraries()"
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SIDE_BY_SIDE = {'title="in PyTorch"', 'title="in Decibel"'}
RUN_ELSEWHERE = {'title="patients.py"', 'title="make_patients.py"'}  # by test_journeys.py
TITLED = {'title="worker.py"', 'title="with Flax"', 'title="with PyTorch"', *SIDE_BY_SIDE, *RUN_ELSEWHERE}  # run below


@pytest.mark.slow_except("README.md", "concepts.md", "graphs.md", "silo.md")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)).removeprefix("docs/"))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, namespace = page.read_text(), {}
    for block in BLOCK.finditer(text):
        line = text[: block.start()].count("\n") + 1
        source = "\n" * line + block[1]  # so that a traceback names the page's own line
        exec(compile(source, str(page), "exec"), namespace)


def test_pages_have_python():
    pages = {"README.md", "index.md", "tutorial.md", "concepts.md", "tasks.md", "cluster.md", "which-method.md"}
    assert {page.name for page in WITH_PYTHON} >= pages


def test_every_python_block_is_run():
    for page in PAGES:
        for rest in re.findall(r"^ *```+ *(?:python|py)\b(.*)$", page.read_text(), re.MULTILINE):
            assert not rest or rest.strip() in TITLED, f"{page.name} has a block that no test runs:{rest}"


@pytest.mark.slow
def test_worker_of_the_cluster_page_runs(tmp_path):
    page = (ROOT / "docs" / "cluster.md").read_text()
    script = tmp_path / "worker.py"
    script.write_text(re.search(r'^```python title="worker.py"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)[1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    workers = [subprocess.Popen([sys.executable, script, str(rank), "2", address], **options) for rank in range(2)]
    outputs = [worker.communicate(timeout=240)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert "done 100" in outputs[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "title", "check"), [("equinox.md", "Flax", "import flax"), ("pytorch.md", "PyTorch", TORCH)]
)
def test_page_that_needs_more_runs(page, title, check, tmp_path):
    if subprocess.run([sys.executable, "-c", check], capture_output=True).returncode:
        pytest.skip(f"{title} is not installed, or not in a version that works")
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(rf'^```python title="with {title}"\n(.*?)^```', text, re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "\n".join(blocks)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert blocks and done.returncode == 0 and "diverged" not in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["torch_meta_weights.py", "torch_hyper_cleaning.py"])
def test_examples_from_pytorch_change_ten_lines_at_most(name):
    lines = (ROOT / "examples" / name).read_text().splitlines()
    assert 0 < sum(line.endswith("# Decibel") for line in lines) <= 10
    assert all("# Decibel" in line for line in lines if re.search(r"\bdb\b", line))


@pytest.mark.slow
def test_the_loop_in_pytorch_has_the_same_numbers(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    monkeypatch.chdir(tmp_path)
    page, namespace = (ROOT / "docs" / "pytorch.md").read_text(), {}
    blocks = re.findall(r'^```python title="in (?:PyTorch|Decibel)"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)
    for block in blocks:
        exec(compile(block, "pytorch.md", "exec"), namespace)
    assert len(blocks) == 2 and namespace["result"].step == 200


def test_links_between_pages_exist():
    for page in PAGES:
        text = FENCED.sub("", page.read_text())
        targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text) + re.findall(r'<img src="([^":]+)"', text)
        for target in targets:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_workflows_and_issue_forms_can_be_read():
    """GitHub shows no form, and runs no workflow, whose YAML it cannot read."""
    yaml = pytest.importorskip("yaml")
    github, targets = ROOT / ".github", re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for path in sorted((github / "workflows").glob("*.yml")):
        workflow = yaml.safe_load(path.read_text())
        commands = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
        assert set(re.findall(r"^make ([a-z-]+)", "\n".join(commands), re.MULTILINE)) <= set(targets), path.name
    for path in {*(github / "ISSUE_TEMPLATE").glob("*.yml")} - {github / "ISSUE_TEMPLATE/config.yml"}:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= set(form), path.name


TABS = re.compile(r"^  - ([\w ]+):\n((?:   .*\n?)+)", re.MULTILINE)


def tabs():
    """The titles and files of the pages under each tab."""
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    return {
        tab: set(re.findall(r"- (?:(.+): )?(\S+\.md)$", pages, re.MULTILINE)) for tab, pages in TABS.findall(navigation)
    }


def test_twelve_tasks_are_two_clicks_away():
    page = (ROOT / "docs" / "faq.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| \[([^]]+)\]\(([^)]+)\) \| ([^|]+) \|$", page, re.MULTILINE)
    assert len(rows) == 12
    for tab, title, target, heading in rows:
        assert (title, target) in tabs()[tab], target
        assert f"\n## {heading}\n" in (ROOT / "docs" / target).read_text(), target


def test_the_page_to_cite_agrees_with_the_citation_file():
    page, citation = (ROOT / "docs" / "credits.md").read_text(), (ROOT / "CITATION.cff").read_text()
    entry = page.partition("```bibtex\n")[2].partition("```")[0]
    for key, field in (("title", "title"), ("  - name", "author"), ("version", "version")):
        value = re.search(rf'^{key}: "?([^"\n]+)', citation, re.MULTILINE)[1]
        assert re.search(rf"^  {field} = {{+{re.escape(value)}}}+,?$", entry, re.MULTILINE), field


def test_the_guide_stays_short():
    """At most 40 pages and 35,000 words, beside the reference and the details of the evidence; code is not counted."""
    pages = [name for pages in tabs().values() for _, name in pages if not name.startswith(("reference/", "evidence/"))]
    texts = [FENCED.sub("", (ROOT / "docs" / name).read_text()) for name in pages]
    words = re.findall(r"\S*\w\S*", re.sub(r"^    .*$|\]\([^)]*\)", "", " ".join(texts), flags=re.MULTILINE))
    assert 30 < len(pages) <= 40 and 20_000 < len(words) <= 35_000, (len(pages), len(words))


def test_the_table_of_theorems_names_what_exists_and_every_formula():
    page = (ROOT / "docs" / "evidence" / "theorems.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ") and "| place |" not in line]
    assert all(len(row) == 6 for row in rows)
    functions = set(re.findall(r"`((?:theory|metrics|db)\.\w+)`", " ".join(row[2] for row in rows)))
    for name in functions:
        package, _, attribute = name.partition(".")
        assert hasattr(decibel if package == "db" else getattr(decibel, package), attribute), name
    no_formula = {"Advice", "Bound", "Links", "Measured", "Plan", "Samples", "Term"}  # records
    no_formula |= {"measured_transient", "plans", "wave_step_size"}  # ours
    assert {f"theory.{name}" for name in decibel.theory.__all__ if name not in no_formula} <= functions
    defined = {
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert set(re.findall(r"`(test_\w+)`", page)) <= defined
    claims = set(re.findall(r"^\| \[(C\d+[a-z]?)\]\(", (ROOT / "docs" / "studies.md").read_text(), re.MULTILINE))
    assert set(re.findall(r"C\d+[a-z]?", " ".join(row[4] for row in rows))) <= claims


def public_names():
    """Every public object by its path: what `decibel` and its public modules list in `__all__`, modules excepted."""
    modules, names = [("decibel", decibel)], {}
    for path, module in modules:  # grows while it is read
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.ismodule(thing):
                modules += [(f"{path}.{name}", thing)]
            elif not isinstance(thing, Hashable) or isinstance(thing, tuple):  # a table
                names[f"{path}.{name}"] = id(thing)
            else:
                names[f"{path}.{name}"] = thing
    return {thing: path for path, thing in reversed(names.items())}


def test_reference_has_every_public_name_once():
    pages = [page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md"))]
    named = [name for page in pages for name in re.findall(r"^(?:::: |### `)(decibel[\w.]*)", page, re.MULTILINE)]
    named = [re.sub(r"^(decibel\.tasks)\.(\w+)\.\2$", r"\1.\2", name) for name in named]  # a module of the same name
    assert sorted(named) == sorted(public_names().values())


def test_reference_shows_no_private_path():
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        assert not re.search(r"decibel[\w.]*\._", page.read_text()), page.name


def test_table_of_faults_is_what_was_measured():
    page = (ROOT / "docs" / "faults.md").read_text()
    for row in figure("faults").table(json.loads((ROOT / "docs" / "figures" / "faults.json").read_text())):
        assert row in page


@pytest.mark.parametrize("name", ["exactness", "wave"])
def test_tables_of_wave_are_what_was_measured(name):
    figures = ROOT / "docs" / "figures"
    script, found = figure(name), json.loads((figures / f"{name}.json").read_text())
    page = (ROOT / "docs" / "evidence" / "wave.md").read_text()
    for row in script.table(found) if name == "exactness" else script.tables(found):
        assert row in page


def test_table_of_colluders_is_what_was_measured():
    script, page = figure("colluders"), (ROOT / "docs" / "silo-security.md").read_text()
    for row in script.table(json.loads((ROOT / "docs" / "figures" / "colluders.json").read_text())):
        assert row in page


def test_the_table_of_one_peer_a_step_is_the_measured_one():
    page = (ROOT / "docs" / "evidence" / "one-peer.md").read_text()
    for row in figure("one_peer").table(json.loads((ROOT / "docs" / "figures" / "one_peer.json").read_text())):
        assert f"{row}\n" in page


EXACTNESS = json.loads((ROOT / "docs" / "figures" / "exactness.json").read_text())
# Every trouble with three strategies, which change from trouble to trouble.
CELLS = [
    (trouble, list(cells)[(place + turn) % len(cells)])
    for place, (trouble, cells) in enumerate(EXACTNESS.items())
    for turn in (0, 1, 4)
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "strategy"),
    [pytest.param(*pair, id="-".join(pair)) for pair in CELLS],
)
def test_which_strategy_is_exact_under_which_fault(trouble, strategy):
    """Cells of the table, measured again."""
    script = figure("exactness")
    assert list(EXACTNESS) == list(script.TROUBLES) and list(EXACTNESS[trouble]) == list(script.STRATEGIES)
    found = script.verdict(*script.distance(strategy, trouble))
    expected = EXACTNESS[trouble][strategy]
    assert found.partition(" by ")[0] == expected.partition(" by ")[0]


def figure(name):
    """A script of docs/figures."""
    folder = ROOT / "docs" / "figures"
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # scripts import each other
    spec = importlib.util.spec_from_file_location(f"{name}_figure", folder / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_table_of_precisions_is_what_was_measured():
    page = (ROOT / "docs" / "evidence" / "drift.md").read_text()
    found = json.loads((ROOT / "docs" / "figures" / "compute_precision.json").read_text())["rows"]
    for row in figure("compute_precision").table(found):
        assert row in page


def test_table_of_adaptive_steps_is_what_was_measured():
    page = (ROOT / "docs" / "evidence" / "adaptive.md").read_text()
    measured = json.loads((ROOT / "docs" / "figures" / "adaptive.json").read_text())["steps_to_1e-6"]
    for name in ("ada-ed", "gt-ada"):
        for kind, label in (("default", r"$\eta = 0.3$"), ("best", r"the best of six $\eta$")):
            counts = [measured[graph][name][kind] for graph in ("ring", "complete, lazy")]
            cells = [f"{median(steps):g} ({min(steps)}–{max(steps)})" for steps in counts]
            assert f"| `{name}`, {label} | {' | '.join(cells)} |" in page


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_what_is_written_from_the_methods_is_up_to_date(tables):
    assert not tables.outdated(), "run `make tables`"
    assert {entry.name for entry in tables.entries()} == {name for name, entry in CATALOG.items() if not entry.mixture}
    marked = {(page.name, kind) for page in PAGES for _, kind, _ in tables.MARK.findall(page.read_text())}
    assert marked >= {("catalogue.md", "messages"), ("catalogue.md", "catalogue"), ("concepts.md", "strategies")}
    assert tables.COUNT.search(tables.README.read_text())


def test_the_catalogue_and_the_credits_agree_on_what_is_ours():
    """Every entry that says "ours" has a row that says what was searched and found, and no other has one."""
    page = (ROOT / "docs" / "credits.md").read_text()
    section = page.split('## Entries that say "ours"')[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert all(len(cells) == 4 and all(cells) for cells in rows)
    named = [name for cells in rows for name in re.findall(r"`([a-z-]+)`", cells[0])]
    ours = [name for name, entry in CATALOG.items() if re.search(r"\bours\b", entry.paper)]
    assert sorted(named) == sorted(ours)


CLAIMS = (
    "novel",
    "novelty",
    "unpublished",
    "(no|never|not been) published",
    "(the|our) first (method|algorithm)",
    "(know|knew|aware) of (no|none)",
)


def test_only_the_credits_say_what_is_new():
    for page in PAGES:
        if page.name != "credits.md":
            claim = re.search(rf"\b({'|'.join(CLAIMS)})\b", FENCED.sub("", page.read_text()), re.IGNORECASE)
            assert claim is None, f"{page.name} says {claim[0]!r}: say what is new in credits.md only"


def test_tables_follow_the_methods(tables):
    interact = "gradient tracking on x, a personal lower level, all samples"
    assert f"| `interact` | {interact} | personal | 1 | 2p numbers |\n" in tables.catalogue()
    assert "| `interact` | `non-gt` | `local` |  | 2p numbers |\n" in tables.messages()
    assert "::: decibel.interact\n" in tables.reference("personal")
    row = r"| `ed` | $W$ | $I - W$ | $W$ | $s^{++} = W (2 s^+ - s - \Delta d)$ | yes | 1 | 1 | 1 |"
    assert f"{row}\n" in tables.strategies()
    new = f"<!-- table: catalogue -->\n{tables.catalogue()}<!-- end -->\n"
    assert tables.page("<!-- table: catalogue -->\nold\n<!-- end -->\n") == new
    stub = tables.STUB.read_text()
    without = stub.replace("from .methods._lopa import lopa\n", "").replace('    "lopa",\n', "")
    assert without != stub and tables.stub(without) == stub
