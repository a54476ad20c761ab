"""The public API, on one screen."""

from . import graphs, strategies, tasks, torch
from .core._compilation import cache_compilations
from .core._ledger import Ledger
from .core._vector import Vector
from .engines._batch_run import BatchRun
from .engines._engine import Engine
from .engines._program import Program, RunConfig
from .engines._run import Run
from .engines._simulator import Simulator
from .engines.cluster._cluster import Cluster
from .engines.cluster._shards import Shards
from .graphs import Graph, GraphSequence, Levels, weights
from .methods._ahead import ahead
from .methods._c2dfb import c2dfb
from .methods._catalog import CATALOG, Entry
from .methods._dama import dama
from .methods._dbsa import dbsa, double_loop_dsgd
from .methods._dsbo import dsbo
from .methods._dsgda_gt import dsgda_gt
from .methods._dsoba import dsoba, dsoba_fo
from .methods._dsvrbgd import dsvrbgd, normalized_dsvrbgd
from .methods._duet import duet
from .methods._f2sa import f2sa
from .methods._gossip_dsbo import gossip_dsbo
from .methods._gt_hsgd import gt_hsgd
from .methods._interact import dsgd_bilevel, gt_dsgd, interact, svr_interact
from .methods._local_steps import k_gt, proxskip
from .methods._lopa import lopa
from .methods._ma_dsbo import ma_dsbo
from .methods._mdbo import mdbo, vrdbo
from .methods._method import Method, State
from .methods._prometheus import prometheus
from .methods._single import single
from .methods._single_level import (
    ada_ed,
    adam_ed,
    dadam,
    dsgd,
    ed,
    extra,
    gnsd,
    gt,
    gt_ada,
    gt_adam,
    nids,
    push_pull,
    sgp,
    wave,
)
from .methods._slam import slam
from .methods._soba import soba
from .methods._sparkle import sparkle
from .methods._spdb import spdb
from .methods._stepsize_tracking import adasdbo, d_adast
from .methods._sun_dsbo import sun_dsbo
from .network import Communicator, Network, faults
from .oracles import estimators, hypergradient
from .oracles._oracle import Draw, Oracle, Point
from .problem import prox, sources
from .problem._keyed import augment
from .problem._mistakes import ProblemWarning
from .problem._problem import Problem
from .problem._trainable import Trainable, trainable
from .results import loggers, metrics
from .results._callbacks import Callback
from .results._early_stopping import EarlyStopping
from .results._plots import plot
from .results._result import Result
from .results._saved import SavedResult
from .results._status import Status
from .results._trace import Trace
from .silo import Silo
from .solver import theory
from .solver._delays import DelayWarning
from .solver._solve import GrowthWarning, NonFiniteWarning, cost, solve
from .solver._tune import AllDiverged, Tuned, tune
from .solver._validate import SmallNodeWarning
from .strategies import Strategy, privacy

__all__ = [
    "CATALOG",
    "AllDiverged",
    "BatchRun",
    "Callback",
    "Cluster",
    "Communicator",
    "DelayWarning",
    "Draw",
    "EarlyStopping",
    "Engine",
    "Entry",
    "Graph",
    "GraphSequence",
    "GrowthWarning",
    "Ledger",
    "Levels",
    "Method",
    "Network",
    "NonFiniteWarning",
    "Oracle",
    "Point",
    "Problem",
    "ProblemWarning",
    "Program",
    "Result",
    "Run",
    "RunConfig",
    "SavedResult",
    "Shards",
    "Silo",
    "Simulator",
    "SmallNodeWarning",
    "State",
    "Status",
    "Strategy",
    "Trace",
    "Trainable",
    "Tuned",
    "Vector",
    "ada_ed",
    "adam_ed",
    "adasdbo",
    "ahead",
    "augment",
    "c2dfb",
    "cache_compilations",
    "cost",
    "d_adast",
    "dadam",
    "dama",
    "dbsa",
    "double_loop_dsgd",
    "dsbo",
    "dsgd",
    "dsgd_bilevel",
    "dsgda_gt",
    "dsoba",
    "dsoba_fo",
    "dsvrbgd",
    "duet",
    "ed",
    "estimators",
    "extra",
    "f2sa",
    "faults",
    "gnsd",
    "gossip_dsbo",
    "graphs",
    "gt",
    "gt_ada",
    "gt_adam",
    "gt_dsgd",
    "gt_hsgd",
    "hypergradient",
    "interact",
    "k_gt",
    "loggers",
    "lopa",
    "ma_dsbo",
    "mdbo",
    "metrics",
    "nids",
    "normalized_dsvrbgd",
    "plot",
    "privacy",
    "prometheus",
    "prox",
    "proxskip",
    "push_pull",
    "sgp",
    "single",
    "slam",
    "soba",
    "solve",
    "sources",
    "sparkle",
    "spdb",
    "strategies",
    "sun_dsbo",
    "svr_interact",
    "tasks",
    "theory",
    "torch",
    "trainable",
    "tune",
    "vrdbo",
    "wave",
    "weights",
]
__version__: str
