"""Products whose results are differences, distances or exact numbers have full precision on every device.

Accelerators round the factors of a product of matrices to TF32 or bfloat16 unless it asks otherwise. The layers of
networks leave that to the user (`jax_default_matmul_precision`); these functions do not.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.clevr.env import goal_vector
from envs_jax.crafter import render, tiles, worldgen
from llmrl_jax.lm import Llama, LlamaConfig, LoRAConfig
from llmrl_jax.lm.lora import merge
from llmrl_jax.rl import prdc
from llmrl_jax.rl.novelty import neighbour_distance
from llmrl_jax.rl.shaping import Window
from llmrl_jax.systems.bkrl.goals import GoalPotential, Library
from llmrl_jax.systems.bkrl.potentials import RandomPotential
from llmrl_jax.systems.bkrl.preference_model import Scorer
from tests.lm_random import random_variables
from tests.rounding import is_exact, products


ROWS = jnp.ones((5, 4))


def gray_picture() -> Any:
    view, inventory = jnp.zeros((9, 7, 2), jnp.uint8), jnp.zeros(16, jnp.int32)
    world = (view, inventory, jnp.float32(1), jnp.bool(False), jax.random.key(0))
    return render.gray, (*world, tiles.tiles())


def worlds() -> Any:
    return lambda seed, draws: worldgen.build(seed, draws, 64), (jnp.int32(0), jnp.zeros((5, 4096)))


def goals() -> Any:
    vectors = np.eye(2, 4, dtype=np.float32)
    library = Library(("a", "b"), vectors, np.eye(2, dtype=bool), vectors)
    potential = GoalPotential(library, vectors, vectors, 1, 0.5)
    windows = Window(jnp.ones((3, 2, 4)), jnp.zeros((3, 1), jnp.int32), jnp.zeros(3, jnp.int32))
    return potential.value, (potential.params, windows)


def random_network() -> Any:
    params = {"hidden": jnp.ones((4, 3)), "shift": jnp.ones(3), "out": jnp.ones(3)}
    potential: Any = SimpleNamespace(reads=("x",))
    return lambda params, x: RandomPotential.encode(potential, params, {"x": x}), (params, ROWS)


def preferences() -> Any:
    """The product from which the part of the mean is subtracted; `Q K'` and `V O` before it are of weights alone."""
    scorer = Scorer(actions=2, window=1, width=4, feed_forward=4)
    bound = lambda v, x: scorer.apply(v, x, method=lambda m, x: m.encoded(x).products)  # noqa: E731
    variables = jax.eval_shape(lambda x: scorer.init(jax.random.key(0), x, method=Scorer.encoded), ROWS)
    return bound, (variables, ROWS)


def merging() -> Any:
    lora = LoRAConfig(rank=2)
    variables = random_variables(Llama(LlamaConfig(8, 8, 8, 1, 2, 1), lora=lora))
    return lambda v: merge(v["params"], v["lora"], lora), (variables,)


EXACT = {
    "distances of APT": lambda: (lambda x: neighbour_distance(x, x, 2), (ROWS,)),
    "distances of PRDC": lambda: (prdc.products, (ROWS, ROWS.T)),
    "merged adapters": merging,
    "CLEVR's goal": lambda: (goal_vector, (jnp.zeros(10), jnp.zeros(10, jnp.int32))),
    "Crafter's worlds": worlds,
    "Crafter in gray": gray_picture,
    "BK-RL's goals": goals,
    "BK-RL's random potential": random_network,
    "BK-RL's preferences": preferences,
}


@pytest.mark.parametrize("name", EXACT)
def test_products_ask_for_full_precision(name):
    function, args = EXACT[name]()
    found = list(products(jax.make_jaxpr(function)(*args).jaxpr))
    if name == "BK-RL's preferences":
        found = [x for x in found if x.invars[0].aval.shape == ROWS.shape]
    assert found
    for product in found:
        assert is_exact(product), f"{name}: {product}"


def test_the_walk_enters_loops_and_branches():
    def inside(x):
        looped = jax.lax.scan(lambda c, row: (c @ c, row @ row), x, x)
        return jax.lax.cond(x[0, 0] > 0, lambda: jax.jit(jnp.dot)(x, x), lambda: looped[0])

    found = list(products(jax.make_jaxpr(inside)(jnp.ones((2, 2))).jaxpr))
    assert len(found) == 3 and not any(map(is_exact, found))
