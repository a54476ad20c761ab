"""Text that came from elsewhere, made fit to be shown."""

from __future__ import annotations


def plain(text: object, longest: int = 500) -> str:
    r"""One line that moves no cursor: newlines, escape sequences and invisible characters become `\n` and `\x1b`."""
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(text)[:longest])
    return shown if len(shown) <= longest and len(str(text)) <= longest else shown[:longest] + "…"
