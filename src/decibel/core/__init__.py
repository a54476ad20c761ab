"""Shared foundations: stacked vectors, counted costs, random keys, files that are written atomically.

Packages that extend Decibel use what `__all__` lists (docs/extending.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
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
# When first used, so that the command line answers before JAX has loaded.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_discrete_gaussian": ["RandomBytes", "discrete_gaussian"],
        "_files": ["append_line", "atomic_write", "durable_replace", "read_bytes", "read_file", "sync_folder"],
        "_json": ["JSON"],
        "_ledger": ["Counts"],
        "_names": ["hint"],
        "_numbers": ["validate_delta", "validate_positive"],
        "_optional": ["optional"],
        "_text": ["plain"],
        "_types": ["PyTree"],
    },
)
