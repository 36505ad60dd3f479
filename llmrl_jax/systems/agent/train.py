"""Training and evaluation of agents that write: the implementation of `llmrl agent train`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from envs_jax.bridges.host import errors_named
from llmrl_jax.agents.evaluate import play_random
from llmrl_jax.core import statistics as stats
from llmrl_jax.core.checks import refuse_unread
from llmrl_jax.core.learner import Learner
from llmrl_jax.lm.small import EMBEDDED, refuse_unread_weights
from llmrl_jax.multiturn.evaluate import Evaluator, Played
from llmrl_jax.multiturn.record import REPLY
from llmrl_jax.report.figures import text_table
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.agent.build import WritingAgent, build, make_learner
from llmrl_jax.systems.agent.config import DEMO, AgentConfig, TrainConfig, demo_config
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment, Language, Results


def success_of(flags: np.ndarray | None) -> dict[str, float]:
    """Success with its 95% Wilson interval; empty if the environment reports none."""
    return {} if flags is None else stats.wilson(int(flags.sum()), len(flags)).results("success")


def summarise(played: Played) -> dict[str, float]:
    """Success, if the environment reports it, and means over episodes and replies."""
    turns = max(1, int(played.turns.sum()))
    return {
        **success_of(played.success),
        "episode_return": float(np.mean(played.returns)),
        "turns": float(np.mean(played.turns)),
        "valid": float(played.valid.sum() / turns),
        "reply_length": played.reply_length,
        "cut": float(np.mean(played.cut)),
        "episodes": float(len(played.returns)),
    }


def random_summary(agent: WritingAgent, key: jax.Array, episodes: int) -> dict[str, float]:
    """Success and return of random actions, in other episodes than those of replies: their keys are split otherwise."""
    actions = len(agent.env.action_names)
    played = play_random(agent.env, agent.env_params, key, episodes=episodes, num_actions=actions)
    return {
        **success_of(played.success),
        "episode_return": float(played.episode_return.mean()),
        "turns": float(played.episode_length.mean()),
        "episodes": float(episodes),
    }


def table(results: Mapping[str, Mapping[str, float]], episodes: int) -> str:
    """Success (if the environment reports it), return, turns and valid replies by row of `results`, as text."""
    rates = {name: [str(stats.estimate_of(x, "success"))] for name, x in results.items() if "success" in x}
    rows = [["", *(["success"] if rates else []), "return", "turns", "valid replies", "tokens a reply"]]
    for name, x in results.items():
        shown = [name, *rates.get(name, []), f"{x['episode_return']:.3f}", f"{x['turns']:.1f}"]
        rows.append(shown + ([f"{x['valid']:.3f}", f"{x['reply_length']:.1f}"] if "valid" in x else ["", ""]))
    return text_table(rows)


def evaluators(agent: WritingAgent, episode_tokens: int) -> Any:
    """`episodes -> Evaluator`, each compiled once."""

    @functools.cache
    def make_one(episodes: int) -> Evaluator:
        return Evaluator(agent.policy, agent.env, agent.env_params, episodes, episode_tokens)

    return make_one


def conversation(agent: WritingAgent, played: Played) -> str:
    """The first episode as text, a paragraph for each turn's text of the environment and each reply."""
    tokens, replies = played.tokens[0], played.roles[0] == REPLY
    starts = [0, *(np.flatnonzero(np.diff(replies)) + 1), len(replies)]
    parts = []
    for begin, end in itertools.pairwise(starts):
        text = agent.tokenizer.decode(tokens[begin:end]).strip()
        parts.append(f"    {text}" if replies[begin] else text)
    outcome = "" if played.success is None else ", success" if played.success[0] else ", no success"
    return "\n".join([*parts, f"{played.turns[0]} turns, return {played.returns[0]:g}{outcome}"])


def make(config: TrainConfig, agent: WritingAgent | None = None) -> Experiment:
    """The agent of a run, with its environment, learner and evaluation. **Raises:** what `build` and learners raise."""
    agent = build(config.agent) if agent is None else agent
    learner = make_learner(config, agent)
    tokens = (config.ppo if config.algo.endswith("ppo") else config.group).episode_tokens
    shown = {"success": "success", "valid": "valid", "reply_length": "tokens a reply"}
    return make_experiment(config, agent, learner, tokens, shown=shown)


def _weights(state: Any) -> tuple[Any, Any]:
    return state.params, state.frozen


def make_experiment(
    config: Any,
    agent: WritingAgent,
    learner: Learner,
    episode_tokens: int,
    weights: Callable[[Any], tuple[Any, Any]] = _weights,
    **options: Any,
) -> Experiment:
    """A run that trains an agent, evaluated with sampled and greedy replies beside random actions.

    **Arguments:** `config`, a `TrainConfig` or `CloneRun`; `episode_tokens`, see `TurnPolicy.capacity`;
    `weights`, from a state of the learner to `(params, frozen)` of the policy; `options`, further fields of
    `Experiment`."""
    evaluator, base = evaluators(agent, episode_tokens), config.agent.model

    def play(state: Any, key: jax.Array, episodes: int, greedy: bool = False) -> dict[str, float]:
        return summarise(evaluator(episodes)(*weights(state), key, greedy))

    def evaluate(state: Any, key: jax.Array, episodes: int) -> Results:
        return {"sampled": play(state, key, episodes), "greedy": play(state, key, episodes, greedy=True)}

    def talk(state: Any, key: jax.Array, greedy: bool) -> str:
        return conversation(agent, evaluator(1)(*weights(state), key, greedy))

    return Experiment(
        config,
        learner,
        agent.policy,
        agent.env,
        agent.env_params,
        evaluate=evaluate,
        baseline=lambda state, key, episodes: {"random": random_summary(agent, key, episodes)},
        report=table,
        during=lambda state, key: play(state, key, config.eval_episodes),
        about={"env": config.agent.env},
        variables=lambda x, state: (*weights(state), x.env_params),
        conversation=talk,
        language=Language(agent.policy.model, agent.tokenizer, "" if base == EMBEDDED else base),
        unit="tokens",
        **options,
    )


def train(config: TrainConfig) -> RunResult:
    """Train an agent, evaluate it, and write the run to its folder.

    **Returns:** the result of the run. **Raises:** what `build` and `llmrl_jax.run.loop.train` raise."""
    if config.agent.model == EMBEDDED and config.agent.decoding == "free":
        print(
            "note: the embedded model is drawn at random and writes nothing valid: `llmrl agent clone` teaches it in "
            "BabyAI-Text/, and --decoding constrained does without"
        )
    if not config.run.resume:  # runs made before may have what is refused now
        refuse_unread_weights(config.agent, (AgentConfig(), DEMO))
        if config.agent.memory == "reprompt":
            usual = (TrainConfig(), demo_config(algo=config.algo))
            refuse_unread(config, ("ppo.episode_tokens",), "--memory reprompt", usual=usual)
    x = make(config)
    with opened(config.run, "agent") as folder, errors_named(x.env):
        return experiments.train(x, folder)
