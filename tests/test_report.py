"""The report: pages that stand alone, say what was found, and are well-formed."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

from decibel.cli import app
from decibel.report import draw, figures, page, write
from decibel.studies import find
from decibel.studies.reproduce import Results, _settings, _write
from decibel.studies.runs import Runs, place
from decibel.trace import Trace

SHOWN = ("sparkle/linear-regression", "sparkle/topology-per-level", "interact/auprc", "systems/gossip-vs-allreduce")
VOID = {"meta", "input", "br", "link", "img", "hr"}
FETCHING = ("src", "href", "data", "action", "poster", "srcset", "xlink:href", "background")


class Reader(HTMLParser):
    """Open tags must be closed in order; every address is collected."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in FETCHING and value]
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()


def leave_results(name: str, folder, *, stop: bool = False) -> None:
    """Made-up results in the form in which `reproduce` leaves them."""
    study = find(name)
    setup, found, rng = study.setup("smoke"), {}, np.random.default_rng(0)
    for number, arm in enumerate(study.arms(setup)):
        traces = []
        for seed in setup.seeds:
            steps = np.arange(0, 50, 5.0)
            curve = np.exp(-steps / 20) * (1 + 0.1 * rng.random())
            costs = {"samples": 3 * steps, "bytes": 100 * steps, "rounds": steps, "seconds": 0.1 * steps}
            columns = {column: curve for column in study.columns}
            stopped = "non-finite" if stop and number == 0 else None
            traces.append(Trace({"step": steps, **columns, **costs}, {"seed": seed, "stopped": stopped}))
        found[arm.key] = Runs(*arm.key, traces)
        found[arm.key].save(place(folder, study, arm, f"{number:08d}"))
    checks = [{"text": "a < b & c", "mean": 1.0, "margin": "inf", "spread": "nan", "threshold": 0.0, "side": "above"}]
    claims = [
        {"claim": claim.name, "text": claim.text, "verdict": verdict, "why": "since <i>", "checks": [checks[0] | {""
        "verdict": verdict}]}
        for claim, verdict in zip(study.claims, ("fails", "holds", "undecided", "holds"), strict=False)
    ]  # fmt: skip
    about = {
        "study": name, "size": "smoke", "command": f"decibel reproduce {name} --size smoke", "date": ""
        "2025-01-01T00:00:00",
        "device": "made up", "seconds": 1.0, "seeds": list(setup.seeds), "versions": {"decibel": "0"}, "claims": claims,
    }  # fmt: skip
    searched = {
        "SPARKLE-ED": {
            "rates": {"alpha": 0.1, "beta": 0.2},
            "search": {"metric": "upper", "score": 0.5, "budget": 16, "steps": 100, "seeds": [100], "note": "by f", ""
            "at_the_edge": [""
            "beta"]},
        }
    }  # fmt: skip
    _write(folder / name / "verdicts.json", about)
    _write(folder / name / "settings.json", _settings(setup, study.arms(setup), searched))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name in SHOWN:
        leave_results(name, folder, stop=name == "sparkle/linear-regression")
    out = tmp_path_factory.mktemp("report")
    return {path.name: path.read_text() for path in write(folder, out)}


def test_there_is_a_page_for_every_study_and_an_index(pages):
    assert set(pages) == {"index.html", *(f"{name.replace('/', '-')}.html" for name in SHOWN)}
    links = {address for address in Reader(pages["index.html"]).addresses}
    assert links == set(pages) - {"index.html"}


def test_pages_fetch_nothing_and_are_well_formed(pages):
    for name, text in pages.items():
        reader = Reader(text)
        assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text), name
        assert all(address.startswith("#") or address in pages for address in reader.addresses), name
        assert not {"script", "link", "img", "iframe", "object", "embed"} & set(reader.tags), name
        assert len(reader.ids) == len(set(reader.ids)), f"{name} uses an id twice"


def test_a_page_says_what_was_found_and_how(pages):
    text = pages["sparkle-linear-regression.html"]
    for words in (
        "does not hold", "C1", "C2", "since &lt;i&gt;", "a &lt; b &amp; c", "made up", "2025-01-01",
        "decibel reproduce sparkle/linear-regression --size smoke", "SPARKLE-GT", "diverged", "untuned guess",
        "at the edge of the values tried: beta", "iterations", "samples per node", "bytes sent per node", "seconds",
        "adjusted ring", "ρ =", "smoke",
    ):  # fmt: skip
        assert words in text, words
    assert text.count("<svg") >= 8 and "currentColor" in text
    assert "prefers-color-scheme: dark" in text and "@media print" in text and "width=device-width" in text


def test_pages_are_small(pages):
    assert max(len(text) for text in pages.values()) < 1_500_000


def test_the_figure_beside_the_results(tmp_path):
    leave_results("dsoba/logistic", tmp_path)
    text = draw("dsoba/logistic", tmp_path).read_text()
    assert text.startswith("<?xml") and "D-SOBA" in text and "severe" in text


def test_the_band_reaches_from_least_to_most():
    traces = [Trace({"step": [0, 1, 2], "loss": [3.0, 2.0, k]}, {"seed": k, "stopped": None}) for k in (0, 1, 2)]
    cost, low, mean, high = figures._band(Runs("", "", traces), "loss", "step")
    assert cost.tolist() == [0, 1, 2] and low[-1] == 0 and mean[-1] == 1 and high[-1] == 2


def test_labels_keep_their_colour_and_are_told_apart():
    styles = figures.style_of([f"method {i}" for i in range(9)])
    assert len({colour for colour, _ in styles.values()}) == 9
    assert all(colour in page.legend(styles) for colour, _ in styles.values())


def test_nothing_to_report_is_a_sentence(tmp_path):
    answer = CliRunner().invoke(app, ["report", "--results", str(tmp_path), "--out", str(tmp_path / "out")])
    assert answer.exit_code == 1 and "holds no results" in answer.output and "Traceback" not in answer.output


def test_results_by_their_key():
    study = find("gossip/mdp")
    results = Results(dataclasses.replace(study.setup("smoke")), {})
    with pytest.raises(KeyError, match="has no arm"):
        results["no case", "no label"]
    assert json.dumps(dataclasses.asdict(results.setup))
