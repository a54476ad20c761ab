"""The `decibel` command, and helpers for commands of other packages (entry points of the group `decibel.commands`).

`console()` prints. `or_exit(function, ...)` turns our errors into one sentence and an exit code, `FAILED` where
something is missing. `completing("methods")` completes names.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import lazy_loader

from ..core._optional import optional

if TYPE_CHECKING:
    from ._common import FAILED, console, or_exit
    from ._completions import completing

__all__ = ["FAILED", "completing", "console", "main", "or_exit"]
# Loaded when first used: without typer and rich, `main` has to say what to install.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__, submod_attrs={"_common": ["FAILED", "console", "or_exit"], "_completions": ["completing"]}
)


def main() -> None:
    """Runs the command, or names the packages to install."""
    try:
        with optional("typer and rich", caller="The decibel command", extra="cli"):
            import rich  # noqa: F401
            import typer  # noqa: F401
    except ImportError as missing:
        sys.exit(str(missing))
    from ._app import gathered

    gathered()()
