"""Goals of an environment: their specification, and the wrapper that shows them to an agent and pays for reaching them.

Goals take one of two forms (Du et al., 2302.06692, section 3). Open-ended (`open_goals`): a model writes them as text,
and a transition's caption is the name of the action. Closed-form (`closed_goals`): a model says yes or no to every goal
that the state offers, and goals are about an object and a place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt8

from envs_jax import spaces
from envs_jax.actions import MASK
from envs_jax.env import Environment, Wrapper
from llmrl_jax.core.checks import nearest
from llmrl_jax.lm.encoder import TextEncoder
from llmrl_jax.systems.ellm.config import EllmConfig, Gate, SuggesterName


CATEGORIES = ("good", "poorly_timed", "bad", "nonsensical")
"""Kinds of goals: the oracle has it too; an action that can have an effect, but not now; an action that never has any;
not the name of an action. A closed-form goal is good or bad."""
SUGGEST = 0x5E66
"""Folded into a step's key for random goals."""


@struct.dataclass
class GoalParams:
    """The parameters of a `GoalWrapper`."""

    env: Any
    """The environment's own parameters."""
    threshold: Float[Array, ""] | float
    """Similarity above which a caption reaches a goal."""
    intrinsic: Float[Array, ""] | float
    """Weight of the reward for goals, and of the penalties that belong to it."""
    extrinsic: Float[Array, ""] | float
    """Weight of the environment's own reward, which is added."""


@struct.dataclass
class GoalState:
    """One episode."""

    env: Any
    goals: Any
    """Goals about the current observation."""
    earned: Float[Array, ""]
    """Intrinsic return: the sum of the rewards for goals."""
    tally: Int[Array, "2 4"]
    """Suggestions, and rewards, of each category so far."""


@dataclass(frozen=True)
class RewardRules:
    """Rules of which goals are suggested, and when they pay."""

    suggester: SuggesterName = "oracle"
    draws: int = 10
    """Goals that the suggester `uniform` samples per step, with replacement."""
    gate: Gate = "effect"
    """`effect`: the action had its true effect; `lenient`: the published flag; `none`: always. For open-ended goals."""
    once: bool = True
    """Whether a goal is paid once in an episode only (the novelty filter)."""
    keys: bool = False
    """Whether observations keep the state's key, and whether it is known. For open-ended goals."""


@dataclass(frozen=True, kw_only=True)
class GoalSpec:
    """The goals of an environment, and what is reported about it."""

    FORM: ClassVar[str]
    """`open-ended` or `closed-form`."""
    UNREAD: ClassVar[tuple[str, ...]]
    """Options of `EllmConfig` that goals of this form do not read."""
    WIDE: ClassVar[tuple[str, ...]]
    """Dtypes of observations that become smaller where their numbers fit."""

    captions: tuple[str, ...]
    """Captions by which goals are presented to the agent; a set of goals is a mask of these."""
    achievements: tuple[str, ...]
    """The names of `info["achievements"]`."""
    tasks: Mapping[str, tuple[str, ...]]
    """The environment's single tasks, and the captions of the transitions that they consist of, in their order."""
    measures: Mapping[str, str] = field(default_factory=dict)
    """Further numbers of `info` whose values at the end of an episode are reported, and what they are called."""
    fixed_start: bool = False
    """Whether every episode begins in the same state, and nothing but the agent's actions changes it."""
    symbols: tuple[str, ...] = ("view", "inventory")
    """The parts of an observation that are symbols."""
    required: tuple[str, ...] = ()
    """The parts of an observation that every agent gets."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Parts of the observation that agents get by another name: networks take `image` for a picture."""

    @property
    def actions(self) -> int:
        """Number of actions."""
        raise NotImplementedError

    @property
    def num_goals(self) -> int:
        """Goals of a state, of which observations have a mask."""
        raise NotImplementedError

    @property
    def single_goals(self) -> tuple[str, ...]:
        """Goals to give an agent one after another."""
        raise NotImplementedError

    @property
    def progress_metrics(self) -> dict[str, str]:
        """Metrics beside the progress bar, and their labels."""
        first = {"episode_achievements": "achievements"} if self.achievements else {}
        names = list(self.measures.items())[:1]
        return first | {f"episode_{name}": label for name, label in names}

    def with_goal(self, params: Any, name: str) -> Any:
        """The parameters with a single goal, by its name. **Raises:** `ValueError`, with the nearest, for an unknown
        one."""
        raise NotImplementedError

    def params(self, config: EllmConfig, encoder: TextEncoder) -> Any:
        """The `GoalParams` at the start, without `env`. **Raises:** `ValueError` for unknown goals."""
        raise NotImplementedError

    def start(self, env: Any, params: Any) -> Any:
        """The `GoalState` at the start of an episode, before its first `suggest`."""
        raise NotImplementedError

    def suggest(
        self, rules: RewardRules, obs: Any, state: Any, params: Any, key: jax.Array
    ) -> tuple[Any, Bool[Array, " G"], Bool[Array, ""]]:
        """Suggest goals about an observation.

        **Returns:** the state with them; their mask, as the agent sees it; and whether a chat model has been asked
        about the state, if one is."""
        raise NotImplementedError

    def pay(
        self, rules: RewardRules, state: Any, action: jax.Array, obs: Any, info: Any, params: Any
    ) -> tuple[Any, jax.Array, jax.Array]:
        """Pay for a transition. **Arguments:** `obs`, after it.
        **Returns:** the state with its outcome, the reward for goals, and the penalty."""
        raise NotImplementedError

    def sums(self, state: Any, info: Any) -> dict[str, Any]:
        """Sums of an episode for `info`, besides `episode_earned`; all forms have `episode_unknown`."""
        raise NotImplementedError

    def as_captions(self, obs: Any, goals: Bool[Array, "B G"]) -> Bool[Array, "B A"]:
        """The mask of goals in observations `[B, ...]` as one of captions."""
        raise NotImplementedError

    def describe_goals(self, obs: Any, goals: Bool[np.ndarray, " G"]) -> list[str]:
        """The goals in the observation of an agent, as text."""
        raise NotImplementedError


_SPEC_MODULES = {"CrafterText": "crafter", "Housekeep": "housekeep"}
"""Beginnings of ids, and the modules with the specifications of these environments."""


def goal_spec_for(env: Environment) -> Any:
    """The `GoalSpec` of an environment, which may have a `goal_spec` of its own. **Raises:** `ValueError` for one
    without goals."""
    if (make := getattr(env.unwrapped, "goal_spec", None)) is not None:
        return make()
    family = _SPEC_MODULES.get(env.id.split("?")[0].split("-")[0])
    if family is None:
        ids = ["CrafterText-v1", "Housekeep-v0", "Housekeep-Task1-v0", "Housekeep-Macro-v0"]
        hint = nearest(env.id.split("?")[0], ids)
        raise ValueError(f"ELLM has no goals for the world {env.id!r}{hint}: choose {', '.join(ids[:-1])} or {ids[-1]}")
    return import_module(f"llmrl_jax.systems.ellm.{family}").goal_spec(env)


def goal_reward(
    similarity: Float[Array, " G"], goals: Bool[Array, " G"], threshold: float | jax.Array
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """The reward of a transition (Du et al., 2302.06692): `max_i S_i if S_i > T else 0`.

    **Arguments:** `similarity`, `S`, of the transition's caption to every goal; `goals`, whether each can be reached;
    `threshold`, `T`.
    **Returns:** the reward, and the index of the goal that was reached; -1: none.
    """
    scores = jnp.where(goals, similarity, -jnp.inf)
    best = jnp.argmax(scores)
    rewarded = scores[best] > threshold
    return jnp.where(rewarded, scores[best], 0.0).astype(jnp.float32), jnp.where(rewarded, best, -1)


class GoalWrapper(Wrapper):
    """An environment whose observations have goals and whose reward is that of reaching them.

    Observation: the parts named by `keep`, small integers as bytes, the mask of valid actions if there is one, and
    `goals`, uint8, a mask of goals, packed (`unpacked`); with `rules.keys` also `key`, uint32 `[]`, and `known`, bool
    `[]`. `info` has the sums of the episode as `episode_*`, which learners report: `earned`, `unknown` (a fraction of
    steps), those of `GoalSpec.sums`, and `suggested/<category>` and `paid/<category>`.
    """

    def __init__(self, env: Environment, spec: GoalSpec, rules: RewardRules, start: Any, *, keep: tuple[str, ...]):
        """**Arguments:** `env`, with `EpisodeStatistics`, not batched; `spec`; `rules`; `start`, the parameters at the
        start, without `env`; `keep`, parts of the observation."""
        super().__init__(env)
        self.spec, self.rules, self.keep, self._start = spec, rules, keep, start
        parts = env.observation_space(env.default_params).spaces  # type: ignore[attr-defined]
        self._parts = {name: _compact(x, spec.WIDE) for name, x in parts.items() if name in keep or name == MASK}

    @property
    def default_params(self):
        return self._start.replace(env=self.env.default_params)

    def _observe(self, obs, state, params, key) -> tuple[dict[str, Any], Any]:
        """The observation of the agent, and the state with the goals about it."""
        state, goals, answered = self.spec.suggest(self.rules, obs, state, params, jax.random.fold_in(key, SUGGEST))
        observed = {self._name(name): obs[name].astype(space.dtype) for name, space in self._parts.items()}
        observed["goals"] = packed(goals)
        if self.rules.keys:
            observed |= {"key": obs["key"], "known": answered}
        return observed, state

    def _name(self, name: str) -> str:
        return self.spec.renamed.get(name, name)

    def reset(self, key, params):
        obs, env = self.env.reset(key, params.env)
        return self._observe(obs, self.spec.start(env, params), params, key)

    def step(self, key, state, action, params):
        obs, env, reward, terminated, truncated, info = self.env.step(key, state.env, action, params.env)
        state, earned, penalty = self.spec.pay(self.rules, state, action, obs, info, params)
        state = state.replace(env=env, earned=state.earned + earned)
        info = {"achievements": jnp.zeros(0, jnp.int32), **info, "earned": earned}
        info |= self._report(state, info)
        observed, state = self._observe(obs, state, params, key)
        reward = params.intrinsic * (earned + penalty) + params.extrinsic * reward
        return observed, state, reward, terminated, truncated, info

    def _report(self, state, info) -> dict[str, jax.Array]:
        kinds = {
            f"episode_{row}/{kind}": state.tally[i, j]
            for i, row in enumerate(("suggested", "paid"))
            for j, kind in enumerate(CATEGORIES)
        }
        sums = {"episode_earned": state.earned, **self.spec.sums(state, info), **kinds}
        return {name: jnp.asarray(x).astype(jnp.float32) for name, x in sums.items()}

    def observation_space(self, params):
        parts = {self._name(name): space for name, space in self._parts.items()}
        parts["goals"] = spaces.Box(0, 255, ((self.spec.num_goals + 7) // 8,), np.uint8)
        if self.rules.keys:
            env_space: Any = self.env.observation_space(params.env)
            parts |= {"key": env_space.spaces["key"], "known": spaces.Box(False, True, (), np.bool_)}
        return spaces.Dict(parts)

    def action_space(self, params):
        return self.env.action_space(params.env)

    @property
    def captions(self):
        """The environment's captions that the agent sees."""
        return {name: book for name, book in self.env.captions.items() if name in self.keep}

    @property
    def episode_captions(self):
        return tuple(name for name in self.env.episode_captions if name in self.keep)

    @property
    def stacked(self):
        """The environment's stacks of frames that the agent sees."""
        return {name: stack for name, stack in self.env.stacked.items() if name in self.keep}

    def render(self, state):
        return self.env.render(state.env)

    def ascii(self, state):
        return self.env.ascii(state.env)

    def describe(self, obs):
        """The captions and the goals that the agent sees."""
        texts = {name: book.render(obs[name]) for name, book in self.captions.items()}
        goals = np.unpackbits(np.asarray(obs["goals"]), count=self.spec.num_goals).astype(bool)
        return texts | {"goals": ", ".join(self.spec.describe_goals(obs, goals))}


def _compact(space: Any, wide: tuple[str, ...]) -> Any:
    """The space of a part as a replay buffer holds it: in bytes if its numbers fit. **Arguments:** `wide`, the dtypes
    that become smaller."""
    if space.dtype not in map(np.dtype, wide):
        return space
    low, high = (np.min(space.low), np.max(space.high)) if isinstance(space, spaces.Box) else (0, space.n - 1)
    fit = (x for x in (np.uint8, np.int8, np.int16) if np.iinfo(x).min <= low and high <= np.iinfo(x).max)
    return spaces.Box(low, high, space.shape, next(fit, space.dtype))


def histogram(kinds: Int[Array, " K"]) -> Int[Array, "4"]:
    """The number of goals of each category. **Arguments:** `kinds`, indices into `CATEGORIES`; -1: no goal."""
    return jnp.sum(kinds[:, None] == jnp.arange(len(CATEGORIES)), axis=0, dtype=jnp.int32)


def packed(mask: Bool[Array, "*B A"]) -> UInt8[Array, "*B P"]:
    """A mask, eight to a byte, as observations store it."""
    return jnp.packbits(mask, axis=-1)


def unpacked(mask: UInt8[Array, "*B P"], count: int) -> Bool[Array, "*B A"]:
    """The inverse of `packed`, for `count` values."""
    return jnp.unpackbits(mask, axis=-1, count=count).astype(bool)


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Rows divided by their L2 norm; zeros stay zeros."""
    norms = np.linalg.norm(x, axis=-1, keepdims=True)
    return (x / np.where(norms > 0, norms, 1.0)).astype(np.float32)
