"""What neighbours exchange: messages and their codes, mixing in memory, links, faults."""

from . import faults
from ._communicator import Communicator
from ._in_memory import InMemory
from ._network import Network

__all__ = ["Communicator", "InMemory", "Network", "faults"]
