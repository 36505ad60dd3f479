"""Presets: small settings for two cores, and the published ones (bkrl reference, section 1.1)."""

from __future__ import annotations

from dataclasses import replace

from llmrl_jax.core.checks import nearest
from llmrl_jax.rl.networks import NetworkConfig
from llmrl_jax.rl.novelty import RNDConfig
from llmrl_jax.rl.ppo import PPOConfig
from llmrl_jax.systems.bkrl.config import AgentConfig


_PUBLISHED = PPOConfig(
    num_envs=8,
    num_steps=128,
    epochs=4,
    minibatches=4,
    learning_rate=3e-4,
    clip_eps=0.1,
    value_clip=0.1,
    entropy_coef=0.01,
    pool_size=64,
    pool_every=16,
)
_BABYAI_PPO = replace(_PUBLISHED, num_steps=64, learning_rate=1e-3, entropy_coef=0.02)
_CRAFTER_PPO = replace(_PUBLISHED, num_envs=16, num_steps=256)
_SMALL = NetworkConfig(hidden=(128, 64))
_CONVOLUTIONS = NetworkConfig(hidden=(512, 512), channels=(32, 64, 64))
CRAFTER = "Crafter-Text-CollectDrink?view=true&image=none"

TRAIN: dict[str, AgentConfig] = {
    "babyai": AgentConfig(network=_SMALL, ppo=_BABYAI_PPO),
    "crafter": AgentConfig(env=CRAFTER, network=_SMALL, ppo=_CRAFTER_PPO),
    "babyai-published": AgentConfig(network=_CONVOLUTIONS, ppo=_PUBLISHED, rnd=RNDConfig()),
    "crafter-published": AgentConfig(
        env="Crafter-Text-CollectDrink", network=_CONVOLUTIONS, ppo=_CRAFTER_PPO, rnd=RNDConfig()
    ),
}
"""The published hyper-parameters of PPO, but in `babyai` (docs/systems/bkrl.md); the first two with dense networks of
symbols, for two cores."""

WORLDS = {
    "babyai": "BabyAI-Text-GoToLocal-Pretraining-S20",
    "crafter": "Crafter-Text-Reward?view=true&image=none",
    "babyai-published": "BabyAI-Text-GoToLocal-Pretraining-S20",
    "crafter-published": "Crafter-Text-Reward",
}
"""The worlds in which episodes are collected."""


def train(name: str) -> AgentConfig:
    """The preset `name`. **Raises** `KeyError`, with the nearest name, for an unknown one."""
    if name not in TRAIN:
        raise KeyError(f"there is no preset {name!r}{nearest(name, list(TRAIN))} (there are {', '.join(TRAIN)})")
    return TRAIN[name]


def collect(name: str) -> AgentConfig:
    """The preset `name`, in the world in which episodes are collected. **Raises:** as `train`."""
    return replace(train(name), env=WORLDS[name])
