"""From settings to a program: the wrapped environment, the prompt, the model, the policy and the learner; and the other
agents of GLAM's comparison behind the same interface (Carta et al., 2302.02662)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from envs_jax.actions import MASK, ChosenActions
from envs_jax.env import Environment
from envs_jax.history import PromptHistory
from envs_jax.text import CompiledPrompt, Tokenizer
from envs_jax.wrappers import EpisodeStatistics, ScaleReward
from llmrl_jax import lm
from llmrl_jax.agents.agent import Agent, SimpleAgent
from llmrl_jax.agents.babyai import BotPolicy, StateView
from llmrl_jax.agents.competence import Competence
from llmrl_jax.agents.drrn import DRRNPolicy
from llmrl_jax.agents.language import ActionHead, HeadsPolicy, LanguagePolicy, ScoringPolicy
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import option, refuse_unread
from llmrl_jax.core.learner import Learner
from llmrl_jax.lm.config import dtype_options
from llmrl_jax.lm.model import random_params
from llmrl_jax.lm.score import costs
from llmrl_jax.lm.small import EMBEDDED
from llmrl_jax.lm.source import check_weights
from llmrl_jax.lm.tokens import WordTokenizer, load_tokenizer
from llmrl_jax.parallel import Placement, make_mesh
from llmrl_jax.rl.dqn import make_dqn
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.rl.ppo import PPOConfig, make_ppo
from llmrl_jax.rl.precision import platform_of
from llmrl_jax.systems.glam.config import GlamConfig
from llmrl_jax.systems.glam.prompts import GlamPrompt, check_observed, glam_prompt
from llmrl_jax.systems.glam.symbolic import SymbolicPolicy, SymbolicView


@dataclass(frozen=True)
class Glam:
    """All components of a run of GLAM's language model."""

    config: GlamConfig
    env: Environment
    """The wrapped environment, not batched."""
    env_params: Any
    prompt: GlamPrompt
    compiled: CompiledPrompt
    tokenizer: Tokenizer
    policy: LanguagePolicy
    mesh: jax.sharding.Mesh | None

    def learner(self) -> Learner:
        """PPO on the policy, and on its prediction of success if it makes one."""
        coef = self.config.competence_coef
        auxiliary = Competence(self.policy, coef) if coef else None
        return make_ppo(self.ppo, self.env, self.env_params, self.policy, self.mesh, auxiliary)

    @property
    def ppo(self) -> PPOConfig:
        """The learner's settings: with groups of a size that was chosen (`grouping`), microbatches are such groups."""
        ppo = self.config.ppo
        part, remainder = divmod(ppo.num_envs * ppo.num_steps, ppo.minibatches * ppo.microbatches)
        chosen = self.policy.widths and not self.config.score_rows
        # the published bug compares the values of a whole microbatch: its size changes what is learned
        if not chosen or remainder or part % self.policy.rows or ppo.value_broadcast == "glam":
            return ppo
        return replace(ppo, microbatches=ppo.microbatches * part // self.policy.rows)


EXTRA_ACTIONS = ("sleep", "do nothing", "think")
"""Actions without effect, which extend the canonical six to the augmented set of nine."""


def with_actions(env: Environment, n: int) -> Environment:
    """An environment with `n` actions: its first `n`, or, for the paper's nine, six and three without effect."""
    names = env.action_names
    if n == 6 + len(EXTRA_ACTIONS):
        return ChosenActions(env, 6, EXTRA_ACTIONS)
    if n > len(names):
        raise ValueError(
            f"num_actions is {n}, but {env.id} has {len(names)} actions: {', '.join(names)}; 9 adds "
            f"{', '.join(EXTRA_ACTIONS)} to the first six"
        )
    return ChosenActions(env, n)


def make_world(config: GlamConfig) -> tuple[Environment, Any]:
    """The wrapped environment of a configuration, not batched, and its parameters.

    **Raises:** `KeyError` for an unknown id, `TypeError` for an environment without a text or a goal.
    """
    env, params = envs_jax.make(config.env)
    check_observed(env)
    return prompted(EpisodeStatistics(with_actions(env, config.num_actions)), config), params


def prompted(env: Environment, config: GlamConfig) -> Environment:
    """An environment with the observations from which prompts are made: the window of `config`, and the action mask if
    the environment has one."""
    parts = getattr(env.observation_space(env.default_params), "spaces", {})
    keep = [MASK] if MASK in parts else []
    return PromptHistory(ScaleReward(env, config.reward_scale), config.history, keep=keep)


def build(config: GlamConfig, mesh: jax.sharding.Mesh | None = None) -> Glam:
    """Build the program of a configuration. All checks precede allocation and compilation.

    **Arguments:** `config`; `mesh`, instead of `config.mesh`.
    **Raises:** `KeyError` for unknown names, `ValueError` for inconsistent sizes, `PromptError` for a tokenizer that
    cannot assemble the prompt or a prompt longer than the model's positions, `FileNotFoundError` or `ValueError` for a
    model that cannot be loaded.
    """
    mesh = _mesh(config) if mesh is None else mesh
    env, env_params = make_world(config)
    template = glam_prompt(env, env.action_names, history=config.history, list_actions=config.list_actions)
    tokenizer, compiled, model, base = _model(config, template, mesh)
    policy = _policy(config, template, compiled, model, base, mesh)
    return Glam(config, env, env_params, template, compiled, tokenizer, policy, mesh)


def _mesh(config: GlamConfig) -> jax.sharding.Mesh | None:
    return make_mesh(config.mesh) if config.mesh else None


Base = Callable[[jax.Array], Any]
"""From a PRNG key to base parameters."""


def _model(
    config: GlamConfig, template: GlamPrompt, mesh: jax.sharding.Mesh | None
) -> tuple[Tokenizer, CompiledPrompt, lm.Llama, Base]:
    """The tokenizer, the prompt for it, the model and its initial weights.

    The embedded model is a small Llama with random weights, whose vocabulary is the words of the prompt.
    """
    embedded, heal, options = config.model == EMBEDDED, config.candidate_space == "healed", dtype_options(config.dtype)
    if embedded and config.init == "embeddings":
        raise ValueError("init is embeddings, but the embedded model has none to keep: give --model, or --init random")
    tokenizer: Tokenizer
    if embedded:
        tokenizer = words = WordTokenizer.from_prompt(template.prompt, template.actions, config.embedded.spare_words)
        compiled = template.compile(tokenizer, config.max_prompt or None, heal=heal)
        sizes = config.embedded.llama(words, compiled.max_length * (2 if config.embedded.spare_words else 1) + 16)
    else:
        sizes = lm.read_config(config.model)
        if config.init != "random":
            check_weights(config.model)
        tokenizer = load_tokenizer(lm.locate(config.model))
        longest = sizes.max_position_embeddings - longest_answer(tokenizer, template)
        compiled = template.compile(tokenizer, min(config.max_prompt or longest, longest), heal=heal)
        check_vocabulary(compiled, sizes.vocab_size, config.model)
        # trained weights stay float32, since updates of 1e-6 would be lost to rounding
        options["param_dtype"] = jnp.dtype(jnp.float32) if config.tune == "full" else options["dtype"]
    blank = lm.Llama(sizes, remat=config.remat, attention=config.attention, **options)
    kind = None if config.quantize == "none" else config.quantize
    base: dict[str, Base] = {
        "pretrained": partial(_loaded_base, config.model, mesh, blank.param_dtype, kind),
        "random": partial(_random_base, blank, mesh, kind),
        "embeddings": partial(_base_with_embeddings, config.model, blank, mesh, kind),
    }
    model = blank.clone(lora=None if config.tune == "full" else config.lora)
    return tokenizer, compiled, model, base["random" if embedded else config.init]


def check_vocabulary(compiled: CompiledPrompt, vocab_size: int, model: str) -> None:
    """**Raises** `ValueError` for a prompt with tokens that the model does not have."""
    if compiled.top_token >= vocab_size:
        raise ValueError(
            f"a prompt holds the token {compiled.top_token}, but the vocabulary of {model} is 0 to {vocab_size - 1}: "
            "the tokenizer there is not the model's"
        )


def _policy(
    config: GlamConfig,
    template: GlamPrompt,
    compiled: CompiledPrompt,
    model: lm.Llama,
    base: Base,
    mesh: jax.sharding.Mesh | None,
) -> LanguagePolicy:
    head = lm.ValueHead(config.value_width, config.value_activation)
    candidates = candidates_of(template, compiled)
    rows, widths = grouping(config, mesh, model.config, compiled.max_length, candidates)
    shared: dict[str, Any] = {
        "model": model,
        "prompts": template.batched(compiled),
        "prefix": shared_prefix(compiled),
        "base": base,
        "value_head": head,
        "stop_value_gradient": config.stop_value_gradient,
        "competence_head": head if config.competence_coef else None,
        "stop_competence_gradient": config.stop_competence_gradient,
        "rows": rows,
        "widths": widths,
        "mesh": mesh,
    }
    if config.policy == "heads":
        actions = ActionHead(len(template.actions), config.value_width, config.value_activation)
        return HeadsPolicy(action_head=actions, **shared)
    return ScoringPolicy(candidates=candidates, scoring=config.scoring, **shared)


def candidates_of(template: GlamPrompt, compiled: CompiledPrompt) -> lm.Candidates:
    """The actions of a prompt as tokens, with the number of words of each."""
    table = compiled.candidates(template.actions)
    tokens = [row[:n].tolist() for row, n in zip(table.tokens, table.lengths)]
    return lm.Candidates(tokens, [len(name.split()) for name in template.actions])


SHARED_FROM = 16
"""The fewest tokens that are worth a pass of their own. With the smallest model on a CPU, 4 of 58 tokens cost 9% more
time of an update, and 19 of 175 save 5%."""


def shared_prefix(compiled: CompiledPrompt) -> tuple[int, ...]:
    """The tokens with which every prompt begins (the list of actions), to be computed once for a batch; empty if they
    are few."""
    return compiled.head if len(compiled.head) >= SHARED_FROM else ()


def longest_answer(tokenizer: Tokenizer, template: GlamPrompt) -> int:
    """Length in tokens of the longest action after a prompt."""
    return max(len(tokenizer.encode(f" {name}")) for name in template.actions)


def paddings(longest: int, count: int) -> tuple[int, ...]:
    """`count - 1` evenly spaced padded lengths below the longest prompt."""
    return tuple(-(-longest * k // count) for k in range(1, count))


WIDTHS = 4
"""Padded lengths on accelerators. In GLAM's task, 4 lengths compute 0.65 of the tokens of one length in play and 0.58
in learning, 8 lengths 0.58 and 0.52; each length is compiled by itself."""

GROUP = 16
"""The least number of prompts in a group, where the batches allow it. A pass of 30 layers has about 700 kernels, whose
launches take a GPU 1 ms; the products of 16 prompts of 250 tokens take several with 135M parameters."""

GROUP_PER_DEVICE = 2
"""The same for each device of a mesh: with 500 tokens a TPU is bound by operations, not by reading weights."""

WORK = 1e11
"""Multiply-adds, for each device, of a pass over a batch of play that is worth dividing. They take about as long as
the launches of a pass."""


def grouping(
    config: GlamConfig, mesh: jax.sharding.Mesh | None, sizes: lm.LlamaConfig, longest: int, candidates: lm.Candidates
) -> tuple[int, tuple[int, ...]]:
    """Number of prompts that are scored at once, and the lengths to which they are padded, by the device.

    With several lengths, and unless `score_rows` names it, the size of a group divides the batches of play and of
    learning, so that both compute groups of the same size: other shapes would round in another way. It is about a
    quarter of the batch of play and at least `GROUP`.

    **Arguments:** `config`; `mesh`; `sizes`, of the model; `longest`, tokens of the longest prompt; `candidates`.
    **Returns:** `rows` and `widths` of `LanguagePolicy`.
    **Raises:** `ValueError` for groups that the devices do not divide.
    """
    ppo, devices, count = config.ppo, Placement(mesh).row_devices, config.score_widths
    if not count:
        work = ppo.num_envs * costs(sizes, longest, candidates)["tree"] / devices
        count = 1 if platform_of(mesh) == "cpu" or work < WORK else WIDTHS
    if count == 1:
        return config.score_rows, ()
    if config.score_rows:
        if config.score_rows % devices:
            raise ValueError(
                f"score_rows is {config.score_rows}, a group of prompts that {devices} devices share: give a multiple "
                f"of {devices}, or --score-widths 1"
            )
        return config.score_rows, paddings(longest, count)
    part = ppo.num_envs * ppo.num_steps // (ppo.minibatches * ppo.microbatches)
    common = math.gcd(ppo.num_envs, part)
    largest = max(GROUP, GROUP_PER_DEVICE * devices, ppo.num_envs // 4)
    rows = max((n for n in range(devices, min(largest, common) + 1, devices) if common % n == 0), default=0)
    # small groups of batches that have no common divisor would cost more than padding does
    return (rows, paddings(longest, count)) if rows >= min(GROUP // 2, ppo.num_envs) else (0, ())


def _random_base(model: lm.Llama, mesh: jax.sharding.Mesh | None, kind: str | None, key: jax.Array) -> Any:
    """Randomly initialised base parameters, placed on the mesh."""
    params = random_params(model, mesh, key)
    return params if kind is None else lm.quantize(params, kind)


def _loaded_base(path: str, mesh: jax.sharding.Mesh | None, dtype: Any, kind: str | None, key: jax.Array) -> Any:
    """Base parameters from files; the key is not needed."""
    return lm.load(path, mesh=mesh, dtype=dtype, quantize=kind)[1]["params"]


def _base_with_embeddings(path: str, model: lm.Llama, mesh: jax.sharding.Mesh | None, kind: str | None, key: jax.Array):
    """Randomly initialised base parameters, except for the token embeddings, which are loaded from files."""
    embeddings = _loaded_base(path, mesh, model.param_dtype, None, key)["embed_tokens"]
    return {**_random_base(model, mesh, kind, key), "embed_tokens": embeddings}


# --- agents -----------------------------------------------------------------------------------------------------------


def make_agent(config: GlamConfig) -> Agent:
    """The agent `config.agent`, with its environment.

    **Raises:** `ValueError` for changed settings that the agent does not read, and what `build` raises.
    """
    make, reads = AGENTS[config.agent]
    unread = [f.name for f in dataclasses.fields(config) if f.name not in reads]
    remedy = f"or begin with a preset of this agent; it reads {', '.join(option(name) for name in sorted(reads))}"
    refuse_unread(config, unread, f"the agent {config.agent}", remedy=remedy)
    with doing("preparing the agent"):
        return make(config)


def _view_world(config: GlamConfig, view: Callable[[Environment], Environment]) -> tuple[Environment, Any]:
    """The wrapped environment without its text, with the observations of `view`."""
    env, params = envs_jax.make(config.env)
    env = EpisodeStatistics(with_actions(view(env), config.num_actions))
    return ScaleReward(env, config.reward_scale), params


def _symbolic(config: GlamConfig) -> SimpleAgent:
    env, params = _view_world(config, SymbolicView)
    policy = SymbolicPolicy(env, config.symbolic)
    return SimpleAgent(config, env, params, policy, lambda: make_ppo(config.ppo, env, params, policy, _mesh(config)))


def _drrn(config: GlamConfig) -> SimpleAgent:
    env, params = make_world(config)
    template = glam_prompt(env, env.action_names, history=config.history, list_actions=config.list_actions)
    tokenizer = WordTokenizer.from_prompt(template.prompt, template.actions)
    compiled = template.compile(tokenizer, config.max_prompt or None)
    actions = compiled.candidates(template.actions)
    epsilon = config.dqn.epsilon_end if config.dqn.acting == "epsilon" else None
    policy = DRRNPolicy(
        config.drrn, tokenizer.vocab_size, template.batched(compiled), actions, epsilon, config.dqn.temperature
    )
    return SimpleAgent(
        config, env, params, policy, lambda: make_dqn(config.dqn, env, params, policy, mesh=_mesh(config))
    )


def _random(config: GlamConfig) -> SimpleAgent:
    env, params = _view_world(config, SymbolicView)
    return SimpleAgent(config, env, params, RandomPolicy(config.num_actions), None)


def _bot(config: GlamConfig) -> SimpleAgent:
    env, params = _view_world(config, StateView)
    world: Any = env.unwrapped  # type: ignore[attr-defined]
    return SimpleAgent(config, env, params, BotPolicy(config.num_actions, world.level.rooms.width), None)


_ALL_SETTINGS = {f.name for f in dataclasses.fields(GlamConfig)}
_ENV_SETTINGS = {"agent", "env", "num_actions", "reward_scale"}

AGENTS: dict[str, tuple[Callable[[GlamConfig], Agent], set[str]]] = {
    "llm": (build, _ALL_SETTINGS - {"symbolic", "drrn", "dqn"}),
    "symbolic": (_symbolic, _ENV_SETTINGS | {"mesh", "ppo", "symbolic"}),
    "drrn": (_drrn, _ENV_SETTINGS | {"history", "list_actions", "max_prompt", "mesh", "drrn", "dqn"}),
    "random": (_random, _ALL_SETTINGS),
    "bot": (_bot, _ALL_SETTINGS),
}
"""Agents by name, each with the settings of `GlamConfig` that it reads. `random` and `bot` accept all settings, since
they may replace any other agent."""
