"""Files that are replaced whole, and are on the disk when the call returns."""

from __future__ import annotations

import os
import stat
import tracemalloc
import zipfile

import numpy as np
import pytest

from decibel.core._files import append_line, atomic_write, atomic_writer, read_arrays


@pytest.fixture
def synced(monkeypatch):
    """What was synced, in order: "folder", or the content of the file at that time; and "replace"."""
    order, fsync, replace = [], os.fsync, os.replace

    def note(number):
        is_folder = stat.S_ISDIR(os.fstat(number).st_mode)
        order.append("folder" if is_folder else os.pread(number, 100, 0))
        fsync(number)

    def noted(path, target):
        order.append("replace")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", noted)
    return order


def test_the_content_is_on_the_disk_before_the_name_and_then_the_name(tmp_path, synced):
    atomic_write(tmp_path / "a", "new")
    assert synced == [b"new", "replace", "folder"]


def test_a_new_folders_own_name_is_on_the_disk_too(tmp_path, synced):
    atomic_write(tmp_path / "one" / "two" / "a", b"new")
    assert synced == ["folder", "folder", b"new", "replace", "folder"]


def test_notes_that_are_written_again_every_second_do_not_wait_for_the_disk(tmp_path, synced):
    atomic_write(tmp_path / "a", "new", durable=False)
    assert synced == ["replace"] and (tmp_path / "a").read_text() == "new"


@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
def test_a_crash_before_the_end_leaves_the_old_file_alone(tmp_path, monkeypatch, call):
    path = tmp_path / "a"
    atomic_write(path, "old")

    def crash(*_):
        raise OSError("no space left on device")

    if call != "write":
        monkeypatch.setattr(os, call, crash)
    with pytest.raises(OSError, match="no space"), atomic_writer(path) as file:
        file.write(b"ne")
        if call == "write":
            crash()
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_lines_are_added_one_by_one(tmp_path, synced):
    path = tmp_path / "lines"
    append_line(path, "one")
    assert synced == [b"one\n", "folder"]
    append_line(path, "two")
    with path.open("ab") as file:
        file.write(b"cut sh")
    append_line(path, "three")
    assert path.read_text() == "one\ntwo\ncut sh\nthree\n"


def test_a_line_is_on_the_disk_with_its_files_name_after_a_first_try_that_failed(tmp_path, monkeypatch, synced):
    """The first try made the file, and did not come to the name."""
    path = tmp_path / "lines"
    with monkeypatch.context() as broken:

        def fail(number):
            raise OSError("no space left on device")

        broken.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="no space"):
            append_line(path, "one")
    append_line(path, "two")
    assert synced[-1] == "folder"


def test_arrays_that_claim_too_much_are_not_unpacked(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.zeros(100_000), b=np.arange(3))
    assert read_arrays(path)["b"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"unpacks to 80\d{4} bytes, more than 100000"):
        read_arrays(path, 100_000)


@pytest.mark.parametrize(
    "said",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (268435456,), }",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (268435456,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    ],
)
def test_a_header_is_checked_before_memory_is_taken(tmp_path, said):
    """NumPy itself takes 2 GiB for the first of these."""
    path = tmp_path / "a.npz"
    header = said.encode().ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"is not as large as its header says|holds Python objects"):
            read_arrays(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array("words"), np.zeros((0, 3)),
     np.array(3.5), np.array([True, False])],
)  # fmt: skip
def test_arrays_come_back_and_can_be_written(tmp_path, array):
    np.savez_compressed(tmp_path / "a.npz", a=array)
    again = read_arrays(tmp_path / "a.npz")["a"]
    assert again.dtype == array.dtype and again.shape == array.shape and again.flags.writeable
    np.testing.assert_array_equal(again, array)
