"""Nodes that send other numbers than they have: a hook for the tests, over the simulator's and a site's network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

import decibel as db
from decibel.network._in_memory import InMemory

FIRST, LAST = 0, 10**9


# What a liar sends for `row`, its honest message to a neighbour, who has `own`; v is a direction. A message is [φ, F]
# of "edge-ed", or q of "wave", where F is empty.


def push(step, row, own, v):
    """A constant far away, with the flow that the neighbour knows."""
    return jnp.concatenate([jnp.broadcast_to(100 * v, own.shape[:-1] + v.shape), _parts(row, v)[1]], -1)


def flip(step, row, own, v):
    return -3 * row


def random(step, row, own, v):
    """Another in every step, the same to all."""
    drawn = 1e6 * jax.random.normal(jax.random.fold_in(jax.random.key(7), step), row.shape[-1:], row.dtype)
    return jnp.broadcast_to(drawn, row.shape)


def huge(step, row, own, v):
    """The largest numbers that there are, or nearly, with a sign that changes now and then."""
    size = 1e300 if row.dtype == jnp.float64 else 1e38
    return jnp.where(step // 50 % 2 == 0, size, -size) * jnp.ones_like(row)


def growing(step, row, own, v):
    """Little by little, so that no message stands out."""
    φ, F = _parts(row, v)
    return jnp.concatenate([φ + 1e-3 * step.astype(row.dtype) * v, F], -1)


def mirror(step, row, own, v):
    """What the neighbour has, as if nothing flowed."""
    return own


def flattest(step, row, own, v):
    """Flows that are cut to the limit, all along v."""
    φ, F = _parts(row, v)
    return jnp.concatenate([φ, jnp.broadcast_to(-1e6 * v, F.shape)], -1) if F.size else φ + 1e6 * v


SIX = {attack.__name__: attack for attack in (push, flip, random, huge, growing, mirror)}
ATTACKS = SIX | {"flattest": flattest}


def _parts(row, v):
    return row[..., : v.size], row[..., v.size :]


class Lie(eqx.Module):
    """Who sends what, and in which steps. Which of the attacks it is, and when, may be arguments of a program."""

    liar: int = eqx.field(static=True)
    attacks: tuple[Callable, ...] = eqx.field(static=True)
    direction: jax.Array
    which: jax.Array | int = 0
    first: jax.Array | int = FIRST
    last: jax.Array | int = LAST

    def instead(self, step, row, own):
        direction = self.direction.astype(row.dtype)
        told = [partial(_as_row, attack, direction) for attack in self.attacks]
        lies = (step >= self.first) & (step < self.last)
        return jnp.where(lies, jax.lax.switch(self.which, told, step, row, own), row)


def _as_row(attack, direction, step, row, own):
    return attack(step, row, own, direction).astype(row.dtype)


class LyingInMemory(InMemory):
    lie: Lie

    def link_rows(self, step, graph, buffer):
        return self._lied(step, graph, super().link_rows(step, graph, buffer), buffer)

    def rows(self, step, graph, buffer):
        own = self.links[graph].sums.at_slots(buffer)
        return self._lied(step, graph, super().rows(step, graph, buffer), own)

    def _lied(self, step, graph, honest, own):
        liars = (self.links[graph].neighbours == self.lie.liar)[..., None]
        return honest._replace(rows=jnp.where(liars, self.lie.instead(step, honest.rows, own), honest.rows))


def _with(kind, run, lie):
    network = run.program.network
    lying = kind(**{field.name: getattr(network, field.name) for field in fields(network)}, lie=lie)
    run.program = replace(run.program, network=lying)
    return run


class LyingSimulator(db.Simulator):
    lie: Lie = None

    def start(self, *arguments):
        return _with(LyingInMemory, super().start(*arguments), self.lie)
