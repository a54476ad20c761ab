"""Loggers: callbacks that record a run, as in `solve(..., callbacks=[db.loggers.JSONL("log.jsonl")])`.

Each logs the rows of the trace, and its provenance as configuration. In a run of several processes give all of them the
same loggers; the first process writes.
"""

from ._jsonl import JSONL
from ._mlflow import MLflow
from ._tensorboard import TensorBoard
from ._wandb import WandB

__all__ = ["JSONL", "MLflow", "TensorBoard", "WandB"]
