"""Where nodes run: the compiled chunk, and engines that run it on one device or on a cluster.

Engines in other packages use the names in `__init__.pyi` (docs/extending.md). Each is imported when first used, so that
`decibel launch` starts a script before JAX has loaded.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
