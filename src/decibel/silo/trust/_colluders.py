"""Which members may collude without separating the others, and how large a limit on flows that needs.

With a limit B on every link, sites minimise Σ_i f_i(x_i) + B Σ_ij ‖x_i − x_j‖ over honest links (Ben-Ameur, Bianchi and
Jakubowicz, 2016), to which each link to a colluder adds a linear term of norm B at most. The m honest sites agree, on a
point that colluders move, exactly if flows within B carry what remains: at site i the pushes of its colluding
neighbours, less an equal share of all pushes (all sites have the same curvature), and what flows where nobody lies. A
push at site a is routed to all honest sites by a flow f^a of its own, so that Σ_a ‖f^a‖ B + ‖F‖ ≤ B on every honest
link is enough. The largest 1/B is that of a linear program. Less may do where flows can take other ways than the
program's, which do not depend on what is pushed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import optimize, sparse

FlowSizes = Mapping[tuple[int, int], float]  # by link, the size of its flow without liars
MOST = 100_000  # unknowns, over the programs of all sets of that many colluders


class Tolerated(NamedTuple):
    """A number of colluders; the limit with which any such group leaves the others together, infinite if there is none;
    and the colluders that need the largest limit.
    """

    colluders: int
    limit: float
    worst: tuple[int, ...]


def tolerated(sites: int, flows: FlowSizes) -> Iterator[Tolerated]:
    """The answers for one colluder, for two, and so on, up to the first number that no limit tolerates, or that has too
    many groups to check.
    """
    for count in range(1, sites - 1):
        if math.comb(sites, count) * sites * len(flows) > MOST:
            return
        sets = combinations(range(sites), count)
        limit, worst = max((smallest_limit(sites, flows, colluders), colluders) for colluders in sets)
        yield Tolerated(count, limit, worst)
        if math.isinf(limit):
            return


def smallest_limit(sites: int, flows: FlowSizes, colluders: Collection[int]) -> float:
    """The smallest limit with which these colluders leave the others together; infinite if there is none."""
    honest = [site for site in range(sites) if site not in colluders]
    place = {site: row for row, site in enumerate(honest)}
    links = [(place[a], place[b], size) for (a, b), size in flows.items() if a in place and b in place]
    pushes = np.zeros(len(honest))
    for a, b in flows:
        if (a in place) != (b in place):
            pushes[place[a] if a in place else place[b]] += 1
    pushed = np.flatnonzero(pushes)
    if not len(pushed):
        return max((size for _, _, size in links), default=0.0)
    if not links:
        return math.inf
    ends = sparse.coo_array(
        (
            np.repeat([1.0, -1.0], len(links)),
            ([a for a, _, _ in links] + [b for _, b, _ in links], 2 * list(range(len(links)))),
        ),
        (len(honest), len(links)),
    )
    # The unknowns: every pushed site's flows one way, the same the other way, and 1/B.
    each = sparse.csr_array(sparse.block_diag([ends] * len(pushed)))
    rows = len(pushed) * len(honest)
    unknowns = len(pushed) * len(links)
    leaves = np.eye(len(honest))[pushed] - 1 / len(honest)
    carried = sparse.hstack([pushes[site] * sparse.eye_array(len(links)) for site in pushed])
    solution = optimize.linprog(
        np.append(np.zeros(2 * unknowns), -1.0),
        A_ub=sparse.hstack([carried, carried, np.asarray([[size] for _, _, size in links])]),
        b_ub=np.ones(len(links)),
        A_eq=sparse.hstack([each, -each, sparse.coo_array((rows, 1))]),
        b_eq=leaves.ravel(),
        bounds=(0, None),
    )
    if solution.status == 3:  # unbounded: nothing flows, so that any limit does
        return 0.0
    return 1 / float(solution.x[-1]) if solution.success and solution.x[-1] > 1e-9 else math.inf
