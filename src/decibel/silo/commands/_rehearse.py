"""`decibel silo rehearse`: the whole federation on this machine, each site in its own process, on loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import IO

from rich.console import Console

from decibel.core import plain

from .._federation import LOOPBACK, Federation
from ._flows import report
from ._join import prepare
from ._run_site import status


def rehearse(toml: Path, problem: str, out: Path, console: Console) -> int:
    """Runs all sites to their end and returns the first exit status that is not 0. If one fails, all end."""
    federation = on_loopback(Federation.from_toml(toml))
    if federation.flow_limit is None:
        federation = replace(federation, trust_members=True)  # all of them are this machine
    homes = prepare(federation, out)
    processes = {name: start(name, problem, home) for name, home in homes.items()}
    readers = [
        threading.Thread(target=_show, args=(name, pipe), daemon=True)
        for name, process in processes.items()
        for pipe in (process.stdout, process.stderr)
        if pipe is not None
    ]
    for reader in readers:
        reader.start()
    code = 0
    try:
        for process in processes.values():
            code = code or process.wait()
            if code:
                break
    except KeyboardInterrupt:
        code = 130
    finally:
        for process in processes.values():
            if process.poll() is None and code:
                process.send_signal(signal.SIGTERM)
        for process in processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
    for reader in readers:
        reader.join(2.0)
    status(list(homes.values()), console)
    for line in report(homes, federation):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(f"Every site's trace and solution are in its folder under {out}.", soft_wrap=True, markup=False)
    return code


def on_loopback(federation: Federation) -> Federation:
    """The same federation with free ports of this machine instead of its addresses."""
    held = [socket.socket() for _ in federation.sites]
    for reserved in held:
        reserved.bind((LOOPBACK, 0))
    ports = [reserved.getsockname()[1] for reserved in held]
    for reserved in held:
        reserved.close()
    return federation.at([f"{LOOPBACK}:{port}" for port in ports])


def start(name: str, problem: str, home: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "decibel.cli", "silo", "run", name, "--problem", problem, "--home", str(home)]
    environment = {"JAX_PLATFORMS": "cpu", **os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _show(name: str, pipe: IO[bytes]) -> None:
    with pipe:
        for raw in pipe:
            line = plain(raw.decode(errors="replace").rstrip("\r\n"), longest=10_000)
            print(line if f"{name}: " in line[:80] else f"{name}: {line}", flush=True)
