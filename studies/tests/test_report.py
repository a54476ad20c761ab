"""The report: pages that stand alone, say what was found, and are well-formed."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import browser
import numpy as np
import pytest
from typer.testing import CliRunner

from decibel import Trace
from decibel_studies import NAMES, find
from decibel_studies.__main__ import app
from decibel_studies.commands import newest_results
from decibel_studies.judging.registration import Commits
from decibel_studies.report import _curves, _rows, _since, draw, figures, page, write
from decibel_studies.report.index import claims_table
from decibel_studies.testbed.reproduce import Results, _settings, _write
from decibel_studies.testbed.runs import Runs, place

RESULTS = Path(__file__).parents[1] / "results"
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
        self.attributes: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
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
    setup = study.setup("smoke")
    found = {}
    rng = np.random.default_rng(0)
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
    checks = [
        {
            "text": "a < b & c",
            "mean": 1.0,
            "margin": "inf",
            "spread": "nan",
            "low": 0.0,
            "high": "inf",
            "level": 0.1,
            "values": [1.0, "inf"],
            "p": {"holds": 0.01, "fails": 1.0, "level": 0.2},
            "parts": [{"text": f"part <{i}>", "mean": 1.0, "margin": 0.1} for i in range(2)],
        }
    ]
    claims = [
        {
            "claim": claim.name,
            "text": claim.text,
            "whose": "ours & theirs",
            "verdict": verdict,
            "says": claim.says,
            "finding": "what <was> found",
            "why": "since <i>",
            "checks": [checks[0] | {"verdict": verdict}],
            "reproduced": {"answer": "cannot tell", "asks": "nothing <", "checks": []},
            "survives": {"answer": "partly", "asks": "more <", "checks": [checks[0] | {"verdict": verdict}]},
        }
        for claim, verdict in zip(study.claims, ("fails", "equivalent", "undecided", "holds"), strict=False)
    ]
    about = {
        "study": name,
        "size": "smoke",
        "command": f"decibel reproduce {name} --size smoke",
        "date": "2025-01-01T00:00:00",
        "device": "made up",
        "seconds": 1.0,
        "seeds": list(setup.seeds),
        "registered": "2025-01-01T00:00:00",
        "fresh": True,
        "note": "few <seeds>",
        "versions": {"decibel": "0"},
        "claims": claims,
    }
    searched = {
        "SPARKLE-ED": {
            "rates": {"alpha": 0.1, "beta": 0.2},
            "search": {
                "metric": "upper",
                "score": 0.5,
                "budget": 16,
                "steps": 100,
                "seeds": [100],
                "note": "by f",
                "at_the_edge": ["beta"],
            },
        }
    }
    _write(folder / name / "verdicts.json", about)
    _write(folder / name / "settings.json", _settings(setup, study.arms(setup), searched))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name in SHOWN:
        leave_results(name, folder, stop=name == "sparkle/linear-regression")
    out = tmp_path_factory.mktemp("report")
    return {path.name: path.read_text() for path in write(folder, out)}


def test_a_run_that_diverged_does_not_shorten_the_curve_of_others():
    steps = np.arange(10.0)
    whole, cut = ({"step": steps[:rows], "loss": value * np.ones(rows)} for rows, value in ((10, 1.0), (1, 9.0)))
    mixed = Runs("", "a", [Trace(whole, {"stopped": None}), Trace(cut, {"stopped": "non-finite"})])
    cost, *band = figures._band(mixed, "loss", "step")
    assert len(cost) == 10 and (np.array(band) == 1).all(), "the least, the mean and the most"
    alone = Runs("", "a", [Trace(cut, {"stopped": "non-finite"})])
    assert len(figures._band(alone, "loss", "step")[0]) == 1


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
        "does not hold",
        "C1",
        "C2",
        "since &lt;i&gt;",
        "a &lt; b &amp; c",
        "made up",
        "2025-01-01",
        "decibel reproduce sparkle/linear-regression --size smoke",
        "SPARKLE-GT",
        "diverged",
        "untuned guess",
        "at the edge of the values tried: beta",
        "iterations",
        "samples per node",
        "bytes sent per node",
        "seconds",
        "adjusted ring",
        "ρ =",
        "smoke",
        "equivalent",
        "ours &amp; theirs",
        "part &lt;1&gt;",
        "Registered 2025-01-01",
        "few &lt;seeds&gt;",
        "level within 0.1",
    ):
        assert words in text, words
    assert text.count("<svg") >= 8 and "currentColor" in text
    assert "prefers-color-scheme: dark" in text and "@media print" in text and "width=device-width" in text


def test_the_index_has_a_row_for_every_claim(pages):
    text, claims = pages["index.html"], [claim for name in SHOWN for claim in find(name).claims]
    assert all(
        f"<strong>{claim.name}</strong>" in text and escape(claim.says or claim.text) in text for claim in claims
    )
    for words in ("what &lt;was&gt; found", ">partly</span>", ">cannot tell</span>", '<span class="seeds">2</span>'):
        assert words in text, words


def visible(text: str) -> list[str]:
    """The words that a reader of a page sees."""
    body = re.sub(r"<svg.*?</svg>", " ", text.split("<main>")[-1], flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", " ", body)).split()


def test_the_index_is_read_in_five_minutes():
    saved = [(find(path), json.loads((RESULTS / path / "verdicts.json").read_text())) for path in NAMES]
    rows = [row for study, verdicts in saved for row in _rows(study, verdicts, f"{study.name}.html")]
    words = visible(claims_table(rows))
    assert len(rows) >= 40 and len(words) <= 60 * len(rows), f"{len(words)} words"


def test_when_a_registration_was_committed_and_edited():
    date = "2025-01-01T11:20:00+00:00"

    def at(*commits):
        return _since(SimpleNamespace(date=date, commits=lambda: Commits(*commits)), date)

    hours = [f"2025-01-01T{hour}:47:30+02:00" for hour in (14, 15, 16, 17)]
    assert at(date) == ", committed 2025-01-01 11:20 UTC" and at(None) == ", not committed yet"
    assert at(date, tuple(hours[:1])) == ", committed 2025-01-01 11:20 UTC; edited later: 12:47 UTC"
    assert at(date, ("2025-01-02T00:10:00+00:00",)).endswith("edited later: 2025-01-02 00:10 UTC")
    assert at(date, tuple(hours)).endswith("; edited later: 4 times, the last 15:47 UTC")
    assert _since(SimpleNamespace(date=date), "2024-01-01") == "; its file has another date now, 2025-01-01 11:20 UTC"


TABS = ["iterations", "samples per node", "communication rounds", "bytes sent per node", "seconds"]


def tabs(text: str) -> list[str]:
    return re.findall(r"<label for=[^>]+>([^<]+)</label>", text)


def test_there_is_a_tab_for_every_cost_that_runs_have(pages):
    text = pages["interact-auprc.html"]
    assert tabs(text) == TABS and text.count(">communication rounds</text>") >= 1
    for number in range(1, len(TABS) + 1):
        rule = f"input:nth-of-type({number}):checked ~ .panels:nth-of-type({number}) {{ display: grid }}"
        assert rule in text, "no sheet would show"
    study = find("interact/auprc")
    trace = Trace({"step": [0, 1], "seconds": [0.0, 1.0], study.columns[0]: [1.0, 0.5]}, {"seed": 0, "stopped": None})
    made = _curves(study, study.columns[0], [Runs("", "a", [trace])], figures.style_of(["a"]), full=True)
    assert tabs(made) == ["iterations", "seconds"]


SCRIPT = "</title><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=alert(1) x='"


def test_results_of_others_run_no_script(tmp_path):
    """Every text in every file that a page is made of is hostile."""
    name = "sparkle/linear-regression"
    leave_results(name, tmp_path)

    def hostile(value, kept=()):
        if isinstance(value, dict):
            return {key: part if key in kept else hostile(part, kept) for key, part in value.items()}
        if isinstance(value, list):
            return [hostile(part, kept) for part in value]
        return value + SCRIPT if isinstance(value, str) else value

    for file, kept in (("verdicts.json", ("verdict", "size", "answer")), ("settings.json", ())):
        path = tmp_path / name / file
        path.write_text(json.dumps(hostile(json.loads(path.read_text()), kept)))
    for path in (tmp_path / name / "runs").glob("*.npz"):
        runs = Runs.load(path)
        Runs(runs.case + SCRIPT, runs.label + SCRIPT, runs.traces, runs.made).save(path)
    for made in write(tmp_path, tmp_path / "out"):
        text, reader = made.read_text(), Reader(made.read_text())
        assert not {"script", "img"} & set(reader.tags) and "default-src 'none'" in text
        assert not any("onerror" in key or "onload" in key for key in reader.attributes)
        assert "&lt;script&gt;" in text
    for key in ("verdict", "size", "answer"):
        leave_results(name, tmp_path)
        path = tmp_path / name / "verdicts.json"
        path.write_text(json.dumps(hostile(json.loads(path.read_text()), ({"verdict", "size", "answer"} - {key}))))
        with pytest.raises((KeyError, ValueError)):
            write(tmp_path, tmp_path / "out")


def test_pages_are_small(pages):
    assert max(len(text) for text in pages.values()) < 1_500_000


def test_the_figure_beside_the_results(tmp_path):
    leave_results("dsoba/logistic", tmp_path)
    text = draw("dsoba/logistic", tmp_path).read_text()
    assert text.startswith("<?xml") and "D-SOBA" in text and "severe" in text


def test_the_band_reaches_from_least_to_most():
    traces = [Trace({"step": [0, 1, 2], "loss": [3.0, 2.0, k]}, {"seed": k, "stopped": None}) for k in (0, 1, 2)]
    cost, *band = figures._band(Runs("", "", traces), "loss", "step")
    assert cost.tolist() == [0, 1, 2] and [curve[-1] for curve in band] == [0, 1, 2]


def test_labels_keep_their_colour_and_are_told_apart():
    styles = figures.style_of([f"method {i}" for i in range(9)])
    assert len({colour for colour, _ in styles.values()}) == 9
    assert all(colour in page.legend(styles) for colour, _ in styles.values())


def test_nothing_to_report_is_a_sentence(tmp_path):
    answer = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "out")])
    assert answer.exit_code == 1 and "holds no results" in answer.output and "Traceback" not in answer.output


def test_the_newest_results_are_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, ["report"])
    assert answer.exit_code == 1 and "decibel-results holds no results" in answer.output
    for age, size in ((100, "small"), (0, "full")):
        written = tmp_path / "decibel-results" / size / "gossip" / "mdp" / "verdicts.json"
        written.parent.mkdir(parents=True)
        written.write_text("{}")
        os.utime(written, (time.time() - age, time.time() - age))
    assert newest_results() == Path("decibel-results/full")


def test_results_by_their_key():
    study = find("gossip/mdp")
    results = Results(dataclasses.replace(study.setup("smoke")), {})
    with pytest.raises(KeyError, match="has no arm"):
        results["no case", "no label"]
    assert json.dumps(dataclasses.asdict(results.setup))


@pytest.mark.slow
def test_pages_in_a_browser(pages, tmp_path):
    """No page is wider than its window or has errors, one sheet of figures shows, and print opens what is closed."""
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    with browser.chromium() as chromium:
        for size in browser.SIZES:
            for scheme in browser.SCHEMES:
                for name in pages:
                    with browser.page(chromium, size, scheme) as opened:
                        opened.goto((tmp_path / name).as_uri())
                        assert browser.overflow(opened) == 0, f"{name} on a {size}"
        with browser.page(chromium, "desktop", "dark") as opened:
            opened.goto((tmp_path / "index.html").as_uri())
            for width in (320, 800, 1200, 1220):
                opened.set_viewport_size({"width": width, "height": 900})
                assert browser.overflow(opened) == 0, f"the index on {width} pixels"
            opened.goto((tmp_path / "sparkle-linear-regression.html").as_uri())
            shown = "[...document.querySelectorAll('.tabs > .panels')].map((sheet) => sheet.checkVisibility())"
            assert opened.evaluate(shown) == [True, False, False, False, False]
            opened.get_by_text("bytes sent per node", exact=True).first.click()
            assert opened.evaluate(shown) == [False, False, False, True, False]
            opened.get_by_text("seconds", exact=True).first.click()
            assert opened.evaluate(shown) == [False, False, False, False, True]
            closed = (
                "document.querySelector('details:not([open]) table').checkVisibility({contentVisibilityAuto: true})"
            )
            tall = "document.querySelector('details:not([open]) table').getBoundingClientRect().height"
            assert not opened.evaluate(closed)
            opened.emulate_media(media="print")
            assert opened.evaluate(closed) and opened.evaluate(tall) > 20 and all(opened.evaluate(shown))


def test_axes_of_panels_have_few_labels():
    traces = [Trace({"step": np.linspace(0, 4e4, 9), "loss": np.linspace(1, 2, 9)}, {"seed": 0, "stopped": None})]
    figure = figures.panel([Runs("", "a", traces)], "loss", "step", figures.style_of(["a"]))
    figure.canvas.draw()
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert len(labels) <= 8 and "20k" in labels


def test_labels_of_axes_are_not_rounded():
    """Places in an SVG are, and 0.15 read as 0.1 would be a wrong number."""
    traces = [Trace({"step": [0, 1], "loss": [0.1234, 0.1267]}, {"seed": 0, "stopped": None})]
    figure = figures.panel([Runs("", "a", traces)], "loss", "step", figures.style_of(["a"]))
    text = figures.svg(figure, "a")
    low, high = figure.axes[0].get_ylim()
    places = figure.axes[0].get_yticks()
    labels = zip(places, figure.axes[0].get_yticklabels(), strict=True)
    shown = [label.get_text() for place, label in labels if low <= place <= high]
    assert len(set(shown)) == len(shown) > 3 and all(f">{label}</text>" in text for label in shown)


def test_what_a_smaller_size_means_is_said_whole(pages):
    from decibel_studies.report import _smoke

    assert _smoke({"size": "full"}) == [] and "is smaller than the paper’s experiment." in _smoke({"size": "small"})[0]
    assert "only shows that the study runs" in pages["interact-auprc.html"]


def test_seeds_are_names_and_other_numbers_are_counts():
    text = page.plain({"seeds": [7000, 7001], "steps": 2000, "weights": [1000, None]})
    assert ">7000, 7001<" in text and ">2,000<" in text and ">1,000, –<" in text
