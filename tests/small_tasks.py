"""What tests of tasks share: clouds to tell apart, snapshots that were not run, and the ends of a run."""

from __future__ import annotations

import numpy as np

import decibel as db
from decibel.core._vector import Vector
from decibel.strategies import Level
from decibel.tasks.data import Dataset


def blobs(classes, features, samples):
    """Well-separated clouds, a quarter of whose samples are for testing."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, samples).astype(np.int32)
    inputs = (3 * np.eye(classes, features)[labels] + rng.normal(size=(samples, features))).astype(np.float32)
    cut = samples * 3 // 4
    return Dataset(inputs[:cut], labels[:cut], inputs[cut:], labels[cut:], "blobs", classes, tuple("abcd"[:classes]))


def untested(source):
    """The dataset without its test part."""
    return Dataset(source.x_train, source.y_train, source.x_test[:0], source.y_test[:0], "no-test", source.classes, ())


def snapshot_of(task, x, y=None):
    """With leaves (nodes, ...) of every level."""
    levels = [None if tree is None else Level(Vector(tree), ()) for tree in (x, y)]
    return db.metrics.Snapshot(task.problem, db.State(*levels))


def ends(result):
    """The first and the last row of a run's trace."""
    return ({name: result.trace[name][row] for name in result.trace} for row in (0, -1))
