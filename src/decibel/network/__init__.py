"""What neighbours exchange: messages and their codes, mixing in memory, links, faults.

Engines in other packages use what `__all__` lists (docs/extending.md).
"""

from . import faults
from ._codecs import ConcatCodec
from ._coded_wave import MORE
from ._communicator import Communicator
from ._in_memory import InMemory
from ._incidence import Sums, of_node
from ._limited import sizes_by_graph
from ._links import Draws, LinkFaults, LinkMemory, Links, LinkState, LinkStates, Received, Transport
from ._messages import Copies, Cumulative, Message, as_message, by_kind
from ._network import LEVELS, Network
from ._noisy import Grid, Noisy
from ._wave import Wave, WaveLinks

__all__ = [
    "LEVELS",
    "MORE",
    "Communicator",
    "ConcatCodec",
    "Copies",
    "Cumulative",
    "Draws",
    "Grid",
    "InMemory",
    "LinkFaults",
    "LinkMemory",
    "LinkState",
    "LinkStates",
    "Links",
    "Message",
    "Network",
    "Noisy",
    "Received",
    "Sums",
    "Transport",
    "Wave",
    "WaveLinks",
    "as_message",
    "by_kind",
    "faults",
    "of_node",
    "sizes_by_graph",
]
