"""What a step costs, counted by the step itself while it is traced.

The oracle and the network report every sample, derivative and message to a `Ledger` at the moment they compute it, so
the numbers cannot disagree with the program. Most counts are the same in every step: plain integers that cost nothing
at run time. Counts that depend on the step, on chance or on the data (growing loops, random truncation, solvers) are a
number of repetitions, traced, times what one repetition costs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, SupportsFloat, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ._types import PyTree, Scalar

COLUMNS = ("samples", "gradients", "hvps", "jvps", "rounds", "bytes")
COSTS = ("step", *COLUMNS, "seconds", "simulated_time")  # the columns of a trace that are not metrics

Counts: TypeAlias = dict[str, float]
Times: TypeAlias = Float[Array, ""]  # how often something was repeated, as a float32
T = TypeVar("T")
S = TypeVar("S")


class RepeatedPart(NamedTuple):
    """A part of a step: how often it ran (traced; None after the trace), and the counts of running it once."""

    times: Times | None
    counts: Counts


@dataclass
class StepCost:
    """The cost of a step: fixed counts, and the parts that run a traced number of times."""

    fixed: Counts = field(default_factory=lambda: dict.fromkeys(COLUMNS, 0))
    repeated_parts: list[RepeatedPart] = field(default_factory=list[RepeatedPart])

    @property
    def repetitions(self) -> list[Times]:
        """How often each of `repeated_parts` ran."""
        return [part.times for part in self.repeated_parts if part.times is not None]

    def untraced(self) -> StepCost:
        """The same counts without the traced numbers, to outlive the trace."""
        return StepCost(self.fixed, [RepeatedPart(None, part.counts) for part in self.repeated_parts])

    def total(self, steps: int, repetitions: Sequence[SupportsFloat]) -> Counts:
        """The counts of `steps` steps, in which each of `repeated_parts` ran as often as `repetitions` says."""
        total = {name: steps * amount for name, amount in self.fixed.items()}
        for times, (_, counts) in zip(repetitions, self.repeated_parts, strict=True):
            total = {name: amount + float(times) * counts[name] for name, amount in total.items()}
        return total


class Ledger:
    """Counts the cost of a step while it is traced, per node.

    The columns are `samples` drawn, `gradients` (backward passes), `hvps` (products H z), `jvps` (products J z),
    `bytes` sent, and communication `rounds`. The oracle and the network report to it; loops and branches inside a step
    must go through it, so that their bodies are counted as often as they run.
    """

    def __init__(self) -> None:
        self.step_cost = StepCost()

    def add(self, **amounts: float) -> None:
        """Adds amounts by column."""
        for column, amount in amounts.items():
            self.step_cost.fixed[column] += amount

    def add_repeated(self, times: Scalar, counts: Mapping[str, float]) -> None:
        """Adds counts that occur `times` times, which may be a traced number."""
        if isinstance(times, int | float):
            self.add(**{name: times * amount for name, amount in counts.items()})
        elif any(counts.values()):
            all_counts = dict.fromkeys(COLUMNS, 0) | dict(counts)
            self.step_cost.repeated_parts.append(RepeatedPart(jnp.asarray(times, jnp.float32), all_counts))

    def scale(self, share: Float[Array, ""]) -> None:
        """Scales all counts so far except rounds, where only a share of the nodes computed."""
        spent = {name: amount for name, amount in self.step_cost.fixed.items() if name != "rounds"}
        pairs = zip(self.step_cost.repetitions, self.step_cost.repeated_parts, strict=True)
        self.step_cost.repeated_parts = [RepeatedPart(share * times, part.counts) for times, part in pairs]
        self.step_cost.fixed |= dict.fromkeys(spent, 0)
        self.add_repeated(share, spent)

    def loop(
        self,
        times: int | Int[Array, ""],
        body: Callable[[Int[Array, ""], T], T],
        carry: T,
        *,
        counted: Times | None = None,
    ) -> T:
        """`lax.fori_loop` from 0 to `times`, whose body is counted `times` times.

        Args:
            times: the number of iterations.
            body: `body(j, carry)` returns the new carry.
            carry: the initial carry.
            counted: count the body this often instead, if a node needs fewer iterations than the slowest.
        """
        step_cost = self._probe(body, jnp.asarray(0, jnp.int32), carry)

        def run(j: Int[Array, ""], carry_and_totals: tuple[T, list[Times]]) -> tuple[T, list[Times]]:
            with self._new_step_cost() as inner:
                carry = body(j, carry_and_totals[0])
            return carry, [total + more for total, more in zip(carry_and_totals[1], inner.repetitions, strict=True)]

        none = [jnp.zeros((), jnp.float32) for _ in step_cost.repeated_parts]
        carry, totals = jax.lax.fori_loop(jnp.int32(0), jnp.asarray(times, jnp.int32), run, (carry, none))
        self._add_cost(step_cost, times if counted is None else counted, totals)
        return carry

    def loop_while(self, condition: Callable[[T], Bool[Array, ""]], body: Callable[[T], T], carry: T) -> T:
        """`lax.while_loop`, whose body is counted as often as it ran; the body's own counts must be fixed.

        Args:
            condition: `condition(carry)` says whether to continue.
            body: `body(carry)` returns the new carry.
            carry: the initial carry.
        """
        step_cost = self._probe(body, carry)

        def counted(count_and_carry: tuple[Int[Array, ""], T]) -> tuple[Int[Array, ""], T]:
            with self._new_step_cost():
                return count_and_carry[0] + 1, body(count_and_carry[1])

        ran, carry = jax.lax.while_loop(
            lambda count_and_carry: condition(count_and_carry[1]), counted, (jnp.int32(0), carry)
        )
        self.add_repeated(ran, step_cost.fixed)
        return carry

    def cond(self, choice: Bool[Array, ""], on_true: Callable[[T], S], on_false: Callable[[T], S], operand: T) -> S:
        """`lax.cond`, with the counts of the branch that ran.

        Args:
            choice: a traced boolean.
            on_true: called with `operand` if it is true.
            on_false: called with `operand` if it is false.
            operand: the argument of both.
        """
        step_costs = self._probe(on_true, operand), self._probe(on_false, operand)

        def branch(function: Callable[[T], S], index: int) -> Callable[[T], tuple[S, list[list[Times]]]]:
            def run(operand: T) -> tuple[S, list[list[Times]]]:
                repetitions = [
                    [jnp.zeros((), jnp.float32) for _ in step_cost.repeated_parts] for step_cost in step_costs
                ]
                with self._new_step_cost() as inner:
                    out = function(operand)
                repetitions[index] = inner.repetitions
                return out, repetitions

            return run

        out, repetitions = jax.lax.cond(choice, branch(on_true, 0), branch(on_false, 1), operand)
        for step_cost, ran, totals in zip(step_costs, (choice, ~choice), repetitions, strict=True):
            self._add_cost(step_cost, ran.astype(jnp.float32), totals)
        return out

    def _add_cost(self, step_cost: StepCost, times: Scalar, totals: list[Times]) -> None:
        """Adds the cost of a body that ran `times` times; its own repeated parts ran `totals` times in all."""
        self.add_repeated(times, step_cost.fixed)
        for total, (_, counts) in zip(totals, step_cost.repeated_parts, strict=True):
            self.add_repeated(total, counts)

    @contextmanager
    def _new_step_cost(self) -> Generator[StepCost]:
        outer, self.step_cost = self.step_cost, StepCost()
        try:
            yield self.step_cost
        finally:
            self.step_cost = outer

    def _probe(self, function: Callable[..., PyTree], *arguments: PyTree) -> StepCost:
        with self._new_step_cost() as step_cost:
            jax.eval_shape(function, *arguments)
        return step_cost


def depend_on(loop_index: Int[Array, ""], value: S) -> S:
    """The same value, made to depend on the index of a loop: XLA moves what does not depend on it out of the loop."""
    return jax.lax.optimization_barrier((loop_index, value))[1]
