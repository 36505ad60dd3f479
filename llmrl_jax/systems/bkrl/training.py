"""PPO with a shaping potential: the implementation of `llmrl bkrl train`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from envs_jax.env import Environment
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.rl.rnd import RND
from llmrl_jax.rl.shaping import OfObservation, Shaping
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.bkrl import collected, manifest as manifests
from llmrl_jax.systems.bkrl.agent import make_features, make_policy, make_world, playable, seen_parts
from llmrl_jax.systems.bkrl.artifacts import load_potential
from llmrl_jax.systems.bkrl.config import TrainRun
from llmrl_jax.systems.bkrl.potentials import RandomPotential, Scaled, fixed_scale
from llmrl_jax.systems.bkrl.worlds import world_of
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment, several_seeds
from llmrl_jax.workflows.rl_training import evaluated, table


HELD_OUT = 0xBD0A
"""Folded into the seed for held-out episodes."""
SCALED_BY = 4096
"""Windows by which a random potential is scaled."""


def make(config: TrainRun, mesh: Mesh | None = None) -> Experiment:
    """The world, the agent and the learner; the world reports its episodes.

    **Arguments:** `config`; `mesh`, instead of `config.agent.mesh`.
    **Raises:** `ValueError` for options that do not fit together; `ArtifactError` for a potential of another world."""
    agent, env = config.agent, make_world(config.agent.env)
    seen = seen_parts(env, world_of(env).family)
    potential = make_potential(config, env)
    read = getattr(potential, "reads", ())
    world = playable(env, tuple(dict.fromkeys((*seen, *read))))
    policy = make_policy(env, seen, agent.network)
    if potential is None:  # so that the world's reward has the same weight in all runs that are compared
        potential = OfObservation(lambda obs: jnp.zeros(jax.tree.leaves(obs)[0].shape[0]))
    bonus: Any = Shaping(potential, config.shaping)
    if config.alg == "rnd":
        space: Any = world.observation_space(world.default_params)
        bonus = RND(agent.rnd, make_features(space, seen, flat=not agent.rnd.channels))
    if mesh is None and agent.mesh:
        mesh = make_mesh(agent.mesh)
    params = world.default_params
    learner = make_ppo(agent.ppo, world, params, policy, mesh, bonus=bonus)
    x = evaluated(Experiment(config, learner, policy, world, params))
    judge: Any = x.evaluate
    chance: Any = x.baseline
    x = replace(
        x,
        evaluate=lambda state, key, episodes: {"agent": judge(state, key, episodes)},
        baseline=lambda state, key, episodes: {"agent": chance(state, key, episodes)},
        report=lambda results, episodes: table(results["agent"], episodes),
        about={"env": agent.env, "alg": config.alg},
        held_out=HELD_OUT,
        shown={"success": "success", "episode_length": "length", "entropy": "entropy"},
    )
    return several_seeds(x, agent.mesh)


def make_potential(config: TrainRun, env: Environment) -> Any:
    """The potential of a run, scaled; None without one."""
    if config.alg == "random":
        found = RandomPotential(env, config.run.seed)
        data = collected.read(config.data)
        missing = [name for name in found.reads if name not in data.obs]
        if missing:
            raise ValueError(f"the episodes of {config.data} lack {missing[0]!r}: choose --data collected in {env.id}")
        windows = data.sample(np.random.default_rng(0), SCALED_BY, found.window)
        return Scaled(found, fixed_scale(found, windows)[0])
    if config.alg.startswith("bk-"):
        return load_potential(Path(config.potential), env, config.alg)
    return None


def train(config: TrainRun) -> RunResult:
    """Train, evaluate beside random actions, and write the run to its folder, with `eval-UPDATE.json`.

    **Returns:** how it ended. **Raises:** what `make` and `llmrl_jax.run.loop.train` raise.
    """
    x = make(config)
    with opened(config.run, f"bkrl-{config.alg}") as folder:
        facts: dict[str, Any] = {}
        if config.potential:
            manifest = manifests.keep(folder, config.potential)
            facts["potential_model"] = manifest.model
            print(f"{manifest.kind}, by {manifest.model}: the potential in {config.potential}")
        return experiments.train(x, folder, facts=lambda _: facts)
