"""Checks of numbers that users give; each error is a sentence that names the argument and the fix."""

from __future__ import annotations

import math
from typing import TypeGuard

import numpy as np


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def validate_positive(name: str, value: object, fix: str) -> None:
    if not (is_number(value) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name}={value!r} must be a positive number: {fix}.")


def validate_count(name: str, value: object, fix: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} must be a positive integer{fix}.")


def validate_delta(delta: object) -> None:
    if not (is_number(delta) and 0 < delta < 1):
        raise ValueError(f"delta={delta!r} must be between 0 and 1: give one well below 1/samples, such as 1e-5.")
