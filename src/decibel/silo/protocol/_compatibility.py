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
    """The build of this site. `problem` must hold its data."""
    losses = loss_hashes(problem)
    upper, lower = (bytes.fromhex(digest) if digest else NO_HASH for digest in (losses.upper, losses.lower))
    return Build(version("decibel-opt"), jax.__version__, upper, lower)


def differences(ours: Build, theirs: Build, name: str) -> list[str]:
    """Sentences on versions that differ, which both ends should know although they still talk."""
    said = [
        f"{name} has {what} {plain(their_version, 64)}, and this site {our_version}"
        for what, our_version, their_version in (
            ("Decibel", ours.decibel, theirs.decibel),
            ("JAX", ours.jax, theirs.jax),
        )
        if our_version and their_version and our_version != their_version
    ]
    if said and ours.jax != theirs.jax:
        said[-1] += ", so that losses were not compared"
    return [f"{difference}: install the same release everywhere" for difference in said]


def validate_losses(ours: Build, theirs: Build, other: str, name: str) -> None:
    """Raises if losses differ. Hashes of equal losses are equal if the versions of JAX are."""
    if ours.jax != theirs.jax or not ours.jax:
        return
    changed = [loss for loss in ("upper", "lower") if getattr(ours, loss) != getattr(theirs, loss)]
    if changed and NO_HASH not in (ours.upper, theirs.upper):
        raise Rejected(
            f"{other} and {name} have different {' and '.join(changed)} losses: give every site the same code, and "
            "samples of the same shapes and dtypes"
        )
