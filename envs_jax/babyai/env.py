"""BabyAI as an `Environment`: `BabyAI-<level>-v0`, and `BabyAI-Text/<level>-v0`, which also describes the view in
words."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import spaces
from envs_jax.actions import MASK, mask_space
from envs_jax.babyai.actions import useful_actions
from envs_jax.babyai.constants import ACTIONS, AGENT, VIEW
from envs_jax.babyai.levels import LEVELS
from envs_jax.babyai.levels.level import Level, draw
from envs_jax.babyai.mission import CLAUSES, PUT_NEXT
from envs_jax.babyai.state import EMPTY_CELL, STATE_MASK, STATE_SHIFT, Params, State
from envs_jax.babyai.step import act
from envs_jax.babyai.text.books import books
from envs_jax.babyai.text.english import (
    MISSION_LENGTH,
    MISSIONS,
    faithful_caption,
    mission_caption,
    mission_limits,
    sentence_bound,
    view_caption,
    view_limits,
)
from envs_jax.babyai.verify import members, verify
from envs_jax.babyai.view import view
from envs_jax.checks import nearest
from envs_jax.env import Environment


KEYS = {"left": "turn left", "right": "turn right", "up": "go forward", "space": "toggle"}


class BabyAI(Environment[State, Params]):
    """One BabyAI level. Observations: `image` uint8 `[7, 7, 3]`, `direction` int32 `[]`, `mission` a caption of
    `books.missions`, and with `text` also `text`, a caption of `books.view` with up to `max_sentences` sentences; with
    `actions` "useful" also `action_mask` bool `[7]`, see `envs_jax.babyai.actions.useful_actions`.
    `info`: `success` bool, `task` int32, an index into `task_names`."""

    def __init__(
        self,
        level: Level,
        text: bool = False,
        *,
        describe: str = "glam",
        language: str = "english",
        done_actions: bool = False,
        actions: str = "all",
        max_steps: int = 0,
        compat: bool = False,
    ):
        self.level, self.text, self.actions = level, text, actions
        self.books, self.faithful, self.language = books(describe, language), describe == "faithful", language
        self.done_actions, self.max_steps, self.compat = done_actions, max_steps, compat
        self.task_names = level.tasks
        self.max_sentences = sentence_bound(level.num_objects, self.faithful)

    @property
    def default_params(self) -> Params:
        return Params(
            max_steps=np.int32(self.max_steps),
            reward_decay=np.float32(0.9),
            task_weights=np.ones(len(self.task_names), np.float32),
        )

    @property
    def action_names(self) -> tuple[str, ...]:
        return ACTIONS

    def observation_space(self, params):
        parts: dict[str, spaces.Space] = {
            "image": spaces.Box(0, AGENT, (VIEW, VIEW, 3), np.uint8),
            "direction": spaces.Discrete(4),
            "mission": spaces.Box(-1, len(MISSIONS) - 1, (MISSION_LENGTH,), np.int16),
        }
        if self.text:
            parts["text"] = spaces.Box(-1, len(self.books.view) - 1, (self.max_sentences,), np.int16)
        if self.actions == "useful":
            parts[MASK] = mask_space(len(ACTIONS))
        return spaces.Dict(parts)

    def action_space(self, params):
        return spaces.Discrete(len(ACTIONS))

    def observe(self, state: State) -> dict[str, jax.Array]:
        """The observation of a state."""
        return {**self._see(state), **self._offer(state)}

    def _offer(self, state: State) -> dict[str, jax.Array]:
        return {MASK: useful_actions(state, self.done_actions)} if self.actions == "useful" else {}

    def _see(self, state: State) -> dict[str, jax.Array]:
        image = view(state.grid, state.position, state.direction, state.carrying)
        obs = {"image": image, "direction": state.direction, "mission": state.mission_caption}
        if self.text:
            # without the barrier XLA's CPU compiler recomputes the view for every sentence: ten times the work
            image = jax.lax.optimization_barrier(image)
            if self.faithful:
                index = state.position[0] * state.grid.shape[1] + state.position[1]
                ground = jnp.take(state.grid.reshape(-1), index, mode="clip")
                caption = faithful_caption(image, ground, self.max_sentences)
            else:
                caption = view_caption(image, self.max_sentences)
            obs = {**obs, "image": image, "text": caption}
        return obs

    def step_limit(self, kind: jax.Array, task: jax.Array, params: Params) -> jax.Array:
        """The step limit of an episode: int32 `[]`."""
        level, rooms = self.level, self.level.rooms
        navigations = jnp.sum(kind > 0) + jnp.sum(kind == PUT_NEXT)
        used = rooms.rows * rooms.columns if level.rooms_used is None else level.rooms_used(task)
        limit = rooms.size**2 * used * navigations if level.max_steps is None else level.max_steps
        return jnp.where(jnp.asarray(params.max_steps) > 0, params.max_steps, limit).astype(jnp.int32)

    def reset(self, key, params):
        (layout, grid, (mission, mover, fixed)), task = draw(self.level, key, params)
        cell = layout.cell.astype(jnp.int16)
        packed = layout.packed().astype(jnp.int16)
        content = jnp.zeros_like(cell)
        for box, inner in self.level.boxed:
            content = content.at[box].set(packed[inner])
        state = State(
            grid=grid.reshape(self.level.rooms.width, self.level.rooms.height),
            object=packed & ~(STATE_MASK << STATE_SHIFT),
            cell=cell,
            content=content,
            tracked=cell,
            carrying=jnp.int16(0),
            position=layout.position.astype(jnp.int32),
            direction=layout.direction.astype(jnp.int32),
            step_count=jnp.int32(0),
            max_steps=self.step_limit(mission.kind, task, params),
            mission=mission,
            mission_caption=mission_caption(mission),
            mover=mover,
            fixed=fixed,
            held=jnp.full(CLAUSES, -1, jnp.int8),
            met=jnp.zeros(CLAUSES, bool),
            matched=jnp.zeros(CLAUSES, bool),
            task=task,
        )
        if self.level.in_hand:
            picked = self._in_hand(state)
            # minigrid's first observation shows the object where it lay
            return {**self._see(state if self.compat else picked), **self._offer(picked)}, picked
        return self.observe(state), state

    def _in_hand(self, state: State) -> State:
        """The state after picking up the object of the mission. With `compat` the verifier still assumes it at its old
        position, and that nothing was in hand before the first action, as in minigrid."""
        is_target = members(state.mover[0], state.cell.shape[0])
        cell = jnp.where(is_target, jnp.int16(-1), state.cell)
        flat = state.grid.reshape(-1)
        index = jnp.sum(jnp.where(is_target, state.cell, 0), dtype=jnp.int32)
        return state.replace(
            carrying=jnp.sum(jnp.where(is_target, state.object, 0), dtype=jnp.int16),
            held=state.held if self.compat else state.held.at[0].set(jnp.argmax(is_target).astype(jnp.int8)),
            cell=cell,
            tracked=state.tracked if self.compat else cell,
            grid=flat.at[index].set(EMPTY_CELL).reshape(state.grid.shape),
        )

    def step(self, key, state, action, params):
        action = jnp.asarray(action, jnp.int32)
        state, ahead, front_cell = act(state, action)
        state, success, failure = verify(
            state,
            action,
            ahead,
            front_cell,
            self.level.clauses,
            self.level.kinds,
            done_actions=self.done_actions,
            compat=self.compat,
        )
        # 1 - decay * steps / limit, as one division of integers, which rounds as the reference's float64 does: a decay
        # in thousandths is an integer up to the rounding of float32; any other is used as it is
        decay = jnp.asarray(params.reward_decay, jnp.float32) * 1000
        rounded = jnp.round(decay)
        decay = jnp.where(jnp.abs(decay - rounded) <= 2.0**-22 * rounded, rounded, decay)
        limit = 1000 * state.max_steps.astype(jnp.float32)
        reward = jnp.where(success, (limit - decay * state.step_count) / limit, 0.0).astype(jnp.float32)
        info = {"success": success, "task": state.task}
        truncated = state.step_count >= state.max_steps
        return self.observe(state), state, reward, success | failure, truncated, info

    @property
    def captions(self):
        return {"mission": self.books.missions} | ({"text": self.books.view} if self.text else {})

    @property
    def episode_captions(self):
        return ("mission",)

    @property
    def caption_limits(self):
        rooms = self.level.rooms
        limits = {"mission": mission_limits(self.level.kinds, len(self.level.clauses), self.level.located)}
        if self.text:
            doors = rooms.rows * (rooms.columns - 1) + rooms.columns * (rooms.rows - 1)
            limits["text"] = self.max_sentences, view_limits(self.max_sentences, doors=doors, faithful=self.faithful)
        return limits

    @property
    def keys(self):
        return {key: ACTIONS.index(action) for key, action in KEYS.items()}

    def render(self, state) -> np.ndarray:
        from envs_jax.babyai.render import render

        return render(state)

    def ascii(self, state) -> str:
        from envs_jax.babyai.render import letters

        return letters(state)


SHARED = ("describe", "language", "done_actions", "actions", "max_steps", "compat")
"""Options that every level takes."""


def make(
    level: str,
    text: bool = False,
    describe: str = "glam",
    language: str = "english",
    done_actions: bool = False,
    actions: str = "all",
    max_steps: int = 0,
    compat: str = "",
    **options: Any,
) -> BabyAI:
    """Build a level of `LEVELS`.

    **Arguments:** `level`, a family; `text`, whether observations include BabyAI-Text's sentences; `describe`, the
    sentences of BabyAI-Text (`glam`) or `faithful` ones; `language`, `english` or `french`: other words, the same
    captions; `done_actions`, whether a clause only succeeds if the action `done` follows on the next step; `actions`,
    the actions that are offered: `all`, or `useful`, those that change anything (a mask in the observation);
    `max_steps`, after which an episode ends by a time-out, 0: the level's own; `compat`, empty, or `minigrid` for
    minigrid 3.2.0 with its bugs; `options`, those of the family (`room_size`, `num_dists`, ...).
    **Raises:** `TypeError` for an option that the family lacks, `ValueError` for one out of range.
    """
    if level not in LEVELS:
        raise KeyError(f"no BabyAI level is called {level!r}{nearest(level, list(LEVELS))}")
    if compat not in ("", "minigrid"):
        raise ValueError(f"{level}: compat is {compat!r}; leave it empty, or take minigrid")
    if max_steps < 0:
        raise ValueError(f"{level}: max_steps is {max_steps}; at least 1 is needed, or 0 for the level's own")
    if actions not in ("all", "useful"):
        raise ValueError(f"{level}: actions is {actions!r}{nearest(actions, ['all', 'useful'])}; all or useful")
    accepted = dict(inspect.signature(LEVELS[level]).parameters)
    quirky = accepted.pop("compat", None) is not None
    for name, value in options.items():
        if name not in accepted:
            takes = [*accepted, *SHARED]
            raise TypeError(f"{level} has no option {name!r}{nearest(name, takes)} (it takes {', '.join(takes)})")
        kind = type(accepted[name].default)
        if kind is bool and type(value) is int and value in (0, 1):  # a switch in an id may be a number
            options[name] = value == 1
        elif type(value) is not kind:
            expected = {int: "a whole number", bool: "true or false", str: "a word"}[kind]
            raise TypeError(f"{level}: {name} is {value!r}; {expected} is needed")
    if quirky:
        options["compat"] = compat == "minigrid"
    return BabyAI(
        LEVELS[level](**options),
        text,
        describe=describe,
        language=language,
        done_actions=done_actions,
        actions=actions,
        max_steps=max_steps,
        compat=compat == "minigrid",
    )
