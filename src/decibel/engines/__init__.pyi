from ._checkpoint import run_fingerprint
from ._memory import copied, oom_hint
from ._program import all_finite
from ._run import Compiled
from ._signals import ending_at_once

__all__ = ["Compiled", "all_finite", "copied", "ending_at_once", "oom_hint", "run_fingerprint"]
