"""Text of several kinds: files of the user, what the Python installation holds itself, or the data folder."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path

from ..core._names import hint
from . import data

Documents = Sequence[str]
Text = Documents | bytes | Path
INSTALLED = ("manual", "docstrings", "sources", "tables", "licences")
LONGEST_PATH = 250
MOST = 4_000_000  # bytes of one kind that are read from the installation
NOTICES = ("licen", "copying", "notice")


def find_texts(domains: Mapping[str, Text] | Sequence[str] | None) -> dict[str, bytes]:
    """The text of every domain: by name from the installation or the data folder, as documents, or from files."""
    if domains is None:
        domains = INSTALLED
    if not isinstance(domains, Mapping):
        return {name: _named(name) for name in ([domains] if isinstance(domains, str) else domains)}
    return {name: _read(name, given) for name, given in domains.items()}


def _named(name: str) -> bytes:
    if name in INSTALLED:
        return installed_text(name)
    if name not in data.DOMAINS:
        raise ValueError(f"domains has {name!r}, which is not known: {hint(name, [*INSTALLED, *data.DOMAINS])}")
    return joined(data.load_text([name])[name])


def _read(name: str, given: Text) -> bytes:
    if isinstance(given, bytes):
        return given
    if isinstance(given, str):
        given = Path(given) if _is_path(given) else [given]
    if not isinstance(given, Path):
        return joined(given)
    files = sorted(path for path in given.rglob("*") if path.is_file()) if given.is_dir() else [given]
    if not files or not files[0].exists():
        raise ValueError(f"domains[{name!r}]={str(given)!r} holds no files: give a file, a folder or documents.")
    return b"\n\n".join(path.read_bytes() for path in files)


def _is_path(text: str) -> bool:
    """Whether a string names a file or a folder, rather than being a document."""
    if len(text) > LONGEST_PATH or "\n" in text:
        return False
    return Path(text).exists() or ("/" in text and " " not in text)


def joined(documents: Documents) -> bytes:
    return "\n\n".join(documents).encode()


@cache
def installed_text(kind: str) -> bytes:
    """Text that every Python installation has: the language's manual, docstrings and sources of the standard library,
    tables of character encodings, and licences of packages; at most 4 MB of each."""
    parts, size = list[bytes](), 0
    for part in _installed(kind):
        parts.append(part)
        size += len(part)
        if size > MOST:
            break
    return b"\n\n".join(parts)[:MOST]


def _installed(kind: str) -> Iterator[bytes]:
    library = Path(sysconfig.get_paths()["stdlib"])
    if kind == "manual":
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
        yield from (topics[name].encode() for name in sorted(topics))
    elif kind == "tables":
        yield from (path.read_bytes() for path in sorted((library / "encodings").glob("*.py")))
    elif kind == "licences":
        yield from (text.encode() for _, text in sorted(_notices()))
    else:
        for path in sorted([*library.glob("*.py"), *library.glob("[a-z]*/*.py")]):
            if not {"encodings", "pydoc_data", "test", "site-packages", "dist-packages"} & set(path.parts):
                text = path.read_bytes()
                yield text if kind == "sources" else "\n\n".join(_docstrings(text)).encode()


def _docstrings(source: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) > 80:
                yield text


def _notices() -> Iterator[tuple[str, str]]:
    """Licences of installed packages, once for each package."""
    for package in distributions():
        for file in package.files or ():
            if any(word in file.name.lower() for word in NOTICES) and file.suffix in ("", ".txt", ".md", ".rst"):
                path = Path(str(package.locate_file(file)))
                if path.is_file():
                    yield str(file), path.read_text(errors="replace")
