"""The data layer: readers on small files made here, damaged and hostile ones, the search order and the cache."""

import dataclasses
import gzip
import hashlib
import io
import lzma
import pickle
import struct
import tarfile
import wave
import zipfile
from pathlib import Path

import numpy as np
import pooch
import pytest

from decibel.tasks import data
from decibel.tasks.data import archives, cache, formats, registry, sets


@pytest.fixture
def roots(tmp_path, monkeypatch):
    """An empty data folder and an empty cache; the network is out of reach."""
    folder, store = tmp_path / "data", tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("DECIBEL_DATA", str(folder))
    monkeypatch.setattr(cache, "cache_folder", lambda: store)
    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", lambda *_: pytest.fail("the test asked the network"))
    return folder, store


@pytest.fixture
def register(monkeypatch):
    """Put a smaller version of a registered dataset in its place."""

    def put(name: str, *changes: dict):
        origin = registry.SOURCES[name]
        files = tuple(dataclasses.replace(file, **change) for file, change in zip(origin.files, changes, strict=True))
        small = {**registry.SOURCES, name: dataclasses.replace(origin, files=files)}
        for module in (registry, cache):
            monkeypatch.setattr(module, "SOURCES", small)

    return put


def write(path: Path, body: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return path


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# idx


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IMAGES = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
TARGETS = np.array([0, 9, 3, 3, 1], np.uint8)
IDX_FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def place_mnist(folder: Path, **bodies: bytes) -> None:
    made = dict(zip(IDX_FILES, (idx(IMAGES), idx(TARGETS), idx(IMAGES[:2]), idx(TARGETS[:2])), strict=True))
    for name, body in {**made, **bodies}.items():
        write(folder / f"mnist/{name}-ubyte.gz", gzip.compress(body))


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


def test_fewer_samples_than_published_are_refused(roots, register):
    register("mnist", *({"rows": rows} for rows in (6, 6, 2, 2)))
    place_mnist(roots[0])
    with pytest.raises(data.DamagedData, match="5 labels go with 5 images, not 6 with 6"):
        data.load("mnist")


@pytest.mark.parametrize("spoil", [lambda b: b[:-9], lambda b: b"no gzip", lambda b: b[:20] + b"\xff" + b[21:]])
def test_a_broken_gzip_is_named(roots, small_mnist, spoil):
    place_mnist(roots[0])
    path = roots[0] / "mnist/train-images-idx3-ubyte.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(data.DamagedData, match="train-images-idx3-ubyte.gz is damaged: gzip says"):
        data.load("mnist")


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch, suffix, pack):
    monkeypatch.setattr(formats, "LIMIT", 1000)
    path = write(tmp_path / f"bomb.{suffix}", pack(bytes(10**6)))
    with pytest.raises(data.DamagedData, match="unpacks to more than 1000 bytes"):
        formats.content(path)


# LIBSVM text

ROWS = b"+1 1:0.5 3:-2 \n-1 2:1e3 14:7\n"


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
    ],
)
def test_damaged_libsvm_text_is_named(roots, register, body, reason):
    register("australian", {"rows": 2})
    write(roots[0] / "libsvm/australian", body)
    with pytest.raises(data.DamagedData, match=reason) as caught:
        data.load("australian")
    assert "libsvm/australian is damaged" in str(caught.value)


# npz


def npz(**changes: np.ndarray) -> bytes:
    rng = np.random.default_rng(1)
    arrays = {
        "x_train": rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8),
        "y_train": np.array([0, 1, 2, 9], np.uint8),
        "x_test": rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8),
        "y_test": np.array([5, 6], np.uint8),
    }
    stream = io.BytesIO()
    np.savez_compressed(stream, **{**arrays, **changes})
    return stream.getvalue()


def test_the_subset_is_read(roots, register):
    register("cifar10-subset", {"rows": 4})
    write(roots[0] / "cifar10-subset/cifar10-subset.npz", npz())
    subset = data.load("cifar10-subset")
    assert subset.x_train.shape == (4, 32, 32, 3) and subset.y_test.tolist() == [5, 6]
    assert 0 <= subset.x_train.min() and subset.x_train.max() <= 1


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
        (lambda: npz(y_test=np.array([print, len], object)), "allow_pickle=False"),
        (lambda: npz(y_train=np.array([0, 1, 2, 10])), "from 0 to 10"),
        (lambda: npz(y_train=np.array([0, 1, 2])), "3 labels go with 4 images"),
        (lambda: npz(x_test=np.zeros((2, 32, 32, 3))), "float64"),
        (lambda: npz(y_test=np.zeros((2, 1), int)), "not a row of integers"),
        (missing_y_test, "does not hold y_test"),
        (lambda: npz()[:-40], "numpy says"),
        (lambda: pickle.dumps(print), "numpy says"),
    ],
)
def test_a_damaged_or_hostile_npz_is_refused(roots, register, body, reason):
    register("cifar10-subset", {"rows": 4})
    write(roots[0] / "cifar10-subset/cifar10-subset.npz", body())
    with pytest.raises(data.DamagedData, match=reason):
        data.load("cifar10-subset")


# CIFAR-10: the opcodes that Python 2's cPickle wrote for its authors


def text2(value: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(value)) + value


def array2(shape: tuple[int, int], body: bytes) -> bytes:
    reconstruct = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    rows, columns = (b"J" + struct.pack("<i", size) for size in shape)
    return reconstruct + b"(K\x01" + rows + columns + b"\x86" + dtype + b"\x89" + text2(body) + b"tb"


def batch(images: np.ndarray, labels: list[int], data: bytes | None = None) -> bytes:
    body = array2((len(images), 3072), images.tobytes()) if data is None else data
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + b"".join(text2(b"x.png") for _ in labels) + b"e"
    fields = {b"batch_label": text2(b"batch"), b"data": body, b"labels": listed, b"filenames": names}
    return b"\x80\x02}(" + b"".join(text2(key) + value for key, value in fields.items()) + b"u."


PLANES = np.random.default_rng(2).integers(0, 256, (3, 3072), dtype=np.uint8)


def cifar(**bodies: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name in ("batches.meta", *archives.CIFAR_BATCHES):
            body = bodies.get(name, batch(PLANES, [0, 9, 4]))
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    return stream.getvalue()


@pytest.fixture
def place_cifar(roots, register):
    register("cifar10", {"rows": 3})
    return lambda body: write(roots[0] / "cifar10/cifar-10-python.tar.gz", body)


def test_the_published_cifar_format_is_read(place_cifar):
    place_cifar(cifar())
    cifar10 = data.load("cifar10")
    assert cifar10.x_train.shape == (15, 32, 32, 3) and cifar10.x_test.shape == (3, 32, 32, 3)
    assert cifar10.y_train.tolist() == [0, 9, 4] * 5
    expected = PLANES.reshape(3, 3, 32, 32)[1, 2, 5, 7]  # sample 1, blue, row 5, column 7
    assert round(float(cifar10.x_train[4, 5, 7, 2]) * 255) == expected


def test_the_handmade_pickle_is_what_numpy_reads():
    """So the reader is tested on the format itself and not on its own idea of it."""
    read = pickle.loads(batch(PLANES, [0, 9, 4]).replace(b"numpy.core", b"numpy._core"), encoding="bytes")
    assert np.array_equal(read[b"data"], PLANES) and read[b"labels"] == [0, 9, 4]


HOSTILE = {
    "os.system": b"cos\nsystem\n(S'exit 3'\ntR.",
    "protocol 0": b"cposix\nsystem\n(S'exit 3'\ntR.",
    "builtins": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x031+1\x85R.",
    "numpy's own loader": b"cnumpy\nload\n(S'x'\ntR.",
    "dotted name": b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",
    "instance": b"(S'exit 3'\nios\nsystem\n.",
    "persistent id": b"Psystem\n.",
    "extension": b"\x80\x02\x82\x01.",
    "attributes on the class": b"\x80\x02cnumpy\nndarray\nN}S'__init__'\nK\x01s\x86b.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused(place_cifar, name):
    place_cifar(cifar(test_batch=HOSTILE[name]))
    with pytest.raises(data.DamagedData, match="test_batch cannot be read"):
        data.load("cifar10")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda: cifar(data_batch_2=batch(PLANES, [0, 9])), "data_batch_2"),
        (lambda: cifar(data_batch_2=batch(PLANES[:2], [0, 9])), "2 labels go with 2 images, not 3 with 3"),
        (lambda: cifar(data_batch_2=batch(PLANES, [0, 9, 10])), "from 0 to 10"),
        (lambda: cifar(data_batch_2=batch(PLANES, [0, 9, 4], b"K\x07")), "data_batch_2 does not hold data"),
        (lambda: cifar(data_batch_2=batch(PLANES, [0, 9, 4], array2((3, 3072), b"short"))), "does not hold data"),
        (lambda: cifar(data_batch_2=batch(PLANES, [0, 9, 4], array2((9, 1024), PLANES.tobytes()))), "not 3 rows"),
        (lambda: cifar(data_batch_2=batch(PLANES, [0, 9, 4])[:-50]), "data_batch_2 cannot be read"),
        (lambda: cifar()[:-200], "tar says"),
        (lambda: gzip.compress(b"no tar" * 200), "tar says"),
        (lambda: b"no gzip", "tar says"),
    ],
)
def test_a_damaged_cifar_archive_is_refused(place_cifar, body, reason):
    place_cifar(body())
    with pytest.raises(data.DamagedData, match=reason):
        data.load("cifar10")


def test_a_batch_that_is_a_link_is_not_followed(place_cifar, tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        entry = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        entry.type, entry.linkname = tarfile.SYMTYPE, str(write(tmp_path / "secret", b"secret"))
        archive.addfile(entry)
    place_cifar(stream.getvalue())
    with pytest.raises(data.DamagedData, match="does not hold cifar-10-batches-py/data_batch_1"):
        data.load("cifar10")


def test_a_tar_bomb_is_not_unpacked(place_cifar, monkeypatch):
    monkeypatch.setattr(archives, "LIMIT", 20_000)
    place_cifar(cifar())
    with pytest.raises(data.DamagedData, match="more than 20000 bytes"):
        data.load("cifar10")


# Spoken digits


def wav(samples: np.ndarray, channels: int = 1, width: int = 2, rate: int = 8000) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setparams((channels, width, rate, 0, "NONE", ""))
        sound.writeframes(samples.tobytes())
    return stream.getvalue()


TONE = (np.sin(np.arange(400) / 5) * 20_000).astype("<i2")


def zipped(entries: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in entries.items():
            archive.writestr(name, body)
    return stream.getvalue()


SPOKEN = {"recordings/": b"", "recordings/7_theo_12.wav": wav(TONE), "recordings/0_lucas_3.wav": wav(TONE[:90])}


@pytest.fixture
def place_speech(roots, register):
    register("fsdd", {"rows": 2})
    return lambda body: write(roots[0] / "fsdd/recordings.zip", body)


def test_recordings_are_read(place_speech):
    place_speech(zipped(SPOKEN))
    speech = data.load_speech()
    assert speech.digit.tolist() == [0, 7] and speech.speaker.tolist() == ["lucas", "theo"]
    assert speech.index.tolist() == [3, 12] and speech.rate == 8000
    assert speech.waveforms[1].dtype == np.float32
    np.testing.assert_allclose(speech.waveforms[1], TONE / 2**15, atol=1e-6)


@pytest.mark.parametrize(
    ("entry", "body", "reason"),
    [
        ("../7_theo_1.wav", wav(TONE), "is not recordings/"),
        ("/recordings/7_theo_1.wav", wav(TONE), "is not recordings/"),
        ("recordings/../../7_theo_1.wav", wav(TONE), "is not recordings/"),
        ("recordings/7_theo_1.wav\n", wav(TONE), "is not recordings/"),
        ("recordings/07_theo_012.wav", wav(TONE), "is not recordings/"),
        ("recordings/7_theo_012.wav", wav(TONE), "is there twice"),
        ("recordings/7_theo_1.wav", wav(TONE), "holds 3 recordings, not 2"),
        ("recordings/7_theo_1.wav", b"RIFFnonsense", "not a wav file"),
        ("recordings/7_theo_1.wav", wav(TONE)[:-100], "promises 400 samples and holds 350"),
        ("recordings/7_theo_1.wav", wav(TONE[:0]), "promises 0 samples"),
        ("recordings/7_theo_1.wav", wav(TONE, rate=16_000), "not 16-bit mono at 8000 Hz"),
        ("recordings/7_theo_1.wav", wav(TONE, channels=2), "not 16-bit mono at 8000 Hz"),
    ],
)
def test_damaged_or_hostile_recordings_are_refused(place_speech, entry, body, reason):
    place_speech(zipped({**SPOKEN, entry: body}))
    with pytest.raises(data.DamagedData, match=reason):
        data.load_speech()


def test_a_broken_or_exploding_zip_is_refused(place_speech, monkeypatch):
    good = zipped(SPOKEN)
    place_speech(good[:-30])
    with pytest.raises(data.DamagedData, match="zip says"):
        data.load_speech()
    at = good.index(b"7_theo_12.wav") + 40
    place_speech(good[:at] + b"\x55\x55" + good[at + 2 :])
    with pytest.raises(data.DamagedData, match="zip says"):
        data.load_speech()
    monkeypatch.setattr(archives, "LIMIT", 500)
    place_speech(good)
    with pytest.raises(data.DamagedData, match="more than 500 bytes"):
        data.load_speech()


# Text


def test_documents_stand_between_blank_lines(roots):
    write(roots[0] / "text/wiki.txt.xz", lzma.compress("One\ntwo\n\n \n    Ünï three\n\n\n".encode()))
    assert data.load_text(["wiki"]) == {"wiki": ("One\ntwo", "    Ünï three")}
    assert data.load_text("wiki") == data.load_text(["wiki"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"plain", "xz says"),
        (lzma.compress(b"words " * 999)[:-20], "cut short"),
        (lzma.compress(b"words") + b"more", "followed by something else"),
        (lzma.compress(b"w\xff"), "byte 1 is not UTF-8"),
        (lzma.compress(b"\n \n"), "holds no text"),
    ],
)
def test_damaged_text_is_named(roots, body, reason):
    write(roots[0] / "text/wiki.txt.xz", body)
    with pytest.raises(data.DamagedData, match=reason) as caught:
        data.load_text(["wiki"])
    assert "wiki.txt.xz is damaged" in str(caught.value)


def test_all_domains_or_a_sentence(roots):
    with pytest.raises(data.MissingData, match="text/wiki is not here: set DECIBEL_DATA"):
        data.load_text()
    with pytest.raises(ValueError, match="did you mean 'books'"):
        data.load_text(["book"])


# Finding


def test_digits_are_embedded(roots):
    first, again, other = data.load("digits"), data.digits(), data.digits(seed=1)
    assert first.x_train.shape == (1438, 8, 8) and first.x_test.shape == (359, 8, 8)
    assert first.x_train.dtype == np.float32 and first.x_train.max() == 1
    assert np.array_equal(first.x_test, again.x_test) and not np.array_equal(first.x_test, other.x_test)
    assert data.verify("digits") == [] and data.fetch("digits") == []


def test_a_missing_dataset_says_what_to_do(roots):
    with pytest.raises(data.MissingData) as caught:
        data.load("fashion-mnist")
    assert str(caught.value) == (
        "fashion-mnist is not here: run `decibel data fetch fashion-mnist` or set DECIBEL_DATA to a folder "
        "that holds fashion-mnist/train-images-idx3-ubyte.gz."
    )
    with pytest.raises(data.MissingData, match="fsdd is not here: set DECIBEL_DATA"):
        data.load_speech()


def test_the_data_folder_comes_before_the_cache(roots, register, monkeypatch):
    folder, store = roots
    register("australian", {"rows": 2})
    write(store / "libsvm/australian", ROWS.replace(b"14:7", b"14:8"))
    assert data.load("australian").x_train[1, 13] == 8
    write(folder / "libsvm/australian", ROWS)
    assert data.load("australian").x_train[1, 13] == 7
    monkeypatch.delenv("DECIBEL_DATA")
    assert data.load("australian").x_train[1, 13] == 8


def test_a_wrong_data_folder_is_not_passed_over(roots, monkeypatch):
    monkeypatch.setenv("DECIBEL_DATA", "nowhere/at/all")
    with pytest.raises(data.MissingData, match="DECIBEL_DATA='nowhere/at/all' is not a folder"):
        data.load("mnist")


def test_names_are_checked(roots):
    with pytest.raises(ValueError, match="did you mean 'fashion-mnist'"):
        data.load("fashon-mnist")
    with pytest.raises(ValueError, match="choose one of fashion-mnist"):
        data.fetch("zzz")
    with pytest.raises(ValueError, match=r"use load_speech\(\)"):
        data.load("fsdd")
    with pytest.raises(ValueError, match=r"use load_text\(\['wiki'\]\)"):
        data.load("text/wiki")


def test_available_says_where_each_set_is(roots, register):
    folder, store = roots
    place_mnist(folder)
    (folder / "mnist/t10k-labels-idx1-ubyte.gz").unlink()
    write(folder / "libsvm/australian", ROWS)
    write(store / "libsvm/a9a", ROWS)
    write(store / "libsvm/a9a.t", ROWS)
    rows = {row.name: row for row in data.available()}
    assert set(rows) == {"digits", *data.SOURCES}
    states = {name: rows[name].state for name in ("digits", "mnist", "australian", "a9a", "fsdd")}
    assert list(states.values()) == ["embedded", "partly", "data folder", "cache", "missing"]
    assert rows["australian"].bytes == len(ROWS) and rows["australian"].path == folder / "libsvm"
    assert all(row.licence for row in rows.values())


# Verifying and fetching


def test_verify_compares_the_content(roots, register):
    folder, _ = roots
    body = idx(IMAGES)
    register("mnist", {"sha256": sha(body)}, {"sha256": sha(b"other")}, {}, {"sha256": sha(idx(TARGETS[:2]))})
    place_mnist(folder)
    # The same content packed differently is the same data.
    write(folder / "mnist/train-images-idx3-ubyte.gz", gzip.compress(body, compresslevel=1))
    write(folder / "mnist/t10k-images-idx3-ubyte.gz", b"no gzip")
    (folder / "mnist/t10k-labels-idx1-ubyte.gz").unlink()
    checks = data.verify("mnist")
    assert [check.state for check in checks] == ["good", "damaged", "damaged", "missing"]
    assert "sha256" in checks[1].detail and "gzip says" in checks[2].detail
    assert len(data.verify()) == sum(len(origin.files) for origin in data.SOURCES.values())


def test_verify_forgives_trailing_blanks_in_libsvm_text(roots, register):
    register("australian", {"sha256": sha(ROWS.replace(b" \n", b"\n"))})
    write(roots[0] / "libsvm/australian", ROWS)
    assert data.verify("australian")[0].state == "good"


def serve(monkeypatch, *bodies):
    """Answer pooch's downloads with `bodies` in turn; an exception is raised."""
    left, asked = list(bodies), []

    def download(self, url, output, pooch, check_only=False):
        asked.append(url)
        body = left.pop(0)
        Path(output).write_bytes(body if isinstance(body, bytes) else b"half a fi")
        if isinstance(body, BaseException):
            raise body

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", download)
    return asked


def test_fetch_downloads_once_and_checks(roots, register, monkeypatch):
    _, store = roots
    register("australian", {"rows": 2, "sha256": sha(formats.canonical_libsvm(ROWS)), "published": sha(ROWS)})
    asked = serve(monkeypatch, ROWS)
    assert data.fetch("australian") == [store / "libsvm/australian"]
    assert data.fetch("australian") == [store / "libsvm/australian"]
    assert len(asked) == 1
    assert files_below(store) == [store / "libsvm/australian"]
    assert data.load("australian").y_train.tolist() == [1, 0]


@pytest.mark.parametrize("published", [sha(ROWS), None])
@pytest.mark.parametrize(
    "answer", [b"<html>not found</html>", ROWS[:-5], b"", OSError("no route"), KeyboardInterrupt()]
)
def test_a_failed_or_damaged_download_leaves_the_cache_clean(roots, register, monkeypatch, answer, published):
    _, store = roots
    register("australian", {"sha256": sha(formats.canonical_libsvm(ROWS)), "published": published})
    serve(monkeypatch, answer)
    expected = KeyboardInterrupt if isinstance(answer, KeyboardInterrupt) else data.DataError
    with pytest.raises(expected) as caught:
        data.fetch("australian")
    if expected is data.DataError:
        assert "australian could not be fetched from https://" in str(caught.value)
        assert "place libsvm/australian below DECIBEL_DATA" in str(caught.value)
    assert list(store.iterdir()) == []


def test_fetch_replaces_a_damaged_file_in_the_cache_only(roots, register, monkeypatch):
    folder, store = roots
    register("australian", {"sha256": sha(formats.canonical_libsvm(ROWS)), "published": sha(ROWS)})
    write(store / "libsvm/australian", b"damaged")
    serve(monkeypatch, OSError("no route"))
    with pytest.raises(data.DataError, match="no route"):
        data.fetch("australian")
    assert (store / "libsvm/australian").read_bytes() == b"damaged"
    serve(monkeypatch, ROWS)
    assert data.fetch("australian")[0].read_bytes() == ROWS
    write(folder / "libsvm/australian", b"damaged")
    with pytest.raises(data.DamagedData, match="data/libsvm/australian is damaged"):
        data.fetch("australian")


def test_fetch_packs_plain_text(roots, register, monkeypatch):
    words = b"First Citizen:\nSpeak.\n"
    register("text/tinyshakespeare", {"sha256": sha(words), "published": sha(words)})
    serve(monkeypatch, words)
    (path,) = data.fetch("text/tinyshakespeare")
    assert path.suffix == ".xz" and lzma.decompress(path.read_bytes()) == words
    assert data.load_text(["tinyshakespeare"])["tinyshakespeare"] == ("First Citizen:\nSpeak.",)


def test_what_has_no_public_original_is_placed_by_hand(roots):
    with pytest.raises(data.MissingData, match=r"place fsdd/recordings.zip below DECIBEL_DATA by hand"):
        data.fetch("fsdd")


def test_the_registry_is_sound():
    for name, origin in data.SOURCES.items():
        assert origin.name == name and origin.licence and origin.origin
        assert origin.kind in sets._READERS or origin.kind in ("wav", "text")
        for file in origin.files:
            hashes = [file.sha256, *([file.published] if file.published else [])]
            assert all(len(value) == 64 and int(value, 16) for value in hashes)
            assert file.published is None or file.url
            assert ".." not in file.path and not file.path.startswith("/")
            assert file.url is None or file.url.startswith("https://")


# The real files


@pytest.fixture
def real():
    def need(name: str):
        if not cache.os.environ.get("DECIBEL_DATA"):
            pytest.skip("DECIBEL_DATA is not set: the real files are not here")
        missing = [check.path for check in data.verify(name) if check.state == "missing"]
        if missing:
            pytest.skip(f"DECIBEL_DATA does not hold {missing[0]}")

    return need


@pytest.mark.parametrize("name", data.SOURCES)
def test_real_files_are_what_was_published(real, name):
    real(name)
    assert {check.state for check in data.verify(name)} == {"good"}


SHAPES = {
    "fashion-mnist": ((60_000, 28, 28), 10_000),
    "mnist": ((60_000, 28, 28), 10_000),
    "cifar10": ((50_000, 32, 32, 3), 10_000),
    "cifar10-subset": ((12_000, 32, 32, 3), 2_500),
    "australian": ((690, 14), 0),
    "australian_scale": ((690, 14), 0),
    "a9a": ((32_561, 123), 16_281),
}


@pytest.mark.parametrize("name", SHAPES)
def test_real_sets_load(real, name):
    real(name)
    loaded = data.load(name)
    shape, test = SHAPES[name]
    assert loaded.x_train.shape == shape and loaded.x_test.shape == (test, *shape[1:])
    assert set(np.unique(loaded.y_train)) == set(range(loaded.classes))
    assert loaded.x_train.dtype == np.float32 and np.isfinite(loaded.x_train).all()


def test_real_speech_loads(real):
    real("fsdd")
    speech = data.load_speech()
    assert len(speech.waveforms) == 3_000
    assert np.unique(speech.speaker, return_counts=True)[1].tolist() == [500] * 6
    assert np.bincount(speech.digit).tolist() == [300] * 10


def test_real_text_loads(real):
    for domain in ("tinyshakespeare", "speeches_state_union"):
        real(f"text/{domain}")
        documents = data.load_text([domain])[domain]
        assert len(documents) > 500 and not any("\n\n" in document for document in documents)
