"""Algorithms: points in the space of oracle × estimator × strategy per level."""
