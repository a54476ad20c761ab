"""Decibel: decentralized bilevel optimization. Two loss functions, a graph, one call."""

from . import estimators, graphs, hypergradient, metrics, weights
from .algorithms.catalog import CATALOG
from .algorithms.double_loop import dbsa, double_loop_dsgd, ma_dsbo
from .algorithms.implicit import dsgd_bilevel, gt_dsgd, interact, mdbo, slam, spdb, svr_interact, vrdbo
from .algorithms.matrices import dsbo, gossip_dsbo
from .algorithms.single_level import dsgd, ed, extra, gt
from .algorithms.sparkle import dsoba, lopa, soba, sparkle
from .engines.simulator import Simulator
from .graph import Graph, GraphSequence, Levels
from .problem import Problem
from .result import Result
from .solve import NonFiniteWarning, cost, solve
from .trace import Trace

__all__ = [
    "CATALOG",
    "Graph",
    "GraphSequence",
    "Levels",
    "NonFiniteWarning",
    "Problem",
    "Result",
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
    "gossip_dsbo",
    "graphs",
    "gt",
    "gt_dsgd",
    "hypergradient",
    "interact",
    "lopa",
    "ma_dsbo",
    "mdbo",
    "metrics",
    "slam",
    "soba",
    "solve",
    "sparkle",
    "spdb",
    "svr_interact",
    "vrdbo",
    "weights",
]
__version__ = "0.1.0"
