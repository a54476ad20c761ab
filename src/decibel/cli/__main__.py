"""`python -m decibel.cli`."""

from . import main

main()
