"""Published methods, each a choice of oracle, estimator and one strategy per level."""
