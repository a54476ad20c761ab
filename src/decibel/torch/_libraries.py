"""PyTorch and torchax, where they are installed in versions that work together."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType

from ..core._optional import optional

# torchax lists PyTorch's operators by name. 0.0.13 names those of named tensors, such as aten.prod.dim_Dimname, which
# torch 2.13 no longer has, so that its import fails there.
VERSIONS = {"torch": ("2.11", "2.12"), "torchax": ("0.0.13",)}
CPU_WHEEL = f'pip install "torch=={VERSIONS["torch"][-1]}.*" --index-url https://download.pytorch.org/whl/cpu'


@lru_cache(maxsize=1)
def libraries() -> tuple[ModuleType, ModuleType]:
    """torch and torchax.

    Raises:
        ImportError: if one is missing, or is of a version that does not work.
    """
    installed = {package: _found(package) for package in VERSIONS}
    if not all(_fits(installed[package], wanted) for package, wanted in VERSIONS.items()):
        needed = " and ".join(f"{package} {' or '.join(wanted)}" for package, wanted in VERSIONS.items())
        there = " and ".join(f"{package} {known}" for package, known in installed.items() if known) or "neither"
        raise ImportError(
            f"db.torch needs {needed} (found {there}): run `{CPU_WHEEL}`, since the default wheel of torch brings "
            'CUDA, and then `pip install "decibel-opt[torch]"`.'
        )
    with optional("torch and torchax", caller="db.torch", extra="torch"):
        return import_module("torch"), import_module("torchax")


def _found(package: str) -> str | None:
    try:
        return version(package).partition("+")[0] if find_spec(package) else None
    except ImportError:  # also of a package without its metadata
        return None


def _fits(installed: str | None, wanted: tuple[str, ...]) -> bool:
    return installed is not None and any(f"{installed}.".startswith(f"{version}.") for version in wanted)
