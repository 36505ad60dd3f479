"""Random play in our Crafter, beside the record of the package's (`record_crafter_play.py`) and ELLM's published floor.

`nice python -m tests.parity.crafter_play` plays 1,024 worlds and writes docs/environments/crafter-parity.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from envs_jax.crafter import constants as c
from envs_jax.crafter.actions import ActionSet, action_set, valid
from envs_jax.crafter.env import Crafter
from envs_jax.crafter.state import State, cell_of, distance, kind_of
from tests.parity.record_crafter_play import DATA, EVERY, STEPS, densities, summary


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "environments" / "crafter-parity.json"
RECORD = json.loads(DATA.read_text())
FLOOR = {
    "139 actions": {"count": 40, "unique achievements": (0.73, 0.87), "length": 162},
    "29 valid actions": {"count": 25, "unique achievements": (2.32, 1.38), "length": 169},
}
"""Random play in ELLM's published code: episodes, achievements (mean, deviation), mean length."""


def both_sets() -> ActionSet:
    """ELLM's 139 actions and then the package's 17, so that one program plays both variants."""
    ellm, package = action_set(139), action_set(17)
    fields = [field for field in ActionSet.__dataclass_fields__ if field != "names"]
    arrays = {field: np.concatenate([getattr(ellm, field), getattr(package, field)]) for field in fields}
    return ActionSet(ellm.names + package.names, **arrays)


ENV = Crafter(image=None)
ENV.actions = both_sets()
PACKAGE, ELLM = (envs_jax.make(id)[1] for id in ("CrafterReward-v1", "CrafterText-v1"))


@jax.jit
@jax.vmap
def reset(key: jax.Array) -> State:
    return ENV.reset(key, PACKAGE)[1]


@jax.jit
@jax.vmap
def step(key: jax.Array, state: State, action: jax.Array, params: Any) -> tuple[State, dict[str, jax.Array]]:
    """A step of every row, and what is counted of it."""
    _, state, reward, terminated, truncated, info = ENV.step(key, state, action, params)
    kind = kind_of(state.slots)
    near = distance(cell_of(state.slots), state.position[0] * c.AREA + state.position[1]) < c.ACTIVE_DISTANCE
    kinds = jnp.array([c.ZOMBIE, c.SKELETON, c.COW, c.ARROW])
    counts = jnp.sum(kind == kinds[:, None], axis=1), jnp.sum((kind == kinds[:, None]) & near, axis=1)
    seen = {"reward": reward, "over": terminated | truncated, "unlocked": state.achievements > 0, "lost": state.lost}
    return state, seen | {"objects": jnp.stack(counts), "success": info["eval_success"]}


def play(rows: int, steps: int, seed: int = 0) -> dict[str, Any]:
    """Play `rows` worlds at random for `steps`: half of them with the package's 17 actions, a quarter with ELLM's 139
    and a quarter with the 29 of these that are valid. The law of the worlds is the package's in all of them.

    **Returns:** by group, `count`, and for every episode `length`, `return`, `unlocked` bool `[22]`, those that outlive
    `steps` cut off there; and `objects`, int `[STEPS / EVERY, rows / 2, 2, 4]`, of the package's group, which goes on
    after death as the record does."""
    rng = np.random.default_rng(seed)
    half, quarter = rows // 2, rows // 4
    groups = {"17 actions": slice(0, half), "139 actions": slice(half, half + quarter)}
    groups["29 valid actions"] = slice(half + quarter, rows)
    choices = [139 + np.arange(17), np.arange(139), np.flatnonzero(valid(action_set(139)))]
    actions = [rng.choice(choice, (steps, where.stop - where.start)) for choice, where in zip(choices, groups.values())]
    actions = np.concatenate(actions, axis=1).astype(np.int32)
    params = jax.tree.map(lambda a, b: np.where(np.arange(rows) < half, a, b), PACKAGE, ELLM)
    state = reset(jax.random.split(jax.random.key(seed), rows))
    keys = jax.vmap(lambda key: jax.random.split(key, rows))(jax.random.split(jax.random.key(seed + 1), steps))
    alive, length, total = np.ones(rows, bool), np.zeros(rows, int), np.zeros(rows)
    unlocked, objects, lost = np.zeros((rows, len(c.ACHIEVEMENTS)), bool), [], 0
    for t in range(steps):
        state, seen = step(keys[t], state, actions[t], params)
        seen = jax.device_get(seen)
        length += alive
        total += alive * seen["reward"]
        unlocked = np.where(alive[:, None], seen["unlocked"], unlocked)
        alive &= ~seen["over"]
        lost = max(lost, int(seen["lost"].max()))
        if t < STEPS and (t + 1) % EVERY == 0:
            objects.append(seen["objects"][:half])
        if t + 1 >= STEPS and not alive.any():
            break
    assert lost == 0, f"{lost} objects found no slot"
    found: dict[str, Any] = {
        name: {"length": length[where], "return": total[where], "unlocked": unlocked[where]}
        for name, where in groups.items()
    }
    return found | {"objects": np.array(objects)}


def main() -> None:
    """Write the comparison."""
    found = play(1024, 600)
    value: dict[str, Any] = {
        "made by": "python -m tests.parity.crafter_play",
        "package": RECORD["episodes"],
        "ours": {},
    }
    for name in ("17 actions", "139 actions", "29 valid actions"):
        group = found[name]
        unique = group["unlocked"].sum(1)
        value["ours"][name] = {
            "count": len(unique),
            "length": summary(group["length"]),
            "return": summary(group["return"]),
            "unique achievements": summary(unique),
            "unlocked in": dict(zip(c.ACHIEVEMENTS, group["unlocked"].sum(0).tolist())),
        }
    value["ELLM's published code"] = FLOOR
    value["objects per world, mean and standard error"] = {
        "package": RECORD["long runs"]["by day and night"],
        "ours": densities(found["objects"]),
    }
    PAGE.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main()
