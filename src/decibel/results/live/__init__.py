"""A page that shows a run in progress: it reads `log.jsonl` of the run's folder and nothing else."""

from ._server import serve_beside, watch

__all__ = ["serve_beside", "watch"]
