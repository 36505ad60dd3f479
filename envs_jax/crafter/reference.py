"""Taking over a live environment of the package crafter."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from envs_jax.crafter import constants as c
from envs_jax.crafter.state import COUNTER_BIT, HEALTH_BIT, KIND_BIT, Params, State


def _word(obj: Any, cell: int) -> int:
    kind = c.KINDS.index(type(obj).__name__.lower()) + 1
    counter = {
        c.ZOMBIE: lambda: obj.cooldown,
        c.SKELETON: lambda: obj.reload,
        c.COW: lambda: 0,
        c.ARROW: lambda: c.DIRECTIONS.index(tuple(int(x) for x in obj.facing)),
        c.PLANT: lambda: obj.grown,
    }[kind]()
    return cell | kind << KIND_BIT | int(obj.health) << HEALTH_BIT | int(counter) << COUNTER_BIT


def room_of(material: np.ndarray) -> np.ndarray:
    """Cells of grass per chunk, then of path: uint8 `[72]`, from a map `[64, 64]`, on the host."""
    edges = np.arange(0, c.AREA, c.CHUNK)
    counts = [np.add.reduceat(np.add.reduceat(material == m, edges, 0), edges, 1) for m in (c.GRASS, c.PATH)]
    return np.stack(counts).reshape(-1).astype(np.uint8)


def import_state(crafter_env: Any, env: Any, params: Params) -> tuple[Any, State]:
    """The pair that `reset` would return, for the point that a `crafter.Env` has reached.

    **Arguments:** `crafter_env`, after its `reset`; `env`, one of our Crafter environments; `params`.
    **Raises:** `ValueError` if the world has another size than ours, or holds more objects than `env` has slots.
    """
    crafter_env = getattr(crafter_env, "unwrapped", crafter_env)
    world, player = crafter_env._world, crafter_env._player
    if tuple(world.area) != (c.AREA, c.AREA):
        raise ValueError(f"the world is {tuple(world.area)}; {(c.AREA, c.AREA)} is needed")
    base = env.unwrapped
    objects = [obj for obj in world.objects if obj is not player]
    if len(objects) > base.slots:
        raise ValueError(f"the world holds {len(objects)} objects, but there are {base.slots} slots: raise slots")
    words = [_word(obj, int(obj.pos[0]) * c.AREA + int(obj.pos[1])) for obj in objects]
    touched = [0, 0]
    for left, _, top, _ in world.chunks:
        chunk = left // c.CHUNK * c.CHUNKS + top // c.CHUNK
        touched[chunk // 32] |= 1 << chunk % 32
    material = np.asarray(world._mat_map, np.uint8)
    state = State(
        material=jnp.asarray(material.reshape(-1)),
        slots=jnp.asarray(words + [0] * (base.slots - len(words)), jnp.uint32),
        used=jnp.int32(len(words)),
        position=jnp.asarray(player.pos, jnp.int32),
        facing=jnp.int32(c.DIRECTIONS.index(tuple(int(x) for x in player.facing))),
        inventory=jnp.asarray([player.inventory[name] for name in c.ITEMS], jnp.int32),
        achievements=jnp.asarray([player.achievements[name] for name in c.ACHIEVEMENTS], jnp.int32),
        hunger=jnp.int32(2 * player._hunger),
        thirst=jnp.int32(2 * player._thirst),
        fatigue=jnp.int32(player._fatigue),
        recover=jnp.int32(2 * player._recover),
        sleeping=jnp.bool(player.sleeping),
        last_health=jnp.int32(player._last_health),
        touched=jnp.asarray(touched, jnp.uint32),
        room=jnp.asarray(room_of(material)),
        step=jnp.int32(crafter_env._step),
        progress=jnp.int32(0),
        lost=jnp.int32(0),
    )
    return base.resume_from(state, params)
