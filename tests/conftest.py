"""The setting of every test: float64, strict promotion, eight CPU devices, quick compiling, no display.

`JAX_NUMPY_DTYPE_PROMOTION=standard` in the environment turns strict promotion off.
"""

import os
import signal
from functools import partial

# Read when JAX and matplotlib start, so they are set before either is imported.
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling is most of what tests do, so machine code is not optimized; XLA's own passes are as they always are.
for flag, value in (("--xla_force_host_platform_device_count", 8), ("--xla_backend_optimization_level", 0)):
    if flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}={value}".strip()

import jax  # noqa: E402
import pytest  # noqa: E402


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


# Data files


@pytest.fixture
def roots(tmp_path, monkeypatch):
    from data_files import use_folders  # after JAX's settings, like all of Decibel

    return use_folders(tmp_path, monkeypatch)


@pytest.fixture
def register(monkeypatch):
    from data_files import use_small

    return partial(use_small, monkeypatch)
