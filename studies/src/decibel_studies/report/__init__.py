"""Pages and figures from the results of studies."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from decibel import Levels, metrics

from .. import NAMES as STUDIES
from .. import find
from ..files import write_file
from ..judging.registration import Registration
from ..judging.registration import find as find_registration
from ..judging.results import Runs, S
from ..testbed.reproduce import Chosen, Loaded, Verdicts, load
from ..testbed.step_sizes import Settings
from ..testbed.study import Arm, Study
from ..type_aliases import JSON, Topology
from . import figures, page
from .index import ClaimRow, claims_table

AGAINST = ("step", "samples", "rounds", "bytes", "seconds")
CHECKS = (
    "A check is a mean over seeds of paired differences, pooled over cases; its margin is half the interval in which "
    "the mean lies (Student’s t, each end at 95 %; “trimmed” leaves out that share of the seeds at "
    "either end). P-values are corrected by Holm’s method for all checks of a claim; the kth look at it spends "
    "1/2ᵏ of the 5 %. A test holds where every check does, and does not hold where one is on the wrong side. "
    "Equivalent: no check fails, and those that do not hold are level, within the registered band, by two one-sided "
    "tests. Otherwise it is undecided."
)
LINES = f"{figures.BANDS} Seconds are those of all seeds run together, without compiling."
MOST_EDITS = 3  # of a registration, that are named
RATES = ("alpha", "beta", "gamma", "theta", "relax", "tau")


def write(results: Path, out: Path) -> list[Path]:
    """A page for every study with results in the folder, and an index."""
    there = [name for name in STUDIES if (results / name / "verdicts.json").exists()]
    if not there:
        raise ValueError(f"{results} holds no results: run `decibel reproduce NAME --out {results}` first.")
    pages: list[Path] = []
    rows: list[ClaimRow] = []
    for name in there:
        study = find(name)
        loaded = load(study, results)
        path = out / f"{name.replace('/', '-')}.html"
        write_file(path, page.page(f"{study.title} · Decibel", _study(study, loaded)))
        pages.append(path)
        rows += _rows(study, loaded.verdicts, path.name)
    first = out / "index.html"
    write_file(first, page.page("Studies · Decibel", claims_table(rows)))
    return [first, *pages]


def draw(name: str, results: Path, path: Path | None = None) -> Path:
    """Draws the first column of a study, all cases, into a file: `figure.svg` beside the results if none is named."""
    study = find(name)
    runs = load(study, results).runs
    figure = figures.overview(_cases(runs), study.columns[0], study.against, figures.style_of(_labels(runs)))
    return write_file(path or results / name / "figure.svg", figures.svg(figure, name, standalone=True))


def _study(study: Study[S], loaded: Loaded) -> str:
    verdicts = loaded.verdicts
    runs = loaded.runs
    styles = figures.style_of(_labels(runs))
    parts = [
        f'<p><a href="index.html">All studies</a></p><h1>{escape(study.title)}</h1>',
        f'<p class="soft">{escape(study.name)} · {escape(study.paper)}</p><p>{escape(study.about)}</p>',
        f"<p><strong>Differs from the paper.</strong> {escape(study.differs)}</p>" if study.differs else "",
        "<h2>Claims</h2>",
        *_smoke(verdicts),
        *_registered(study, verdicts),
        *(page.claim(verdict) for verdict in verdicts["claims"]),
        f'<p class="soft">{CHECKS}</p>',
        "<h2>Curves</h2>",
        page.legend(styles),
        *(_curves(study, column, runs, styles, full=i == 0) for i, column in enumerate(study.columns)),
        f'<p class="soft">{LINES}</p>',
        f'<h2>At the end</h2><div class="wide">{page.ends(runs, study.columns)}</div>',
        _graphs(study, verdicts["size"]),
        f"<h2>Settings</h2><details><summary>Set-up</summary>{page.plain(loaded.settings['setup'])}</details>",
        f'<details open><summary>Methods</summary><div class="wide">{_methods(loaded.settings)}</div></details>',
        _searches(loaded.settings["searched"]),
        f"<h2>How it was made</h2>{page.plain(_provenance(verdicts))}",
    ]
    return "\n".join(parts)


def _smoke(verdicts: Verdicts) -> list[str]:
    if verdicts["size"] == "full":
        return []
    only_runs = verdicts["size"] == "smoke"
    words = "only shows that the study runs" if only_runs else "is smaller than the paper’s experiment"
    return [f'<p class="soft">These are results of size “{escape(str(verdicts["size"]))}”, which {words}.</p>']


def _curves(study: Study[S], column: str, runs: list[Runs], styles: Mapping[str, figures.Style], *, full: bool) -> str:
    """The first column against every cost, the others against one."""
    cases = {name: arms for name, arms in _cases(runs).items() if any(column in run.traces[0] for run in arms)}
    first = (study.against, *(name for name in AGAINST if name != study.against))
    axes = [name for name in first if any(name in run.traces[0] for run in runs)]
    sheets: dict[str, list[str]] = {}
    for against in axes if full else axes[:1]:
        sheets[metrics.LABELS[against]] = [
            figures.svg(figures.panel(arms, column, against, styles, title=case), f"{column}/{against}/{case}")
            for case, arms in cases.items()
        ]
    if not cases:
        return ""
    return f"<h3>{escape(figures.label_of(column))}</h3>" + page.tabs(f"tab-{column}", sheets)


def _graphs(study: Study[S], size: str) -> str:
    networks: dict[str, Topology] = {}
    for arm in study.arms(study.setup(size)):
        if isinstance(arm, Arm):
            levels = arm.graph if isinstance(arm.graph, Levels) else Levels(x=arm.graph)
            for graph in (levels.x, levels.y, levels.z):
                networks.setdefault(f"{graph.name}, {graph.nodes} nodes", graph)
    if not networks:
        return ""
    drawn = "".join(
        f"<figure>{figures.svg(figures.graph(graph), name)}<figcaption>{escape(name)}<br>ρ = {graph.rho:.3f}"
        "</figcaption></figure>"
        for name, graph in networks.items()
    )
    return f'<h2>Graphs</h2><div class="graphs">{drawn}</div>'


def _methods(settings: Chosen) -> str:
    rows: list[list[str]] = []
    for arm in settings["arms"]:
        method = arm.get("method", {})
        rates = ", ".join(f"{name} {_rate(method[name])}" for name in RATES if method.get(name) is not None)
        graph = ", ".join(dict.fromkeys(arm.get("graph", {}).values()))
        steps = f"{arm['steps']:,}" if "steps" in arm else ""
        cells = (arm["case"], arm["label"], method.get("name", ""), rates, arm["step_sizes"], graph, steps)
        rows.append([escape(str(cell)) for cell in cells])
    return page.table(["case", "run", "method", "step sizes", "which are", "graph", "iterations"], rows, numbers=(6,))


def _rate(value: JSON) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "falling"


def _searches(settings: Settings) -> str:
    if not settings:
        return ""
    rows: list[list[str]] = []
    for label, searched in settings.items():
        search = searched["search"]
        rates = ", ".join(f"{name} {value:.4g}" for name, value in searched["rates"].items())
        edge = f"; at the edge of the values tried: {', '.join(search['at_the_edge'])}" if search["at_the_edge"] else ""
        seeds = ", ".join(map(str, search["seeds"]))
        about = f"{search['budget']} candidates, {search['steps']:,} iterations, seeds {seeds}"
        rows.append(
            [escape(text) for text in (label, rates, f"{search['metric']} {search['score']:.4g}", about + edge)]
        )
    note = next(iter(settings.values()))["search"]["note"]
    table = page.table(["run", "best", "score", "search"], rows)
    return f'<details><summary>Searches: {escape(note)}</summary><div class="wide">{table}</div></details>'


def _provenance(verdicts: Verdicts) -> dict[str, JSON]:
    versions = ", ".join(f"{name} {version}" for name, version in verdicts["versions"].items())
    return {
        "command": verdicts["command"],
        "date": verdicts["date"],
        "hardware": verdicts["device"],
        "seconds": verdicts["seconds"],
        "seeds": verdicts["seeds"],
        "versions": versions,
    }


def _rows(study: Study[S], verdicts: Verdicts, address: str) -> list[ClaimRow]:
    return [
        ClaimRow(claim, study.name, address, len(verdicts["seeds"]), verdicts["fresh"]) for claim in verdicts["claims"]
    ]


def _registered(study: Study[S], verdicts: Verdicts) -> list[str]:
    """What was fixed before the runs, and since when."""
    registration = find_registration(study.name)
    if registration is None or verdicts["registered"] is None:
        return []
    seeds = (
        "seeds that were not looked at before" if verdicts["fresh"] else "old seeds, seen before they were registered"
    )
    when = f"Registered {_utc(verdicts['registered'])}{_since(registration, verdicts['registered'])}"
    stated = [
        [escape(name), escape(claim["whose"]), escape(claim["statistic"]), page.number(claim["tolerance"])]
        for name, claim in registration.claims.items()
    ]
    table = page.table(["claim", "whose", "statistic", "tolerance"], stated)
    return [
        f'<p class="soft">{escape(when)}; {seeds}. {escape(verdicts["note"])}</p>'
        f'<details><summary>Statistics and tolerances</summary><div class="wide">{table}</div></details>'
    ]


def _since(registration: Registration, date: str) -> str:
    """When a registration of that date was committed, and whether its file was edited later."""
    if date != registration.date:
        return f"; its file has another date now, {_utc(registration.date)}"
    commits = registration.commits()
    if commits is None:
        return ""
    if commits.first is None:
        return ", not committed yet"
    first = _utc(commits.first)
    later = [_utc(edited) for edited in commits.later]
    shown = [edited.removeprefix(first[:11]) for edited in later]  # of the same day: the time
    if len(later) > MOST_EDITS:
        shown = [f"{len(later)} times, the last {shown[-1]}"]
    return f", committed {first}" + (f"; edited later: {', '.join(shown)}" if shown else "")


def _utc(date: str) -> str:
    """To the minute; what has no time zone stays as it is."""
    try:
        read = datetime.fromisoformat(date)
    except ValueError:
        return date[:16]
    return date[:16] if read.tzinfo is None else read.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _cases(runs: list[Runs]) -> dict[str, list[Runs]]:
    cases: dict[str, list[Runs]] = {}
    for run in runs:
        cases.setdefault(run.case, []).append(run)
    return cases


def _labels(runs: list[Runs]) -> list[str]:
    return list(dict.fromkeys(run.label for run in runs))
