"""`python -m decibel.studies.tune NAME --size full`: searches the step sizes of a study and keeps them beside it."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from . import NAMES, find, settings
from .study import SIZES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", help="studies, or all")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--fresh", action="store_true", help="search again what was searched before")
    parser.add_argument("--missing", action="store_true", help="search only what has no step sizes yet")
    parser.add_argument("--copy", type=Path, help="a folder for copies of the settings files")
    given = parser.parse_args()
    for name in NAMES if "all" in given.names else given.names:
        study = find(name)
        print(name, flush=True)
        say = lambda text: print(text, flush=True)  # noqa: E731
        settings.search(study, given.size, fresh=given.fresh, missing=given.missing, say=say)
        if given.copy and settings.path_of(study).exists():
            given.copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(settings.path_of(study), given.copy)


if __name__ == "__main__":
    main()
