"""All worlds and learners, in the smallest form that still runs every part of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax import lm
from llmrl_jax.core.learner import Learner
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.networks import NetworkConfig
from llmrl_jax.rl.novelty import APT, RND, NovelD
from llmrl_jax.rl.offline import make_offline
from llmrl_jax.rl.offline_data import actions_of
from llmrl_jax.rl.registry import ALGORITHMS, OFFLINE, algorithm
from llmrl_jax.systems.agent.config import Algorithm
from llmrl_jax.tuning import Example, GRPOConfig, Prompts, SFTConfig, make_grpo, make_sft, pack
from tests.lm_random import random_variables


SMALL = {
    "num_envs": 4,
    "num_steps": 6,
    "batch_size": 8,
    "replay_size": 48,
    "minibatches": 2,
    "pool_size": 4,
    "epochs": 2,
    "gradient_steps": 2,
    "learning_starts": 0,
}
"""Sizes, where an algorithm has them."""


def first_of_each_kind() -> list[str]:
    """The ids of worlds of which none before is built by the same code: sizes and counts are left out, text is looked
    at once."""
    found: dict[Any, str] = {}
    for id in envs_jax.ids():
        spec = envs_jax.registry.spec(id)
        text = spec.kwargs.get("text", False)
        found.setdefault((spec.entry_point, text or spec.kwargs.get("level")), id)
    return list(found.values())


def small(kind: type, **options: Any) -> Any:
    """A configuration with its defaults, but for sizes and `options`."""
    names = {f.name for f in dataclasses.fields(kind)}
    return kind(**{name: x for name, x in {**SMALL, **options}.items() if name in names})


def online(name: str, bonus: Any = None) -> Learner:
    """A registered algorithm, in a world whose episodes time out."""
    env, params = envs_jax.make("Debug-Aim-v0" if name == "sac" else "Debug-Match-v0")
    env, made = EpisodeStatistics(env), algorithm(name)
    config = small(made.config)
    policy = made.policy(env, params, NetworkConfig(hidden=(8,)), config)
    if bonus is None:
        return made.make(config, env, params, policy, None)
    return made.make(config, env, params, policy, None, bonus=bonus(env, params))


def offline(name: str) -> Learner:
    """A registered offline algorithm, on recorded steps of continuous actions if it has them."""
    made, x = algorithm(name), jnp.asarray(np.random.default_rng(0).standard_normal((64, 3)), jnp.float32)
    no = jnp.zeros(64, bool)
    action = jnp.argmax(x, -1).astype(jnp.int32) if "discrete" in name else jnp.tanh(x[:, :2])
    data = Transitions(x, action, x.sum(1), x, no, no.at[-1].set(True))
    actions, config = actions_of(data, None), small(made.config, hidden=(8,))
    return make_offline(made.make(config, actions), config, data, actions)


@cache
def llama() -> tuple[Any, Any]:
    """A model with adapters, and its weights."""
    config = lm.LlamaConfig(20, 16, 24, 2, 4, 2, max_position_embeddings=32)
    model = lm.Llama(config, lora=lm.LoRAConfig(rank=2))
    return model, random_variables(model)


def sft() -> Learner:
    draw, (model, variables) = np.random.default_rng(0), llama()
    rows = [
        Example(draw.integers(1, 20, n).tolist(), [i >= n // 2 for i in range(n)]) for n in (4, 6, 2, 9, 5, 3, 7, 8)
    ]
    return make_sft(SFTConfig(batch_size=2, microbatches=2), model, variables, pack(rows, 16), 1)


def grpo() -> Learner:
    config = GRPOConfig(prompts=2, group=2, max_new_tokens=3)
    prompts = Prompts(np.array([[3, 4], [2, 0]], np.int32), np.array([2, 1], np.int32))
    return make_grpo(config, *llama(), prompts, lambda found, places: (found.tokens[..., 0] == 1).astype(jnp.float32))


def glam() -> Learner:
    from llmrl_jax.systems.glam.build import build
    from tests.glam import TINY

    return build(TINY).learner()


def ellm() -> Learner:
    from llmrl_jax.rl.branches import BranchConfig
    from llmrl_jax.rl.dqn import DQNConfig
    from llmrl_jax.systems.ellm.build import build
    from llmrl_jax.systems.ellm.config import EllmConfig
    from tests.ellm_world import Yard

    config = EllmConfig(
        encoder="hashed",
        network=BranchConfig(width=16, head_hidden=()),
        dqn=small(DQNConfig, replay_size=64, n_step=2),
    )
    return build(config, Yard()).learner()


def writes(algo: str) -> Learner:
    """A learner of `llmrl agent train`, in a world of notes."""
    from llmrl_jax.lm.small import SmallConfig
    from llmrl_jax.multiturn.group import GroupConfig
    from llmrl_jax.multiturn.ppo import TurnPPOConfig
    from llmrl_jax.systems.agent.build import build, make_learner
    from llmrl_jax.systems.agent.config import AgentConfig, TrainConfig

    sizes = SmallConfig(hidden_size=16, layers=1, heads=2, intermediate_size=16)
    agent = AgentConfig(env="Notes-Recall-v0?turns=1", embedded=sizes, reply_tokens=4)
    if algo.endswith("ppo"):
        agent = dataclasses.replace(agent, value_width=8)
        settings: Any = {"ppo": small(TurnPPOConfig, episode_tokens=64)}
    else:
        settings = {"group": small(GroupConfig, episode_tokens=64, group=2)}
    return make_learner(TrainConfig(agent=agent, algo=algo, **settings), build(agent))


LEARNERS: dict[str, Callable[[], Learner]] = {
    **{name: partial(online, name) for name in ALGORITHMS},
    **{name: partial(offline, name) for name in OFFLINE},
    "dqn, RND": partial(online, "dqn", lambda env, params: RND()),
    "dqn, NovelD": partial(online, "dqn", lambda env, params: NovelD()),
    "dqn, APT": partial(online, "dqn", lambda env, params: APT(env.action_space(params).n)),
    "sft": sft,
    "grpo": grpo,
    "glam": glam,
    "ellm": ellm,
    **{f"agent, {name}": partial(writes, name) for name in get_args(Algorithm)},
}


def quickly(names: Iterable[str], quick: Iterable[str]) -> list[Any]:
    """Parameters of a test: those of `quick` as they are, the others of `names` slow."""
    assert set(quick) <= set(names)
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


ONE_OF_EACH = ("ppo", "sac", "iql", "dqn, RND", "sft", "agent, gigpo")
"""Learners of each kind of program, the cheapest of each."""


def one_update(name: str) -> tuple[Callable[..., Any], Any]:
    """`init` and `update` of a learner as one function, and its argument."""
    learner = LEARNERS[name]()
    if name == "sft":  # its first state copies weights, outside jit
        return learner.update, learner.init(jax.random.key(0))
    return lambda key: learner.update(learner.init(key)), jax.random.key(0)


def generated(tokens: Any, **options: Any) -> Any:
    model, variables = llama()
    config = lm.SamplingConfig(max_new_tokens=3, **options)
    return lm.generate(model, variables, tokens, jnp.full(len(tokens), 5, jnp.int32), jax.random.key(0), config)


CANDIDATES = lm.Candidates([[1, 2], [1, 3, 4]])


def scored(tokens: Any, form: str) -> Any:
    model, variables = llama()
    lengths = jnp.full(len(tokens), 5, jnp.int32)
    return lm.score(model, variables, tokens, lengths, CANDIDATES, form=form)


def gradient(tokens: Any) -> Any:
    model, variables = llama()
    return jax.grad(lambda v: jnp.sum(model.apply(v, tokens).logits ** 2))(variables)


LANGUAGE: dict[str, Callable[[Any], Any]] = {
    "generate": generated,
    "generate, all options": partial(
        generated, temperature=0.7, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.1, samples=2
    ),
    "score, tree": partial(scored, form="tree"),
    "score, branches": partial(scored, form="branches"),
    "score, naive": partial(scored, form="naive"),
    "gradient": gradient,
}
"""What is computed from prompts, int32 `[B, 5]`."""
