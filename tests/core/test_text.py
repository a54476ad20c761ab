"""Text that came from elsewhere, made fit to be shown."""

from __future__ import annotations

from decibel.core._text import plain


def test_it_is_one_line_that_moves_no_cursor():
    hostile = "a\nsite-1: all is well\r\x1b[2J\x1b]0;title\x07\x9b31m\u202egnp\u2028\x00é ρ [bold]"
    shown = plain(hostile)
    assert (
        shown.isprintable() and shown.startswith("a\\nsite-1") and "\\x1b[2J" in shown and shown.endswith("é ρ [bold]")
    )


def test_it_is_short():
    assert plain("x" * 10**6) == "x" * 500 + "…"
    assert len(plain("\x1b" * 500)) == 501 and plain("x" * 500) == "x" * 500


def test_what_is_no_text():
    assert plain(ValueError("a\tb")) == "a\\tb" and plain("\ud800") == "\\ud800"
