"""The public API, on one screen."""

from . import graphs, tasks
from .engines._engine import Engine
from .engines._simulator import Simulator
from .engines.cluster._cluster import Cluster
from .engines.silo._engine import Silo
from .graphs import Graph, GraphSequence, Levels, weights
from .methods._catalog import CATALOG
from .methods._double_loop import dbsa, double_loop_dsgd, ma_dsbo
from .methods._implicit import dsgd_bilevel, gt_dsgd, interact, mdbo, slam, spdb, svr_interact, vrdbo
from .methods._matrices import dsbo, gossip_dsbo
from .methods._method import Method, State
from .methods._single_level import dsgd, ed, extra, gnsd, gt
from .methods._sparkle import dsoba, dsoba_fo, lopa, soba, sparkle
from .network import Network, faults
from .oracles import estimators, hypergradient
from .oracles._oracle import Oracle
from .problem._problem import Problem
from .results import loggers, metrics
from .results._callbacks import Callback
from .results._result import Result
from .results._status import Status
from .results._trace import Trace
from .solver import theory
from .solver._solve import NonFiniteWarning, cost, solve
from .solver._tune import tune
from .strategies import Strategy, privacy

__all__ = [
    "CATALOG",
    "Callback",
    "Cluster",
    "Engine",
    "Graph",
    "GraphSequence",
    "Levels",
    "Method",
    "Network",
    "NonFiniteWarning",
    "Oracle",
    "Problem",
    "Result",
    "Silo",
    "Simulator",
    "State",
    "Status",
    "Strategy",
    "Trace",
    "cost",
    "dbsa",
    "double_loop_dsgd",
    "dsbo",
    "dsgd",
    "dsgd_bilevel",
    "dsoba",
    "dsoba_fo",
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
