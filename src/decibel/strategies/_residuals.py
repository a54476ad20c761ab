"""Compressed messages whose public copies are part of the nodes' state, so that a step may repeat its exchanges."""

from __future__ import annotations

import equinox as eqx

from ..core._vector import Vector
from ..network._codecs import Code, TopK
from ..network._messages import Increment
from ._table import Carry, Flows, Strategy, extended, strategy


class Residuals(eqx.Module):
    """A strategy's move that sends encoded differences from reference points.

    In addition to its own carries a node keeps, for each vector φ that it sends, the reference point φ̂, the sum of the
    decoded differences so far, and its flow δ(φ̂). W must not change.
    """

    base: Strategy
    code: Code

    def __call__(self, s: Vector, d: Vector, *carry: Vector) -> Flows:
        move = self.base.flow_form(s, d, *carry[: self.base.carries])
        references = list(carry[self.base.carries :])
        new_references: list[Vector] = []
        answer = None
        while True:
            try:
                message = move.send(answer)
            except StopIteration as end:
                s, base_carry = end.value
                return s, (*base_carry, *new_references)
            vectors = message if isinstance(message, tuple) else (message,)
            before = [(references.pop(0), references.pop(0)) for _ in vectors]
            residuals = tuple(φ - public for φ, (public, _) in zip(vectors, before, strict=True))
            decoded, flows = yield Increment(residuals, self.code)
            after = [(a + q, b + δ) for (a, b), q, δ in zip(before, decoded, flows, strict=True)]
            new_references += [vector for pair in after for vector in pair]
            answer = tuple(δ for _, δ in after) if isinstance(message, tuple) else after[0][1]


class InResiduals(Strategy):
    """A strategy whose messages are `Residuals`."""

    def repair(self, carry: Carry) -> Carry:
        """Reference points restart at zero, at every node."""
        assert isinstance(self.flow_form, Residuals)
        count = self.flow_form.base.carries
        return (*super().repair(carry[:count]), *(c.zeros() for c in carry[count:]))


def top_residuals(base: str, share: float, mixing: float) -> Strategy:
    """Sends only the largest entries of each difference from the reference point; may be repeated inside a step.

    Args:
        base: the strategy to wrap.
        share: the share of entries sent, above 0 and at most 1.
        mixing: factor of the flows, above 0 and at most 1.
    """
    for name, value in (("share", share), ("mixing", mixing)):
        if not (isinstance(value, int | float) and 0 < value <= 1):
            raise ValueError(f"{name}={value!r} must be above 0 and at most 1.")
    row = strategy(base)
    assert row.message_size is not None
    vectors, _ = row.message_size
    name = f"{row.name} (top {share:g} of residuals)"
    move = Residuals(row, TopK(share=float(share), mixing=float(mixing)))
    return extended(row, InResiduals, name=name, flow_form=move, carries=row.carries + 2 * vectors, proximal=None)
