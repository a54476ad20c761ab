"""Figures that a notebook shows by itself are matplotlib's in every other respect."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import figure

import decibel as db
from decibel.results._plots import plot_traces

PNG = b"\x89PNG\r\n\x1a\n"
DRAWN = {
    "result.plot": lambda: db.solve(
        db.Problem(lambda x, batch: ((x - batch) ** 2).mean(), upper_data=np.ones((3, 2, 1)), x0=np.zeros(1)),
        db.dsgd(alpha=0.1),
        db.graphs.ring(3),
        steps=3,
    ).plot(),
    "graph.draw": lambda: db.graphs.ring(5).draw(),
    "sequence.draw": lambda: db.graphs.one_peer_exponential(4).draw(),
    "partition.draw": lambda: db.tasks.partition.iid([0, 1, 0, 1], 2).draw(),
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_is_a_figure_with_a_picture(name):
    drawn = DRAWN[name]()
    assert isinstance(drawn, figure.Figure) and drawn._repr_png_().startswith(PNG)


@pytest.mark.parametrize("end, label", [(4_000, "4000"), (4_000_000, "4M")])
def test_large_costs_have_short_labels(end, label):
    trace = db.Trace({"step": [0, 1], "bytes": [0, end], "upper": [2.0, 1.0]})
    axis = plot_traces({"one": trace}, "upper", against="bytes").axes[0].xaxis
    assert axis.get_major_formatter().format_ticks([0, end])[-1] == label


def test_a_figure_is_pickled():
    again = pickle.loads(pickle.dumps(DRAWN["graph.draw"]()))
    assert again._repr_png_().startswith(PNG) and len(again.axes) == 1


def test_axes_of_a_users_own_keep_their_figure():
    own = figure.Figure()
    assert db.graphs.ring(5).draw(own.add_subplot()) is own


SHELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import select_figure_formats
import decibel as db

shell = InteractiveShell.instance()
shell.display_formatter.active_types = list(shell.display_formatter.formatters)

def shown():
    data, _ = shell.display_formatter.format(db.graphs.ring(5).draw())
    return sorted(data)

assert shown() == ["image/png", "text/plain"], shown()
assert "matplotlib.pyplot" not in sys.modules
import matplotlib.pyplot
select_figure_formats(shell, {"png"})  # as the inline backend does
assert shown() == ["image/png", "text/plain"], shown()
"""


@pytest.mark.slow
def test_a_notebook_has_one_picture_with_pyplot_and_without():
    pytest.importorskip("IPython", reason='needs ipykernel: pip install "decibel-opt[test]"')
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SHELL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
