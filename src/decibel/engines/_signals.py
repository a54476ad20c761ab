"""SIGTERM and Ctrl-C: a run with checkpoints saves and ends instead of being killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils

from ._run import Run

_installed_handler: Callable[..., None] | None = None  # the handler of a run in progress


@contextmanager
def graceful_termination(run: Run, *, checkpointed: bool) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether any process of the run received SIGTERM or Ctrl-C.

    In this context, these signals interrupt a run with checkpoints wherever it waits. A second Ctrl-C ends it at once.
    """
    global _installed_handler
    received = False

    def handle(number: int, _: object) -> None:
        nonlocal received
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received = True
        run.interrupt()

    def interrupted() -> bool:
        signals = np.asarray(received, np.int32)
        if checkpointed and jax.process_count() > 1:
            signals = multihost_utils.process_allgather(signals)
        return bool(np.any(signals))

    if not checkpointed or threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    _installed_handler = handle
    try:
        yield interrupted
    finally:
        _installed_handler = None
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """In this context, SIGTERM ends the process at once. It is for long operations during which Python calls no signal
    handlers, and after which there is nothing new to save.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or _installed_handler is None or signal.getsignal(signal.SIGTERM) is not _installed_handler:
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
