"""Which actions `step` checks, and which values options of an id may have."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import registry, spaces
from envs_jax.actions import ChosenActions
from envs_jax.babyai.levels import LEVELS
from envs_jax.bridges import gymnasium as bridge
from envs_jax.env import Environment
from envs_jax.resets import VectorState
from envs_jax.wrappers import ScaleReward


class Counted(Environment):
    """A world of `params["n"]` actions, which counts how often it is asked for their space."""

    def __init__(self):
        self.asked = 0

    def reset(self, key, params):
        return jnp.int32(0), jnp.int32(0)

    def step(self, key, state, action, params):
        return state, state, jnp.float32(0), jnp.bool(False), jnp.bool(False), {}

    @property
    def default_params(self):
        return {"n": 2}

    def action_space(self, params):
        self.asked += 1
        return spaces.Discrete(int(params["n"]))


def stepped(env, state, action, params):
    return env.step(jax.random.key(0), state, action, params)


def test_an_action_of_known_value_is_no_error_where_the_parameters_are_traced():
    env, params = Counted(), {"n": jnp.int32(3)}
    jax.eval_shape(lambda p: stepped(env, jnp.int32(0), np.int32(7), p)[0], params)
    with pytest.raises(ValueError, match="Counted.*7.*0.*2"):
        stepped(env, jnp.int32(0), np.int32(7), params)
    # known parameters, in a program that is being traced
    with pytest.raises(ValueError, match="Counted.*0.*2"):
        jax.eval_shape(lambda s: stepped(env, s, np.int32(7), params)[0], jnp.int32(0))


def test_some_action_is_always_offered():
    """A board that only moves to the left, by an action that is not kept."""
    env, params = envs_jax.make("2048-v0?actions=valid")
    two = ChosenActions(env, 2)
    assert two.offered(jnp.array([False, False, False, True])).tolist() == [True, True]
    assert two.offered(jnp.array([False, True, False, True])).tolist() == [False, True]
    world, _ = envs_jax.make("BabyAI-GoToLocal-v0")
    few = ChosenActions(world, 2, ("sleep",))  # the further action has no effect, and is never offered
    assert few.offered(jnp.array([False, False, True, True, False, False, False])).tolist() == [True, True, False]


def test_keys_stand_for_actions_that_are_kept():
    world, _ = envs_jax.make("BabyAI-GoToLocal-v0")
    assert world.keys["space"] == 5
    assert ChosenActions(world, 3).keys == {"left": 0, "right": 1, "up": 2}
    assert ChosenActions(world, 6, ("sleep",)).keys == world.keys


def vector():
    env = Counted()
    return env, envs_jax.VectorEnv(env, 3, policy="next_step"), {"n": 2}


def check(env, state, action, params):
    env._check_action(state, action, params)


def test_the_action_after_an_end_may_have_any_value():
    _, batch, params = vector()
    state = VectorState(jnp.zeros(3, jnp.int32), done=jnp.array([False, True, False]))
    check(batch, state, np.array([0, -1, 1]), params)
    with pytest.raises(ValueError, match=r"\[3\].*0.*1"):
        check(batch, state, np.array([-1, -1, 1]), params)
    with pytest.raises(ValueError, match=r"VectorEnv.*\[3\]"):  # every row has an action
        check(batch, state, np.array([0, 1]), params)
    check(ScaleReward(batch, 2.0), state, np.array([0, -1, 1]), params)  # which leaves it to the batch
    jax.eval_shape(lambda done: check(batch, state.replace(done=done), np.array([-1, 9, 1]), params), state.done)


def test_the_space_of_a_batch_is_made_once():
    env, batch, params = vector()
    state = VectorState(jnp.zeros(3, jnp.int32), done=jnp.zeros(3, bool))
    for _ in range(3):
        check(batch, state, np.array([0, 0, 1]), params)
    assert env.asked == 1
    check(batch, state, np.array([0, 2, 1]), {"n": 3})
    assert env.asked == 2


def test_the_vector_environment_of_the_bridge_ignores_the_action_after_an_end_too():
    space = gymnasium.spaces.MultiDiscrete([4, 4, 4])
    ended = np.array([False, True, False])
    assert bridge._action(space, [3, -1, 0], ended).tolist() == [3, 0, 0]
    for wrong in ([-1, -1, 0], [3, 0]):
        with pytest.raises(ValueError, match="MultiDiscrete"):
            bridge._action(space, wrong, ended)
    with pytest.raises(ValueError, match="MultiDiscrete"):
        bridge._action(space, [3, -1, 0])


@pytest.mark.parametrize(("text", "slips"), [("0", False), ("1", True), ("false", False), ("true", True)])
def test_a_switch_in_an_id_is_a_word_or_0_or_1(text, slips, monkeypatch):
    made = []

    def world(is_slippery: bool = False) -> Environment:
        made.append(is_slippery)
        return Counted()

    monkeypatch.setattr(registry.Spec, "load", lambda spec: world)
    envs_jax.make(f"CliffWalking-v1?is_slippery={text}")
    assert made == [slips]


@pytest.mark.parametrize(("text", "opened"), [("0", False), ("1", True), ("true", True)])
def test_a_switch_of_a_family_of_levels(text, opened, monkeypatch):
    made, level = [], LEVELS["GoToObj"]()

    def go_to(doors_open: bool = False):
        made.append(doors_open)
        return level

    monkeypatch.setitem(LEVELS, "GoTo", go_to)
    envs_jax.make(f"BabyAI-GoTo-v0?doors_open={text}")
    assert made == [opened]


def test_a_switch_is_no_other_number():
    for text in ("2", "0.0", "-1", "no"):
        with pytest.raises(TypeError, match="is_slippery.*true.*false"):
            envs_jax.make(f"CliffWalking-v1?is_slippery={text}")
    with pytest.raises(TypeError, match="is_slippery.* 0; true.*false"):  # by keyword a bool is at hand
        envs_jax.make("CliffWalking-v1", is_slippery=0)
