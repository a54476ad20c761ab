"""How XLA compiles in tests: quickly, for compiling is most of what they do.

Machine code is not optimized, comes from the emitters that are quick to run, and from one thread; the passes over the
program before that are as they always are.
"""

import os
from importlib.metadata import version
from pathlib import Path

QUICK = {"--xla_backend_optimization_level": 0, "--xla_cpu_parallel_codegen_split_count": 1}
if tuple(map(int, version("jax").split(".")[:2])) < (0, 11):  # later ones do not know it, and end the process
    QUICK["--xla_cpu_use_fusion_emitters"] = "false"


def flags(devices: int = 1) -> str:
    """With that many CPU devices; what the environment sets stays."""
    given = os.environ.get("XLA_FLAGS", "") if devices > 1 else ""
    wanted = {"--xla_force_host_platform_device_count": devices, **QUICK}
    return " ".join([given, *(f"{flag}={value}" for flag, value in wanted.items() if flag not in given)]).strip()


def environment(**more: str) -> dict[str, str]:
    """Of a process that a test starts, with one CPU device."""
    return {**os.environ, "XLA_FLAGS": flags(), "JAX_PLATFORMS": "cpu", **more}


def kept_in(folder: Path) -> dict[str, str]:
    """For the environment of processes that are started again and again: what one compiles, the next finds there."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
