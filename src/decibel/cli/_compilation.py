"""JAX's persistent compilation cache, which the command line enables."""

from __future__ import annotations

import os
from pathlib import Path

from ..core._optional import optional

VARIABLE = "DECIBEL_COMPILATION_CACHE"  # a folder, or off
SECONDS = 0.2  # steps that compile faster are not cached


def cache_folder() -> Path | None:
    """The folder of compiled steps; None where caching is turned off."""
    setting = os.environ.get(VARIABLE, "")
    if setting.lower() in ("off", "0", "no", "false"):
        return None
    if setting:
        return Path(setting)
    with optional("platformdirs", caller="the cache of compiled steps", extra="cli"):
        from platformdirs import user_cache_dir
    return Path(user_cache_dir("decibel")) / "jax"


def keep_compiled() -> None:
    """Turns the cache on, unless JAX already has one."""
    import jax

    folder = cache_folder()
    if folder is not None and in_use() is None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", SECONDS)


def in_use() -> str | None:
    """The folder of JAX's compilation cache, however it was configured."""
    import jax

    return jax.config.values["jax_compilation_cache_dir"]
