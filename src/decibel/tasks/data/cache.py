"""Finding, fetching and verifying files: `$DECIBEL_DATA`, then the user's cache, then a download on request."""

from __future__ import annotations

import hashlib
import lzma
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...core._files import durable_replace
from ...core._optional import optional
from . import formats
from .errors import DamagedData, DataError, MissingData
from .registry import SOURCES, File, Source, source

VARIABLE = "DECIBEL_DATA"


@dataclass(frozen=True)
class Status:
    """Whether a dataset is on this machine.

    Attributes:
        name: the name of the dataset.
        title: what it is.
        state: `"data folder"`, `"cache"`, `"embedded"`, `"partly"` or `"missing"`.
        path: its folder; None if missing or embedded.
        bytes: its size on disk.
        licence: of the data.
        downloadable: whether `fetch` can download it.
    """

    name: str
    title: str
    state: str
    path: Path | None
    bytes: int
    licence: str
    downloadable: bool


@dataclass(frozen=True)
class Check:
    """The outcome of `verify` for one file.

    Attributes:
        name: the name of the dataset.
        path: the file.
        state: `"good"`, `"damaged"` or `"missing"`.
        detail: what is damaged.
    """

    name: str
    path: Path
    state: Literal["good", "damaged", "missing"]
    detail: str = ""


def cache_folder() -> Path:
    """The folder of downloaded datasets."""
    with optional("platformdirs", caller="the data cache", extra="tasks"):
        from platformdirs import user_cache_dir
    return Path(user_cache_dir("decibel"))


def data_folder() -> Path | None:
    """The folder that `$DECIBEL_DATA` names, if it is set."""
    value = os.environ.get(VARIABLE)
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise MissingData(f"{VARIABLE}={value!r} is not a folder: correct it, or unset it to use the cache.")
    return folder


def find(file: File) -> Path | None:
    """The path of the file, or None."""
    folders = [folder for folder in (data_folder(), cache_folder()) if folder]
    return next((folder / file.path for folder in folders if (folder / file.path).is_file()), None)


def require(origin: Source) -> list[Path]:
    """Paths of the dataset's files, or a sentence that says how to get the first one missing."""
    paths = []
    for file in origin.files:
        path = find(file)
        if path is None:
            fix = f"run `decibel data fetch {origin.name}` or " if origin.downloadable else ""
            raise MissingData(
                f"{origin.name} is not on this machine: {fix}set {VARIABLE} to a folder that holds {file.path}."
            )
        paths.append(path)
    return paths


def check(origin: Source, file: File, path: Path) -> None:
    """Raise `DamagedData` unless the file's content has the registered sha256."""
    if origin.kind in ("cifar", "npz", "wav"):
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    else:
        data = formats.content(path)
        data = formats.canonical_libsvm(data) if origin.kind == "libsvm" else data
        digest = hashlib.sha256(data).hexdigest()
    if digest != file.sha256:
        raise DamagedData(path, f"the sha256 of its content is {digest}, not {file.sha256}")


def verify(name: str | None = None) -> list[Check]:
    """Compares the files of one dataset, or of all, with their registered sha256.

    Args:
        name: the dataset; None is all of them.
    """
    if name == "digits":
        return []  # scikit-learn carries them
    origins = SOURCES.values() if name is None else [source(name)]
    return [_verify(origin, file) for origin in origins for file in origin.files]


def _verify(origin: Source, file: File) -> Check:
    path = find(file)
    if path is None:
        return Check(origin.name, Path(file.path), "missing")
    try:
        check(origin, file, path)
    except DamagedData as error:
        return Check(origin.name, path, "damaged", str(error))
    return Check(origin.name, path, "good")


def fetch(name: str) -> list[Path]:
    """Downloads the missing or damaged files of a dataset to the cache; files in `$DECIBEL_DATA` are only verified.

    Args:
        name: the dataset.

    Returns:
        The paths of its files.
    """
    if name == "digits":
        return []
    origin = source(name)
    return [_fetch(origin, file) for file in origin.files]


def _fetch(origin: Source, file: File) -> Path:
    path = find(file)
    if path is not None:
        try:
            check(origin, file, path)
            return path
        except DamagedData:
            if path != cache_folder() / file.path:
                raise
    if file.url is None:
        raise MissingData(
            f"{origin.name} cannot be downloaded: place {file.path} below {VARIABLE} by hand (it comes from "
            f"{origin.origin})."
        )
    return _download(origin, file)


def _download(origin: Source, file: File) -> Path:
    with optional("pooch", caller="decibel data fetch", extra="tasks"):
        import pooch

    target = cache_folder() / file.path
    cache_folder().mkdir(parents=True, exist_ok=True)
    # Only a checked file ever gets its name; whatever else happens goes away with the temporary folder.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache_folder()) as folder:
        try:
            checksum = f"sha256:{file.published}" if file.published else None
            downloaded = Path(pooch.retrieve(str(file.url), checksum, fname=target.name, path=folder))
            if origin.kind == "text":
                downloaded.write_bytes(lzma.compress(downloaded.read_bytes()))
            check(origin, file, downloaded)
        except (ValueError, OSError) as error:
            reason = "its sha256 is not the registered one" if isinstance(error, ValueError) else str(error)
            raise DataError(
                f"{origin.name} could not be fetched from {file.url} ({reason.rstrip('.')}): try again, "
                f"or place {file.path} below {VARIABLE} by hand."
            ) from error
        target.parent.mkdir(exist_ok=True)
        return durable_replace(downloaded, target)


def available() -> list[Status]:
    """The status of every dataset."""
    digits = Status("digits", "8×8 handwritten digits", "embedded", None, 0, "CC BY 4.0, UCI", False)
    return [digits, *map(_status, SOURCES.values())]


def _status(origin: Source) -> Status:
    paths = [path for path in map(find, origin.files) if path]
    if not paths:
        state = "missing"
    elif len(paths) < len(origin.files):
        state = "partly"
    else:
        state = "cache" if any(path.is_relative_to(cache_folder()) for path in paths) else "data folder"
    return Status(
        name=origin.name,
        title=origin.title,
        state=state,
        path=paths[0].parent if paths else None,
        bytes=sum(path.stat().st_size for path in paths),
        licence=origin.licence,
        downloadable=origin.downloadable,
    )
