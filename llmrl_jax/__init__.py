"""Reinforcement learning with language models, in one XLA program.

`import llmrl_jax as lr` imports neither jax nor a module of the library: a name is imported when it is first used.
Further names are in the packages `agents`, `chat`, `data`, `lm`, `rl`, `run` and `tuning`, such as `lr.rl.IQLConfig`.
"""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach


if TYPE_CHECKING:
    from envs_jax.history import PromptHistory
    from envs_jax.registry import make
    from envs_jax.resets import VectorEnv
    from envs_jax.wrappers import EpisodeStatistics
    from llmrl_jax import agents, chat, data, lm, rl, run, tuning
    from llmrl_jax.agents import HeadsPolicy, LanguagePolicy, ScoringPolicy
    from llmrl_jax.core.learner import Learner
    from llmrl_jax.data import Transitions, read_data
    from llmrl_jax.lm import (
        Candidates,
        Llama,
        LlamaConfig,
        LoRAConfig,
        ValueHead,
        WordTokenizer,
        load as load_model,
        load_tokenizer,
    )
    from llmrl_jax.lm.generate import generate
    from llmrl_jax.lm.score import score
    from llmrl_jax.rl import (
        DQNConfig,
        PPOConfig,
        SACConfig,
        make_dqn,
        make_offline,
        make_ppo,
        make_sac,
    )
    from llmrl_jax.run import RunConfig
    from llmrl_jax.systems.glam.prompts import glam_prompt
    from llmrl_jax.workflows.evaluation import evaluate
    from llmrl_jax.workflows.experiment import Experiment, train
    from llmrl_jax.workflows.loading import load
    from llmrl_jax.workflows.rl_training import settings_class
    from llmrl_jax.workflows.tuning import GrpoRun, TuneConfig, grpo, sft

__version__ = "0.1.0"

__all__ = [
    "Candidates",
    "DQNConfig",
    "EpisodeStatistics",
    "Experiment",
    "GrpoRun",
    "HeadsPolicy",
    "LanguagePolicy",
    "Learner",
    "Llama",
    "LlamaConfig",
    "LoRAConfig",
    "PPOConfig",
    "PromptHistory",
    "RunConfig",
    "SACConfig",
    "ScoringPolicy",
    "Transitions",
    "TuneConfig",
    "ValueHead",
    "VectorEnv",
    "WordTokenizer",
    "agents",
    "chat",
    "data",
    "evaluate",
    "generate",
    "glam_prompt",
    "grpo",
    "lm",
    "load",
    "load_model",
    "load_tokenizer",
    "make",
    "make_dqn",
    "make_offline",
    "make_ppo",
    "make_sac",
    "read_data",
    "rl",
    "run",
    "score",
    "settings_class",
    "sft",
    "train",
    "tuning",
]

__getattr__ = attach(
    __name__,
    {
        "agents": ["HeadsPolicy", "LanguagePolicy", "ScoringPolicy"],
        "core.learner": ["Learner"],
        "data": ["Transitions", "read_data"],
        "lm": [
            "Candidates",
            "Llama",
            "LlamaConfig",
            "LoRAConfig",
            "ValueHead",
            "WordTokenizer",
            "load as load_model",
            "load_tokenizer",
        ],
        "lm.generate": ["generate"],
        "lm.score": ["score"],
        "rl": [
            "DQNConfig",
            "PPOConfig",
            "SACConfig",
            "make_dqn",
            "make_offline",
            "make_ppo",
            "make_sac",
        ],
        "run": ["RunConfig"],
        "systems.glam.prompts": ["glam_prompt"],
        "workflows.evaluation": ["evaluate"],
        "workflows.experiment": ["Experiment", "train"],
        "workflows.loading": ["load"],
        "workflows.rl_training": ["settings_class"],
        "workflows.tuning": ["GrpoRun", "TuneConfig", "grpo", "sft"],
    },
    ("agents", "chat", "data", "lm", "rl", "run", "tuning"),
    others={
        "envs_jax.history": ["PromptHistory"],
        "envs_jax.registry": ["make"],
        "envs_jax.resets": ["VectorEnv"],
        "envs_jax.wrappers": ["EpisodeStatistics"],
    },
)


def __dir__() -> list[str]:
    return __all__
