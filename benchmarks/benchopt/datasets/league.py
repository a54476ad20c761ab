"""The tasks of the league."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    name = "league"
    parameters = {  # noqa: RUF012 - as benchopt has it
        "division, task": [
            ("shared", "linear regression"),
            ("shared", "logistic regression, severe"),
            ("personal", "linear regression, severe"),
            ("single", "logistic regression, severe"),
        ],
        "seed": [0],
    }
    test_parameters = {"division, task": [("single", "linear regression")]}  # noqa: RUF012

    def get_data(self):
        import decibel as db
        from decibel_studies.league.tasks import DIVISIONS, NODES

        task = DIVISIONS[self.division].tasks[self.task](seed=self.seed)
        return {"problem": task.problem, "W": db.graphs.ring(NODES).W, "batch_size": 16, "seed": self.seed}
