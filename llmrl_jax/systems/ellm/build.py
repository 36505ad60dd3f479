"""From settings to a program: the world with goals, the agent, the learner."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

import jax.numpy as jnp
from jax.sharding import Mesh

import envs_jax
from envs_jax import spaces
from envs_jax.env import Environment
from envs_jax.registry import spec
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.chat import ChatModel
from llmrl_jax.core.checks import refuse_unread
from llmrl_jax.core.learner import Learner
from llmrl_jax.lm.encoder import TextEncoder
from llmrl_jax.lm.encoder_names import make_encoder
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.bonus import Bonus
from llmrl_jax.rl.branches import BranchPolicy, BranchQPolicy, Inputs
from llmrl_jax.rl.dqn import make_dqn
from llmrl_jax.rl.novelty import APT, RND, NovelD
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.systems.ellm.asking import Asker, Collected, exchange
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.facts import ClosedFacts, facts_of, goal_id
from llmrl_jax.systems.ellm.goals import start_answers, start_goals, unit_rows
from llmrl_jax.systems.ellm.inputs import SYMBOLS, closed_inputs, make_inputs, novelty_features, picture_of
from llmrl_jax.systems.ellm.pairs import make_placing
from llmrl_jax.systems.ellm.placing import Placing, PlacingParams
from llmrl_jax.systems.ellm.prompts import choose_shots
from llmrl_jax.systems.ellm.suggested import Rules, Suggested, SuggestedParams
from llmrl_jax.systems.ellm.suggesters import make_suggester


PICTURES = {"image": "gray", "frames": 4}
"""Options of a world for the published pictures."""


@dataclass(frozen=True)
class Ellm:
    """All components of a run."""

    config: EllmConfig
    env: Suggested | Placing
    """The wrapped world, not batched."""
    env_params: SuggestedParams | PlacingParams
    facts: Any
    """`Facts`, or `ClosedFacts` of a world with closed-form goals."""
    encoder: TextEncoder
    inputs: Callable[[Any], Inputs]
    """From observations to what networks see."""
    policy: Any
    mesh: Mesh | None

    @property
    def asks(self) -> bool:
        """Whether a chat model is asked between updates."""
        return self.config.suggester == "chat" and not isinstance(self.facts, ClosedFacts)

    def learner(
        self, chat: ChatModel | None = None, sampling: dict[str, Any] | None = None, guide: Any = None
    ) -> Learner:
        """The learner.

        **Arguments:** `chat`, the model that suggests goals, with `suggester` chat; None: it is asked nothing;
        `sampling`, options of its requests; `guide`, of DQN's exploration.
        """
        config, goals = self.config, self.config.goals
        bonus = Collected(goals.at_once) if self.asks else self.novelty()
        if config.learner == "ppo":
            learner = make_ppo(config.ppo, self.env, self.env_params, self.policy, self.mesh, bonus=bonus)
        else:
            learner = make_dqn(dqn_settings(config), self.env, self.env_params, self.policy, self.mesh, bonus, guide)
        if not self.asks or chat is None:
            return learner
        shots = choose_shots(goals.shots, goals.examples)
        asker = Asker(self.facts, self.encoder, chat, sampling or {}, goals.per_state, goals.parse, shots)
        return dataclasses.replace(learner, exchange=exchange(asker, goals.exchange_every))

    def novelty(self) -> Bonus | None:
        """The bonus of the settings, if any."""
        config, features = self.config, novelty_features(self.inputs, self.env.stacked)
        if config.bonus == "apt":
            return APT(self.facts.actions, config.apt, features)
        if config.bonus == "noveld":
            return NovelD(config.noveld, features)
        return RND(config.rnd, features) if config.bonus == "rnd" else None


def dqn_settings(config: EllmConfig) -> Any:
    """DQN's settings, with those of the compatibility mode."""
    if config.compat == "paper":
        return replace(config.dqn, bootstrap_truncation=False, share_encoder=True)
    return config.dqn


def make_env(config: EllmConfig) -> Environment:
    """The bare world, not batched: with pictures where the agent observes them, unless its id says how they are.

    **Raises:** `ValueError` for a world that draws none.
    """
    base, _, query = config.env.partition("?")
    named = {name for name, _ in parse_qsl(query, keep_blank_values=True)}
    if "pixels" not in config.observe or "image" in named:
        return envs_jax.make(config.env)[0]
    accepted = inspect.signature(spec(base).load()).parameters
    if "image" not in accepted:
        raise ValueError(f"observe is {config.observe}, but {base} has no pictures: choose --observe symbols+text")
    options = {name: value for name, value in PICTURES.items() if name not in named}
    return envs_jax.make(config.env, **options)[0]


def _pictures(config: EllmConfig, env: Environment) -> tuple[str, ...]:
    """The part of the world's observation that is a picture, if the agent sees it. **Raises:** `ValueError` if it sees
    pictures and there are none, or the world draws them for nothing."""
    found = picture_of(env.observation_space(env.default_params))
    if found and "pixels" not in config.observe:
        raise ValueError(
            f"the observations of {env.id} have pictures, which cost time, but observe is {config.observe}: leave the "
            "image out of --env, or choose --observe pixels"
        )
    if "pixels" in config.observe and not found:
        raise ValueError(f"observe is {config.observe}, but the observations of {env.id} have no pictures")
    return found


def make_world(
    config: EllmConfig, env: Environment | None = None, *, keys: bool = False
) -> tuple[Suggested | Placing, Any, TextEncoder]:
    """The world with goals, its facts, and the encoder.

    **Arguments:** `config`; `env`, the bare world, not batched (None: that of `config.env`); `keys`, whether
    observations have the state's key also if the suggester does not need it.
    **Raises:** `ValueError` for a world without goals or without what the agent observes.
    """
    env = make_env(config) if env is None else env
    facts = facts_of(env)
    pictures = _pictures(config, env)
    encoder = make_encoder(config.encoder)
    if isinstance(facts, ClosedFacts):
        return make_placing(config, env, facts, encoder), facts, encoder
    refuse_unread(config, ("judge",), f"{env.id}, whose goals are open-ended,")
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
    keep = _kept(config, env) + pictures
    return Suggested(EpisodeStatistics(env), facts, suggester, rules, keep=keep, start=start), facts, encoder


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
    if isinstance(world, Placing):
        inputs = closed_inputs(world, texts=texts, encoder=encoder, goals=goals, symbols="symbols" in config.observe)
    else:
        inputs = make_inputs(world, space, len(facts.captions), texts=texts, encoder=encoder, goals=goals)
    table = jnp.asarray(unit_rows(encoder.encode_texts(facts.captions))) if goals else ()
    actions = facts.actions
    points = config.network.pointing and goals and not isinstance(world, Placing)  # there goals are not actions
    network = replace(config.network, pointing=points)
    policy: Any
    if config.learner == "ppo":
        policy = BranchPolicy(actions, network, inputs, table)
    else:
        policy = BranchQPolicy(actions, network, inputs, table, epsilon=config.dqn.epsilon_end)
    mesh = make_mesh(config.mesh) if config.mesh else None
    return Ellm(config, world, params, facts, encoder, inputs, policy, mesh)
