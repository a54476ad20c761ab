"""What a notebook shows: valid HTML with every text escaped, with pictures or without, and a progress bar."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.core import _html as html

EVIL = "<script>alert(1)</script>&\"'\n\x1b[2J"
VOID = {"img"}


class Checked(HTMLParser):
    """Fails where tags do not close in order; collects tags, texts and attributes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.attributes = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def loss(x, batch):
    return jnp.mean((x["w"] - batch) ** 2)


PROBLEM = db.Problem(loss, upper_data=np.ones((4, 6, 3)), x0={"w": jnp.zeros(3)})


class Evil(db.Callback):
    reason = EVIL

    def __call__(self, step, row):
        return step > 4


@pytest.fixture(scope="module")
def shown():
    """One of each, with as much text of strangers as fits."""

    class Metric(eqx.Module):
        def __call__(self, snapshot):
            return {EVIL: jnp.sum(snapshot.x["w"])}

    ring = db.graphs.ring(4)
    graph = db.Graph(ring.matrix, name=EVIL)
    result = db.solve(
        PROBLEM, db.ed(alpha=0.1), graph, steps=40, eval_every=2, metrics=["upper", Metric()], callbacks=[Evil()]
    )
    long = db.Trace({"step": range(30), EVIL: np.linspace(0, 1, 30)})
    functions = db.Problem(loss, upper_data=lambda node: np.ones((6, 3)), x0=PROBLEM.x0)
    return {
        "result": result,
        "trace": long,
        "empty": db.Trace(),
        "graph": graph,
        "sequence": db.graphs.one_peer_exponential(4),
        "problem": PROBLEM,
        "functions": functions,
    }


@pytest.mark.parametrize("name", ["result", "trace", "empty", "graph", "sequence", "problem", "functions"])
def test_html_is_valid_and_escaped(shown, name):
    text = shown[name]._repr_html_()
    parsed = Checked(text)
    assert set(parsed.tags) <= {"table", "caption", "tr", "th", "td", "img"} and parsed.tags[0] == "table"
    assert "\n" not in text and "\x1b" not in text and "<script" not in text
    if name == "graph":
        assert "<script>alert(1)</script>&" in "".join(parsed.texts)
    if name in ("result", "trace"):
        assert "<script>alert(1)</script>&\"'\\n\\x1b[2J" in "".join(parsed.texts)


@pytest.mark.parametrize("name", ["result", "graph", "sequence"])
def test_pictures_are_there_with_matplotlib_and_nothing_fails_without(shown, name, monkeypatch):
    assert "img" in Checked(shown[name]._repr_html_()).tags
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"] + ["matplotlib.figure"]:
        monkeypatch.setitem(sys.modules, module, None)
    assert "img" not in Checked(shown[name]._repr_html_()).tags


def test_a_title_of_a_picture_is_escaped():
    draw = lambda: SimpleNamespace(savefig=lambda file, **_: file.write(b"png"))  # noqa: E731
    parsed = Checked(html.picture(draw, EVIL))
    assert parsed.tags == ["img"] and dict(parsed.attributes)["src"] == "data:image/png;base64,cG5n"


def test_large_graphs_are_not_drawn_and_long_traces_are_cut(shown):
    assert "img" not in Checked(db.graphs.ring(1000)._repr_html_()).tags
    parsed = Checked(shown["trace"]._repr_html_())
    assert parsed.tags.count("tr") == 11 and "Trace: 30 rows, the last 10" in parsed.texts


def notebook(monkeypatch, *, kernel=True):
    """IPython as a kernel has it, and what it displays."""
    seen = []
    place = SimpleNamespace(update=lambda data, raw: seen.append((data, raw)))
    display = lambda data, raw, display_id: seen.append((data, raw)) or place  # noqa: E731
    shell = SimpleNamespace(kernel=1) if kernel else SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return seen


def solve(**options):
    return db.solve(PROBLEM, db.ed(alpha=0.1), db.graphs.ring(4), steps=6, eval_every=3, metrics=["upper"], **options)


def test_a_progress_bar_in_a_notebook(monkeypatch, capsys):
    seen = notebook(monkeypatch)
    solve()
    assert [Checked(data["text/html"]).tags for data, _ in seen] == [["div", "progress"]] * 4 and all(
        r for _, r in seen
    )
    assert "ed" in seen[0][0]["text/plain"] and "compiling" in seen[0][0]["text/html"]
    values = [dict(Checked(data["text/html"]).attributes)["value"] for data, _ in seen]
    assert values == ["0", "0", "3", "6"] and "upper" in seen[-1][0]["text/html"]
    seen.clear()
    solve(progress=False)
    assert not seen and capsys.readouterr() == ("", "")


def test_ipython_in_a_terminal_has_no_html(monkeypatch):
    seen = notebook(monkeypatch, kernel=False)
    solve()
    assert not seen


def test_catalogue_search_advice_and_checks():
    ring = db.graphs.ring(4)
    tuned = db.tune(PROBLEM, db.ed(alpha=0.1), ring, steps=3, search={"alpha": [0.1, 0.2]})
    found = [db.CATALOG, tuned, db.theory.advise(8), PROBLEM.check()]
    for one, word in zip(found, ("sparkle-ed", "alpha", "why", "finite differences"), strict=True):
        page = Checked(one._repr_html_())
        assert page.tags[0] == "table" and any(word in text for text in page.texts)
    assert "sparkle-ed" in repr(db.CATALOG)


def test_a_graph_plots_itself_as_a_result_does():
    assert type(db.graphs.ring(5).plot()) is type(db.graphs.ring(5).draw())
