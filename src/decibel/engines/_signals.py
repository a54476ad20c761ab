"""SIGTERM and Ctrl-C: a run that is saved ends in order instead of being killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils

from ._run import Run

_heard_by: Callable[..., None] | None = None  # the handler of a run in progress


@contextmanager
def listening(run: Run, *, saved: bool) -> Iterator[Callable[[], bool]]:
    """While it lasts, SIGTERM and Ctrl-C interrupt a run that is `saved`, wherever it waits; a second Ctrl-C ends it at
    once. Gives a function that tells whether any process of the run was told to terminate."""
    global _heard_by
    heard = False

    def hear(number: int, _: object) -> None:
        nonlocal heard
        if heard and number == signal.SIGINT:
            raise KeyboardInterrupt
        heard = True
        run.interrupt()

    def interrupted() -> bool:
        signals = np.asarray(heard, np.int32)
        if saved and jax.process_count() > 1:
            signals = multihost_utils.process_allgather(signals)
        return bool(np.any(signals))

    if not saved or threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    _heard_by = hear
    try:
        yield interrupted
    finally:
        _heard_by = None
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """While it lasts, SIGTERM ends the process as if no run listened: for what takes long, in which Python's handlers
    are not called, and after which there is nothing new to save."""
    main = threading.current_thread() is threading.main_thread()
    if not main or _heard_by is None or signal.getsignal(signal.SIGTERM) is not _heard_by:
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
