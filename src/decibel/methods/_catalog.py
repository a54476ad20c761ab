"""Every method by name: what it is, where it comes from, what it needs, what leaves a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import NoReturn

from ..core._html import table
from ..core._names import hint
from ._entry import REGISTERED, Entry

PACKAGE, _, HERE = __name__.rpartition(".")
for module in iter_modules([str(Path(__file__).parent)]):  # importing a module registers its methods
    if module.name != HERE:
        import_module(f"{PACKAGE}.{module.name}")


class Catalog(Mapping[str, Entry]):
    """All registered methods, in alphabetical order."""

    def __getitem__(self, name: str) -> Entry:
        if name not in REGISTERED:
            raise KeyError(f"method {name!r} is not known: {hint(name, self)}")
        return REGISTERED[name]

    def __getattr__(self, name: str) -> NoReturn:
        known = {key.replace("-", "_"): key for key in REGISTERED}
        fix = f"write db.CATALOG[{known[name]!r}]" if name in known else hint(name, known).removesuffix(".")
        raise AttributeError(f"db.CATALOG has no attribute {name!r}: {fix}.", name=name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(REGISTERED))

    def __len__(self) -> int:
        return len(REGISTERED)

    def __repr__(self) -> str:
        return f"Catalog of {len(self)} methods: {', '.join(name for name in self if not self[name].mixture)}"

    def _repr_html_(self) -> str:
        rows = [(name, entry.form, entry.summary, entry.sends) for name, entry in self.items() if not entry.mixture]
        return table(f"{len(self)} methods", rows, ("name", "lower level", "what it is", "sends per step"))


CATALOG = Catalog()
__all__ = ["CATALOG", "Entry"]
