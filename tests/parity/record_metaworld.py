"""Record steps of metaworld 3.1.1 into tests/data/metaworld.npz: what its rewards, observations and policies are
computed from, and what they return.

`nice python tests/parity/record_metaworld.py` in an environment with metaworld. Episodes are played by the package's
policies, with noise on most actions.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from envs_jax.metaworld.tasks import COMPOSITES, TASKS


DATA = Path(__file__).parents[1] / "data" / "metaworld.npz"
ROWS, EPISODES, HORIZON = 24, 4, 160
NAMES = {name: name for name in TASKS if name not in COMPOSITES}
JOINTS = {"door-open": "doorjoint", "hammer": "NailSlideJoint"}


def make(name: str) -> Any:
    """A task of the package whose goal is observed, as `MT1` makes it."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    env = ALL_V3_ENVIRONMENTS[f"{name}-v3"]()
    env._partially_observable, env._set_task_called, env._freeze_rand_vec = False, True, True
    del env.sawyer_observation_space
    return env


def policy(name: str) -> Any:
    from metaworld.policies import ENV_POLICY_MAP

    return ENV_POLICY_MAP[f"{name}-v3"]()


def act(expert: Any, obs: np.ndarray) -> np.ndarray:
    """The action of a policy, which may change the observation it is given, and warns of actions above 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return expert.get_action(obs.copy())


def draw(name: str, rng: np.random.Generator) -> np.ndarray:
    """A vector that a reset may draw."""
    task = TASKS[name]
    while True:
        drawn = rng.uniform(task.low, task.high)
        if not task.apart or np.linalg.norm(drawn[:2] - drawn[3:5]) >= 0.15:
            return drawn


def reset(env: Any, drawn: np.ndarray) -> np.ndarray:
    """The first observation of an episode that starts with a given vector."""
    env._last_rand_vec = drawn.copy()
    return env.reset()[0]


def start_of(env: Any) -> dict[str, np.ndarray]:
    """Values of the start that rewards use."""
    return {
        "target": np.array(env._target_pos),
        "object_start": np.array(env.obj_init_pos),
        "tcp_start": np.array(env.init_tcp),
        "handle_start": np.array(getattr(env, "window_handle_pos_init", np.zeros(3))),
    }


def seen(env: Any, name: str) -> dict[str, np.ndarray]:
    """Inputs of rewards and observations."""
    names = {env.model.body(i).name for i in range(env.model.nbody)}
    return {
        "frame": np.array(env._prev_obs),
        "tcp": np.array(env.tcp_center),
        "left": np.array(env.get_body_com("leftpad")),
        "right": np.array(env.get_body_com("rightpad")),
        "lock": np.array(env.get_body_com("lock_link")) if "lock_link" in names else np.zeros(3),
        "joint": np.array(env.data.joint(JOINTS[name]).qpos.item() if name in JOINTS else 0.0),
    }


def episode(env: Any, expert: Any, name: str, drawn: np.ndarray, noise: float, rng: np.random.Generator) -> list[dict]:
    """The steps of one episode."""
    obs, rows = reset(env, drawn), []
    start = start_of(env)
    for _ in range(HORIZON):
        chosen_by_policy = act(expert, obs)
        action = np.float32(np.clip(chosen_by_policy, -1, 1))
        if noise:
            action = np.float32(np.clip(action + rng.normal(0, noise, 4), -1, 1))
        row = {
            "drawn": drawn,
            "seen_obs": obs,
            "expert": chosen_by_policy,
            "action": action,
            "previous": np.array(env._prev_obs),
        }
        obs, reward, _, _, info = env.step(action)
        row |= {**start, **seen(env, name), "obs": obs, "reward": reward, "success": info["success"] > 0}
        rows.append({key: np.asarray(x) for key, x in row.items()})
        if len(rows) > 5 and all(bool(r["success"]) for r in rows[-5:]):
            break
    return rows


def record(name: str) -> dict[str, np.ndarray]:
    """Some steps of some episodes: arrays `[ROWS, ...]`."""
    env, expert, rng = make(name), policy(name), np.random.default_rng(sum(map(ord, name)))
    rows = []
    for i in range(EPISODES):
        played = episode(env, expert, name, draw(name, rng), (0.0, 0.2, 0.5, 0.1)[i], rng)
        chosen = np.unique(np.linspace(0, len(played) - 1, ROWS // EPISODES).astype(int))
        rows += [played[j] for j in chosen]
    env.close()
    return {f"{name}/{key}": np.stack([row[key] for row in rows]) for key in rows[0]}


def main() -> None:
    recorded: dict[str, np.ndarray] = {}
    for name in NAMES:
        recorded |= record(name)
        print(name, recorded[f"{name}/success"].mean(), recorded[f"{name}/reward"].round(2)[:6], file=sys.stderr)
    np.savez_compressed(DATA, **recorded)


if __name__ == "__main__":
    main()
