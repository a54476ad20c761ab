"""The method of a federation."""

from __future__ import annotations

from decibel import Method

from .._federation import Federation


def method_of(federation: Federation) -> Method:
    """The method that the federation file names, with the noise that it asks for on every message."""
    from decibel import CATALOG
    from decibel.strategies.privacy import noisy

    assert federation.method is not None
    method = CATALOG[federation.method](**federation.settings)
    noise = federation.privacy.get("messages")
    return method if noise is None else method.with_strategies(lambda strategy: noisy(strategy, **noise))
