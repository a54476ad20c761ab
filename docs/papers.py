"""Prints the write-ups of docs/evidence to PDF, from the built site: `make papers`. Needs chromium or Chrome."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUT = ROOT / "build" / "papers"
PAPERS = ("adaptive", "wave", "mixtures")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def browser() -> str:
    """$DECIBEL_BROWSER, or the first that is installed."""
    found = os.environ.get("DECIBEL_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise SystemExit("`make papers` prints with a browser: install chromium, or name one by DECIBEL_BROWSER.")
    return found


def main() -> None:
    program = browser()
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", f"--user-data-dir={profile}"]
        wait = "--virtual-time-budget=20000"  # until the formulas are set
        for name in PAPERS:
            page = ROOT / "site" / "evidence" / name / "index.html"
            target = OUT / f"{name}.pdf"
            if not page.exists():
                raise SystemExit(f"{page.relative_to(ROOT)} does not exist: build the site first with `make docs`.")
            target.unlink(missing_ok=True)
            command = [program, *flags, wait, f"--print-to-pdf={target}", page.as_uri()]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
            if not target.exists():
                raise SystemExit(f"{program} wrote no {target.relative_to(ROOT)}: try another one by DECIBEL_BROWSER.")
            print(target.relative_to(ROOT))


if __name__ == "__main__":
    main()
