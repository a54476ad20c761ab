"""The pages tell the truth: their Python runs, page by page, and their table of strategies is the library's."""

import re
from pathlib import Path

import jax.numpy as jnp
import pytest

from decibel import CATALOG
from decibel.strategies import STRATEGIES
from decibel.vector import Vector

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_PYTHON = [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, namespace = page.read_text(), {}
    for block in BLOCK.finditer(text):
        line = text[: block.start()].count("\n") + 1
        source = "\n" * line + block[1]  # so that a traceback names the page's own line
        exec(compile(source, str(page), "exec"), namespace)


def test_pages_have_python():
    assert {page.name for page in WITH_PYTHON} >= {"README.md", "index.md", "tutorial.md", "concepts.md"}


def test_links_between_pages_exist():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def strategy_rows():
    text = (ROOT / "docs" / "concepts.md").read_text()
    head, *rows = re.findall(r"^\| (?:name \| A|`[a-z-]+` \| (?:I|W)).*$", text, re.MULTILINE)
    names = [cell.strip() for cell in head.strip("|").split("|")]
    return [dict(zip(names, (cell.strip() for cell in row.strip("|").split("|")), strict=True)) for row in rows]


def polynomial_text(coefficients):
    text = ""
    for power, factor in zip(("I", "W", "W²"), coefficients, strict=False):
        if factor:
            size = "" if abs(factor) == 1 else f"{abs(factor):g}"
            sign = (" − " if factor < 0 else " + ") if text else ""
            text += f"{sign}{size}{power}"
    return text or "0"


def exchanges(strategy):
    """(vectors, rounds) of one move, with the message itself given back as its flow."""
    one = Vector(jnp.ones(2))
    move, reply, vectors, rounds = strategy.move(one, one, *(one,) * strategy.carries), None, 0, 0
    while True:
        try:
            reply = move.send(reply)
        except StopIteration:
            return vectors, rounds
        rounds += 1
        vectors += len(reply) if isinstance(reply, tuple) else 1


def test_strategy_table_is_the_library():
    rows = strategy_rows()
    assert [row["name"].strip("`") for row in rows] == list(STRATEGIES)
    for row, strategy in zip(rows, STRATEGIES.values(), strict=True):
        assert [row["A"], row["B²"], row["C"]] == [polynomial_text(c) for c in (strategy.A, strategy.B2, strategy.C)]
        assert (row["corrects"] == "yes") == any(strategy.B2)
        assert int(row["carries"]) == strategy.carries
        assert (int(row["vectors sent"]), int(row["rounds"])) == exchanges(strategy)


def test_readme_table_is_the_catalogue():
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.*) \| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    named = [row[0] for row in rows]
    assert {name for name in CATALOG if not name.startswith("sparkle-")} <= set(named)
    for name, form, summary, sends in rows:
        entry = CATALOG[name]
        assert (form, summary, sends) == (entry.form, entry.summary, entry.sends)
