"""One suite that every method of the catalogue passes, and hand counts of what each costs.

All graphs here are exchanged by gathers from a table, and all problems of a form have one shape, so that each method is
compiled once for the whole file.
"""

from __future__ import annotations

import inspect
import re
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import Quadratic, random_quadratic

import decibel as db
from decibel.core._ledger import COLUMNS
from decibel.engines._program import RunConfig
from decibel.methods import register
from decibel.methods._entry import REGISTERED
from decibel.methods._sparkle import Sparkle
from decibel.network import _in_memory as network
from decibel.network._mixing import _neighbours
from decibel.oracles.hypergradient import POWER_STEPS

N, P, Q, UPPER, LOWER = 4, 2, 3, 2, 3  # nodes, entries of x and y, samples per node of each level
STEPS = 5
QUADRATIC = random_quadratic(N, P, Q, seed=2)
STAR, COMPLETE = db.graphs.star(N), db.graphs.complete(N)
MIXED = (*Sparkle.mixed, "edge-ed", "wave", "ada-ed", "ada-ed-scalar", "adam-ed", "push-pull")
# One of each kind is a default test.
KINDS = [
    "sparkle-extra-gt",
    "sparkle-edge-ed",
    "d-soba-fo",
    "dbsa",
    "gossip-dsbo",
    "mdbo",
    "lopa",
    "gt-ada",
]
# Of the mixtures of two strategies as many as it takes to have each strategy below and above another.
PAIRS = [f"sparkle-{below}-{above}" for below, above in pairwise([*Sparkle.mixed, Sparkle.mixed[0]])]
TRIED = [name for name, entry in db.CATALOG.items() if name in KINDS + PAIRS or not entry.mixture]
NAMES = [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in TRIED]
# Settings without chance, where the defaults draw the length of a series or toss a coin.
SURE = {
    "mdbo": dict(terms=1),
    "vrdbo": dict(terms=1),
    "svr-interact": dict(hypergradient=db.hypergradient.exact()),
    "prometheus": dict(hypergradient=db.hypergradient.exact()),
    "proxskip": dict(probability=1.0),
    "dama": dict(probability=1.0),
}


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    """One method after the other, so that its compiled step is at hand for all tests of it."""
    return request.param


@pytest.fixture(scope="module", autouse=True)
def one_exchange():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "mixer", lambda graph: _neighbours(graph, N - 1))
        yield


@pytest.fixture(scope="module")
def ran(name):
    """Every level and what each step cost, on heterogeneous data."""
    return advance(start(name))


def problem(name, quadratic=QUADRATIC, x0=None, y0=None, dtype=jnp.float64):
    """Of the method's form."""
    form = db.CATALOG[name].form
    whole = quadratic.problem(personal=form == "personal", dtype=dtype)
    repeat = lambda names, n: {k: np.repeat(getattr(quadratic, k)[:, None], n, 1) for k in names}  # noqa: E731
    x0 = jnp.full(P, 0.5, dtype) if x0 is None else x0
    if form == "single":
        return db.Problem(quadratic.single().upper, upper_data=repeat("Re", UPPER), x0=x0)
    return db.Problem(
        whole.upper,
        whole.lower,
        upper_data=repeat("MaRe", UPPER),
        lower_data=repeat("HBc", LOWER),
        x0=x0,
        y0=jnp.full(Q, -0.5, dtype) if y0 is None else y0,
        personal=whole.personal,
    )


def graph_for(name):
    return COMPLETE if db.CATALOG[name].kind.centralized else STAR


def start(name, data=None, graph=None, method=None, batch_size=None):
    method = db.CATALOG[name](**SURE.get(name, {})) if method is None else method
    data, graph = data or problem(name), graph or graph_for(name)
    return db.Simulator().start(data, method, db.Levels(x=graph), RunConfig(batch_size))


def levels(state):
    return [np.asarray(level.s.tree) for level in state[:3] if level is not None]


def advance(run, steps=STEPS):
    """The state after `steps` chunks of one step, and what each cost."""
    costs = [run.advance(1) for _ in range(steps)]
    assert None not in costs
    return levels(run.state), costs


def test_runs_with_its_defaults(name):
    entry = db.CATALOG[name]
    method = entry()
    assert method.name == name and method.form == entry.form
    assert entry.loops in (1, 2) and entry.summary and entry.paper
    quiet = dict(steps=STEPS, eval_every=1, metrics=[], progress=False)
    result = db.solve(problem(name), method, graph_for(name), **quiet)
    assert result.status == "completed" and result.step == STEPS
    for level in levels(result.state):
        assert np.isfinite(level).all()
    assert np.abs(result.nodes.x - 0.5).max() > 1e-3  # it moved
    sent = () if name == "proxskip" else ("rounds", "bytes")  # which not every step of it does
    assert all(np.all(np.diff(result.trace[column]) > 0) for column in ("samples", "gradients", *sent))


def test_state_keeps_its_types(name):
    """In float32 and on batches, though numbers around it are float64."""
    run = start(name, problem(name, dtype=jnp.float32), method=db.CATALOG[name](), batch_size=2)
    after = jax.eval_shape(lambda k, state: run.program.step(k, state)[0], jnp.int32(0), run.state)
    assert jax.tree.structure(after) == jax.tree.structure(run.state)
    for old, new in zip(jax.tree.leaves(run.state), jax.tree.leaves(after), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
        assert new.dtype in (jnp.float32, jnp.int32)  # the numbers of messages


def test_complete_graph_equals_centralized(name):
    """Nodes with equal data stay equal, whatever the graph: each is the one node that holds that data."""
    same = Quadratic(*(array[[1] * N] for array in QUADRATIC))
    sparse, full = (start(name, problem(name, same), graph) for graph in (graph_for(name), COMPLETE))
    # The complete graph's arrays in the compiled step of the other: only what a message costs is compiled in.
    full.program = jax.tree.unflatten(jax.tree.structure(sparse.program), jax.tree.leaves(full.program))
    (found, _), (sparse, _) = advance(full), advance(sparse)
    for a, b in zip(found, sparse, strict=True):
        np.testing.assert_allclose(a, np.broadcast_to(a[:1], a.shape), atol=1e-13)
        np.testing.assert_allclose(a, b, atol=1e-13)


def test_relabelling_nodes_relabels_the_answer(name, ran):
    updates = np.array([2, 0, 3, 1])
    here, _ = ran
    renamed = np.eye(N)[updates] @ graph_for(name).W @ np.eye(N)[updates].T
    shuffled = Quadratic(*(array[updates] for array in QUADRATIC))
    there, _ = advance(start(name, problem(name, shuffled), db.graphs.from_matrix(renamed)))
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(b, a[updates], atol=1e-12)
    assert graph_for(name) is COMPLETE or np.abs(here[0][updates] - here[0]).max() > 1e-4


def test_a_common_stationary_point_is_a_fixed_point(name):
    """All gradients of all nodes vanish at (x*, y*), so that no method moves, though all H_i and J_i differ."""
    if name == "duet":
        pytest.skip("its ridge is no part of the problem")
    if any(kind in name for kind in ("ada-ed", "adam", "gt-ada", "normalized", "d-adast", "adasdbo")):
        pytest.skip("steps have full length along gradients that are rounding errors")
    x, y = np.array([1.0, -2.0]), np.array([0.5, 0.25, -1.0])
    c = np.einsum("nij,j->ni", QUADRATIC.H, y) - np.einsum("nij,j->ni", QUADRATIC.B, x)
    calm = QUADRATIC._replace(c=c, a=np.tile(y, (N, 1)), e=np.tile(x, (N, 1)))
    found, _ = advance(start(name, problem(name, calm, jnp.asarray(x), jnp.asarray(y))))
    for level, point in zip(found, (x, y), strict=False):
        np.testing.assert_allclose(level, np.tile(point, (N, 1)), atol=1e-12)


def numbers(sends, **letters):
    """The count in a text such as `2p + (T + N) q + b q² numbers`."""
    text = sends.removesuffix(" numbers").replace("⌈√t⌉", "r").replace("q²", "q q").replace("×", " ")
    tokens = re.findall(r"\d+|[a-zA-Z]|[+()]", text)
    assert "".join(tokens) == text.replace(" ", "")
    product = ""
    for before, token in zip(["+", *tokens], tokens, strict=False):
        product += ("*" if before not in "+(" and token not in "+)" else "") + token
    return eval(product, {}, letters)


def test_reading_what_is_sent():
    assert numbers("2 × p + 4 × q numbers", p=3, q=5) == 26
    assert numbers("2p + 2q + pq + b q² numbers", p=2, q=3, b=4) == 52
    assert numbers("p + 2 (T + N) q numbers", p=2, q=3, T=4, N=5) == 56


def test_bytes_are_what_the_catalogue_says(name, ran):
    """Numbers sent to each neighbour × 8 bytes × neighbours on average."""
    entry, degree = db.CATALOG[name], graph_for(name).degrees.mean()
    for k, cost in enumerate(ran[1]):
        # DBSA's inner loop has ⌈√(k+1)⌉ steps and double-loop DSGD's k, at least one, in iteration k = 0, 1, …
        letters = dict(p=P, q=Q, T=5, N=5, b=20, r=int(np.ceil(np.sqrt(k + 1))), t=max(k, 1))
        assert cost["bytes"] == 8 * degree * numbers(entry.sends, **letters), (entry.sends, k)


ROUNDS = {
    name: 2 if name in ("gt", "push-pull") else 1 for name in MIXED
}  # of one level; semi-gt and non-gt send two at once
BOTH = UPPER + LOWER
SERIES = POWER_STEPS + 9  # products of ten terms with an automatic scale


def by_hand(name, k):
    """Samples, gradients, Hessian products, Jacobian products and rounds of iteration k, with all samples."""
    if name == "sparkle-led":
        return 4 * BOTH, 4 * 2, 4, 4, 1  # four local steps
    if name.startswith("sparkle"):
        mix = re.fullmatch(rf"sparkle-({'|'.join(MIXED)})(?:-({'|'.join(MIXED)}))?", name)
        below, above = mix[1], mix[2] or mix[1]
        return BOTH, 2, 1, 1, max(ROUNDS[below], ROUNDS[above])  # all levels travel together
    inner = {"dbsa": int(np.ceil(np.sqrt(k + 1))), "double-loop-dsgd": max(k, 1)}.get(name, 0)
    if inner:
        return LOWER * inner + BOTH, inner + 1, SERIES, 1, inner + 1
    with_spider = (BOTH, 2, Q, 1, 1) if k % 2 == 0 else (2 + 2, 4, 2 * Q, 2, 1)
    return {
        **dict.fromkeys(("d-soba", "soba", "lopa", "lopa-gt"), (BOTH, 2, 1, 1, 1)),
        **dict.fromkeys(("duet", "adasdbo"), (BOTH, 2, 1, 1, 2)),  # AdaSDBO: sums, then variables
        **dict.fromkeys(("spdb", "interact", "gt-dsgd", "d-sgd-bilevel"), (BOTH, 2, Q, 1, 1)),
        # all samples every ⌈√3⌉ steps; in between ⌈√3⌉ samples of each level at two points
        **dict.fromkeys(("svr-interact", "prometheus"), with_spider),
        **dict.fromkeys(("dsvrbgd", "normalized-dsvrbgd"), (BOTH, 4, 2, 2, 1)),  # at two points
        **dict.fromkeys(("ma-dsbo", "ma-dsbo-gt"), (5 * LOWER + 5 * BOTH + BOTH, 5 + 5 + 1, 5, 1, 5 + 5 + 1)),
        # ∇f and ∇g at one copy of y, ∇g at another; C²DFB five times before x moves
        **dict.fromkeys(("penalty-ed", "penalty-extra", "f2sa", "ahead"), (BOTH, 3, 0, 0, 1)),
        **dict.fromkeys(("penalty-gt", "dsgda-gt", "sun-dsbo"), (BOTH, 3, 0, 0, 2)),
        "c2dfb": (6 * BOTH, 6 * 3, 0, 0, 5 + 1),
        "d-soba-fo": (BOTH, 4, 0, 0, 1),  # ∇_y g, ∇f, and ∇g at two points
        "gossip-dsbo": (BOTH, 2, Q, Q, 1),
        "dsbo": (5 * LOWER + 5 * LOWER + UPPER, 5 + 1, 5 * Q, 5 * Q, 5 + 5 + 1),
        "mdbo": (BOTH, 2, POWER_STEPS, 1, 1),  # one term
        "vrdbo": (BOTH, 4, POWER_STEPS, 2, 1),  # at two points, with one scale
        "slam": (BOTH, 2, SERIES, 1, 1),
        "dama": (BOTH, 2, 0, 0, 1),
        "d-adast": (BOTH, 2, 0, 0, 2),  # sums, then variables
        **dict.fromkeys(("dsgd", "ed", "extra", "nids", "wave", "sgp", "proxskip", "gnsd"), (UPPER, 1, 0, 0, 1)),
        **dict.fromkeys(("ada-ed", "ada-ed-scalar", "adam-ed", "dadam", "gt-adam"), (UPPER, 1, 0, 0, 1)),
        **dict.fromkeys(("gt", "gt-ada", "push-pull"), (UPPER, 1, 0, 0, 2)),
        "gt-hsgd": (UPPER, 2, 0, 0, 2),  # at two points
        "led": (4 * UPPER, 4, 0, 0, 1),
        "k-gt": (5 * UPPER, 5, 0, 0, 1),
    }[name]


def test_costs_match_a_hand_count(name, ran):
    for k, cost in enumerate(ran[1]):
        assert tuple(cost[column] for column in COLUMNS[:-1]) == by_hand(name, k), k


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in db.CATALOG if name not in TRIED])
def test_costs_of_the_other_mixtures_match_a_hand_count(name):
    """The step is traced and not compiled."""
    run = start(name)
    costs = run.program.step_cost(run.state)
    assert tuple(costs.fixed[column] for column in COLUMNS[:-1]) == by_hand(name, 0)


B = 4
EXACT = dict(hypergradient=db.hypergradient.exact())
DIRECT = dict(hypergradient=db.hypergradient.direct())
ON_BATCHES = {
    # v, H z and J z⁺ on lower batches of their own, or all on one
    ("sparkle-ed", "sequence"): (dict(updates="alternating"), (B + 3 * B, 2, 1, 1, 3)),
    ("sparkle-ed", "simultaneous"): (dict(updates="simultaneous"), (2 * B, 2, 1, 1, 1)),
    ("lopa", ""): ({}, (B + 3 * B, 2, 1, 1, 1)),
    ("gossip-dsbo", ""): ({}, (3 * B + 20 * B, 2, 20 * Q, Q, 1)),  # ∇_y g, J and b Hessians on samples of their own
    ("ma-dsbo", ""): ({}, (5 * B + 10 * B + 2 * B, 11, 5, 1, 11)),
    ("dsgda-gt", ""): ({}, (2 * B, 3, 0, 0, 2)),  # the same samples at both copies
    ("c2dfb", ""): ({}, (6 * 2 * B, 6 * 3, 0, 0, 6)),
    ("dsbo", ""): ({}, (5 * B + 5 * B + B, 6, 5 * Q, 5 * Q, 11)),
    ("slam", ""): ({}, (2 * B + 9 * B + B, 2, SERIES, 1, 1)),  # every factor has samples of its own, and so has L
    ("gt-dsgd", "exact"): (EXACT, (2 * B, 2, Q, 1, 1)),
    ("spdb", "exact"): (EXACT, (3 * B, 2, Q, 1, 1)),  # v at y; J and H at y⁺
    ("spdb", "direct"): (DIRECT, (2 * B, 2, 0, 0, 1)),
    ("dsgd", ""): ({}, (B, 1, 0, 0, 1)),
}


@pytest.mark.slow_except("sparkle-ed sequence", "gossip-dsbo", "c2dfb", "slam", "spdb exact", "dsgd")
@pytest.mark.parametrize("case", ON_BATCHES, ids=lambda case: " ".join(case).strip())
def test_costs_on_batches_match_a_hand_count(case):
    """The step is traced and not compiled."""
    settings, expected = ON_BATCHES[case]
    run = start(case[0], method=db.CATALOG[case[0]](**settings), batch_size=B)
    page = run.program.step_cost(run.state)
    assert page.repeated_parts == [] and tuple(page.fixed[column] for column in COLUMNS[:-1]) == expected


def test_cost_of_a_random_series_is_what_was_drawn():
    """Products and samples follow k, on average over nodes; two points share their samples."""
    run = start("mdbo", method=db.mdbo(alpha=0.05, beta=0.1, theta=0.3, terms=6, scale=4.0), batch_size=B)
    _, costs = advance(run, 8)
    assert {cost["hvps"] * N % 1 for cost in costs} == {0.0} and len({cost["hvps"] for cost in costs}) > 2
    assert any(cost["hvps"] % 1 for cost in costs)  # of all nodes on average, not of the one with the longest series
    assert all(0 <= cost["hvps"] <= 5 and cost["samples"] == 2 * B + B * cost["hvps"] for cost in costs)


def test_two_points_share_the_samples_of_every_factor():
    """STORM evaluates one draw twice: two products for every sample of a factor."""
    run = start("vrdbo", method=db.vrdbo(alpha=0.05, beta=0.1, theta=0.3, terms=6, scale=4.0), batch_size=B)
    _, costs = advance(run, 4)
    assert sum(cost["hvps"] for cost in costs) > 0
    assert [cost["samples"] for cost in costs] == [2 * B + B * cost["hvps"] / 2 for cost in costs]


def test_cost_is_that_of_the_first_iteration():
    found = db.cost(problem("interact"), db.CATALOG["interact"](), STAR)
    assert found == dict(zip(COLUMNS, (BOTH, 2, Q, 1, 1, 8 * 1.5 * 2 * P), strict=True))


def test_every_method_says_which_samples_a_step_draws():
    for name, entry in db.CATALOG.items():
        assert "Draws" in (entry.make.__doc__ or ""), name


def test_docstrings_have_all_arguments_in_the_order_of_the_signature():
    for entry in db.CATALOG.values():
        arguments = inspect.getdoc(entry.make).partition("\n\nArgs:\n")[2].partition("\n\n")[0]
        assert re.findall(r"^    (\w+): ", arguments, re.MULTILINE) == list(inspect.signature(entry.make).parameters)


def test_names():
    published = (
        "d-soba d-soba-fo gossip-dsbo dbsa double-loop-dsgd spdb interact svr-interact gt-dsgd d-sgd-bilevel ma-dsbo "
        "ma-dsbo-gt dsbo mdbo vrdbo slam lopa lopa-gt soba dsgd ed extra gt gnsd nids gt-ada push-pull sgp"
    )
    mixtures = {name for name in db.CATALOG if name.startswith("sparkle-")}
    assert set(published.split()) | {*KINDS} <= set(db.CATALOG) and len(mixtures) == len(Sparkle.mixed) ** 2 + 7
    assert list(db.CATALOG) == sorted(db.CATALOG)
    assert all(entry.name == name and "\n" not in entry.summary for name, entry in db.CATALOG.items())


@pytest.mark.parametrize(("wrong", "right"), [("interct", "interact"), ("sparkle-ed-gtt", "sparkle-ed-gt")])
def test_an_unknown_name_gives_the_nearest(wrong, right):
    with pytest.raises(KeyError, match=f"{wrong}.*did you mean '{right}'"):
        db.CATALOG[wrong]


def test_a_registered_method_is_in_the_catalogue():
    class Mine(type(db.ed(alpha=0.1))):
        catalog_name, summary = "mine", "made up"

    try:
        make = register(Mine)(lambda *, alpha, theta=1.0: Mine(alpha, theta, db.strategies.strategy("ed")))
        entry = db.CATALOG["mine"]
        assert (entry().name, entry().alpha, entry.form, entry.sends) == ("mine", 0.05, "single", "p numbers")
        with pytest.raises(ValueError, match="'mine' is in the catalogue already"):
            register(Mine)(make)
    finally:
        REGISTERED.pop("mine", None)


def test_settings_override_defaults():
    assert db.CATALOG["interact"](alpha=0.7).alpha == 0.7 and db.CATALOG["interact"]().alpha == 0.05


@pytest.mark.parametrize(("method", "need"), [("gossip-dsbo", 1e4 * 3e4 + 20 * 9e8), ("dsbo", 4 * 1e4 * 3e4 + 9e8)])
def test_matrices_that_would_not_fit_raise(method, need):
    """Before anything is allocated, with the memory per node: b = 20 Hessians; or Z, two carries, J and H."""
    data = np.ones((2, 1))
    p, q = 10_000, 30_000
    large = db.Problem(
        lambda x, y, batch: jnp.sum(x) + jnp.sum(y) + jnp.mean(batch),
        lambda x, y, batch: jnp.sum(y**2) + jnp.mean(batch),
        upper_data=data,
        lower_data=data,
        x0=jnp.zeros(p),
        y0=jnp.zeros(q),
    )
    with pytest.raises(ValueError, match=rf"{method} .*{need * 8 / 2**30:.1f} GiB per node.*db\.sparkle"):
        db.solve(large, db.CATALOG[method](), db.graphs.complete(2), steps=1)
