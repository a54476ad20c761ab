"""Which rows travel between devices, planned ahead: matchings of device pairs, each one `ppermute`.

Nodes are dealt to devices in order, equally many to each. For every link between two devices the rows that the receiver
lacks are sent once, however many of its nodes need them, and nothing else is. A greedy sequence of maximum matchings
over the pairs that still have rows to send gives few permutations, each carrying as many rows as all its pairs have.
"""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx
import numpy as np


class Wave(NamedTuple):
    """One permutation: `pairs` of (sender, receiver) devices; `rows` (devices, rows) are the local rows each sends."""

    pairs: tuple[tuple[int, int], ...]
    rows: np.ndarray


class Plan(NamedTuple):
    """The waves; per node and slot the position in [own rows, received rows] of what it needs, or of a row of its own;
    and the rows that cross all links in one exchange."""

    waves: tuple[Wave, ...]
    table: np.ndarray
    sent: int


def plan(sources: np.ndarray, rows: int, devices: int) -> Plan:
    """For the `rows` of all nodes and, per node and slot, the row it needs (−1 for none)."""
    nodes, each = len(sources), rows // devices
    per_device = nodes // devices
    receivers, slots = np.nonzero(sources >= 0)
    wanted = sources[receivers, slots]

    needed: dict[tuple[int, int], list[int]] = {}
    for row, receiver in sorted({(int(r), int(n) // per_device) for r, n in zip(wanted, receivers, strict=True)}):
        if row // each != receiver:
            needed.setdefault((row // each, receiver), []).append(row)
    sent = sum(len(numbers) for numbers in needed.values())
    waves, received = _waves(needed, devices, each)

    place = [{d * each + i: i for i in range(each)} for d in range(devices)]
    for device, arrivals in enumerate(received):
        place[device].update({row: each + position for position, row in enumerate(arrivals) if row >= 0})
    table = np.tile((np.arange(nodes) % per_device)[:, None], (1, sources.shape[1]))
    for receiver, slot, row in zip(receivers, slots, wanted, strict=True):
        table[receiver, slot] = place[receiver // per_device][int(row)]
    return Plan(tuple(waves), table, sent)


def _waves(needed: dict[tuple[int, int], list[int]], devices: int, each: int) -> tuple[list[Wave], list[list[int]]]:
    """Waves that carry all needed rows, and what each device has received in order (−1 where it got nothing)."""
    waiting = {pair: list(nodes) for pair, nodes in needed.items()}
    waves: list[Wave] = []
    received: list[list[int]] = [[] for _ in range(devices)]
    while waiting:
        # Numbers, not names: the hashes of strings differ between processes, and so would their matchings.
        bipartite = nx.Graph((a, devices + b) for a, b in waiting)
        matching = nx.bipartite.hopcroft_karp_matching(bipartite, [a for a, _ in waiting])
        pairs = sorted((a, b - devices) for a, b in matching.items() if a < devices)
        count = min(len(waiting[pair]) for pair in pairs)
        rows = np.zeros((devices, count), int)
        arrived = {}
        for pair in pairs:
            now, waiting[pair] = waiting[pair][:count], waiting[pair][count:]
            rows[pair[0]] = [node % each for node in now]
            arrived[pair[1]] = now
            if not waiting[pair]:
                del waiting[pair]
        for device in range(devices):
            received[device].extend(arrived.get(device, [-1] * count))
        waves.append(Wave(tuple(pairs), rows))
    return waves, received
