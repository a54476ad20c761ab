"""Benchmarks as tables, for a terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .contest import BY_HAND, OURS, PRODUCTS

Table = list[list[str]]  # rows of cells, the first of them headings
HELD = ("state, GB", "in addition, GB", "most, GB")


def of(content: dict[str, Any]) -> Table:
    return TABLES[content["benchmark"]](content)


def markdown(table: Table) -> str:
    head, *rows = table
    return "\n".join(
        ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(r) + " |" for r in rows)]
    )


def digits(number: float) -> str:
    """Three digits, and no power of ten for thousands."""
    return f"{float(f'{number:.3g}'):,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def _ratio(number: float) -> str:
    return f"{number:.2f}" if number < 10 else digits(number)


def step(content: dict[str, Any]) -> Table:
    head = ["case", "updates", "ours, µs", "by hand, µs", "÷ by hand", "÷ products", "state"]
    head += ["memory, ours", "memory, by hand"]
    return [head] + [
        [
            row["case"],
            row["updates"],
            *(digits(row["µs"][name]) for name in (OURS, BY_HAND)),
            *(f"{row['against'][name]:.2f}" for name in (BY_HAND, PRODUCTS)),
            f"{digits(row['state_bytes'] / 1e6)} MB",
            *(_ratio(row["memory"][name]) for name in (OURS, BY_HAND)),
        ]
        for row in content["rows"]
    ]


def torch(content: dict[str, Any]) -> Table:
    names = list(dict.fromkeys(name for row in content["rows"] for name in row["µs"]))

    def show(row: dict[str, Any], name: str) -> str:
        return digits(row["µs"][name]) if name in row["µs"] else "–"

    head = ["case", "updates", "precision", *(f"{name}, µs" for name in names)]
    return [head] + [
        [row["case"], row["updates"], row["dtype"], *(show(row, name) for name in names)] for row in content["rows"]
    ]


def network(content: dict[str, Any]) -> Table:
    """Milliseconds of a round of the longest vector that all kinds were measured with, and of the longest."""
    rows = content["rows"]
    kinds = list(dict.fromkeys(row["round"] for row in rows))
    kinds = [kind for kind in kinds if kind != "all-reduce"] + ["all-reduce"]
    found = {(row["processes"], row["entries"], row["round"]): row for row in rows}

    def show(row: dict[str, Any] | None) -> str:
        return f"{digits(row['milliseconds'])} ({row['against']:.2f})" if row else "–"

    return [["processes", "entries", *kinds]] + [
        [str(count), f"{entries:,}", *(show(found.get((count, entries, kind))) for kind in kinds)]
        for count, entries in dict.fromkeys((row["processes"], row["entries"]) for row in rows)
    ]


def model(content: dict[str, Any]) -> Table:
    """What the model says of more nodes than were measured, in milliseconds."""
    curves, nodes = content["model"]["milliseconds"], content["model"]["nodes"]
    return [["nodes", *curves]] + [
        [str(count), *(digits(curve[i]) for curve in curves.values())] for i, count in enumerate(nodes)
    ]


def streams(content: dict[str, Any]) -> Table:
    kinds = ("in memory", "read ahead", "by callback")
    head = ["case", *(f"{kind}, samples/s" for kind in kinds), *(f"{kind} ÷ in memory" for kind in kinds[1:])]
    return [head] + [
        [
            row["case"],
            *(digits(row["samples_per_second"][kind]) for kind in kinds),
            *(f"{row['against'][kind]:.2f}" for kind in kinds[1:]),
        ]
        for row in content["rows"]
    ]


def engines(content: dict[str, Any]) -> Table:
    return [["case", "processes", "devices of each", "cluster, µs", "simulator, µs", "cluster ÷ simulator"]] + [
        [
            row["case"],
            str(row["processes"]),
            str(row["devices"]),
            *(digits(row["µs"][name]) for name in ("cluster", "simulator")),
            _ratio(row["against"]),
        ]
        for row in content["rows"]
    ]


def checkpoint(content: dict[str, Any]) -> Table:
    return [["case", "state", "seconds between", "seconds per checkpoint", "with ÷ without"]] + [
        [
            row["case"],
            f"{digits(row['state_bytes'] / 1e6)} MB",
            f"{row['seconds_between']:.2f}",
            f"{row['seconds_per_checkpoint']:.3f}",
            f"{row['against']:.2f}",
        ]
        for row in content["rows"]
    ]


def chunks(content: dict[str, Any]) -> Table:
    head = ["case", "nodes", "at a time", "state", "in addition, at once", "in parts", "time, in parts ÷ at once"]
    return [head] + [
        [
            row["case"],
            str(row["nodes"]),
            str(row["node_chunk"]),
            f"{row['state_bytes'] / 1e6:.0f} MB",
            *(f"{digits(row['beside_bytes'][name] / 1e6)} MB" for name in ("at once", "in parts")),
            f"{row['time_against']:.2f}",
        ]
        for row in content["rows"]
    ]


def frames(content: dict[str, Any]) -> Table:
    head = ["bytes of a message", "ours, µs", "protobuf, µs", "ratio"]
    return [head] + [
        [f"{row['bytes']:,}", f"{row['ours']:.0f}", f"{row['protobuf']:.0f}", f"{row['against']:.2f}"]
        for row in content["rows"]
    ]


def mixture(content: dict[str, Any]) -> Table:
    head = [
        "case",
        "method",
        "ms a step",
        "÷ bare gradient",
        "tokens/s",
        "plain loop's",
        "share per gradient",
        "vectors",
    ]
    return [head] + [
        [
            row["case"],
            row["method"],
            *(_timed(row) if "seconds" in row else ["not run"] + 4 * [""]),
            f"{row['vectors']:.1f}",
        ]
        for row in content["rows"]
        if "error" not in row
    ]


def _timed(row: dict[str, Any]) -> list[str]:
    return [
        f"{1e3 * row['seconds']:,.0f}",
        f"{row['gradients']:.2f}",
        *(digits(row[name]) for name in ("tokens_a_second", "plain_tokens_a_second")),
        f"{row['per_gradient']:.0%}",
    ]


def forms(content: dict[str, Any]) -> Table:
    head = ["case", "form", "ms per step", "time ÷ Hessian products"]
    head += ["memory in addition to the state", "memory ÷ Hessian products"]
    return [head] + [
        [
            row["case"],
            row["form"],
            f"{1e3 * row['seconds']:.2f}",
            f"{row['against']:.2f}",
            f"{digits(row['beside_bytes'] / 1e6)} MB",
            f"{row['memory_against']:.2f}",
        ]
        for row in content["rows"]
    ]


def growth(content: dict[str, Any]) -> Table:
    """Slopes of time and, after a slash, of memory."""
    axes = list(dict.fromkeys(row["axis"] for row in content["rows"]))
    family = {row["method"]: row["family"] for row in content["rows"]}

    def show(slope: dict[str, float] | None) -> str:
        return f"{slope['time']:.2f} / {slope['memory']:.2f}".replace("-", "−") if slope else "–"

    return [["method", "kind", *axes]] + [
        [f"`{method}`", family[method], *(show(found.get(axis)) for axis in axes)]
        for method, found in content["slopes"].items()
    ]


def target(content: dict[str, Any]) -> Table:
    head = ["method", "form", "α ×", "β, γ ×", "steps", "seconds", "megabytes sent per node", "rounds", "accuracy"]

    def number(value: float | None, scale: float = 1.0) -> str:
        return "–" if value is None else digits(value / scale)

    return [head] + [
        [
            f"`{row['method']}`",
            row["form"],
            f"{row['upper']:g}",
            "–" if row["form"] == "single" else f"{row['lower']:g}",
            f"{row['steps']:,.0f}" if row["steps"] is not None else "not reached",
            number(row["seconds"]),
            number(row["bytes"], 1e6),
            "–" if row["rounds"] is None else f"{row['rounds']:,.0f}",
            f"{row['accuracy']:.3f}",
        ]
        for row in content["rows"]
    ]


def single_node(content: dict[str, Any]) -> Table:
    return [["problem", "batches at random, µs", '`sampling="shuffle-once"`, µs']] + [
        [row["case"], *(digits(row["µs"][sampling]) for sampling in ("random", "shuffle-once"))]
        for row in content["rows"]
    ]


def scale(content: dict[str, Any]) -> Table:
    """Sizes and graphs on one device."""
    head = ["nodes", "graph", "computed in", "steps per second", "ms", "products, ms", "share of the products' rate"]
    share = lambda part, form=".0f": "–" if part is None else f"{100 * part:{form}} %"  # noqa: E731
    return [[*head, "of the peak", "of the memory's rate", *HELD]] + [
        [
            f"{row['nodes']:,}",
            row["graph"],
            row["precision"] or "JAX default",
            digits(row["steps_per_second"]),
            *(digits(row[name]) for name in ("ms", "products_ms")),
            share(row["share_of_products"]),
            share(row["share_of_peak"], ".1f"),
            share(row["share_of_memory_rate"]),
            *_held(row),
        ]
        for row in content["rows"]
    ]


def largest(content: dict[str, Any]) -> Table:
    """More and more nodes on one device, until memory ends."""

    def measured(row: dict[str, Any]) -> list[str]:
        if "out_of_memory" in row:
            return ["out of memory", "", "", "", ""]
        copying = row.get("seconds_of_copying_to_the_host")
        where = f"on the host, {copying:.1f} s" if copying else "on the device"
        return [f"{row['steps_per_second']:.1f}", *_held(row), where]

    return [["nodes", "batch", "at a time", "steps per second", *HELD, "copy of the state"]] + [
        [f"{row['nodes']:,}", f"{row['batch']:,}", str(row["node_chunk"] or "all"), *measured(row)]
        for row in content["largest"]
    ]


def _held(row: dict[str, Any]) -> list[str]:
    return [digits(row[name] / 1e9) for name in ("state_bytes", "temporary_bytes", "peak_bytes")]


def updates(content: dict[str, Any]) -> Table:
    """What is left of each task's measure for a budget, by both kinds of updates, and how far seeds lie apart."""
    found = {(row["task"], row["budget"], row["updates"]): row for row in content["rows"]}
    show = lambda row: f"{row['value']:.3g} ({row['spread']:.1g})" if row["value"] is not None else "diverged"  # noqa: E731
    kinds = ("simultaneous", "alternating")
    return [["task", "measure", "for equal", *kinds, "÷"]] + [
        [
            task,
            found[task, budget, kinds[0]]["metric"],
            budget,
            *(show(found[task, budget, kind]) for kind in kinds),
            f"{content['ratios'][f'{task}, equal {budget}: simultaneous / alternating']:.2f}",
        ]
        for task, budget in dict.fromkeys((row["task"], row["budget"]) for row in content["rows"])
    ]


def keys(content: dict[str, Any]) -> Table:
    """A step with the rounds of the hash written out, and with JAX's own keys."""
    names = list(content["rows"][0]["µs"])
    return [["case", *(f"{name}, µs" for name in names), "÷", "the same numbers"]] + [
        [
            row["case"],
            *(digits(row["µs"][name]) for name in names),
            f"{row['against']:.2f}",
            "yes" if row["bit for bit"] else "no",
        ]
        for row in content["rows"]
    ]


def rings(content: dict[str, Any]) -> Table:
    return [
        ["nodes", "step, ms", "÷ copy of the state", "state, MB", "in addition, MB", "to build, s", "to compile, s"]
    ] + [
        [
            f"{row['nodes']:,}",
            digits(1e3 * row["seconds"]),
            f"{row['against']:.2f}",
            digits(row["state_bytes"] / 1e6),
            digits(row["beside_bytes"] / 1e6),
            f"{row['build']:.3g}",
            f"{row['compile']:.3g}",
        ]
        for row in content["rows"]
    ]


def convolutions(content: dict[str, Any]) -> Table:
    head = ["network", "levels", "ours, ms", "loop of jitted gradients, ms", "÷ loop", "untouched ÷ loop", "torch, ms"]
    return [head] + [
        [
            row["case"],
            row["levels"],
            *(digits(row["milliseconds"][name]) for name in ("ours", "loop")),
            *(_ratio(row["against"][name]) if name in row["against"] else "–" for name in ("ours", "untouched")),
            digits(row["milliseconds"]["torch"]) if "torch" in row["milliseconds"] else "–",
        ]
        for row in content["rows"]
    ]


def performance(rows: list[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))

    def show(row: dict[str, Any], name: str) -> str:
        return digits(row["ms"][name]) if name in row["ms"] else "–"

    return [["network", "machine", "measured", *(f"{name}, ms" for name in names)]] + [
        [row["case"], row["machine"], row["date"], *(show(row, name) for name in names)] for row in rows
    ]


def known_ratios(content: dict[str, Any]) -> Table:
    """The forms of the sum over neighbours."""
    rows = {(row["form"], row["nodes"]): row for row in content["rows"] if row["part"] == "mixing" and "ms" in row}
    sizes = sorted({nodes for _, nodes in rows})
    head = ["form", *(f"{nodes:,} nodes: {what}" for nodes in sizes for what in ("ms", "÷ now", "passes"))]
    shown = [
        [form]
        + [
            cell
            for nodes in sizes
            for row in (rows[form, nodes],)
            for cell in (digits(row["ms"]), f"{row['÷ now']:.2f}", f"{2 * row['copies']:.1f}")
        ]
        for form in dict.fromkeys(form for form, _ in rows)
    ]
    return [head, *shown]


TABLES: dict[str, Callable[[dict[str, Any]], Table]] = {
    "step": step,
    "torch": torch,
    "network": network,
    "engines": engines,
    "checkpoint": checkpoint,
    "chunks": chunks,
    "convolutions": convolutions,
    "forms": forms,
    "mixture": mixture,
    "frames": frames,
    "keys": keys,
    "growth": growth,
    "rings": rings,
    "streams": streams,
    "updates": updates,
    "target": target,
    "single_node": single_node,
    "scale": scale,
    "known_ratios": known_ratios,
}
