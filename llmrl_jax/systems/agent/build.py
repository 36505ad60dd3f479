"""From settings to a program: the environment, its text, the model, the policy and the learner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from envs_jax.actions import ChosenActions
from envs_jax.bridges.host import HostEnvironment, HostWorld
from envs_jax.env import Environment
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax import lm
from llmrl_jax.core.checks import nearest, option, refuse_unread
from llmrl_jax.core.functions import load_function
from llmrl_jax.core.learner import Learner
from llmrl_jax.lm.config import dtype_options
from llmrl_jax.lm.model import random_params
from llmrl_jax.lm.small import EMBEDDED
from llmrl_jax.lm.source import check_weights
from llmrl_jax.lm.tokens import FastTokenizer, WordTokenizer, load_tokenizer
from llmrl_jax.multiturn.group import make_group_learner
from llmrl_jax.multiturn.policy import TurnPolicy
from llmrl_jax.multiturn.ppo import make_turn_ppo
from llmrl_jax.multiturn.replies import FORMATS, ReplyAutomaton
from llmrl_jax.multiturn.text import WORDINGS, FreeText, TurnText, check_text
from llmrl_jax.parallel import make_mesh
from llmrl_jax.systems.agent.config import AgentConfig, TrainConfig, demo_config


@dataclass(frozen=True)
class WritingAgent:
    """All components of an agent that writes."""

    config: AgentConfig
    env: Environment
    """The wrapped environment, not batched."""
    env_params: Any
    tokenizer: FastTokenizer
    policy: TurnPolicy
    mesh: jax.sharding.Mesh | None


def make_world(config: AgentConfig) -> tuple[Environment, Any]:
    """The wrapped environment of a configuration, and its parameters.

    **Raises:** `KeyError` for an unknown id, `TypeError` for an environment without text or discrete actions,
    `ValueError` for a task or a number of actions that it lacks."""
    env, params = envs_jax.make(config.env)
    check_text(env)
    if config.max_turns:
        if not hasattr(params, "max_steps"):
            raise TypeError(f"max_turns is {config.max_turns}, but {config.env} has no parameter max_steps: leave it 0")
        params = params.replace(max_steps=np.int32(config.max_turns))
    if config.task:
        unwrapped: Any = env.unwrapped
        tasks = unwrapped.task_names if hasattr(params, "task_weights") else ()
        if config.task not in tasks:
            there = f"has {', '.join(tasks)}" if tasks else "has no tasks: leave it empty"
            raise ValueError(f"task is {config.task!r}, but {config.env} {there}")
        params = params.replace(task_weights=np.array([name == config.task for name in tasks], np.float32))
    return EpisodeStatistics(ChosenActions(env, config.num_actions) if config.num_actions else env), params


def load_world(name: str) -> HostWorld | None:
    """The environment that `FILE.py:FUNCTION` or `module:FUNCTION` returns; None for an id, which is no name of a
    function. **Raises:** what `load_function` raises, `TypeError` for a function that returns something else."""
    if not name.rpartition(":")[0] or not name.rpartition(":")[2].isidentifier():
        return None
    world = load_function(name, "world", ", or an id (llmrl envs list text)")()
    if not isinstance(world, HostWorld):
        raise TypeError(f"{name} returned {world!r}; an envs_jax.bridges.host.HostWorld is needed")
    return world


def text_of(world: HostWorld, tokenizer: FastTokenizer, config: AgentConfig) -> FreeText:
    """The text of an environment of the host."""
    sizes = {name: getattr(world, name) for name in ("turn_tokens", "head_tokens", "long")}
    return FreeText(tokenizer, tuple(world.actions), WORDINGS[config.wording], **sizes)


NOWHERE = "nowhere"
"""What the expert's thought says of a goal that is not in view."""

BLOCKED = "blocked"
"""What the expert's thought says where something stands in the way."""

HENCE = "so"
"""What the expert's thought says before its plan."""


SPARE_WORDS = 64
"""Tokens for words that an environment of the host does not announce."""


def words_of(env: Environment | HostWorld, config: AgentConfig) -> WordTokenizer:
    """The tokenizer of all words that an environment and replies have."""
    wording = WORDINGS[config.wording]
    form = FORMATS[config.format]
    names = tuple(env.actions) if isinstance(env, HostWorld) else env.action_names
    texts = [wording.instruction.format(actions=", ".join(names)), wording.goal, wording.observation]
    texts += [
        wording.reply,
        f"{wording.end}{wording.between}",
        "THINK",
        NOWHERE,
        BLOCKED,
        HENCE,
        form.opening,
        form.closing,
        *(form.thought or ()),
    ]
    if isinstance(env, HostWorld):
        return WordTokenizer.from_texts([*texts, *env.vocabulary, *names], spare=SPARE_WORDS)
    before, after = wording.sentence
    for name, book in env.captions.items():
        ends = ("",) if name in env.episode_captions else ("", after)
        texts += [f"{before}{phrase}{end}" for phrase in book.phrases for end in ends]
    return WordTokenizer.from_texts([*texts, *names])


def build(config: AgentConfig, mesh: jax.sharding.Mesh | None = None, world: HostWorld | None = None) -> WritingAgent:
    """Build the program of a configuration. All checks precede allocation and compilation.

    **Arguments:** `world`, of Python, instead of the one that `config.env` names.
    **Raises:** `KeyError` for unknown names, `TypeError` for an environment without text, `PromptError` for a tokenizer
    that cannot join the parts of its text, `ValueError` for a format that its actions or tokens cannot have, and for
    sizes.
    """
    mesh = make_mesh(config.mesh) if mesh is None and config.mesh else mesh
    name = config.env if world is None else ""
    world = load_world(config.env) if world is None else world
    if world is None:
        env, env_params = make_world(config)
        names = env.action_names
    else:
        names = tuple(world.actions)
        _check_host(config, mesh)
    if config.default_action and config.default_action not in names:
        raise ValueError(
            f"default_action is {config.default_action!r}{nearest(config.default_action, list(names))}; the world has "
            f"{', '.join(names)}"
        )
    options = dtype_options(config.dtype)
    tokenizer: FastTokenizer
    if config.model == EMBEDDED:
        tokenizer = words_of(env if world is None else world, config)
        sizes = config.embedded.llama(tokenizer, 4096)
        ends: tuple[int, ...] = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
    else:
        check_weights(config.model)
        sizes, tokenizer = lm.read_config(config.model), load_tokenizer(lm.locate(config.model))
        ends = lm.end_tokens(config.model, tokenizer)
        options["param_dtype"] = jnp.dtype(jnp.float32) if config.tune == "full" else options["dtype"]
    text: TurnText | FreeText
    if world is None:
        text = TurnText(env, tokenizer, WORDINGS[config.wording])
    else:
        text = text_of(world, tokenizer, config)
        env = EpisodeStatistics(HostEnvironment(world, text, name))
        env_params = env.default_params
    replies = ReplyAutomaton.build(tokenizer, config.format, names, sizes.vocab_size, ends, config.think)
    blank = lm.Llama(sizes, remat=config.remat, attention=config.attention, **options)
    base = partial(random_params, blank, mesh)
    if config.model != EMBEDDED:
        base = partial(_loaded_base, config.model, mesh, blank.param_dtype)
    policy = TurnPolicy(
        model=blank.clone(lora=None if config.tune == "full" else config.lora),
        base=base,
        value_head=lm.ValueHead(config.value_width, "relu", starts_at_zero=True),
        text=text,
        replies=replies,
        reply_tokens=config.reply_tokens,
        default_action=names.index(config.default_action) if config.default_action else 0,
        temperature=config.temperature,
        constrained=config.decoding == "constrained",
        memory=config.memory,
        window=config.window,
        mesh=mesh,
    )
    return WritingAgent(config, env, env_params, tokenizer, policy, mesh)


def _check_host(config: AgentConfig, mesh: jax.sharding.Mesh | None) -> None:
    """**Raises** `ValueError` for settings that an environment of the host does not have."""
    if config.num_actions:
        raise ValueError(f"num_actions is {config.num_actions}, but a world of Python names its actions: leave it 0")
    if config.task:
        raise ValueError(f"task is {config.task!r}, but a world of Python has one: leave it empty")
    if config.max_turns:
        raise ValueError(
            f"max_turns is {config.max_turns}, but a world of Python has its own (HostWorld.max_turns): leave it 0"
        )
    if mesh is not None and mesh.size > 1:
        raise ValueError(f"mesh has {mesh.size} devices; an environment of Python is played on one")


def make_learner(config: TrainConfig, agent: WritingAgent) -> Learner:
    """The learner of a run. **Raises** `ValueError` for settings of other learners, sizes that do not divide, or
    episodes that do not fit."""
    no_critic = ["ppo", "agent.value_width"]
    unread = {"grpo": [*no_critic, "group.anchor_coef", "group.gamma"], "gigpo": no_critic}.get(config.algo, ["group"])
    refuse_unread(
        config,
        unread,
        f"the learner {config.algo}",
        usual=(type(config)(), demo_config(algo=config.algo)),  # the demo has the same values for all learners
        remedy="or take another --algo",
        spell=lambda name: option(name.removeprefix("agent.")),
    )
    arguments = (agent.policy, agent.env, agent.env_params, agent.mesh)
    if config.algo in ("turn_ppo", "token_ppo"):
        return make_turn_ppo(config.ppo, *arguments, level="turn" if config.algo == "turn_ppo" else "token")
    anchor_coef = 0.0 if config.algo == "grpo" else config.group.anchor_coef or 1.0
    return make_group_learner(replace(config.group, anchor_coef=anchor_coef), *arguments)


def _loaded_base(path: str, mesh: jax.sharding.Mesh | None, dtype: Any, key: jax.Array) -> Any:
    """Base parameters from files; the key is not needed."""
    return lm.load(path, mesh=mesh, dtype=dtype)[1]["params"]
