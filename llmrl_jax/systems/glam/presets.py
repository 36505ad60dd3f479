"""Presets: the published settings, those of the released code, the ablations, the baselines and the demo."""

from __future__ import annotations

from dataclasses import replace

from llmrl_jax.agents.drrn import DRRN_DQN
from llmrl_jax.core.checks import nearest
from llmrl_jax.lm import LoRAConfig
from llmrl_jax.rl.ppo import GLAM as GLAM_PPO, PPOConfig
from llmrl_jax.systems.glam.config import GlamConfig
from llmrl_jax.systems.glam.prior import PriorConfig


GLAM = GlamConfig(tune="full", ppo=GLAM_PPO)
"""The published values, except for the differences listed in `docs/systems/glam.md`: all weights, by Adam at 1e-6."""

GLAM_LORA = replace(GLAM, tune="lora", ppo=replace(GLAM_PPO, learning_rate=1e-4))
"""The same with adapters, which 1e-6 would hardly move; the paper does not train any."""

GLAM_CODE = replace(
    GLAM,
    scoring="raw_logits",
    candidate_space="separate",
    ppo=replace(GLAM_PPO, value_broadcast="glam", bootstrap_truncation=False),
)
"""The released code, quirks included (glam reference, section 3)."""

NPE = replace(GLAM, init="embeddings")
AFLAN = replace(GLAM, policy="heads")
NPAE = replace(AFLAN, init="embeddings")
NPA = replace(AFLAN, init="random")
"""The ablations, by the paper's names (glam reference, section 1.1): no pretraining except for the embeddings (NPE), an
action head (AFlan), both (NPAE), and an action head without any pretraining (NPA). Each needs a model."""

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
"""Symbolic-PPO's published values (glam reference, sections 1.2 and 4.2): 2,560 steps per update, in minibatches of
1,280; `llmrl_jax.systems.glam.symbolic` lists the differences in the network."""

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
    score_widths=1,
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
"""The smallest setting in which RL visibly improves a language model on two cores: one observation in the prompt and no
list of actions, since prompt length dominates the cost of a small model. `llmrl glam demo` adds what `demo` says."""

DEMO_PRIOR = PriorConfig(updates=60, batch_size=64, noise=0.65, seen_only=True)
"""The demo's prior: few updates and a noisy expert leave room for improvement by RL. The expert looks for a goal out of
view by turning left, which one observation can teach; a choice of side by an unseen goal cannot be learnt."""

DEMO_STEPS = 60 * 64 * 32
"""Number of environment steps of PPO in the demo."""


def demo(steps: int) -> GlamConfig:
    """`DEMO`, learning fast and ending with a sharp policy in `steps` environment steps.

    With one observation, a policy that prefers a different turn in different views can turn back and forth forever if
    actions are greedy. A short horizon makes such detours cost more, and a step size that falls to zero, without an
    entropy bonus, lets the policy decide.
    """
    sizes = DEMO.ppo
    updates = max(1, -(-steps // (sizes.num_envs * sizes.num_steps)))
    ppo = replace(sizes, gamma=0.9, learning_rate=3e-3, schedule="linear", schedule_updates=updates, entropy_coef=0.0)
    return replace(DEMO, ppo=ppo)


PRESETS: dict[str, GlamConfig] = {
    "glam": GLAM,
    "glam-lora": GLAM_LORA,
    "glam-code": GLAM_CODE,
    "demo": DEMO,
    "aflan": AFLAN,
    "npae": NPAE,
    "npa": NPA,
    "npe": NPE,
    "symbolic": SYMBOLIC,
    "drrn": DRRN,
}

OF_TUNING = {"full": "glam", "lora": "glam-lora"}
"""The published values for each kind of tuning, whose learning rates differ."""

OF_AGENT = {"llm": "glam", "symbolic": "symbolic", "drrn": "drrn"}
"""The default preset of each agent."""


def preset(name: str) -> GlamConfig:
    """The preset `name`. **Raises** `KeyError`, with the nearest name, for an unknown one."""
    if name not in PRESETS:
        raise KeyError(f"there is no preset {name!r}{nearest(name, list(PRESETS))} (there are {', '.join(PRESETS)})")
    return PRESETS[name]
