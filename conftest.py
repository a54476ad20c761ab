"""The setting of every test: float64, strict promotion, eight CPU devices, quick compiling, no display.

`JAX_NUMPY_DTYPE_PROMOTION=standard` in the environment turns strict promotion off; `DECIBEL_CHECK_TYPES=1` checks, at
every call, the types and shapes of arrays that the core's functions state.
"""

import gc
import os
import signal
import sys
from collections.abc import Generator
from functools import cache, partial

from xla import flags

# Read when JAX, matplotlib and gRPC start, so they are set before any of them is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = flags(devices=8)

import jax
import pytest
from jaxtyping import install_import_hook

gc.disable()  # until all tests are collected: what is imported stays, and to look through it for garbage takes time

CHECKED = ("core._conjugate_gradients", "core._keys", "core._ledger", "core._vector", "graphs", "problem", "oracles")
if os.environ.get("DECIBEL_CHECK_TYPES") == "1":  # before anything of Decibel is imported
    install_import_hook([f"decibel.{name}" for name in CHECKED], "array_types.check")


def pytest_configure(config: pytest.Config) -> None:
    # Shells let what they start in the background ignore Ctrl-C, and what tests start and send it to would inherit it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    promotion = os.environ.get("JAX_NUMPY_DTYPE_PROMOTION", "strict")
    jax.config.update("jax_numpy_dtype_promotion", promotion)
    jax.config.update("jax_enable_x64", True)
    # Compiled steps outlive the session, so that a second run of the tests is quick.
    if cache := getattr(config, "cache", None):
        jax.config.update("jax_compilation_cache_dir", str(cache.mkdir("jax")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", help="k/n runs the tests of every n-th file, from the k-th on")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _mark_slow_cases(items)
    part, parts = map(int, config.getoption("--part").split("/"))
    files = sorted({item.path for item in items})
    chosen = set(files[part - 1 :: parts])
    config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
    items[:] = [item for item in items if item.path in chosen]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    collected = yield
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    return collected


def _mark_slow_cases(items: list[pytest.Item]) -> None:
    """A test marked `slow_except("a", "b")` is slow in all its cases but those of the ids a and b."""
    cases: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("slow_except"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for test, parts in cases.items():
        marker = parts[0].get_closest_marker("slow_except")
        kept = set(marker.args) if marker else set()
        known = {part.callspec.id for part in parts}
        if len(parts) > 1 and not kept <= known:
            raise pytest.UsageError(f"{test} is marked slow except {', '.join(kept - known)}, which it does not have")
        for part in parts:
            if part.callspec.id not in kept:
                part.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def commands_built_once() -> Generator[None]:
    """Typer's runner builds all commands anew for every call, which takes a tenth of a second."""
    testing = sys.modules.get("typer.testing")
    with pytest.MonkeyPatch.context() as patch:
        if testing is not None:
            patch.setattr(testing, "_get_command", cache(testing._get_command))
        yield


# Data files


@pytest.fixture
def roots(tmp_path, monkeypatch):
    from data_files import use_folders  # after JAX's settings, like all of Decibel

    return use_folders(tmp_path, monkeypatch)


@pytest.fixture
def register(monkeypatch):
    from data_files import use_small

    return partial(use_small, monkeypatch)
