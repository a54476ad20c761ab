"""Partitioners: disjoint, seeded, no node empty, and as skewed as they say."""

import json

import numpy as np
import pytest

from decibel.tasks import partition as P

CLASSES = 10
LABELS = np.random.default_rng(7).permutation(np.repeat(np.arange(CLASSES), 60))
UNEVEN = np.random.default_rng(8).permutation(np.repeat(np.arange(4), [200, 90, 40, 13]))
SPEAKERS = np.array(["theo", "jackson", "lucas"])[np.arange(90) % 3]

COMPLETE = {
    "iid": lambda seed: P.iid(LABELS, 7, seed=seed),
    "dirichlet": lambda seed: P.dirichlet(LABELS, 7, alpha=0.3, seed=seed),
    "shards": lambda seed: P.shards(LABELS, 7, per_node=2, seed=seed),
    "by_group": lambda seed: P.by_group(SPEAKERS, 6, seed=seed),
}
ALL = {**COMPLETE, "label_skew": lambda seed: P.label_skew(LABELS, 7, fraction=0.6, seed=seed)}


def assigned(partition: P.Partition) -> np.ndarray:
    return np.sort(np.concatenate(partition.indices))


@pytest.mark.parametrize("name", ALL)
def test_parts_are_disjoint_seeded_and_no_node_is_empty(name):
    first, again, other = ALL[name](3), ALL[name](3), ALL[name](4)
    samples = assigned(first)
    assert len(np.unique(samples)) == len(samples) and (name not in COMPLETE or len(samples) == len(first.labels))
    assert first.sizes.min() >= 1 and first.name == name
    assert all(np.array_equal(a, b) for a, b in zip(first.indices, again.indices, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first.indices, other.indices, strict=True))


def test_iid_sizes_differ_by_at_most_one():
    assert set(P.iid(LABELS, 7).sizes) == {85, 86}


def test_dirichlet_tends_to_iid_and_to_one_node_per_class():
    assert P.dirichlet(LABELS, 5, alpha=1e6).skew < 0.03
    tiny = P.dirichlet(LABELS, 5, alpha=1e-4)
    # Up to the samples moved to nodes that drew nothing, each class lies on one node.
    assert (tiny.counts > 0).sum() <= CLASSES + 5
    assert P.dirichlet(LABELS, 5, alpha=0.1).skew > P.dirichlet(LABELS, 5, alpha=10).skew


@pytest.mark.parametrize("alpha", [1e-300, 1e-12, 1e-3])
def test_dirichlet_survives_tiny_alpha(alpha):
    for seed in range(20):
        partition = P.dirichlet(LABELS, 20, alpha=alpha, seed=seed)
        assert np.array_equal(assigned(partition), np.arange(len(LABELS)))


def test_dirichlet_keeps_the_minimum():
    partition = P.dirichlet(LABELS, 20, alpha=0.01, minimum=15)
    assert partition.sizes.min() >= 15
    assert partition.sizes.sum() == len(LABELS)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.95, 1.0])
@pytest.mark.parametrize(("labels", "nodes"), [(LABELS, 3), (LABELS, 10), (LABELS, 25), (UNEVEN, 4), (UNEVEN, 6)])
def test_label_skew_is_exact(labels, nodes, fraction):
    partition = P.label_skew(labels, nodes, fraction=fraction, seed=2)
    counts = partition.counts
    size = partition.settings["per_node"]
    own = counts[np.arange(nodes), np.arange(nodes) % counts.shape[1]]
    assert set(partition.sizes) == {size}
    assert set(own) == {int(np.floor(fraction * size + 0.5))}


def test_label_skew_takes_all_it_can():
    assert P.label_skew(LABELS, 10, fraction=0.95).settings["per_node"] == 60
    assert P.label_skew(LABELS, 10, fraction=0.95, per_node=20).sizes.tolist() == [20] * 10
    with pytest.raises(ValueError, match=r"per_node=61 is not possible .* 1 to 60"):
        P.label_skew(LABELS, 10, fraction=0.95, per_node=61)


def test_label_skew_spreads_the_rest_over_the_other_labels():
    counts = P.label_skew(np.tile(LABELS, 9), 10, fraction=0.1).counts
    others = counts[~np.eye(10, dtype=bool)]
    assert others.mean() == 54
    assert others.min() >= 30 and others.max() <= 80


def test_shards_give_few_classes_to_a_node():
    partition = P.shards(LABELS, 10, per_node=2)
    assert (partition.counts > 0).sum(1).max() <= 4
    assert set(partition.sizes) == {60}


def test_by_group_gives_a_node_to_each_group():
    partition = P.by_group(SPEAKERS)
    names = [set(SPEAKERS[part]) for part in partition.indices]
    assert names == [{"jackson"}, {"lucas"}, {"theo"}]


def test_by_group_keeps_groups_whole_on_fewer_nodes_and_splits_them_on_more():
    groups = np.repeat(np.arange(5), [50, 40, 30, 20, 10])
    fewer = P.by_group(groups, 2)
    assert sorted(fewer.sizes) == [70, 80]
    assert (fewer.counts > 0).sum() == 5
    more = P.by_group(groups, 7)
    assert [set(groups[part]) for part in more.indices] == [{0}, {1}, {2}, {3}, {4}, {0}, {1}]
    assert more.sizes.tolist() == [25, 20, 30, 20, 10, 25, 20]


def test_by_group_shows_labels_where_given():
    digits = np.arange(90) % 10
    assert P.by_group(SPEAKERS, labels=digits).counts.shape == (3, 10)
    with pytest.raises(ValueError, match="labels has 89 samples and groups 90"):
        P.by_group(SPEAKERS, labels=digits[:-1])


def test_split_keeps_the_parts_apart():
    partition = P.dirichlet(LABELS, 6, alpha=0.2, minimum=5)
    split = partition.split(train=0.7, validation=0.2, test=0.1, seed=5)
    for node, whole in enumerate(partition.indices):
        parts = [getattr(split, part).indices[node] for part in ("train", "validation", "test")]
        assert min(map(len, parts)) >= 1
        assert np.array_equal(np.sort(np.concatenate(parts)), whole)
    again = partition.split(train=0.7, validation=0.2, test=0.1, seed=5)
    assert np.array_equal(split.test.indices[3], again.test.indices[3])


def test_split_may_leave_a_part_out_but_never_empty():
    partition = P.iid(LABELS, 300)  # two samples a node
    split = partition.split(train=0.99, validation=0.01, test=0)
    assert set(split.train.sizes) == set(split.validation.sizes) == {1}
    assert split.test.sizes.sum() == 0
    assert split.test.describe()["skew"] == 0
    with pytest.raises(ValueError, match="node 0 holds 2 samples, too few for 3 parts"):
        partition.split()
    with pytest.raises(ValueError, match="sum to 1"):
        partition.split(train=0.8, validation=0.1, test=0)


def test_the_description_is_plain_and_the_summary_says_the_seed():
    partition = P.dirichlet(LABELS, 6, alpha=0.5, seed=11)
    facts = json.loads(json.dumps(partition.describe()))
    assert facts["nodes"] == 6 and facts["samples"] == 600 and facts["left_out"] == 0
    assert facts["settings"] == {"alpha": 0.5, "minimum": 1}
    assert "dirichlet, alpha 0.5" in partition.summary() and "seed 11" in partition.summary()


@pytest.mark.parametrize("nodes", [6, 60])
def test_the_picture_is_a_figure(nodes, tmp_path):
    from matplotlib.figure import Figure

    figure = P.iid(LABELS, nodes).draw(class_names=[f"class {i}" for i in range(CLASSES)])
    assert isinstance(figure, Figure)
    figure.savefig(tmp_path / "parts.png")
    assert "class 3" in [text.get_text() for text in figure.axes[0].get_yticklabels()]


def test_the_picture_goes_where_it_is_told():
    from matplotlib.figure import Figure

    own = Figure()
    assert P.iid(LABELS, 4).draw(own.subplots()) is own
    with pytest.raises(ValueError, match="class_names has 1 names for 10 classes"):
        P.iid(LABELS, 4).draw(class_names=["one"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: P.iid(LABELS, 0), "nodes=0"),
        (lambda: P.iid(LABELS[:3], 4), "nodes=4 with at least 1 samples each need more than 3"),
        (lambda: P.iid(LABELS.astype(float), 4), "labels must be one row of integers"),
        (lambda: P.iid(LABELS - 1, 4), "labels must be one row of integers"),
        (lambda: P.dirichlet(LABELS, 4, alpha=0.0), "alpha=0.0"),
        (lambda: P.dirichlet(LABELS, 4, alpha=np.inf), "use iid"),
        (lambda: P.dirichlet(LABELS, 100, alpha=1.0, minimum=7), "at least 7 samples each"),
        (lambda: P.shards(LABELS, 4, per_node=0), "per_node=0"),
        (lambda: P.label_skew(LABELS, 4, fraction=1.5), "fraction=1.5"),
        (lambda: P.label_skew(LABELS * 0, 4, fraction=0.3), "fraction=0.3 on 4 nodes needs more samples"),
        (lambda: P.by_group(np.array([0, 1, 1, 1]), 4), "leaves a node empty"),
        (lambda: P.Partition((np.array([1, 2]), np.array([2])), LABELS, "own", 0), "assigned twice"),
        (lambda: P.corrupt_labels(LABELS, 1.2, 10), "probability=1.2"),
        (lambda: P.corrupt_labels(LABELS, 0.2, 1), "classes=1"),
        (lambda: P.corrupt_labels(LABELS, 0.2, 9), "integers from 0 to 8"),
    ],
)
def test_bad_input_raises_in_a_sentence(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert str(caught.value).endswith(".")


def test_corruption_among_the_others_hits_with_the_probability():
    labels = np.tile(LABELS, 20)
    noise = P.corrupt_labels(labels, 0.3, CLASSES, seed=1)
    assert np.array_equal(noise.mask, noise.labels != labels)
    assert abs(noise.rate - 0.3) < 0.015
    shares = np.bincount((noise.labels - labels)[noise.mask] % CLASSES, minlength=CLASSES) / noise.mask.sum()
    assert shares[0] == 0 and np.allclose(shares[1:], 1 / 9, atol=0.02)
    assert not noise.may_keep and noise.seed == 1 and noise.labels.dtype == labels.dtype


def test_corruption_among_all_keeps_a_tenth():
    labels = np.tile(LABELS, 20)
    noise = P.corrupt_labels(labels, 0.5, CLASSES, seed=1, may_keep=True)
    assert noise.may_keep
    assert abs(noise.rate - 0.45) < 0.015


def test_corruption_extremes_and_seed():
    assert not P.corrupt_labels(LABELS, 0.0, CLASSES).mask.any()
    assert P.corrupt_labels(LABELS, 1.0, CLASSES).mask.all()
    first, again, other = (P.corrupt_labels(LABELS, 0.4, CLASSES, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.labels, again.labels)
    assert not np.array_equal(first.labels, other.labels)
