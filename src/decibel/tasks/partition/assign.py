"""Partitioners that assign every sample: iid, Dirichlet by class, shards, by group."""

from __future__ import annotations

import numpy as np

from .parts import Partition, check_labels, make_partition


def iid(labels: np.ndarray, nodes: int, *, seed: int = 0) -> Partition:
    """Shuffles the samples and partitions them evenly.

    Args:
        labels: class of each sample.
        nodes: the number of nodes.
        seed: of the shuffle.
    """
    labels = check_labels(labels, nodes)
    order = np.random.default_rng(seed).permutation(len(labels))
    return make_partition(np.array_split(order, nodes), labels, "iid", seed)


def dirichlet(labels: np.ndarray, nodes: int, *, alpha: float, seed: int = 0, minimum: int = 1) -> Partition:
    """For each class, draws the nodes' shares from a symmetric Dirichlet distribution; every sample is assigned.

    Args:
        labels: class of each sample.
        nodes: the number of nodes.
        alpha: the concentration. Small values give each class to few nodes, large values approach iid.
        seed: of the shares and the shuffle.
        minimum: samples per node; nodes with fewer take samples from the largest node.
    """
    if not 0 < alpha < np.inf:
        raise ValueError(f"alpha={alpha} must be positive and finite; for even shares use iid.")
    labels = check_labels(labels, nodes, minimum)
    rng = np.random.default_rng(seed)
    parts: list[list[np.ndarray]] = [[] for _ in range(nodes)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(_shares(rng, alpha, nodes))[:-1] * len(members)
        for part, piece in zip(parts, np.split(members, np.round(cuts).astype(int)), strict=True):
            part.append(piece)
    held = _top_up([rng.permutation(np.concatenate(part)) for part in parts], minimum)
    return make_partition(held, labels, "dirichlet", seed, alpha=alpha, minimum=minimum)


def _shares(rng: np.random.Generator, alpha: float, nodes: int) -> np.ndarray:
    shares = rng.dirichlet(np.full(nodes, alpha))
    if np.isfinite(shares).all() and abs(shares.sum() - 1) < 1e-6:
        return shares
    return np.eye(nodes)[rng.integers(nodes)]  # the limit of tiny alpha, where the draw underflows


def _top_up(parts: list[np.ndarray], minimum: int) -> list[np.ndarray]:
    sizes = np.array([len(part) for part in parts])
    for node in np.flatnonzero(sizes < minimum):
        while sizes[node] < minimum:
            donor = int(np.argmax(sizes))
            parts[node] = np.append(parts[node], parts[donor][-1])
            parts[donor] = parts[donor][:-1]
            sizes[node] += 1
            sizes[donor] -= 1
    return parts


def shards(labels: np.ndarray, nodes: int, *, per_node: int = 2, seed: int = 0) -> Partition:
    """Sorts by label, cuts into nodes × per_node shards and assigns these at random; every sample is assigned.

    Args:
        labels: class of each sample.
        nodes: the number of nodes.
        per_node: shards per node.
        seed: of the assignment.
    """
    if per_node < 1:
        raise ValueError(f"per_node={per_node} must be at least 1.")
    labels = check_labels(labels, nodes, per_node)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    pieces = np.array_split(order, nodes * per_node)
    order_of_shards = rng.permutation(nodes * per_node).reshape(nodes, per_node)
    held = [np.concatenate([pieces[shard] for shard in row]) for row in order_of_shards]
    return make_partition(held, labels, "shards", seed, per_node=per_node)


def by_group(
    groups: np.ndarray, nodes: int | None = None, *, labels: np.ndarray | None = None, seed: int = 0
) -> Partition:
    """One node per group, such as speakers or domains, in sorted order; every sample is assigned.

    With fewer nodes than groups, the next largest group goes to the node with the fewest samples; with more, node i
    gets an even share of group i mod the number of groups.

    Args:
        groups: group of each sample.
        nodes: the number of nodes; None is one per group.
        labels: class of each sample, for drawing; None draws the groups.
        seed: of the shuffle.
    """
    names, codes = np.unique(np.asarray(groups), return_inverse=True)
    nodes = len(names) if nodes is None else nodes
    codes = check_labels(codes.astype(np.int64), nodes)
    classes = codes if labels is None else check_labels(labels, nodes)
    if len(classes) != len(codes):
        raise ValueError(f"labels has {len(classes)} samples and groups {len(codes)}: give one of each per sample.")
    rng = np.random.default_rng(seed)
    members = [rng.permutation(np.flatnonzero(codes == code)) for code in range(len(names))]
    held = _gather(members, nodes) if nodes <= len(names) else _scatter(members, nodes)
    return make_partition(held, classes, "by_group", seed, groups=len(names))


def _gather(members: list[np.ndarray], nodes: int) -> list[np.ndarray]:
    if nodes == len(members):
        return members
    held: list[list[np.ndarray]] = [[] for _ in range(nodes)]
    sizes = np.zeros(nodes, int)
    for member in sorted(members, key=len, reverse=True):
        node = int(np.argmin(sizes))
        held[node].append(member)
        sizes[node] += len(member)
    return [np.concatenate(parts) for parts in held]


def _scatter(members: list[np.ndarray], nodes: int) -> list[np.ndarray]:
    held: list[np.ndarray] = [np.zeros(0, int)] * nodes
    for group, member in enumerate(members):
        takers = range(group, nodes, len(members))
        if len(member) < len(takers):
            raise ValueError(
                f"nodes={nodes} leaves a node empty: group {group} has only {len(member)} samples; ask for fewer nodes."
            )
        for node, piece in zip(takers, np.array_split(member, len(takers)), strict=True):
            held[node] = piece
    return held
