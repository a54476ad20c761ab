"""Safe display of text from elsewhere."""

from __future__ import annotations


def plain(text: object, longest: int = 500) -> str:
    r"""The text in one printable line: newlines, escape sequences and invisible characters become `\n` and `\x1b`."""
    beginning = str(text)[:longest]
    printable = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in beginning)
    return printable if len(printable) <= longest and len(str(text)) <= longest else printable[:longest] + "…"
