"""Episodes of an agent that seeks novelty: the implementation of `llmrl bkrl collect`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from llmrl_jax.agents.play import actor_of, key_pairs, make_player
from llmrl_jax.data.parquet import arrow
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.novelty import RND
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.bkrl import episodes
from llmrl_jax.systems.bkrl.build import make_env, make_features, make_policy, observed_parts, playable
from llmrl_jax.systems.bkrl.config import CollectRun
from llmrl_jax.systems.bkrl.prompts import world_of
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment
from llmrl_jax.workflows.rl_training import evaluated


FOLDER = "collected"
CHUNK = 32
"""Steps between transfers to the host."""


def experiment(config: CollectRun) -> Experiment:
    """The environment, the agent that seeks novelty, and its learner."""
    agent, env = config.agent, make_env(config.agent.env)
    names = observed_parts(env, world_of(env).family)
    env = playable(env, names)
    policy, space = make_policy(env, names, agent.network), env.observation_space(env.default_params)
    bonus = RND(agent.rnd, make_features(space, names, flat=not agent.rnd.channels))  # type: ignore[arg-type]
    mesh = make_mesh(agent.mesh) if agent.mesh else None
    learner = make_ppo(agent.ppo, env, env.default_params, policy, mesh, bonus=bonus)
    shown = {"success": "success", "rnd_reward": "novelty"}
    return evaluated(
        Experiment(config, learner, policy, env, env.default_params, about={"env": agent.env}, shown=shown)
    )


def collect(config: CollectRun) -> RunResult:
    """Train an agent that seeks novelty, and write its episodes to `collected/` in the run's folder.

    **Returns:** how the training ended. **Raises:** `ModuleNotFoundError` without pyarrow; what `world_of` and
    `llmrl_jax.run.loop.train` raise.
    """
    arrow()
    env = make_env(config.agent.env)
    space: Any = env.observation_space(env.default_params)
    if config.npy:
        episodes.check_pictures(space.spaces, env)
    x, full_env = experiment(config), playable(env, tuple(space.spaces))
    play = make_player(full_env, full_env.default_params, actor_of(x.policy), lambda obs, state: obs, chunk=CHUNK)
    with opened(config.run, "bkrl-collect") as folder:

        def write(state: Any, key: jax.Array) -> dict[str, float]:
            """Write one set of episodes. Returns its statistics."""
            played = play((state.params, state.frozen), key_pairs(key, config.episodes))
            steps = [one.transitions(truncated=one.truncated & ~one.terminated) for one in played]
            data = episodes.from_transitions(jax.tree.map(lambda *x: np.concatenate(x), *steps))
            file = folder / FOLDER / f"update-{int(state.update):06d}.parquet"
            episodes.write(file, data)
            if config.npy:
                episodes.write_npy(file.with_suffix(".npy"), data, env)
            return {
                "collected_episodes": float(len(data)),
                "collected_return": float(np.add.reduceat(data.reward, data.starts).mean()),
                "collected_length": float(data.lengths.mean()),
            }

        def facts(result: RunResult) -> dict[str, Any]:
            if result.stopped:
                return {}
            data = episodes.read(folder)
            print(f"{len(data)} episodes of {len(data.action)} steps are in {folder / FOLDER}")
            return {"episodes": len(data), "collected_steps": len(data.action), "data": data.digest}

        (folder / FOLDER).mkdir(exist_ok=True)
        return experiments.train(replace(x, during=write), folder, facts=facts, at_end=False)
