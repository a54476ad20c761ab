"""Runs written elsewhere as they go: `solve(..., callbacks=[db.loggers.JSONL("log.jsonl")])`.

Each reads only the rows of the trace, and its provenance as configuration. In a run of several processes give all of
them the same loggers; the first process writes.
"""

from .jsonl import JSONL
from .mlflow import MLflow
from .tensorboard import TensorBoard
from .wandb import WandB

__all__ = ["JSONL", "MLflow", "TensorBoard", "WandB"]
