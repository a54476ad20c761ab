"""What a node computes from its own data: gradients, products with second derivatives, hypergradients, estimators."""

from . import estimators, hypergradient
from ._records import RecordNoise, Records, Release

__all__ = ["RecordNoise", "Records", "Release", "estimators", "hypergradient"]
