"""Every agent of GLAM's comparison behind one face: who plays, in which world, and how it learns (glam reference,
sections 1 and 4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

import envs_jax
from envs_jax.babyai.bot.bot import Memory, bot_action
from envs_jax.babyai.env import BabyAI
from envs_jax.env import Environment, Wrapper
from envs_jax.registry import nearest
from envs_jax.wrappers import EpisodeStatistics, ScaleReward
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.distributions import Categorical, Distribution
from llmrl_jax.rl.learner import Learner
from llmrl_jax.rl.policy import over_offered
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.systems.glam.build import acting, build, make_world
from llmrl_jax.systems.glam.config import GlamConfig
from llmrl_jax.systems.glam.drrn import DRRNPolicy, make_drrn
from llmrl_jax.systems.glam.prompt import glam_prompt
from llmrl_jax.systems.glam.symbolic import SymbolicPolicy, SymbolicView


class Player(Protocol):
    """The part of `llmrl_jax.rl.policy.Policy` that playing needs; see there."""

    def init(self, key: jax.Array, obs: Any) -> tuple[Any, Any]: ...

    def initial_carry(self, batch_size: int) -> Any: ...

    def step(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]
    ) -> tuple[Distribution, Float[Array, " B"], Any]: ...


class Agent(Protocol):
    """An agent and its world; `make_evaluator(agent.env, agent.env_params, agent.policy, ...)` plays it."""

    @property
    def config(self) -> GlamConfig: ...

    @property
    def env(self) -> Environment:
        """The world in the wrappers that this agent sees it through, not batched."""
        ...

    @property
    def env_params(self) -> Any: ...

    @property
    def policy(self) -> Player: ...

    def learner(self) -> Learner:
        """What trains it. **Raises** `ValueError` for an agent that does not learn."""
        ...


@dataclass(frozen=True)
class Baseline:
    """An agent without a language model; see `Agent`."""

    config: GlamConfig
    env: Environment
    env_params: Any
    policy: Player
    make_learner: Callable[[], Learner] | None
    """None for an agent that does not learn."""

    def learner(self) -> Learner:
        if self.make_learner is None:
            raise ValueError(f"the agent {self.config.agent} does not learn; those that do are llm, symbolic and drrn")
        return self.make_learner()


def untrained(agent: Agent, key: jax.Array) -> tuple[Any, Any]:
    """`(params, frozen)` before any learning, to play with: a language model's are its zero-shot ones."""
    obs, _ = jax.jit(agent.env.reset)(key, agent.env_params)
    return agent.policy.init(key, jax.tree.map(lambda x: x[None], obs))


def make_agent(config: GlamConfig) -> Agent:
    """The agent `config.agent`, with its world.

    **Raises:** `ValueError` for changed settings that the agent does not read, and what `build` raises.
    """
    if config.agent not in AGENTS:
        raise KeyError(
            f"there is no agent {config.agent!r}{nearest(config.agent, list(AGENTS))} (there are {', '.join(AGENTS)})"
        )
    make, reads = AGENTS[config.agent]
    usual = GlamConfig()
    changed = [f.name for f in dataclasses.fields(config) if getattr(config, f.name) != getattr(usual, f.name)]
    unread = [name for name in changed if name not in reads]
    if unread:
        raise ValueError(
            f"the agent {config.agent} does not read {', '.join(unread)}, which differ from their defaults: leave them "
            f"out, or begin with a preset of this agent (it reads {', '.join(sorted(reads))})"
        )
    return make(config)


def _seen_world(config: GlamConfig, view: Callable[[Environment], Environment]) -> tuple[Environment, Any]:
    """The world without its text, seen as `view` has it, in its wrappers."""
    env, params = envs_jax.make(config.env)
    env = EpisodeStatistics(acting(view(env), config.num_actions))
    return ScaleReward(env, config.reward_scale), params


def _symbolic(config: GlamConfig) -> Baseline:
    env, params = _seen_world(config, SymbolicView)
    policy = SymbolicPolicy(env, config.symbolic)
    mesh = make_mesh(config.mesh) if config.mesh else None
    return Baseline(config, env, params, policy, lambda: make_ppo(config.ppo, env, params, policy, mesh=mesh))


def _drrn(config: GlamConfig) -> Baseline:
    env, params = make_world(config)
    template = glam_prompt(env, env.action_names, history=config.history, list_actions=config.list_actions)
    tokenizer = WordTokenizer.from_prompt(template.prompt, template.actions)
    compiled = template.compile(tokenizer, config.max_prompt or None)
    actions = compiled.candidates(template.actions)
    policy = DRRNPolicy(config.drrn, tokenizer.vocab_size, template.batched(compiled), actions)
    return Baseline(config, env, params, policy, lambda: make_drrn(config.drrn, env, params, policy))


@dataclass(frozen=True)
class RandomPolicy:
    """Every action that is offered as likely as any other; it has no parameters and values nothing."""

    num_actions: int

    def init(self, key: jax.Array, obs: Any) -> tuple[tuple[()], tuple[()]]:
        return (), ()

    def initial_carry(self, batch_size: int) -> tuple[()]:
        return ()

    def step(self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]):
        rows = first.shape[0]
        return over_offered(jnp.zeros((rows, self.num_actions)), obs), jnp.zeros(rows), carry


def _random(config: GlamConfig) -> Baseline:
    env, params = _seen_world(config, SymbolicView)
    return Baseline(config, env, params, RandomPolicy(config.num_actions), None)


class StateView(Wrapper):
    """A BabyAI world whose observation is its state: the bot reads from it what an agent in its place has seen."""

    def __init__(self, env: Environment):
        """**Raises:** `TypeError` for another world."""
        super().__init__(env)
        if not isinstance(env, BabyAI):
            raise TypeError(f"the bot plays BabyAI's levels only, and {env.id or type(env).__name__!r} is none of them")

    def reset(self, key, params):
        _, state = self.env.reset(key, params)
        return state, state

    def step(self, key, state, action, params):
        _, state, *rest = self.env.step(key, state, action, params)
        return state, state, *rest

    def observation_space(self, params):
        raise TypeError("what the bot observes is the world's state, for which there is no space")

    def describe(self, obs):
        return self.env.describe(self.env.observe(obs))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class BotPolicy:
    """BabyAI's bot (`envs_jax.babyai.bot_action`) on the observations of `StateView`; it has no parameters, values
    nothing, and never hesitates: sampled or greedy, it does the same."""

    num_actions: int
    width: int
    """Columns of the grid."""

    def init(self, key: jax.Array, obs: Any) -> tuple[tuple[()], tuple[()]]:
        return (), ()

    def initial_carry(self, batch_size: int) -> Memory:
        return Memory(seen=jnp.zeros((batch_size, self.width), jnp.uint32))

    def step(self, params: Any, frozen: Any, obs: Any, carry: Memory, first: Bool[Array, " B"]):
        memory = Memory(seen=jnp.where(first[:, None], jnp.uint32(0), carry.seen))
        action, memory = jax.vmap(bot_action)(obs, memory)
        # where only going is allowed, the bot's idle drop before its goal becomes a step that the goal blocks
        chosen = jnp.minimum(action, self.num_actions - 1)[:, None] == jnp.arange(self.num_actions)
        return Categorical.masked(jnp.zeros(chosen.shape), chosen), jnp.zeros(first.shape), memory


def _bot(config: GlamConfig) -> Baseline:
    env, params = _seen_world(config, StateView)
    world: Any = env.unwrapped  # type: ignore[attr-defined]
    known = len(world.action_names)
    if world.done_actions and config.num_actions < known:
        raise ValueError(
            f"{config.env} is won by saying done, but num_actions is {config.num_actions}, without it: take {known}"
        )
    return Baseline(config, env, params, BotPolicy(config.num_actions, world.level.rooms.width), None)


_ALL = {f.name for f in dataclasses.fields(GlamConfig)}
_WORLD = {"agent", "env", "num_actions", "reward_scale"}

AGENTS: dict[str, tuple[Callable[[GlamConfig], Agent], set[str]]] = {
    "llm": (build, _ALL - {"symbolic", "drrn"}),
    "symbolic": (_symbolic, _WORLD | {"mesh", "ppo", "symbolic"}),
    "drrn": (_drrn, _WORLD | {"history", "list_actions", "max_prompt", "drrn"}),
    "random": (_random, _ALL),
    "bot": (_bot, _ALL),
}
"""Agents by name, each with the settings of `GlamConfig` that it reads; chance and the bot, which may stand in for any
other agent, let all of them pass."""
