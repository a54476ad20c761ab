"""The queue of frames to send over one stream. A neighbour that does not read is cut off before it costs memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

    from ..trust._credentials import Identity

ALWAYS = 2**18  # bytes that may wait besides messages


class SendQueue:
    """A bounded queue of frames to send, iterated by gRPC; its end closes the stream. `room`: bytes of messages that
    may be queued."""

    def __init__(
        self,
        close: Callable[[], object],
        room: int = 0,
        certificate: x509.Certificate | None = None,
        *,
        presented: Identity | None = None,
    ) -> None:
        self.certificate = certificate  # that the other end of this very stream has presented
        self.presented = presented  # what this end presented when it dialled
        self._close = close
        self._room = room + ALWAYS
        self._waiting: deque[bytes | int | None] = deque()  # an integer stands for a frame in `_newest`
        self._newest: dict[int, bytes] = {}
        self._size = 0
        self._ended = False
        self._concluded = False
        self._changed = threading.Condition()

    def send(self, frame: bytes) -> None:
        with self._changed:
            full = self._size + len(frame) > self._room
            if not (full or self._ended):
                self._put(frame)
        if full:
            self.hang_up()

    def send_newest(self, key: int, frame: bytes) -> None:
        """Replaces an older frame of that key that was not sent yet."""
        with self._changed:
            if not self._ended:
                if key not in self._newest:
                    self._waiting.append(key)
                    self._changed.notify()
                self._newest[key] = frame

    def end(self) -> None:
        with self._changed:
            if not self._ended:
                self._put(None)

    def conclude(self, frame: bytes) -> None:
        """Queues a final frame and ends the stream. A later `hang_up` has no effect, so that the frame can still
        arrive; `cut`, called after a delay, aborts the stream."""
        with self._changed:
            if not self._ended:
                self._clear()
                self._concluded = True
                self._put(frame)
                self._put(None)

    def hang_up(self) -> None:
        if not self._concluded:
            self.cut()

    def cut(self) -> None:
        with self._changed:
            self._clear()
            self._put(None)
        self._close()

    def _clear(self) -> None:
        self._waiting.clear()
        self._newest.clear()
        self._size = 0

    def _put(self, frame: bytes | None) -> None:
        self._ended = frame is None
        self._size += len(frame or b"")
        self._waiting.append(frame)
        self._changed.notify()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                frame = self._waiting.popleft()
                if isinstance(frame, int):
                    frame = self._newest.pop(frame)
                else:
                    self._size -= len(frame or b"")
            if frame is None:
                return
            yield frame
