"""The league as a benchmark of benchopt: Φ at the average of the nodes' x, with the lower level solved."""

from benchopt import BaseObjective


class Objective(BaseObjective):
    name = "decentralized bilevel"
    min_benchopt_version = "1.7"
    requirements = ["pip::decibel-opt[tasks]"]  # noqa: RUF012 - as benchopt has it
    sampling_strategy = "iteration"

    def set_data(self, problem, W, batch_size, seed):
        from decibel_studies.league.goal import least

        self.problem, self.W, self.batch_size, self.seed = problem, W, batch_size, seed
        self.start, self.least = least(problem)

    def get_objective(self):
        """`problem` has plain functions and arrays: upper, lower, upper_data, lower_data, x0, y0, personal."""
        return {"problem": self.problem, "W": self.W, "batch_size": self.batch_size, "seed": self.seed}

    def evaluate_result(self, x):
        """`x`: every node's, with leaves (nodes, ...)."""
        import jax

        from decibel_studies.league.goal import value

        average = jax.tree.map(lambda leaf: leaf.mean(0), x)
        apart = jax.tree.map(lambda leaf: float(((leaf - leaf.mean(0)) ** 2).sum() / len(leaf)), x)
        found = float(jax.jit(lambda at: value(self.problem, at))(average))
        return {
            "value": found,
            "gap": max((found - self.least) / (self.start - self.least), 1e-9),
            "consensus": sum(jax.tree.leaves(apart)),
        }

    def get_one_result(self):
        import jax
        import numpy as np

        return {"x": jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(self.W), *leaf.shape)), self.problem.x0)}
