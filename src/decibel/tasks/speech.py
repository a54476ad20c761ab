"""Personalised speech recognition: speakers agree on a recogniser, and each keeps a transform of its own input."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..problem._samples import NodeData, node_data
from ..results.metrics import Snapshot
from . import data, partition
from .features import log_mel, pad, standardise
from .networks import Layer, affine, blstm, cross_entropy, square, start_blstm, start_identity, start_zero
from .personalization import own_models, same_loss
from .task import Task

STEP_SIZES = {"alpha": 1.0, "beta": 0.03}

Recogniser = dict[str, dict[str, Array]]
Batch = tuple[Array, Array, Array]  # features (recordings, frames, bands), frames of each, digits


def recognise(x: Recogniser, y: Layer, features: Array, lengths: Array) -> Array:
    """Logits over digits: the speaker's affine transform y of every frame, the BLSTM, its mean state, a last layer."""
    return affine(x["last"], blstm(x["blstm"], affine(y, features), lengths))


class SpeakerLoss(eqx.Module):
    """f = g: mean cross entropy of a speaker's recordings, plus C‖y − identity‖²."""

    regularization: float

    def __call__(self, x: Recogniser, y: Layer, batch: Batch) -> Array:
        identity = jnp.eye(*y["weight"].shape, dtype=y["weight"].dtype)
        away = {"weight": y["weight"] - identity, "bias": y["bias"]}
        return _loss(x, y, batch) + self.regularization * square(away)


class ErrorRate(eqx.Module):
    """Every speaker's own model, averaged over speakers.

    - `error_rate`: the share of its held-out recordings that it takes for another digit.
    - `heldout_loss`: its mean cross entropy there.
    """

    heldout: NodeData

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        score = jax.vmap(lambda x, y, batch: batch.mean(_score, x, y))
        each = score(*own_models(snapshot), self.heldout.full())  # (nodes, 2)
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
    of = lambda part: [(features[rows], lengths[rows], source.digit[rows]) for rows in part.indices]  # noqa: E731
    x0 = {
        "blstm": start_blstm(bands, hidden, np.random.default_rng(seed)),
        "last": start_zero(2 * hidden, int(source.digit.max()) + 1),
    }
    problem = same_loss(SpeakerLoss(regularization), of(train), x0, start_identity(bands), shared=shared)
    heldout = node_data(of(test), "recordings", x0["last"]["bias"].dtype)
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


def _loss(x: Recogniser, y: Layer, batch: Batch) -> Array:
    features, lengths, digits = batch
    return cross_entropy(recognise(x, y, features, lengths), digits).mean()


def _score(x: Recogniser, y: Layer, batch: Batch) -> Array:
    """The share of wrong answers and the loss."""
    features, lengths, digits = batch
    logits = recognise(x, y, features, lengths)
    wrong = (logits.argmax(-1).astype(digits.dtype) != digits).mean(dtype=logits.dtype)
    return jnp.stack([wrong, cross_entropy(logits, digits).mean()])
