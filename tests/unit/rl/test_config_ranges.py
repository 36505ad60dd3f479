"""What configurations refuse, from Python too, where no command line has checked types and choices."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.core.checks import in_interval
from llmrl_jax.rl.dqn_config import DQNConfig
from llmrl_jax.rl.networks import NetworkConfig
from llmrl_jax.rl.ppo_config import PPOConfig
from llmrl_jax.rl.precision import RATIO_BOUNDS, ratio_error
from llmrl_jax.rl.rnd import RNDConfig
from llmrl_jax.systems.glam.config import GlamConfig
from llmrl_jax.tuning import GRPOConfig, SFTConfig


REFUSED = [
    (PPOConfig, {"max_grad_norm": 0.0}, "ppo.max_grad_norm is 0.0; above 0 is needed"),
    (PPOConfig, {"schedule": "lin"}, "ppo.schedule is 'lin'; one of constant, linear is needed"),
    (PPOConfig, {"value_broadcast": "on"}, "ppo.value_broadcast is 'on'; one of off, glam is needed"),
    (PPOConfig, {"reset": "next_step"}, "ppo.reset is 'next_step'; one of pool, always, optimistic is needed"),
    (PPOConfig, {"num_envs": "4"}, "ppo.num_envs is '4'; a number is needed"),
    (PPOConfig, {"gamma": "0.9"}, "ppo.gamma is '0.9'; a number is needed"),
    (PPOConfig, {"num_envs": None}, "ppo.num_envs is None; a number is needed"),
    (DQNConfig, {"max_grad_norm": 0.0}, "dqn.max_grad_norm is 0.0; above 0 is needed"),
    (DQNConfig, {"acting": "greedy"}, "dqn.acting is 'greedy'; one of epsilon, softmax is needed"),
    (RNDConfig, {"max_grad_norm": 0.0}, "rnd.max_grad_norm is 0.0; above 0 is needed"),
    (RNDConfig, {"adam_b1": 1.0}, "rnd.adam_b1 is 1.0; from 0 to below 1 is needed"),
    (RNDConfig, {"channels": (0,)}, "rnd.channels is 0; at least 1 is needed"),
    (RNDConfig, {"critic_hidden": (64, 0)}, "rnd.critic_hidden is 0; at least 1 is needed"),
    (RNDConfig, {"critic_hidden": ()}, "rnd.critic_hidden is empty"),
    (RNDConfig, {"hidden": 10**9}, "rnd.hidden is 1000000000; from 1 to 1048576 is needed"),
    (RNDConfig, {"outputs": 10**9}, "rnd.outputs is 1000000000; from 1 to 1048576 is needed"),
    (RNDConfig, {"obs_clip": 0.0}, "rnd.obs_clip is 0.0; above 0 is needed"),
    (NetworkConfig, {"activation": "gelu"}, "network.activation is 'gelu'; one of auto, tanh, relu is needed"),
    (SFTConfig, {"schedule": "cos"}, "sft.schedule is 'cos'; one of cosine, linear, constant is needed"),
    (GRPOConfig, {"aggregate": "tokens"}, "grpo.aggregate is 'tokens'; one of token, sequence is needed"),
    (GRPOConfig, {"advantage": "rloo"}, "grpo.advantage is 'rloo'; one of grpo, centred, leave_one_out is needed"),
    (GlamConfig, {"policy": "scorin"}, "policy is 'scorin'; one of scoring, heads is needed"),
    (GlamConfig, {"scoring": "max"}, "scoring is 'max'; one of sum, mean, per_word, raw_logits, max_normalised is"),
]


@pytest.mark.parametrize(("config", "given", "message"), REFUSED)
def test_what_a_configuration_refuses(config, given, message):
    with pytest.raises(ValueError) as raised:
        config(**given)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("config", [PPOConfig, DQNConfig, RNDConfig])
def test_gradients_may_be_clipped_never(config):
    assert config(max_grad_norm=math.inf).max_grad_norm == math.inf


@pytest.mark.parametrize("interval", ["[1, 2147483647]", "(0, inf)", "[0, inf]", "(0, inf]", "[0, 1)"])
def test_a_word_lies_in_no_interval(interval):
    with pytest.raises(ValueError, match="x is 'many'; a number is needed"):
        in_interval("x", "many", interval)


def test_the_error_of_ratios_is_the_same_in_both_directions():
    """`|r - 1|` of a probability that fell stays below 1, whatever the bound."""
    for r in (1.5, 3.0, 20.0):
        up, down = (float(ratio_error(jnp.log(jnp.array([1.0, x])))) for x in (r, 1 / r))
        assert up == pytest.approx(r - 1, rel=1e-5) and down == pytest.approx(r - 1, rel=1e-5)
    assert float(ratio_error(jnp.log(jnp.array([1.0, 0.1])))) > RATIO_BOUNDS["bfloat16"]
    small = np.float32(3e-6)  # where the bound of float32 is, it is `|r - 1|`
    assert float(ratio_error(jnp.array([-small, 0.0]))) == pytest.approx(3e-6, rel=1e-3)
    assert np.isinf(ratio_error(jnp.array([0.0, -jnp.inf])))
