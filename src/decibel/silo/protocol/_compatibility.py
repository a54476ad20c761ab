"""What two ends compute with: versions of Decibel and JAX, and hashes of the losses."""

from __future__ import annotations

from importlib.metadata import version

import jax

from decibel import Problem
from decibel.core import plain
from decibel.problem import loss_hashes

from .._errors import Rejected
from ._frames import NO_HASH, Build


def build_of(problem: Problem) -> Build:
    """That of this site; the problem has its data."""
    losses = loss_hashes(problem)
    upper, lower = (bytes.fromhex(one) if one else NO_HASH for one in (losses.upper, losses.lower))
    return Build(version("decibel-opt"), jax.__version__, upper, lower)


def differences(own: Build, theirs: Build, name: str) -> list[str]:
    """What both ends should know, though it does not keep them apart."""
    said = [
        f"{name} has {what} {plain(there, 64)}, and this site {here}"
        for what, here, there in (("Decibel", own.decibel, theirs.decibel), ("JAX", own.jax, theirs.jax))
        if here and there and here != there
    ]
    if said and own.jax != theirs.jax:
        said[-1] += ", so that losses were not compared"
    return [f"{one}: install the same release everywhere" for one in said]


def validate_losses(own: Build, theirs: Build, other: str, name: str) -> None:
    """Where JAX is the same, an equal loss has an equal hash."""
    if own.jax != theirs.jax or not own.jax:
        return
    changed = [loss for loss in ("upper", "lower") if getattr(own, loss) != getattr(theirs, loss)]
    if changed and NO_HASH not in (own.upper, theirs.upper):
        raise Rejected(
            f"{other} and {name} have different {' and '.join(changed)} losses: give every site the same code, and "
            "samples of the same shapes and dtypes"
        )
