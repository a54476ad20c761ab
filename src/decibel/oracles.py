"""What every node computes from its own data at its own point: gradients and products with second derivatives.

All points are stacked over nodes. One `vjp` of the stacked (x, y) ↦ ∇_y g gives v as its value and (J z, H z) as its
pullback; what a step does not use is never computed.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
from jax import Array

from .hypergradient import Auxiliary, auxiliary
from .ledger import Ledger
from .problem import Problem
from .samples import Batch, NodeData
from .vector import Vector

EXACT_PRODUCTS = auxiliary()


class Oracle:
    """The nodes' derivatives at step k. `draw()` takes fresh samples, from keys that depend on seed, step and node
    only, so that a run does not depend on where nodes live."""

    def __init__(self, problem: Problem, nodes: Array, key: Array, batch_size: int | None, ledger: Ledger) -> None:
        self.problem, self.nodes, self.ledger = problem, nodes, ledger
        self._key, self._batch_size = key, batch_size

    def draw(self, tag: int | Array = 0) -> Draw:
        """Independent samples of both levels; different tags give different samples within one step."""
        keys = jax.vmap(lambda node: jax.random.fold_in(jax.random.fold_in(self._key, tag), node))(self.nodes)
        return Draw(self, keys, self._batch_size)


class Draw:
    """One batch per level and node, taken when first used."""

    def __init__(self, oracle: Oracle, keys: Array, batch_size: int | None) -> None:
        self.problem, self.ledger = oracle.problem, oracle.ledger
        self._keys, self._batch_size = keys, batch_size

    @cached_property
    def upper(self) -> Batch:
        return self._take(self.problem.upper_data, 0)

    @cached_property
    def lower(self) -> Batch:
        return self._take(self.problem.lower_data, 1)

    @cached_property
    def _bits(self) -> Array:
        """(nodes, 2, batch) random bits, enough for both levels."""
        shape = (2, self._batch_size or 0)
        return jax.vmap(lambda key: jax.random.bits(key, shape))(self._keys)

    def _take(self, data: NodeData, level: int) -> Batch:
        if self._batch_size is None:
            self.ledger.add(samples=data.samples_per_node)
            return data.full()
        self.ledger.add(samples=self._batch_size)
        return data.draw(self._bits[:, level])

    def at(self, x: Vector, y: Vector | None = None, products: Auxiliary = EXACT_PRODUCTS) -> Point:
        return Point(self, x, y, products)


class Point:
    """Derivatives at one point of every node, on one draw; each is computed and counted once."""

    def __init__(self, draw: Draw, x: Vector, y: Vector | None, products: Auxiliary) -> None:
        self._draw, self._x, self._y, self._how = draw, x, y, products
        self._products: dict[int, tuple[Vector, Vector, Vector]] = {}
        self._counted: set[tuple[str, int]] = set()

    @cached_property
    def v(self) -> Vector:
        """∇_y g(x, y)"""
        self._draw.ledger.add(gradients=1)
        return Vector(self._linear[0])

    @cached_property
    def upper_gradients(self) -> tuple[Vector, Vector]:
        """(∇_x f, ∇_y f)"""
        self._draw.ledger.add(gradients=1)
        problem = self._draw.problem
        argnums = (0,) if self._y is None else (0, 1)
        gradients = jax.vmap(jax.grad(problem.upper_loss, argnums))(self._x.tree, _tree(self._y), self._draw.upper)
        return Vector(gradients[0]), Vector(gradients[-1])

    def p(self, z: Vector) -> Vector:
        """H z − ∇_y f"""
        return self.hessian(z) - self.upper_gradients[1]

    def u(self, z: Vector) -> Vector:
        """∇_x f − J z"""
        return self.upper_gradients[0] - self.jacobian(z)

    def hessian(self, z: Vector) -> Vector:
        self._count("hvps", z)
        return self._product(z)[1]

    def jacobian(self, z: Vector) -> Vector:
        self._count("jvps", z)
        return self._product(z)[0]

    def _count(self, kind: str, z: Vector) -> None:
        # Keyed by object: `_products` below keeps z alive, so its id is not reused.
        if self._how.difference is None and (kind, id(z)) not in self._counted:
            self._counted.add((kind, id(z)))
            self._draw.ledger.add(**{kind: 1})

    @cached_property
    def _linear(self) -> tuple[Any, Any]:
        lower, batch = self._draw.problem.lower_loss, self._draw.lower
        gradient = jax.vmap(jax.grad(lower, 1))
        return jax.vjp(lambda x, y: gradient(x, y, batch), self._x.tree, _tree(self._y))

    def _product(self, z: Vector) -> tuple[Vector, Vector]:
        """(J z, H z)"""
        if id(z) not in self._products:
            how = self._pullback if self._how.difference is None else self._differences
            self._products[id(z)] = (*how(z), z)
        return self._products[id(z)][:2]

    def _pullback(self, z: Vector) -> tuple[Vector, Vector]:
        jacobian, hessian = self._linear[1](z.tree)
        return Vector(jacobian), Vector(hessian)

    def _differences(self, z: Vector) -> tuple[Vector, Vector]:
        """[∇g(x, y + δz) − ∇g(x, y − δz)] / 2δ on the same sample: no second derivatives."""
        δ, y, draw = self._how.difference, self._y, self._draw
        assert δ is not None and y is not None
        draw.ledger.add(gradients=2)
        gradient = jax.vmap(jax.grad(draw.problem.lower_loss, (0, 1)))
        ahead = Vector(gradient(self._x.tree, (y + δ * z).tree, draw.lower))
        behind = Vector(gradient(self._x.tree, (y if self._how.forward else y - δ * z).tree, draw.lower))
        jacobian, hessian = ((1 / δ if self._how.forward else 0.5 / δ) * (ahead - behind)).tree
        return Vector(jacobian), Vector(hessian)


def _tree(vector: Vector | None) -> Any:
    return None if vector is None else vector.tree
