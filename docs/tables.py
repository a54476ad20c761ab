"""All that is written from the metadata of strategies and methods, wherever it stands.

    python docs/tables.py

Fills in their tables in the documentation between their marks, how many methods the README counts, the constructors
that `src/decibel/__init__.pyi` exports, and the names that the command line completes. A test compares.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from decibel.cli import _completions as completions
from decibel.methods._catalog import CATALOG, Entry
from decibel.strategies import STRATEGIES, Strategy

ROOT = Path(__file__).parent.parent
FORMS = ("shared", "personal", "single")
MARK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
TEX = {"⁺⁺": "^{++}", "⁺": "^+", "−": "-", "Δ": r"\Delta "}
IMPORT = re.compile(r"^from \.methods\.\S+ import (?:\([^)]*\)|.*)\n", re.MULTILINE)
WIDTH = 120
README = ROOT / "README.md"
COUNT = re.compile(r"(?<=implements )\d+(?= methods)")
STUB = ROOT / "src" / "decibel" / "__init__.pyi"


def entries() -> list[Entry]:
    """Of the library, form by form and by name; mixtures of strategies are named by a rule, not in a row."""
    own = [entry for entry in CATALOG.values() if not entry.mixture and entry.make.__module__.startswith("decibel.")]
    return sorted(own, key=lambda entry: (FORMS.index(entry.form), entry.name))


def table(*head: str, rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def catalogue() -> str:
    head = ("name", "what it is", "lower level", "loops", "sends to each neighbour per step")
    return table(*head, rows=[[f"`{e.name}`", e.summary, e.form, str(e.loops), e.sends] for e in entries()])


def messages() -> str:
    def row(entry: Entry) -> list[str]:
        strategies = entry().strategies
        levels = [f"`{strategies[level].name}`" if level in strategies else "" for level in "xyz"]
        return [f"`{entry.name}`", *levels, entry.sends]

    return table("method", "x", "y", "z", "per step, to each neighbour", rows=[row(entry) for entry in entries()])


def strategies() -> str:
    """Those that are linear; what a strategy's rule is, its flow form says first."""
    head = ("name", "$A$", "$B^2$", "$C$", "rule", "corrects", "vectors sent", "rounds", "carries")

    def row(strategy: Strategy) -> list[str]:
        vectors, _ = strategy.message_size or (0, 0)
        return [
            f"`{strategy.name}`",
            *(polynomial(coefficients) for coefficients in (strategy.A, strategy.B2, strategy.C)),
            rule((strategy.flow_form.__doc__ or "").partition("\n")[0]),
            "yes" if any(strategy.B2) else "no",
            str(vectors),
            str(len(strategy.messages)),
            str(strategy.carries),
        ]

    return table(*head, rows=[row(strategy) for strategy in STRATEGIES.values() if strategy.A])


def polynomial(coefficients: tuple[float, ...]) -> str:
    """As a formula in I, W and its powers."""
    text = ""
    for power, factor in enumerate(coefficients):
        if factor:
            sign = ("- " if factor < 0 else "+ ") if text else "-" * (factor < 0)
            size = "" if abs(factor) == 1 else f"{abs(factor):g}"
            text += f"{sign}{size}{('I', 'W', f'W^{power}')[min(power, 2)]} "
    return f"${text.strip() or '0'}$"


def rule(text: str) -> str:
    """Equations become formulas, and words stay words."""
    for character, tex in TEX.items():
        text = text.replace(character, tex)
    return ", ".join(f"${part}$" if "=" in part else part for part in text.rstrip(".").split(", "))


def reference(form: str) -> str:
    makers = dict.fromkeys(entry.make.__name__ for entry in entries() if entry.form == form)
    return "\n" + "".join(f"::: decibel.{name}\n\n" for name in makers)


BLOCKS = {
    "catalogue": catalogue,
    "messages": messages,
    "strategies": strategies,
    **{form: lambda form=form: reference(form) for form in FORMS},
}


def page(text: str) -> str:
    return MARK.sub(lambda mark: mark[1] + BLOCKS[mark[2]]() + mark[3], text)


def stub(text: str) -> str:
    """The public API with every constructor in it, and `__all__` of what it imports."""
    found: dict[str, set[str]] = {}
    for entry in entries():
        found.setdefault(entry.make.__module__.removeprefix("decibel"), set()).add(entry.make.__name__)
    mine = IMPORT.findall(text)
    kept = [statement for statement in mine if not set(_names(statement)) & set().union(*found.values())]
    made = [_import(module, sorted(names)) for module, names in found.items()]
    before, after = text.split(mine[0])[0], IMPORT.sub("", text)
    body = (before + "".join(sorted([*kept, *made])) + after.removeprefix(before)).rstrip()
    listed = "".join(f'    "{name}",\n' for name in sorted(_names(body), key=lambda name: (not name.isupper(), name)))
    return re.sub(r"__all__ = \[\n.*?\]", f"__all__ = [\n{listed}]", body, flags=re.DOTALL) + "\n"


def _import(module: str, names: list[str]) -> str:
    """As ruff would have it."""
    line = f"from {module} import {', '.join(names)}\n"
    return line if len(line) <= WIDTH + 1 else f"from {module} import (\n    {f',{chr(10)}    '.join(names)},\n)\n"


def _names(source: str) -> list[str]:
    found = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
    return [alias.asname or alias.name for node in found for alias in node.names]


def outdated() -> dict[Path, str]:
    """Files that are not what the metadata say, and what they should be."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    made = {path: page(path.read_text()) for path in pages}
    made[README] = COUNT.sub(str(len(entries())), README.read_text())
    made[STUB] = stub(STUB.read_text())
    made[completions.PATH] = json.dumps(completions.collected(), indent=1) + "\n"
    return {path: text for path, text in made.items() if not path.exists() or path.read_text() != text}


if __name__ == "__main__":
    for path, text in outdated().items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
