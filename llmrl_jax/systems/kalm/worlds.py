"""KALM's environments: what grounding, imagining and testing need to know of each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

import envs_jax
from envs_jax import spaces
from envs_jax.env import Environment, Wrapper
from llmrl_jax.core.checks import nearest
from llmrl_jax.data.transitions import DataError


REAL = "real"
LEVELS = ("real", "rephrase", "easy", "hard")
"""Goals of the data in their words, the same in other words, and goals that no data show."""
IMAGINED = LEVELS[1:]
STATE, GOAL, INSTRUCTION = "state", "goal", "instruction"
"""Parts of observations."""


@dataclass(frozen=True)
class Instructions:
    """Every sentence of all levels, numbered through: level after level."""

    texts: tuple[str, ...]
    goals: Int[np.ndarray, "I g"]
    configuration: Int[np.ndarray, " I"]
    """The number of the goal of each sentence within its level."""
    first: Mapping[str, int]
    """The number of each level's first sentence."""
    count: Mapping[str, int]

    def sentence_ids(self, level: str) -> range:
        """The numbers of a level's sentences."""
        return range(self.first[level], self.first[level] + self.count[level])

    def wordings(self, level: str, configuration: int) -> list[str]:
        """All sentences for one goal of a level."""
        chosen = self.sentence_ids(level)
        matches = np.flatnonzero(self.configuration[chosen.start : chosen.stop] == configuration)
        return [self.texts[chosen.start + i] for i in matches]


Label = Callable[[Any, Any, Any], tuple[Any, Any]]
"""`(goal, states, actions) -> (reward, success)` of the steps of episodes: leaves `[..., g]`, `[..., T + 1, d]` and
`[..., T, *]`; both results are `[..., T]`."""


@dataclass(frozen=True)
class Cases:
    """`N` given beginnings of episodes of a level."""

    level: str
    states: Float[np.ndarray, "N d"]
    goals: Int[np.ndarray, "N g"]
    instructions: Int[np.ndarray, " N"]
    """The number of each one's sentence."""


@dataclass(frozen=True)
class World:
    """An environment with instructions at four levels."""

    name: str
    ids: Mapping[str, str]
    """The environment of each level."""
    horizon: Mapping[str, int]
    """Steps of an episode, by level."""
    instructions: Instructions
    rules: Callable[[str], Label]
    """The rules of a level, for imagined steps too."""
    holds: Callable[[Any, Any], Any]
    """`(goal, state)`, whether there is nothing left to do."""
    implausible: Callable[[Any, Any], dict[str, Any]]
    """`(state, next_state)`, what is impossible about a step."""
    expert: Callable[[Environment, Any], jax.Array]
    """`(env, state)`, the action of the environment's scripted expert."""
    published: Callable[[Mapping[str, np.ndarray], str], np.ndarray]
    """`(metadata, level)`, the goals of a published file's episodes, `[N, g]`, from what it says of them."""
    keywords: Callable[[str], tuple[Any, ...]] | None = None
    """The keywords of a sentence, as many of each, None for one that it lacks; None: the environment has none."""
    first: Callable[[str, Int[np.ndarray, " B"], int], np.ndarray] | None = None
    """`(level, sentences, seed)`, first states of episodes with these sentences, `[B, d]`; None: any episode's first
    state suits every sentence."""
    begin: Callable[..., Any] | None = None
    """`(env, state, goal, sentence)`, the first observation and state of an episode that begins there, with the
    sentence's number within its level; None: observations do not determine a state."""
    cases: Cases | None = None
    """Where episodes begin, each at one of these, drawn with its key; None: as the environment begins."""

    def make(self, level: str) -> Environment:
        """The environment of a level, whose observations number sentences as `instructions` does."""
        level = level_of(level)
        env, _ = envs_jax.make(self.ids[level])
        if self.cases is not None:
            if level != self.cases.level or self.begin is None:
                raise ValueError(f"the cases are of level {self.cases.level} of {self.name}, and {level} is played")
            env = FromCases(env, self.begin, self.cases, self.instructions.first[level])
        return Numbered(env, self.instructions.first[level], len(self.instructions.texts))


class FromCases(Wrapper):
    """Episodes that begin at given cases, each drawn with the key of its reset."""

    def __init__(self, env: Environment, begin: Callable[..., Any], cases: Cases, first: int):
        """**Arguments:** `begin`, see `World.begin`; `first`, the number of the level's first sentence."""
        super().__init__(env)
        self.begin = begin
        self.table = (cases.states, cases.goals, cases.instructions - first)

    def reset(self, key, params):
        index = jax.random.randint(key, (), 0, len(self.table[0]))
        return self.begin(self.env, *(jnp.asarray(x)[index] for x in self.table))


class Numbered(Wrapper):
    """Sentences numbered through all levels: int32 `[]` as `obs["instruction"]`, beside the state and the goal."""

    def __init__(self, env: Environment, first: int, count: int):
        super().__init__(env)
        self.first, self.count = first, count

    def observation_space(self, params):
        parts: dict[str, Any] = dict(self.env.observation_space(params).spaces)  # type: ignore[attr-defined]
        return spaces.Dict({**parts, INSTRUCTION: spaces.Discrete(self.count)})

    @property
    def captions(self):
        return {}

    def describe(self, obs):
        book = self.env.captions[INSTRUCTION]
        return {INSTRUCTION: book.phrases[int(obs[INSTRUCTION]) - self.first]}

    def _numbered(self, obs: Any) -> Any:
        return {**obs, INSTRUCTION: obs[INSTRUCTION][0].astype(jnp.int32) + self.first}

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        return self._numbered(obs), state

    def step(self, key, state, action, params):
        obs, *remaining = self.env.step(key, state, action, params)
        return (self._numbered(obs), *remaining)


def _numbered(levels: Mapping[str, Any]) -> Instructions:
    """The instructions of an environment's levels, each with `instructions`, `goals` and `configurations`."""
    counts = {name: len(level.instructions) for name, level in levels.items()}
    return Instructions(
        texts=tuple(instruction.text for level in levels.values() for instruction in level.instructions),
        goals=np.concatenate([level.goals for level in levels.values()]),
        configuration=np.concatenate([level.configurations for level in levels.values()]),
        first=dict(zip(LEVELS, np.cumsum([0, *counts.values()]).tolist())),
        count=counts,
    )


def clevr_goals(metadata: Mapping[str, np.ndarray], level: str) -> np.ndarray:
    """CLEVR-Robot's goals of episodes, int32 `[N, 10]`, from `goals` in the published code."""
    from envs_jax.clevr import from_published

    if "goals" not in metadata:
        raise DataError("the file has no 'goals', which say what its episodes are about")
    codes = metadata["goals"]
    try:
        return from_published(codes[:, 0] if codes.ndim == 3 else codes, level)
    except (ValueError, TypeError) as error:
        raise DataError(f"goals of the file are not those of level {level}: {error}") from error


def metaworld_goals(metadata: Mapping[str, np.ndarray], level: str) -> np.ndarray:
    """Meta-World's tasks of episodes, int32 `[N, 1]`, from `env_names`, as "reach-v2" or "rep-reach-v2"."""
    from envs_jax.metaworld.instructions import NAMES

    if "env_names" not in metadata or metadata["env_names"].dtype.kind != "U":
        raise DataError("the file has no 'env_names', which say what its episodes are about")
    names = [name.removeprefix("rep-").rsplit("-v", 1)[0] for name in metadata["env_names"].reshape(-1).tolist()]
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise DataError(f"env_names has {unknown[0]!r}, which is none of KALM's tasks ({', '.join(NAMES)})")
    return np.array([[NAMES.index(name)] for name in names], np.int32)


@functools.cache
def clevr() -> World:
    """CLEVR-Robot."""
    from envs_jax.clevr import instructions, rules
    from envs_jax.clevr.constants import HORIZON
    from envs_jax.clevr.expert import expert_action
    from envs_jax.clevr.plausible import implausible

    def label(weights: Any, goal: Any, states: Any, actions: Any) -> tuple[Any, Any]:
        return rules.label(goal[..., None, :], states[..., :-1, :], states[..., 1:, :], actions, weights)

    return World(
        name="clevr",
        ids={name: f"CLEVR-Robot-v0?level={name}" for name in LEVELS},
        horizon={name: 1 if name == "easy" else HORIZON for name in LEVELS},
        instructions=_numbered({name: instructions.level(name) for name in LEVELS}),
        rules=lambda level: functools.partial(label, rules.weights_of(level)),
        holds=rules.holds,
        implausible=implausible,
        expert=expert_action,
        published=clevr_goals,
        keywords=instructions.keywords,
        begin=lambda env, state, goal, sentence: env.unwrapped.begin(state, goal, sentence),
    )


@functools.cache
def metaworld() -> World:
    """Meta-World: ten tasks in the data, eight and four others."""
    from envs_jax.metaworld import instructions, labels
    from envs_jax.metaworld.levels import HORIZON

    texts = _numbered({name: instructions.level(name) for name in LEVELS})

    def first(level: str, sentences: np.ndarray, seed: int) -> np.ndarray:
        """A state has the objects of one task, so episodes begin as those of the sentence's own task do."""
        env: Any = envs_jax.make(f"MetaWorld-v3?level={level}")[0]
        numbers = jnp.arange(len(sentences))
        keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(numbers)
        obs, state = jax.jit(jax.vmap(env.begin))(jnp.asarray(sentences - texts.first[level]), keys)
        # the first observation of `window-close` shows the window where it is not, and that is where it should go
        stale = labels.holds(obs["goal"], obs["state"])
        no_action = jnp.zeros((len(sentences), 4))
        step = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, None)))
        after = step(keys, state, no_action, env.default_params)[0]["state"] if stale.any() else obs["state"]
        return np.asarray(jnp.where(stale[:, None], after, obs["state"]))

    return World(
        name="metaworld",
        ids={name: f"MetaWorld-v3?level={name}" for name in LEVELS},
        horizon=dict.fromkeys(LEVELS, HORIZON),
        instructions=texts,
        rules=lambda level: labels.label,
        holds=labels.holds,
        implausible=labels.implausible,
        expert=lambda env, state: env.unwrapped.expert(state),  # type: ignore[attr-defined]
        published=metaworld_goals,
        first=first,
    )


WORLDS: dict[str, Callable[[], World]] = {"clevr": clevr, "metaworld": metaworld}


def world_of(name: str) -> World:
    """The environment of that name. **Raises:** `ValueError`, with the nearest name, for another."""
    if name not in WORLDS:
        raise ValueError(f"there is no world {name!r}{nearest(name, list(WORLDS))} (there are {', '.join(WORLDS)})")
    return WORLDS[name]()


def level_of(name: str, levels: tuple[str, ...] = LEVELS) -> str:
    """The level of that name; the published programs' names are known too: `baseline`, `rephrase_level`.

    **Raises:** `ValueError` for an unknown level.
    """
    level = REAL if name == "baseline" else name.removesuffix("_level")
    if level not in levels:
        raise ValueError(f"unknown level {name!r}{nearest(name, list(levels))} (levels are {', '.join(levels)})")
    return level
