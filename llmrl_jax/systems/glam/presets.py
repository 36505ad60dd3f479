"""Starting points: the published settings, the released code's, the ablations' and baselines', and the demo's."""

from __future__ import annotations

from dataclasses import replace

from llmrl_jax.agents.drrn import DRRN_DQN
from llmrl_jax.core.checks import nearest
from llmrl_jax.lm import LoRAConfig
from llmrl_jax.rl import ppo_config
from llmrl_jax.rl.ppo_config import PPOConfig
from llmrl_jax.systems.glam.config import GlamConfig
from llmrl_jax.systems.glam.prior import PriorConfig


GLAM = GlamConfig(ppo=ppo_config.GLAM)
"""The published values, but for what `docs/systems/glam.md` lists."""

GLAM_CODE = replace(
    GLAM,
    tune="full",
    scoring="raw_logits",
    candidate_space="separate",
    ppo=replace(ppo_config.GLAM, value_broadcast="glam", bootstrap_truncation=False),
)
"""The released code, quirks included (glam reference, section 3)."""

NPE = replace(GLAM, tune="full", init="embeddings")
AFLAN = replace(GLAM, tune="full", policy="heads")
NPAE = replace(AFLAN, init="embeddings")
NPA = replace(AFLAN, init="random")
"""The ablations, by the paper's names (glam reference, section 1.1): no pretraining but for the embeddings (NPE), an
action head (AFlan), both (NPAE), and an action head with no pretraining at all (NPA). Each wants a model."""

SYMBOLIC = GlamConfig(
    agent="symbolic",
    ppo=PPOConfig(
        num_envs=64,
        num_steps=40,
        epochs=4,
        minibatches=2,
        gamma=0.99,
        gae_lambda=0.99,
        learning_rate=1e-4,
        normalize_advantages=False,
    ),
)
"""Symbolic-PPO's published values (glam reference, sections 1.2 and 4.2): 2,560 steps an update, in minibatches of
1,280; `llmrl_jax.systems.glam.symbolic` says what differs in the network."""

DRRN = GlamConfig(agent="drrn", dqn=DRRN_DQN)
"""DRRN's published values (glam reference, section 4.1)."""

DEMO = GlamConfig(
    env="BabyAI-Text/GoToLocalS6N2-v0",
    history=1,
    list_actions=False,
    value_width=64,
    value_activation="relu",
    reward_scale=1.0,
    score_rows=32,
    lora=LoRAConfig(
        rank=8, alpha=16.0, targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    ),
    ppo=PPOConfig(
        num_envs=64,
        num_steps=32,
        epochs=2,
        minibatches=16,
        microbatches=4,
        learning_rate=1e-3,
        gamma=0.97,
        gae_lambda=0.95,
        entropy_coef=0.01,
        normalize_advantages=True,
    ),
)
"""The smallest setting in which RL visibly improves a language model on two cores: one observation in the prompt and
no list of actions, since prompt length is what a small model pays for."""

DEMO_PRIOR = PriorConfig(updates=60, batch_size=64, noise=0.75)
"""The demo's prior: few enough updates, and noisy enough an expert, that there is something left to learn."""

DEMO_STEPS = 40 * 64 * 32
"""The demo's environment steps of PPO."""

PRESETS: dict[str, GlamConfig] = {
    "glam": GLAM,
    "glam-code": GLAM_CODE,
    "demo": DEMO,
    "aflan": AFLAN,
    "npae": NPAE,
    "npa": NPA,
    "npe": NPE,
    "symbolic": SYMBOLIC,
    "drrn": DRRN,
}

OF_AGENT = {"llm": "glam", "symbolic": "symbolic", "drrn": "drrn"}
"""The preset that an agent begins with where none is named."""


def preset(name: str) -> GlamConfig:
    """The preset of that name. **Raises** `KeyError`, naming the nearest, where there is none."""
    if name not in PRESETS:
        raise KeyError(f"there is no preset {name!r}{nearest(name, list(PRESETS))} (there are {', '.join(PRESETS)})")
    return PRESETS[name]
