"""An experiment from its settings, and its run: the implementation of `llmrl doors train`."""

from __future__ import annotations

import envs_jax
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl.networks import network_policy
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.doors.config import TrainRun
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment
from llmrl_jax.workflows.rl_training import evaluated


def make(config: TrainRun) -> Experiment:
    """The environment, the policy, the learner, and their evaluation beside random actions."""
    env, env_params = envs_jax.make(config.env)
    env = EpisodeStatistics(env)
    policy = network_policy(env, env_params, config.network, config.ppo)
    learner = make_ppo(config.ppo, env, env_params, policy)
    return evaluated(Experiment(config, learner, policy, env, env_params, about={"env": config.env}))


def train(config: TrainRun) -> RunResult:
    """Train, evaluate, and write the run to its folder."""
    x = make(config)
    with opened(config.run, "doors") as folder:
        return experiments.train(x, folder)
