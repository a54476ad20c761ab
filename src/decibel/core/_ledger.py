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
from typing import SupportsFloat, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ._types import PyTree, Scalar

COLUMNS = ("samples", "gradients", "hvps", "jvps", "rounds", "bytes")
COSTS = ("step", *COLUMNS, "seconds")  # the columns of a trace that are not metrics

Counts: TypeAlias = dict[str, float]
Times: TypeAlias = Float[Array, ""]  # how often something was repeated, as a float32
T = TypeVar("T")
S = TypeVar("S")


@dataclass
class StepCost:
    """Fixed counts, and repetitions (traced) of further counts."""

    fixed: Counts = field(default_factory=lambda: dict.fromkeys(COLUMNS, 0))
    repeated: list[tuple[Times | None, Counts]] = field(default_factory=list[tuple[Times | None, Counts]])

    @property
    def repetitions(self) -> list[Times]:
        return [times for times, _ in self.repeated if times is not None]

    def untraced(self) -> StepCost:
        """The same counts without the traced numbers, to outlive the trace."""
        return StepCost(self.fixed, [(None, counts) for _, counts in self.repeated])

    def total(self, steps: int, repetitions: Sequence[SupportsFloat]) -> Counts:
        """Over `steps` steps, in which the repeated counts occurred that often."""
        total = {name: steps * amount for name, amount in self.fixed.items()}
        for times, (_, counts) in zip(repetitions, self.repeated, strict=True):
            total = {name: amount + float(times) * counts[name] for name, amount in total.items()}
        return total


class Ledger:
    """Per node: `samples` drawn, `gradients` (backward passes), `hvps` (H z), `jvps` (J z), `bytes` sent; and
    communication `rounds`. Loops and branches inside a step go through it, so that their bodies count rightly."""

    def __init__(self) -> None:
        self.page = StepCost()

    def add(self, **amounts: float) -> None:
        for column, amount in amounts.items():
            self.page.fixed[column] += amount

    def add_repeated(self, times: Scalar, counts: Mapping[str, float]) -> None:
        if isinstance(times, int | float):
            self.add(**{name: times * amount for name, amount in counts.items()})
        elif any(counts.values()):
            self.page.repeated.append((jnp.asarray(times, jnp.float32), dict.fromkeys(COLUMNS, 0) | dict(counts)))

    def scale(self, share: Float[Array, ""]) -> None:
        """Only that share of all counted so far was spent; rounds go on for whoever takes part."""
        spent = {name: amount for name, amount in self.page.fixed.items() if name != "rounds"}
        pairs = zip(self.page.repetitions, self.page.repeated, strict=True)
        self.page.repeated = [(share * times, counts) for times, (_, counts) in pairs]
        self.page.fixed |= dict.fromkeys(spent, 0)
        self.add_repeated(share, spent)

    def loop(
        self,
        times: int | Int[Array, ""],
        body: Callable[[Int[Array, ""], T], T],
        carry: T,
        *,
        counted: Times | None = None,
    ) -> T:
        """`fori_loop` from 0 to `times`, with the body's counts `times` times; or `counted` times, where a node needs
        fewer rounds than the slowest one."""
        page = self._probe(body, jnp.asarray(0, jnp.int32), carry)

        def run(j: Int[Array, ""], both: tuple[T, list[Times]]) -> tuple[T, list[Times]]:
            with self._new_page() as inner:
                carry = body(j, both[0])
            return carry, [total + more for total, more in zip(both[1], inner.repetitions, strict=True)]

        none = [jnp.zeros((), jnp.float32) for _ in page.repeated]
        carry, totals = jax.lax.fori_loop(jnp.int32(0), jnp.asarray(times, jnp.int32), run, (carry, none))
        self.add_repeated(times if counted is None else counted, page.fixed)
        for total, (_, counts) in zip(totals, page.repeated, strict=True):
            self.add_repeated(total, counts)
        return carry

    def loop_while(self, condition: Callable[[T], Bool[Array, ""]], body: Callable[[T], T], carry: T) -> T:
        """`while_loop`, with the body's counts as often as it ran. The body's own counts must be fixed."""
        page = self._probe(body, carry)

        def counted(both: tuple[Int[Array, ""], T]) -> tuple[Int[Array, ""], T]:
            with self._new_page():
                return both[0] + 1, body(both[1])

        ran, carry = jax.lax.while_loop(lambda both: condition(both[1]), counted, (jnp.int32(0), carry))
        self.add_repeated(ran, page.fixed)
        return carry

    def cond(self, choice: Bool[Array, ""], on_true: Callable[[T], S], on_false: Callable[[T], S], operand: T) -> S:
        """`lax.cond`, with the counts of the branch that ran."""
        pages = self._probe(on_true, operand), self._probe(on_false, operand)

        def branch(function: Callable[[T], S], mine: int) -> Callable[[T], tuple[S, list[list[Times]]]]:
            def run(operand: T) -> tuple[S, list[list[Times]]]:
                repetitions = [[jnp.zeros((), jnp.float32) for _ in page.repeated] for page in pages]
                with self._new_page() as inner:
                    out = function(operand)
                repetitions[mine] = inner.repetitions
                return out, repetitions

            return run

        out, repetitions = jax.lax.cond(choice, branch(on_true, 0), branch(on_false, 1), operand)
        for page, ran, totals in zip(pages, (choice, ~choice), repetitions, strict=True):
            self.add_repeated(ran.astype(jnp.float32), page.fixed)
            for total, (_, counts) in zip(totals, page.repeated, strict=True):
                self.add_repeated(total, counts)
        return out

    @contextmanager
    def _new_page(self) -> Generator[StepCost]:
        outer, self.page = self.page, StepCost()
        try:
            yield self.page
        finally:
            self.page = outer

    def _probe(self, function: Callable[..., PyTree], *arguments: PyTree) -> StepCost:
        with self._new_page() as page:
            jax.eval_shape(function, *arguments)
        return page
