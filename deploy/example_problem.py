"""The problem that the rehearsal of three solves; a real site reads its own files in `records`."""

import numpy as np

import decibel as db


def records(node):
    rng = np.random.default_rng(node)
    return rng.normal(node, 1.0, (100, 3))


def upper(x, y, batch):
    return 0.5 * ((y - batch.mean(0)) ** 2).sum() + 0.5 * (x**2).sum()


def lower(x, y, batch):
    return 0.5 * ((y - x - batch.mean(0)) ** 2).sum()


def problem():
    return db.Problem(upper, lower, upper_data=records, lower_data=records, x0=np.zeros(3, "f"), y0=np.zeros(3, "f"))
