"""Decibel: decentralized bilevel optimization. Two loss functions, a graph, one call.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that `decibel --help` answers
before JAX has loaded.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
