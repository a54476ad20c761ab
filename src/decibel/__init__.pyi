"""The public API, on one screen."""

from . import graphs, tasks
from .engines._simulator import Simulator
from .engines.cluster._cluster import Cluster
from .engines.silo._engine import Silo
from .graphs import Graph, GraphSequence, Levels, weights
from .methods._catalog import CATALOG
from .methods._double_loop import dbsa, double_loop_dsgd, ma_dsbo
from .methods._implicit import dsgd_bilevel, gt_dsgd, interact, mdbo, slam, spdb, svr_interact, vrdbo
from .methods._matrices import dsbo, gossip_dsbo
from .methods._single_level import dsgd, ed, extra, gnsd, gt
from .methods._sparkle import dsoba, lopa, soba, sparkle
from .network import faults, privacy
from .oracles import estimators, hypergradient
from .problem._problem import Problem
from .results import loggers, metrics
from .results._callbacks import Callback
from .results._result import Result
from .results._trace import Trace
from .solver import theory
from .solver._solve import NonFiniteWarning, cost, solve
from .solver._tune import tune

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
