"""`decibel version`."""

from __future__ import annotations

import typer

from .._common import Json, emit


def version(json: Json = False) -> None:
    """Show the versions of Decibel and of the packages its numbers depend on."""
    from importlib.metadata import version as installed

    from ... import __version__

    packages = ("jax", "jaxlib", "numpy", "equinox", "optax")
    versions = {"decibel": __version__, **{package: installed(package) for package in packages}}
    if json:
        emit(versions)
        return
    for package, number in versions.items():
        typer.echo(f"{package} {number}")
