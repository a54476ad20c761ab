"""A terminal of a given width, for tests of what a person sees."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path
from typing import NamedTuple

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Shown(NamedTuple):
    code: int
    text: str  # without colours and cursor movements

    @property
    def lines(self) -> list[str]:
        """Every line that was ever drawn, also those that a progress bar drew over."""
        return re.split(r"[\r\n]+", self.text)


def typed(command: str, folder: Path, environment: dict[str, str], columns: int, seconds: float = 300) -> Shown:
    """What a terminal shows when a command is typed into a shell."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {key: value for key, value in environment.items() if key not in ("COLUMNS", "LINES")}
    shell = ["timeout", "--foreground", str(seconds), "bash", "-c", command]
    process = subprocess.Popen(
        shell, cwd=folder, env=environment | {"TERM": "xterm"}, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    shown = bytearray()
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    return Shown(process.wait(), ESCAPES.sub("", shown.decode(errors="replace")))
