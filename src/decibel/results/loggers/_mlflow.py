"""Runs for MLflow."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from ...core._json import Provenance, Row
from ...core._optional import optional
from ...graphs._graph import Levels
from .._status import Status
from ._logger import Logger, finite, flat

LONGEST = 6000  # characters MLflow takes for one parameter


class MLflow(Logger):
    """Logs a run to MLflow, with the provenance as parameters.

    A resumed run is a new MLflow run with the parameter `resumed`.

    Args:
        experiment: the MLflow experiment.
        uri: the tracking server or database, such as `sqlite:///runs.db`; None is MLflow's default
            (`MLFLOW_TRACKING_URI`, or a database in this folder).
        name: the run's name; None is the method's.
    """

    def __init__(self, experiment: str = "decibel", *, uri: str | None = None, name: str | None = None) -> None:
        with optional("mlflow", caller="db.loggers.MLflow", extra="mlflow"):
            self._library = import_module("mlflow")
        self._experiment = experiment
        self._uri = uri
        self._name = name
        self._client: Any = None
        self._run = ""

    def begin(self, about: Provenance, graphs: Levels) -> None:
        if not self.writes:
            return
        self._client = self._library.MlflowClient(tracking_uri=self._uri)
        experiment = self._client.get_experiment_by_name(self._experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self._experiment)
        self._run = self._client.create_run(number, run_name=self._name or about["method"]).info.run_id
        parameters = [(name, str(value)[:LONGEST]) for name, value in flat(about).items()]
        self._client.log_batch(self._run, params=[self._library.entities.Param(*pair) for pair in parameters])

    def __call__(self, step: int, row: Row) -> None:
        if self._client is not None:
            timestamp = int(time.time() * 1000)
            values = [(name, value) for name, value in finite(row).items() if name != "step"]
            metrics = [self._library.entities.Metric(name, value, timestamp, step) for name, value in values]
            self._client.log_batch(self._run, metrics=metrics)

    def end(self, status: Status, message: str | None) -> None:
        if self._client is not None:
            self._client.set_tag(self._run, "status", str(status))
            if message:
                self._client.set_tag(self._run, "message", message)
            self._client.set_terminated(self._run, "FAILED" if message else "FINISHED")
            self._client = None
