"""Hand-written programs, and the scripted adviser that answers with them: no language model."""

from __future__ import annotations

import random
from collections.abc import Sequence

from llmrl_jax.chat import Message, ScriptedAdviser
from llmrl_jax.systems.bkrl.worlds import World


BABYAI = (
    '''\
def compute_potential(obs, past_obs, past_actions):
    """Objects in view, the nearer the better, and best straight ahead."""
    kind = obs["image"][:, :, 0]
    is_object = (kind >= 5) & (kind <= 7)
    x = jnp.arange(7).reshape(7, 1)
    y = jnp.arange(7).reshape(1, 7)
    steps = jnp.abs(x - 3) + (6 - y)
    nearest = jnp.min(jnp.where(is_object, steps, 14))
    near = 1.0 - nearest / 14.0
    ahead = ((kind[3, 5] >= 5) & (kind[3, 5] <= 7)).astype(jnp.float32)
    return near + ahead, {"near": near, "ahead": ahead}
''',
    '''\
def compute_potential(obs, past_obs, past_actions):
    """Objects that are near or ahead; no wall ahead; going forward, not to and fro."""
    kind = obs["image"][:, :, 0]
    is_object = (kind >= 5) & (kind <= 7)
    x = jnp.arange(7).reshape(7, 1)
    y = jnp.arange(7).reshape(1, 7)
    steps = jnp.abs(x - 3) + (6 - y)
    nearest = jnp.min(jnp.where(is_object, steps, 14))
    near = 1.0 - nearest / 14.0
    ahead = ((kind[3, 5] >= 5) & (kind[3, 5] <= 7)).astype(jnp.float32)
    wall = (kind[3, 5] == 2).astype(jnp.float32)
    changed = jnp.any(obs["image"] != past_obs["image"][-1])
    went = ((past_actions[-1] == 2) & changed).astype(jnp.float32)
    undone = ((past_actions[-1] == 0) & (past_actions[-2] == 1)) | ((past_actions[-1] == 1) & (past_actions[-2] == 0))
    idle = (past_actions[-1] >= 3).astype(jnp.float32) + undone.astype(jnp.float32)
    total = near + ahead + 0.3 * went - 0.3 * wall - 0.3 * idle
    return total, {"near": near, "ahead": ahead, "went": went, "wall": wall, "idle": idle}
''',
    '''\
def compute_potential(obs, past_obs, past_actions):
    """How much of the room is in view, and how many objects."""
    kind = obs["image"][:, :, 0]
    seen = jnp.mean((kind != 0).astype(jnp.float32))
    objects = jnp.sum(((kind >= 5) & (kind <= 7)).astype(jnp.float32))
    return seen + 0.2 * jnp.minimum(objects, 5.0), {"seen": seen, "objects": objects}
''',
)
CRAFTER = (
    '''\
def compute_potential(obs, past_obs, past_actions):
    """Items by what they cost, and health."""
    cost = jnp.array([0, 0, 0, 0, 1, 1, 2, 2, 4, 8, 4, 8, 16, 4, 8, 16], dtype=jnp.float32)
    items = jnp.sum(cost * jnp.minimum(obs["inventory"], 3))
    health = jnp.sum(obs["inventory"][:4]) / 9.0
    return 0.2 * items + health, {"items": items, "health": health}
''',
    '''\
def compute_potential(obs, past_obs, past_actions):
    """Items by what they cost, the lowest of the needs, and effects of actions."""
    cost = jnp.array([0, 0, 0, 0, 1, 1, 2, 2, 4, 8, 4, 8, 16, 4, 8, 16], dtype=jnp.float32)
    items = jnp.sum(cost * jnp.minimum(obs["inventory"], 3))
    need = jnp.min(obs["inventory"][:4]) / 9.0
    gained = jnp.any(obs["inventory"][4:] > past_obs["inventory"][-1][4:]).astype(jnp.float32)
    waited = jnp.mean((past_actions == 0).astype(jnp.float32))
    total = 0.2 * items + need + gained - 0.5 * waited
    return total, {"items": items, "need": need, "gained": gained, "waited": waited}
''',
)
PROGRAMS = {"babyai": BABYAI, "crafter": CRAFTER}


class ScriptedCoder(ScriptedAdviser):
    """Answers with the hand-written programs of a world, one after the other."""

    def __init__(self, world: World):
        """**Arguments:** `world`, whose programs are given."""
        self.programs = PROGRAMS[world.family]

    def advise(self, messages: Sequence[Message], rng: random.Random) -> str:
        program = self.programs[rng.randrange(len(self.programs))]
        return f"This program looks at what the agent sees and does.\n\n```python\n{program}```\n"
