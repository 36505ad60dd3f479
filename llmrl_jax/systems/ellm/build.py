"""From settings to a program: the world with goals, the agent, the learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

import envs_jax
from envs_jax import spaces
from envs_jax.env import Environment
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.chat import ChatModel
from llmrl_jax.core.checks import nearest
from llmrl_jax.lm.encoder import TextEncoder
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.apt import APT
from llmrl_jax.rl.bonus import Bonus
from llmrl_jax.rl.branches import BranchPolicy, BranchQPolicy, Inputs
from llmrl_jax.rl.dqn import make_dqn
from llmrl_jax.rl.learner import Learner
from llmrl_jax.rl.noveld import NovelD
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.rl.rnd import RND
from llmrl_jax.systems.ellm.asking import Asker, Collected, exchange
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.encoders import make_encoder
from llmrl_jax.systems.ellm.facts import Facts, facts_of
from llmrl_jax.systems.ellm.goals import start_answers, start_goals, unit_rows
from llmrl_jax.systems.ellm.inputs import SYMBOLS, make_inputs, novelty_features
from llmrl_jax.systems.ellm.suggested import Rules, Suggested, SuggestedParams
from llmrl_jax.systems.ellm.suggesters import make_suggester


@dataclass(frozen=True)
class Ellm:
    """All components of a run."""

    config: EllmConfig
    env: Suggested
    """The wrapped world, not batched."""
    env_params: SuggestedParams
    facts: Facts
    encoder: TextEncoder
    inputs: Callable[[Any], Inputs]
    """From observations to what networks see."""
    policy: Any
    mesh: Mesh | None

    def learner(
        self, chat: ChatModel | None = None, sampling: dict[str, Any] | None = None, guide: Any = None
    ) -> Learner:
        """The learner.

        **Arguments:** `chat`, the model that suggests goals, with `suggester` chat; None: it is asked nothing;
        `sampling`, options of its requests; `guide`, of DQN's exploration.
        """
        config, goals = self.config, self.config.goals
        asks = config.suggester == "chat"
        bonus = Collected(goals.at_once) if asks else self._novelty()
        if config.learner == "ppo":
            learner = make_ppo(config.ppo, self.env, self.env_params, self.policy, self.mesh, bonus=bonus)
        else:
            learner = make_dqn(_dqn(config), self.env, self.env_params, self.policy, self.mesh, bonus, guide)
        if not asks or chat is None:
            return learner
        asker = Asker(self.facts, self.encoder, chat, sampling or {}, goals.per_state, goals.parse)
        return dataclasses.replace(learner, exchange=exchange(asker, goals.exchange_every))

    def _novelty(self) -> Bonus | None:
        """The bonus of the settings."""
        config, features = self.config, novelty_features(self.inputs)
        if config.bonus == "apt":
            return APT(len(self.facts.captions), config.apt, features)
        if config.bonus == "noveld":
            return NovelD(config.noveld, features)
        return RND(config.rnd, features) if config.bonus == "rnd" else None


def _dqn(config: EllmConfig) -> Any:
    """DQN's settings, with those of the compatibility mode."""
    if config.compat == "paper":
        return replace(config.dqn, bootstrap_truncation=False, share_encoder=True)
    return config.dqn


def make_world(
    config: EllmConfig, env: Environment | None = None, *, keys: bool = False
) -> tuple[Suggested, Facts, TextEncoder]:
    """The world with goals, its facts, and the encoder.

    **Arguments:** `config`; `env`, the bare world, not batched (None: that of `config.env`); `keys`, whether
    observations have the state's key also if the suggester does not need it.
    **Raises:** `ValueError` for a world without goals or without what the agent observes.
    """
    env = envs_jax.make(config.env)[0] if env is None else env
    facts = facts_of(env)
    encoder = make_encoder(config.encoder)
    asks = config.suggester == "chat"
    most = config.goals.max_goals if asks else len(facts.captions)
    start = SuggestedParams(
        env=(),
        goals=start_goals(facts.captions, facts.synonyms, encoder, most),
        answers=start_answers(config.goals.max_states, config.goals.per_state, config.goals.at_once) if asks else (),
        fixed=jnp.array([goal_id(facts, name) for name in config.fixed] or [-1], jnp.int32),
        threshold=jnp.float32(config.threshold),
        intrinsic=jnp.float32(config.intrinsic),
        extrinsic=jnp.float32(config.extrinsic),
    )
    gate = "lenient" if config.compat == "paper" else config.gate
    rules = Rules(gate=gate, once=config.once, keys=asks or keys)
    suggester = make_suggester(config.suggester, facts, config.uniform_goals)
    keep = _kept(config, env)
    return Suggested(EpisodeStatistics(env), facts, suggester, rules, keep=keep, start=start), facts, encoder


def goal_id(facts: Facts, name: str) -> int:
    """The id of a goal that is a caption. **Raises:** `ValueError`, with the nearest, for another name."""
    if name not in facts.captions:
        raise ValueError(f"no goal is named {name!r}{nearest(name, list(facts.captions))}; goals are names of actions")
    return facts.captions.index(name)


def texts_of(env: Environment) -> tuple[str, ...]:
    """The parts of an observation that are captions of the state."""
    return tuple(name for name in env.captions if name not in env.episode_captions)


def _kept(config: EllmConfig, env: Environment) -> tuple[str, ...]:
    """The parts of the world's observation that the agent sees."""
    space = env.observation_space(env.default_params)
    has = dict(space.spaces) if isinstance(space, spaces.Dict) else {}
    symbols = tuple(name for name in SYMBOLS if name in has) if "symbols" in config.observe else ()
    texts = tuple(name for name in texts_of(env) if name in has) if "text" in config.observe else ()
    for part, found in (("symbols", symbols), ("text", texts)):
        if part in config.observe and not found:
            raise ValueError(f"observe is {config.observe}, but the observations of {env.id} have no {part}")
    return symbols + texts


def build(config: EllmConfig, env: Environment | None = None, *, keys: bool = False) -> Ellm:
    """Build everything that the settings describe. **Arguments:** as for `make_world`; **Raises:** what that raises,
    and `ValueError` for sizes that do not fit together."""
    world, facts, encoder = make_world(config, env, keys=keys)
    params = world.default_params
    space: Any = world.observation_space(params)
    texts = tuple(name for name in world.keep if name in world.captions)
    goals = config.goal_conditioned and config.suggester != "none"
    inputs = make_inputs(world, space, len(facts.captions), texts=texts, encoder=encoder, goals=goals)
    table = jnp.asarray(unit_rows(encoder.encode_texts(facts.captions))) if goals else ()
    actions = len(facts.captions)
    network = replace(config.network, pointing=config.network.pointing and goals)
    policy: Any
    if config.learner == "ppo":
        policy = BranchPolicy(actions, network, inputs, table)
    else:
        policy = BranchQPolicy(actions, network, inputs, table, epsilon=config.dqn.epsilon_end)
    mesh = make_mesh(config.mesh) if config.mesh else None
    return Ellm(config, world, params, facts, encoder, inputs, policy, mesh)
