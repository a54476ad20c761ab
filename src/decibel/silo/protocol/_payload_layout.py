"""Which bytes of a message are floats, and whether all of them are finite.

A compressed message is bytes to the transport. Which of them are floats is known beforehand (`Code.float_bytes`), so a
NaN is found on arrival, as in an uncompressed message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from decibel.network import ConcatCodec

Layout = tuple[tuple[int, int, np.dtype], ...] | None  # (first byte, end, dtype) per part; None: the message is floats


def layout_of(codec: ConcatCodec) -> Layout:
    """Which bytes of a message with this codec are floats."""
    parts = []
    first = 0
    dtype = np.dtype(codec.dtype)
    for width in codec.widths:
        size = codec.code.bytes(width, dtype)
        floats = codec.code.float_bytes(width, dtype)
        if not 0 <= floats <= size or floats % dtype.itemsize:
            raise ValueError(
                f"{type(codec.code).__name__}.float_bytes gives {floats} for a message of {size} bytes: return a "
                f"multiple of {dtype.itemsize}, the bytes of {dtype}, from 0 to {size}."
            )
        parts.append((first, first + floats, dtype))
        first += size
    return tuple(parts)


def all_finite(message: np.ndarray, layout: Layout) -> bool:
    parts = [message]
    if layout is not None:
        parts = [np.frombuffer(message[first:end].tobytes(), dtype) for first, end, dtype in layout]
    return all(np.isfinite(part).all() for part in parts)
