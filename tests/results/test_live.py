"""The live view: what the server tells of a log that grows, breaks off or begins anew, and to whom; and the page."""

from __future__ import annotations

import http.client
import json
import math
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import browser
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.results.live import serve_beside, watch
from decibel.results.live._layout import MOST_SHOWN, layout
from decibel.results.live._log import news
from decibel.results.live._server import LOG as NAME
from decibel.results.live._server import PAGE, Server

NODES = 6


def begin(nodes: int = NODES, date: str = "monday", **about) -> dict:
    edges = [[i, (i + 1) % nodes] for i in range(nodes)]
    said = {"method": "sparkle-ed", "settings": {"alpha": 0.1}, "nodes": nodes, "steps": 200, "date": date, **about}
    return {"kind": "begin", "about": said, "graph": {"nodes": nodes, "edges": edges, "name": "ring"}}


def row(step: int, apart: float = 0.5, nodes: int = NODES) -> dict:
    numbers = {"step": step, "consensus_x": apart, "upper": 1 / (1 + step), "bytes": 8.0 * step, "seconds": 0.1 * step}
    return {"kind": "row", "step": step, "row": numbers, "nodes": [apart * (i + 1) for i in range(nodes)]}


def add(folder: Path, *lines: dict, end: str = "\n") -> None:
    with (folder / NAME).open("a") as file:
        file.write("".join(json.dumps(line) + end for line in lines))


def test_consensus_is_told_where_no_metric_has_it(tmp_path):
    bare = row(5)
    del bare["row"]["consensus_x"]
    add(tmp_path, begin(), bare)
    told = news(tmp_path / NAME)["lines"][-1]["row"]
    assert told["consensus_x"] == pytest.approx(np.mean(np.square(bare["nodes"])))


class Client:
    """Reads as the page does: from where it is, in the run that it knows."""

    def __init__(self, url: str) -> None:
        self.host = urlsplit(url).netloc
        self.offset, self.run = 0, ""

    def get(self, path: str, **headers: str) -> tuple[int, dict, bytes]:
        connection = http.client.HTTPConnection(self.host, timeout=20)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, dict(answer.headers), body

    def news(self) -> dict:
        status, _, body = self.get(f"/events?from={self.offset}&run={self.run}")
        assert status == 200
        told = json.loads(body)
        self.offset, self.run = told["offset"], told["run"]
        return told

    def steps(self) -> list[float]:
        return [line["step"] for line in self.news()["lines"] if line["kind"] == "row"]


@pytest.fixture
def client(tmp_path):
    with serve_beside(tmp_path) as url:
        assert url.startswith("http://127.0.0.1:")
        yield Client(url)


def test_lines_come_once_and_in_order(client, tmp_path):
    assert client.news()["lines"] == []
    add(tmp_path, begin(), row(0))
    told = client.news()
    assert [line["kind"] for line in told["lines"]] == ["begin", "row"] and not told["restarted"]
    assert told["lines"][0]["about"]["method"] == "sparkle-ed"
    assert told["lines"][0]["graph"] == {"nodes": NODES, "links": NODES, "name": "ring"}
    assert client.steps() == []
    add(tmp_path, row(10), row(20), {"kind": "end", "message": None})
    assert [line["kind"] for line in client.news()["lines"]] == ["row", "row", "end"]


def test_half_a_line_waits_for_its_other_half(client, tmp_path):
    whole = json.dumps(row(10)) + "\n"
    with (tmp_path / NAME).open("w") as file:
        file.write(json.dumps(begin())[:30])
        file.flush()
        assert client.news()["lines"] == []
        file.write(json.dumps(begin())[30:] + "\n" + whole[:40])
        file.flush()
        assert [line["kind"] for line in client.news()["lines"]] == ["begin"]
        file.write(whole[40:])
        file.flush()
        assert client.steps() == [10]


def test_a_new_run_in_the_same_folder_begins_anew(client, tmp_path):
    add(tmp_path, begin(), row(0), row(10))
    assert client.steps() == [0, 10]
    (tmp_path / NAME).write_text("")
    add(tmp_path, begin(date="tuesday"), row(0), row(10), row(20), row(30))
    told = client.news()
    assert told["restarted"] and [line["step"] for line in told["lines"][1:]] == [0, 10, 20, 30]


def test_a_file_cut_back_is_read_again(client, tmp_path):
    add(tmp_path, begin(), row(0), row(10), row(20))
    assert client.steps() == [0, 10, 20]
    lines = (tmp_path / NAME).read_text().splitlines(keepends=True)
    (tmp_path / NAME).write_text("".join(lines[:2]))
    told = client.news()
    assert told["restarted"] and [line["step"] for line in told["lines"][1:]] == [0]
    (tmp_path / NAME).unlink()
    assert client.news() | {"age": None} == {
        "run": "", "offset": 0, "restarted": True, "lines": [], "age": None, "more": False,
    }  # fmt: skip


def test_a_long_file_comes_in_parts(client, tmp_path):
    add(tmp_path, begin(), *(row(step, nodes=500) for step in range(300)))
    parts = [client.news()]
    while parts[-1]["more"]:
        parts.append(client.news())
    assert len(parts) > 1
    rows = [line for part in parts for line in part["lines"] if line["kind"] == "row"]
    assert [line["step"] for line in rows] == list(range(300))
    assert len(json.dumps(parts)) < (tmp_path / NAME).stat().st_size / 10
    assert rows[-1]["nodes"] == row(299, nodes=500)["nodes"] and rows[0]["nodes"] is None
    assert rows[0]["reach"] == [0.5, 250.0]


def test_what_is_no_line_of_a_log_is_passed_over(client, tmp_path):
    junk = ["not json", "[]", '"row"', '{"kind": "row"}', '{"kind": "row", "step": "x", "row": {}}', "{" * 5000, "null"]
    odd = (
        '{"kind": "row", "step": 1, "row": {"a": NaN, "b": 1e999, "c": "x", "d": true, "e": 2}, "nodes": [Infinity, 3]}'
    )
    text = [
        json.dumps(begin()),
        *junk,
        odd,
        '{"kind": "row", "step": 2, "row": {}, "nodes": 7}',
        f'{{"kind": "end", "x": {"9" * 400}}}',
    ]
    (tmp_path / NAME).write_bytes("\n".join([*text, ""]).encode() + b"\xff\xfe\n")
    lines = client.news()["lines"]
    assert [line["kind"] for line in lines] == ["begin", "row", "row", "end"]
    assert lines[1]["row"] == {"a": None, "b": None, "c": None, "d": None, "e": 2}
    assert lines[1]["nodes"] == [None, 3] and lines[1]["reach"] == [3, 3] and lines[2]["nodes"] is None


def test_the_layout_is_that_of_the_newest_run(client, tmp_path):
    assert json.loads(client.get("/layout")[2])["places"] == []
    add(tmp_path, begin(8), row(0), begin(4))
    told = json.loads(client.get("/layout")[2])
    assert told["nodes"] == 4 and told["links"] == [[0, 1], [0, 3], [1, 2], [2, 3]]


@pytest.mark.parametrize("graph", [db.graphs.ring(9), db.graphs.star(7), db.graphs.torus(3, 4), db.graphs.path(80)])
def test_nodes_lie_apart_and_inside(graph):
    told = layout(graph.nodes, sorted({tuple(sorted(edge)) for edge in graph.edges.tolist()}))
    places = np.array(told["places"])
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1) + 9 * np.eye(graph.nodes)
    assert np.abs(places).max() <= 1 and apart.min() > 0.01
    assert np.abs(places).max() == pytest.approx(1, abs=1e-3)


def test_many_nodes_are_a_block_without_links():
    for nodes, shown in ((400, 400), (10_000, MOST_SHOWN)):
        told = layout(nodes, [(0, 1)])
        assert told["block"] and told["links"] == [] and len(told["shown"]) == len(told["places"]) == shown
        assert told["shown"][0] == 0 and told["shown"][-1] == nodes - 1


def test_only_this_machine_is_answered(client):
    for host in (
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost:1@evil.example",
        "127.0.0.1:x",
        "",
    ):
        assert client.get("/events", Host=host)[0] == 421, host
    for host in ("127.0.0.1", "localhost:9000", "[::1]:80", client.host):
        assert client.get("/events", Host=host)[0] == 200, host


def test_it_listens_on_loopback_only(tmp_path):
    with Server(tmp_path, 0) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"


def test_nothing_else_is_served(client, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    add(tmp_path, begin())
    for path in ("/log.jsonl", "/secret.txt", "/../secret.txt", "/page/live.js", "//etc/passwd", "/%2e%2e/x"):
        assert client.get(path)[0] == 404, path
    assert client.get("/events?from=-1")[0] == client.get("/events?from=x")[0] == 400
    for path in PAGE:
        status, headers, _ = client.get(path)
        policy = headers["Content-Security-Policy"]
        assert status == 200 and "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_fetches_nothing_from_elsewhere_and_sets_no_markup(client):
    page, script = client.get("/")[2].decode(), client.get("/live.js")[2].decode()
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert {f"/{address}" for address in addresses} - {"/data:,"} == set(PAGE) - {"/"}
    assert "<script>" not in page and " style=" not in page and not re.search(r"\son\w+=", page)
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write", "http:"):
        assert word not in script.replace("http://www.w3.org/2000/svg", "")


def test_the_end_is_told_before_the_server_goes(tmp_path):
    add(tmp_path, begin(), row(0))
    with serve_beside(tmp_path) as url:
        client = Client(url)
        client.news()
        add(tmp_path, {"kind": "end", "message": None})
        heard = []
        reader = threading.Timer(0.3, lambda: heard.append(client.news()["lines"]))
        reader.start()
    reader.join()
    assert heard == [[{"kind": "end", "message": None}]]
    with pytest.raises(OSError):
        client.news()


def test_what_a_run_writes_is_what_the_page_reads(client, tmp_path):
    data = np.random.default_rng(0).normal(size=(5, 8, 2))
    problem = db.Problem(lambda x, batch: jnp.mean((x - batch) ** 2), upper_data=data, x0=jnp.ones(2))
    heard = []
    listen = lambda step, row: heard.append(client.news())  # noqa: E731
    options = {"metrics": ["consensus_x"], "eval_every": 5, "callbacks": [db.loggers.JSONL(tmp_path / NAME), listen]}
    result = db.solve(problem, db.ed(alpha=0.1), db.graphs.star(5), steps=20, **options)
    heard.append(client.news())
    lines = [line for told in heard for line in told["lines"]]
    assert [line["kind"] for line in lines] == ["begin", *["row"] * 5, "end"]
    assert [len(told["lines"]) for told in heard] == [2, 1, 1, 1, 1, 1]  # each row as soon as it is there
    assert lines[0]["about"]["method"] == "ed" and lines[0]["graph"] == {"nodes": 5, "links": 4, "name": "star"}
    assert [line["row"]["consensus_x"] for line in lines[1:-1]] == result.trace["consensus_x"].tolist()
    apart = np.linalg.norm(result.nodes.x - result.x, axis=1)
    assert lines[-2]["nodes"] == pytest.approx(apart, rel=1e-6)
    assert len(json.loads(client.get("/layout")[2])["links"]) == 4


@pytest.mark.slow
def test_watching_ends_with_ctrl_c(tmp_path):
    add(tmp_path, begin())
    script = "import sys; from pathlib import Path; from decibel.results.live import watch; watch(Path(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = process.stdout.readline()
        client = Client(re.search(r"http://127\.0\.0\.1:\d+/", said)[0])
        assert len(client.news()["lines"]) == 1
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "" and process.returncode == 0


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="is not a folder: give the folder of a run"):
        watch(tmp_path / "nowhere")
    with Server(tmp_path, 0) as server, pytest.raises(ValueError, match=r"port=\d+ cannot be used .*: choose another"):
        watch(tmp_path, server.server_port)


# In a browser.


@pytest.fixture(scope="module")
def chromium():
    with browser.chromium() as started:
        yield started


def fills(page) -> list[str]:
    return page.eval_on_selector_all("#graph .node", "nodes => nodes.map(node => node.style.fill)")


def drawn(page) -> list[float]:
    """Where the curve of the first chart ends, as its label for those who do not see it says."""
    return [float(x) for x in re.findall(r"after ([\d,]+)", page.get_attribute(".chart [role=img]", "aria-label"))]


def ink(page) -> int:
    """How many points of the first chart are drawn in the colour of its curve."""
    return page.evaluate(
        """() => {
          const canvas = document.querySelector(".chart canvas"), wide = canvas.width, tall = canvas.height;
          const data = canvas.getContext("2d").getImageData(0, 0, wide, tall).data;
          let count = 0;
          for (let k = 0; k < data.length; k += 4) if (data[k] < 60 && data[k + 1] > 90 && data[k + 2] > 150) count++;
          return count;
        }"""
    )


@pytest.mark.slow
def test_the_page_follows_a_run(chromium, tmp_path):
    with serve_beside(tmp_path) as url, browser.page(chromium) as page:
        page.goto(url)
        page.get_by_text("waiting", exact=True).wait_for()
        add(tmp_path, begin(task="<img src=x onerror=alert(1)>"), row(0, 0.0), row(10, 0.5), row(20, 0.9))
        page.get_by_text("running", exact=True).wait_for()
        page.get_by_role("heading", name="<img src=x onerror=alert(1)> by sparkle-ed").wait_for()
        browser.until(page, "document.querySelectorAll('#graph .node').length === 6")
        browser.until(page, "document.querySelectorAll('#graph line').length === 6")
        browser.until(page, "document.querySelectorAll('.chart').length === 2")
        browser.until(page, "document.querySelector('#graph .node').style.fill !== ''")
        before, curve = fills(page), ink(page)
        assert len(set(before)) == NODES and curve > 20
        add(tmp_path, *(row(10 * k, 0.9 * math.exp(-k)) for k in range(3, 12)))
        browser.until(page, "document.querySelector('#costs dd').textContent === '110 of 200'")
        assert all(old != new for old, new in zip(before, fills(page), strict=True))
        assert drawn(page) == [110] and ink(page) != curve
        page.select_option("#against", "bytes")
        page.select_option("#distribution", "log")
        assert len(page.query_selector_all(".chart")) == 2
        add(tmp_path, begin(date="tuesday", resumed=50), row(50), {"kind": "end", "message": "received a signal"})
        page.get_by_text("stopped", exact=True).wait_for()
        page.get_by_text("Stopped: received a signal.").wait_for()
        assert drawn(page) == [50]


@pytest.mark.slow
@pytest.mark.parametrize("size", browser.SIZES)
@pytest.mark.parametrize("scheme", browser.SCHEMES)
def test_the_page_fits(chromium, tmp_path, size, scheme):
    add(tmp_path, begin(), *(row(10 * k, math.exp(-k)) for k in range(9)), {"kind": "end", "message": None})
    with serve_beside(tmp_path) as url, browser.page(chromium, size, scheme) as page:
        page.goto(url)
        page.get_by_text("ended", exact=True).wait_for()
        page.wait_for_selector(".chart canvas")
        assert browser.overflow(page) == 0
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 200) == (scheme == "dark")
