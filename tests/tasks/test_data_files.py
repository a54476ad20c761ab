"""Readers of single files: idx, LIBSVM text, npz, text; sound, damaged and hostile."""

import gzip
import io
import lzma
import pickle
import zipfile

import numpy as np
import pytest
from data_files import (
    IMAGES,
    ROWS,
    TARGETS,
    idx,
    npz,
    place_mnist,
    write,
)

from decibel.tasks import data
from decibel.tasks.data import formats

# idx


@pytest.fixture
def small_mnist(register):
    register("mnist", *({"rows": rows} for rows in (5, 5, 2, 2)))


def test_idx_images_become_floats(roots, small_mnist):
    place_mnist(roots[0])
    mnist = data.load("mnist")
    assert mnist.x_train.shape == (5, 28, 28) and mnist.x_test.shape == (2, 28, 28)
    assert mnist.x_train.dtype == np.float32 and mnist.x_train.flags.writeable
    np.testing.assert_allclose(mnist.x_train * 255, IMAGES, atol=1e-4)
    assert mnist.y_train.tolist() == TARGETS.tolist() and mnist.y_train.dtype == np.int32
    assert (mnist.name, mnist.classes, len(mnist.class_names)) == ("mnist", 10, 10)


@pytest.mark.parametrize(
    ("name", "body", "reason"),
    [
        ("train-images-idx3", b"\x00\x00\x0d\x03" + idx(IMAGES)[4:], "magic number is 00000d03"),
        ("train-images-idx3", idx(IMAGES)[:-1], "promises 3920 bytes and 3919 follow"),
        ("train-images-idx3", idx(IMAGES) + b"x", "promises 3920 bytes and 3921 follow"),
        ("train-images-idx3", b"\x00\x00\x08", "header needs 16 bytes"),
        ("train-images-idx3", b"\x00\x00\x08\x03" + b"\xff" * 12, "promises 79"),
        ("train-images-idx3", idx(IMAGES[:, :27]), "27×28, not 28×28"),
        ("train-labels-idx1", idx(TARGETS[:4]), "4 labels go with 5 images"),
        ("train-labels-idx1", idx(TARGETS + 1), "from 1 to 10, not from 0 to 9"),
        ("t10k-labels-idx1", idx(IMAGES[:2]), "magic number"),
    ],
)
def test_a_damaged_idx_file_is_named(roots, small_mnist, name, body, reason):
    place_mnist(roots[0], **{name: body})
    with pytest.raises(data.DamagedData, match=reason) as caught:
        data.load("mnist")
    assert f"{name}-ubyte.gz is damaged" in str(caught.value)


def test_fewer_samples_than_published_raise(roots, register):
    register("mnist", *({"rows": rows} for rows in (6, 6, 2, 2)))
    place_mnist(roots[0])
    with pytest.raises(data.DamagedData, match="5 labels go with 5 images, not 6 with 6"):
        data.load("mnist")


@pytest.mark.parametrize("spoil", [lambda b: b[:-9], lambda b: b"no gzip", lambda b: b[:20] + b"\xff" + b[21:]])
def test_a_broken_gzip_is_named(roots, small_mnist, spoil):
    place_mnist(roots[0])
    path = roots[0] / "mnist/train-images-idx3-ubyte.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(data.DamagedData, match=r"train-images-idx3-ubyte.gz is damaged: gzip says"):
        data.load("mnist")


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch, suffix, pack):
    monkeypatch.setattr(formats, "LIMIT", 1000)
    path = write(tmp_path / f"bomb.{suffix}", pack(bytes(10**6)))
    with pytest.raises(data.DamagedData, match="unpacks to more than 1000 bytes"):
        formats.content(path)


# LIBSVM text


def test_libsvm_becomes_dense_with_labels_zero_and_one(roots, register):
    register("australian", {"rows": 2})
    write(roots[0] / "libsvm/australian", ROWS)
    australian = data.load("australian")
    assert australian.x_train.shape == (2, 14) and australian.x_train.dtype == np.float32
    assert australian.y_train.tolist() == [1, 0] and australian.classes == 2
    assert [australian.x_train[0, 2], australian.x_train[1, 1], australian.x_train[1, 13]] == [-2, 1000, 7]
    assert australian.x_test.shape == (0, 14) and len(australian.y_test) == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (ROWS[:-2], "ends in the middle of a row"),
        (b"", "ends in the middle of a row"),
        (ROWS[:15], "it has 1 rows, not 2"),
        (ROWS.replace(b"14:7", b"15:7"), "line 2 has .* index 3 to 14"),
        (ROWS.replace(b"3:-2", b"0:-2"), "line 1 has"),
        (ROWS.replace(b"3:-2", b"1:-2"), "line 1 has"),
        (ROWS.replace(b"3:-2", b"3"), "line 1 has"),
        (ROWS.replace(b"3:-2", b"3:two"), "not a number"),
        (ROWS.replace(b"3:-2", b"3:nan"), "line 1 has a value that is not finite"),
        (ROWS.replace(b"-1 ", b"7 "), "line 2 does not begin with the label"),
        (b"\x80\x04\x95 \n", "line 1 does not begin"),
        (b"\n" * 2_000_001, "more than 2000000 lines"),
    ],
)
def test_damaged_libsvm_text_is_named(roots, register, body, reason):
    register("australian", {"rows": 2})
    write(roots[0] / "libsvm/australian", body)
    with pytest.raises(data.DamagedData, match=reason) as caught:
        data.load("australian")
    assert "libsvm/australian is damaged" in str(caught.value)


# npz


def test_the_subset_is_read(roots, register):
    register("cifar10-subset", {"rows": 4})
    write(roots[0] / "cifar10-subset/cifar10-subset.npz", npz())
    subset = data.load("cifar10-subset")
    assert subset.x_train.shape == (4, 32, 32, 3) and subset.y_test.tolist() == [5, 6]
    assert subset.x_train.min() >= 0 and subset.x_train.max() <= 1


def missing_y_test() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(npz())) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            if name != "y_test.npy":
                new.writestr(name, old.read(name))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda: npz(y_test=np.array([print, len], object)), "holds Python objects"),
        (lambda: npz(y_train=np.array([0, 1, 2, 10])), "from 0 to 10"),
        (lambda: npz(y_train=np.array([0, 1, 2])), "3 labels go with 4 images"),
        (lambda: npz(x_test=np.zeros((2, 32, 32, 3))), "float64"),
        (lambda: npz(y_test=np.zeros((2, 1), int)), "not a row of integers"),
        (missing_y_test, "does not hold y_test"),
        (lambda: npz()[:-40], "it cannot be read"),
        (lambda: pickle.dumps(print), "it cannot be read"),
    ],
)
def test_a_damaged_or_hostile_npz_raises(roots, register, body, reason):
    register("cifar10-subset", {"rows": 4})
    write(roots[0] / "cifar10-subset/cifar10-subset.npz", body())
    with pytest.raises(data.DamagedData, match=reason):
        data.load("cifar10-subset")


# Text


def test_documents_stand_between_blank_lines(roots):
    write(roots[0] / "text/wiki.txt.xz", lzma.compress("One\ntwo\n\n \n    Ünï three\n\n\n".encode()))
    assert data.load_text(["wiki"]) == {"wiki": ("One\ntwo", "    Ünï three")}
    assert data.load_text("wiki") == data.load_text(["wiki"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"plain text, not packed at all", "xz says"),
        (lzma.compress(b"words " * 999)[:-20], "cut short"),
        (lzma.compress(b"words") + b"more", "followed by something else"),
        (lzma.compress(b"w\xff"), "byte 1 is not UTF-8"),
        (lzma.compress(b"\n \n"), "holds no text"),
        (lzma.compress(b"a\n\n" * 1_000_001), "more than 2000000 lines"),
    ],
)
def test_damaged_text_is_named(roots, body, reason):
    write(roots[0] / "text/wiki.txt.xz", body)
    with pytest.raises(data.DamagedData, match=reason) as caught:
        data.load_text(["wiki"])
    assert "wiki.txt.xz is damaged" in str(caught.value)


def test_all_domains_or_a_sentence(roots):
    with pytest.raises(data.MissingData, match="text/wiki is not on this machine: set DECIBEL_DATA"):
        data.load_text()
    with pytest.raises(ValueError, match="did you mean 'books'"):
        data.load_text(["book"])
