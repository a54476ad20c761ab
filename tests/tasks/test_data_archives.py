"""Readers of archives: CIFAR-10's pickles and spoken digits; sound, damaged and hostile."""

import gzip
import io
import pickle
import tarfile
import tracemalloc

import numpy as np
import pytest
from data_files import (
    PLANES,
    TONE,
    array2,
    batch,
    cifar,
    text2,
    wav,
    write,
    zipped,
)

from decibel.tasks import data
from decibel.tasks.data import archives

# CIFAR-10


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
def test_a_hostile_pickle_raises(place_cifar, name):
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
def test_a_damaged_cifar_archive_raises(place_cifar, body, reason):
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


def peak(call):
    """The most memory that Python held meanwhile, in bytes, beyond what it had."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def sparse_tar(claimed):
    """A sparse file of a hundred bytes or so that claims any size, as GNU tar writes it."""
    entry = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    header = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[483:495] = tarfile.itn(claimed, 12, tarfile.GNU_FORMAT)
    header[148:156] = b" " * 8
    header[148:155] = b"%06o\0" % sum(header)
    return gzip.compress(bytes(header) + bytes(1024))


def test_a_sparse_tar_does_not_get_what_it_claims(place_cifar):
    body = sparse_tar(3_300_000_000)
    place_cifar(body)

    def read():
        with pytest.raises(data.DamagedData, match="claims 3300000000 bytes"):
            data.load("cifar10")

    assert len(body) < 200 and peak(read) < 20e6


def doubled(times):
    """A batch whose labels are a list in which the one before lies twice, again and again."""
    fields = [text2(b"data") + array2((3, 3072), PLANES.tobytes()), b"K\x00](K\x01K\x02eq\x00"]
    fields += [b"K%c](h%ch%ceq%c" % (k + 1, k, k, k + 1) for k in range(times)]
    return b"\x80\x02}(" + b"".join(fields) + text2(b"labels") + b"h%c" % times + b"u."


BOMBS = {
    "lists in lists": doubled(26),
    "few lists in lists": doubled(7),
    "a place far away": b"\x80\x02]r\xff\xff\xff\x07.",
    "bytes to come": b"\x80\x05\x96" + (2**31).to_bytes(8, "little") + b".",
    "a frame to come": b"\x80\x04\x95" + (2**31).to_bytes(8, "little") + b".",
    "a key in which each half is a key": b"\x80\x02}K\x01q\x00"
    + b"".join(b"h%ch%c\x86q%c" % (k, k, k + 1) for k in range(60))
    + b"K\x01s.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_does_not_get_memory_that_it_does_not_fill(place_cifar, name):
    place_cifar(cifar(data_batch_1=BOMBS[name]))

    def read():
        with pytest.raises(data.DamagedData, match="data_batch_1"):
            data.load("cifar10")

    assert peak(read) < 20e6


# Spoken digits


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
def test_damaged_or_hostile_recordings_raise(place_speech, entry, body, reason):
    place_speech(zipped({**SPOKEN, entry: body}))
    with pytest.raises(data.DamagedData, match=reason):
        data.load_speech()


def test_a_broken_or_exploding_zip_raises(place_speech, monkeypatch):
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
