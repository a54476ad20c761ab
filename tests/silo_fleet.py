"""All sites of a federation as processes, to be killed, stopped and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from silo_sites import Folders, Loopback
from xla import environment, kept_in

from decibel.core._files import atomic_write

WORKER = Path(__file__).parent / "silo_worker.py"


class Fleet:
    """All sites of a federation, as processes that can be killed and started again."""

    def __init__(self, folder, federation, network=Loopback, **settings):
        self.folder, self.settings = folder, settings
        self.network = network(federation, folder)
        self.federation = self.network.federation
        self.folders = Folders(folder, self.federation)
        self.processes = {}

    @property
    def names(self):
        return [site.name for site in self.federation.sites]

    def start(self, *names):
        for name in names or self.names:
            (self.folder / name / "status.json").unlink(missing_ok=True)
            settings = json.dumps(self.settings)
            worker = [sys.executable, WORKER, self.folder / name, name, self.folder / f"{name}.npz", settings]
            with open(self.folder / f"{name}.log", "ab") as log:
                self.processes[name] = subprocess.Popen(
                    [*self.network.command(name), *worker], stdout=log, stderr=log,
                    env=environment(**kept_in(self.folder.parent / "compiled")),
                )  # fmt: skip

    def kill(self, name, number=signal.SIGKILL):
        self.processes[name].send_signal(number)
        if number == signal.SIGKILL:
            self.processes.pop(name).wait()

    def hold(self, step):
        """Nobody begins that step before it is let go."""
        atomic_write(self.folder / "gate", str(step).encode())

    def let_go(self):
        (self.folder / "gate").unlink()

    def status(self, name):
        """Since it was started last."""
        path = self.folder / name / "status.json"
        return json.loads(path.read_text()) if path.exists() else None

    def step(self, name):
        status = self.status(name)
        return -1 if status is None else status["step"]

    def wait_until(self, condition, seconds=240):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, self.logs()
            assert not any(process.poll() for process in self.processes.values()), self.logs()
            time.sleep(0.1)

    def wait_for_step(self, step, names=()):
        self.wait_until(lambda: min(self.step(name) for name in names or self.names) >= step)

    def wait_for_news(self, name, seconds):
        """Until a site has told how it is, that many seconds from now or later."""
        after = time.time() + seconds
        self.wait_until(lambda: self.status(name)["time"] > after)

    def finish(self, seconds=900, level="x"):
        """Every site's x (or y), once all have ended well."""
        until = time.monotonic() + seconds
        codes = {name: one.wait(max(1.0, until - time.monotonic())) for name, one in self.processes.items()}
        assert not any(codes.values()), self.logs()
        return np.stack([np.load(self.folder / f"{name}.npz")[level] for name in self.names])

    def logs(self):
        logs = [self.folder / f"{name}.log" for name in self.names]
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in logs if path.exists())

    def end(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        self.network.end()
