"""The published presets have the published networks."""

from __future__ import annotations

import jax
import pytest

from llmrl_jax.rl.novelty import RND
from llmrl_jax.systems.bkrl.build import make_env, make_features, make_policy, observed_parts, playable
from llmrl_jax.systems.bkrl.config import preset
from llmrl_jax.systems.bkrl.prompts import world_of


@pytest.mark.parametrize(
    ("name", "sizes", "flat"),
    [("babyai-published", [3, 3, 3], 7 * 7 * 64), ("crafter-published", [8, 4, 3], 4 * 4 * 64)],
)
def test_published_convolutions(name, sizes, flat):
    agent = preset(name)
    env = make_env(agent.env)
    names = observed_parts(env, world_of(env).family)
    env = playable(env, names)
    space = env.observation_space(env.default_params)
    policy = make_policy(env, names, agent.network)
    bonus = RND(agent.rnd, make_features(space, names, flat=False))

    def weights(key):
        obs = jax.vmap(space.sample)(jax.random.split(key, 2))
        return policy.init(key, obs)[0]["encoder"], bonus.init(key, obs).whole["random"]

    encoder, target = jax.eval_shape(weights, jax.random.key(0))
    for network in (encoder, target["Convolutions_0"]):
        assert [network[f"Conv_{i}"]["kernel"].shape[0] for i in range(3)] == sizes
        assert [network[f"Conv_{i}"]["kernel"].shape[-1] for i in range(3)] == [32, 64, 64]
        assert network["Dense_0"]["kernel"].shape == (flat, 512)


def test_convolutions_over_several_parts_are_refused():
    env = make_env("Crafter-Text-CollectDrink?view=true&image=none")
    names = observed_parts(env, world_of(env).family)
    with pytest.raises(ValueError, match="view, inventory.*network.channels"):
        make_features(env.observation_space(env.default_params), names, flat=False)
