"""Our unrolled hash gives JAX's own random numbers, bit for bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decibel.core import _keys as keys


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1, 2**31, 2**32 - 1])
def test_the_numbers_are_jaxs(seed):
    ours, theirs = keys.key(seed), jax.random.key(seed, impl="threefry2x32")
    draws = {
        "bits8": lambda key: jax.random.bits(key, (7,), jnp.uint8),
        "bits32": lambda key: jax.random.bits(key, (3, 5), jnp.uint32),
        "bits64": lambda key: jax.random.bits(key, (3, 5), jnp.uint64),
        "odd": lambda key: jax.random.bits(key, (1,), jnp.uint32),
        "normal": lambda key: jax.random.normal(key, (11,)),
        "randint": lambda key: jax.random.randint(key, (9,), 0, 1000),
        "permutation": lambda key: jax.random.permutation(key, 20),
        "split": lambda key: jax.random.normal(jax.random.split(key, 3)[1], (2,)),
        "fold_in": lambda key: jax.random.bits(jax.random.fold_in(jax.random.fold_in(key, 5), 3), (4,), jnp.uint32),
        "vmapped": lambda key: jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), (4,), jnp.uint32))(
            jnp.arange(6)
        ),
    }
    together = jax.jit(lambda key: {name: draw(key) for name, draw in draws.items()})
    found, expected = together(ours), together(theirs)
    for name in draws:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize("wide", [True, False], ids=["x64", "x32"])
def test_keys_of_many_seeds_are_those_of_each(wide):
    seeds = [0, 2**31 - 1, 2**31, 2**32 - 1]
    with jax.enable_x64(wide):
        together = jax.random.key_data(keys.key_per_seed(seeds))
        each = jnp.stack([jax.random.key_data(keys.key(seed)) for seed in seeds])
    np.testing.assert_array_equal(together, each)
    np.testing.assert_array_equal(together, [[0, seed] for seed in seeds])


def test_too_many_numbers_raise():
    with pytest.raises(ValueError, match="4294967296 random numbers in one call are too many"):
        jax.jit(lambda key: jax.random.bits(key, (2**16, 2**16), jnp.uint32)).lower(keys.key(0))
