"""Craftax's environments as ours (`from_craftax`, `envs_jax.make("craftax/<name>")`).

Craftax-Classic is a variant of Crafter and not a copy: an episode begins without creatures and has at most 3 zombies,
3 cows and 2 skeletons, all near the player, its noise is another one (little more than half the water, twice the sand),
and plants need 600 steps. A furnace takes 1 stone instead of 4, iron tools take 1 stone more, damage is multiplied by
the number of swords, being hurt asleep counts as waking up, and rewards of achievements of one step add up.

craftax is imported at the first call, not with this module: it loads its textures onto a device. It installs pygame,
whose files overwrite those of pygame-ce, which minigrid installs; both still import.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import spaces
from envs_jax.bridges.arrays import narrow
from envs_jax.checks import at_least, nearest
from envs_jax.env import Environment
from envs_jax.extras import require


NAMES = [f"Craftax-{prefix}{kind}-v1" for prefix in ("Classic-", "") for kind in ("Symbolic", "Pixels")]
"""Craftax's environments; it has no registry of its own."""
TILE = 16
"""Pixels per side of a cell of a picture, the size of craftax's textures."""


def _craftax(module: str) -> Any:
    """A module of the package. **Raises:** `ModuleNotFoundError` if craftax, or a dependency, is not installed."""
    require("the bridge to craftax", "craftax", "craftax")
    return require("the bridge to craftax", "craftax", f"craftax.{module}")


class FromCraftax(Environment):
    """A Craftax environment under our interface: its `step_env`, without its automatic reset.

    Observation: float32 in [0, 1], a vector ("Symbolic") or a picture `[H, W, 3]` ("Pixels"). Terminated by death, or
    in the full game by victory; truncated after `params.max_timesteps`. Craftax reports both as one `done`.

    `info["achievements"]`: int32, 1 for those unlocked in this episode, in the order of `achievement_names`. (Craftax
    itself reports them in percent, and only when an episode ends.)
    """

    def __init__(self, env: Any, max_steps: int | None = None):
        """**Arguments:** `env`, one of craftax's `...NoAutoReset` environments; `max_steps`, `max_timesteps` of the
        default parameters, None for craftax's own (10,000, or 100,000 for the full game).

        **Raises:** `TypeError` for an environment that resets by itself; `ValueError` for a `max_steps` below 1."""
        name = type(env).__name__
        if not name.endswith("NoAutoReset"):
            raise TypeError(
                f"craftax's {name} cannot be bridged, since it resets by itself: hand over the one whose name ends in "
                "NoAutoReset. envs_jax.VectorEnv resets, by a policy that you name"
            )
        if max_steps is not None:
            at_least("max_steps", max_steps, 1)
        self.env, self.max_steps = env, max_steps
        self.id = "craftax/" + env.name.replace("-NoAutoReset", "")
        self._game = "craftax_classic" if "Classic" in name else "craftax"
        constants = _craftax(f"{self._game}.constants")
        achievements = {a.name.lower(): a.value for a in constants.Achievement}
        self.achievement_names = tuple(sorted(achievements))
        """Names in alphabetical order, which is that of Crafter."""
        self._order = np.array([achievements[name] for name in self.achievement_names])
        self._actions = tuple(action.name.lower() for action in constants.Action)

    @property
    def default_params(self):
        params = self.env.default_params
        return params if self.max_steps is None else params.replace(max_timesteps=self.max_steps)

    def reset(self, key, params):
        with jax.enable_x64(False):  # craftax mixes types that differ in width otherwise
            return narrow(self.env.reset_env(key, narrow(params)))

    def step(self, key, state, action, params):
        with jax.enable_x64(False):
            params = narrow(params)
            obs, after, reward, _, _ = self.env.step_env(key, state, narrow(action), params)
            terminated = self.env.is_terminal(after, params.replace(max_timesteps=np.iinfo(np.int32).max))
            truncated = after.timestep >= params.max_timesteps
            achievements = jnp.asarray(after.achievements)[self._order].astype(jnp.int32)
            obs, after, reward, terminated, truncated = narrow((obs, after, reward, terminated, truncated))
        reward = reward.astype(jnp.float32)
        return obs, after, reward, terminated.astype(bool), truncated.astype(bool), {"achievements": achievements}

    def observation_space(self, params):
        box = self.env.observation_space(params)
        return spaces.Box(box.low, box.high, tuple(box.shape), np.dtype(box.dtype))

    def action_space(self, params):
        return spaces.Discrete(len(self._actions))

    @property
    def action_names(self):
        return self._actions

    @functools.cached_property
    def _renderer(self) -> Any:
        return jax.jit(_craftax(f"{self._game}.renderer").make_craftax_pixel_renderer(TILE))

    def render(self, state):
        """A picture with craftax's textures: uint8 `[H, W, 3]`, of 16 pixels per cell."""
        return np.asarray(self._renderer(state)).clip(0, 255).astype(np.uint8)


def from_craftax(name: str, *, max_steps: int | None = None) -> tuple[FromCraftax, Any]:
    """A Craftax environment as ours.

    **Arguments:** `name`, one of `NAMES`; `max_steps`, until truncation, None for craftax's own.
    **Returns:** `(env, params)`, as `envs_jax.make` does; `params` are craftax's `EnvParams`.
    **Raises:** `KeyError` for an unknown name; `ModuleNotFoundError` without craftax.
    """
    env = world(name, max_steps)
    return env, env.default_params


def world(name: str, max_steps: int | None = None) -> FromCraftax:
    """The environment of `envs_jax.make("craftax/<name>?max_steps=<value>")`; see `from_craftax`."""
    make = _craftax("craftax_env").make_craftax_env_from_name
    if name not in NAMES:
        raise KeyError(f"craftax has no environment {name!r}{nearest(name, NAMES)} (it has {', '.join(NAMES)})")
    return FromCraftax(make(name, auto_reset=False), max_steps)
