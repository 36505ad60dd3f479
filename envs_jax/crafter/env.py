"""Crafter as an `Environment`: the rules of crafter 1.8.3, and the variants of ELLM and SmartPlay."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import spaces
from envs_jax.batching import batched_as_single
from envs_jax.checks import at_least, nearest
from envs_jax.crafter import constants as c, creatures, player, render, tasks
from envs_jax.crafter.actions import action_set
from envs_jax.crafter.balance import MAX_SLOTS, balance, daylight_at
from envs_jax.crafter.chunks import cell_index, recounted
from envs_jax.crafter.letters import KEYS, letters
from envs_jax.crafter.state import Params, State
from envs_jax.crafter.text import ellm, smartplay
from envs_jax.crafter.text.instances import INSTANCES, Instances
from envs_jax.crafter.tiles import GRID, tiles
from envs_jax.crafter.view import look
from envs_jax.crafter.wishes import NEAR_SLOTS, WORDS
from envs_jax.crafter.worldgen import START, generate
from envs_jax.env import Environment, Stack, traced


IMAGES = ("none", "rgb", "gray")
TEXTS = ("none", "ellm", "smartplay", "instances")
MARGIN = creatures.ARROWS + 1
"""Objects that one step can create before the next balance closes gaps: arrows, and a plant."""
NIGHT = 0x9167
"""Folded into a step's key for the noise of an image at night."""


_take_turns = batched_as_single(creatures.take_turns)
_balance_row = batched_as_single(functools.partial(balance, margin=MARGIN))


def _one_of(name: str, value: str, options: tuple[str, ...]) -> None:
    if value not in options:
        raise ValueError(f"{name} is {value!r}{nearest(value, list(options))}; it is one of {', '.join(options)}")


class Crafter(Environment[State, Params]):
    """A world of 64 x 64 cells to survive and craft in, with 22 achievements.

    The observation is a dict with `inventory` int32 `[16]` (`constants.ITEMS`), and what the options ask for:

    * `view`: `view` uint8 `[9, 7, 2]`, the cells around the player (see `look`), and `daylight` float32;
    * `image`: `image` uint8 `[64, 64, 3]` for `rgb`, `[pixels, pixels, frames]` for `gray`;
    * `text`: `text` int16, a caption of `ELLM`, `SMARTPLAY` or `INSTANCES`; for `ellm` also `key` uint32, the state as
      far as ELLM's prompt shows it.

    `info`: `achievements` int32 `[22]`, counts in this episode; `unlocked` bool `[22]`, those that this step counted
    for the first time; `eval_success` and `action_success` bool, whether the action had its effect, and ELLM's lenient
    test; `effective_action` int32, `sleep` for who is asleep; `task_done` bool; `lost` int32,
    objects that found no slot so far, 0 for an exact world; with the option `task` also `success` bool, the same as
    `task_done`, by which evaluations count.
    """

    def __init__(
        self,
        *,
        actions: int = 17,
        view: bool = False,
        image: str | None = "rgb",
        frames: int = 1,
        pixels: int = render.GRAY,
        textures: str = "own",
        text: str | None = None,
        slots: int = 128,
        task: str = "",
        length: int = 0,
        variant: Mapping[str, Any] | None = None,
    ):
        """**Arguments:** `actions`, 17 (the package's), 20 (SmartPlay's), 139 or 27 (ELLM's); `view`, `image`, `text`,
        parts of the observation, see above; `frames`, gray images that are stacked, the newest last; `pixels` per
        side of a gray image: 84, resized from 64 as ELLM's, or a multiple of 9, drawn at that size; `textures`, `own`
        or `crafter` (the installed package's); `slots`, of objects: 96 are enough for episodes of 400 steps, 128 for
        10,000; `task`, the only thing that is rewarded (`TASKS`), empty for all achievements; the episode ends with it;
        `length`, steps of an episode, 0 for the variant's; `variant`, values of `Params` that the package has not.

        **Raises:** `ValueError` or `KeyError` for options that do not exist, `TypeError` for a wrong `variant`."""
        image, text = image or "none", text or "none"
        _one_of("image", image, IMAGES)
        _one_of("text", text, TEXTS)
        at_least("frames", frames, 1)
        at_least("length", length, 0)
        at_least("slots", slots, 64, remedy="a new world has up to 76 objects")
        if slots > MAX_SLOTS:
            raise ValueError(f"slots is {slots}; at most {MAX_SLOTS} are possible")
        if frames > 1 and image != "gray":
            raise ValueError(f"frames is {frames}, but only pictures of image='gray' are stacked, not {image!r}")
        if pixels != render.GRAY and image != "gray":
            raise ValueError(f"pixels is {pixels}, but only pictures of image='gray' have another size, not {image!r}")
        if pixels != render.GRAY and (pixels < 2 * GRID or pixels % GRID):
            raise ValueError(f"pixels is {pixels}; {render.GRAY} or a multiple of {GRID} from {2 * GRID} on is needed")
        self.actions, self.slots, self.task = action_set(actions), slots, task
        self._view, self._image, self._frames, self._text = view, image, frames, text
        self._pixels = pixels
        size = 64 if pixels == render.GRAY else pixels
        self._tiles = tiles(textures, size) if image != "none" else None
        self._textures = textures
        self._instances = Instances()
        options, names = dict(variant or {}), list(Params.__dataclass_fields__)
        for name in options:
            if name not in names:
                raise TypeError(f"variant has no number {name!r}{nearest(name, names)} (it takes {', '.join(names)})")
        if length:
            options["length"] = length
        if task:
            options |= {"task": tasks.task_index(task), "end_on_success": True, "health_reward": 0.0}
        self._defaults = options

    @property
    def default_params(self) -> Params:
        fields = {name: field.default for name, field in Params.__dataclass_fields__.items()}
        kinds = {int: jnp.int32, float: jnp.float32, bool: jnp.bool}
        return Params(**{name: kinds[type(x)](self._defaults.get(name, x)) for name, x in fields.items()})

    @property
    def action_names(self) -> tuple[str, ...]:
        return self.actions.names

    def action_space(self, params: Params) -> spaces.Space:
        return spaces.Discrete(len(self.actions.names))

    def observation_space(self, params: Params) -> spaces.Space:
        parts: dict[str, spaces.Space] = {"inventory": spaces.Box(0, c.MAX_COUNT, (len(c.ITEMS),), np.int32)}
        if self._view:
            parts["view"] = spaces.Box(0, len(c.SPRITES), (*c.VIEW, 2), np.uint8)
            parts["daylight"] = spaces.Box(0.0, 1.0, (), np.float32)
        if self._image != "none":
            shape = (64, 64, 3) if self._image == "rgb" else (self._pixels, self._pixels, self._frames)
            parts["image"] = spaces.Box(0, 255, shape, np.uint8)
        if self._text != "none":
            size = {"ellm": ellm.SIZE, "smartplay": smartplay.SIZE, "instances": self._instances.size}[self._text]
            parts["text"] = spaces.Box(-1, len(self.captions["text"]) - 1, (size,), np.int16)
        if self._text == "ellm":
            parts["key"] = spaces.Box(0, 2**32 - 1, (), np.uint32)
        return spaces.Dict(parts)

    @property
    def captions(self):
        books = {"ellm": ellm.ELLM, "smartplay": smartplay.SMARTPLAY, "instances": INSTANCES}
        return {} if self._text == "none" else {"text": books[self._text]}

    @property
    def stacked(self):
        return {"image": Stack(self._frames, "first")} if self._image == "gray" else {}

    def reset(self, key, params):
        world_key, begin_key = jax.random.split(key)
        world = generate(world_key, self.slots)
        zero = jnp.int32(0)
        state = State(
            material=world.material,
            slots=world.slots,
            used=world.used,
            position=jnp.array(START, jnp.int32),
            facing=jnp.int32(c.DOWN - c.LEFT),
            inventory=jnp.array([c.MAX_COUNT] * c.VITALS + [0] * (len(c.ITEMS) - c.VITALS), jnp.int32),
            achievements=jnp.zeros(len(c.ACHIEVEMENTS), jnp.int32),
            **dict.fromkeys(("hunger", "thirst", "fatigue", "recover", "step", "progress"), zero),
            sleeping=jnp.bool(False),
            last_health=jnp.int32(c.MAX_COUNT),
            touched=world.touched,
            room=world.room,
            lost=world.lost,
        )
        return self.resume_from(state, params, begin_key)

    def resume_from(self, state: State, params: Params, key: jax.Array | None = None) -> tuple[Any, State]:
        """The observation and the state of an episode that begins, or goes on, at `state`; `key`, of an image's noise
        at night."""
        if self._image == "gray":
            state = state.replace(frames=jnp.zeros((self._pixels, self._pixels, self._frames), jnp.uint8))
        obs, state = self._observe(state, jax.random.key(0) if key is None else key)
        if self._image == "gray":  # the first image fills the stack
            image = jnp.broadcast_to(obs["image"][..., -1:], obs["image"].shape)
            obs, state = {**obs, "image": image}, state.replace(frames=image)
        return obs, state

    def _observe(self, state: State, key: jax.Array) -> tuple[dict[str, jax.Array], State]:
        """The observation of a state, and the state with its images."""
        obs: dict[str, jax.Array] = {"inventory": state.inventory}
        view, daylight = look(state), daylight_at(state.step)
        if self._view:
            obs |= {"view": view, "daylight": daylight}
        if self._tiles is not None:
            scene = (view, state.inventory, daylight, state.sleeping, key, self._tiles)
            image = render.draw(*scene) if self._image == "rgb" else render.gray(*scene, self._pixels)
            if self._image == "gray":
                image = jnp.concatenate([state.frames[..., 1:], image[..., None]], axis=-1)
                state = state.replace(frames=image)
            obs["image"] = image
        if self._text == "ellm":
            facts = ellm.facts(view, state.inventory, state.facing)
            obs |= {"text": ellm.caption(facts), "key": ellm.prompt_key(facts)}
        elif self._text != "none":
            caption = smartplay.caption if self._text == "smartplay" else self._instances.caption
            obs["text"] = caption(view, state.inventory, state.facing, state.sleeping)
        return obs, state

    def render(self, state: State) -> np.ndarray:
        if np.ndim(state.step):
            raise ValueError(f"a state of one world is needed, not of {np.shape(state.step)} worlds")
        view, light = look(state), float(daylight_at(state.step))
        return render.picture(view, state.inventory, light, bool(state.sleeping), textures=self._textures)

    def ascii(self, state: State) -> str:
        return letters(np.asarray(look(state)), np.asarray(state.inventory))

    def event_text(self, info):
        names = [name.replace("_", " ") for name, new in zip(c.ACHIEVEMENTS, np.asarray(info["unlocked"])) if new]
        return f"new achievement: {', '.join(names)}" if names else ""

    @property
    def keys(self):
        return {key: self.actions.names.index(name) for key, name in KEYS.items() if name in self.actions.names}

    def _check_task(self, task: Any) -> None:
        """Check a task of known value. **Raises:** `ValueError` for a number that is no task, or a task that is not
        followed."""
        if traced(task):
            return
        numbers = np.asarray(task)  # NumPy, as a program may be traced around a constant
        low, high = int(numbers.min()), int(numbers.max())
        if low < -1 or high >= len(tasks.TASKS):
            raise ValueError(
                f"params.task is {low if low < -1 else high}; from -1 (none) to {len(tasks.TASKS) - 1} is needed, see "
                "envs_jax.crafter.tasks.task_index"
            )
        if high >= 0 and not self.task:
            name = tasks.TASKS[high].name
            raise ValueError(
                f"params.task is {high} ({name!r}), but this world was made without a task and follows none: make it "
                f"with one, as in '{self.id or 'CrafterText-v1'}?task={name}'; params.task may then be any"
            )

    def step(self, key, state, action, params):
        self._check_task(params.task)
        before = state
        state = state.replace(step=state.step + 1)
        turn_key, creature_key, balance_key = jax.random.split(key, 3)
        table = self.actions
        command = jnp.asarray(table.command)[action]
        turn = player.take_turn(
            state,
            command,
            jnp.asarray(table.materials)[action],
            jnp.asarray(table.kinds)[action],
            jax.random.uniform(turn_key, dtype=jnp.float32),
            params,
        )
        new_state = turn.state
        new_state = self._creatures(creature_key, new_state, new_state.used > before.used)
        new_state = self._balanced(balance_key, new_state)

        fresh = (new_state.achievements > 0) & (before.achievements == 0)
        events_reward = jnp.any(fresh) * params.unlock_reward
        health = new_state.inventory[c.HEALTH] - before.inventory[c.HEALTH]
        reward = events_reward + health * params.health_reward
        done = jnp.bool(False)
        if self.task:
            counted = turn.state.achievements > before.achievements
            events = tasks.events_of(
                counted,
                turn.success & (turn.command == c.SLEEP),
                turn.state.inventory,
                turn.target,
                turn.state.material,
                turn.state.slots,
            )
            progress, done, task_reward = tasks.advance(params.task, before.progress, events)
            new_state = new_state.replace(progress=progress)
            reward = jnp.where(params.task >= 0, task_reward, reward)
        else:  # which no one follows here: a loss without a value stops a run, a reward of nothing would not
            reward = jnp.where(params.task >= 0, jnp.nan, reward)
        terminated = (new_state.inventory[c.HEALTH] <= 0) & params.dying | (done & params.end_on_success)
        truncated = new_state.step >= params.length
        asleep = turn.command == c.SLEEP
        sleep = np.flatnonzero(table.command == c.SLEEP)[0]
        info = {
            "achievements": new_state.achievements,
            "unlocked": fresh,
            "eval_success": turn.success,
            "action_success": turn.success | self._lenient(action, turn, before),
            "effective_action": jnp.where(asleep, sleep, action).astype(jnp.int32),
            "task_done": done,
            "lost": new_state.lost,
        }
        if self.task:
            info["success"] = done
        obs, new_state = self._observe(new_state, jax.random.fold_in(turn_key, NIGHT))
        return obs, new_state, jnp.float32(reward), terminated, truncated, info

    def _lenient(self, action: jax.Array, turn: player.Turn, before: State) -> jax.Array:
        """ELLM's lenient test: the action names the material or the object it aimed at, or an item that is held."""
        table = self.actions
        item = jnp.asarray(table.noun_item)[action]
        in_inventory = (item >= 0) & (before.inventory[item] > 0)
        material = jnp.asarray(table.noun_material)[action] == turn.target_material
        kind = jnp.asarray(table.noun_kind)[action] == turn.target_kind
        return (in_inventory | material | kind) & (turn.command != c.SLEEP)

    def _creatures(self, key: jax.Array, state: State, planted: jax.Array) -> State:
        bits = jax.random.bits(key, (WORDS, NEAR_SLOTS), jnp.uint32)
        after = _take_turns(
            bits,
            state.material,
            state.slots,
            state.used,
            planted,
            cell_index(state.position),
            state.sleeping,
            state.touched,
        )
        opens = after.opened >= 0
        cells = jnp.where(opens, after.opened, c.CELLS)
        room = recounted(state.room, after.opened, c.TABLE, c.PATH, opens)
        health = jnp.maximum(state.inventory[c.HEALTH] - after.damage, 0)
        return state.replace(
            material=state.material.at[cells].set(jnp.uint8(c.PATH), mode="drop"),
            slots=after.slots,
            used=after.used,
            touched=after.touched,
            room=room,
            inventory=state.inventory.at[c.HEALTH].set(health),
            lost=state.lost + after.lost,
        )

    def _balanced(self, key: jax.Array, state: State) -> State:
        after = _balance_row(
            key,
            state.step % c.BALANCE_EVERY == 0,
            state.material,
            state.slots,
            state.used,
            state.touched,
            state.room,
            cell_index(state.position),
            daylight_at(state.step),
        )
        return state.replace(slots=after.slots, used=after.used, lost=state.lost + after.lost)
