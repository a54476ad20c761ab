"""Shared foundations: stacked vectors, counted costs, random keys, files that are written atomically.

Packages that extend Decibel use the names in `__init__.pyi` (docs/extending.md). Each is imported when first used, so
that the command line answers before JAX has loaded.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
