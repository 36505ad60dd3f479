"""From settings to a program: the world in its wrappers, the prompt, the model, the policy, the learner."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from envs_jax.actions import MASK, OtherActions
from envs_jax.env import Environment
from envs_jax.history import PromptHistory
from envs_jax.text import CompiledPrompt, Tokenizer
from envs_jax.wrappers import EpisodeStatistics, ScaleReward
from llmrl_jax import lm
from llmrl_jax.agents.competence import Competence
from llmrl_jax.agents.heads import ActionHead, HeadsPolicy
from llmrl_jax.agents.language import LanguagePolicy, ScoringPolicy
from llmrl_jax.lm.tokens import WordTokenizer, load_tokenizer
from llmrl_jax.parallel import make_mesh, shardings
from llmrl_jax.rl.learner import Learner
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.systems.glam.config import EMBEDDED, EmbeddedConfig, GlamConfig
from llmrl_jax.systems.glam.prompt import GlamPrompt, glam_prompt
from llmrl_jax.systems.glam.rewrites import EXTRA_ACTIONS, ExtraActions


@dataclass(frozen=True)
class Glam:
    """Everything that a run of GLAM's language model is made of."""

    config: GlamConfig
    env: Environment
    """The world in its wrappers, not batched."""
    env_params: Any
    prompt: GlamPrompt
    compiled: CompiledPrompt
    tokenizer: Tokenizer
    policy: LanguagePolicy
    mesh: jax.sharding.Mesh | None

    def learner(self) -> Learner:
        """PPO on the policy, and on its prediction of success where it makes one."""
        coef = self.config.competence_coef
        auxiliary = Competence(self.policy, coef) if coef else None
        return make_ppo(self.config.ppo, self.env, self.env_params, self.policy, self.mesh, auxiliary)


class FirstActions(OtherActions):
    """The world with its first `n` actions only, as GLAM's restricted action sets have it."""

    def __init__(self, env: Environment, n: int):
        super().__init__(env)
        known = env.action_names
        if not 1 <= n <= len(known):
            raise ValueError(
                f"num_actions is {n}, but {env.id} has {len(known)} actions: {', '.join(known)}; 9 adds "
                f"{', '.join(EXTRA_ACTIONS)} to the first six"
            )
        self.n = n

    def offered(self, mask):
        return mask[: self.n]

    def action_space(self, params):
        return envs_jax.spaces.Discrete(self.n)

    @property
    def action_names(self):
        return self.env.action_names[: self.n]


def acting(env: Environment, n: int) -> Environment:
    """A world with `n` actions: its first `n`, or, for the paper's nine, six and three that do nothing."""
    nine = len(EXTRA_ACTIONS) + 6
    return ExtraActions(env, 6, EXTRA_ACTIONS) if n == nine else FirstActions(env, n)


def make_world(config: GlamConfig) -> tuple[Environment, Any]:
    """The world of a configuration in its wrappers, not batched, and its parameters.

    **Raises:** `KeyError` for an unknown id, `TypeError` for a world without text.
    """
    env, params = envs_jax.make(config.env)
    return prompted(EpisodeStatistics(acting(env, config.num_actions)), config), params


def prompted(env: Environment, config: GlamConfig) -> Environment:
    """A world with its actions as a policy is prompted with it: the window of `config`, and the mask of the actions
    where the world has one."""
    parts = getattr(env.observation_space(env.default_params), "spaces", {})
    kept = [MASK] if MASK in parts else []
    return PromptHistory(ScaleReward(env, config.reward_scale), config.history, keep=kept)


def embedded_config(sizes: EmbeddedConfig, tokenizer: Tokenizer, positions: int) -> lm.LlamaConfig:
    """The configuration of the small Llama for a tokenizer and a prompt."""
    if sizes.hidden_size % sizes.heads:
        raise ValueError(f"hidden_size {sizes.hidden_size} is not a multiple of heads {sizes.heads}")
    return lm.LlamaConfig(
        vocab_size=-(-tokenizer.vocab_size // 8) * 8,  # a multiple of 8, so that meshes divide it
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
    )


def _base(model: lm.Llama, mesh: jax.sharding.Mesh | None, kind: str | None, key: jax.Array) -> Any:
    """Base parameters drawn at random, placed on the mesh."""
    out = None if mesh is None else shardings(model.abstract()["params"], model.logical_axes()["params"], mesh)
    draw = jax.jit(lambda k: model.init(k, jnp.zeros((1, 1), jnp.int32))["params"], out_shardings=out)
    params = draw(key)
    return params if kind is None else lm.quantize(params, kind)


def build(config: GlamConfig, mesh: jax.sharding.Mesh | None = None) -> Glam:
    """Assemble a configuration, checking it before anything is allocated or compiled.

    **Arguments:** `config`; `mesh`, in place of `config.mesh`.
    **Raises:** `KeyError` for unknown names, `ValueError` for sizes that do not fit together, `PromptError` for a
    tokenizer that cannot assemble the prompt or a prompt longer than the model's positions, `FileNotFoundError`
    or `ValueError` for a model that cannot be loaded.
    """
    if mesh is None and config.mesh:
        mesh = make_mesh(config.mesh)
    if config.quantize != "none" and config.tune == "full":
        raise ValueError(f"quantize is {config.quantize}, which freezes the base: take tune lora, or quantize none")
    kind = None if config.quantize == "none" else config.quantize
    if config.score_rows < 0:
        raise ValueError(f"score_rows is {config.score_rows}; 0 or more is needed")
    if config.score_widths < 1:
        raise ValueError(f"score_widths is {config.score_widths}; at least 1 is needed")
    if config.score_widths > 1 and (mesh is not None or not config.score_rows):
        raise ValueError(
            f"score_widths is {config.score_widths}, which sorts prompts into groups of score_rows: it needs "
            "score_rows above 0 and no mesh; leave it 1"
        )
    if not 0 <= config.competence_coef < math.inf:
        raise ValueError(
            f"competence_coef is {config.competence_coef}; 0 (no such head) or a positive number is needed"
        )
    if config.stop_competence_gradient and not config.competence_coef:
        raise ValueError(
            "stop_competence_gradient is set, but competence_coef is 0: there is no such head to keep apart"
        )
    if config.policy == "heads" and config.scoring != "sum":
        raise ValueError(f"scoring is {config.scoring}, but the policy heads scores no action strings; leave it sum")
    env, env_params = make_world(config)
    template = glam_prompt(env, env.action_names, history=config.history, list_actions=config.list_actions)
    heal = config.candidate_space == "healed"
    dtype = jnp.dtype(config.dtype)
    tuned = None if config.tune == "full" else config.lora
    limit = config.max_prompt or None
    if config.model == EMBEDDED:
        tokenizer: Tokenizer = WordTokenizer.from_prompt(template.prompt, template.actions, config.embedded.spare_words)
        compiled = template.compile(tokenizer, limit, heal=heal)
        if config.init == "embeddings":
            raise ValueError(
                "init is embeddings, but the embedded model has none to keep: give --model, or init random"
            )
        longest = compiled.max_length * (2 if config.embedded.spare_words else 1)
        sizes = embedded_config(config.embedded, tokenizer, longest + 16)
        model = lm.Llama(sizes, lora=tuned, dtype=dtype, remat=config.remat)
        base = partial(_base, model.clone(lora=None), mesh, kind)
    else:
        tokenizer = load_tokenizer(config.model)
        found = lm.read_config(config.model)
        answers = max(len(tokenizer.encode(f" {name}")) for name in template.actions)
        room = found.max_position_embeddings - answers
        compiled = template.compile(tokenizer, min(limit or room, room), heal=heal)
        # weights that are trained stay float32, or steps of 1e-6 would be lost in rounding
        kept = jnp.dtype(jnp.float32) if config.tune == "full" else dtype
        model = lm.Llama(found, lora=tuned, dtype=dtype, param_dtype=kept, remat=config.remat)
        blank = model.clone(lora=None)
        base = {
            "pretrained": partial(_load, config.model, mesh, kept, kind),
            "random": partial(_base, blank, mesh, kind),
            "embeddings": partial(_base_with_embeddings, config.model, blank, mesh, kind),
        }[config.init]
    shared: dict[str, Any] = {
        "model": model,
        "prompts": template.batched(compiled),
        "base": base,
        "value_head": lm.ValueHead(config.value_width, config.value_activation),
        "stop_value_gradient": config.stop_value_gradient,
        "competence_head": lm.ValueHead(config.value_width, config.value_activation)
        if config.competence_coef
        else None,
        "stop_competence_gradient": config.stop_competence_gradient,
        "rows": config.score_rows,
        "widths": _widths(compiled.max_length, config.score_widths),
        "mesh": mesh,
    }
    policy: LanguagePolicy
    if config.policy == "heads":
        head = ActionHead(len(template.actions), config.value_width, config.value_activation)
        policy = HeadsPolicy(action_head=head, **shared)
    else:
        table = compiled.candidates(template.actions)
        candidates = lm.Candidates(
            [row[:n].tolist() for row, n in zip(table.tokens, table.lengths)],
            [len(name.split()) for name in template.actions],
        )
        policy = ScoringPolicy(candidates=candidates, scoring=config.scoring, **shared)
    return Glam(config, env, env_params, template, compiled, tokenizer, policy, mesh)


def _widths(longest: int, count: int) -> tuple[int, ...]:
    """Paddings below the longest prompt, evenly spaced."""
    return tuple(-(-longest * k // count) for k in range(1, count))


def _load(path: str, mesh: jax.sharding.Mesh | None, dtype: Any, kind: str | None, key: jax.Array) -> Any:
    """Base parameters from files; the key is not needed."""
    return lm.load(path, mesh=mesh, dtype=dtype, quantize=kind)[1]["params"]


def _base_with_embeddings(path: str, model: lm.Llama, mesh: jax.sharding.Mesh | None, kind: str | None, key: jax.Array):
    """Base parameters drawn at random, but for the token embeddings, which come from files."""
    kept = _load(path, mesh, model.param_dtype, None, key)["embed_tokens"]
    return {**_base(model, mesh, kind, key), "embed_tokens": kept}
