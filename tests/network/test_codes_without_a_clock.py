"""Codes of wave between two ends without a common clock: of any speed, late, lost, and started again."""

from __future__ import annotations

import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel.core._vector import Vector
from decibel.engines._program import RunConfig
from decibel.network._codecs import Quantized, RandomK, TopK
from decibel.network._coded_wave import HEADER_BYTES, CodedWave
from decibel.network._links import Channel, NoiseKeys, Received, Transport
from decibel.silo.run._site_network import _links

ENTRIES, ALPHA = 20, 0.2
PAIR = db.graphs.ring(2)
QUADRATIC = random_quadratic(2, p=ENTRIES, seed=1, spread=2.0)
CODES = {
    "4 bits": Quantized(bits=4, mixing=1.0),
    "top": TopK(share=0.3, mixing=1.0),
    "random": RandomK(share=0.5, mixing=1.0),
}


class End:
    """One node: what it sends before a step, and the step with what has come."""

    def __init__(self, code, number):
        links, _ = _links(PAIR, number)
        faults = RunConfig().link_faults(jnp.asarray([number], jnp.int32))
        self.number, self.k, self.incarnation, self.mail = number, 0, 1, None

        def channel(k, incarnation, row=None, arrived=None):
            received = lambda _: Received(row[None, None], arrived[None, None], jnp.zeros((1, 1), jnp.int32))  # noqa: E731
            transport = Transport(received, received, received, None, incarnation)
            return Channel(links, k, 0, faults, transport, noise_keys=NoiseKeys())

        def message(s):
            return CodedWave({"x": Vector(s)}, code)

        def post(k, incarnation, s, memory):
            row, memory = message(s).post(channel(k, incarnation), memory)
            return row[0, 0], memory

        def step(k, incarnation, s, memory, row, arrived):
            flow, memory = message(s).receive(channel(k, incarnation, row, arrived), memory)
            gradient = (QUADRATIC.R[number] @ (s[0] - QUADRATIC.e[number]))[None]
            return s - ALPHA * gradient + flow["x"].tree, memory

        self._post, self._step = jax.jit(post), jax.jit(step)
        self.s = jnp.zeros((1, ENTRIES))
        self.memory = message(self.s).link_memory(channel(0, 1))
        self._nothing = np.zeros(self.memory.per_link.transport_state.posted.row.shape[-1], np.uint8)

    def post(self):
        row, self.memory = self._post(self.k, self.incarnation, self.s, self.memory)
        return row

    def step(self):
        row, arrived = (self._nothing, np.False_) if self.mail is None else (self.mail, np.True_)
        self.s, self.memory = self._step(self.k, self.incarnation, self.s, self.memory, row, arrived)
        self.k, self.mail = self.k + 1, None

    @property
    def transport_state(self):
        return jax.tree.map(lambda leaf: np.asarray(leaf)[0, 0], self.memory.per_link.transport_state)

    def saved(self):
        return self.k, self.s, self.memory

    def started_again(self, saved):
        self.k, self.s, self.memory = saved
        self.incarnation += 1


def talk(ends, until, *, periods, delay, loss, rng, now=0.0, look=lambda: None):
    """Both compute in periods of their own; the newest message of each waits for the other to finish."""
    events = [(now + period, 0, number, None) for number, period in enumerate(periods)]
    order = 0
    for end in ends:
        end.mail = None
    while events[0][0] < until:
        now, _, number, row = heapq.heappop(events)
        order += 1
        if row is not None:
            ends[number].mail = row
            continue
        ends[number].step()
        look()
        if rng.random() >= loss:
            heapq.heappush(events, (now + delay * (0.5 + rng.random()), order, 1 - number, ends[number].post()))
        else:
            ends[number].post()
        heapq.heappush(events, (now + periods[number] * (0.9 + 0.2 * rng.random()), order, number, None))
    return now


def agree(ends):
    """A base that one end codes by and the other may read by is the same at both, to the last bit."""
    for one, other in (ends, ends[::-1]):
        (base, _, numbers), reader, mine = (
            one.transport_state.sender,
            other.transport_state.receiver,
            one.transport_state.posted.ends[0],
        )
        if other.transport_state.posted.ends[1] == mine and numbers[0] > 0:
            for number, held in zip(reader.numbers[:2], (reader.base, reader.candidate), strict=True):
                if number == numbers[0]:
                    np.testing.assert_array_equal(base, held)


def number_of(row):
    return int(np.asarray(row)[HEADER_BYTES : HEADER_BYTES + 4].view(np.int32)[0])


def error(ends):
    exact = QUADRATIC.single_solution()
    return max(np.abs(np.asarray(end.s[0]) - exact).max() for end in ends)


CASES = {
    "in step": {"periods": (1, 1), "delay": 0.1, "loss": 0.0},
    "lost": {"periods": (1, 1), "delay": 0.1, "loss": 0.3},
    "far": {"periods": (1, 1), "delay": 10.0, "loss": 0.3},
    "slow": {"periods": (0.03, 1), "delay": 0.6, "loss": 0.3},
}


@pytest.mark.slow_except("4 bits-lost")
@pytest.mark.parametrize(("name", "case"), [*(("4 bits", case) for case in CASES), ("top", "lost"), ("random", "lost")])
def test_exact(name, case):
    ends, rng = [End(CODES[name], number) for number in range(2)], np.random.default_rng(0)
    talk(ends, {"far": 2000, "slow": 150}.get(case, 200), rng=rng, look=lambda: agree(ends), **CASES[case])
    assert error(ends) < 1e-8


@pytest.mark.slow
def test_an_end_is_started_again_and_again_from_an_old_state():
    """Whose steps, and so the numbers of its messages, go back."""
    ends, rng = [End(CODES["4 bits"], number) for number in range(2)], np.random.default_rng(0)
    now = 0.0
    for _ in range(5):
        now = talk(ends, now + 4, rng=rng, now=now, look=lambda: agree(ends), **CASES["slow"])
        saved = ends[0].saved()
        now = talk(ends, now + 3, rng=rng, now=now, look=lambda: agree(ends), **CASES["slow"])
        assert ends[0].k - saved[0] > 50
        ends[0].started_again(saved)
    talk(ends, now + 150, rng=rng, now=now, look=lambda: agree(ends), **CASES["slow"])
    assert error(ends) < 1e-8


def test_what_is_acknowledged_of_an_earlier_process_is_no_base():
    """A number that both have used, with other contents."""
    one, other = (End(CODES["4 bits"], number) for number in range(2))

    def alone(until):
        while one.k < until:
            one.post()
            one.step()

    alone(5)
    saved = one.saved()
    alone(10)
    other.post()
    other.mail = one.post()
    other.step()
    stale = other.post()
    assert other.transport_state.receiver.numbers[1] == 11  # which `stale` acknowledges
    one.started_again((saved[0], saved[1] + 1, saved[2]))
    for number in range(6, 12):
        row = one.post()
        assert number_of(row) == one.transport_state.sender.numbers[1] == number
        one.mail = stale if number == 11 else None
        one.step()
    assert one.transport_state.sender.numbers[0] == 0
    first = End(CODES["4 bits"], 0)  # a message of a smaller number, of a process that is new
    first.incarnation = 3
    other.mail = first.post()
    other.step()
    assert other.transport_state.receiver.numbers[1] == other.transport_state.receiver.numbers[2] == 1


@pytest.mark.slow
def test_messages_become_rare_until_something_is_acknowledged():
    """So that what is kept covers any delay; and with an answer to every message there is one in every step."""
    alone = End(CODES["4 bits"], 0)
    written = set()
    for _ in range(300):
        alone.post()
        kept = alone.transport_state.sender.numbers[1:]
        written.add(int(kept[0]))
        alone.step()
    assert 30 < len(written) < 60 and kept.min() < 300 / 2
    ends, numbers = [End(CODES["4 bits"], number) for number in range(2)], []
    for _ in range(50):
        rows = [end.post() for end in ends]
        for end, row in zip(ends, rows[::-1], strict=True):
            end.mail = row
            end.step()
        numbers.append(number_of(rows[0]))
    assert numbers == list(range(1, 51))
