"""The mask of useful actions, which `actions="useful"` adds to observations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from envs_jax.babyai.constants import ACTIONS, DONE
from envs_jax.babyai.state import State
from envs_jax.babyai.step import act


def useful_actions(state: State, done_actions: bool = False) -> Bool[Array, " A"]:
    """The actions that change the agent or the grid: not a step into a wall, a pick-up of nothing or with full hands,
    a drop of nothing or onto something, or a toggle of something that does not open.

    Each action is tried, so the mask always agrees with the dynamics. Turning is always useful.

    **Arguments:** `state`; `done_actions`, whether the environment uses `done`, which is not useful otherwise.
    **Returns:** bool `[A]`, over `constants.ACTIONS`.
    """
    tried = np.arange(len(ACTIONS))
    after = jax.vmap(lambda action: act(state, action)[0])(tried)
    changed = jnp.asarray((tried == DONE) & done_actions)
    for name in ("grid", "carrying", "position", "direction"):
        old, new = getattr(state, name), getattr(after, name)
        changed |= jnp.any((new != old).reshape(len(ACTIONS), -1), axis=1)
    return changed
