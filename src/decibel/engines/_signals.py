"""SIGTERM: a run that is saved ends in order instead of being killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils

from ._run import Run


@contextmanager
def listening(run: Run, *, saved: bool) -> Iterator[Callable[[], bool]]:
    """While it lasts, SIGTERM interrupts a run that is `saved`, wherever it waits. Gives a function that tells whether
    any process of the run was told to terminate."""
    heard = False

    def hear(*_: object) -> None:
        nonlocal heard
        heard = True
        run.interrupt()

    def interrupted() -> bool:
        told = np.asarray(heard, np.int32)
        if saved and jax.process_count() > 1:
            told = multihost_utils.process_allgather(told)
        return bool(np.any(told))

    if not saved or threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGTERM, before)
