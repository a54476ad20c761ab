"""An edge's rules: what counts, what is refused, and what two ends know of each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from silo_ends import Line
from silo_messages import Exponents, message

import decibel as db
from decibel.network._codecs import ConcatCodec
from decibel.network._links import LinkStatus
from decibel.silo._errors import Rejected
from decibel.silo._federation import FaultTolerance
from decibel.silo.protocol._edge import INBOX_MESSAGES, Edge
from decibel.silo.protocol._frame_limits import NOWHERE
from decibel.silo.protocol._frames import Data, Join, Position, Skip, parse, write
from decibel.silo.protocol._payload_layout import layout_of

CODES = [
    db.privacy.top_k("ed", 0.4),
    db.privacy.random_k("ed", 1.0),
    db.privacy.quantize("ed", 4),
]
KNOWN = {(np.dtype("f8"), (3,)): {None}}


def opened(mine=(True, 5), theirs=(True, 5)):
    edge = Edge(1, "other", True, FaultTolerance())
    (edge.holds_flow, step), (holds, there) = mine, theirs
    edge.open_link(edge.join_frame(step), Join(0, 1, False, holds, there, NOWHERE, True))
    return edge


class TestEdge:
    def test_heard_in_turn(self):
        edge = opened()
        assert edge.awaited(Position(5, 0)) and not edge.takes_part(4)
        for at in (Position(5, 0), Position(5, 1), Position(6, 0)):
            edge.receive(Data(1, at, np.full(3, float(at.exchange))), KNOWN, 0.0)
            row, tie = edge.take(at)
            assert row[0] == at.exchange and tie == LinkStatus.CONTINUE

    def test_repeated_and_old_messages_do_nothing(self):
        edge = opened()
        edge.receive(message(5, 0), KNOWN, 0.0)
        edge.receive(message(5, 0, tensor=np.zeros(3)), KNOWN, 0.0)
        edge.receive(message(4, 0), KNOWN, 0.0)
        edge.receive(message(5, 1, epoch=0), KNOWN, 0.0)
        assert edge.repeated == 3 and edge.take(Position(5, 0))[0][0] == 1

    @pytest.mark.parametrize(
        ("data", "sentence"),
        [
            (message(7, 0), "out of order"),
            (message(5, 2), "out of order"),
            (message(5, 1, tensor=np.array([1, np.nan, 1])), "NaN"),
            (message(5, 1, tensor=np.array([1, np.inf, 1])), "infinity"),
            (message(5, 1, tensor=np.ones(4)), "shape"),
            (message(5, 1, tensor=np.ones(3, np.float32)), "float32"),
            (message(5, 1, tensor=np.ones((1, 3))), "shape"),
        ],
    )
    def test_raises(self, data, sentence):
        edge = opened()
        edge.receive(message(5, 0), KNOWN, 0.0)
        with pytest.raises(Rejected, match=sentence):
            edge.receive(data, KNOWN, 0.0)

    @pytest.mark.slow_except("nan-ed (top 0.4)")
    @pytest.mark.parametrize("made", CODES, ids=lambda made: made.name)
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_what_is_not_finite_raises_in_code_too(self, made, bad):
        """Two levels in one message; only what is a float is looked at."""
        parts = ConcatCodec(made.flow_form.code, [5, 9], np.float64, [(0,), (1,)])
        layout, keys = layout_of(parts), (jax.random.key(0), jax.random.key(1))
        encode = jax.jit(lambda values: parts.encode(values, *keys))
        good = np.asarray(encode(np.arange(14.0) - 3))
        known = {(good.dtype, good.shape): {layout}}
        opened().receive(message(5, 0, tensor=good), known, 0.0)
        for place in (0, 5):  # the first entry of each level, and far larger than the others, so that it travels
            values = np.full(14, 1e-9)
            values[place : place + 5] = bad
            spoilt = np.asarray(encode(values))
            with pytest.raises(Rejected, match="NaN"):
                opened().receive(message(5, 0, tensor=spoilt), known, 0.0)
        # Neither steps of a quantizer nor places are floats: whatever bits they have, they are taken.
        bits = good.copy()
        ends = [
            (end, first) for (_, end, _), (first, _, _) in zip(layout, (*layout[1:], (bits.size, 0, "")), strict=True)
        ]
        for first, end in ends:
            bits[first:end] = 255
        opened().receive(message(5, 0, tensor=bits), known, 0.0)

    @pytest.mark.parametrize("floats", [-8, 12, 24])
    def test_a_code_that_misstates_its_floats_raises(self, floats):
        class Wrong(Exponents):
            def float_bytes(self, entries, dtype):
                return floats

        with pytest.raises(ValueError, match=f"Wrong.float_bytes gives {floats} for a message of 16 bytes"):
            layout_of(ConcatCodec(Wrong(), [8], np.dtype(np.float64), [(0,)]))

    def test_no_more_waits_than_can_be_ahead(self):
        edge = opened()
        with pytest.raises(Rejected, match="ahead"):
            for exchange in range(INBOX_MESSAGES + 1):
                edge.receive(message(5, exchange), KNOWN, 0.0)

    def test_a_jump_is_announced_and_then_not_awaited(self):
        edge = opened()
        edge.receive(message(5, 0), KNOWN, 0.0)
        with pytest.raises(Rejected, match="not ahead"):
            edge.on_skip(5)
        edge.on_skip(40)
        assert not edge.awaited(Position(6, 0)) and edge.awaited(Position(40, 0))
        edge.receive(message(40, 0), KNOWN, 0.0)
        assert edge.take(Position(6, 0)) == (None, LinkStatus.CONTINUE) and edge.take(Position(40, 0))[0] is not None

    @pytest.mark.parametrize("mine", [True, False])
    @pytest.mark.parametrize("theirs", [True, False])
    def test_both_ends_come_to_matching_ties(self, mine, theirs):
        here, there = opened((mine, 5), (theirs, 8)), opened((theirs, 8), (mine, 5))
        assert here.epoch == there.epoch
        pairs = {
            (LinkStatus.CONTINUE, LinkStatus.CONTINUE),
            (LinkStatus.START_AT_ZERO, LinkStatus.START_AT_ZERO),
            (LinkStatus.GIVE_FLOW, LinkStatus.TAKE_FLOW),
            (LinkStatus.TAKE_FLOW, LinkStatus.GIVE_FLOW),
        }
        assert (here.status_at_first_exchange, there.status_at_first_exchange) in pairs
        assert (here.status_at_first_exchange == LinkStatus.TAKE_FLOW) == (theirs and not mine)

    def test_ties_last_one_step(self):
        edge = opened((False, 5), (True, 5))
        states = []
        for at in ((5, 0), (5, 1), (6, 0)):
            edge.receive(message(*at), KNOWN, 0.0)
            states.append(edge.take(Position(*at))[1])
        assert states == [LinkStatus.TAKE_FLOW, LinkStatus.TAKE_FLOW, LinkStatus.CONTINUE]

    def test_ties_are_made_where_both_ends_take_part(self):
        """The other end is ahead: nothing is tied before its first message, which is this end's first that it takes."""
        edge = opened((False, 5), (True, 7))
        for step in (5, 6):
            assert edge.take(Position(step, 0)) == (None, LinkStatus.CONTINUE)
        edge.receive(message(7, 0), KNOWN, 0.0)
        assert edge.take(Position(7, 0))[1] == LinkStatus.TAKE_FLOW

    def test_one_that_is_behind_sends_nothing_and_tells_where_it_goes_on(self):
        edge, there, stream = opened((True, 5), (True, 7)), opened((True, 7), (True, 5)), Line()
        edge.stream = stream
        for step in (5, 6, 7):
            edge.send_data(Position(step, 0), write(message(step, 0)))
        assert [type(parse(frame)) for frame in stream.sent] == [Skip, Data]
        for frame in map(parse, stream.sent):
            there.on_skip(frame.step) if isinstance(frame, Skip) else there.receive(frame, KNOWN, 0.0)
        assert there.last_received == Position(7, 0)

    def test_nothing_overtakes_what_is_sent_again(self):
        """On a new stream nothing is said in turn before both ends know what arrived; jumps are said again, too."""
        edge, stream = opened(), Line()
        edge.send_data(Position(5, 0), b"lost")
        edge.drop_stream()
        edge.stream = stream
        edge.send_skip(9)
        edge.send_data(Position(9, 0), b"new")
        assert not stream.sent
        view = edge.join_frame(10)
        edge.open_link(view, view._replace(last_received=NOWHERE))
        assert stream.sent == [write(Skip(5)), b"lost", write(Skip(9)), b"new"]
        other = opened()
        other.on_skip(9)
        other.on_skip(9)  # said again

    def test_of_two_jumps_the_last_is_said_again(self):
        """It went on at step 7, which its neighbour had skipped, and then at step 9: the stream broke when the
        neighbour had heard of both."""
        edge, there, stream = opened((True, 5), (True, 8)), opened((True, 8), (True, 5)), Line()
        edge.stream = stream
        edge.send_skip(7)
        edge.send_data(Position(7, 0), b"left out")
        edge.send_data(Position(9, 0), write(message(9, 0)))
        for frame in map(parse, stream.sent[:2]):
            there.on_skip(frame.step)
        edge.drop_stream()
        edge.stream = stream = Line()
        edge.open_link(edge.join_frame(10), edge.join_frame(10)._replace(last_received=there.last_received))
        for frame in map(parse, stream.sent):
            there.on_skip(frame.step) if isinstance(frame, Skip) else there.receive(frame, KNOWN, 0.0)
        assert there.last_received == Position(9, 0)

    def test_an_answer_that_was_lost_is_given_again(self):
        """The end that dials asks the same again; the message that was sent for it in between still counts."""
        here, stream = Edge(1, "other", dials=False, rules=FaultTolerance()), Line()
        here.holds_flow, here.stream = True, stream
        question = Join(0, 77, False, True, 5, NOWHERE)
        here.on_join(question, here.join_frame(5, 77, answer=True), 0.0)
        here.send_data(Position(5, 0), b"message")
        first = list(stream.sent)
        here.drop_stream()
        here.stream = stream = Line()
        here.on_join(question, here.join_frame(6, 77, answer=True), 0.0)
        assert first[0] == stream.sent[0] and stream.sent[-1] == b"message" and here.takes_part(5)

    def test_an_answer_in_another_epoch_than_the_one_in_use_is_rejected(self):
        edge = opened()
        with pytest.raises(Rejected, match="JOINED in epoch 2"):
            edge.on_joined(Join(2, 3, True, True, 5, NOWHERE, answer=True), 6, 0.0)
        assert edge.is_open and edge.epoch == 1

    def test_who_went_on_while_it_waited_for_the_answer_says_so(self):
        edge, stream = Edge(1, "other", dials=True, rules=FaultTolerance()), Line()
        edge.stream, edge.joining, edge.join_epoch, edge.join_step = stream, True, 77, 5
        edge.on_joined(Join(0, 77, False, True, 5, NOWHERE, answer=True), 9, 0.0)
        assert stream.sent == [write(Skip(9))]

    def test_what_was_sent_is_sent_again_from_where_the_other_is(self):
        edge = opened()
        for exchange in range(3):
            edge.send_data(Position(5, exchange), b"%d" % exchange)
        edge.stream = Line()
        view = edge.join_frame(6)
        edge.open_link(view, view._replace(last_received=Position(5, 0)))
        assert edge.stream.sent == [b"1", b"2"]

    def test_where_more_is_missing_than_is_kept_the_other_end_is_told(self):
        """It was far behind, and its neighbour did not wait for it: neither rejects the other after a break."""
        here, there = opened(), opened()
        for step in range(5, 40):
            here.send_data(Position(step, 0), write(message(step, 0)))
            here.send_data(Position(step, 1), write(message(step, 1)))
        here.stream = Line()
        there.receive(message(5, 0), KNOWN, 0.0)
        here.resend(there.last_received)
        for frame in map(parse, here.stream.sent):
            there.on_skip(frame.step) if isinstance(frame, Skip) else there.receive(frame, KNOWN, 0.0, Position(50, 0))
        assert there.last_received == Position(39, 1) and len(here.stream.sent) == INBOX_MESSAGES + 1

    def test_messages_for_steps_that_are_over_take_no_room(self):
        edge = opened()
        for step in range(5, 60):
            edge.receive(message(step, 0), KNOWN, 0.0, Position(100, 0))
        assert not edge.inbox and edge.their_position == Position(59, 0)

    def test_a_closed_edge_is_apart_unless_its_flow_is_held(self):
        for forget, tie in ((True, LinkStatus.DROP_FLOW), (False, LinkStatus.CONTINUE)):
            edge = opened()
            edge.stop_exchanging(forget=forget)
            assert not edge.awaited(Position(5, 0)) and edge.take(Position(5, 0)) == (None, tie)


def test_the_flow_that_is_taken_over_conserves_the_sum():
    """F_ij := −F_ji at the end that returns, whatever its own checkpoint held."""
    from decibel.engines._program import RunConfig
    from decibel.network._in_flight import LinkVectors
    from decibel.network._incidence import Sums
    from decibel.network._links import Channel, Links, Received, Transport
    from decibel.network._messages import accumulate

    rng = np.random.default_rng(0)
    F, φ = jnp.asarray(rng.normal(size=(2, 1, 3))), jnp.asarray(rng.normal(size=(2, 3)))
    links = Links(jnp.asarray([[1], [0]], jnp.int32), jnp.full((2, 1, 1), 0.25), Sums(1, None))
    for ties, kept in (
        ((LinkStatus.GIVE_FLOW, LinkStatus.TAKE_FLOW), F[0, 0]),
        ((LinkStatus.START_AT_ZERO, LinkStatus.START_AT_ZERO), jnp.zeros(3)),
    ):
        pair = lambda rows, ties=ties: Received(rows[::-1], jnp.ones((2, 1), bool), jnp.asarray(ties)[:, None])  # noqa: E731
        faults = RunConfig().link_faults(jnp.arange(2, dtype=jnp.int32))
        channel = Channel(links, jnp.int32(0), 0, faults, Transport(None, pair, None))
        new = jax.jit(lambda φ, F: accumulate(channel, φ, LinkVectors(F, None, None)).vectors)(φ, F)  # noqa: B023
        np.testing.assert_array_equal(new[0], -new[1])
        np.testing.assert_allclose(new[0, 0], kept + 0.25 * (φ[1] - φ[0]), atol=1e-15)
