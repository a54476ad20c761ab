"""The report: pages that stand alone, say what was found, and are well-formed."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import browser
import numpy as np
import pytest
from matplotlib.text import Text
from typer.testing import CliRunner

from decibel import Trace
from decibel_studies import find
from decibel_studies.__main__ import app
from decibel_studies.commands import newest_results
from decibel_studies.judging.registration import Commits
from decibel_studies.report import _curves, _searches, _since, _smoke, draw, figures, page, write
from decibel_studies.testbed.runs import Runs

RESULTS = Path(__file__).parents[1] / "results"
TWO_LEVELS = "sparkle/topology-per-level"
SHOWN = (TWO_LEVELS, "apps/mixtures-network")
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


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Of committed results."""
    folder = tmp_path_factory.mktemp("results")
    for name in SHOWN:
        shutil.copytree(RESULTS / name, folder / name)
    return {path.name: path.read_text() for path in write(folder, tmp_path_factory.mktemp("report"))}


def test_pages_fetch_nothing_and_are_well_formed(pages):
    assert set(pages) == {"index.html", *(f"{name.replace('/', '-')}.html" for name in SHOWN)}
    assert set(Reader(pages["index.html"]).addresses) == set(pages) - {"index.html"}
    for name, text in pages.items():
        reader = Reader(text)
        assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text), name
        assert all(address.startswith("#") or address in pages for address in reader.addresses), name
        assert not {"script", "link", "img", "iframe", "object", "embed"} & set(reader.tags), name
        assert len(reader.ids) == len(set(reader.ids)), f"{name} uses an id twice"
        assert len(text) < 1_500_000


def test_a_page_and_the_index_say_what_was_found_and_how(pages):
    text, index = pages["sparkle-topology-per-level.html"], pages["index.html"]
    saved = json.loads((RESULTS / TWO_LEVELS / "verdicts.json").read_text())
    for claim in saved["claims"]:
        check, answer = claim["checks"][0], claim["survives"]["answer"]
        assert all(escape(part) in text for part in (claim["text"], claim["why"], claim["whose"], check["text"]))
        for shown in (text, index):
            assert all(escape(part) in shown for part in (claim["says"], claim["finding"], f">{answer}<"[1:-1]))
    for words in (
        saved["device"],
        saved["date"],
        saved["command"],
        "Registered 2026-",
        "ρ =",
        "searched",
        "iterations",
    ):
        assert escape(words) in text, words
    assert f'<span class="seeds">{len(saved["seeds"])}</span>' in index
    assert text.count("<svg") >= 8 and "currentColor" in text
    assert "prefers-color-scheme: dark" in text and "@media print" in text and "width=device-width" in text
    assert _smoke({"size": "full"}) == [] and "is smaller than the paper’s experiment." in _smoke({"size": "small"})[0]
    assert "only shows that the study runs" in _smoke({"size": "smoke"})[0]


def test_where_the_best_lies_at_an_edge_and_where_runs_diverged_is_said():
    search = {
        "metric": "f",
        "score": 0.5,
        "budget": 16,
        "steps": 100,
        "seeds": [100],
        "note": "",
        "at_the_edge": ["beta"],
    }
    assert "at the edge of the values tried: beta" in _searches({"ED": {"rates": {"alpha": 0.1}, "search": search}})
    assert "1 of 2 diverged" in page.ends([mixed_runs()], ["loss"])


def mixed_runs() -> Runs:
    """A run that ended and one that diverged at once."""
    steps = np.arange(10.0)
    whole, cut = ({"step": steps[:rows], "loss": value * np.ones(rows)} for rows, value in ((10, 1.0), (1, 9.0)))
    return Runs("", "a", [Trace(whole, {"stopped": None}), Trace(cut, {"stopped": "non-finite"})])


def test_the_band_holds_the_middle_half_of_the_runs_that_ended():
    cost, *band = figures._band(mixed_runs(), "loss", "step")
    assert len(cost) == 10 and (np.array(band) == 1).all(), "both quartiles and the mean"
    alone = Runs("", "a", mixed_runs().traces[1:])
    assert len(figures._band(alone, "loss", "step")[0]) == 1
    traces = [Trace({"step": [0, 1, 2], "loss": [3.0, 2.0, k]}, {"seed": k, "stopped": None}) for k in (0, 1, 2, 3, 9)]
    cost, *band = figures._band(Runs("", "", traces), "loss", "step")
    assert cost.tolist() == [0, 1, 2] and [curve[-1] for curve in band] == [1, 3, 3]


def test_what_sends_nothing_is_a_level_and_no_line_at_zero():
    traces = [Trace({"bytes": [0, 0], "loss": [3.0, 1.5]}, {"seed": 0, "stopped": None})]
    (line,) = figures.panel([Runs("", "a", traces)], "loss", "bytes", figures.style_of(["a"])).axes[0].lines
    assert list(line.get_ydata()) == [1.5, 1.5] and line.get_label() == "a (at its end)"


def test_every_text_of_a_figure_is_at_least_nine_points_on_a_page():
    for cases in (1, 3):
        runs = [Runs("case", name, [Trace({"step": [0, 1], "upper": [1.0, 0.5]})], {}) for name in ("a", "b")]
        drawn = figures.overview(dict.fromkeys("xyz"[:cases], runs), "upper", "step", figures.style_of(["a", "b"]))
        assert drawn.get_figwidth() == 7.5, "shown at 720 pixels, so that its points are the page's"
        assert all(text.get_fontsize() >= 9 for text in drawn.findobj(Text) if text.get_text())


def test_when_a_registration_was_committed_and_edited():
    date = "2025-01-01T11:20:00+00:00"

    def at(*commits):
        return _since(SimpleNamespace(date=date, commits=lambda: Commits(*commits)), date)

    hours = [f"2025-01-01T{hour}:47:30+02:00" for hour in (14, 15, 16, 17)]
    assert at(date) == ", committed 2025-01-01 11:20 UTC" and at(None) == ", not committed yet"
    assert at(date, ("2025-01-02T00:10:00+00:00",)).endswith("edited later: 2025-01-02 00:10 UTC")
    assert at(date, tuple(hours)).endswith("; edited later: 4 times, the last 15:47 UTC")
    assert _since(SimpleNamespace(date=date), "2024-01-01") == "; its file has another date now, 2025-01-01 11:20 UTC"


TABS = ["iterations", "samples per node", "communication rounds", "bytes sent per node", "seconds"]


def tabs(text: str) -> list[str]:
    return re.findall(r"<label for=[^>]+>([^<]+)</label>", text)


def test_there_is_a_tab_for_every_cost_that_runs_have(pages):
    assert tabs(pages["sparkle-topology-per-level.html"]) == TABS
    for number in range(1, len(TABS) + 1):
        rule = f"input:nth-of-type({number}):checked ~ .panels:nth-of-type({number}) {{ display: grid }}"
        assert rule in page.STYLE, "no sheet would show"
    study = find(TWO_LEVELS)
    trace = Trace({"step": [0, 1], "seconds": [0.0, 1.0], study.columns[0]: [1.0, 0.5]}, {"seed": 0, "stopped": None})
    made = _curves(study, study.columns[0], [Runs("", "a", [trace])], figures.style_of(["a"]), full=True)
    assert tabs(made) == ["iterations", "seconds"]


SCRIPT = "</title><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=alert(1) x='"


def test_results_of_others_run_no_script(tmp_path):
    """Every text in every file that a page is made of is hostile."""
    name = SHOWN[1]
    shutil.copytree(RESULTS / name, tmp_path / name)

    def hostile(value, kept=()):
        if isinstance(value, dict):
            return {key: part if key in kept else hostile(part, kept) for key, part in value.items()}
        if isinstance(value, list):
            return [hostile(part, kept) for part in value]
        return value + SCRIPT if isinstance(value, str) else value

    def spoil(file, kept=()):
        content = json.loads((RESULTS / name / file).read_text())
        (tmp_path / name / file).write_text(json.dumps(hostile(content, kept)))

    spoil("settings.json")
    spoil("verdicts.json", ("verdict", "size", "answer"))
    for path in (tmp_path / name / "runs").glob("*.npz"):
        runs = Runs.load(path)
        Runs(runs.case + SCRIPT, runs.label + SCRIPT, runs.traces, runs.made).save(path)
    for made in write(tmp_path, tmp_path / "out"):
        text, reader = made.read_text(), Reader(made.read_text())
        assert not {"script", "img"} & set(reader.tags) and "default-src 'none'" in text
        assert not any("onerror" in key or "onload" in key for key in reader.attributes)
        assert "&lt;script&gt;" in text
    shutil.rmtree(tmp_path / name / "runs")  # what is refused needs no curves
    for key in ("verdict", "size", "answer"):
        spoil("verdicts.json", {"verdict", "size", "answer"} - {key})
        with pytest.raises((KeyError, ValueError)):
            write(tmp_path, tmp_path / "out")


def test_the_figure_beside_the_results(tmp_path):
    shutil.copytree(RESULTS / TWO_LEVELS, tmp_path / TWO_LEVELS)
    text = draw(TWO_LEVELS, tmp_path).read_text()
    assert text.startswith("<?xml") and "x sparse" in text


def test_a_legend_of_long_names_fits_the_figure():
    names = [f"a method with a long name, and its settings {number}" for number in range(12)]
    runs = [Runs("case", name, [Trace({"step": [0, 1], "upper": [1.0, 0.5]})], {}) for name in names]
    drawn = figures.overview({"case": runs}, "upper", "step", figures.style_of(names))
    (legend,) = drawn.legends
    assert legend.get_window_extent().width <= drawn.bbox.width


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
            opened.goto((tmp_path / "sparkle-topology-per-level.html").as_uri())
            shown = "[...document.querySelectorAll('.tabs > .panels')].map((sheet) => sheet.checkVisibility())"
            assert opened.evaluate(shown) == [True, False, False, False, False]
            opened.get_by_text("bytes sent per node", exact=True).first.click()
            assert opened.evaluate(shown) == [False, False, False, True, False]
            closed = (
                "document.querySelector('details:not([open]) table').checkVisibility({contentVisibilityAuto: true})"
            )
            tall = "document.querySelector('details:not([open]) table').getBoundingClientRect().height"
            assert not opened.evaluate(closed)
            opened.emulate_media(media="print")
            assert opened.evaluate(closed) and opened.evaluate(tall) > 20 and all(opened.evaluate(shown))


def test_labels_of_axes_are_few_and_not_rounded():
    """Places in an SVG are, and 0.15 read as 0.1 would be a wrong number."""
    traces = [Trace({"step": [0, 4e4], "loss": [0.1234, 0.1267]}, {"seed": 0, "stopped": None})]
    figure = figures.panel([Runs("", "a", traces)], "loss", "step", figures.style_of(["a"]))
    text, axes = figures.svg(figure, "a"), figure.axes[0]
    low, high = axes.get_ylim()
    labels = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    shown = [label.get_text() for place, label in labels if low <= place <= high]
    assert len(set(shown)) == len(shown) > 2 and all(f">{label}</text>" in text for label in shown)
    across = [label.get_text() for label in axes.get_xticklabels()]
    assert len(across) <= 8 and "20k" in across


def test_seeds_are_names_and_other_numbers_are_counts():
    text = page.plain({"seeds": [7000, 7001], "steps": 2000, "weights": [1000, None]})
    assert ">7000, 7001<" in text and ">2,000<" in text and ">1,000, –<" in text
