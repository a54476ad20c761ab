"""`python -m decibel.cli`."""

from . import app

app()
