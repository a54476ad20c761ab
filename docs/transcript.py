"""Records docs/first-figure.md: from an empty environment to a figure of one's own data, with the time of each command.

    python docs/transcript.py

It installs everything, so it takes minutes and needs a network. A test runs the commands again and compares.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS / "first-figure.md"
WIDTH = 80

# Stands for a file that you have: 442 patients of scikit-learn's diabetes data, ten measurements and the outcome.
DATA = """\
import numpy as np
from sklearn.datasets import load_diabetes

inputs, outcome = load_diabetes(return_X_y=True)
np.savetxt("patients.csv", np.column_stack([inputs * 21, (outcome - 152) / 77]), fmt="%.4f", delimiter=",")
"""

CODE = """\
import jax
import jax.numpy as jnp
import numpy as np

import decibel as db

rows = np.loadtxt("patients.csv", delimiter=",")  # ten measurements and the outcome
clinics = np.array_split(rows[np.argsort(rows[:, 2], kind="stable")], 6)  # six clinics, whose patients differ in weight


def fit(y, batch):
    return jnp.mean((batch[:, :10] @ y - batch[:, 10]) ** 2)


def upper(x, y, batch):  # how well the model does on patients it was not trained on
    return fit(y, batch)


def lower(x, y, batch):  # training, with one penalty for each measurement
    return fit(y, batch) + jnp.sum(jax.nn.softplus(x) * y**2)


problem = db.Problem(
    upper,
    lower,
    upper_data=[clinic[0::2] for clinic in clinics],
    lower_data=[clinic[1::2] for clinic in clinics],
    x0=jnp.full(10, -2.0),
    y0=jnp.zeros(10),
)
result = db.solve(problem, db.sparkle("ada-ed"), db.graphs.ring(6), steps=500, metrics=["upper", "consensus_y"])
print("penalties", *(f"{penalty:.1f}" for penalty in jax.nn.softplus(result.x)))
print(f"error on the other patients {result.trace['upper'][0]:.2f} before, {result.trace['upper'][-1]:.2f} after")
result.plot("upper", against="bytes").savefig("patients.png")
"""

INSTALL = 'pip install -q "decibel-opt[all]"'
STEPS = ("python -m venv fresh && . fresh/bin/activate", INSTALL, "head -2 patients.csv", "python patients.py", "ls")
SECONDS = re.compile(r"^# [\d.]+ s$", re.MULTILINE)

HEAD = f"""\
# From install to a figure

This session starts with an empty environment and a data file, and ends with a figure. Below each command is the time
that it took on two cores. `python docs/transcript.py` wrote this page, and a test repeats the commands. Before the
first release, [install from a checkout](index.md#installation).

`patients.csv` stands for your own file. It holds 442 patients with ten measurements each, and how their illness
progressed in a year. Six clinics hold these patients, and train a linear model y on half of them. They tune a penalty
x for each measurement, so that the model does well on the other half. No clinic shows its patients to another.
`make_patients.py` wrote the file, and `patients.py` draws the figure:

```python title="make_patients.py"
{DATA}```

```python title="patients.py"
"""


NEXT = """\
The upper loss is the error on the other patients. A high penalty shrinks the weight of its measurement. Next, the
[tutorial](tutorial.md) explains each part of the script, and [your own losses](own-losses.md) says what a loss has to
satisfy.
"""


def play(folder: Path, steps: tuple[str, ...], environment: dict[str, str]) -> str:
    """What a terminal would show; the commands share a shell, and each is followed by the seconds it took."""
    (folder / "patients.py").write_text(CODE)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    shown = []
    with subprocess.Popen(["bash", "--noprofile", "--norc"], cwd=folder, env=environment, **pipes) as shell:
        for step in steps:
            begun = time.perf_counter()
            shell.stdin.write(f"{{ {step}\n}} </dev/null; echo END $?\n")
            shell.stdin.flush()
            lines = []
            while not (line := shell.stdout.readline()).startswith("END "):
                if not line:
                    raise SystemExit(f"the shell ended in {step!r}: {lines}")
                lines.append(line)
            if line.strip() != "END 0":
                raise SystemExit(f"{step!r} failed:\n{''.join(lines)}")
            shown += [f"$ {step}\n", *lines, f"# {time.perf_counter() - begun:.1f} s\n"]
    return "".join(shown)


def page(shown: str) -> str:
    total = sum(float(one.split()[1]) for one in SECONDS.findall(shown))
    parts = [HEAD, CODE, "```\n\n```console\n", shown, "```\n\n"]
    tail = f"All commands together took {total:.0f} seconds, most of it for the installation. The figure:"
    picture = '![The upper loss against the bytes that each clinic sent](figures/first-figure.png){ width="640" }'
    return "".join(parts) + textwrap.fill(tail, 118) + f"\n\n{picture}\n\n{NEXT}"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-c", DATA], cwd=folder, check=True)
        path = ":".join(one for one in os.environ["PATH"].split(":") if not (Path(one).parent / "pyvenv.cfg").exists())
        python = folder / ".bin"
        python.mkdir()
        (python / "python").symlink_to(Path(sys.executable).resolve())  # the system's, under the name of the page
        environment = {"PATH": f"{python}:{path}", "HOME": name, "COLUMNS": str(WIDTH), "JAX_PLATFORMS": "cpu"}
        environment |= {key: value for key, value in os.environ.items() if key.lower().startswith(("pip_", "http"))}
        # Before the first release the package is the checkout's.
        shown = play(folder, tuple(one.replace("decibel-opt", str(DOCS.parent)) for one in STEPS), environment)
        PAGE.write_text(page(shown.replace(str(DOCS.parent), "decibel-opt")))
        shutil.copy(folder / "patients.png", DOCS / "figures" / "first-figure.png")
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
