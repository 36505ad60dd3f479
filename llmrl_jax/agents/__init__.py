"""Agents: policies with a model or a network, their evaluation, recordings and demonstrations."""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach


if TYPE_CHECKING:
    from llmrl_jax.agents.agent import Agent, SimpleAgent, play_episodes, untrained
    from llmrl_jax.agents.babyai import (
        BotPolicy,
        Demonstration,
        DemosError,
        NoisyExpert,
        StateView,
        read_demos,
        write_demos,
    )
    from llmrl_jax.agents.competence import Competence, calibration
    from llmrl_jax.agents.drrn import DRRNConfig, DRRNPolicy
    from llmrl_jax.agents.evaluate import Episodes, make_evaluator, play_random
    from llmrl_jax.agents.language import ActionHead, HeadsPolicy, LanguagePolicy, ScoringPolicy
    from llmrl_jax.agents.play import (
        Actor,
        Episode,
        EpisodeBatch,
        Step,
        actor_of,
        make_player,
        make_recorder,
        record_episode,
    )
    from llmrl_jax.agents.population import Evaluation, VectorPolicy, make_population_evaluator


__all__ = [
    "ActionHead",
    "Actor",
    "Agent",
    "BotPolicy",
    "Competence",
    "DRRNConfig",
    "DRRNPolicy",
    "Demonstration",
    "DemosError",
    "Episode",
    "EpisodeBatch",
    "Episodes",
    "Evaluation",
    "HeadsPolicy",
    "LanguagePolicy",
    "NoisyExpert",
    "ScoringPolicy",
    "SimpleAgent",
    "StateView",
    "Step",
    "VectorPolicy",
    "actor_of",
    "calibration",
    "make_evaluator",
    "make_player",
    "make_population_evaluator",
    "make_recorder",
    "play_episodes",
    "play_random",
    "read_demos",
    "record_episode",
    "untrained",
    "write_demos",
]

__getattr__ = attach(
    __name__,
    {
        "agent": ["Agent", "SimpleAgent", "play_episodes", "untrained"],
        "babyai": ["BotPolicy", "Demonstration", "DemosError", "NoisyExpert", "StateView", "read_demos", "write_demos"],
        "competence": ["Competence", "calibration"],
        "drrn": ["DRRNConfig", "DRRNPolicy"],
        "evaluate": ["Episodes", "make_evaluator", "play_random"],
        "language": ["ActionHead", "HeadsPolicy", "LanguagePolicy", "ScoringPolicy"],
        "play": [
            "Actor",
            "Episode",
            "EpisodeBatch",
            "Step",
            "actor_of",
            "make_player",
            "make_recorder",
            "record_episode",
        ],
        "population": ["Evaluation", "VectorPolicy", "make_population_evaluator"],
    },
)


def __dir__() -> list[str]:
    return __all__
