"""Workloads of `llmrl lm fit` beyond language models alone: updates of systems, of ppo and dqn, and environments.

Each is built as its command builds it, from shapes and with the default settings, and compiled ahead of time. To add
one: a function from a `Setting` to `Parts`, and a line in `WORKLOADS`.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

import envs_jax
from envs_jax import tracing
from llmrl_jax import lm
from llmrl_jax.cli.workload_config import WorkloadConfig
from llmrl_jax.parallel import Placement, batch_sharding, make_mesh, shardings
from llmrl_jax.run.chunk import jit_chunk
from llmrl_jax.workflows.memory.fit import Built, Fit, find_devices, measured, read_shape
from llmrl_jax.workflows.memory.programs import place_like, placed


@dataclass(frozen=True)
class Setting(Placement):
    """The options, and the shardings of arrays: a `Placement` that maps shapes to shardings."""

    config: WorkloadConfig = field(default_factory=WorkloadConfig)
    device: Sharding | None = None
    """Without a mesh: the device."""

    def shard_batch(self, tree: Any, axis: int = 0) -> Any:
        """For every leaf the sharding with an axis split over the devices."""
        sharding = self.device if self.mesh is None else batch_sharding(self.mesh, axis)
        return jax.tree.map(lambda _: sharding, tree)

    def replicate(self, tree: Any) -> Any:
        """For every leaf the sharding of a copy on every device."""
        sharding = self.device if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())
        return jax.tree.map(lambda _: sharding, tree)

    def collections(self, llama: lm.Llama, tree: Any) -> Any:
        """`replicate`, but collections of a language model (`params`, `lora`) split as the mesh says."""
        copies = self.replicate(tree)
        if self.mesh is None or not isinstance(tree, dict):
            return copies
        shapes, axes = llama.abstract(), llama.logical_axes()
        return copies | {name: shardings(shapes[name], axes[name], self.mesh) for name in tree if name in shapes}

    def options(self, settings: Any, rows: str = "num_envs", steps: str = "num_steps") -> Any:
        """Settings of a learner with the batch size and the steps that are asked for."""
        overrides = {rows: self.config.batch_size} | ({steps: self.config.steps} if self.config.steps else {})
        return replace(settings, **overrides)


Parts = tuple[Any, Any, Any]
"""A learner, or a function; its state as shapes, or a tuple of its arguments; the shardings of that."""


def fit(config: WorkloadConfig) -> Fit:
    """The memory of a workload, and for a target the time of an update; as `llmrl_jax.workflows.memory.fit.fit`.

    **Raises:** what `find_devices` and the builders of the system raise."""
    devices = find_devices(config)
    mesh = make_mesh(config.mesh, devices) if config.mesh else None
    setting = Setting(mesh, config, SingleDeviceSharding(devices[0]))

    def build() -> Built:
        learner, shapes, places = WORKLOADS[config.workload](setting)
        arguments = placed(shapes, places)
        if isinstance(shapes, tuple):
            return Built(_size(shapes[0]), 0, partial(_function, learner, arguments))
        frozen = _size(shapes.frozen) if config.adapts else 0
        return Built(_size(shapes.params) + frozen, _size(shapes.params), partial(_update, learner, arguments))

    return measured(config, devices, build)


def _size(tree: Any) -> int:
    """Numbers in a tree of floating-point arrays."""
    return sum(x.size for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating))


def _update(learner: Any, state: Any) -> tuple[Any, dict[str, Any]]:
    trainable, frozen = state.replace(frozen=()), state.frozen
    compiled = (
        jit_chunk(learner, jax.tree.map(lambda x: x.sharding, trainable), 1)
        .lower(trainable, frozen, np.int32(1))
        .compile()
    )
    optimiser = getattr(state, "opt_state", ())
    return compiled, {
        "base": frozen,
        "trained": state.params,
        "optimiser": optimiser,
        "data": trainable.replace(params=(), **({"opt_state": ()} if hasattr(state, "opt_state") else {})),
    }


def _function(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    compiled = jax.jit(function).lower(*arguments).compile()
    return compiled, {"base": arguments[0], "data": arguments[1:]}


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def _played(s: Setting, learner: Any, state: Any) -> Parts:
    """A learner that acts in environments, with the shardings that it gives its state."""
    from llmrl_jax.rl import bonus
    from llmrl_jax.rl.rollout import shard_runner

    places = s.replicate(state).replace(runner=shard_runner(state.runner, s), bonus=bonus.shard(state.bonus, s))
    if hasattr(state, "replay"):
        memory = learner.update.args[0].__self__.memory
        places = places.replace(replay=memory.shard(state.replay, s.shard_batch, s.replicate))
    return learner, state, places


# --- reinforcement learning -------------------------------------------------------------------------------------------


def _algorithm(s: Setting) -> Parts:
    """`llmrl rl train --algo ppo` or `dqn`."""
    from envs_jax.wrappers import EpisodeStatistics
    from llmrl_jax.rl.networks import NetworkConfig
    from llmrl_jax.rl.registry import algorithm

    entry = algorithm(s.config.workload)
    env, params = envs_jax.make(s.config.env or "CartPole-v1")
    env, hyper = EpisodeStatistics(env), s.options(entry.config())
    policy = entry.policy(env, params, NetworkConfig(), hyper)
    state = jax.eval_shape(entry.make(hyper, env, params, policy, None).init, _key())
    return _played(s, entry.make(hyper, env, params, policy, s.mesh), state)


OBSERVED, ACTED, RECORDED = 17, 6, 10_000
"""Offline: numbers of an observation and of an action, as HalfCheetah's, and recorded steps if `rows` does not say."""


def _offline(s: Setting) -> Parts:
    """`llmrl rl train --algo iql` and the like, on recorded steps of the size of HalfCheetah's."""
    from llmrl_jax.data.transitions import Transitions
    from llmrl_jax.rl.offline import make_offline
    from llmrl_jax.rl.offline_data import ActionKind
    from llmrl_jax.rl.registry import OFFLINE, algorithm, spelled

    if s.mesh is not None:
        raise ValueError("the workload offline is compiled for one device: leave --mesh out")
    name = spelled(s.config.algo or "iql")
    if name not in OFFLINE:
        raise ValueError(f"algo is {s.config.algo}; the workload offline has {', '.join(sorted(OFFLINE))}")
    discrete, count = name.startswith("discrete"), s.config.rows or RECORDED
    obs = np.random.default_rng(0).standard_normal((count, OBSERVED), np.float32)
    action = (
        np.arange(count) % ACTED if discrete else np.tile(np.linspace(-0.9, 0.9, ACTED, dtype=np.float32), (count, 1))
    )
    no, reward = np.zeros(count, bool), np.zeros(count, np.float32)
    steps = Transitions(*map(jnp.asarray, (obs, action, reward, obs, no, np.arange(1, count + 1) % 1000 == 0)))
    actions = ActionKind(ACTED) if discrete else ActionKind.box(-1.0, 1.0, ACTED)
    entry = algorithm(name)
    config = s.options(entry.config(), "batch_size", "gradient_steps")
    learner = make_offline(entry.make(config, actions), config, steps, actions)
    state = jax.eval_shape(learner.init, _key())
    state = state.replace(frozen=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state.frozen))
    return learner, state, s.replicate(state)


def _world(s: Setting) -> Parts:
    """Random actions in a batch of environments, `steps` of them in each."""
    env, params = envs_jax.make(s.config.env or "BabyAI-GoToLocal-v0")
    count = s.config.batch_size
    vector, space = envs_jax.VectorEnv(env, count, policy="pool", pool_size=64), env.action_space(params)
    _, state = jax.eval_shape(vector.reset, _key(), params)

    def play(state, key):
        def step(carry, key):
            state, total = carry
            act, move = jax.random.split(key)
            actions = jax.vmap(space.sample)(jax.random.split(act, count))
            obs, state, reward, terminated, truncated, _ = vector.step(move, state, actions, params)
            outputs = [*jax.tree.leaves(obs), reward, terminated, truncated]
            return (state, total + sum(jnp.sum(x.astype(jnp.float32)) for x in outputs)), None

        return tracing.scan(step, (state, jnp.float32(0)), jax.random.split(key, s.config.steps or 64))[0]

    places = s.replicate(state).replace(env=s.shard_batch(state.env))
    return play, (state, _key()), (places, s.replicate(_key()))


# --- systems ----------------------------------------------------------------------------------------------------------


def _glam(s: Setting) -> Parts:
    """GLAM's PPO: play and learning of a language model of the given shape, with a token for each word."""
    from llmrl_jax.lm.tokens import WordTokenizer
    from llmrl_jax.rl.rollout import shard_runner
    from llmrl_jax.systems.glam import config as presets
    from llmrl_jax.systems.glam.build import build, make_world
    from llmrl_jax.systems.glam.prompts import glam_prompt

    c = s.config
    preset = presets.GLAM_LORA if c.tune == "lora" else presets.GLAM
    ppo = s.options(replace(preset.ppo, microbatches=c.microbatches))
    played = ppo.num_envs * ppo.num_steps
    maximum = max(
        1, played // (preset.ppo.num_envs * preset.ppo.num_steps // preset.ppo.minibatches)
    )  # as large as usual
    ppo = replace(ppo, minibatches=next(n for n in range(maximum, 0, -1) if played % n == 0))
    config = replace(
        preset,
        env=c.env or preset.env,
        ppo=ppo,
        remat=c.remat,
        attention=c.attention,
        dtype=c.dtype,
        quantize=c.quantize,
    )
    if c.tune == "lora":
        config = replace(config, lora=c.lora)
    with tempfile.TemporaryDirectory() as folder:
        env, _ = make_world(config)
        template = glam_prompt(env, env.action_names, history=config.history, list_actions=config.list_actions)
        WordTokenizer.from_prompt(template.prompt, template.actions).save(Path(folder))
        (Path(folder) / "config.json").write_text(json.dumps(read_shape(c.model).to_hf()), encoding="utf-8")
        config = replace(config, model=folder, init="random")
        state = jax.eval_shape(build(config).learner().init, _key())
        built = build(config, s.mesh)
    llama = built.policy.model
    params, frozen = s.collections(llama, state.params), s.collections(llama, state.frozen)
    moments = place_like(state.opt_state, state.params, params, jax.tree.leaves(s.replicate(0))[0])
    places = s.replicate(state).replace(
        params=params, frozen=frozen, opt_state=moments, runner=shard_runner(state.runner, s)
    )
    return built.learner(), state, places


AT_ONCE = 16
"""An agent that writes: rows of a gradient step, as with the default settings."""


def _agent(s: Setting) -> Parts:
    """`llmrl agent train`: play of `steps` tokens in every environment, episodes of up to `length` tokens and gradient
    steps, with a language model of the given shape and a token for each word."""
    from llmrl_jax.lm.model import random_params
    from llmrl_jax.systems.agent.build import build, make_learner, make_world, words_of
    from llmrl_jax.systems.agent.config import AgentConfig, Algorithm, TrainConfig

    c, defaults = s.config, TrainConfig()
    algo: Any = c.algo or defaults.algo
    grouped = algo in ("grpo", "gigpo")
    if algo not in get_args(Algorithm):
        raise ValueError(f"algo is {algo}; the workload agent has {', '.join(get_args(Algorithm))}")
    if grouped and c.steps:
        raise ValueError(
            f"steps is {c.steps}; with algo {algo} an update plays episodes of length {c.length}: leave steps out"
        )
    if c.quantize != "none":
        raise ValueError(
            f"quantize is {c.quantize}; an agent that writes has a base that is not quantised: leave it out"
        )
    parts = max(n for n in range(1, max(1, c.batch_size // AT_ONCE) + 1) if c.batch_size % n == 0)
    settings = replace(
        defaults.group if grouped else s.options(defaults.ppo),
        num_envs=c.batch_size,
        minibatches=parts,
        microbatches=c.microbatches,
        head_chunk=c.head_chunk,
        episode_tokens=c.length,
    )
    agent = AgentConfig(
        env=c.env or defaults.agent.env,
        tune=c.tune,
        lora=c.lora,
        dtype=c.dtype,
        remat=c.remat,
        attention=c.attention,
    )
    with tempfile.TemporaryDirectory() as folder:
        words_of(make_world(agent)[0], agent).save(Path(folder))
        (Path(folder) / "config.json").write_text(json.dumps(read_shape(c.model).to_hf()), encoding="utf-8")
        agent = replace(agent, model=folder)
        chosen: dict[str, Any] = {"group" if grouped else "ppo": settings}
        config = TrainConfig(agent=agent, algo=algo, **chosen)

        def learner(mesh: Mesh | None) -> Any:
            built = build(agent, mesh)
            base = partial(random_params, built.policy.model.clone(lora=None), mesh)
            return make_learner(config, replace(built, policy=replace(built.policy, base=base)))

        state = jax.eval_shape(learner(None).init, _key())
        made = learner(s.mesh)
    turns = copy.copy(made.update.args[0].__self__)
    turns.placement = s
    llama = turns.policy.model
    params, frozen = s.collections(llama, state.params), s.collections(llama, state.frozen)
    moments = place_like(state.opt_state, state.params, params, jax.tree.leaves(s.replicate(0))[0])
    places = s.replicate(state).replace(params=params, frozen=frozen, opt_state=moments, rows=turns.shard(state.rows))
    return made, state, places


def _ellm(s: Setting) -> Parts:
    """ELLM's agent in Crafter, with goals by rules."""
    from llmrl_jax.systems.ellm.build import build
    from llmrl_jax.systems.ellm.config import EllmConfig

    config = EllmConfig(encoder="hashed")
    config = replace(config, env=s.config.env or config.env, dqn=s.options(config.dqn))
    bare = build(config)
    return _played(s, replace(bare, mesh=s.mesh).learner(), jax.eval_shape(bare.learner().init, _key()))


def _bkrl(s: Setting) -> Parts:
    """The agent of `llmrl bkrl train`, with the potential's place taken by a constant."""
    from llmrl_jax.systems.bkrl.config import TrainRun
    from llmrl_jax.systems.bkrl.train import experiment

    config = TrainRun()
    agent = replace(config.agent, env=s.config.env or config.agent.env, ppo=s.options(config.agent.ppo))
    config = replace(config, agent=agent)
    return _played(s, experiment(config, s.mesh).learner, jax.eval_shape(experiment(config).learner.init, _key()))


STATE, ACTIONS, EPISODE = 10, 40, 50
"""KALM: numbers of a state, actions and most steps of an episode, as in CLEVR-Robot."""


def _grounding(s: Setting) -> Parts:
    """A step of `llmrl kalm ground` on rows of `length` places."""
    from llmrl_jax.systems.kalm.config import GroundRun
    from llmrl_jax.systems.kalm.ground import make_grounding
    from llmrl_jax.systems.kalm.prompts import Episodes, Rows
    from llmrl_jax.systems.kalm.world_model import WorldModel

    c, run = s.config, GroundRun()
    count = max(c.rows, c.batch_size)
    places = np.zeros((count, c.length), np.int32)
    rows = Rows(
        tokens=places, kind=places.astype(np.int8), index=places, before=places, learn=places > 0, positions=places,
        segments=places, spoken=places[:, : min(32, c.length)],
    )  # fmt: skip
    first, steps = np.zeros(1, np.int64), np.full(1, EPISODE)
    states = np.linspace(0, 1, (EPISODE + 1) * STATE, dtype=np.float32).reshape(EPISODE + 1, STATE)
    episodes = Episodes(states, np.zeros(EPISODE, np.int32), first, first, steps)
    llama = _llama(s, c.lora if c.tune == "lora" else None)
    shapes = llama.abstract()
    model = WorldModel.around(llama, episodes, ACTIONS)
    config = replace(run.sft, batch_size=c.batch_size, microbatches=c.microbatches)

    def make(variables: Any, mesh: Mesh | None) -> Any:
        return make_grounding(config, run.weights, model, variables, rows, episodes, 1000, mesh)

    state = jax.eval_shape(lambda v, key: make(v, None).init(key), shapes, _key())
    params = s.collections(llama, state.params)
    frozen = {**s.replicate(state.frozen), "base": s.collections(llama, state.frozen["base"])}
    moments = place_like(state.opt_state, state.params, params, jax.tree.leaves(s.replicate(0))[0])
    return make(shapes, s.mesh), state, s.replicate(state).replace(params=params, frozen=frozen, opt_state=moments)


def _imagining(s: Setting) -> Parts:
    """Imagined episodes of `llmrl kalm imagine`, after instructions of `length` tokens."""
    from llmrl_jax.systems.kalm.imagine import imagine
    from llmrl_jax.systems.kalm.world_model import Normalizer, Slots, WorldModel

    c, llama = s.config, _llama(s, None)
    model = WorldModel(llama, Slots(llama.config.hidden_size, STATE, ACTIONS, True))
    shapes = {"params": llama.abstract()["params"]}
    variables = shapes | {"slots": jax.eval_shape(model.init_slots, _key(), shapes)}
    ones = jnp.ones(STATE)
    normalizer = Normalizer(0 * ones, ones, 0.1 * ones)

    def label(goals, states, actions):
        return states[:, 1:, 0], jnp.zeros(actions.shape[:2], bool)

    def play(variables, tokens, first):
        lengths, goals = jnp.full(c.batch_size, c.length), jnp.zeros((c.batch_size, 1))
        return imagine(model, variables, normalizer, tokens, lengths, first, goals, label, c.steps or EPISODE)

    inputs = (
        jax.ShapeDtypeStruct((c.batch_size, c.length), jnp.int32),
        jax.ShapeDtypeStruct((c.batch_size, STATE), jnp.float32),
    )
    return play, (variables, *inputs), (s.collections(llama, variables), *s.shard_batch(inputs))


def _llama(s: Setting, lora: lm.LoRAConfig | None) -> lm.Llama:
    c, dtype = s.config, jnp.dtype(s.config.dtype)
    param_dtype = jnp.dtype(jnp.float32) if c.trains and lora is None else dtype
    return lm.Llama(
        read_shape(c.model), lora=lora, dtype=dtype, param_dtype=param_dtype, remat=c.remat, attention=c.attention
    )


WORKLOADS: dict[str, Callable[[Setting], Parts]] = {
    "glam": _glam,
    "agent": _agent,
    "ellm": _ellm,
    "bkrl": _bkrl,
    "kalm-ground": _grounding,
    "kalm-imagine": _imagining,
    "offline": _offline,
    "ppo": _algorithm,
    "dqn": _algorithm,
    "world": _world,
}
"""Name -> function that builds the workload, in the context of the target."""
