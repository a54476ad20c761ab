"""Published methods, each a choice of oracle, estimator and one strategy per level.

One file holds one family of methods and all that is known of each. `_method` says what a method is; `_auxiliary`,
`_implicit` and `_dense_hessian` hold recursions that several share. The catalogue finds methods by itself.
"""

from ._entry import register
from ._method import rate

__all__ = ["rate", "register"]
