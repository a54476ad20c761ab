"""Which rows travel between devices, planned ahead: matchings of device pairs, each one `ppermute`.

Nodes are assigned to devices in order, the same number to each. Between two devices, each row that the receiver needs
is sent once, however many of its nodes need it, and nothing else is sent. A greedy sequence of maximum matchings over
the pairs that still have rows to send gives few permutations. Each carries as many rows as all its pairs have.
"""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx
import numpy as np


class Transfer(NamedTuple):
    """One permutation: `pairs` of (sender, receiver) devices; `rows` (devices, rows) are the local rows each sends."""

    pairs: tuple[tuple[int, int], ...]
    rows: np.ndarray


class HaloPlan(NamedTuple):
    """The waves; per slot the position in [own rows, received rows] of what it needs, or of its spare row; and the rows
    that cross all links in one exchange."""

    waves: tuple[Transfer, ...]
    table: np.ndarray
    sent: int


def plan(sources: np.ndarray, spare: np.ndarray, rows: int, devices: int) -> HaloPlan:
    """For the `rows` of all devices and (slots,) the row that each slot needs, −1 for none: then it looks at a `spare`
    one, of those that live with it."""
    per_device, each = len(sources) // devices, rows // devices
    places = np.flatnonzero(sources >= 0)
    source_rows, receivers = sources[places], places // per_device

    needed: dict[tuple[int, int], list[int]] = {}
    for row, receiver in sorted(set(zip(source_rows.tolist(), receivers.tolist(), strict=True))):
        if row // each != receiver:
            needed.setdefault((row // each, receiver), []).append(row)
    sent = sum(len(numbers) for numbers in needed.values())
    waves, received = _waves(needed, devices, each)

    place = [{d * each + i: i for i in range(each)} for d in range(devices)]
    for device, arrivals in enumerate(received):
        place[device].update({row: each + position for position, row in enumerate(arrivals) if row >= 0})
    table = spare.copy()
    table[places] = [
        place[receiver][row] for receiver, row in zip(receivers.tolist(), source_rows.tolist(), strict=True)
    ]
    return HaloPlan(tuple(waves), table, sent)


def _waves(needed: dict[tuple[int, int], list[int]], devices: int, each: int) -> tuple[list[Transfer], list[list[int]]]:
    """Waves that carry all needed rows, and what each device has received in order (−1 where it got nothing)."""
    waiting = {pair: list(nodes) for pair, nodes in needed.items()}
    waves: list[Transfer] = []
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
            batch, waiting[pair] = waiting[pair][:count], waiting[pair][count:]
            rows[pair[0]] = [node % each for node in batch]
            arrived[pair[1]] = batch
            if not waiting[pair]:
                del waiting[pair]
        for device in range(devices):
            received[device].extend(arrived.get(device, [-1] * count))
        waves.append(Transfer(tuple(pairs), rows))
    return waves, received
