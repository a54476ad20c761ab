"""Draws docs/figures/live.png: the live view of a real run, in a browser (needs playwright and chromium).

Run from the checkout: python docs/figures/live.py
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import decibel as db
from decibel.results.live import serve_beside

OUT = Path(__file__).with_suffix(".png")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def main() -> None:
    task = db.tasks.label_cleaning(nodes=20)
    method = db.sparkle("ed", alpha=100.0, beta=0.1, gamma=0.1, theta=0.3)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright, serve_beside(Path(folder)) as url:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1180, "height": 955}, color_scheme="light")
        page.goto(url)

        def at_two_thirds(step: int, row: object) -> None:
            if step == 1_000:
                page.get_by_text("1,000 of 1,500").wait_for()  # the page asks once a second
                page.wait_for_timeout(500)
                page.screenshot(path=OUT)

        log = db.loggers.JSONL(Path(folder) / "log.jsonl")
        graph = db.graphs.torus(4, 5)
        options = {
            "batch_size": 32,
            "metrics": [*(f"consensus_{level}" for level in "xyz"), *task.metrics],
            "eval_every": 20,
        }
        db.solve(task.problem, method, graph, steps=1_500, callbacks=[log, at_two_thirds], **options)
        browser.close()


if __name__ == "__main__":
    main()
