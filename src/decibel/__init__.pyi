"""The public face, on one screen."""

from . import estimators, faults, graphs, hypergradient, loggers, metrics, privacy, tasks, theory, weights
from .algorithms.catalog import CATALOG
from .algorithms.double_loop import dbsa, double_loop_dsgd, ma_dsbo
from .algorithms.implicit import dsgd_bilevel, gt_dsgd, interact, mdbo, slam, spdb, svr_interact, vrdbo
from .algorithms.matrices import dsbo, gossip_dsbo
from .algorithms.single_level import dsgd, ed, extra, gnsd, gt
from .algorithms.sparkle import dsoba, lopa, soba, sparkle
from .callbacks import Callback
from .engines.cluster import Cluster
from .engines.simulator import Simulator
from .graph import Graph, GraphSequence, Levels
from .problem import Problem
from .result import Result
from .silo.engine import Silo
from .solver import NonFiniteWarning, cost, solve
from .trace import Trace
from .tuning import tune

__all__ = [
    "CATALOG",
    "Callback",
    "Cluster",
    "Graph",
    "GraphSequence",
    "Levels",
    "NonFiniteWarning",
    "Problem",
    "Result",
    "Silo",
    "Simulator",
    "Trace",
    "cost",
    "dbsa",
    "double_loop_dsgd",
    "dsbo",
    "dsgd",
    "dsgd_bilevel",
    "dsoba",
    "ed",
    "estimators",
    "extra",
    "faults",
    "gnsd",
    "gossip_dsbo",
    "graphs",
    "gt",
    "gt_dsgd",
    "hypergradient",
    "interact",
    "loggers",
    "lopa",
    "ma_dsbo",
    "mdbo",
    "metrics",
    "privacy",
    "slam",
    "soba",
    "solve",
    "sparkle",
    "spdb",
    "svr_interact",
    "tasks",
    "theory",
    "tune",
    "vrdbo",
    "weights",
]
__version__: str
