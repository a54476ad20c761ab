"""JAX's persistent compilation cache: on for the command line, and one call away in Python."""

from __future__ import annotations

import os
from pathlib import Path

from ._optional import optional

VARIABLE = "DECIBEL_COMPILATION_CACHE"  # a folder, or off


def cache_compilations(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keeps compiled programs on disk, so that the next start of a script finds them instead of compiling again.

    The `decibel` command calls it. A cache that is already configured in JAX stays. Programs are found again if code,
    shapes, versions and processor are the same.

    Args:
        folder: where to keep them; None is the folder that the environment variable `DECIBEL_COMPILATION_CACHE` names,
            or `decibel/jax` in the user's cache folder.

    Returns:
        The folder in use; None if the variable says `off` and no folder is given.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    chosen = Path(folder) if folder is not None else cache_folder()
    if chosen is not None and in_use() is None:
        jax.config.update("jax_compilation_cache_dir", str(chosen))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        compilation_cache.reset_cache()  # or what was compiled before would have decided that there is none
    used = in_use()
    return None if used is None else Path(used)


def cache_folder() -> Path | None:
    """The folder where none is given; None where caching is turned off."""
    setting = os.environ.get(VARIABLE, "")
    if setting.lower() in ("off", "0", "no", "false"):
        return None
    if setting:
        return Path(setting)
    with optional("platformdirs", caller="the cache of compiled steps", extra="cli"):
        from platformdirs import user_cache_dir
    return Path(user_cache_dir("decibel")) / "jax"


def in_use() -> str | None:
    """The folder of JAX's compilation cache, however it was configured."""
    import jax

    return jax.config.values["jax_compilation_cache_dir"]
