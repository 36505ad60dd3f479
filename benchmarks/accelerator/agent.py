"""Agents that write over turns: the loop over tokens and the update of `llmrl agent train`, with random weights."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.accelerator.record import Case, Measured, Settings, clocked
from benchmarks.accelerator.shapes import SHAPES, TINY, described, dtype
from benchmarks.language_model import LORA
from llmrl_jax import lm
from llmrl_jax.core.files import write_whole
from llmrl_jax.lm.model import random_params
from llmrl_jax.multiturn.ppo import TurnPPO, TurnPPOConfig
from llmrl_jax.systems.agent.build import build, make_world, words_of
from llmrl_jax.systems.agent.config import AgentConfig


ENV = "BabyAI-Text/GoToLocalS6N2-v0"
REPORTED = ("turns", "valid", "reply_length", "utilisation", "first_ratio_error", "sampling_kl", "sampling_near_one")
"""Metrics of an update that are recorded."""
FORMULA = "2 N for each token of play, and 4 N more for each token of a row in each epoch"


def settings_of(tiny: bool, num_envs: int) -> tuple[AgentConfig, TurnPPOConfig]:
    """An agent that thinks in BabyAI-Text, with adapters, and one epoch of PPO over turns."""
    agent = AgentConfig(env=ENV, decoding="constrained", reply_tokens=16, lora=LORA, remat=True, dtype=dtype().name)
    ppo = TurnPPOConfig(num_envs=num_envs, num_steps=128, episode_tokens=512, epochs=1, minibatches=4, pool_size=64)
    return agent, replace(ppo, num_steps=96, episode_tokens=160, minibatches=1, pool_size=4) if tiny else ppo


@lru_cache(maxsize=1)  # play and update are measured with the same weights, and then others take their memory
def program_of(sizes: lm.LlamaConfig, config: AgentConfig, ppo: TurnPPOConfig) -> tuple[TurnPPO, Any]:
    """The learner with random weights of `sizes`, and its first state."""
    with tempfile.TemporaryDirectory() as folder:
        env, _ = make_world(config)
        words_of(env, config).save(folder)
        write_whole(Path(folder) / "config.json", json.dumps(sizes.to_hf()))
        agent = build(replace(config, model=folder))
    policy = replace(agent.policy, base=partial(random_params, agent.policy.model.clone(lora=None), None))
    learner = TurnPPO(ppo, policy, agent.env, agent.env_params, None)
    return learner, jax.jit(learner.init)(jax.random.key(0))


def measure(sizes: lm.LlamaConfig, config: AgentConfig, ppo: TurnPPOConfig, whole: bool) -> Measured:
    """A rollout, or an update if `whole`."""
    learner, state = program_of(sizes, config, ppo)

    def play(state: Any) -> Any:
        _, record, _ = learner.conversation.play(state.params, state.frozen, state.rows, state.key, learner.steps)
        return [jnp.sum(x) for x in (record.token, record.log_prob, record.value, record.reward)]

    def update(state: Any) -> Any:
        after, metrics = learner.update(state)
        return after.params, after.opt_state, {name: metrics[name] for name in (*REPORTED, "loss", "grad_norm")}

    times, took, result, temporary = clocked(update if whole else play, state)
    tokens, model = ppo.num_envs * ppo.num_steps, learner.policy.model.config
    flop = 2.0 * model.matmul_params * tokens
    facts: dict[str, Any] = {"temporary_bytes": temporary}
    if whole:
        flop *= 1 + 2 * ppo.epochs
        facts |= {"metrics": {name: float(x) for name, x in result[2].items()}}
    return Measured(times, took, tokens, "tokens", flop, FORMULA, facts=facts)


def cases(settings: Settings) -> Iterator[Case]:
    """Play and update for each shape, with 64 and 256 rows."""
    shapes = {"tiny": TINY} if settings.tiny else {name: SHAPES[name] for name in ("135M", "1B")}
    for rows in (4,) if settings.tiny else (64, 256):
        config, ppo = settings_of(settings.tiny, rows)
        sizes = {"env": ENV, "rows": rows, "steps": ppo.num_steps, "episode_tokens": ppo.episode_tokens}
        sizes |= {"decoding": config.decoding, "dtype": config.dtype, "remat": config.remat}
        for name, shape in shapes.items():
            which = f"of {rows} rows x {ppo.num_steps} tokens"
            yield Case(f"{name}, play {which}", described(shape) | sizes, partial(measure, shape, config, ppo, False))
            yield Case(f"{name}, update {which}", described(shape) | sizes, partial(measure, shape, config, ppo, True))
    program_of.cache_clear()  # other parts need its memory
