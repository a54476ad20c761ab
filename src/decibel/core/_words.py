"""Settings in words, for people."""

from __future__ import annotations

import re
from dataclasses import fields

import equinox as eqx


def in_words(module: eqx.Module) -> str:
    """Its own `words`, or its name and fields: `ConjugateGradients(steps=3)` as "conjugate gradients, steps 3"."""
    if isinstance(words := getattr(module, "words", None), str):
        return words
    parts = [re.sub(r"(?<!^)(?=[A-Z])", " ", type(module).__name__).lower()]
    for field in fields(module):
        value = getattr(module, field.name)
        shown = in_words(value) if isinstance(value, eqx.Module) else value
        if shown is True:
            parts.append(field.name)
        elif shown is not None and shown is not False:
            parts.append(f"{field.name} {shown}")
    return ", ".join(parts).replace("_", " ")
