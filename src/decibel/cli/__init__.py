"""The `decibel` command."""

from __future__ import annotations

import sys

from ..core._optional import optional


def main() -> None:
    """Runs the command; without the packages it needs, says which and ends."""
    try:
        with optional("typer and rich", caller="The decibel command", extra="cli"):
            import rich  # noqa: F401
            import typer  # noqa: F401
    except ImportError as missing:
        sys.exit(str(missing))
    from ._app import app

    app()
