"""Decibel: decentralized bilevel optimization. Two loss functions, a graph, one call.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that `decibel --help` answers
before JAX has loaded.
"""

import types

import lazy_loader

__version__ = "0.1.0"
_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    from .core._names import hint, unknown_name

    try:
        attribute = _find(name)
    except AttributeError:
        raise AttributeError(f"decibel has no {name!r}: {hint(name, __all__)}", name=name) from None
    if isinstance(attribute, types.ModuleType) and not hasattr(attribute, "__getattr__"):
        setattr(attribute, "__getattr__", unknown_name(f"db.{name}", attribute.__all__))  # noqa: B010 - a module declares none
    return attribute
