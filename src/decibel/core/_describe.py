"""Settings in words, for people."""

from __future__ import annotations

import re
from dataclasses import fields

import equinox as eqx


def in_words(module: eqx.Module) -> str:
    """The `words` of a module, else its name and fields: "conjugate gradients, steps 3"."""
    if isinstance(words := getattr(module, "words", None), str):
        return words
    parts = [re.sub(r"(?<!^)(?=[A-Z])", " ", type(module).__name__).lower()]
    for field in fields(module):
        value = getattr(module, field.name)
        text = in_words(value) if isinstance(value, eqx.Module) else value
        if text is True:
            parts.append(field.name)
        elif text is not None and text is not False:
            parts.append(f"{field.name} {text}")
    return ", ".join(parts).replace("_", " ")
