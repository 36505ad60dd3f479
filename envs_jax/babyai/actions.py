"""Which actions change anything: the mask that `actions="useful"` puts into observations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from envs_jax.babyai.constants import ACTIONS, DONE
from envs_jax.babyai.state import State
from envs_jax.babyai.step import act


def useful_actions(state: State, done_actions: bool = False) -> Bool[Array, " A"]:
    """The actions after which the agent or the world differs from before: no step into a wall, no pick up of nothing
    or with full hands, no drop of nothing or onto something, no toggle of what does not open.

    Found by trying each, so that it is true of the dynamics whatever they are. Turning is always useful.

    **Arguments:** `state`; `done_actions`, whether the world uses `done`, which is useful only there.
    **Returns:** bool `[A]`, over `constants.ACTIONS`.
    """
    tried = np.arange(len(ACTIONS))
    after = jax.vmap(lambda action: act(state, action)[0])(tried)
    changed = jnp.asarray((tried == DONE) & done_actions)
    for name in ("grid", "carrying", "position", "direction"):
        was, now = getattr(state, name), getattr(after, name)
        changed |= jnp.any((now != was).reshape(len(ACTIONS), -1), axis=1)
    return changed
