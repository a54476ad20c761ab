"""Silo's rounds per second against bare gRPC streams of the same bytes: `python -m benchmarks.silo`.

Two processes on loopback, mutual TLS, one stream each way. Bare: each end sends a message of that size, waits for the
other's, and does nothing with it. Silo: `solve` on a problem whose step costs next to nothing and whose one message has
the same bytes, so that what is measured is frames, checks, the callback from the compiled step, and its copies. Both
take turns; what counts is the median over all blocks of rounds, of the slower end.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import records

SIZES = (10_000, 100_000, 1_000_000)
BLOCK = 20  # rounds between two looks at the clock; the first block warms up
COMMAND = "python -m benchmarks.silo --turns {} --json benchmarks/results/silo.json"


def federation(folder: Path) -> Any:
    from decibel.silo._federation import FaultTolerance, Federation, Member
    from decibel.silo.commands._join import prepare
    from decibel.silo.commands._rehearse import on_loopback

    sites = (Member("left", "127.0.0.1:1"), Member("right"))
    made = on_loopback(Federation("pair", sites, ((0, 1),), fault_tolerance=FaultTolerance(beat=1.0, missed=30)))
    prepare(made, folder)
    return made


def bare(home: Path, name: str, size: int, blocks: int) -> list[float]:
    """When each block of rounds ended, of a stream that carries bytes and nothing else."""
    import grpc

    from decibel.silo.trust._credentials import Credentials

    own = Credentials.load(home, name)
    address, message = own.federation.sites[0].address or "", bytes(size)
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", 2 * size + 4096),
        ("grpc.max_send_message_length", 2 * size + 4096),
    ]
    out: queue.SimpleQueue = queue.SimpleQueue()

    def rounds_with(incoming: Any) -> list[float]:
        times = []
        for _ in range(blocks):
            for _ in range(BLOCK):
                out.put(message)
                assert len(next(incoming)) == size
            times.append(time.perf_counter())
        out.put(None)
        return times

    if name == "right":
        security = grpc.ssl_channel_credentials(own.authority_pem, own.identity.key_pem, own.identity.certificate_pem)
        options.append(("grpc.ssl_target_name_override", "left"))
        with grpc.secure_channel(address, security, options) as channel:
            grpc.channel_ready_future(channel).result(60)
            call = channel.stream_stream("/bare/Edge")(iter(out.get, None))
            times = rounds_with(call)
            for _ in call:  # until the other end has heard all, too
                pass
            return times

    done: queue.SimpleQueue = queue.SimpleQueue()
    threads = ThreadPoolExecutor(4)

    def answer(incoming: Any, context: Any) -> Any:
        threads.submit(lambda: done.put(rounds_with(incoming)))
        yield from iter(out.get, None)

    server = grpc.server(threads, options=options)
    handler = grpc.stream_stream_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", {"Edge": handler}),))
    pair = [(own.identity.key_pem, own.identity.certificate_pem)]
    server.add_secure_port(address, grpc.ssl_server_credentials(pair, own.authority_pem, require_client_auth=True))
    server.start()
    times = done.get()
    time.sleep(0.5)
    server.stop(None)
    return times


def silo(home: Path, name: str, size: int, blocks: int) -> list[float]:
    """When each block of steps ended, of consensus on a vector of that many bytes."""
    import numpy as np

    import decibel as db

    entries = size // 4
    problem = db.Problem(
        lambda x, batch: 0.0 * (x[0] + batch.mean()), upper_data=lambda node: np.zeros(1, np.float32),
        x0=np.zeros(entries, np.float32),
    )  # fmt: skip
    engine = db.Silo(home, name)
    times: list[float] = []
    db.solve(
        problem, db.dsgd(alpha=0.1), engine.graph, steps=BLOCK * blocks, eval_every=BLOCK, metrics=[], engine=engine,
        callbacks=[lambda step, row: times.append(time.perf_counter())], progress=False,
    )  # fmt: skip
    return times[1:]  # the first row is of the start


def pair(kind: str, folder: Path, size: int, blocks: int) -> list[float]:
    """Seconds of each block of rounds of two processes, at the end that took longer for all of them."""
    command = [sys.executable, "-m", "benchmarks.silo", "--site", kind, str(size), str(blocks + 1)]
    started = [
        subprocess.Popen([*command, str(folder / name), name], stdout=subprocess.PIPE, text=True)
        for name in ("left", "right")
    ]
    ends = [json.loads(process.communicate(timeout=300)[0].splitlines()[-1]) for process in started]
    taken = [[after - before for before, after in pairwise(times)] for times in ends]
    return max(taken, key=sum)


def measure(turns: int = 5, blocks: int = 20) -> dict[str, Any]:
    rows = []
    for size in SIZES:
        found: dict[str, list[float]] = {"bare": [], "silo": []}
        for _ in range(turns):
            for kind, seconds in found.items():
                with tempfile.TemporaryDirectory() as folder:
                    federation(Path(folder))
                    seconds += pair(kind, Path(folder), size, blocks)
        bare_speed, silo_speed = (BLOCK / statistics.median(found[kind]) for kind in ("bare", "silo"))
        rows.append({"bytes": size, "bare": bare_speed, "silo": silo_speed, "share": silo_speed / bare_speed})
        print(f"{size:>9} bytes: bare {bare_speed:7.1f}/s, silo {silo_speed:7.1f}/s, {silo_speed / bare_speed:.0%}")
    ratios = {f"bare ÷ silo, {row['bytes']:,} bytes": 1 / row["share"] for row in rows}
    return records.record("silo", rows, ratios, command=COMMAND.format(turns), rounds=turns * blocks * BLOCK)


def main() -> None:
    if sys.argv[1:2] == ["--site"]:
        kind, size, blocks, home, name = sys.argv[2:]
        print(json.dumps({"bare": bare, "silo": silo}[kind](Path(home), name, int(size), int(blocks))))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    content = measure(options.turns)
    if options.json:
        records.write(content, options.json)


if __name__ == "__main__":
    main()
