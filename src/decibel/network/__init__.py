"""What neighbours exchange: messages and their codes, mixing in memory, links, faults.

A strategy yields messages (`_messages`, `_wave`, `_push`). The step's communicator (`_communicator`) collects those of
all levels and hands them to the network (`_network`), which groups them by graph and kind. Messages that need no links
are mixed at once (`_in_memory`, `_mixing`). Others are exchanged over a channel (`_links`): the network's transport
brings rows to the slots of links (`_incidence`), `faults` decide what arrives, and flows are summed at the nodes.
Engines in other packages use what `__all__` lists (docs/extending.md).
"""

from . import faults
from ._codecs import ConcatCodec
from ._coded_wave import ASYNC_HEADER_BYTES
from ._communicator import Communicator
from ._in_memory import InMemory
from ._incidence import Sums, slots_of_node
from ._limited import sizes_by_graph
from ._links import ExchangeMemory, LinkFaults, LinkMemory, Links, LinkStatus, NoiseKeys, Received, Transport
from ._messages import Cumulative, Fanout, Message, Pull, as_message, by_kind
from ._network import LEVELS, Changes, Network
from ._noisy import Grid, Noisy
from ._push import Push
from ._wave import Wave, WaveLinks

__all__ = [
    "ASYNC_HEADER_BYTES",
    "LEVELS",
    "Changes",
    "Communicator",
    "ConcatCodec",
    "Cumulative",
    "ExchangeMemory",
    "Fanout",
    "Grid",
    "InMemory",
    "LinkFaults",
    "LinkMemory",
    "LinkStatus",
    "Links",
    "Message",
    "Network",
    "NoiseKeys",
    "Noisy",
    "Pull",
    "Push",
    "Received",
    "Sums",
    "Transport",
    "Wave",
    "WaveLinks",
    "as_message",
    "by_kind",
    "faults",
    "sizes_by_graph",
    "slots_of_node",
]
