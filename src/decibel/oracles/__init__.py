"""What a node computes from its own data: gradients, products with second derivatives, hypergradients, estimators."""

from . import estimators, hypergradient

__all__ = ["estimators", "hypergradient"]
