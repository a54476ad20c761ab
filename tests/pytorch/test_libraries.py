"""The core needs no PyTorch; where it is missing or of another version, one sentence says what works."""

import pytest

import decibel as db
from decibel.torch import _libraries


@pytest.mark.parametrize(
    "found, there",
    [
        ({}, "neither"),
        ({"torch": "2.13.0", "torchax": "0.0.13"}, "torch 2.13.0 and torchax 0.0.13"),
        ({"torch": "2.1.2", "torchax": "0.0.13"}, "torch 2.1.2 and torchax 0.0.13"),
        ({"torch": "2.12.1"}, "torch 2.12.1"),
        ({"torch": "2.10.0", "torchax": "0.0.13"}, "torch 2.10.0 and torchax 0.0.13"),
        ({"torch": "2.12.1", "torchax": "0.0.1"}, "torch 2.12.1 and torchax 0.0.1"),
    ],
)
@pytest.mark.parametrize("call", [lambda: db.torch.from_torch(None), lambda: db.torch.problem(None, **GIVEN)])
def test_other_versions_raise_with_those_that_work(found, there, call, monkeypatch):
    monkeypatch.setattr(_libraries, "_found", found.get)
    _libraries.libraries.cache_clear()
    with pytest.raises(ImportError) as raised:
        call()
    assert str(raised.value) == (
        f"db.torch needs torch 2.11 or 2.12 and torchax 0.0.13 (found {there}): run "
        '`pip install "torch==2.12.*" --index-url https://download.pytorch.org/whl/cpu`, since the default wheel of '
        'torch brings CUDA, and then `pip install "decibel-opt[torch]"`.'
    )


GIVEN = {"upper": None, "lower": None, "upper_data": None, "lower_data": None, "x0": None}


@pytest.mark.parametrize("found, fits", [("2.12.1", True), ("2.11", True), ("2.120", False), ("2.13.0", False)])
def test_a_version_is_compared_by_its_parts(found, fits):
    assert _libraries._fits(found, ("2.11", "2.12")) == fits
