"""Where nodes run: the compiled chunk, and engines that run it on one device or on a cluster.

Engines in other packages use what `__all__` lists (docs/extending.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from ._checkpoint import run_fingerprint
    from ._memory import copied, oom_hint
    from ._program import all_finite
    from ._run import Compiled
    from ._signals import ending_at_once

__all__ = ["Compiled", "all_finite", "copied", "ending_at_once", "oom_hint", "run_fingerprint"]
# When first used, so that `decibel launch` starts a script before JAX has loaded.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_checkpoint": ["run_fingerprint"],
        "_memory": ["copied", "oom_hint"],
        "_program": ["all_finite"],
        "_run": ["Compiled"],
        "_signals": ["ending_at_once"],
    },
)
