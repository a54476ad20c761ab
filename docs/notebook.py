"""The tutorial and the guide to data mixtures as notebooks, with their output.

    python docs/notebook.py

Makes cells of the text and of the Python blocks of a page, runs them (nbclient and ipykernel are in the extra `test`),
and writes the notebook beside the page. Tests compare the cells and run them.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = ("tutorial", "mixtures")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"^!\[.*\n\n", re.MULTILINE)
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0", "XLA_FLAGS": "", "MPLBACKEND": ""}  # as at a reader's


def path(page: str) -> Path:
    """Of a page's notebook."""
    return DOCS / f"{page}.ipynb"


def cells(page: str) -> list[tuple[str, str]]:
    """(kind, source) of each; output and figures of the page are left out, since the notebook has its own."""
    link = f"[As a notebook]({page}.ipynb), with its output.\n\n"
    text = FIGURE.sub("", (DOCS / f"{page}.md").read_text().replace(link, ""))
    found, last = [], 0
    for block in BLOCK.finditer(text):
        found += [("markdown", text[last : block.start()].strip())]
        found += [("code", block[2].strip())] if block[1] == "python" else []
        last = block.end()
    return [(kind, source) for kind, source in [*found, ("markdown", text[last:].strip())] if source]


def notebook(page: str) -> dict[str, object]:
    """Without output, as JSON."""
    made: list[dict[str, object]] = []
    for number, (kind, source) in enumerate(cells(page)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}
        made.append(cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []})
    return {"cells": made, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}


def executed(page: str, folder: Path) -> dict[str, object]:
    """With the output of a run in a folder."""
    import nbformat
    from nbclient import NotebookClient

    made = nbformat.reads(json.dumps(notebook(page)), as_version=4)
    client = NotebookClient(made, timeout=600, record_timing=False, resources={"metadata": {"path": str(folder)}})
    client.execute(env={**os.environ, **ENVIRONMENT})
    made["metadata"] = KERNEL
    nbformat.validate(made)
    return json.loads(nbformat.writes(made))


if __name__ == "__main__":
    for page in PAGES:
        path(page).write_text(json.dumps(executed(page, DOCS), indent=1, ensure_ascii=False) + "\n")
        print(f"wrote {path(page)}")
