"""Does every method of the catalogue have the numbers that it had at another commit, to the last bit?

    python tests/trajectories.py COMMIT [METHOD ...]

Runs the methods that both catalogues have from the source of that commit and from this one, and compares x, y and z of
all nodes after 20 steps with batches, in float64, compiled as for users. Both run on this machine: other processors
round differently. It takes a few minutes, and says which methods differ and by how much.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
NODES, SAMPLES, SIZE, STEPS = 8, 3, 3, 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what to compare with, as git names it")
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="names of the catalogue; all if none is given")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # run the methods, and leave the numbers there
    given = parser.parse_args()
    if given.into:
        return _run(given.methods, given.into)
    with tempfile.TemporaryDirectory(prefix="trajectories-") as folder:
        before, after = Path(folder, "before.npz"), Path(folder, "after.npz")
        archive = subprocess.run(["git", "archive", given.commit, "src"], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        _start(Path(folder, "src"), given.commit, given.methods, before)
        with np.load(before) as numbers:
            methods = sorted({name.partition(" ")[0] for name in numbers})
        _start(ROOT / "src", given.commit, methods, after)
        return _compare(before, after)


def _start(source: Path, commit: str, methods: list[str], into: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(source), "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    command = [sys.executable, __file__, commit, *methods, "--into", str(into)]
    subprocess.run(command, env=environment, check=True)


def _run(methods: list[str], into: Path) -> int:
    import jax

    import decibel as db

    graph = db.graphs.erdos_renyi(NODES, 0.5, seed=1)
    problems = {form: problem(form) for form in ("single", "shared", "personal")}
    numbers: dict[str, np.ndarray] = {}
    for name in methods or db.CATALOG:
        entry = db.CATALOG.get(name)
        if entry is None:
            continue
        result = db.solve(
            problems[entry.form],
            entry(),
            db.graphs.complete(NODES) if entry.kind.centralized else graph,
            steps=STEPS,
            batch_size=None if name == "interact" else 2,
            eval_every=STEPS,
            metrics=[],
            progress=False,
        )
        for number, leaf in enumerate(jax.tree.leaves(tuple(result.nodes))):
            numbers[f"{name} {number}"] = np.asarray(leaf)
    np.savez(into, **numbers)
    return 0


def problem(form: str, dtype: str = "float64"):
    """Losses are products entry by entry: as different from node to node as any, and quick to compile."""
    import jax.numpy as jnp

    import decibel as db

    rng = np.random.default_rng(0)

    def draw(*names: str) -> dict[str, np.ndarray]:
        return {name: rng.normal(size=(NODES, SAMPLES, SIZE)) for name in names}

    def upper_of_x(x, batch):
        return jnp.mean(0.5 * (x - batch["e"]) ** 2)

    def upper(x, y, batch):
        return jnp.mean(0.5 * (0.5 + batch["m"] ** 2) * (y - batch["a"]) ** 2) + upper_of_x(x, batch)

    def lower(x, y, batch):
        return jnp.mean(0.5 * (0.5 + batch["h"] ** 2) * y**2 - y * (batch["c"] + batch["b"] * x**2))

    x0, y0 = jnp.full(SIZE, 0.5, dtype), jnp.full(SIZE, -0.5, dtype)
    if form == "single":
        return db.Problem(upper_of_x, upper_data=draw("e"), x0=x0)
    above, below = draw("m", "a", "e"), draw("h", "c", "b")
    return db.Problem(upper, lower, upper_data=above, lower_data=below, x0=x0, y0=y0, personal=form == "personal")


def _compare(before: Path, after: Path) -> int:
    differing: list[str] = []
    with np.load(before) as old, np.load(after) as new:
        methods = sorted({name.partition(" ")[0] for name in old})
        for method in methods:
            names = [name for name in old if name.partition(" ")[0] == method]
            if any(name not in new or not np.array_equal(old[name], new[name]) for name in names):
                apart = [np.abs(old[name] - new[name]).max() for name in names if name in new]
                differing.append(f"{method} differs by {max(apart):.1e}" if apart else f"{method} is gone")
    print(f"{len(methods) - len(differing)} of {len(methods)} methods are equal to the last bit", *differing, sep="\n")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
