"""Personalised speech recognition: speakers agree on a recogniser, and each keeps a transform of its own input."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from decibel import Problem
from decibel.tasks import Task, data, partition

from ..type_aliases import PyTree, Snapshot
from .models import Layer, affine, models_of_nodes
from .speech_features import log_mel, pad, standardise

STEP_SIZES = {"alpha": 1.0, "beta": 0.03}

Recogniser = dict[str, dict[str, Array]]
Batch = tuple[Array, Array, Array]  # features (recordings, frames, bands), frames of each, digits


def start_blstm(inputs: int, cells: int, rng: np.random.Generator) -> dict[str, Array]:
    """A bidirectional LSTM, leaves (2, ...) for forward and backward; the forget gates start open, with bias one."""
    return {
        "input": jnp.asarray(rng.normal(scale=inputs**-0.5, size=(2, inputs, 4 * cells))),
        "state": jnp.asarray(rng.normal(scale=cells**-0.5, size=(2, cells, 4 * cells))),
        "bias": jnp.asarray(np.tile(np.repeat([0.0, 1.0, 0.0, 0.0], cells), (2, 1))),  # gates: in, forget, out, new
    }


def blstm(layer: dict[str, Array], inputs: Array, lengths: Array) -> Array:
    """(batch, 2 cells) from (batch, time, features): the mean over a sequence's own steps of the states of both
    directions. What stands behind a sequence's length is never read."""
    there = jnp.arange(inputs.shape[1], dtype=lengths.dtype) < lengths[:, None]  # (batch, time)
    totals = jax.vmap(_lstm)(layer, _both_ways(inputs), _both_ways(there))  # (2, batch, cells)
    return jnp.concatenate([*totals], -1) / jnp.maximum(lengths, 1)[:, None].astype(totals.dtype)


def _both_ways(steps: Array) -> Array:
    return jnp.stack([steps, steps[:, ::-1]])


def _lstm(weights: dict[str, Array], inputs: Array, there: Array) -> Array:
    """(batch, cells): the sum of the states. A step that is not there leaves the state as it is and is not summed."""
    driven = jnp.moveaxis(inputs @ weights["input"] + weights["bias"], 1, 0)  # (time, batch, 4 cells)

    def step(carry: tuple[Array, Array, Array], now: tuple[Array, Array]) -> tuple[tuple[Array, Array, Array], None]:
        h, c, total = carry
        drive, is_there = now
        i, f, o, new = jnp.split(drive + h @ weights["state"], 4, axis=-1)
        c_next = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(new)
        h_next = jax.nn.sigmoid(o) * jnp.tanh(c_next)
        is_there = is_there[:, None]
        h = jnp.where(is_there, h_next, h)
        c = jnp.where(is_there, c_next, c)
        return (h, c, total + jnp.where(is_there, h, 0)), None

    start = jnp.zeros((inputs.shape[0], weights["state"].shape[0]), driven.dtype)
    end, _ = jax.lax.scan(step, (start, start, start), (driven, there.T))
    return end[2]


def recognise(x: Recogniser, y: Layer, features: Array, lengths: Array) -> Array:
    """Logits over digits: the speaker's affine transform y of every frame, the BLSTM, its mean state, a last layer."""
    return affine(x["last"], blstm(x["blstm"], affine(y, features), lengths))


class SpeakerLoss(eqx.Module):
    """f = g: mean cross entropy of a speaker's recordings, plus C‖y − identity‖²."""

    regularization: float

    def __call__(self, x: Recogniser, y: Layer, batch: Batch) -> Array:
        identity = jnp.eye(*y["weight"].shape, dtype=y["weight"].dtype)
        away = {"weight": y["weight"] - identity, "bias": y["bias"]}
        square = jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(away)]).sum()
        return _score(x, y, batch)[1] + self.regularization * square


class OneLevel(eqx.Module):
    """A loss of two levels as a loss of one, with what was personal in x too."""

    loss: SpeakerLoss

    def __call__(self, x: dict[str, PyTree], batch: Batch) -> Array:
        return self.loss(x["shared"], x["personal"], batch)


class ErrorRate(eqx.Module):
    """Every speaker's own model, averaged over speakers.

    - `error_rate`: the share of its held-out recordings that it takes for another digit.
    - `heldout_loss`: its mean cross entropy there.
    """

    heldout: PyTree  # samples as a problem holds them

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        score = jax.vmap(lambda x, y, batch: batch.mean(_score, x, y))
        each = score(*models_of_nodes(snapshot), self.heldout.full())  # (nodes, 2)
        return dict(zip(("error_rate", "heldout_loss"), each.mean(0), strict=True))


def speech(
    recordings: data.Recordings | None = None,
    *,
    bands: int = 40,
    frames: int = 100,
    hidden: int = 64,
    held_out: int = 5,
    regularization: float = 1e-3,
    shared: bool = False,
    seed: int = 0,
) -> Task:
    """Personalized speech recognition: a node per speaker, a shared network x, and an input transform y_i per speaker.

        f_i(x, y_i) = g_i(x, y_i) = mean cross entropy on speaker i's recordings + C‖y_i − identity‖²

    x is a bidirectional LSTM and a last layer; y_i is an affine map of every frame of log-mel features (25 ms, every 10
    ms), which starts at the identity. Both levels minimize the same loss, so `hypergradient.direct()` is exact in the
    limit. g is not convex in y; C keeps y near the identity. Differs from the paper, whose speech is private: digits
    instead of a vocabulary, so the error rate counts recordings instead of words; one LSTM layer instead of five; no Δ
    features.

    Args:
        recordings: spoken digits; None loads Free Spoken Digit (8 kHz, six speakers).
        bands: mel bands; every band of a recording is standardized.
        frames: the length to which longer recordings are cut.
        hidden: cells of the LSTM in each direction.
        held_out: recordings with an index below this are for testing; 5 is the publishers' own split.
        regularization: C.
        shared: the same model and loss with a single level, all of it shared, for `dsgd`, `gt`, `ed` and `extra`.
        seed: of the initial weights.

    References:
        Lu et al., Decentralized Bilevel Optimization for Personalized Client Learning, 2022.
    """
    source = data.load_speech() if recordings is None else recordings
    for name, value in {"bands": bands, "frames": frames, "hidden": hidden}.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1.")
    assigned = partition.by_group(source.speaker, labels=source.digit, seed=seed)
    train = _keep(assigned, source.index >= held_out, "speakers/train", held_out)
    test = _keep(assigned, source.index < held_out, "speakers/held out", held_out)
    spoken = [standardise(log_mel(waveform, source.rate, bands=bands)) for waveform in source.waveforms]
    features, lengths = pad(spoken, frames)
    digits = int(source.digit.max()) + 1
    x0 = {
        "blstm": start_blstm(bands, hidden, np.random.default_rng(seed)),
        "last": {"weight": jnp.zeros((2 * hidden, digits)), "bias": jnp.zeros(digits)},
    }
    y0 = {"weight": jnp.eye(bands), "bias": jnp.zeros(bands)}
    loss = SpeakerLoss(regularization)

    def problem_of(part: partition.Partition) -> Problem:
        samples = [(features[rows], lengths[rows], source.digit[rows]) for rows in part.indices]
        if shared:
            return Problem(OneLevel(loss), upper_data=samples, x0={"shared": x0, "personal": y0})
        return Problem(loss, loss, upper_data=samples, lower_data=samples, x0=x0, y0=y0, personal=True)

    problem = problem_of(train)
    heldout = problem_of(test).upper_data
    summary = {
        "speakers": np.unique(source.speaker).tolist(),
        "bands": bands,
        "frames": frames,
        "cut": int(sum(len(each) > frames for each in spoken)),
        "hidden": hidden,
        "agreed": "everything" if shared else "all but the input transform",
        "samples": {"train": int(train.sizes.sum()), "held out": int(test.sizes.sum())},
        "partition": train.describe(),
        "regularization": regularization,
        "seed": seed,
    }
    return Task(problem, (ErrorRate(heldout),), "speech", summary, train, test, step_sizes=STEP_SIZES)


def _keep(assigned: partition.Partition, which: np.ndarray, name: str, held_out: int) -> partition.Partition:
    kept = tuple(rows[which[rows]] for rows in assigned.indices)
    if not all(map(len, kept)):
        raise ValueError(f"held_out={held_out} leaves a speaker without recordings to train on or to be tested on.")
    return replace(assigned, indices=kept, name=name, settings={"held_out": held_out})


def _score(x: Recogniser, y: Layer, batch: Batch) -> Array:
    """The share of wrong answers and the loss."""
    features, lengths, digits = batch
    logits = recognise(x, y, features, lengths)
    wrong = (logits.argmax(-1).astype(digits.dtype) != digits).mean(dtype=logits.dtype)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, digits)
    return jnp.stack([wrong, losses.mean()])
