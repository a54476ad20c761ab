"""Compressed messages whose public copies are part of the nodes' state, so that a step may repeat its exchanges."""

from __future__ import annotations

import equinox as eqx

from ..core._vector import Vector
from ..network._codecs import Code, TopK
from ..network._communicator import Move
from ..network._messages import Increment
from ._table import Carry, Strategy, as_subclass, strategy


class ResidualFlowForm(eqx.Module):
    """A strategy's flow form that sends encoded differences from reference points.

    In addition to its own carries a node keeps, for each vector φ that it sends, the reference point φ̂, the sum of the
    decoded differences so far, and its flow δ(φ̂). W must not change.
    """

    base: Strategy
    code: Code

    def __call__(self, s: Vector, d: Vector, *carry: Vector) -> Move:
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
            old_pairs = [(references.pop(0), references.pop(0)) for _ in vectors]  # φ̂ and δ(φ̂) of each vector
            residuals = tuple(φ - φ_hat for φ, (φ_hat, _) in zip(vectors, old_pairs, strict=True))
            decoded, flows = yield Increment(residuals, self.code)
            new_pairs = [(φ_hat + q, sum_δ + δ) for (φ_hat, sum_δ), q, δ in zip(old_pairs, decoded, flows, strict=True)]
            new_references += [vector for pair in new_pairs for vector in pair]
            answer = tuple(δ for _, δ in new_pairs) if isinstance(message, tuple) else new_pairs[0][1]


class ResidualStrategy(Strategy):
    """A strategy that sends residuals: its flow form is a `ResidualFlowForm`."""

    def repair(self, carry: Carry) -> Carry:
        """Reference points restart at zero, at every node."""
        assert isinstance(self.flow_form, ResidualFlowForm)
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
    wrapped = strategy(base)
    assert wrapped.message_size is not None
    vectors, _ = wrapped.message_size
    name = f"{wrapped.name} (top {share:g} of residuals)"
    flow_form = ResidualFlowForm(wrapped, TopK(share=float(share), mixing=float(mixing)))
    carries = wrapped.carries + 2 * vectors
    return as_subclass(wrapped, ResidualStrategy, name=name, flow_form=flow_form, carries=carries, proximal=None)
