"""The notebooks are the pages, with the output of a run, and they run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
FIGURES = {
    "tutorial": {"graph.draw()", 'result.plot("upper", "consensus_x", against="bytes")'},
    "mixtures": {'result.plot("weight_count", "weight_noise")'},
}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("notebook", DOCS / "notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(notebook, script, page):
    """Its cells are the page's, all were run, in order, and figures, progress and numbers are there."""
    sources = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert sources == script.cells(page), "run `python docs/notebook.py`"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(output["output_type"] != "error" and output.get("name") != "stderr" for output in outputs)
    last = {"".join(cell["source"]).splitlines()[-1]: cell["outputs"] for cell in code}
    for line in FIGURES[page]:
        assert sum("image/png" in output.get("data", {}) for output in last[line]) == 1, line
    if page == "tutorial":
        check_tutorial(code, outputs, last)


def check_tutorial(code, outputs, last):
    assert any("<table>" in html and "<img" in html for html in shown(last["result"]))
    assert sum("<progress" in html for cell in code for html in shown(cell["outputs"])) == 2  # one for each solve
    printed = ["".join(output["text"]) for output in outputs if output["output_type"] == "stream"]
    assert printed[0].strip() == "[0.02 0.03 0.01 0.5  0.55 0.77 0.55 0.51]"
    corrected, biased = (float(text) for text in printed if text.count("\n") == 1 and "[" not in text)
    assert corrected < 1e-5 and biased == pytest.approx(0.014, abs=1e-3)


def shown(outputs):
    """The HTML of outputs."""
    return ["".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {})]


@pytest.mark.parametrize("page", FIGURES)
def test_the_committed_notebook_is_the_page(script, page):
    check(json.loads(script.path(page).read_text()), script, page)
    assert script.path(page).stat().st_size < 300_000


def test_markdown_and_code_alternate_and_quoted_output_is_left_out(script):
    cells = script.cells("tutorial")
    assert cells[0][0] == "markdown" and cells[0][1].startswith("# Tutorial\n\nTen hospitals")
    assert sum(kind == "code" for kind, _ in cells) > 8
    assert not any("```" in source for _, source in cells)


@pytest.mark.slow
@pytest.mark.parametrize("page", FIGURES)
def test_the_notebook_runs(script, page, tmp_path):
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason='needs nbclient and ipykernel: pip install "decibel-opt[test]"')
    check(script.executed(page, tmp_path), script, page)
