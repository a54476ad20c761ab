"""Silo: one process per organisation, next to its own data; authenticated neighbours communicate directly.

    trust/      keys, certificates, and what the authority signs
    protocol/   frames, edges, the rendezvous, and a site among its neighbours
    observe/    status, reports, metrics and pages
    run/        the engine, its network, checkpoints, privacy, and connections
    commands/   `decibel silo`

Each folder imports only from itself and from those above it in this list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from .run._silo import Silo

__all__ = ["Silo"]
# When first used, so that `decibel --help` answers before JAX has loaded.
__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs={"run._silo": ["Silo"]})
