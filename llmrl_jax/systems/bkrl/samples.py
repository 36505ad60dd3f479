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
    """Progress in the last steps: ground covered, steps towards an object, an object reached; no idle actions."""
    frames = jnp.concatenate([past_obs["image"], obs["image"].reshape(1, 7, 7, 3)])[:, :, :, 0]
    is_object = (frames >= 5) & (frames <= 7)
    x = jnp.arange(7).reshape(7, 1)
    y = jnp.arange(7).reshape(1, 7)
    steps = jnp.abs(x - 3) + (6 - y)
    nearest = jnp.min(jnp.where(is_object, steps, 14), axis=(1, 2))
    ahead = frames[:, 3, 5]
    at_object = (ahead >= 5) & (ahead <= 7)
    went = (past_actions == 2) & ((ahead[:-1] == 1) | (ahead[:-1] == 3))

    turns = jnp.where(past_actions == 1, 1, jnp.where(past_actions == 0, -1, 0))
    heading = (jnp.cumsum(turns) - turns) % 4
    north = jnp.sum(jnp.where(went, (heading == 0).astype(jnp.float32) - (heading == 2), 0.0))
    east = jnp.sum(jnp.where(went, (heading == 1).astype(jnp.float32) - (heading == 3), 0.0))
    covered = (jnp.abs(north) + jnp.abs(east)) / past_actions.shape[0]

    fresh = went & (jnp.cumsum(at_object[:-1]) == 0)
    towards = jnp.sum((fresh & (nearest[1:] < nearest[:-1])).astype(jnp.float32))
    reached = jnp.sum((fresh & at_object[1:]).astype(jnp.float32))
    idle = jnp.sum((past_actions >= 3).astype(jnp.float32))
    total = 3.0 * covered + 0.8 * towards + 2.0 * reached - 0.3 * idle
    return total, {"covered": covered, "towards": towards, "reached": reached, "idle": idle}
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
