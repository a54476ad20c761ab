"""Decibel: decentralized bilevel optimization. Two loss functions, a graph, one call."""

from . import graphs, hypergradient, metrics
from .algorithms.single_level import dsgd, ed, extra, gt
from .algorithms.sparkle import dsoba, soba, sparkle
from .engines.simulator import Simulator
from .graph import Graph, GraphSequence, Levels
from .problem import Problem
from .result import Result
from .solve import NonFiniteWarning, solve
from .trace import Trace

__all__ = [
    "Graph",
    "GraphSequence",
    "Levels",
    "NonFiniteWarning",
    "Problem",
    "Result",
    "Simulator",
    "Trace",
    "dsgd",
    "dsoba",
    "ed",
    "extra",
    "graphs",
    "gt",
    "hypergradient",
    "metrics",
    "soba",
    "solve",
    "sparkle",
]
__version__ = "0.1.0"
