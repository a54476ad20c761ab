"""Which rows travel between devices, planned ahead: matchings of device pairs, each one `ppermute`.

Nodes are dealt to devices in order, equally many to each. For every link between two devices the rows that the receiver
lacks are sent once, however many of its nodes need them, and nothing else is. A greedy sequence of maximum matchings
over the pairs that still have rows to send gives few permutations, each carrying as many rows as all its pairs have.
"""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx
import numpy as np

from ..graph import Graph


class Wave(NamedTuple):
    """One permutation: `pairs` of (sender, receiver) devices; `rows` (devices, rows) are the local rows each sends."""

    pairs: tuple[tuple[int, int], ...]
    rows: np.ndarray


class Plan(NamedTuple):
    """The waves, and per node its neighbours as positions in [own rows, received rows], filled up with the node itself.

    `table` and `weights` are (nodes, degree); `sent` counts rows over all links of one exchange.
    """

    waves: tuple[Wave, ...]
    table: np.ndarray
    weights: np.ndarray
    sent: int


def plan(graph: Graph, devices: int) -> Plan:
    each = graph.nodes // devices
    csr = graph.matrix.tocsr()
    rows = np.repeat(np.arange(graph.nodes), np.diff(csr.indptr))
    off = rows != csr.indices
    receivers, senders, values = rows[off], csr.indices[off], csr.data[off]

    needed: dict[tuple[int, int], list[int]] = {}
    for sender, receiver in sorted({(int(s), int(r) // each) for s, r in zip(senders, receivers, strict=True)}):
        if sender // each != receiver:
            needed.setdefault((sender // each, receiver), []).append(sender)
    sent = sum(len(nodes) for nodes in needed.values())
    waves, received = _waves(needed, devices, each)

    place = [{d * each + i: i for i in range(each)} for d in range(devices)]
    for device, arrivals in enumerate(received):
        place[device].update({node: each + position for position, node in enumerate(arrivals) if node >= 0})
    degree = max(1, int(np.bincount(receivers, minlength=1).max(initial=0)))
    table = np.tile((np.arange(graph.nodes) % each)[:, None], (1, degree))
    weights = np.zeros((graph.nodes, degree))
    slot = np.zeros(graph.nodes, int)
    for receiver, sender, value in zip(receivers, senders, values, strict=True):
        table[receiver, slot[receiver]] = place[receiver // each][int(sender)]
        weights[receiver, slot[receiver]] = value
        slot[receiver] += 1
    return Plan(tuple(waves), table, weights, sent)


def _waves(needed: dict[tuple[int, int], list[int]], devices: int, each: int) -> tuple[list[Wave], list[list[int]]]:
    """Waves that carry all needed rows, and what each device has received in order (−1 where it got nothing)."""
    waiting = {pair: list(nodes) for pair, nodes in needed.items()}
    waves: list[Wave] = []
    received: list[list[int]] = [[] for _ in range(devices)]
    while waiting:
        bipartite = nx.Graph((("from", a), ("to", b)) for a, b in waiting)
        matching = nx.bipartite.hopcroft_karp_matching(bipartite, [("from", a) for a, _ in waiting])
        pairs = sorted((a[1], b[1]) for a, b in matching.items() if a[0] == "from")
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
