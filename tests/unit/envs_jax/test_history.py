from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import VectorEnv, spaces, testing
from envs_jax.env import Environment
from envs_jax.history import PromptHistory
from envs_jax.text import Phrasebook


DIGITS = Phrasebook([str(i) for i in range(10)], separator=" ")


class Counter(Environment):
    """Says how many steps it has made; an episode has four."""

    id = "Counter"

    @property
    def default_params(self):
        return ()

    def _obs(self, t):
        text = jnp.stack([t, jnp.where(t > 1, 9, -1)]).astype(jnp.int16)
        return {"mission": jnp.array([5], jnp.int16), "text": text, "clock": t}

    def reset(self, key, params):
        return self._obs(jnp.int32(0)), jnp.int32(0)

    def step(self, key, state, action, params):
        t = state + 1
        return self._obs(t), t, jnp.float32(0), t == 4, jnp.zeros((), bool), {}

    def observation_space(self, params):
        text = spaces.Box(-1, 9, (2,), np.int16)
        return spaces.Dict({"mission": spaces.Box(-1, 9, (1,), np.int16), "text": text, "clock": spaces.Discrete(9)})

    def action_space(self, params):
        return spaces.Discrete(3)

    @property
    def captions(self):
        return {"mission": DIGITS, "text": DIGITS}

    @property
    def episode_captions(self):
        return ("mission",)


def test_the_window_moves_and_is_cleared():
    env = PromptHistory(Counter(), 3, keep=("clock",))
    batch = VectorEnv(env, 1, policy="always")
    obs, state = batch.reset(jax.random.key(0), ())
    space = env.observation_space(())
    step = jax.jit(batch.step)
    none = [-1, -1]
    expected = [
        ([[0, -1], none, none], [-1, -1], 1),
        ([[0, -1], [1, -1], none], [2, -1], 2),
        ([[0, -1], [1, -1], [2, 9]], [2, 1], 3),
        ([[1, -1], [2, 9], [3, 9]], [1, 0], 3),
        ([[0, -1], none, none], [-1, -1], 1),  # a new episode
        ([[0, -1], [1, -1], none], [1, -1], 2),
    ]
    for t, action in enumerate([2, 1, 0, 2, 1, None]):
        one = jax.device_get(jax.tree.map(lambda x: x[0], obs))
        assert (one["text"].tolist(), one["actions"].tolist(), int(one["count"])) == expected[t]
        assert one["clock"] == t % 4 and one["mission"].tolist() == [5]
        assert space.contains(one)
        newest = [i for i in expected[t][0][expected[t][2] - 1] if i >= 0]
        assert env.describe(one) == {"mission": "5", "text": " ".join(map(str, newest))}
        if action is not None:
            obs, state, *_, info = step(jax.random.key(t), state, jnp.array([action]), ())
            last = jax.device_get(info["final_observation"])
    assert last["text"][0].tolist() == [[0, -1], [1, -1], none]


def test_the_end_of_an_episode_is_in_the_window():
    env = PromptHistory(Counter(), 2)
    obs, state = env.reset(jax.random.key(0), ())
    for _ in range(4):
        obs, state, _, terminated, _, _ = env.step(jax.random.key(0), state, jnp.int32(1), ())
    assert bool(terminated) and obs["text"].tolist() == [[3, 9], [4, 9]] and obs["actions"].tolist() == [1]


def test_one_observation_has_no_action():
    env = PromptHistory(Counter(), 1)
    obs, state = env.reset(jax.random.key(0), ())
    obs, *_ = env.step(jax.random.key(0), state, jnp.int32(1), ())
    assert obs["text"].tolist() == [[1, -1]] and obs["actions"].shape == (0,) and int(obs["count"]) == 1
    assert set(obs) == {"mission", "text", "actions", "count"}
    assert env.observation_space(()).contains(jax.device_get(obs))


def test_stacks_are_among_the_parts_that_are_kept():
    env, params = envs_jax.make("CrafterText-v1?image=gray&frames=2&pixels=36")
    assert not PromptHistory(env, 2).stacked
    pictures = PromptHistory(env, 2, keep=("image",))
    assert pictures.stacked == env.stacked and pictures.observation_space(params).spaces["image"].shape == (36, 36, 2)


def test_worlds_without_a_text_or_actions_to_keep_are_refused():
    class Wordless(Counter):
        captions = {}

        def observation_space(self, params):
            return spaces.Dict({"image": spaces.Box(0, 1, (2,), np.uint8)})

    class Continuous(Counter):
        def action_space(self, params):
            return spaces.Box(-1.0, 1.0, (2,))

    with pytest.raises(ValueError, match="^n .*0.*1"):
        PromptHistory(Counter(), 0)
    with pytest.raises(TypeError, match="image.*`llmrl envs list text`"):
        PromptHistory(Wordless(), 3)
    with pytest.raises(TypeError, match="discrete"):
        PromptHistory(Continuous(), 3)
    with pytest.raises(KeyError, match="'clock'"):
        PromptHistory(Counter(), 3, keep=("clok",))


def test_every_caption_that_changes_has_a_window():
    class Two(Counter):
        """Says the time in two captions, and has no mission."""

        def _obs(self, t):
            return {"view": jnp.stack([t]).astype(jnp.int16), "bag": jnp.stack([t + 1, t + 2]).astype(jnp.int16)}

        def observation_space(self, params):
            return spaces.Dict({"view": spaces.Box(-1, 9, (1,), np.int16), "bag": spaces.Box(-1, 9, (2,), np.int16)})

        captions = {"view": DIGITS, "bag": DIGITS}
        episode_captions = ()

    env = PromptHistory(Two(), 2)
    obs, state = env.reset(jax.random.key(0), ())
    assert obs["view"].tolist() == [[0], [-1]] and obs["bag"].tolist() == [[1, 2], [-1, -1]]
    for _ in range(2):
        obs, state, *_ = env.step(jax.random.key(0), state, jnp.int32(1), ())
    assert obs["view"].tolist() == [[1], [2]] and obs["bag"].tolist() == [[2, 3], [3, 4]]
    assert env.observation_space(()).contains(jax.device_get(obs))
    assert env.describe(obs) == {"view": "2", "bag": "3 4"}
    testing.check_contract(env, ())
