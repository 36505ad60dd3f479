"""Every preset, built and updated once in small; agents that see pictures."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.env import Stack
from llmrl_jax.rl.branches import BranchConfig
from llmrl_jax.systems.ellm.build import build, make_env, novelty_features
from llmrl_jax.systems.ellm.config import PRESETS, EllmConfig, preset
from tests.ellm_world import PIXELS, Yard


TINY = {"num_envs": 4, "num_steps": 2, "gradient_steps": 1, "batch_size": 4, "replay_size": 64, "pool_size": 2}


def shrunk(config):
    """A preset with the same parts and small sizes."""
    network = replace(config.network, width=8, head_hidden=(4,))
    bonus = (
        {} if config.bonus == "none" else {config.bonus: replace(getattr(config, config.bonus), outputs=4, hidden=8)}
    )
    dqn = replace(config.dqn, **TINY, learning_starts=0, pool_every=1)
    return replace(config, encoder="hashed", network=network, dqn=dqn, **bonus)


def world_of(config):
    if config.env.startswith("Housekeep"):
        return make_env(config)
    return Yard(image="gray", frames=4) if "pixels" in config.observe else Yard()


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_learns(name):
    config = shrunk(preset(name))
    made = build(config, world_of(config))
    learner = made.learner()

    @jax.jit  # one compilation for all of it
    def updated(key):
        state = learner.init(key)
        return state.params, *learner.update(state)

    before, after, metrics = updated(jax.random.key(0))
    old, new = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)]) for params in (before, after.params))
    assert np.isfinite(new).all() and np.abs(old - new).max() > 0
    assert float(metrics["replay_size"]) == 8 and float(metrics["nonfinite"]) == 0
    parts = {"pixels": "image"}.get
    assert set(made.inputs(after.runner.obs)) - {"goals"} == {parts(x, x) for x in config.observe.split("+")}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_fits_its_world(name):
    """By shapes only: in the world of its id, with its own sizes but for the memory's."""
    config = preset(name)
    config = replace(config, encoder="hashed", dqn=replace(config.dqn, replay_size=64_000))
    learner = build(config).learner()
    state = jax.eval_shape(learner.init, jax.random.key(0))
    after, _ = jax.eval_shape(learner.update, state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)


# --- pictures ---------------------------------------------------------------------------------------------------------


def pictures_of(env_id, observe="pixels"):
    env = make_env(EllmConfig(env=env_id, observe=observe))
    parts = env.observation_space(env.default_params).spaces
    return tuple(parts["image"].shape) if "image" in parts else ()


@pytest.mark.parametrize("bonus", ["rnd", "noveld"])
def test_novelty_is_that_of_a_vector(bonus):
    config = replace(PRESETS["embedded"], bonus=bonus)
    with pytest.raises(ValueError, match=f"{bonus}.channels"):
        replace(config, **{bonus: replace(getattr(config, bonus), channels=(8,))})


def test_the_worlds_pictures_follow_from_what_the_agent_observes():
    assert pictures_of("CrafterText-v1", "symbols+text") == ()
    assert pictures_of("CrafterText-v1") == pictures_of("CrafterText-v1?actions=27", "pixels+text") == (84, 84, 4)
    assert pictures_of("CrafterText-v1?pixels=36&frames=2") == (36, 36, 2)
    assert pictures_of("CrafterText-v1?image=rgb") == (64, 64, 3)
    with pytest.raises(ValueError, match="observe.*pixels.*Housekeep-Task1-v0.*--observe"):
        pictures_of("Housekeep-Task1-v0")
    with pytest.raises(ValueError, match="observe.*text.*image"):
        build(EllmConfig(env="CrafterText-v1?image=gray", observe="text", encoder="hashed"))
    with pytest.raises(ValueError, match="observe.*pixels.*Yard-v0"):
        build(EllmConfig(observe="pixels", encoder="hashed"), Yard())


def test_what_networks_and_novelty_see_of_a_picture():
    """The network the whole stack, novelty the newest frame and the text, the memory each frame once."""
    made = build(shrunk(preset("pixels")), Yard(image="gray", frames=4))
    stack = np.random.default_rng(0).integers(0, 256, (3, 2, PIXELS, PIXELS, 4)).astype(np.uint8)
    obs = {"image": stack, "text": np.full((3, 2, 2), -1, np.int16), "goals": np.zeros((3, 2, 2), np.uint8)}
    obs = jax.tree.map(jnp.asarray, obs)
    np.testing.assert_array_equal(made.inputs(jax.tree.map(lambda x: x[0], obs))["image"], stack[0])
    assert made.env.stacked == {"image": Stack(4, "first")} and not build(EllmConfig(), Yard()).env.stacked
    seen = novelty_features(made.inputs, made.env.stacked)(obs, 2)
    text = made.encoder.encode_texts(["you"]).shape[-1]
    assert seen.shape == (3, 2, text + PIXELS**2)
    np.testing.assert_allclose(seen[..., text:], stack[..., -1].reshape(3, 2, -1) / 255, rtol=1e-6)
    whole = novelty_features(made.inputs)(obs, 2)  # a picture that is no stack
    np.testing.assert_allclose(whole[..., text:], stack.reshape(3, 2, -1) / 255, rtol=1e-6)


def test_convolutions_must_fit_the_picture():
    network = BranchConfig(width=8, head_hidden=(), convolutions=((4, 8, 4), (4, 9, 1)))
    made = build(EllmConfig(observe="pixels", network=network, encoder="hashed"), Yard(image="gray", frames=4))
    obs, _ = jax.eval_shape(made.env.reset, jax.random.key(0), made.env_params)
    rows = jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), obs)
    with pytest.raises(ValueError, match="9 x 9.*8 x 8.*36 x 36"):
        made.policy.init(jax.random.key(0), rows)
    with pytest.raises(ValueError, match="network.convolutions.*empty"):
        BranchConfig(convolutions=())
    with pytest.raises(ValueError, match="network.convolutions.*0.*1"):
        BranchConfig(convolutions=((4, 0, 1),))
