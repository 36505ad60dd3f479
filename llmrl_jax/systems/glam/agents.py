"""All agents of GLAM's comparison behind one interface: policy, environment and learner (glam reference, sections 1 and
4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import envs_jax
from envs_jax.env import Environment
from envs_jax.wrappers import EpisodeStatistics, ScaleReward
from llmrl_jax.agents.agent import Agent, SimpleAgent
from llmrl_jax.agents.babyai import BotPolicy, StateView
from llmrl_jax.agents.drrn import DRRNPolicy
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import option, refuse_unread
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.dqn import make_dqn
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.systems.glam.build import build, make_world, with_actions
from llmrl_jax.systems.glam.config import GlamConfig
from llmrl_jax.systems.glam.prompt import glam_prompt
from llmrl_jax.systems.glam.symbolic import SymbolicPolicy, SymbolicView


def make_agent(config: GlamConfig) -> Agent:
    """The agent `config.agent`, with its environment.

    **Raises:** `ValueError` for changed settings that the agent does not read, and what `build` raises.
    """
    make, reads = AGENTS[config.agent]
    unread = [f.name for f in dataclasses.fields(config) if f.name not in reads]
    listed = ", ".join(option(name) for name in sorted(reads))
    refuse_unread(
        config, unread, f"the agent {config.agent}", remedy=f"or begin with a preset of this agent; it reads {listed}"
    )
    with doing("preparing the agent"):
        return make(config)


def _seen_world(config: GlamConfig, view: Callable[[Environment], Environment]) -> tuple[Environment, Any]:
    """The wrapped environment without its text, with the observations of `view`."""
    env, params = envs_jax.make(config.env)
    env = EpisodeStatistics(with_actions(view(env), config.num_actions))
    return ScaleReward(env, config.reward_scale), params


def _symbolic(config: GlamConfig) -> SimpleAgent:
    env, params = _seen_world(config, SymbolicView)
    policy = SymbolicPolicy(env, config.symbolic)
    mesh = make_mesh(config.mesh) if config.mesh else None
    return SimpleAgent(config, env, params, policy, lambda: make_ppo(config.ppo, env, params, policy, mesh=mesh))


def _drrn(config: GlamConfig) -> SimpleAgent:
    env, params = make_world(config)
    template = glam_prompt(env, env.action_names, history=config.history, list_actions=config.list_actions)
    tokenizer = WordTokenizer.from_prompt(template.prompt, template.actions)
    compiled = template.compile(tokenizer, config.max_prompt or None)
    actions = compiled.candidates(template.actions)
    epsilon = config.dqn.epsilon_end if config.dqn.acting == "epsilon" else None
    policy = DRRNPolicy(
        config.drrn, tokenizer.vocab_size, template.batched(compiled), actions, epsilon, config.dqn.temperature
    )
    mesh = make_mesh(config.mesh) if config.mesh else None
    return SimpleAgent(config, env, params, policy, lambda: make_dqn(config.dqn, env, params, policy, mesh=mesh))


def _random(config: GlamConfig) -> SimpleAgent:
    env, params = _seen_world(config, SymbolicView)
    return SimpleAgent(config, env, params, RandomPolicy(config.num_actions), None)


def _bot(config: GlamConfig) -> SimpleAgent:
    env, params = _seen_world(config, StateView)
    world: Any = env.unwrapped  # type: ignore[attr-defined]
    return SimpleAgent(config, env, params, BotPolicy(config.num_actions, world.level.rooms.width), None)


_ALL = {f.name for f in dataclasses.fields(GlamConfig)}
_WORLD = {"agent", "env", "num_actions", "reward_scale"}

AGENTS: dict[str, tuple[Callable[[GlamConfig], Agent], set[str]]] = {
    "llm": (build, _ALL - {"symbolic", "drrn", "dqn"}),
    "symbolic": (_symbolic, _WORLD | {"mesh", "ppo", "symbolic"}),
    "drrn": (_drrn, _WORLD | {"history", "list_actions", "max_prompt", "mesh", "drrn", "dqn"}),
    "random": (_random, _ALL),
    "bot": (_bot, _ALL),
}
"""Agents by name, each with the settings of `GlamConfig` that it reads. `random` and `bot` accept all settings, since
they may replace any other agent."""
