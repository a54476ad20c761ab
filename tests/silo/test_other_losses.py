"""Two sites whose losses differ: neither does a step, both say which loss, and the one that was refused notes it."""

from __future__ import annotations

import json
import threading

import pytest
from quadratics import random_quadratic
from silo_sites import Folders, ring
from silo_talking import wait_until

import decibel as db


class Kept(db.Silo):
    """Remembers its run."""

    runs = {}  # noqa: RUF012

    def start(self, *arguments, **options):
        self.runs[self.name] = super().start(*arguments, **options)
        return self.runs[self.name]


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 1.0 + 1e-12], ids=["the same", "another"])
def test_sites_compare_their_losses(tmp_path, factor):
    folders, problem, said, results = Folders(tmp_path, ring(2)), random_quadratic(2).single(), [], {}

    def run(name):
        given = problem.upper if name == "site-0" else lambda x, batch: factor * (problem.upper(x, batch) / factor)
        if factor == 1.0:
            given = lambda x, batch: problem.upper(x, batch)  # noqa: E731
        own = db.Problem(given, upper_data=problem.upper_data, x0=problem.x0)
        engine = Kept(folders.home(name), name, say=said.append)
        try:
            results[name] = db.solve(own, db.ed(alpha=0.1), engine.graph, steps=10, engine=engine, metrics=[]).step
        except RuntimeError as error:
            results[name] = str(error)

    threads = [threading.Thread(target=run, args=(site.name,)) for site in folders.federation.sites]
    for thread in threads:
        thread.start()
    note = folders.home("site-1") / "status.json"
    if factor != 1.0:
        wait_until(lambda: note.exists() and json.loads(note.read_text())["state"] == "refused", 60)
        assert "have different upper losses" in json.loads(note.read_text())["detail"]
        for one in Kept.runs.values():
            one.site.abort_waiting()
    for thread in threads:
        thread.join(120)
    expected = 10 if factor == 1.0 else "the site was closed."
    assert results == {"site-0": expected, "site-1": expected}
    assert any("different upper losses" in line for line in said) == (factor != 1.0)
