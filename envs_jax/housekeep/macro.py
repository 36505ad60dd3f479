"""The second tier of Housekeep: whole trips as single actions.

An action is to go to a receptacle, to pick an object of the receptacle that the agent stands at, or to place the object
in hand there. The clock advances by the low-level steps that the shortest way takes, grab or release included.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import spaces
from envs_jax.actions import MASK, mask_space
from envs_jax.housekeep.apartment import NAMES
from envs_jax.housekeep.constants import SLOTS
from envs_jax.housekeep.env import Housekeep
from envs_jax.housekeep.routes import routes
from envs_jax.housekeep.state import State
from envs_jax.housekeep.step import Rules, look


class MacroRules(Rules):
    """The rules, by which the agent sees whatever lies on the receptacle that it stands at."""

    def visible(self, state):
        receptacle, _ = self.aim(state)
        return super().visible(state) | (receptacle >= 0) & (self.receptacle_of(state) == receptacle)


class MacroHousekeep(Housekeep):
    """Housekeep by macro actions: `R` times "go to" a receptacle, `SLOTS` times "pick object", and "place".

    The agent stands at the receptacle that its crosshair hits. The observation also has `action_mask`: every receptacle
    can be gone to, except the one where the agent stands; an object that lies there can be picked with an empty hand;
    something in hand can be placed there if a spot is free. What is not offered fails like a grab and takes one step.
    The environment is seen where a trip ends, not on the way, and all objects of the receptacle there. `info["steps"]`:
    the steps that the action took. An action that would take more steps than are left has no effect but to end the
    episode.
    """

    kind_of_rules = MacroRules

    go_action, pick_action, place_action = 0, len(NAMES), len(NAMES) + SLOTS

    @property
    def action_names(self):
        return (*(f"go to the {name}" for name in NAMES), *(f"pick object {i}" for i in range(SLOTS)), "place")

    @property
    def keys(self):
        return {"space": self.place_action}

    def observation_space(self, params):
        parts = super().observation_space(params).spaces
        return spaces.Dict({**parts, MASK: mask_space(len(self.action_names))})

    def _offered(self, state: State) -> jax.Array:
        """bool `[A]`, the action mask."""
        receptacle, _ = self.rules.aim(state)
        number = np.arange(len(NAMES))
        lies = self.rules.receptacle_of(state)
        can_pick = (lies == receptacle) & (receptacle >= 0) & (state.held < 0)
        can_place = (state.held >= 0) & jnp.any(self._free(state, receptacle))
        return jnp.concatenate([number != receptacle, can_pick, can_place[None]])

    def _free(self, state: State, receptacle: jax.Array) -> jax.Array:
        """The free spots of a receptacle: bool `[S]`."""
        number = np.arange(len(self.tables.spots))
        return (self.tables.spots.receptacle == receptacle) & ~jnp.any(state.spot[:, None] == number, axis=0)

    def observe(self, state):
        return {**super().observe(state), MASK: self._offered(state)}

    def step(self, key, state, action, params):
        action, paths = jnp.asarray(action, jnp.int32), routes()
        offered = jnp.take(self._offered(state), action, mode="clip")
        pose = self.rules.pose(state)
        look_from = pose * 3 + state.pitch
        receptacle, _ = self.rules.aim(state)
        is_go, is_place = action < self.pick_action, action == self.place_action

        nearest = look(paths.nearest.reshape(-1), look_from * len(NAMES) + action).astype(jnp.int32)
        of_object = jnp.take(state.spot, action - self.pick_action, mode="clip").astype(jnp.int32)
        costs = jnp.take(paths.steps, pose, axis=0, mode="clip").astype(jnp.int32) + jnp.abs(state.pitch - paths.band)
        free = jnp.where(self._free(state, receptacle), costs[: len(self.tables.spots)], np.int32(1 << 14))
        target = jnp.where(is_go, nearest, jnp.where(is_place, jnp.argmin(free), of_object))
        target = jnp.maximum(target, 0).astype(jnp.int32)
        cost = jnp.take(costs, target, mode="clip") + ~is_go
        cost = jnp.where(offered, jnp.maximum(cost, 1), 1).astype(jnp.int32)

        left = params.max_steps - state.step_count
        late, cost = cost > left, jnp.minimum(cost, left)
        travels = offered & ~late
        end = look(paths.end.reshape(-1), pose * len(paths.band) + target).astype(jnp.int32)
        band = look(paths.band, target).astype(jnp.int32)
        state = state.replace(
            cell=jnp.where(travels, end // 4, state.cell),
            heading=jnp.where(travels, end % 4, state.heading),
            pitch=jnp.where(travels, band, state.pitch),
            step_count=state.step_count + cost,
        )
        # an action that is not offered is a grab that fails, whatever the crosshair hits
        state, event, reward = self.rules.grab(state, travels & ~is_go, params)
        refused = ~offered & ~late
        fail = jnp.where(params.clip_reward, jnp.clip(params.fail_reward, -1.0, 1.0), params.fail_reward)
        reward = jnp.where(refused, fail, reward).astype(jnp.float32)
        event = event.replace(failed=event.failed | refused)
        state, done, info = self.rules.measure(state, event, params)
        truncated = state.step_count >= params.max_steps
        return self.observe(state), state, reward, done, truncated, {**info, "steps": cost}
