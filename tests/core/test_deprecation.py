"""Old names warn and still work; the version that they are counted by is the same wherever it stands."""

from __future__ import annotations

import inspect
import re
import warnings
from importlib.metadata import version
from pathlib import Path

import pytest

import decibel as db
from decibel.core._deprecation import deprecated

ROOT = Path(__file__).parents[2]
SENTENCE = "old_power is deprecated and will be removed in Decibel 0.3.0: use power instead."


def power(base: float, *, exponent: float = 2.0) -> float:
    """The base to the exponent."""
    return base**exponent


old_power = deprecated("old_power", instead="power", removed_in="0.3.0")(power)


class Graph:
    @deprecated("Graph.gap", instead="Graph.spectral_gap", removed_in="1.0.0")
    def gap(self) -> Graph:
        return self


def test_one_sentence_and_the_same_result():
    with pytest.warns(DeprecationWarning) as caught:
        assert old_power(3.0, exponent=3.0) == 27.0
    assert [str(one.message) for one in caught] == [SENTENCE]


def test_the_warning_points_to_the_call():
    with pytest.warns(DeprecationWarning) as caught:
        old_power(3.0)
    lines, first = inspect.getsourcelines(test_the_warning_points_to_the_call)
    assert caught[0].filename == __file__ and lines[caught[0].lineno - first].strip() == "old_power(3.0)"


def test_methods_too():
    graph = Graph()
    with pytest.warns(DeprecationWarning, match=r"^Graph\.gap is .* Decibel 1\.0\.0: use Graph\.spectral_gap instead"):
        assert graph.gap() is graph


def test_only_calls_of_the_old_name_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert power(3.0) == 9.0
        deprecated("unused", instead="power", removed_in="0.3.0")(power)


def test_the_signature_is_kept():
    assert inspect.signature(old_power) == inspect.signature(power) and old_power.__doc__ == power.__doc__


def test_errors_pass_through():
    with pytest.warns(DeprecationWarning), pytest.raises(ZeroDivisionError):
        old_power(0.0, exponent=-1.0)


def test_one_version():
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version("decibel-opt") == db.__version__ and cited is not None and cited[1] == db.__version__
