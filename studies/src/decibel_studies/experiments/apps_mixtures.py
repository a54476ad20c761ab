"""apps/mixtures: the proportions in which to train a language model, learned by nodes with own kinds of text."""

from __future__ import annotations

import numpy as np

from ..judging.compare import lower
from ..judging.registration import registered
from ..judging.results import Results
from ..judging.verdicts import Check, Claim
from ..testbed.study import Study
from .data_mixtures import Mixture, Setup, Way

CASE = "one domain a node, ring"
OTHERS = "other settings"
LEARNED = "learned mixture"
TARGET = "mixture as the target"
PRODUCTS = "learned, Hessian products"
REGISTERED = registered("apps/mixtures")
BASELINES: dict[str, Way] = {
    "uniform mixture": "uniform",
    "mixture by size": "by size",
    "DoReMi": "doremi",
    "ODM": "odm",
}

SETUPS = {
    "smoke": Setup(
        ("counting", "vowels"),
        False,
        (0.6, 0.4),
        4,
        1,
        1,
        8,
        None,
        40,
        4,
        8,
        floor=0.2,
        batch_size=2,
        steps=2,
        rows=1,
        seeds=(0, 1),
    ),
    "small": Setup(
        width=48,
        layers=2,
        heads=2,
        context=48,
        compute=None,
        windows=10_000,
        validation=64,
        test=256,
        batch_size=4,
        steps=240,
        rows=8,
        alpha=0.01,
        beta=6e-3,
        others=(PRODUCTS,),
        seeds=(0, 1, 2),
    ),
    "full": REGISTERED.setup(Setup),
}


def arms(setup: Setup) -> list[Mixture]:
    first = [
        Mixture(CASE, LEARNED, "learned", setup),
        *(Mixture(CASE, label, way, setup) for label, way in BASELINES.items()),
        Mixture(CASE, TARGET, "target", setup),
    ]
    others = {PRODUCTS: Mixture(OTHERS, PRODUCTS, "learned", setup, form="products")}
    return [*first, *(others[name] for name in setup.others)]


def better_than_baselines(results: Results[Setup]) -> list[Check]:
    learned = results[CASE, LEARNED]
    return [lower(learned, results[CASE, label], "test_loss") for label in BASELINES]


def sensible_shares(results: Results[Setup]) -> list[Check]:
    """No share is below its floor, and what the target has none of weighs less than at the start."""
    learned = results[CASE, LEARNED]
    shares = {name: learned.last(name) for name in learned.columns if name.startswith("weight_")}
    least = results.setup.floor / len(shares)
    lowest = np.min(list(shares.values()), axis=0)
    aimed = results.setup.domains[: len(results.setup.target)]
    wanted = np.sum([shares[f"weight_{name}"] for name in aimed], axis=0)
    return [
        Check.of("least share, in parts of its floor (up to rounding)", lowest / least, 1 - 1e-4),
        Check.of("share of the target's domains", wanted, len(results.setup.target) / len(shares)),
    ]


def judged(results: Results[Setup]) -> list[Check]:
    return [*better_than_baselines(results), *sensible_shares(results)]


STUDY = Study(
    name="apps/mixtures",
    title="A learned mixture of text against DoReMi, ODM and fixed ones",
    paper="ours; SPARKLE and D-SOBA name the application",
    about="Eight nodes on a ring hold text of one kind each: encyclopedia, books, reviews, code, documentation, "
    "mathematics, letters in random order, and thirty kilobytes of a play, repeated. They share a byte-level decoder "
    "(y) and the mixture of kinds it is trained with (x, on a simplex with a floor), so that it predicts a target. "
    "The target is half encyclopedia, three tenths books and two tenths reviews, and every node has 64 windows of "
    "it. All mixtures train the same decoder by the same steps on the same number of tokens. Losses are in nats per "
    "byte.",
    differs="All of it is ours. g is not convex in y. DoReMi and ODM change the mixture as published, on the "
    "nodes' own losses; ODM has a floor of its own. A share is a weight of the loss.",
    setups=SETUPS,
    arms=arms,
    columns=("test_loss", "validation_loss", "entropy"),
    claims=(
        Claim(
            "C23",
            "The learned mixture has a lower loss on the target than the uniform one, the one by size, DoReMi's and "
            "ODM's, and no share falls below its floor.",
            judged,
            why="At equal tokens, and for three times the gradients, the loss of the learned mixture is 1.620 nats "
            "per byte. The others have 1.678 (by size), 1.681 (uniform), 1.686 (ODM) and 2.040 (DoReMi). DoReMi knows "
            "no target: it gives encyclopedia, books and reviews 2 % each. The learned shares of these three end at "
            "0.44, 0.24 and 0.22. The target, with the floor, has 0.44, 0.27 and 0.19. The learned mixture is also "
            "0.05 below a mixture that has the target's shares from the start. We did not test why. ODM and DoReMi "
            "were not tuned.",
            finding="At equal tokens the learned mixture is 0.06 nats per byte below the uniform mixture, ODM and "
            "the mixture by size, and 0.4 below DoReMi. It takes three times the gradients.",
        ),
    ),
    precision="default",
)
