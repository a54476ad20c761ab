"""The work of `decibel doctor`: packages, devices, and a small problem whose solution is known."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from .. import __version__
from ..core import _compilation as compilation
from ..graphs import _families as graphs
from ..methods._sparkle import sparkle
from ..problem._problem import Problem
from ..solver._solve import solve
from ..tasks.data import available

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "equinox", "optax", "optimistix", "lineax")
EXTRAS = {
    "cli": ("typer", "rich", "tomli_w", "platformdirs"),
    "plot": ("matplotlib",),
    "tasks": ("sklearn", "pooch", "platformdirs"),
    "checkpoint": ("orbax",),
    "silo": ("grpc", "cryptography"),
    "hdf5": ("h5py",),
    "tensorboard": ("tensorboardX",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "torch": ("torch", "torchax"),
    "docs": ("mkdocs",),
    "test": ("pytest",),
}
TOLERANCE = 1e-4  # float32 reaches a smaller error


class Tested(TypedDict):
    """The result of the self-test."""

    well: bool
    error: float
    seconds: float
    seconds_running: float


class Cache(TypedDict):
    """Whether compiled steps are cached, and where."""

    on: bool
    folder: str | None


class Examined(TypedDict):
    """What `decibel doctor` found."""

    well: bool
    decibel: str
    python: str
    platform: str
    cores: int | None
    versions: dict[str, str | None]
    devices: list[str]
    float64: bool
    extras: dict[str, bool]
    data: dict[str, str]
    compilation_cache: Cache
    self_test: Tested


def examine() -> Examined:
    """Everything, as one document; `well` says whether the self-test passed."""
    test = self_test()
    folder = compilation.cache_folder()
    used = compilation.in_use()
    return {
        "well": test["well"],
        "decibel": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "versions": {name: installed(name) for name in PACKAGES},
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        "float64": jnp.zeros(()).dtype == jnp.float64,
        "extras": {name: all(find_spec(module) for module in modules) for name, modules in EXTRAS.items()},
        "data": {row.name: row.state for row in available()},
        "compilation_cache": {"on": used is not None, "folder": used or (str(folder) if folder else None)},
        "self_test": test,
    }


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def self_test(nodes: int = 8, steps: int = 400) -> Tested:
    """Solves, over a ring, a quadratic whose solution is known: with g_i = ½‖y − x − b_i‖² the lower level is
    y = x + b̄, and f_i = ½‖y − c_i‖² + ½‖x‖² then has its minimum at x = (c̄ − b̄)/2."""
    b, c = np.random.default_rng(0).normal(size=(2, nodes, 1, 5)).astype(np.float32)
    problem = Problem(
        lambda x, y, batch: 0.5 * jnp.sum((y - batch.mean(0)) ** 2) + 0.5 * jnp.sum(x**2),
        lambda x, y, batch: 0.5 * jnp.sum((y - x - batch.mean(0)) ** 2),
        upper_data=c,
        lower_data=b,
        x0=jnp.zeros(5, jnp.float32),
        y0=jnp.zeros(5, jnp.float32),
    )
    method = sparkle("ed", alpha=0.2, beta=0.5, gamma=0.5)
    begun = time.perf_counter()
    result = solve(problem, method, graphs.ring(nodes), steps=steps, eval_every=steps, metrics=[], progress=False)
    exact = (c - b).mean((0, 1)) / 2
    error = float(np.max(np.abs(np.asarray(result.nodes.x) - exact)))
    return {
        "well": bool(error < TOLERANCE),
        "error": error,
        "seconds": time.perf_counter() - begun,
        "seconds_running": float(result.trace.last["seconds"]),
    }
