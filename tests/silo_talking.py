"""A site with its streams over gRPC, and no run behind it."""

from __future__ import annotations

import threading
import time

import grpc
import numpy as np

from decibel.silo.protocol._clock import Clock
from decibel.silo.protocol._frames import Build
from decibel.silo.protocol._incarnation import next_incarnation
from decibel.silo.protocol._lockstep_site import LockstepSite
from decibel.silo.protocol._site import STOP
from decibel.silo.run._connections import Connections
from decibel.silo.trust._credentials import Credentials


def channel(home, address, to="site-0", *, certificate=True):
    """To a site at an address, by the papers in a folder."""
    root, *own = ((home / file).read_bytes() for file in ("authority.pem", "key.pem", "certificate.pem"))
    security = grpc.ssl_channel_credentials(root, *(own if certificate else []))
    options = {"ssl_target_name_override": to, "use_local_subchannel_pool": 1, "enable_http_proxy": 0}
    return grpc.secure_channel(address, security, [(f"grpc.{name}", value) for name, value in options.items()])


def wait_until(condition, seconds=15.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class Talking:
    def __init__(self, folders, number, home=None, status=None, build=None, restart=False, **options):
        self.name, self.said = f"site-{number}", []
        self.home = home or folders.home(self.name)
        self.credentials = Credentials.load(self.home, self.name)
        clock = Clock()
        self.site = LockstepSite(
            folders.federation,
            number,
            b"p" * 32,
            self.credentials,
            incarnation=next_incarnation(self.home, clock.time()),
            tolerates_loss=True,
            restart=restart,
            say=self.said.append,
            clock=clock,
        )
        self.site.expect(np.float64, (3,))
        self.site.build = build or Build()
        self.streams = Connections(self.site, self.credentials, self.said.append, status, **options)
        self.streams.start()

    def close(self):
        self.site.goodbye(False)
        self.streams.close()


class Group:
    """Sites of a federation in this process, to be started one by one; called with a number, it starts that one."""

    def __init__(self, folders):
        self.folders = folders
        self.started: list[Talking] = []

    def __call__(self, number, **options):
        self.started.append(Talking(self.folders, number, **options))
        return self.started[-1]

    def close(self):
        for one in self.started:
            one.close()
        self.started.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Walk(threading.Thread):
    """The steps of a site that computes nothing: it agrees with the others where to start, and exchanges zeros."""

    def __init__(self, talking, goal, saved=()):
        super().__init__(daemon=True)
        self.site, self.goal, self.saved = talking.site, goal, saved
        self.steps, self.error = [], None
        self.start()

    def run(self):
        others = tuple(self.site.edges)
        out = np.empty((len(others), 3)), np.empty(len(others), bool), np.empty(len(others), np.int32)
        try:
            step = self.site.agree_on_start(self.saved)
            while step < self.goal:
                step = self.site.begin_step(step)
                if step == STOP:
                    return
                self.steps.append(step)
                self.site.exchange(others, np.zeros(3), None, out)
                step += 1
            self.site.goodbye(True)
        except Exception as error:
            self.error = error
