"""Our worlds under Gymnasium's interface: its own checker, its own registry, and our own stepping."""

from __future__ import annotations

import builtins
import importlib
import sys
import warnings

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import envs_jax
from envs_jax.bridges import gymnasium as bridge
from envs_jax.mujoco.env import MujocoEnv


TEXT = "BabyAI-Text/GoToLocalS5N2-v0"
FAST = ("CartPole-v1", "Debug-Aim-v0", "Debug-Catch-v0", TEXT)
OTHERS = [id for id in envs_jax.ids() if id not in FAST]
OWN_RANGE = ("InvertedPendulum-v5", "Pendulum-v1")
"""Worlds whose actions go beyond [-1, 1], in Gymnasium too: its checker recommends another range for its own worlds."""


def checked(id: str, **options) -> None:
    env = bridge.make(id, **options)
    draws = bool(env.metadata["render_modes"]) and can_draw(id)
    with warnings.catch_warnings():
        if id in OWN_RANGE:
            warnings.filterwarnings("ignore", ".*we recommend using a symmetric and normalized space", UserWarning)
        check_env(env, skip_render_check=not draws)
        if draws:
            check_env(bridge.make(id, render_mode="rgb_array", **options))


def can_draw(id: str) -> bool:
    """Return whether the world's pictures can be drawn here: MuJoCo's need OpenGL (`MUJOCO_GL=egl` where there is no
    screen)."""
    world, params = envs_jax.make(id)
    if not isinstance(world, MujocoEnv):
        return True
    try:
        world.render(world.reset(jax.random.key(0), params)[1])
    except RuntimeError as error:
        assert "OpenGL" in str(error)
        return False
    return True


@pytest.mark.parametrize("id", FAST)
def test_gymnasiums_checker_has_no_complaint(id):
    checked(id)  # its warnings are errors here


def test_gymnasiums_checker_with_captions():
    checked(TEXT, text="ids")


@pytest.mark.slow
@pytest.mark.parametrize("id", OTHERS)
def test_gymnasiums_checker_on_all_others(id):
    checked(id)


def test_spaces_are_converted():
    env = bridge.make(TEXT)
    world, params = envs_jax.make(TEXT)
    assert env.action_space == gymnasium.spaces.Discrete(7)
    image = gymnasium.spaces.Box(0, 10, (7, 7, 3), np.uint8)
    assert env.observation_space["image"] == image and env.observation_space["direction"] == gymnasium.spaces.Discrete(
        4
    )
    text = env.observation_space["text"]
    longest = "You see a locked purple door 3 steps right and 6 steps forward"
    assert isinstance(text, gymnasium.spaces.Text)
    assert text.max_length == world.max_sentences * len(longest) + (world.max_sentences - 1) * len(", ")
    assert set("You see a wall 1 step left, ") < set(text.character_set) and "!" not in text.character_set
    with_ids = bridge.make(TEXT, text="ids").observation_space["text"]
    assert with_ids.shape == (world.max_sentences,) and with_ids.dtype == np.int16 and with_ids.low.max() == -1
    high = np.finfo(np.float32).max
    cart = bridge.make("CartPole-v1").observation_space
    theirs = gymnasium.make("CartPole-v1").observation_space
    assert np.array_equal(cart.high, np.minimum(theirs.high, high)) and np.array_equal(cart.low, -cart.high)


def test_steps_are_the_worlds_own():
    """One episode: every value equals that of stepping the world itself with the keys of the bridge."""
    env = bridge.make("BabyAI-Text/GoToObjS4-v0", render_mode="rgb_array")
    world, params = envs_jax.make("BabyAI-Text/GoToObjS4-v0")
    obs, info = env.reset(seed=3)
    seed = np.random.default_rng(np.random.SeedSequence(3)).integers(1 << 32, dtype=np.uint32)
    reset_key, step_key = jax.random.split(jax.random.key(seed))
    ours, state = jax.jit(world.reset)(reset_key, params)
    step = jax.jit(world.step)
    assert info == {}
    env.action_space.seed(0)
    for t in range(40):
        assert obs == {**obs, **world.describe(ours)} and isinstance(obs["mission"], str)
        assert np.array_equal(obs["image"], ours["image"]) and obs["direction"] == ours["direction"]
        assert np.array_equal(env.render(), world.render(jax.device_get(state)))
        action = env.action_space.sample()
        ours, state, reward, terminated, truncated, info = step(jax.random.fold_in(step_key, t), state, action, params)
        obs, *found, said = env.step(action)
        assert found == [float(reward), bool(terminated), bool(truncated)] and type(found[0]) is float
        assert said == {"success": np.bool_(info["success"]), "task": np.int32(0)}
        assert [type(value) for value in said.values()] == [np.bool_, np.int32]
        if terminated | truncated:
            break
    assert found[1] | found[2] and t < 16  # the level's limit
    with pytest.raises(gymnasium.error.ResetNeeded, match="ended"):
        env.step(0)


def test_params_and_options():
    _, params = envs_jax.make("CartPole-v1")
    env = bridge.make("CartPole-v1", params=params.replace(max_steps=2))
    env.reset(seed=0)
    assert env.step(0)[2:4] == (False, False) and env.step(1)[2:4] == (False, True)
    assert bridge.make("Debug-Match-v0", n=3).action_space.n == 3
    assert bridge.make("Debug-Match-v0?n=5").action_space.n == 5


def test_bad_input():
    env = bridge.make("CartPole-v1")
    with pytest.raises(gymnasium.error.ResetNeeded, match="no episode"):
        env.step(0)
    env.reset(seed=0)
    for action in (2, 0.5, [0]):
        with pytest.raises(ValueError, match=r"Discrete\(2"):
            env.step(action)
    with pytest.raises(ValueError, match="options.*'low'"):
        env.reset(options={"low": 0})
    with pytest.raises(ValueError, match="'human'"):
        bridge.make("CartPole-v1", render_mode="human")
    with pytest.raises(ValueError, match="text.*'words'"):
        bridge.make("CartPole-v1", text="words")
    with pytest.raises(KeyError, match="'CartPole-v1'"):
        bridge.make("CartPol-v1")
    with pytest.raises(TypeError, match="option 'm'"):
        bridge.make("Debug-Match-v0", m=[3])
    with pytest.raises(ValueError, match="num_envs.*0"):
        bridge.make_vec("CartPole-v1", 0)


def test_a_batch_resets_on_the_next_step():
    n, length = 3, 5  # Catch lasts five steps
    envs = bridge.make_vec("Debug-Catch-v0", n)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    obs, info = envs.reset(seed=1)
    assert obs in envs.observation_space and info == {}
    envs.action_space.seed(0)
    for t in range(1, 2 * (length + 1) + 1):
        obs, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
        assert obs in envs.observation_space and obs.shape == (n, 6, 5, 1)
        fresh = t % (length + 1) == 0
        assert np.all(terminated == (t % (length + 1) == length)) and not truncated.any()
        assert np.all((reward != 0) == terminated)
        assert np.all(info["_success"] == (not fresh)) and np.all(info["success"] == (reward > 0))
        assert np.all(obs[:, 0].any((1, 2)) == fresh)  # the ball is in the top row


def test_a_batch_is_seeded_and_its_rows_differ():
    envs = bridge.make_vec("CartPole-v1", 4, render_mode="rgb_array")
    first, _ = envs.reset(seed=5)
    moved = envs.step(np.array([0, 1, 0, 1]))
    assert len(np.unique(first[:, 0])) == 4 and moved[1].dtype == np.float32
    again, _ = envs.reset(seed=5)
    assert np.array_equal(first, again)
    assert np.array_equal(envs.step(np.array([0, 1, 0, 1]))[0], moved[0])
    assert not np.array_equal(envs.reset()[0], first)
    pictures = envs.render()
    assert len(pictures) == 4 and pictures[0].shape == (200, 480, 3)
    with pytest.raises(ValueError, match="MultiDiscrete"):
        envs.step(np.array([0, 1, 2, 0]))


def test_a_batch_has_captions_or_strings():
    ids = bridge.make_vec(TEXT, 2)
    strings = bridge.make_vec(TEXT, 2, text="strings")
    captions, _ = ids.reset(seed=0)
    said, _ = strings.reset(seed=0)
    assert captions in ids.observation_space and said in strings.observation_space
    world, _ = envs_jax.make(TEXT)
    rows = [world.describe({name: x[i] for name, x in captions.items()}) for i in range(2)]
    assert said["text"] == tuple(row["text"] for row in rows) and said["mission"][1] == rows[1]["mission"]


def test_gymnasiums_registry():
    names = bridge.register_all()
    assert names == bridge.register_all() and len(set(names)) == len(envs_jax.ids())
    assert "llmrl_jax/BabyAI-Text-GoToLocal-v0" in names
    env = gymnasium.make("llmrl_jax/Debug-Catch-v0", height=4)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (4, 5, 1)
    again = env.spec.make()  # a specification rebuilds the environment, options included
    assert again.observation_space == env.observation_space
    direct = bridge.make("Debug-Catch-v0", height=4)
    assert np.array_equal(direct.reset(seed=0)[0], obs) and direct.spec.id == "llmrl_jax/Debug-Catch-v0"
    envs = gymnasium.make_vec("llmrl_jax/Debug-Catch-v0", num_envs=2)
    assert isinstance(envs, bridge.GymnasiumVectorEnv) and envs.num_envs == 2
    frames = gymnasium.make("llmrl_jax/CartPole-v1", render_mode="rgb_array_list")
    frames.reset(seed=0)
    frames.step(0)
    assert len(frames.render()) == 2


def test_without_gymnasium_the_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "gymnasium":
            raise ModuleNotFoundError("No module named 'gymnasium'", name="gymnasium")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.delitem(sys.modules, "envs_jax.bridges.gymnasium")
    with pytest.raises(ModuleNotFoundError, match="gymnasium.*`reference`") as caught:
        importlib.import_module("envs_jax.bridges.gymnasium")
    assert caught.value.name == "gymnasium"
