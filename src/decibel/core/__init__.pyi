from ._discrete_gaussian import RandomBytes, discrete_gaussian
from ._files import append_line, atomic_write, durable_replace, read_bytes, read_file, sync_folder
from ._json import JSON
from ._ledger import Counts
from ._names import hint
from ._numbers import validate_delta, validate_positive
from ._optional import optional
from ._text import plain
from ._types import PyTree

__all__ = [
    "JSON",
    "Counts",
    "PyTree",
    "RandomBytes",
    "append_line",
    "atomic_write",
    "discrete_gaussian",
    "durable_replace",
    "hint",
    "optional",
    "plain",
    "read_bytes",
    "read_file",
    "sync_folder",
    "validate_delta",
    "validate_positive",
]
