"""The outputs of a run: trace, metrics, plots, callbacks, loggers, and a live view of it."""

from . import loggers, metrics

__all__ = ["loggers", "metrics"]
