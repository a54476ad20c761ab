"""Wave in plain NumPy, node by node and message by message, with a post office that loses and delays them.

Nothing is shared with the library: a node keeps a dictionary of z by neighbour, messages are objects with a number, and
the caller says in every tick who ends a computation and what becomes of each message.
"""

from __future__ import annotations

import functools

import numpy as np


class Node:
    def __init__(self, s, ρ):
        self.s, self.ρ = s, ρ  # ρ by neighbour
        self.z = {j: ρ[j] * s for j in ρ}
        self.mail, self.used = {}, dict.fromkeys(ρ, -1)

    def receive(self, j, number, q):
        if j not in self.mail or number > self.mail[j][0]:
            self.mail[j] = number, q

    def wake(self, d, cut):
        self.read(cut)
        self.s = self.s - d + sum(self.flows.values())

    def read(self, cut):
        for j, (number, q) in self.mail.items():
            if number > self.used[j]:
                self.z[j], self.used[j] = self.z[j] / 2 + q / 2, number
        self.flows = {j: cut(j, self.z[j] - self.ρ[j] * self.s) for j in self.ρ}
        self.z = {j: self.ρ[j] * self.s + self.flows[j] for j in self.ρ}

    def send(self):
        return {j: 2 * self.ρ[j] * self.s - self.z[j] for j in self.ρ}


def wave(
    step,
    s,
    W,
    steps,
    ends=lambda k, i: True,
    delay=lambda k, i, j: 0,
    lost=lambda k, i, j: False,
    told=lambda k, i, j, q, own: q,
    cut=lambda i, j, flow: flow,
    path=None,
    local_steps=1,
    share=None,
):
    """Every node's s after so many ticks.

    Args:
        step: `step(i, s_i)`, the step of node i, which is the gradient times the step size.
        s: (nodes, entries) the start.
        W: the mixing matrix.
        steps: ticks.
        ends: `ends(k, i)`, whether node i ends a computation in tick k.
        delay: `delay(k, i, j)`, the age of what arrives at i from j in tick k.
        lost: `lost(k, i, j)`, whether that is lost.
        told: `told(k, i, j, q, own)`, what j sends to i for q, where i sends `own` to j.
        cut: `cut(i, j, flow)`, the flow from j that i uses.
        path: a list to which every tick's s are added.
        local_steps: with more than one a node reads its mail when it begins, and then takes so many steps.
        share: of 2 w_ij that is ρ_ij; the inverse of `local_steps` where it is not given.
    """
    count = len(W)
    share = 1 / local_steps if share is None else share
    nodes = [Node(s[i], {j: 2 * share * W[i, j] for j in range(count) if j != i and W[i, j]}) for i in range(count)]
    sent = {}
    woke = set(range(count))
    for k in range(steps):
        sent |= {(k, i): nodes[i].send() for i in woke}
        for i in range(count):
            for j in nodes[i].ρ:
                number = k - delay(k, i, j)
                if (number, j) in sent and not lost(k, i, j):
                    q = told(number, i, j, sent[number, j][i], sent[number, i][j] if (number, i) in sent else None)
                    nodes[i].receive(j, number, q)
        if local_steps > 1:
            for i in woke:
                nodes[i].read(functools.partial(cut, i))
        woke = {i for i in range(count) if ends(k, i)}
        for i in woke:
            if local_steps == 1:
                nodes[i].wake(step(i, nodes[i].s), functools.partial(cut, i))
            else:
                for _ in range(local_steps):
                    nodes[i].s = nodes[i].s - step(i, nodes[i].s) + sum(nodes[i].flows.values())
        if path is not None:
            path.append(np.stack([node.s for node in nodes]))
    return np.stack([node.s for node in nodes])
