"""Random agents: of numbers and of boxes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.spaces import Box, Dict, Discrete
from llmrl_jax.rl.policy import random_policy


def test_actions_of_each_kind_of_space_are_drawn_from_all_of_it():
    first = jnp.zeros(2000, bool)
    numbers, _, _ = random_policy(Discrete(3)).step((), (), jnp.zeros((2000, 1)), (), first)
    assert set(np.asarray(numbers.sample(jax.random.key(0))).tolist()) == {0, 1, 2}
    box = Box(np.array([-1.0, 2.0]), 3.0, (2,))
    drawn = np.asarray(random_policy(box).step((), (), jnp.zeros((2000, 1)), (), first)[0].sample(jax.random.key(0)))
    assert drawn.shape == (2000, 2) and all(box.contains(x) for x in drawn.astype(np.float32))
    np.testing.assert_allclose(drawn.min(0), [-1, 2], atol=0.02)
    np.testing.assert_allclose(drawn.max(0), [3, 3], atol=0.02)


@pytest.mark.parametrize(
    ("space", "entropy"),
    [
        (Box(0, np.array([3, 1]), (2,), np.int32), np.log(8)),
        (Box(250, 255, (1,), np.uint8), np.log(6)),
        (Box(False, True, (1,), np.bool_), np.log(2)),
    ],
)
def test_actions_of_a_box_of_integers_are_members(space, entropy):
    policy, first = random_policy(space), jnp.zeros(200, bool)
    drawn = policy.step((), (), jnp.zeros((200, 1)), (), first)[0]
    actions = drawn.sample(jax.random.key(0))
    assert all(space.contains(x) for x in (*np.asarray(actions), np.asarray(drawn.mode())[0]))
    assert len(np.unique(np.asarray(actions), axis=0)) == round(np.exp(entropy))
    np.testing.assert_allclose(drawn.entropy(), np.full(200, entropy), rtol=1e-6)
    np.testing.assert_allclose(drawn.log_prob(actions), np.full(200, -entropy), rtol=1e-6)
    assert np.isneginf(drawn.log_prob(actions.astype(jnp.float32) + 0.5)).all()


@pytest.mark.parametrize("space", [Box(-np.inf, np.inf, (2,)), Dict({"a": Discrete(2)})])
def test_a_space_without_uniform_actions_is_refused_by_name(space):
    with pytest.raises(ValueError, match="actions.*(Box|Dict)"):
        random_policy(space)
