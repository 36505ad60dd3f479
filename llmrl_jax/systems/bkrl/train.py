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
from llmrl_jax.advice.sandbox import Program
from llmrl_jax.core.config import from_json
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.novelty import RND
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.rl.shaping import OfObservation, Shaping
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.bkrl.build import make_env, make_features, make_policy, observed_parts, playable
from llmrl_jax.systems.bkrl.collect import read_episodes
from llmrl_jax.systems.bkrl.config import PreferenceModelConfig, TrainRun
from llmrl_jax.systems.bkrl.goals import load_goals
from llmrl_jax.systems.bkrl.potentials import (
    MANIFEST,
    ArtifactError,
    ProgramPotential,
    RandomPotential,
    Scaled,
    check_fits,
    fixed_scale,
    load_manifest,
    pin,
)
from llmrl_jax.systems.bkrl.preference_model import WEIGHTS, load_model
from llmrl_jax.systems.bkrl.programs import PROGRAM
from llmrl_jax.systems.bkrl.prompts import world_of
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment, several_seeds
from llmrl_jax.workflows.rl_training import evaluated, table


HELD_OUT = 0xBD0A
"""Folded into the seed for held-out episodes."""
SCALE_WINDOWS = 4096
"""Windows by which a random potential is scaled."""


def experiment(config: TrainRun, mesh: Mesh | None = None) -> Experiment:
    """The environment, which reports its episodes, the agent and the learner.

    **Arguments:** `config`; `mesh`, instead of `config.agent.mesh`.
    **Raises:** `ValueError` for options that do not fit; `ArtifactError` for the potential of another environment."""
    agent, env = config.agent, make_env(config.agent.env)
    observed = observed_parts(env, world_of(env).family)
    potential = make_potential(config, env)
    reads = getattr(potential, "reads", ())
    world = playable(env, tuple(dict.fromkeys((*observed, *reads))))
    policy = make_policy(env, observed, agent.network)
    if potential is None:  # so that the environment's reward has the same weight in all runs that are compared
        potential = OfObservation(lambda obs: jnp.zeros(jax.tree.leaves(obs)[0].shape[0]))
    bonus: Any = Shaping(potential, config.shaping)
    if config.alg == "rnd":
        space: Any = world.observation_space(world.default_params)
        bonus = RND(agent.rnd, make_features(space, observed, flat=not agent.rnd.channels))
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
        potential = RandomPotential(env, config.run.seed)
        data = read_episodes(config.data)
        missing = [name for name in potential.reads if name not in data.obs]
        if missing:
            raise ValueError(f"the episodes of {config.data} lack {missing[0]!r}: choose --data collected in {env.id}")
        windows = data.sample(np.random.default_rng(0), SCALE_WINDOWS, potential.window)
        return Scaled(potential, fixed_scale(potential, windows)[0])
    if config.alg.startswith("bk-"):
        return load_potential(Path(config.potential), env, config.alg)
    return None


def load_potential(folder: Path, env: Environment, kind: str) -> Scaled:
    """The potential in a folder, in units of its standard deviation, for an environment.

    **Raises:** `FileNotFoundError`; `ArtifactError` for another kind or environment, or files that were cut or edited.
    """
    manifest = load_manifest(folder, kind)
    check_fits(manifest, env, folder)
    inner: Any
    if kind == "bk-code":
        inner = ProgramPotential(Program.load(folder / PROGRAM))
        reads = {part.name: list(part.shape) for part in inner.program.spec.parts}
        if inner.window != manifest.window or reads != {name: x[0] for name, x in manifest.observation.items()}:
            raise ArtifactError(
                f"{folder / PROGRAM} sees {reads} and {inner.window} actions, which is not what its {MANIFEST} says: "
                "make it again"
            )
    elif kind == "bk-pref":
        config = from_json(PreferenceModelConfig, manifest.options)
        inner = load_model(env, manifest.family, config, folder / WEIGHTS, manifest.window)
    else:
        inner = load_goals(folder, manifest, env)
    return Scaled(inner, manifest.scale)


def train(config: TrainRun) -> RunResult:
    """Train, evaluate beside random actions, and write the run to its folder, with `eval-UPDATE.json`.

    **Returns:** how it ended. **Raises:** what `experiment` and `llmrl_jax.run.loop.train` raise.
    """
    x = experiment(config)
    with opened(config.run, f"bkrl-{config.alg}") as folder:
        facts: dict[str, Any] = {}
        if config.potential:
            manifest = pin(folder, config.potential)
            facts["potential_model"] = manifest.model
            print(f"{manifest.kind}, by {manifest.model}: the potential in {config.potential}")
        return experiments.train(x, folder, facts=lambda _: facts)
