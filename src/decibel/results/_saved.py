"""Final models in files: arrays by path, and everything else as JSON. Nothing is pickled.

A file is an .npz whose entries are not compressed, so that it cannot unpack to more than its own size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from ..core._files import atomic_writer, read_arrays
from ..core._json import JSON
from ..core._types import PyTree
from ..problem._problem import Problem
from ._status import Status
from ._trace import Trace, npz_path

ABOUT, FORMAT = "about", "decibel-result-1"
DEEPEST, LONGEST = 64, 2**16  # keys in a path, and entries of a sequence


class SavedResult(NamedTuple):
    """What a file of `Result.save` holds.

    Attributes:
        x: the average of x over nodes.
        y: the average of y over nodes, or every node's y if the lower level is personal; None for a single level.
        step: the step at which the model was saved.
        steps_done: how many steps were done where it was saved.
        status: how the run ended.
        message: why it ended early; empty if it did not.
        method: the method's name.
        trace: the metrics and costs along the run, with the run's provenance.
    """

    x: PyTree
    y: PyTree
    step: int
    steps_done: int
    status: Status
    message: str
    method: str
    trace: Trace

    def __repr__(self) -> str:
        numbers = "".join(f", {name}={value:.4g}" for name, value in self.trace.last.items() if name != "step")
        return f"SavedResult({self.method}, {self.status} at step {self.step}{numbers})"


def save(path: str | os.PathLike[str], levels: dict[str, PyTree], about: dict[str, JSON], trace: Trace) -> Path:
    """Writes the pytrees of levels, what is known about them and a trace, atomically; the first process writes."""
    path = npz_path(path)
    arrays: dict[str, np.ndarray] = {f"trace/{name}": trace[name] for name in trace}
    notes: dict[str, JSON] = {}
    for level, tree in levels.items():
        described: list[JSON] = []
        for number, (keys, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(tree)[0]):
            array = _whole(leaf)
            described.append({"path": [_plain(key) for key in keys], "dtype": array.dtype.name})
            # NumPy's format has no bfloat16 and its kin: their bits are written.
            arrays[f"{level}/{number}"] = array if array.dtype.isbuiltin else array.view(f"u{array.dtype.itemsize}")
        notes[level] = None if tree is None else described
    header = {"format": FORMAT, "levels": notes, "provenance": trace.provenance, **about}
    arrays[ABOUT] = np.frombuffer(json.dumps(header, default=str).encode(), np.uint8)
    if jax.process_index() == 0:
        with atomic_writer(path) as file:
            np.savez(file, allow_pickle=False, **arrays)
    return path


def load(path: str | os.PathLike[str], problem: Problem | None) -> SavedResult:
    """Reads what `save` wrote."""
    try:
        arrays = read_arrays(path, largest=None)
        about = json.loads(arrays[ABOUT].tobytes())
        if about["format"] != FORMAT:
            raise ValueError(about["format"])
        levels = {level: _leaves(level, about["levels"][level], arrays) for level in ("x", "y")}
        columns = {name.removeprefix("trace/"): arrays[name] for name in arrays if name.startswith("trace/")}
        trace = Trace(columns, about["provenance"])
        steps = int(about["step"]), int(about["steps_done"])
        rest = *steps, Status(about["status"]), str(about["message"]), str(about["method"]), trace
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is not a file: give the path of a result that Result.save wrote.") from None
    except Exception as error:
        raise ValueError(
            f"{path} is not a result saved by Decibel, or it is damaged: give a file that Result.save wrote."
        ) from error
    if problem is None:
        return SavedResult(_nested(levels["x"]), _nested(levels["y"]), *rest)
    return SavedResult(_like("x", problem.x0, levels["x"]), _like("y", problem.y0, levels["y"]), *rest)


Plain = str | int | list[int]  # a key of a path: a name, or the place in a sequence
Leaves = list[tuple[list[Plain], np.ndarray]] | None  # of one level: the path of each


def _leaves(level: str, described: PyTree, arrays: dict[str, np.ndarray]) -> Leaves:
    if described is None:
        return None
    leaves: list[tuple[list[Plain], np.ndarray]] = []
    for number, note in enumerate(described):
        array, dtype = arrays[f"{level}/{number}"], jnp.dtype(note["dtype"])
        leaves.append((_path(note["path"]), array if array.dtype == dtype else array.view(dtype)))
    return leaves


def _path(keys: PyTree) -> list[Plain]:
    """As `_plain` writes it, within bounds: sequences are made as long as their places say."""
    if not isinstance(keys, list) or len(keys) > DEEPEST:
        raise ValueError("a path is too deep")
    for key in keys:
        match key:
            case str() | int():
                pass
            case [int(place)] if 0 <= place < LONGEST:
                pass
            case _:
                raise ValueError("a path has keys that no model has")
    return keys


def _like(level: str, start: PyTree, leaves: Leaves) -> PyTree:
    """The leaves in the structure of x0 or y0."""
    if (start is None) != (leaves is None):
        raise ValueError(
            f"the file and the problem do not both have a level {level}: give the problem that was solved."
        )
    if start is None or leaves is None:
        return None
    expected, structure = jax.tree_util.tree_flatten_with_path(start)
    names = {json.dumps([_plain(key) for key in keys]): leaf for keys, leaf in expected}
    arrays = {json.dumps(keys): array for keys, array in leaves}
    if names.keys() != arrays.keys():
        raise ValueError(
            f"{level} of the file has other leaves than {level}0 of the problem: give the problem that was solved."
        )
    for name, leaf in names.items():
        shape = arrays[name].shape
        if jnp.shape(leaf) not in (shape, shape[1:]):  # with an axis of nodes where y is personal
            raise ValueError(
                f"{level} of the file has the shape {shape} at {name} and {level}0 {jnp.shape(leaf)}: give the problem "
                "that was solved."
            )
    return jax.tree.unflatten(structure, [jnp.asarray(arrays[name]) for name in names])


def _nested(leaves: Leaves) -> PyTree:
    """Dictionaries and lists by the leaves' paths; a lone leaf is itself."""
    if leaves is None:
        return None
    if len(leaves) == 1 and not leaves[0][0]:
        return jnp.asarray(leaves[0][1])
    root: dict[Hashable, PyTree] = {}
    for keys, array in leaves:
        branch = root
        for key in keys[:-1]:
            branch = branch.setdefault(_hashable(key), {})
        branch[_hashable(keys[-1])] = jnp.asarray(array)
    return _lists(root)


def _lists(tree: PyTree) -> PyTree:
    if not isinstance(tree, dict):
        return tree
    children = {key: _lists(value) for key, value in tree.items()}
    if children and all(
        isinstance(key, tuple) for key in children
    ):  # places in a sequence; some may have held no array
        return [children.get((place,)) for place in range(1 + max(place for (place,) in children))]
    return children


def _hashable(key: Plain) -> Hashable:
    return tuple(key) if isinstance(key, list) else key


def _plain(key: object) -> Plain:
    """One of JAX's keys; the place in a sequence is in a list of its own."""
    match key:
        case DictKey(key=int() | str() as name):
            return name
        case GetAttrKey(name=name):
            return name
        case SequenceKey(idx=place) | FlattenedIndexKey(key=place):
            return [place]
        case _:
            raise TypeError(f"a model with the key {key!r} cannot be saved: name its parts by strings or integers.")


def _whole(leaf: PyTree) -> np.ndarray:
    """An array on this process, also if it lies on the devices of several."""
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        leaf = multihost_utils.process_allgather(leaf, tiled=True)
    return np.asarray(leaf)
