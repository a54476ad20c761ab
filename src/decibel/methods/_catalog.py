"""Every method by name: what it is, where it comes from, what it needs, what leaves a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

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

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(REGISTERED))

    def __len__(self) -> int:
        return len(REGISTERED)


CATALOG = Catalog()
__all__ = ["CATALOG", "Entry"]
