"""The speech task and the networks that only studies use: features, a BLSTM and a transformer by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.tasks.data import Recordings
from decibel_studies.experiments import speech_features as features
from decibel_studies.experiments.speech import blstm, speech, start_blstm
from decibel_studies.experiments.transformer import next_byte_loss, start_transformer, text_windows, transformer

RATE = 8_000


def tones(speakers: int = 3, takes: int = 6, seed: int = 0) -> Recordings:
    """Two "digits", a rising and a falling tone of unequal length, at every speaker's own pitch."""
    rng = np.random.default_rng(seed)
    waveforms = []
    labels = []
    for speaker in range(speakers):
        for digit in range(2):
            for take in range(takes):
                time = np.arange(rng.integers(700, 1_100)) / RATE
                sweep = (1 if digit else -1) * 4_000 * (time - time.mean())
                phase = 2 * np.pi * np.cumsum(1_000 + 300 * speaker + sweep) / RATE
                wave = np.sin(phase) + 0.05 * rng.normal(size=len(time))
                waveforms.append((0.5 * wave).astype(np.float32))
                labels.append((digit, speaker, take))
    table = np.array(labels, np.int32)
    names = np.array([f"speaker {speaker}" for speaker in table[:, 1]])
    return Recordings(tuple(waveforms), table[:, 0], names, table[:, 2], RATE)


TONES = tones()


def finite(tree) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


def test_spectrum_keeps_the_energy():
    frames = np.random.default_rng(0).normal(size=(4, 200))
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 200)
    energy = ((frames * hann) ** 2).sum(1)
    for size in (200, 255, 512):
        np.testing.assert_allclose(features.power_spectrum(frames, size).sum(1), size * energy)


@pytest.mark.parametrize("hertz", [300.0, 1_000.0, 2_500.0])
def test_a_pure_tone_lands_in_its_mel_band(hertz):
    tone = np.sin(2 * np.pi * hertz * np.arange(2_000) / RATE).astype(np.float32)
    spoken = features.log_mel(tone, RATE, bands=24)
    centres = features.mel_centres(24, RATE)[1:-1]
    assert spoken.shape == (1 + (2_000 - 200) // 80, 24)
    assert (spoken.argmax(1) == np.abs(features.to_mel(centres) - features.to_mel(np.array(hertz))).argmin()).all()
    louder = features.log_mel(2 * tone, RATE, bands=24)
    np.testing.assert_allclose(louder - spoken, 2 * np.log(2), atol=1e-4)


def test_features_of_odd_recordings():
    assert features.log_mel(np.zeros(10, np.float32), RATE).shape == (1, 40)
    assert finite(features.standardise(features.log_mel(np.zeros(1_000, np.float32), RATE)))
    moved = features.standardise(np.random.default_rng(0).normal(3, 2, size=(50, 4)))
    np.testing.assert_allclose(moved.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(moved.std(0), 1)
    padded, lengths = features.pad([np.ones((3, 2)), np.ones((9, 2))], 5)
    assert lengths.tolist() == [3, 5] and padded[0, 3:].sum() == 0 and padded[1].all()


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def test_blstm_by_hand_and_blind_to_padding():
    rng = np.random.default_rng(0)
    layer = start_blstm(3, 2, np.random.default_rng(0))
    inputs, lengths = rng.normal(size=(2, 6, 3)), np.array([6, 4], np.int32)

    def alone(weights, steps):
        """One direction, gate by gate."""
        h = np.zeros(2)
        c = np.zeros(2)
        states = []
        for step in steps:
            gates = np.split(step @ weights["input"] + h @ weights["state"] + weights["bias"], 4)
            c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * np.tanh(gates[3])
            h = sigmoid(gates[2]) * np.tanh(c)
            states.append(h)
        return np.mean(states, 0)

    forward, backward = ({name: np.asarray(leaf[way]) for name, leaf in layer.items()} for way in range(2))
    expected = [
        np.concatenate([alone(forward, own[:n]), alone(backward, own[:n][::-1])])
        for own, n in zip(inputs, lengths, strict=True)
    ]
    run = jax.jit(blstm)
    np.testing.assert_allclose(run(layer, inputs, lengths), expected, rtol=1e-10)
    inputs[1, 4:] = 1e3
    np.testing.assert_allclose(run(layer, inputs, lengths), expected, rtol=1e-10)


@pytest.mark.slow
def test_speech_improves_and_transforms_become_personal():
    task = speech(TONES, bands=8, frames=12, hidden=4, held_out=2, regularization=1e-2)
    assert task.summary["samples"] == {"train": 24, "held out": 12} and task.nodes == 3
    method = db.spdb(alpha=1.0, beta=0.1, hypergradient=db.hypergradient.direct())
    result = db.solve(task.problem, method, db.graphs.complete(3), steps=60, eval_every=60, metrics=task.metrics)
    first, last = ({name: result.trace[name][row] for name in result.trace} for row in (0, -1))
    assert first["error_rate"] == 0.5 and last["error_rate"] < 0.1
    assert last["heldout_loss"] < 0.6 * first["heldout_loss"]
    transform = result.nodes.y["weight"]
    assert (transform[0] != transform[1]).any() and np.abs(transform - jnp.eye(8)).max() < 1


@pytest.mark.slow
def test_speech_has_a_single_level_form():
    task = speech(TONES, bands=8, frames=12, hidden=4, held_out=2, shared=True)
    assert task.problem.single_level and set(task.problem.x0) == {"shared", "personal"}
    start = jnp.stack([jnp.eye(8)] * 3)
    assert (start == task.problem.x0["personal"]["weight"]).all()


@pytest.mark.parametrize(("options", "words"), [({"held_out": 0}, "held_out=0"), ({"bands": 0}, "bands=0")])
def test_bad_input_gets_a_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        speech(TONES, **options)


def test_transformer_reads_only_the_past():
    weights = start_transformer(8, 2, 2, 6, np.random.default_rng(0))
    tokens = jnp.asarray([[1, 2, 3, 4, 5, 6]])
    changed = tokens.at[0, 3].set(9)
    run = jax.jit(transformer)
    before, after = run(weights, tokens), run(weights, changed)
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-12)
    assert (np.abs(before[:, 3:] - after[:, 3:]).max(-1) > 1e-6).all()
    shares = jnp.exp(before) / jnp.exp(before).sum(-1, keepdims=True)
    by_hand = -jnp.log(shares[0, jnp.arange(5), tokens[0, 1:]]).mean()
    assert jax.jit(next_byte_loss)(weights, tokens.astype(jnp.uint8))[0] == pytest.approx(float(by_hand))


def test_windows_of_a_text_do_not_overlap_and_parts_share_none():
    text = "".join(chr(97 + i % 26) + chr(97 + i // 26) for i in range(600))
    parts = text_windows([text], 10, np.random.default_rng(0))
    windows = [bytes(window) for part in parts.values() for window in part]
    assert sorted(windows) == sorted(text.encode()[i : i + 10] for i in range(0, 1_200, 10))
    assert {name: len(part) for name, part in parts.items()} == {"train": 96, "validation": 12, "test": 12}
