"""Crafter as an `Environment`: the rules of crafter 1.8.3, and the variants of ELLM and SmartPlay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import spaces
from envs_jax.batching import of_one_row
from envs_jax.crafter import constants as c, creatures, player, tasks
from envs_jax.crafter.actions import action_set
from envs_jax.crafter.balance import balance, daylight_at
from envs_jax.crafter.state import Params, State
from envs_jax.crafter.view import look
from envs_jax.env import Environment


MARGIN = creatures.ARROWS + 1
"""Objects that one step can create before the next balance closes gaps: arrows, and a plant."""

_take_turns = of_one_row(creatures.take_turns)


def _balance(*args):
    return balance(*args, margin=MARGIN)


_balance_row = of_one_row(_balance)


class Crafter(Environment[State, Params]):
    """A world of 64 x 64 cells to survive and craft in, with 22 achievements.

    The observation is a dict with `inventory` int32 `[16]` (`constants.ITEMS`) and, as asked for: `image`; `view` uint8
    `[9, 7, 2]` and `daylight` float32 (see `envs_jax.crafter.view`).
    `info`: `achievements` int32 `[22]`, counts in this episode; `unlocked` bool `[22]`, those that this step counted for
    the first time; `eval_success` and `action_success` bool, whether the action had its effect, and ELLM's lenient test
    (ellm reference, 2.3); `effective_action` int32, `sleep` for who is asleep; `task_done` bool; `lost` int32, objects
    that found no slot so far.
    """

    def __init__(
        self,
        *,
        actions: int = 17,
        view: bool = False,
        slots: int = 128,
        task: str = "",
        params: Mapping[str, Any] | None = None,
    ):
        """**Arguments:** `actions`, 17 (the package's), 20 (SmartPlay's), 139 or 27 (ELLM's); `view`, whether the
        observation has the symbolic view; `slots`, of objects: 96 are enough for episodes of 400 steps, 128 for 10,000;
        `task`, the name of the only thing that is rewarded, empty for all achievements; `params`, other defaults of
        `Params` than the package's."""
        self.actions, self.slots, self.task = action_set(actions), slots, task
        self._view = view
        options = dict(params or {})
        if task:
            options |= {"task": tasks.task_index(task), "end_on_success": True, "health_reward": 0.0}
        self._defaults = options

    @property
    def default_params(self) -> Params:
        given = {name: self._defaults.get(name, field.default) for name, field in Params.__dataclass_fields__.items()}
        kinds = {int: jnp.int32, float: jnp.float32, bool: jnp.bool}
        return Params(**{name: kinds[type(Params.__dataclass_fields__[name].default)](x) for name, x in given.items()})

    @property
    def action_names(self) -> tuple[str, ...]:
        return self.actions.names

    def action_space(self, params: Params) -> spaces.Space:
        return spaces.Discrete(len(self.actions.names))

    def begun(self, state: State, params: Params) -> tuple[Any, State]:
        """The observation and the state of an episode that begins, or goes on, at `state`."""
        return self._observe(state), state

    def _observe(self, state: State) -> dict[str, jax.Array]:
        obs: dict[str, jax.Array] = {"inventory": state.inventory}
        if self._view:
            obs |= {"view": look(state), "daylight": daylight_at(state.step)}
        return obs

    def step(self, key, state, action, params):
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
            jax.random.uniform(turn_key),
            params,
        )
        own = turn.state
        own = self._creatures(creature_key, own, own.used > before.used)
        own = self._balanced(balance_key, own)

        fresh = (own.achievements > 0) & (before.achievements == 0)
        events_reward = jnp.any(fresh) * params.unlock_reward
        health = own.inventory[c.HEALTH] - before.inventory[c.HEALTH]
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
            own = own.replace(progress=progress)
            reward = jnp.where(params.task >= 0, task_reward, reward)
        terminated = (own.inventory[c.HEALTH] <= 0) & params.dying | (done & params.end_on_success)
        truncated = own.step >= params.length
        asleep = turn.command == c.SLEEP
        sleep = np.flatnonzero(table.command == c.SLEEP)[0]
        info = {
            "achievements": own.achievements,
            "unlocked": fresh,
            "eval_success": turn.success,
            "action_success": turn.success | self._lenient(action, turn, before),
            "effective_action": jnp.where(asleep, sleep, action).astype(jnp.int32),
            "task_done": done,
            "lost": own.lost,
        }
        return self._observe(own), own, jnp.float32(reward), terminated, truncated, info

    def _lenient(self, action: jax.Array, turn: player.Turn, before: State) -> jax.Array:
        """ELLM's lenient test: the action names the material or the object that it aimed at, or an item that is held."""
        table = self.actions
        item = jnp.asarray(table.noun_item)[action]
        held = (item >= 0) & (turn.state.inventory[item] > 0)
        material = jnp.asarray(table.noun_material)[action] == turn.target_material
        kind = jnp.asarray(table.noun_kind)[action] == turn.target_kind
        return held | material | kind

    def _creatures(self, key: jax.Array, state: State, planted: jax.Array) -> State:
        bits = jax.random.bits(key, (creatures.WORDS, creatures.NEAR_SLOTS))
        after = _take_turns(
            bits,
            state.material,
            state.slots,
            state.used,
            planted,
            player.at(state.position),
            state.sleeping,
            state.touched,
        )
        opens = after.opened >= 0
        cells = jnp.where(opens, after.opened, c.CELLS)
        room = player.recounted(state.room, after.opened, c.TABLE, c.PATH, opens)
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
            player.at(state.position),
            daylight_at(state.step),
        )
        return state.replace(slots=after.slots, used=after.used, lost=state.lost + after.lost)

    def observation_space(self, params: Params) -> spaces.Space:
        parts: dict[str, spaces.Space] = {"inventory": spaces.Box(0, c.MOST, (len(c.ITEMS),), np.int32)}
        if self._view:
            parts |= {
                "view": spaces.Box(0, len(c.SEEN), (*c.VIEW, 2), np.uint8),
                "daylight": spaces.Box(0.0, 1.0, (), np.float32),
            }
        return spaces.Dict(parts)
