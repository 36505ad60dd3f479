"""Success of experts and of random actions in CLEVR-Robot, Meta-World and Housekeep, and the extremes of play.

    python experiments/control_worlds.py --worlds clevr
    python experiments/control_worlds.py --worlds metaworld
    python experiments/control_worlds.py --worlds housekeep

CLEVR-Robot: success at each level, and the extremes of states over random actions, random actions that repeat, and
actions on one ball. Meta-World: the expert's success in each task with stock and with proxy geometry, success at each
level, and rewards by entity observations beside the world's own. Housekeep: success, steps and returns in random
episodes and in the fixed tasks. `<out>/<world>.json` has the table of a world. `experiments/results/control_worlds` has
those of the defaults, and the pages of the worlds their numbers.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from commands import command

import envs_jax
from envs_jax.env import Environment
from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import write_whole
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.systems.kalm.worlds import LEVELS, STATE, World, world_of


CHUNK = 10
"""Steps between looks at who has succeeded."""
REPEATS = 5
"""Steps for which a random action that repeats is kept."""
Act = Callable[[jax.Array, Any, jax.Array, jax.Array], jax.Array]
"""`(key, state, number, step)`, the action of one episode, `number` of all, at a step."""


@dataclass(frozen=True)
class Experiment:
    """Experts and random actions."""

    worlds: tuple[Literal["clevr", "metaworld", "housekeep"], ...] = ("clevr", "metaworld", "housekeep")
    """The worlds."""
    episodes: int = 512
    """Episodes of each level of CLEVR-Robot, and random ones of Housekeep."""
    starts: int = 100
    """Starts of each task of Meta-World, and half of the episodes of each level."""
    steps: int = 300
    """Steps of an expert in a task of Meta-World, at most."""
    seed: int = 0
    """Seed of everything."""
    out: str = "runs/control_worlds"
    """Folder of the results."""


@dataclass(frozen=True)
class Played:
    """Episodes side by side, with all steps, also those after a success; leaves `[episodes, steps, ...]`."""

    first: np.ndarray
    """The number of the first step with success, from 1; 0: none."""
    obs: Any
    next_obs: Any
    action: np.ndarray
    reward: np.ndarray
    success: np.ndarray


def play(env: Environment, act: Act, episodes: int, steps: int, seed: int, until_solved: bool = True) -> Played:
    """Play episodes. **Arguments:** `until_solved`, whether to stop when all have succeeded."""
    params, numbers = env.default_params, jnp.arange(episodes)
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(numbers)
    obs, state = jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)

    @jax.jit
    def go_on(obs: Any, state: Any, count: jax.Array) -> Any:
        def step(carry: Any, number: jax.Array) -> Any:
            obs, state = carry
            pair = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, 1 + number)))(keys)
            action = jax.vmap(act, (0, 0, 0, None))(pair[:, 0], state, numbers, number)
            after, state, reward, _, _, facts = jax.vmap(env.step, (0, 0, 0, None))(pair[:, 1], state, action, params)
            return (after, state), (obs, after, action, reward, facts["success"])

        return jax.lax.scan(step, (obs, state), count + jnp.arange(CHUNK))

    parts: list[Any] = []
    solved = np.zeros(episodes, bool)
    while len(parts) * CHUNK < steps and not (until_solved and solved.all()):
        (obs, state), part = go_on(obs, state, jnp.int32(len(parts) * CHUNK))
        parts.append(jax.device_get(part))
        solved |= parts[-1][-1].any(0)
    rows = jax.tree.map(lambda *x: np.swapaxes(np.concatenate(x)[:steps], 0, 1), *parts)
    success = rows[-1]
    return Played(np.where(success.any(1), success.argmax(1) + 1, 0), *rows)


def expert_of(world: World, env: Environment) -> Act:
    return lambda key, state, number, step: world.expert(env, state)


def random_of(env: Environment) -> Act:
    space = env.action_space(env.default_params)
    return lambda key, state, number, step: space.sample(key)


def solved(first: np.ndarray, chosen: Any = slice(None)) -> dict[str, Any]:
    """Number of episodes that succeeded, of all, and their mean number of steps."""
    some = first[chosen]
    found = {"solved": int((some > 0).sum()), "of": len(some)}
    return found | ({"steps": round(float(some[some > 0].mean()), 1)} if (some > 0).any() else {})


def ends(played: Played) -> np.ndarray:
    """Steps that belong to an episode, the first success included: bool `[episodes, steps]`."""
    return np.arange(played.success.shape[1]) < np.where(played.first, played.first, played.success.shape[1])[:, None]


# --- CLEVR-Robot ------------------------------------------------------------------------------------------------------


def clevr(x: Experiment) -> dict[str, Any]:
    world = world_of("clevr")
    found: dict[str, Any] = {"levels": {}, "limits": {}}
    for level in ("real", "easy", "hard"):
        env, steps = envs_jax.make(world.ids[level])[0], world.horizon[level]
        for who, act in (("expert", expert_of(world, env)), ("random actions", random_of(env))):
            with doing(f"{level}, {who}"):
                played = play(env, act, x.episodes * (4 if steps == 1 else 1), steps, x.seed)
            found["levels"][f"{level}, {who}"] = solved(played.first)
            if level == "hard":
                goal = played.obs["goal"][:, 0]
                kinds = np.where(goal[:, 0] == 0, (goal[:, 1::3] >= 0).sum(1), -goal[:, 0])
                names = {2: "two relations", 3: "three relations", -1: "line", -2: "gathering"}
                for kind, name in names.items():
                    found["levels"][f"{level}, {name}, {who}"] = solved(played.first, kinds == kind)
    env = envs_jax.make(world.ids["hard"])[0]
    space = env.action_space(env.default_params)

    def repeated(key: jax.Array, state: Any, number: jax.Array, step: jax.Array) -> jax.Array:
        return space.sample(jax.random.fold_in(jax.random.key(x.seed), number * 1000 + step // REPEATS))

    def one_ball(key: jax.Array, state: Any, number: jax.Array, step: jax.Array) -> jax.Array:
        return 8 * (number % 5) + space.sample(key) % 8

    from envs_jax.clevr.constants import HIGH, LOW

    for name, act in (("random", random_of(env)), ("random, repeated", repeated), ("on one ball", one_ball)):
        with doing(f"limits, {name}"):
            played = play(env, act, 256, 50, x.seed + 1, until_solved=False)
        now, after = (part[STATE].reshape(-1, 5, 2) for part in (played.obs, played.next_obs))
        moved = np.linalg.norm(after - now, axis=-1)
        one, two = np.triu_indices(5, 1)
        found["limits"][name] = {
            "actions": len(now),
            "largest move": round(float(moved.max()), 3),
            "99.9% of moves below": round(float(np.quantile(moved.max(1), 0.999)), 3),
            "closest to a wall": round(float(np.minimum(after - LOW, HIGH - after).min()), 3),
            "closest centres": round(float(np.linalg.norm(after[:, one] - after[:, two], axis=-1).min()), 3),
        }
    return found


# --- Meta-World -------------------------------------------------------------------------------------------------------


def metaworld(x: Experiment) -> dict[str, Any]:
    from envs_jax.metaworld import NAMES, expert_action, labels

    found: dict[str, Any] = {"tasks": {}, "levels": {}, "labels": {}}
    for task in NAMES:
        for geometry in ("stock", "proxy"):
            env: Any = envs_jax.make(f"MetaWorld/{task}-v3?geometry={geometry}&backend=c")[0]
            act: Act = lambda key, state, number, step, env=env: expert_action(env, state)  # noqa: E731
            with doing(f"{task}, {geometry}"):
                first = play(env, act, x.starts, x.steps, x.seed).first
            within = int(((first > 0) & (first <= 100)).sum())
            found["tasks"][f"{task}, {geometry}"] = {**solved(first), "within 100 steps": within}
    world = world_of("metaworld")
    for level in LEVELS[:1] + LEVELS[2:]:
        env, steps = envs_jax.make(world.ids[level])[0], world.horizon[level]
        for who, act in (("expert", expert_of(world, env)), ("random actions", random_of(env))):
            with doing(f"{level}, {who}"):
                played = play(env, act, 2 * x.starts, steps, x.seed)
            found["levels"][f"{level}, {who}"] = solved(played.first)
            kept, goal = ends(played), played.obs["goal"]
            states = np.concatenate([played.obs[STATE][:, :1], played.next_obs[STATE]], axis=1)
            judged, success = labels.label(goal[:, 0], states, played.action)
            wrong = np.asarray(success) != played.success
            strange = world.implausible(played.obs[STATE], played.next_obs[STATE])
            found["labels"][f"{level}, {who}"] = {
                "steps": int(kept.sum()),
                "successes judged otherwise": int((wrong & kept).sum()),
                "mean error of a reward": round(float(np.abs(judged - played.reward)[kept].mean()), 4),
                **{name: round(float(np.asarray(x)[kept].mean()), 5) for name, x in strange.items()},
            }
    return found


# --- Housekeep --------------------------------------------------------------------------------------------------------


def tidied(id: str, act: Callable[[Environment], Act], episodes: int, seed: int) -> dict[str, Any]:
    """Whole episodes of Housekeep: the number solved, steps, mean return, and means of the world's final shares."""
    env = envs_jax.make(id)[0]
    params, numbers, choose = env.default_params, jnp.arange(episodes), act(env)
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(numbers)
    shares = ("initial_success", "rearrange_success", "pick_success", "place_success")

    @jax.jit
    def run() -> Any:
        _, state = jax.vmap(env.reset, (0, None))(keys, params)
        zeros = jnp.zeros(episodes)
        begun = (state, jnp.int32(0), zeros.astype(bool), zeros, zeros, dict.fromkeys(("success", *shares), zeros))

        def step(carry: Any) -> Any:
            state, number, over, total, length, seen = carry
            pair = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, 1 + number)))(keys)
            action = jax.vmap(choose, (0, 0, 0, None))(pair[:, 0], state, numbers, number)
            _, state, reward, done, truncated, info = jax.vmap(env.step, (0, 0, 0, None))(
                pair[:, 1], state, action, params
            )
            seen = {name: jnp.where(over, old, info[name]) for name, old in seen.items()}
            length = length + jnp.where(over, 0, info.get("steps", 1))
            return state, number + 1, over | done | truncated, total + jnp.where(over, 0, reward), length, seen

        return jax.lax.while_loop(lambda carry: ~carry[2].all(), step, begun)[3:]

    with doing(f"{id}, {episodes} episodes"):
        total, length, seen = jax.device_get(run())
    return {
        "solved": int(seen["success"].sum()),
        "of": episodes,
        "steps": round(float(length.mean()), 1),
        "fewest": int(length.min()),
        "most": int(length.max()),
        "return": round(float(total.mean()), 1),
        **{name: round(float(seen[name].mean()), 4) for name in shares},
    }


def housekeep(x: Experiment) -> dict[str, Any]:
    from envs_jax.housekeep import expert_action, macro_expert_action

    def by(choose: Callable[[Environment, Any], jax.Array]) -> Callable[[Environment], Act]:
        return lambda env: lambda key, state, number, step: choose(env, state)

    low, macro = by(expert_action), by(macro_expert_action)
    found = {
        "random episodes, expert": tidied("Housekeep-v0", low, x.episodes, x.seed),
        "random episodes, macro expert": tidied("Housekeep-Macro-v0", macro, x.episodes, x.seed),
        "random episodes, random actions": tidied("Housekeep-v0", random_of, x.episodes // 2, x.seed),
    }
    for task in range(1, 5):
        found[f"task {task}, expert"] = tidied(f"Housekeep-Task{task}-v0", low, 1, x.seed)
    return found


WORLDS: dict[str, Callable[[Experiment], dict[str, Any]]] = {
    "clevr": clevr,
    "metaworld": metaworld,
    "housekeep": housekeep,
}


def main() -> None:
    x = parse(Experiment, description=__doc__)
    Path(x.out).mkdir(parents=True, exist_ok=True)
    for name in x.worlds:
        started = time.monotonic()
        found = WORLDS[name](x)
        about = {
            "command": command(Path(__file__).name, x),
            "date": datetime.date.today().isoformat(),
            "machine": info.stamp("experiments"),
            "seconds": round(time.monotonic() - started),
        }
        write_whole(Path(x.out) / f"{name}.json", json.dumps(about | found, indent=1) + "\n")
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
