"""A site's disk, which fails at any call as its schedule says, and after a power cut has only what was synced.

What a running process reads lies in a real folder, so that the product's readers need not know. Beside it is kept what
is on the disk: the content of a file since its last fsync, and the names in a folder since the folder's. A power cut
leaves of later writes nothing, all or a part, and of later changes of names the first few, in order.
`Calls` takes the place of `os` in `decibel.core._files`.
"""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

ERRORS = (errno.ENOSPC, errno.EMFILE, errno.EIO, errno.EINTR)


class PowerCut(BaseException):
    """The machine is off; nothing of the product catches it."""


class File:
    """`synced` is what is on the disk, None if nothing ever was."""

    def __init__(self, data: bytes = b"", synced: bytes | None = None) -> None:
        self.data, self.synced = data, synced

    def after_cut(self, chance: random.Random) -> bytes:
        if self.synced == self.data:
            return self.data
        kept = len(self.synced) if self.synced and self.data.startswith(self.synced) else 0  # only added to
        torn = self.data[: max(kept, chance.randrange(len(self.data) + 1))]
        return chance.choice([self.synced or b"", self.data, torn, torn + bytes(len(self.data) - len(torn))])


class Folder:
    """Its names as a process sees them; those on the disk, and the changes that are not there yet."""

    def __init__(self) -> None:
        self.names: dict[str, File | Folder] = {}
        self.synced: dict[str, File | Folder] = {}
        self.pending: list[Callable[[dict[str, File | Folder]], None]] = []

    def change(self, change: Callable[[dict[str, File | Folder]], None]) -> None:
        change(self.names)
        self.pending.append(change)

    def sync(self) -> None:
        self.synced, self.pending = dict(self.names), []

    def after_cut(self, chance: random.Random) -> None:
        for change in self.pending[: chance.randrange(len(self.pending) + 1)]:
            change(self.synced)
        self.names, self.pending = dict(self.synced), []
        for entry in self.names.values():
            if isinstance(entry, Folder):
                entry.after_cut(chance)
            else:
                entry.data = entry.synced = entry.after_cut(chance)


class Tree(Folder):
    """A folder that was written by calls that are not simulated: what is not synced of it fares alike."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.inode = os.stat(path).st_ino
        for entry in os.scandir(path):
            found = Tree(entry.path) if entry.is_dir() else File(Path(entry.path).read_bytes())
            self.change(lambda names, name=entry.name, found=found: names.__setitem__(name, found))

    def after_cut(self, chance: random.Random) -> None:
        self._cut(chance.choice([0.0, 0.5, 1.0]))

    def _cut(self, share: float) -> None:
        """That much of every file is on the disk."""
        if not share:
            self.names = dict(self.synced)
        self.sync()
        for entry in self.names.values():
            if isinstance(entry, Tree):
                entry._cut(share)
            elif isinstance(entry, File) and entry.synced is None:
                entry.data = entry.synced = entry.data[: int(share * len(entry.data))]


class Disk:
    """`fault(call, path)` gives an errno, "short" or "cut" for a call that is to fail, and None otherwise."""

    def __init__(self, root: Path, seed: str) -> None:
        self.root, self.chance = root, random.Random(seed)
        self._inside = f"{root}{os.sep}"
        self.top, self.off, self.struck = Folder(), False, 0
        self.foreign: str | None = None  # a folder in which calls write that are not simulated
        self.fault: Callable[[str, str], int | str | None] = lambda call, path: None
        root.mkdir(parents=True)

    def put(self, name: str, content: bytes) -> None:
        """A file that is there from the start."""
        self.top.names[name] = self.top.synced[name] = File(content, content)
        (self.root / name).write_bytes(content)

    def take_away(self, name: str) -> None:
        """A file that somebody moves elsewhere while nothing runs."""
        if self.top.names.pop(name, None) is not None:
            self.top.sync()
            (self.root / name).unlink()

    def make(self, name: str) -> None:
        """A folder that is there from the start."""
        self.top.names[name] = self.top.synced[name] = Folder()
        (self.root / name).mkdir()

    def adopt(self) -> None:
        """Takes over what is new in the foreign folder, as not synced."""
        if self.foreign is not None and not self.off:
            path = f"{self._inside}{self.foreign}"
            self._adopt(path, self.folder(path))

    def _adopt(self, path: str, folder: Folder) -> None:
        there = {entry.name: entry for entry in os.scandir(path)}
        for name, known in list(folder.names.items()):
            if name not in there or (isinstance(known, Tree) and known.inode != there[name].inode()):
                folder.change(lambda names, name=name: names.pop(name, None))
        for name, entry in sorted(there.items()):
            if name not in folder.names:
                new = Tree(entry.path) if name[0].isdigit() else Folder()
                folder.change(lambda names, name=name, new=new: names.__setitem__(name, new))
            known = folder.names[name]
            if isinstance(known, Folder) and not isinstance(known, Tree):
                self._adopt(entry.path, known)

    def read_as_it_is(self, name: str) -> bytes | None:
        """What is there, whatever calls would fail."""
        path = self.root / name
        return path.read_bytes() if path.is_file() else None

    def break_for(self, fault: int | str, often: float) -> None:
        """Until `heal`, so many of the calls fail; "cut" fails once."""

        def decide(call: str, path: str) -> int | str | None:
            if self.chance.random() >= often:
                return None
            if fault == "cut":
                self.heal()
            return self.chance.choice([*ERRORS, "short"]) if fault == "any" else fault

        self.fault = decide

    def heal(self) -> None:
        self.fault = lambda call, path: None

    def cut_power(self) -> None:
        """From here on every call raises; `start` is the machine's next start."""
        self.off = True
        self.struck += 1
        self.top.after_cut(self.chance)

    def start(self) -> None:
        """The machine, or a process that was killed, starts again."""
        if self.off:
            shutil.rmtree(self.root)
            self._write(self.root, self.top)
        self.off = False

    def _write(self, path: Path, folder: Folder) -> None:
        path.mkdir()
        for name, entry in folder.names.items():
            if isinstance(entry, Folder):
                self._write(path / name, entry)
            else:
                (path / name).write_bytes(entry.data)

    def holds(self, path: str) -> bool:
        return path.startswith(self._inside) or path == self._inside[:-1]

    def place(self, path: str) -> tuple[Folder, str]:
        """The folder that holds the name, and the name."""
        folder = self.top
        *parts, name = path.removeprefix(self._inside).split(os.sep)
        for part in parts:
            found = folder.names.get(part)
            if not isinstance(found, Folder):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            folder = found
        return folder, name

    def folder(self, path: str) -> Folder:
        if path == self._inside[:-1]:
            return self.top
        folder, name = self.place(path)
        found = folder.names[name]
        assert isinstance(found, Folder)
        return found

    def strike(self, call: str, path: str) -> str | None:
        """Before every call: raises what the schedule says; "short" is the writer's to do."""
        if self.off:
            raise PowerCut
        fault = self.fault(call, os.path.basename(path))
        self.struck += fault is not None
        if fault == "cut":
            self.cut_power()
            raise PowerCut
        if isinstance(fault, int):
            raise OSError(fault, os.strerror(fault), path)
        return fault if call == "write" else None


class Raw(io.RawIOBase):
    """An open file; Python's buffer above it sees short writes and EINTR as it would of the system."""

    def __init__(self, disk: Disk, path: str, number: int, file: File) -> None:
        self._disk, self._path, self._number, self._file = disk, path, number, file

    def write(self, content: bytes | memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        content = bytes(content)
        if self._disk.strike("write", self._path) == "short" and len(content) > 1:
            content = content[: self._disk.chance.randrange(1, len(content))]
        done = os.write(self._number, content)
        end = os.lseek(self._number, 0, os.SEEK_CUR)
        before = self._file.data[: end - done].ljust(end - done, b"\0")
        self._file.data = before + content[:done] + self._file.data[end:]
        return done

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._disk.strike("read", self._path)
        return os.readv(self._number, [buffer])

    def seek(self, offset: int, whence: int = 0) -> int:
        return os.lseek(self._number, offset, whence)

    def fileno(self) -> int:
        return self._number

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                CALLS.forget(self._number)


class Writer(io.BufferedWriter):
    def close(self) -> None:
        """What is left in the buffer of a machine that is off is not written, and says nothing when collected."""
        raw = self.raw
        try:
            super().close()
        finally:
            if not raw.closed:
                raw.close()


class Calls:
    """The part of `os` that `core._files` uses, for paths of the disks it knows; for others `os` itself."""

    def __init__(self) -> None:
        self._disks: list[Disk] = []
        self._open: dict[int, tuple[Disk, str, File | Folder]] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def add(self, disk: Disk) -> None:
        self._disks.append(disk)

    def clear(self) -> None:
        for number in list(self._open):
            self.forget(number)
        self._disks.clear()

    def forget(self, number: int) -> None:
        if self._open.pop(number, None) is not None:
            os.close(number)

    def is_folder(self, number: int) -> bool:
        return number in self._open and isinstance(self._open[number][2], Folder)

    def crash(self, disk: Disk) -> None:
        """A process is gone, and its files are closed."""
        for number in [number for number, (one, _, _) in self._open.items() if one is disk]:
            self.forget(number)

    def _disk(self, path: str | os.PathLike[str]) -> tuple[Disk | None, str]:
        path = os.fspath(path)
        for disk in self._disks:
            if disk.holds(path):
                return disk, path
        return None, path

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0o777) -> int:
        disk, path = self._disk(path)
        if disk is None:
            return os.open(path, flags, mode)
        disk.strike("open", path)
        disk.adopt()
        number = os.open(path, flags, mode)
        if flags & os.O_DIRECTORY:
            self._open[number] = disk, path, disk.folder(path)
            return number
        folder, name = disk.place(path)
        if name not in folder.names:
            made = File()
            folder.change(lambda names: names.__setitem__(name, made))
        found = folder.names[name]
        assert isinstance(found, File)
        self._open[number] = disk, path, found
        return number

    def fdopen(self, number: int, mode: str) -> io.IOBase:
        if number not in self._open:
            return os.fdopen(number, mode)
        disk, path, file = self._open[number]
        assert isinstance(file, File)
        raw = Raw(disk, path, number, file)
        if mode == "rb":
            return io.BufferedReader(raw)
        return Writer(raw) if mode == "wb" else io.BufferedRandom(raw)

    def close(self, number: int) -> None:
        if number not in self._open:
            os.close(number)
        else:
            self.forget(number)

    def fsync(self, number: int) -> None:
        if number not in self._open:
            os.fsync(number)
            return
        disk, path, entry = self._open[number]
        disk.strike("fsync", path)
        if isinstance(entry, Folder):
            entry.sync()
        else:
            entry.synced = entry.data

    def pread(self, number: int, count: int, offset: int) -> bytes:
        if number in self._open:
            self._open[number][0].strike("read", self._open[number][1])
        return os.pread(number, count, offset)

    def replace(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        disk, source = self._disk(source)
        target = os.fspath(target)
        if disk is None:
            os.replace(source, target)
            return
        disk.strike("replace", target)
        os.replace(source, target)
        (folder, old), (there, new) = disk.place(source), disk.place(target)
        assert folder is there, "files take their names in their own folder"
        moved = folder.names[old]

        def change(names: dict[str, File | Folder]) -> None:
            names.pop(old, None)
            names[new] = moved

        folder.change(change)

    def unlink(self, path: str | os.PathLike[str]) -> None:
        disk, path = self._disk(path)
        if disk is None:
            os.unlink(path)
            return
        disk.strike("unlink", path)
        os.unlink(path)
        folder, name = disk.place(path)
        folder.change(lambda names: names.pop(name, None))

    def makedirs(self, path: str | os.PathLike[str], exist_ok: bool = False) -> None:
        disk, path = self._disk(path)
        if disk is None or os.path.exists(path):
            os.makedirs(path, exist_ok=exist_ok)
            return
        self.makedirs(os.path.dirname(path), exist_ok=True)
        disk.strike("mkdir", path)
        os.mkdir(path)
        (folder, name), made = disk.place(path), Folder()
        folder.change(lambda names: names.__setitem__(name, made))

    def rmtree(self, path: str | os.PathLike[str]) -> None:
        """Not of the product: how the simulated checkpoints delete an old one."""
        disk, path = self._disk(path)
        assert disk is not None
        disk.strike("unlink", path)
        shutil.rmtree(path)
        folder, name = disk.place(path)
        folder.change(lambda names: names.pop(name, None))


CALLS = Calls()
