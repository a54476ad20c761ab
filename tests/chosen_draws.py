"""Random numbers that a test chooses, so that means over what a step draws are exact sums.

A key is a few words: a hash of the numbers folded into it, and what the bits shall be. The bits of a batch, which hold
a sample of each level, make two *slots* for each node and draw. A slot has a number, from the hash of its draw, its
node and its level. Two draws of a program have the same slots if and only if they are the same draw, as their bits
would be the same with any other generator.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from decibel.oracles._eval_config import FRESH_LOWER_KEYS

SAMPLES = 4  # of each node and level; the last one is the mean of the others
MEAN = SAMPLES - 1
SAMPLE_SHIFT = 30  # from a sample to the bits that draw it: two bits are enough
NODE_BITS = 2
BATCH_BITS = (2, 1)  # the shape of the bits of a batch of one sample
HEADS = 0  # the bits of a coin
TAILS = 2**32 - 1

WORDS = ("path", "last", "mask", "prefix", "seed", "other", "slot_a", "sample_a", "slot_b", "sample_b")


def _hash(a, b):
    """Of two words, by the finalizer of MurmurHash3."""
    mixed = (a ^ (b + jnp.uint32(0x9E3779B9) + (a << jnp.uint32(6)) + (a >> jnp.uint32(2)))) * jnp.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> jnp.uint32(13))) * jnp.uint32(0xC2B2AE35)
    return mixed ^ (mixed >> jnp.uint32(16))


def _fold_in(key, number):
    """The last number is kept apart: in the key of a batch it is the node's."""
    return key.at[:2].set(jnp.stack([_hash(key[0], key[1]), jnp.asarray(number, jnp.uint32)]))


def _split(key, shape):
    numbers = jnp.arange(np.prod(shape, dtype=int), dtype=jnp.uint32)
    return jax.vmap(lambda number: _fold_in(key, number))(numbers).reshape(*shape, len(WORDS))


def _slot(path, node, level):
    return _hash(path, jnp.uint32(0)) << jnp.uint32(NODE_BITS + 1) | node << jnp.uint32(1) | level


def _random_bits(key, width, shape):
    word = dict(zip(WORDS, key, strict=True))
    if shape != BATCH_BITS:
        bits = jnp.broadcast_to(word["other"], shape)
        return bits if width == 32 else bits.astype(jnp.uint64) << jnp.uint64(32)
    slot = _slot(word["path"], word["last"], jnp.arange(2, dtype=jnp.uint32).reshape(shape))
    by_chance = (word["seed"] != 0) & (slot & word["mask"] == word["prefix"])
    sample = jnp.where(by_chance, _hash(slot, word["seed"]) % jnp.uint32(MEAN), jnp.uint32(MEAN))
    sample = jnp.where(slot == word["slot_a"], word["sample_a"], sample)
    sample = jnp.where(slot == word["slot_b"], word["sample_b"], sample)
    return sample << jnp.uint32(SAMPLE_SHIFT)


IMPLEMENTATION = define_prng_impl(
    key_shape=(len(WORDS),),
    seed=lambda seed: jnp.zeros(len(WORDS), jnp.uint32),
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chosen",
    tag="chosen",
)


def words(count, **given):
    """(count, words) keys, each given word a number or one for each key.

    Slots hold the mean, but `slot_a` and `slot_b` hold `sample_a` and `sample_b`; with a `seed` other than 0 all slots
    whose bits under `mask` are `prefix` hold samples by chance. `other` are the bits of what is no batch.
    """
    table = np.zeros((count, len(WORDS)), np.uint32)
    for name, value in given.items():
        table[:, WORDS.index(name)] = value
    return table


def key_of(row):
    """The key of a row of `words`."""
    return jax.random.wrap_key_data(row, impl=IMPLEMENTATION)


def node_of(slot):
    return slot >> 1 & (1 << NODE_BITS) - 1


def draw_of(slot):
    return slot >> NODE_BITS + 1


def find_slots(values):
    """The slots on which `values(count, **words)` depends, by the bits that they begin with: four more in a round."""
    base = values(1)[0]
    prefixes = [0]
    for known in range(4, 33, 4):
        prefixes = [prefix | digit << 32 - known for prefix in prefixes for digit in range(16)]
        if not prefixes:
            return []
        mask = (2**known - 1) << 32 - known
        outputs = values(len(prefixes), seed=1, mask=mask, prefix=prefixes)
        changed = (np.abs(outputs - base) > 1e-9 * (1 + np.abs(base))).any(1)
        prefixes = [prefix for prefix, differs in zip(prefixes, changed, strict=True) if differs]
    return prefixes


def named(slot, k):
    """The draw and level of a slot in step k, such as "0 fresh 1 lower" for `draw(0).fresh_lower(1)`."""
    draw = _names(k).get(draw_of(slot), f"a draw {hex(draw_of(slot))}")
    return f"{draw} {'lower' if slot & 1 else 'upper'}"


@cache
def _names(k):
    """{draw: its name}, of the first few draws of step k."""
    paths = {}
    for tag in range(6):
        paths[f"{tag}"] = (tag,)
        for number in range(4):
            paths[f"{tag} fresh {number}"] = (tag, FRESH_LOWER_KEYS + number)
            paths[f"{tag} again {number}"] = (tag, 1 + number)
            paths[f"{tag} fresh 0 again {number}"] = (tag, FRESH_LOWER_KEYS, 1 + number)
    names = {}
    for length in range(1, 4):
        group = {name: path for name, path in paths.items() if len(path) == length}
        keys = jnp.zeros((len(group), len(WORDS)), jnp.uint32)
        for numbers in np.array([(k, *path, 0) for path in group.values()]).T:
            keys = jax.vmap(_fold_in)(keys, numbers)
        slots = _slot(keys[:, 0], keys[:, 1], jnp.uint32(0))
        names |= dict(zip((draw_of(slot) for slot in slots.tolist()), group, strict=True))
    return names
