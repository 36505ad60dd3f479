"""Housekeep as an `Environment`: `Housekeep-v0`, and four fixed tasks, by low-level actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import spaces
from envs_jax.checks import between
from envs_jax.env import Environment
from envs_jax.housekeep import preferences as preferences_file, worldgen
from envs_jax.housekeep.apartment import KEYS, NAMES, RECEPTACLES
from envs_jax.housekeep.constants import ACTIONS, BANDS, BREADTH, DEPTH, FURNITURE, LOW, SLOTS
from envs_jax.housekeep.state import Params, State
from envs_jax.housekeep.step import Rules, look
from envs_jax.housekeep.tables import tables
from envs_jax.housekeep.text import HEADS, books, captions


KEYBOARD = {"up": 0, "left": 1, "right": 2, "u": 3, "d": 4, "space": 5}

WORDS = -(-len(RECEPTACLES) // 32)
"""Words of a set of receptacles."""


class Housekeep(Environment[State, Params]):
    """A grid apartment in which misplaced objects are to be put where they belong.

    The observation is a dict, see `observation_space`; actions are `ACTIONS`. `info` has the events and metrics of
    `Rules.measure`.
    """

    kind_of_rules = Rules

    def __init__(
        self,
        task: int = 0,
        episode: int = -1,
        preferences: str = "",
        num_objects: int = 0,
        num_misplaced: int = 0,
        field_of_view: float = 180.0,
        clip_reward: bool = False,
    ):
        """**Arguments:** `task`, 1 to 4 for a fixed episode, 0 for random ones; `episode`, if not -1, the number of the
        random episode with which every reset begins; `preferences`, a file that replaces the project's own table, see
        `envs_jax.housekeep.preferences.load`; `num_objects`, of random episodes, 0 for 7 to 10; `num_misplaced`, of
        random episodes, 0 for 3 to 5; `field_of_view`, the horizontal angle that the agent sees, in degrees;
        `clip_reward`, the default of the parameter.

        **Raises:** `ValueError` for a number out of range or a file of wrong content, `FileNotFoundError`.
        """
        between("task", task, 0, 4)
        between("episode", episode, -1, 2**31 - 1)
        between("field_of_view", field_of_view, 0, 180, above=True)
        if num_objects:
            between("num_objects", num_objects, 1, SLOTS, remedy="0 draws 7 to 10")
        if num_misplaced:
            between("num_misplaced", num_misplaced, 1, num_objects or 7, remedy="0 draws 3 to 5")
        if task and (num_objects or num_misplaced or episode >= 0):
            raise ValueError(f"task {task} has its own objects; leave num_objects, num_misplaced and episode out")
        self.episode = episode
        self.objects_range = (num_objects, num_objects) if num_objects else (7, 10)
        min_misplaced = min(3, self.objects_range[0])
        max_misplaced = min(5, self.objects_range[0])
        self.misplaced_range = (num_misplaced, num_misplaced) if num_misplaced else (min_misplaced, max_misplaced)
        self.clip_reward = clip_reward
        loaded = preferences_file.load(preferences) if preferences else preferences_file.shipped()
        distractors = [r.key for r in RECEPTACLES if r.is_distractor]
        self.preferences = loaded.select(KEYS, distractors)
        self.tables = tables(float(field_of_view))
        self.rules = self.kind_of_rules(self.tables, self.preferences)
        self.books = books(self.preferences.objects)
        self.start = worldgen.task(task, self.preferences, self.tables) if task else None
        drawn = int(worldgen.eligible(self.preferences, self.tables).sum())
        if not task and drawn < SLOTS:
            raise ValueError(
                f"{drawn} objects of the preferences can be drawn; {SLOTS} are needed with a place to be misplaced at "
                f"and {SLOTS} correct spots in the apartment"
            )

    @property
    def object_names(self) -> tuple[str, ...]:
        """The categories of objects, in words: the first axis of tables of suggestions."""
        return self.books["objects"].phrases

    @property
    def receptacle_names(self) -> tuple[str, ...]:
        """The receptacles with their rooms, in words: the second axis of tables of suggestions."""
        return NAMES

    @property
    def correct(self) -> np.ndarray:
        """The correct places: bool `[N, R]`."""
        return self.preferences.correct.T

    @property
    def default_params(self) -> Params:
        return Params(
            max_steps=np.int32(1000),
            objects=np.array(self.objects_range, np.int32),
            misplaced=np.array(self.misplaced_range, np.int32),
            pick_reward=np.float32(2.5),
            wrong_pick_reward=np.float32(-0.25),
            place_reward=np.float32(2.5),
            wrong_place_reward=np.float32(-0.25),
            fail_reward=np.float32(-0.2),
            clip_reward=np.bool_(self.clip_reward),
            suggesting=np.bool_(False),
            suggestions=np.ascontiguousarray(self.correct),
        )

    @property
    def action_names(self) -> tuple[str, ...]:
        return ACTIONS

    def action_space(self, params):
        return spaces.Discrete(len(self.action_names))

    def observation_space(self, params):
        """`image`: int16 `[13, 13, 3]`, see `observe`; `pitch`: int32; `held`: int32, the slot of the object in hand,
        -1 for none; `seen_objects`: bool `[O]`; `seen_receptacles`: bool `[R]`; `categories`: int16 `[O]`, of the
        objects seen in this episode, else -1; `places`: int16 `[O]`, the receptacle of each object in view, else -1;
        and the captions `objects` int16 `[O]`, `receptacles` int16 `[R]`, `holding` int16 `[1]`."""
        kinds, receptacles = len(self.object_names), len(NAMES)
        return spaces.Dict(
            {
                "image": spaces.Box(0, FURNITURE + receptacles + kinds - 1, (DEPTH, BREADTH, len(BANDS)), np.int16),
                "pitch": spaces.Discrete(len(BANDS)),
                "held": spaces.Box(-1, SLOTS - 1, (), np.int32),
                "seen_objects": spaces.Box(False, True, (SLOTS,), np.bool_),
                "seen_receptacles": spaces.Box(False, True, (receptacles,), np.bool_),
                "categories": spaces.Box(-1, kinds - 1, (SLOTS,), np.int16),
                "places": spaces.Box(-1, receptacles - 1, (SLOTS,), np.int16),
                "objects": spaces.Box(-1, kinds - 1, (SLOTS,), np.int16),
                "receptacles": spaces.Box(-1, receptacles - 1, (receptacles,), np.int16),
                "holding": spaces.Box(-1, kinds, (1,), np.int16),
            }
        )

    def image(self, state: State) -> jax.Array:
        """The cells in front of the agent: int16 `[13, 13, 3]`, by row (the farthest first, the agent's own last),
        column (left to right) and height. Codes: 0 unseen, 1 free, 2 wall, `3 + r` receptacle, `3 + R + k` an object of
        category `k`, which covers its receptacle."""
        pose, kinds = self.rules.pose(state), FURNITURE + len(NAMES)
        background = jnp.take(self.tables.image, pose, axis=0, mode="clip").astype(jnp.int16)
        index = look(self.tables.window.reshape(-1), pose * len(self.tables.spots) + state.spot)
        index = jnp.where(state.spot >= 0, index, background.shape[0]).astype(jnp.int32)
        return background.at[index].set(state.category + kinds, mode="drop").reshape(DEPTH, BREADTH, len(BANDS))

    def observe(self, state: State) -> dict[str, jax.Array]:
        """The observation of a state."""
        numbers = np.arange(len(NAMES))
        words = jnp.take(state.seen_receptacles, numbers // 32, mode="clip")
        is_seen = (words >> (numbers % 32).astype(np.uint32) & 1).astype(bool)
        category = jnp.take(state.category, state.held, mode="clip").astype(jnp.int32)
        return {
            "image": self.image(state),
            "pitch": state.pitch,
            "held": state.held,
            "seen_objects": state.seen_objects,
            "seen_receptacles": is_seen,
            "categories": jnp.where(state.seen_objects, state.category, -1).astype(jnp.int16),
            "places": jnp.where(self.rules.visible(state), self.rules.receptacle_of(state), -1).astype(jnp.int16),
            **captions(
                state.category,
                state.seen_objects,
                is_seen,
                jnp.where(state.held >= 0, category, -1),
                len(self.object_names),
            ),
        }

    def reset(self, key, params):
        if self.episode >= 0:
            key = jax.random.key(self.episode)
        start = self.start or worldgen.draw(key, params.objects, params.misplaced, self.preferences, self.tables)
        return self.begin(start)

    def begin(self, start: worldgen.Start) -> tuple[dict[str, jax.Array], State]:
        """The first observation and state of an episode with a given start."""
        nothing = jnp.zeros(SLOTS, bool)
        state = State(
            cell=jnp.asarray(start.cell, jnp.int32),
            heading=jnp.asarray(start.heading, jnp.int32),
            pitch=jnp.int32(LOW),
            category=jnp.asarray(start.category, jnp.int16),
            spot=jnp.asarray(start.spot, jnp.int16),
            held=jnp.int32(-1),
            misplaced=nothing,
            picked=nothing,
            placed=nothing,
            rewarded=nothing,
            seen_objects=nothing,
            seen_receptacles=jnp.zeros(WORDS, jnp.uint32),
            initial=jnp.int32(0),
            best=jnp.int32(0),
            step_count=jnp.int32(0),
        )
        right = self.rules.in_place(state)
        count = jnp.sum(right, dtype=jnp.int32)
        state = state.replace(misplaced=(state.category >= 0) & ~right, initial=count, best=count)
        state = self.rules.look_around(state)
        return self.observe(state), state

    def step(self, key, state, action, params):
        state, event, reward = self.rules.act(state, jnp.asarray(action, jnp.int32), params)
        state = state.replace(step_count=state.step_count + 1)
        state, done, info = self.rules.measure(state, event, params)
        truncated = state.step_count >= params.max_steps
        return self.observe(state), state, reward, done, truncated, info

    @property
    def captions(self):
        return self.books

    def text(self, obs) -> str:
        """The text of one observation as ELLM's agent reads it, on the host: "objects: ... receptacles: ... you are
        holding: ..."."""
        parts = self.describe(obs)
        return " ".join(f"{head} {parts[name]}".strip() for name, head in HEADS.items())

    @property
    def keys(self):
        return KEYBOARD

    def render(self, state) -> np.ndarray:
        from envs_jax.housekeep.render import render

        return render(self, state)

    def ascii(self, state) -> str:
        from envs_jax.housekeep.render import letters

        return letters(self, state)
