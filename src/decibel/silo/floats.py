"""Where a message has its floats, and whether all of them are numbers.

A message in code is bytes to the transport; where in them the code writes floats is known beforehand, so that a NaN is
found on arrival in code as it is in the open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..engines.links import InParts

Layout = tuple[tuple[int, int, str], ...] | None  # (first byte, end, dtype) of every part; None: the message is floats


def in_code(written: InParts) -> Layout:
    """Of a message of several levels in one code."""
    from ..privacy import floats

    parts, first = [], 0
    for width in written.widths:
        parts.append((first, first + floats(written.code, width, written.dtype), np.dtype(written.dtype).str))
        first += written.code.bytes(width, written.dtype)
    return tuple(parts)


def finite(message: np.ndarray, layout: Layout) -> bool:
    parts = [message]
    if layout is not None:
        parts = [np.frombuffer(message[first:end].tobytes(), dtype) for first, end, dtype in layout]
    return all(np.isfinite(part).all() for part in parts)
