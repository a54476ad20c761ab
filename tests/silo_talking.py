"""A site with its streams over gRPC, and no run behind it."""

from __future__ import annotations

import time

import numpy as np

from decibel.engines.silo._credentials import Credentials
from decibel.engines.silo._frames import Build
from decibel.engines.silo._site import Site
from decibel.engines.silo._streams import Streams


def wait_until(condition, seconds=15.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class Talking:
    def __init__(self, folders, number, home=None, status=None, build=None, **options):
        self.name, self.said = f"site-{number}", []
        self.home = home or folders.home(self.name)
        self.credentials = Credentials.load(self.home, self.name)
        self.site = Site(folders.federation, number, b"p" * 32, self.credentials, lossy=True, say=self.said.append)
        self.site.expect(np.float64, (3,))
        self.site.build = build or Build()
        self.streams = Streams(self.site, self.credentials, self.said.append, status, **options)
        self.streams.start()

    def close(self):
        self.site.goodbye(False)
        self.streams.close()
