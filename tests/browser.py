"""A real browser for the tests of pages: Chromium without a window, an empty profile, and no network but loopback."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
]  # fmt: skip
SIZES = {"phone": {"width": 390, "height": 844}, "desktop": {"width": 1280, "height": 900}}
SCHEMES = ("light", "dark")
NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser, or a skip that says what is missing. $DECIBEL_BROWSER names one that is not on the path."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    found = os.environ.get("DECIBEL_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs chromium: install it, or name a browser by DECIBEL_BROWSER")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page(browser: Any, size: str = "desktop", scheme: str = "light") -> Iterator[Any]:
    """A page that may not write an error to its console while it is open."""
    context = browser.new_context(viewport=SIZES[size], color_scheme=scheme)
    opened, errors = context.new_page(), []
    opened.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    try:
        yield opened
        assert errors == []
    finally:
        context.close()


def overflow(opened: Any) -> int:
    """By how many pixels the page is wider than its window."""
    return opened.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def until(opened: Any, expression: str, tries: int = 300) -> None:
    """Waits for an expression to be true. A page's policy may forbid the browser's own way, which is `eval`."""
    for _ in range(tries):
        if opened.evaluate(expression):
            return
        opened.wait_for_timeout(50)
    raise AssertionError(f"this never became true: {expression}")
