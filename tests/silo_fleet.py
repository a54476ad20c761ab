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


class Processes:
    """By name; what they print is in a folder."""

    def __init__(self, folder):
        self.folder, self.processes = folder, {}

    def launch(self, name, command, **given):
        given["env"] = environment(**kept_in(self.folder.parent / "compiled"), **given.get("env", {}))
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, **given)

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def logs(self):
        return "\n".join(f"{name}: {self.log(name)[-1500:]}" for name in self.processes)

    def wait_until(self, condition, seconds=240):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, self.logs()
            assert not any(process.poll() for process in self.processes.values()), self.logs()
            time.sleep(0.1)

    def end(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()


class Fleet(Processes):
    """All sites of a federation, as processes that can be killed and started again."""

    def __init__(self, folder, federation, network=Loopback, **settings):
        super().__init__(folder)
        self.settings = settings
        self.network = network(federation, folder)
        self.federation = self.network.federation
        self.folders = Folders(folder, self.federation)

    @property
    def names(self):
        return [site.name for site in self.federation.sites]

    def start(self, *names):
        for name in names or self.names:
            (self.folder / name / "status.json").unlink(missing_ok=True)
            self.launch(name, [*self.network.command(name), *self.command(name)], cwd=self.folder)

    def command(self, name):
        settings = json.dumps(self.settings)
        return [sys.executable, WORKER, self.folder / name, name, self.folder / f"{name}.npz", settings]

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

    def wait_for_step(self, step, names=()):
        self.wait_until(lambda: min(self.step(name) for name in names or self.names) >= step)

    def wait_for_news(self, name, seconds):
        """Until a site has told how it is, that many seconds from now or later."""
        after = time.time() + seconds
        self.wait_until(lambda: self.status(name)["time"] > after)

    def finish(self, seconds=900):
        """Every site's x, once all have ended well."""
        until = time.monotonic() + seconds
        codes = {name: one.wait(max(1.0, until - time.monotonic())) for name, one in self.processes.items()}
        assert not any(codes.values()), self.logs()
        return np.stack([np.load(self.folder / f"{name}.npz")["x"] for name in self.names])

    def end(self):
        super().end()
        self.network.end()
