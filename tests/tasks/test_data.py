"""The data layer: where files are looked for, verified, fetched, and the real ones."""

import gzip
import lzma
import os
from pathlib import Path

import numpy as np
import pooch
import pytest
from data_files import (
    IMAGES,
    ROWS,
    TARGETS,
    files_below,
    idx,
    place_mnist,
    sha,
    write,
)

from decibel.tasks import data
from decibel.tasks.data import formats, sets

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
        "fashion-mnist is not on this machine: run `decibel data fetch fashion-mnist` or set DECIBEL_DATA to a folder "
        "that holds fashion-mnist/train-images-idx3-ubyte.gz."
    )
    with pytest.raises(data.MissingData, match="fsdd is not on this machine: set DECIBEL_DATA"):
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
    left, config = list(bodies), []

    def download(self, url, output, pooch, check_only=False):
        config.append(url)
        body = left.pop(0)
        Path(output).write_bytes(body if isinstance(body, bytes) else b"half a fi")
        if isinstance(body, BaseException):
            raise body

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", download)
    return config


def test_fetch_downloads_once_and_checks(roots, register, monkeypatch):
    _, store = roots
    register("australian", {"rows": 2, "sha256": sha(formats.canonical_libsvm(ROWS)), "published": sha(ROWS)})
    config = serve(monkeypatch, ROWS)
    assert data.fetch("australian") == [store / "libsvm/australian"]
    assert data.fetch("australian") == [store / "libsvm/australian"]
    assert len(config) == 1
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
        if not os.environ.get("DECIBEL_DATA"):
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


@pytest.mark.slow_except("australian")
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
