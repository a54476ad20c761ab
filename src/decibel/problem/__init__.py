"""The problem: two losses, the nodes' data, and exact solutions to measure against.

Engines in other packages use what `__all__` lists (docs/extending.md).
"""

from . import prox, sources
from ._loss_hash import loss_hashes
from ._problem import Data
from ._samples import lay_out
from ._stream_trace import streams_of, validate_indexed
from ._streams import Samples, StreamData, samples_of

__all__ = [
    "Data",
    "Samples",
    "StreamData",
    "lay_out",
    "loss_hashes",
    "prox",
    "samples_of",
    "sources",
    "streams_of",
    "validate_indexed",
]
