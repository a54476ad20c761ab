"""How a compiled step calls Python: ordered and with copies, or unordered and on the step's own buffers.

`io_callback` keeps order and works on any device, but copies what it is given and what it returns several times. On a
processor `buffer_callback` reads and writes the step's own memory. It keeps no order, so it serves steps with a single
exchange, which takes the number of the step from the call that begins it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import Array
from jax.experimental import io_callback

from decibel.core import PyTree

if TYPE_CHECKING:
    from ..protocol._site import Site

try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:  # it may go as it came, being experimental
    buffer_callback = None


def in_place_works() -> bool:
    """Whether a step reads what a call writes in place, tried on one number since this is experimental."""
    if buffer_callback is None or jax.default_backend() != "cpu":
        return False

    def next_one(out: tuple[np.ndarray, ...], number: np.ndarray) -> None:
        out[0][...] = number + 1

    number = jax.ShapeDtypeStruct((), np.int32)
    (answer,) = jax.jit(lambda k: call_host(next_one, (number,), k, in_place=True))(np.int32(6))
    return int(answer) == 7


def call_host(
    function: Callable[..., None], shapes: tuple[jax.ShapeDtypeStruct, ...], *arguments: PyTree, in_place: bool
) -> tuple[Array, ...]:
    """Calls `function(out, *arguments)` with NumPy arrays. The function fills those in `out`, and must keep none.

    `in_place` calls it on the step's own buffers, in an order that only data dependencies fix.
    """
    if in_place and buffer_callback is not None:

        def fill(_: object, out: PyTree, *arguments: PyTree) -> None:
            function(tuple(map(np.asarray, out)), *map(np.asarray, arguments))

        return tuple(buffer_callback(fill, shapes, has_side_effect=True)(*arguments))

    def make(*arguments: PyTree) -> tuple[np.ndarray, ...]:
        out = tuple(np.empty(shape.shape, shape.dtype) for shape in shapes)
        function(out, *map(np.asarray, arguments))
        return out

    return tuple(io_callback(make, shapes, *arguments, ordered=True))


def call_site(
    site: Site,
    function: Callable[..., None],
    shapes: tuple[jax.ShapeDtypeStruct, ...],
    *arguments: PyTree,
    otherwise: int = 0,
) -> tuple[Array, ...]:
    """Calls a function of a site. The compiled step cannot raise its error, which the site keeps until the step has
    ended: from then on nothing more is called, and all arrays hold `otherwise`."""

    def answer(out: tuple[np.ndarray, ...], *given: np.ndarray) -> None:
        if site.error is None:
            try:
                function(out, *given)
                return
            except Exception as error:
                site.error = error
        for part in out:
            part[...] = otherwise

    return call_host(answer, shapes, *arguments, in_place=site.in_place)
