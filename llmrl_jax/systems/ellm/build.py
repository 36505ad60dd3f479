"""From settings, or a run's folder, to a program: environment with goals, inputs of networks, agent, learner."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

import envs_jax
from envs_jax import spaces
from envs_jax.env import Environment
from envs_jax.registry import spec as registered
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.chat import ChatModel
from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import refuse_unread
from llmrl_jax.core.learner import Learner
from llmrl_jax.lm.encoder import TextEncoder, summed
from llmrl_jax.lm.encoder_weights import make_encoder
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.bonus import Bonus
from llmrl_jax.rl.branches import BranchPolicy, BranchQPolicy, Inputs, l2_normalized
from llmrl_jax.rl.dqn import make_dqn
from llmrl_jax.rl.networks import Symbols, plane_sizes
from llmrl_jax.rl.novelty import APT, RND, NovelD
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.systems.ellm.closed_goals import ClosedGoalSpec
from llmrl_jax.systems.ellm.config import AGENTS, EllmConfig, Gate, OfflineRun, PretrainRun
from llmrl_jax.systems.ellm.goals import GoalWrapper, RewardRules, goal_spec_for, unit_rows, unpacked
from llmrl_jax.systems.ellm.open_goals import Asker, UnansweredKeys, exchange
from llmrl_jax.systems.ellm.prompts import choose_shots
from llmrl_jax.workflows.experiment import HELD_OUT as HELD_OUT, check_saved, kind_of_run, restore_first


PICTURES = {"image": "gray", "frames": 4}
"""Options of an environment for the published pictures."""
PICTURE = "image"
"""The part of an observation that is a picture, uint8 `[H, W, C]`; elsewhere a part of that name has codes."""


@dataclass(frozen=True)
class Ellm:
    """All components of a run."""

    config: EllmConfig
    env: GoalWrapper
    """Not batched."""
    env_params: Any
    """Its `GoalParams`."""
    encoder: TextEncoder
    inputs: Callable[[Any], Inputs]
    """From observations to the inputs of networks."""
    policy: Any
    mesh: Mesh | None

    @property
    def spec(self) -> Any:
        """The `GoalSpec`."""
        return self.env.spec

    @property
    def asks(self) -> bool:
        """Return whether a chat model is asked between updates."""
        return self.config.suggester == "chat" and not isinstance(self.spec, ClosedGoalSpec)

    def learner(
        self, chat: ChatModel | None = None, sampling: dict[str, Any] | None = None, guide: Any = None
    ) -> Learner:
        """The learner.

        **Arguments:** `chat`, the model that suggests goals, with `suggester` chat; None: it is asked nothing;
        `sampling`, options of its requests; `guide`, of DQN's exploration.
        """
        config, goals = self.config, self.config.goals
        bonus = UnansweredKeys(goals.at_once) if self.asks else self.novelty()
        if config.learner == "ppo":
            learner = make_ppo(ppo_settings(config), self.env, self.env_params, self.policy, self.mesh, bonus=bonus)
        else:
            learner = make_dqn(dqn_settings(config), self.env, self.env_params, self.policy, self.mesh, bonus, guide)
        if not self.asks or chat is None:
            return learner
        shots = choose_shots(goals.shots, goals.examples)
        asker = Asker(self.spec, self.encoder, chat, sampling or {}, goals.per_state, goals.parse, shots)
        return dataclasses.replace(learner, exchange=exchange(asker, goals.exchange_every))

    def novelty(self) -> Bonus | None:
        """The bonus of the settings, if any."""
        config, features = self.config, novelty_features(self.inputs, self.env.stacked)
        if config.bonus == "apt":
            return APT(self.spec.actions, config.apt, features)
        if config.bonus == "noveld":
            return NovelD(config.noveld, features)
        return RND(config.rnd, features) if config.bonus == "rnd" else None


def dqn_settings(config: EllmConfig) -> Any:
    """DQN's settings, with those of the compatibility mode."""
    if config.compat == "paper":
        return replace(config.dqn, bootstrap_truncation=False, share_encoder=config.dqn.has_target)
    return config.dqn


def ppo_settings(config: EllmConfig) -> Any:
    """PPO's settings, with those of the compatibility mode."""
    return replace(config.ppo, bootstrap_truncation=False) if config.compat == "paper" else config.ppo


def gate_of(config: EllmConfig) -> Gate:
    """The gate, with that of the compatibility mode."""
    if config.compat == "none" or config.gate != "effect":
        return config.gate
    return "none" if config.suggester == "novelty" else "lenient"


def make_env(config: EllmConfig) -> Environment:
    """The bare environment, not batched: with pictures where the agent observes them, unless its id says how they are.

    **Raises:** `ValueError` for an environment that draws none.
    """
    base, _, query = config.env.partition("?")
    named = {name for name, _ in parse_qsl(query, keep_blank_values=True)}
    if "pixels" not in config.observe or "image" in named:
        return envs_jax.make(config.env)[0]
    accepted = inspect.signature(registered(base).load()).parameters
    if "image" not in accepted:
        raise ValueError(f"observe is {config.observe}, but {base} has no pictures: choose --observe symbols+text")
    options = {name: value for name, value in PICTURES.items() if name not in named}
    return envs_jax.make(config.env, **options)[0]


def texts_of(env: Environment) -> tuple[str, ...]:
    """The parts of an observation that are captions of the state."""
    return tuple(name for name in env.captions if name not in env.episode_captions)


def picture_of(space: Any) -> tuple[str, ...]:
    """The part of an observation space that is a picture, if there is one."""
    part: Any = dict(space.spaces).get(PICTURE) if isinstance(space, spaces.Dict) else None
    return (PICTURE,) if part is not None and np.dtype(part.dtype) == np.uint8 else ()


def _observed(config: EllmConfig, env: Environment, spec: Any) -> tuple[str, ...]:
    """The parts of an observation that the agent sees. **Raises:** `ValueError` if it sees parts that are not there, or
    the environment draws pictures for nothing."""
    space: Any = env.observation_space(env.default_params)
    parts: Collection[str] = space.spaces if isinstance(space, spaces.Dict) else ()
    picture, names = picture_of(space), spec.required
    if picture and "pixels" not in config.observe:
        raise ValueError(
            f"the observations of {env.id} have pictures, which cost time, but observe is {config.observe}: leave the "
            "image out of --env, or choose --observe pixels"
        )
    for kind, candidates in (("symbols", spec.symbols), ("text", texts_of(env)), ("pixels", picture)):
        present = tuple(name for name in candidates if name in parts)
        if kind in config.observe and not present:
            label = "pictures" if kind == "pixels" else kind
            raise ValueError(f"observe is {config.observe}, but the observations of {env.id} have no {label}")
        names += present if kind in config.observe else ()
    return names


def make_world(
    config: EllmConfig, env: Environment | None = None, *, keys: bool = False
) -> tuple[GoalWrapper, TextEncoder]:
    """The environment with goals, and the encoder.

    **Arguments:** `config`; `env`, the bare environment, not batched (None: that of `config.env`); `keys`, whether
    observations have the state's key also if the suggester does not need it.
    **Raises:** `ValueError` for an environment without goals or without what the agent observes, for unknown goals, and
    for options that its goals do not read.
    """
    env = make_env(config) if env is None else env
    spec = goal_spec_for(env)
    observed = _observed(config, env, spec)
    refuse_unread(config, spec.UNREAD, f"{env.id}, whose goals are {spec.FORM},")
    encoder = make_encoder(config.encoder)
    rules = RewardRules(
        suggester=config.suggester,
        draws=config.uniform_goals,
        gate=gate_of(config),
        once=config.once,
        keys=(keys or config.suggester == "chat") and not isinstance(spec, ClosedGoalSpec),
    )
    return GoalWrapper(EpisodeStatistics(env), spec, rules, spec.params(config, encoder), keep=observed), encoder


def make_inputs(
    env: GoalWrapper, *, texts: tuple[str, ...], encoder: TextEncoder, goals: bool, symbols: bool
) -> Callable[[Any], Inputs]:
    """Build the function from observations `[B, ...]` to the inputs of `llmrl_jax.rl.branches`.

    A text is the normalised sum of the embeddings of its phrases: a state has too many texts for a table of whole ones.
    Closed-form goals are symbols too, by slot and place, since the same object has different slots in different
    episodes.

    **Arguments:** `env`; of the observations, further parts than its own are not read; `texts`, the parts of the
    observation that are text; `encoder`; `goals` and `symbols`, whether the network sees these.
    """
    spec: Any = env.spec
    space: Any = env.observation_space(env.default_params)
    closed, picture = isinstance(spec, ClosedGoalSpec), picture_of(space)
    tables = {name: np.asarray(encoder.encode_texts(env.captions[name].phrases)) for name in texts}
    features = spec.features if closed else _grid_features(space)

    def inputs(obs: Any) -> Inputs:
        parts: dict[str, Any] = {name: obs[name] for name in picture}
        vectors = [features(obs)] if symbols else []
        if goals:
            mask = unpacked(obs["goals"], spec.num_goals)
            parts["goals"] = spec.as_captions(obs, mask)
            if closed:
                vectors.append(mask.astype(jnp.float32))
                vectors += [spec.goal_features(obs, parts["goals"])] if symbols else []
        if vectors:
            parts["symbols"] = vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=-1)
        if tables:
            total = sum(summed(table, obs[name]) for name, table in tables.items())
            parts["text"] = l2_normalized(total)  # type: ignore[arg-type]
        return parts

    return inputs


def _grid_features(space: Any) -> Callable[[Any], Any]:
    """Inputs of networks from a `view`, a grid of codes, and an `inventory`, counts; one of them may be missing."""
    view = plane_sizes(space.spaces["view"]) if "view" in space.spaces else ()
    counts = "inventory" in space.spaces
    scale = float(np.max(space.spaces["inventory"].high)) if counts else 1.0

    def features(obs: Any) -> Any:
        vector = obs["inventory"].astype(jnp.float32) / scale if counts else jnp.zeros((obs["view"].shape[0], 0))
        return Symbols(obs["view"], vector, view) if view else vector

    return features


def novelty_features(
    inputs: Callable[[Any], Inputs], stacked: Collection[str] = ()
) -> Callable[[Any, int], Float[Array, "*B D"]]:
    """The inputs of a novelty bonus: the picture's pixels, symbols and texts, without goals.

    **Arguments:** `inputs`, of networks; `stacked`, the parts of observations that are stacks of frames: of such a
    picture the bonus sees the newest frame.
    """

    def features(obs: Any, batch_dims: int) -> Float[Array, "*B D"]:
        lead = jax.tree.leaves(obs)[0].shape[:batch_dims]
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[batch_dims:]), obs)
        network_inputs = inputs(rows)
        parts = [network_inputs[name] for name in ("symbols", "text") if name in network_inputs]
        parts = [x.vector() if isinstance(x, Symbols) else x for x in parts]
        if "image" in network_inputs:
            image = network_inputs["image"][..., -1] if PICTURE in stacked else network_inputs["image"]
            parts.append(image.reshape(image.shape[0], -1).astype(jnp.float32) / 255)
        return jnp.concatenate(parts, axis=-1).reshape(*lead, -1)

    return features


def build(config: EllmConfig, env: Environment | None = None, *, keys: bool = False) -> Ellm:
    """Build everything that the settings describe. **Arguments:** as for `make_world`; **Raises:** what that raises,
    and `ValueError` for sizes that do not fit together."""
    world, encoder = make_world(config, env, keys=keys)
    spec: Any = world.spec
    texts = tuple(name for name in world.keep if name in world.captions)
    goals = config.goal_conditioned and config.suggester != "none"
    inputs = make_inputs(world, texts=texts, encoder=encoder, goals=goals, symbols="symbols" in config.observe)
    table = jnp.asarray(unit_rows(encoder.encode_texts(spec.captions))) if goals else ()
    actions = spec.actions
    points = config.network.pointing and goals and not isinstance(spec, ClosedGoalSpec)  # there goals are not actions
    network = replace(config.network, pointing=points)
    policy: Any
    if config.learner == "ppo":
        policy = BranchPolicy(actions, network, inputs, table)
    else:
        dqn = config.dqn
        epsilon = dqn.epsilon_end if dqn.acting == "epsilon" else None
        policy = BranchQPolicy(actions, network, inputs, table, epsilon=epsilon, temperature=dqn.temperature)
    mesh = make_mesh(config.mesh) if config.mesh else None
    return Ellm(config, world, world.default_params, encoder, inputs, policy, mesh)


def load_run(folder: Path, checkpoint: int = -1) -> tuple[PretrainRun | OfflineRun, Ellm, Any, int]:
    """A run of `llmrl ellm pretrain` or `offline`: its settings, its parts, a checkpoint's state (-1: the newest) and
    its update.

    **Raises:** `FileNotFoundError` for a missing run or checkpoint; `ValueError` for a run of another command."""
    kind = kind_of_run(folder, *AGENTS)
    config: Any = configs.load_config(AGENTS[kind], folder / "config.json")
    check_saved(folder, checkpoint)
    built = build(config.ellm)
    return config, built, *restore_first(folder, config, built.learner(), checkpoint)
