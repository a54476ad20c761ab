"""Runs a part of the tests with every Python that is installed and the oldest and the newest JAX that are allowed.

    python tests/matrix.py [--tests PATH ...]

Each pair has an environment of its own in a temporary folder, so this takes minutes and a gigabyte for each.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
TESTS = ("tests/problem/test_problem.py", "tests/solver/test_solve.py", "tests/methods/test_methods.py")


def oldest() -> list[str]:
    """The lower bounds of what a run needs, as pins."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pins = [re.sub(r"\s*>=\s*", "==", one) for one in needed]
    jax = next(pin for pin in pins if pin.startswith("jax=="))
    return [*pins, jax.replace("jax==", "jaxlib==")]


def works(python: str) -> bool:
    return (
        shutil.which(python) is not None and not subprocess.run([python, "--version"], capture_output=True).returncode
    )


def run(python: str, pins: list[str], tests: list[str]) -> str:
    """How it went, in a few words."""
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "venv"
        subprocess.run([python, "-m", "venv", own], check=True)
        install = [own / "bin" / "pip", "install", "-qq", f"{ROOT}[all]", "pytest", "pytest-xdist", "pandas", *pins]
        if subprocess.run(install, cwd=folder).returncode:
            return "cannot be installed"
        versions = [
            own / "bin" / "python",
            "-c",
            "import jax, numpy; print('JAX', jax.__version__, 'NumPy', numpy.__version__)",
        ]
        found = subprocess.run(versions, capture_output=True, text=True, check=True).stdout.strip()
        # Deprecations of versions to come are not errors here.
        command = [own / "bin" / "python", "-m", "pytest", "-q", "-n", "2", "-W", "default", *tests]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        lines = done.stdout.strip().splitlines()
        if done.returncode:
            print(*lines[-40:], sep="\n", file=sys.stderr)
        return f"{found}: {lines[-1] if lines else done.stderr.strip()[-200:]}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tests", nargs="+", default=list(TESTS))
    options.add_argument("--only", choices=("oldest", "newest"))
    given = options.parse_args()
    failed = False
    for python in PYTHONS:
        if not works(python):
            print(f"{python}: not installed here", flush=True)
            continue
        for name, pins in (("oldest", oldest()), ("newest", [])):
            if given.only in (None, name):
                outcome = run(python, pins, given.tests)
                failed |= " passed" not in outcome or "failed" in outcome
                print(f"{python}, {name}: {outcome}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
