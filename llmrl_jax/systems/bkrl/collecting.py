"""Collection of episodes: the implementation of `llmrl bkrl collect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from envs_jax.env import Environment
from llmrl_jax.agents.play import actor_of, key_pairs, make_player
from llmrl_jax.data.parquet import arrow
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.novelty import RND
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.run.folder import opened, write_summary
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.systems.bkrl import collected
from llmrl_jax.systems.bkrl.agent import make_features, make_policy, make_world, playable, seen_parts
from llmrl_jax.systems.bkrl.collected import Collected
from llmrl_jax.systems.bkrl.config import CollectRun
from llmrl_jax.systems.bkrl.published import check_pictures, write_npy
from llmrl_jax.systems.bkrl.worlds import world_of


FOLDER = "collected"
CHUNK = 32
"""Steps between transfers to the host."""


def collect(config: CollectRun) -> RunResult:
    """Train an agent that seeks novelty, and write its episodes to `collected/` in the run's folder.

    **Returns:** how the training ended. **Raises:** `ModuleNotFoundError` without pyarrow; what `world_of` and
    `llmrl_jax.run.loop.train` raise.
    """
    arrow()
    agent, env = config.agent, make_world(config.agent.env)
    names = seen_parts(env, world_of(env).family)
    written: Any = env.observation_space(env.default_params)
    if config.npy:
        check_pictures(written.spaces, env)
    seen = playable(env, names)
    mesh = make_mesh(agent.mesh) if agent.mesh else None
    policy = make_policy(env, names, agent.network)
    space: Any = seen.observation_space(seen.default_params)
    features = make_features(space, names, flat=not agent.rnd.channels)
    bonus = RND(agent.rnd, features)
    learner = make_ppo(agent.ppo, seen, seen.default_params, policy, mesh, bonus=bonus)
    whole = playable(env, tuple(written.spaces))
    play = make_player(
        whole,
        whole.default_params,
        actor_of(policy),
        lambda obs, state: obs,
        chunk=CHUNK,
    )
    with opened(config.run, "bkrl-collect") as folder:

        def write(state: Any, key: jax.Array) -> dict[str, float]:
            played = play((state.params, state.frozen), key_pairs(key, config.episodes))
            steps = [one.transitions(truncated=one.truncated & ~one.terminated) for one in played]
            data = collected.of_transitions(jax.tree.map(lambda *x: np.concatenate(x), *steps))
            return _write(folder, int(state.update), data, env, config.npy)

        (folder / FOLDER).mkdir(exist_ok=True)
        result = run_training(
            learner,
            config.run,
            num_updates=-(-config.steps // learner.steps_per_update),
            evaluate=write,
            full_config=config,
            folder=folder,
            shown={"success": "success", "rnd_reward": "novelty"},
        )
        values: dict[str, Any] = {"steps": result.steps, **result.facts()}
        if not result.stopped:
            data = collected.read(folder)
            values |= {"episodes": len(data), "collected_steps": len(data.action), "data": data.digest}
            print(f"{len(data)} episodes of {len(data.action)} steps are in {folder / FOLDER}")
        write_summary(folder, values)
    return result


def _write(folder: Path, update: int, data: Collected, env: Environment, npy: bool) -> dict[str, float]:
    """One set of episodes, and what it came to."""
    file = folder / FOLDER / f"update-{update:06d}.parquet"
    collected.write(file, data)
    if npy:
        write_npy(file.with_suffix(".npy"), data, env)
    returns = np.add.reduceat(data.reward, data.starts)
    return {
        "collected_episodes": float(len(data)),
        "collected_return": float(returns.mean()),
        "collected_length": float(data.lengths.mean()),
    }
