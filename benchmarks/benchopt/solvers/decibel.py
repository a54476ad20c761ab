"""The methods of Decibel's catalogue."""

from benchopt import BaseSolver


class Solver(BaseSolver):
    name = "decibel"
    parameters = {  # noqa: RUF012 - as benchopt has it
        "method": ["sparkle-ed", "d-soba", "spdb", "interact", "ed", "gt"],
        "alpha": [0.1],
        "beta": [0.3],
    }
    sampling_strategy = "iteration"

    def set_objective(self, problem, W, batch_size, seed):
        import decibel as db

        self.problem, self.graph, self.options = problem, db.graphs.from_matrix(W), (batch_size, seed)
        sizes = {"alpha": self.alpha, "beta": self.beta, "gamma": self.beta}
        entry = db.CATALOG[self.method]
        self.made = entry(**{name: size for name, size in sizes.items() if name in entry.defaults})

    def skip(self, problem, **_):
        import decibel as db

        form = db.CATALOG[self.method].form
        return form != problem.form, f"{self.method} is for a {form} lower level"

    def run(self, iterations):
        import decibel as db

        batch_size, seed = self.options
        if iterations == 0:
            self.x = Solver.start(self.problem, self.graph.nodes)
            return
        self.x = db.solve(
            self.problem, self.made, self.graph, steps=iterations, batch_size=batch_size, seed=seed, metrics=[]
        ).nodes.x

    @staticmethod
    def start(problem, nodes):
        import jax
        import jax.numpy as jnp

        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (nodes, *leaf.shape)), problem.x0)

    def get_result(self):
        return {"x": self.x}
