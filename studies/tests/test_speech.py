"""spdb/personal-speech: seeds that together test every recording once."""

from __future__ import annotations

import numpy as np
import pytest

from decibel.tasks import data
from decibel_studies.experiments import spdb_personal_speech
from decibel_studies.experiments.spdb_personal_speech import HELD_OUT, heard, recognition


def spoken(indices: int) -> data.Recordings:
    """Two digits of two speakers; a recording is its number."""
    rows = np.array([(digit, speaker, i) for digit in range(2) for speaker in range(2) for i in range(indices)])
    waves = tuple(np.array([number], np.float32) for number in range(len(rows)))
    names = np.array([f"speaker {speaker}" for speaker in rows[:, 1]])
    return data.Recordings(waves, rows[:, 0].astype(np.int32), names, rows[:, 2].astype(np.int32), 8_000)


@pytest.fixture
def fifty(monkeypatch):
    whole = spoken(50)
    monkeypatch.setattr(spdb_personal_speech, "tones", lambda speakers: whole)
    heard.cache_clear()
    yield whole
    heard.cache_clear()


def numbers(source: data.Recordings, which: np.ndarray) -> list[int]:
    return [int(source.waveforms[i][0]) for i in np.flatnonzero(which)]


def test_ten_seeds_test_every_recording_once(fifty, monkeypatch):
    monkeypatch.setattr(spdb_personal_speech, "speech", lambda source, **options: source)
    tested: list[int] = []
    for seed in range(1_000, 1_010):
        source = recognition("tones", 2, bands=1, frames=1, hidden=1, folds=10, shared=False, seed=seed)
        part = numbers(source, source.index < HELD_OUT)
        assert {fifty.index[i] // HELD_OUT for i in part} == {seed % 10} and len(part) == 4 * HELD_OUT
        tested += part
    assert sorted(tested) == list(range(200))


def test_what_a_seed_tests_is_not_in_its_search(fifty):
    for seed in (0, 9, 103):
        whole, rest = heard("tones", 2, seed, False), heard("tones", 2, seed, True)
        tested = numbers(whole, whole.index < HELD_OUT)
        held, trained = numbers(rest, rest.index < HELD_OUT), numbers(rest, rest.index >= HELD_OUT)
        assert not {*tested} & {*held, *trained} and len(tested) == len(held) == 4 * HELD_OUT
        assert {fifty.index[i] // HELD_OUT for i in held} == {(seed + 1) % 10}
        assert sorted(tested + held + trained) == list(range(200))
