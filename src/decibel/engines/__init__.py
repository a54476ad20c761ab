"""Where nodes run: the compiled chunk, and engines that run it on one device or on a cluster.

Engines in other packages use what `__all__` lists (docs/extending.md).
"""

from ._checkpoint import identity
from ._memory import copied, oom_hint
from ._program import all_finite
from ._run import Compiled
from ._signals import ending_at_once

__all__ = ["Compiled", "all_finite", "copied", "ending_at_once", "identity", "oom_hint"]
