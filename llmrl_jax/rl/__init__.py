"""Reinforcement learning: policies, networks, distributions, rollouts, bonuses, and one file per algorithm."""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach


if TYPE_CHECKING:
    from llmrl_jax.rl.awac import AWAC, AWACConfig
    from llmrl_jax.rl.bc import BC, BCConfig
    from llmrl_jax.rl.bcq import BCQ, BCQConfig
    from llmrl_jax.rl.bonus import Bonus, BonusState, Stream
    from llmrl_jax.rl.branches import BranchConfig, BranchPolicy, BranchQPolicy
    from llmrl_jax.rl.combo import COMBO, COMBOConfig
    from llmrl_jax.rl.cql import CQL, CQLConfig
    from llmrl_jax.rl.discrete_bcq import DiscreteBCQ, DiscreteBCQConfig
    from llmrl_jax.rl.discrete_cql import DiscreteCQL, DiscreteCQLConfig
    from llmrl_jax.rl.distributions import Categorical, Distribution, Normal, TanhNormal, Uniform
    from llmrl_jax.rl.dqn import DQNConfig, DQNState, dqn_loss, make_dqn
    from llmrl_jax.rl.gradient import AdamConfig, TrainState, clipped_adam
    from llmrl_jax.rl.iql import IQL, IQLConfig
    from llmrl_jax.rl.networks import NetworkConfig, NetworkPolicy, NetworkQPolicy, network_policy, network_q_policy
    from llmrl_jax.rl.novelty import APT, RND, APTConfig, NovelD, NovelDConfig, RNDConfig
    from llmrl_jax.rl.offline import (
        OfflineConfig,
        OfflineLearner,
        OfflineMethod,
        OfflinePolicy,
        OfflineState,
        make_offline,
    )
    from llmrl_jax.rl.offline_data import ActionKind, Batch, actions_of
    from llmrl_jax.rl.policy import Auxiliary, Policy, RandomPolicy, epsilon_greedy, masked_categorical, random_policy
    from llmrl_jax.rl.ppo import PPOConfig, PPOState, make_ppo, ppo_loss
    from llmrl_jax.rl.prdc import PRDC, PRDCConfig
    from llmrl_jax.rl.registry import ALGORITHMS, OFFLINE, Algorithm, OfflineAlgorithm, algorithm
    from llmrl_jax.rl.replay import BufferState, Priorities, Replay
    from llmrl_jax.rl.rollout import Rollout, RolloutConfig, Runner, collect, gae
    from llmrl_jax.rl.sac import SACConfig, SACPolicy, SACState, make_sac, sac_policy
    from llmrl_jax.rl.seeds import select_run, vmap_learners
    from llmrl_jax.rl.shaping import Potential, Shaping, ShapingConfig, Window
    from llmrl_jax.rl.td3_bc import TD3BC, TD3BCConfig


__all__ = [
    "ALGORITHMS",
    "APT",
    "APTConfig",
    "AWAC",
    "AWACConfig",
    "ActionKind",
    "AdamConfig",
    "Algorithm",
    "Auxiliary",
    "BC",
    "BCConfig",
    "BCQ",
    "BCQConfig",
    "Batch",
    "Bonus",
    "BonusState",
    "BranchConfig",
    "BranchPolicy",
    "BranchQPolicy",
    "BufferState",
    "COMBO",
    "COMBOConfig",
    "CQL",
    "CQLConfig",
    "Categorical",
    "DQNConfig",
    "DQNState",
    "DiscreteBCQ",
    "DiscreteBCQConfig",
    "DiscreteCQL",
    "DiscreteCQLConfig",
    "Distribution",
    "IQL",
    "IQLConfig",
    "NetworkConfig",
    "NetworkPolicy",
    "NetworkQPolicy",
    "Normal",
    "NovelD",
    "NovelDConfig",
    "OFFLINE",
    "OfflineAlgorithm",
    "OfflineConfig",
    "OfflineLearner",
    "OfflineMethod",
    "OfflinePolicy",
    "OfflineState",
    "PPOConfig",
    "PPOState",
    "PRDC",
    "PRDCConfig",
    "Policy",
    "Potential",
    "Priorities",
    "RND",
    "RNDConfig",
    "RandomPolicy",
    "Replay",
    "Rollout",
    "RolloutConfig",
    "Runner",
    "SACConfig",
    "SACPolicy",
    "SACState",
    "Shaping",
    "ShapingConfig",
    "Stream",
    "TD3BC",
    "TD3BCConfig",
    "TanhNormal",
    "TrainState",
    "Uniform",
    "Window",
    "actions_of",
    "algorithm",
    "clipped_adam",
    "collect",
    "dqn_loss",
    "epsilon_greedy",
    "gae",
    "make_dqn",
    "make_offline",
    "make_ppo",
    "make_sac",
    "masked_categorical",
    "network_policy",
    "network_q_policy",
    "ppo_loss",
    "random_policy",
    "sac_policy",
    "select_run",
    "vmap_learners",
]

__getattr__ = attach(
    __name__,
    {
        "awac": ["AWAC", "AWACConfig"],
        "bc": ["BC", "BCConfig"],
        "bcq": ["BCQ", "BCQConfig"],
        "bonus": ["Bonus", "BonusState", "Stream"],
        "branches": ["BranchConfig", "BranchPolicy", "BranchQPolicy"],
        "combo": ["COMBO", "COMBOConfig"],
        "cql": ["CQL", "CQLConfig"],
        "discrete_bcq": ["DiscreteBCQ", "DiscreteBCQConfig"],
        "discrete_cql": ["DiscreteCQL", "DiscreteCQLConfig"],
        "distributions": ["Categorical", "Distribution", "Normal", "TanhNormal", "Uniform"],
        "dqn": ["DQNConfig", "DQNState", "dqn_loss", "make_dqn"],
        "gradient": ["AdamConfig", "TrainState", "clipped_adam"],
        "iql": ["IQL", "IQLConfig"],
        "networks": ["NetworkConfig", "NetworkPolicy", "NetworkQPolicy", "network_policy", "network_q_policy"],
        "novelty": ["APT", "APTConfig", "NovelD", "NovelDConfig", "RND", "RNDConfig"],
        "offline": [
            "OfflineConfig",
            "OfflineLearner",
            "OfflineMethod",
            "OfflinePolicy",
            "OfflineState",
            "make_offline",
        ],
        "offline_data": ["ActionKind", "Batch", "actions_of"],
        "policy": ["Auxiliary", "Policy", "RandomPolicy", "epsilon_greedy", "masked_categorical", "random_policy"],
        "ppo": ["PPOConfig", "PPOState", "make_ppo", "ppo_loss"],
        "prdc": ["PRDC", "PRDCConfig"],
        "registry": ["ALGORITHMS", "OFFLINE", "Algorithm", "OfflineAlgorithm", "algorithm"],
        "replay": ["BufferState", "Priorities", "Replay"],
        "rollout": ["Rollout", "RolloutConfig", "Runner", "collect", "gae"],
        "sac": ["SACConfig", "SACPolicy", "SACState", "make_sac", "sac_policy"],
        "seeds": ["select_run", "vmap_learners"],
        "shaping": ["Potential", "Shaping", "ShapingConfig", "Window"],
        "td3_bc": ["TD3BC", "TD3BCConfig"],
    },
)


def __dir__() -> list[str]:
    return __all__
