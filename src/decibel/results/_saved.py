"""Final models in files: arrays by path, and everything else as JSON. Nothing is pickled.

A file is an .npz whose entries are not compressed, so that it cannot unpack to more than its own size.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import IO, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from ..core._files import atomic_writer
from ..core._json import JSON
from ..core._types import PyTree
from ..problem._problem import Problem
from ._status import Status
from ._trace import Trace

ABOUT, FORMAT = "about", "decibel-result-1"
DEEPEST, LONGEST = 64, 2**16  # keys in a path, and entries of a sequence


class SavedResult(NamedTuple):
    """What a file of `Result.save` holds.

    Attributes:
        x: the average of x over nodes.
        y: the average of y over nodes, or every node's y if the lower level is personal; None for a single level.
        step: the step at which the model was saved.
        status: how the run ended.
        message: why it ended early; empty if it did not.
        method: the method's name.
        trace: the metrics and costs along the run, with the run's provenance.
    """

    x: PyTree
    y: PyTree
    step: int
    status: Status
    message: str
    method: str
    trace: Trace


def save(path: str | os.PathLike[str], levels: dict[str, PyTree], about: dict[str, JSON], trace: Trace) -> Path:
    """Writes the pytrees of levels, what is known about them and a trace, atomically; the first process writes."""
    path = Path(path)
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
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
    whole = {"format": FORMAT, "levels": notes, "provenance": trace.provenance, **about}
    arrays[ABOUT] = np.frombuffer(json.dumps(whole, default=str).encode(), np.uint8)
    if jax.process_index() == 0:
        with atomic_writer(path) as file:
            np.savez(file, allow_pickle=False, **arrays)
    return path


def load(path: str | os.PathLike[str], problem: Problem | None) -> SavedResult:
    """Reads what `save` wrote."""
    try:
        arrays = _read(path)
        about = json.loads(arrays[ABOUT].tobytes())
        if about["format"] != FORMAT:
            raise ValueError(about["format"])
        levels = {level: _leaves(level, about["levels"][level], arrays) for level in ("x", "y")}
        columns = {name.removeprefix("trace/"): arrays[name] for name in arrays if name.startswith("trace/")}
        trace = Trace(columns, about["provenance"])
        rest = int(about["step"]), Status(about["status"]), str(about["message"]), str(about["method"]), trace
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
    found: list[tuple[list[Plain], np.ndarray]] = []
    for number, note in enumerate(described):
        array, dtype = arrays[f"{level}/{number}"], jnp.dtype(note["dtype"])
        found.append((_path(note["path"]), array if array.dtype == dtype else array.view(dtype)))
    return found


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
    wanted, structure = jax.tree_util.tree_flatten_with_path(start)
    names = {json.dumps([_plain(key) for key in keys]): leaf for keys, leaf in wanted}
    found = {json.dumps(keys): array for keys, array in leaves}
    if names.keys() != found.keys():
        raise ValueError(
            f"{level} of the file has other leaves than {level}0 of the problem: give the problem that was solved."
        )
    for name, leaf in names.items():
        shape = found[name].shape
        if jnp.shape(leaf) not in (shape, shape[1:]):  # with an axis of nodes where y is personal
            raise ValueError(
                f"{level} of the file has the shape {shape} at {name} and {level}0 {jnp.shape(leaf)}: give the problem "
                "that was solved."
            )
    return jax.tree.unflatten(structure, [jnp.asarray(found[name]) for name in names])


def _nested(leaves: Leaves) -> PyTree:
    """Dictionaries and lists by the leaves' paths; a lone leaf is itself."""
    if leaves is None:
        return None
    if len(leaves) == 1 and not leaves[0][0]:
        return jnp.asarray(leaves[0][1])
    root: dict[Hashable, PyTree] = {}
    for keys, array in leaves:
        here = root
        for key in keys[:-1]:
            here = here.setdefault(_hashable(key), {})
        here[_hashable(keys[-1])] = jnp.asarray(array)
    return _lists(root)


def _lists(tree: PyTree) -> PyTree:
    if not isinstance(tree, dict):
        return tree
    made = {key: _lists(value) for key, value in tree.items()}
    if made and all(isinstance(key, tuple) for key in made):  # places in a sequence; some may have held no array
        return [made.get((place,)) for place in range(1 + max(place for (place,) in made))]
    return made


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


def _read(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of an uncompressed .npz file, each as large as its header says, and all within the file's size."""
    with open(path, "rb") as raw, zipfile.ZipFile(raw) as archive:
        entries = archive.infolist()
        left = os.fstat(raw.fileno()).st_size - sum(entry.file_size for entry in entries)
        if left < 0 or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("entries are compressed")
        found: dict[str, np.ndarray] = {}
        for entry in entries:
            with archive.open(entry) as file:
                found[entry.filename.removesuffix(".npy")] = _array(file, entry.file_size)
        return found


def _array(file: IO[bytes], size: int) -> np.ndarray:
    headers: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype]]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, fortran, dtype = headers[np.lib.format.read_magic(file)](file)
    if dtype.hasobject or any(axis < 0 for axis in shape) or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError("an array is not as large as it says")
    flat = np.frombuffer(file.read(), dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
