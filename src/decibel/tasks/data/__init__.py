"""Datasets: read from `$DECIBEL_DATA` or the user's cache, downloaded on request, verified when read."""

from .cache import Check, Status, available, cache_folder, fetch, verify
from .errors import DamagedData, DataError, MissingData
from .registry import DOMAINS, SOURCES, File, Source
from .sets import Dataset, Recordings, digits, load, load_speech, load_text, synthetic

__all__ = [
    "DOMAINS",
    "SOURCES",
    "Check",
    "DamagedData",
    "DataError",
    "Dataset",
    "File",
    "MissingData",
    "Recordings",
    "Source",
    "Status",
    "available",
    "cache_folder",
    "digits",
    "fetch",
    "load",
    "load_speech",
    "load_text",
    "synthetic",
    "verify",
]
