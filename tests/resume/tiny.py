"""A learner as small as can be that still has every kind of leaf, and a script that trains it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import struct

from llmrl_jax.core.config import FREE
from llmrl_jax.core.learner import Exchange
from llmrl_jax.run.config import RunConfig


class State(struct.PyTreeNode):
    params: Any
    opt: Any
    frozen: Any
    key: jax.Array
    envs: Any
    update: jax.Array


@dataclass(frozen=True)
class TinyLearner:
    """Fits a linear map under noise; its `envs` walk at random, and report an episode now and then."""

    learning_rate: float = 0.05
    break_at: int = -1
    """The update whose loss is nan; -1: none."""
    off_at: int = -1
    """The update whose `ratio_error` exceeds its bound; -1: none."""
    size: int = 8
    steps_per_update: int = 16
    unit: str = "environment steps"
    mesh: Any = None
    exchange = None

    @property
    def alarms(self):
        return {}

    @property
    def bounds(self):
        return {"ratio_error": 1e-5}

    @property
    def compiler_options(self):
        return {}

    @property
    def optimizer(self):
        return optax.adam(self.learning_rate)

    def init(self, key):
        a, b, c, d = jax.random.split(key, 4)
        params = {"w": jax.random.normal(a, (self.size, self.size)), "half": jnp.ones(3, jnp.bfloat16)}
        state = State(
            params=params,
            opt=self.optimizer.init(params),
            frozen={"target": jax.random.normal(b, (self.size, self.size)), "words": jnp.arange(5, dtype=jnp.int16)},
            key=c,
            envs={
                "position": jnp.zeros(self.steps_per_update),
                "keys": jax.random.split(d, self.steps_per_update),
                "flag": jnp.zeros(self.steps_per_update, bool),
                "empty": jnp.zeros((0, 3)),
            },
            update=jnp.int32(0),
        )
        if self.mesh is not None:
            rows = jax.NamedSharding(self.mesh, jax.P("data"))
            spread = {name: jax.device_put(state.envs[name], rows) for name in ("position", "keys")}
            state = state.replace(envs={**state.envs, **spread})
        return state

    def update(self, state):
        key, noise = jax.random.split(state.key)
        keys = jax.vmap(lambda k: jax.random.fold_in(k, state.update))(state.envs["keys"])
        position = state.envs["position"] + jax.vmap(jax.random.normal)(keys)
        x = jax.random.normal(noise, (self.size, self.size)) + jnp.mean(position)

        def loss(params):
            error = x @ (params["w"] - state.frozen["target"]) + 0.0 * params["half"].astype(jnp.float32).sum()
            return jnp.mean(error**2)

        value, grads = jax.value_and_grad(loss)(state.params)
        updates, opt = self.optimizer.update(grads, state.opt)
        done = position > 2
        episodes = done.sum()
        metrics = {
            "loss": jnp.where(state.update + 1 == self.break_at, jnp.nan, value),
            "ratio_error": jnp.where(state.update + 1 == self.off_at, 1e-3, 0.0),
            "episodes": episodes,
            "success": jnp.where(episodes > 0, (done & (position > 2.5)).sum() / jnp.maximum(episodes, 1), jnp.nan),
        }
        new = state.replace(
            params=optax.apply_updates(state.params, updates),
            opt=opt,
            key=key,
            envs={**state.envs, "position": jnp.where(done, 0.0, position), "flag": done},
            update=state.update + 1,
        )
        return new, metrics


KEYS, ASKED = 40, 6
"""Keys in the table of the learner that asks, and how many it can ask for at once."""


def value_of(request):
    """What keys are worth, as a chat model that keeps its answers would say."""
    keys = request["keys"]
    return {"keys": keys, "value": np.where(keys < 0, 0.0, np.sin(keys + 1.0)).astype(np.float32)}


@dataclass(frozen=True)
class AskingLearner(TinyLearner):
    """It meets keys, asks the host what each is worth, and learns from what it knows by then.

    Its state has a table from a key to its value, whether each key has been met and is known, and with `ahead` the keys
    that were gathered at the last exchange."""

    every: int = 4
    ahead: bool = False
    answer: Callable[[dict], dict] = value_of

    @property
    def exchange(self):
        return Exchange(self.every, self.request, self.answer, self.take, ahead=self.ahead)

    @staticmethod
    def unknown(envs):
        """The first keys that were met and are not known; -1 where there are fewer."""
        return jnp.flatnonzero(envs["met"] & ~envs["known"], size=ASKED, fill_value=-1).astype(jnp.int32)

    def init(self, key):
        state = super().init(key)
        table = {"value": jnp.zeros(KEYS), "met": jnp.zeros(KEYS, bool), "known": jnp.zeros(KEYS, bool)}
        return state.replace(envs={**state.envs, **table, "asked": jnp.full(ASKED, -1, jnp.int32)})

    def update(self, state):
        state, metrics = super().update(state)
        met = jax.random.randint(jax.random.fold_in(state.key, 7), (2,), 0, KEYS)
        worth = state.envs["value"][met].sum()
        params = {**state.params, "w": state.params["w"] + 0.01 * worth}
        envs = {**state.envs, "met": state.envs["met"].at[met].set(True)}
        return state.replace(params=params, envs=envs), {**metrics, "known": envs["known"].sum()}

    def request(self, state):
        if self.ahead:
            return {"keys": state.envs["asked"]}
        return {"update": state.update, "keys": self.unknown(state.envs)}

    def take(self, state, answer):
        rows = jnp.where(answer["keys"] < 0, KEYS, answer["keys"])  # beyond the table: dropped
        envs = dict(state.envs)
        envs["value"] = envs["value"].at[rows].set(answer["value"], mode="drop")
        envs["known"] = envs["known"].at[rows].set(True, mode="drop")
        envs["asked"] = self.unknown(envs)
        return state.replace(envs=envs)


@dataclass(frozen=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    learner: Literal["tiny", "asking", "ahead", "ppo", "glam"] = "tiny"
    """What to train: one of the learners above, PPO with a GRU in a world of few steps, or a small Llama by PPO."""
    die_at: int = field(default=0, metadata=FREE)
    """The exchange in whose `answer` the process kills itself, counted from 1; 0: none."""
    devices: int = 1
    """Devices over which environments are split."""
    learning_rate: float = 0.05
    """Learning rate."""
    size: int = 8
    """Width of the map."""
    num_updates: int = field(default=40, metadata=FREE)
    """Updates in all."""
    pause: float = field(default=0.0, metadata=FREE)
    """Seconds to sleep at each evaluation, so that a signal finds the run busy."""


def evaluate(state, key):
    error = jnp.mean((state.params["w"] - state.frozen["target"]) ** 2) + 1e-3 * jax.random.normal(key)
    return {"error": error, "error_low": error, "error_high": error}


def dump(state, path):
    """Every leaf's bits, for comparison across processes."""
    from llmrl_jax.run import pytrees as trees

    leaves = trees.named_leaves(state)
    raw = {name: jax.random.key_data(x) if trees.is_key(x) else x for name, x in leaves.items()}
    arrays = {name: np.asarray(x) for name, x in raw.items()}
    np.savez(path, **{n: x.view(np.uint16) if x.dtype.name == "bfloat16" else x for n, x in arrays.items()})


def make(config: Config) -> Any:
    """The learner of a configuration."""
    mesh = None
    if config.devices > 1:
        from llmrl_jax.parallel import make_mesh

        mesh = make_mesh(f"data={config.devices}")
    if config.learner in ("tiny", "asking", "ahead"):
        options: Any = {"learning_rate": config.learning_rate, "size": config.size, "mesh": mesh}
        if config.learner == "tiny":
            return TinyLearner(**options)
        return AskingLearner(**options, ahead=config.learner == "ahead", answer=mortal(config.die_at))
    if config.learner == "ppo":
        import envs_jax
        from envs_jax.wrappers import EpisodeStatistics
        from llmrl_jax.rl.networks import NetworkPolicy
        from llmrl_jax.rl.ppo import PPOConfig, make_ppo

        env, params = envs_jax.make("Debug-Recall-v0")
        policy = NetworkPolicy(env.action_space(params), hidden=(8,), memory=8)
        options = PPOConfig(num_envs=8, num_steps=7, epochs=2, minibatches=2, pool_size=8)
        return make_ppo(options, EpisodeStatistics(env), params, policy, mesh=mesh)
    from dataclasses import replace

    from llmrl_jax.systems.glam.build import build
    from llmrl_jax.systems.glam.config import DEMO, EmbeddedConfig

    small = replace(
        DEMO,
        env="BabyAI-Text/GoToObjS4-v0",
        embedded=EmbeddedConfig(hidden_size=16, layers=2, heads=2, intermediate_size=16),
        value_width=8,
        ppo=replace(DEMO.ppo, num_envs=8, num_steps=8, minibatches=2, epochs=1, pool_size=8),
    )
    return build(small, mesh).learner()


def mortal(die_at: int) -> Callable[[dict], dict]:
    """`value_of` that prints the keys, and kills the process at a call."""
    calls = 0

    def answer(request):
        nonlocal calls
        calls += 1
        print("asked", request["keys"].tolist(), flush=True)
        if calls == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return value_of(request)

    return answer


def main(config: Annotated[Config, tyro.conf.arg(name="")]) -> int:
    """Train one of the learners."""
    import time

    from llmrl_jax.run import loop

    def watched(state, key):
        time.sleep(config.pause)
        return evaluate(state, key) if config.learner in ("tiny", "asking", "ahead") else {}

    with mock.patch.object(loop.plots, "learning_curve"):  # it is not compared, and takes 0.6 s
        result = loop.train(
            make(config), config.run, num_updates=config.num_updates, evaluate=watched, full_config=config
        )
    dump(result.state, result.folder / "final.npz")
    return 0


if __name__ == "__main__":
    from llmrl_jax.cli import main as cli

    sys.exit(cli.guard(lambda: tyro.cli(main)))
