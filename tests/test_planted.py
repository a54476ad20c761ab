"""The faults that `python -m planted` puts into the source still fit it."""

from __future__ import annotations

import ast
from pathlib import Path

from planted.faults import FAULTS
from planted.places import places, planted

ROOT = Path(__file__).parents[1]


def test_each_fault_fits_one_place():
    wrong = {fault.name: len(places(fault, ROOT)) for fault in FAULTS if len(places(fault, ROOT)) != 1}
    assert not wrong, "rewrite these in tests/planted/faults.py: `before` occurs so many times in `within`"


def test_each_fault_is_a_program():
    for fault in FAULTS:
        ast.parse(planted(fault, ROOT)[1])


def test_there_are_sixty_faults_of_different_names():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60
