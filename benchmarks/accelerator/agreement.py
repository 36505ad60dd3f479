"""How far the probabilities of actions that were played, and of tokens that were sampled, are from those that the first
gradient step computes.

Both are one function of the same weights, in two programs. With *excess precision*, XLA's default, roundings to a dtype
of 16 bits are left out between operations that are fused, and the two programs fuse others. Here it is an option of
each program, as a run sets it (`llmrl_jax.rl.precision.exact_rounding`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accelerator.record import Case, Measured, Settings, seconds
from benchmarks.accelerator.shapes import SHAPES, TINY, described
from benchmarks.harness import compiled
from benchmarks.scoring import ACTIONS
from llmrl_jax import lm
from llmrl_jax.rl.gradient import accumulate, in_parts
from llmrl_jax.rl.precision import ratio_error, sampling_metrics
from llmrl_jax.tuning.loss import token_log_probs


DTYPES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": jnp.bfloat16},
    "float16": {"dtype": jnp.float16},
    "mixed": {"dtype": jnp.float32, "matmul_dtype": jnp.bfloat16},
    "float32": {"dtype": jnp.float32},
}
"""How a model computes, the usual first."""

LEARNED: dict[str, dict[str, Any]] = {
    "in the same shapes": {},
    "activations kept": {"remat": False},
    "padded to another length": {"longer": True},
    "in groups of four times the rows": {"groups": 4},
}
"""What the first gradient step does otherwise than play, and the arguments of `scored`."""


class Played(NamedTuple):
    """Actions or tokens with their probabilities, and what they were drawn from."""

    model: lm.Llama
    base: Any
    adapters: Any
    tokens: jax.Array
    """Prompts, `[B, S]`."""
    lengths: jax.Array
    drawn: jax.Array
    log_prob: jax.Array
    """Of `drawn`, in its shape."""
    compile_seconds: float


def options_of(excess: bool) -> dict[str, Any]:
    """The options of `jax.jit` for a program with or without excess precision."""
    return {"compiler_options": {"xla_allow_excess_precision": excess}}


@lru_cache(maxsize=1)
def drawn_model(config: lm.LlamaConfig, name: str) -> tuple[lm.Llama, Any, Any]:
    """A model, random weights in the dtype of its computation, and adapters of which no part is zero, as after some
    updates."""
    how = DTYPES[name]
    model = lm.Llama(config, lora=lm.LoRAConfig(rank=8, targets=lm.lora.TARGETS), param_dtype=how["dtype"], **how)

    def draw(key: jax.Array) -> tuple[Any, Any]:
        variables: Any = model.init(key, jnp.zeros((1, 1), jnp.int32))
        leaves, tree = jax.tree.flatten(variables["lora"])
        keys = jax.random.split(jax.random.fold_in(key, 1), len(leaves))
        numbers = [0.02 * jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)]
        return variables["params"], jax.tree.unflatten(tree, numbers)

    return model, *jax.jit(draw)(jax.random.key(0))


def prompts_of(config: lm.LlamaConfig, batch: int, prompt: int) -> tuple[jax.Array, jax.Array]:
    """Prompts of half of `prompt` to `prompt` tokens, and their lengths."""
    draws = np.random.default_rng(0)
    tokens = jnp.asarray(draws.integers(3, config.vocab_size, (batch, prompt)), jnp.int32)
    return tokens, jnp.asarray(draws.integers(prompt // 2, prompt + 1, batch), jnp.int32)


def action_log_probs(model: lm.Llama, base: Any, adapters: Any, tokens: Any, lengths: Any) -> jax.Array:
    """The log-probabilities of `benchmarks.scoring.ACTIONS` after prompts."""
    scores = lm.score(model, {"params": base, "lora": adapters}, tokens, lengths, ACTIONS, form="tree")
    return jax.nn.log_softmax(scores.sum)


def chosen(log_probs: jax.Array, action: jax.Array) -> jax.Array:
    """The entries of actions."""
    return jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]


@lru_cache(maxsize=1)
def actions(config: lm.LlamaConfig, name: str, excess: bool, batch: int, prompt: int, group: int) -> Played:
    """Actions after `batch` prompts, chosen in groups of `group`, as in GLAM."""
    model, base, adapters = drawn_model(config, name)
    tokens, lengths = prompts_of(config, batch, prompt)

    def play(base: Any, adapters: Any) -> tuple[jax.Array, jax.Array]:
        groups = jax.tree.map(lambda x: x.reshape(-1, group, *x.shape[1:]), (tokens, lengths))
        log_probs = jax.lax.map(lambda part: action_log_probs(model, base, adapters, *part), groups)
        log_probs = log_probs.reshape(batch, -1)
        action = jax.random.categorical(jax.random.key(1), log_probs)
        return action, chosen(log_probs, action)

    program, took = compiled(play, base, adapters, **options_of(excess))
    return Played(model, base, adapters, tokens, lengths, *program(base, adapters), took)


def scored(
    config: lm.LlamaConfig,
    name: str,
    excess: bool,
    batch: int,
    prompt: int,
    group: int,
    groups: int = 1,
    longer: bool = False,
    remat: bool = True,
) -> Measured:
    """The gradient of a minibatch of played actions, in another order, accumulated over microbatches.

    **Arguments:** `name`, of `DTYPES`; `groups`, in a microbatch; `longer`, whether prompts are padded to more tokens
    than in play; `remat`, whether activations are recomputed, so that none is kept, as in play.
    """
    played = actions(config, name, excess, batch, prompt, group)
    model = played.model.clone(remat=remat)
    order = jnp.asarray(np.random.default_rng(1).permutation(batch))
    padded = jnp.pad(played.tokens, ((0, 0), (0, prompt // 4 if longer else 0)))
    rows = jax.tree.map(lambda x: x[order], (padded, played.lengths, played.drawn, played.log_prob))

    def learn(base: Any, adapters: Any, rows: Any) -> tuple[jax.Array, Any]:
        def loss(adapters: Any, part: Any) -> tuple[jax.Array, jax.Array]:
            tokens, lengths, action, old = part
            log_ratio = chosen(action_log_probs(model, base, adapters, tokens, lengths), action) - old
            return jnp.mean(jnp.exp(log_ratio)), log_ratio

        zero = jax.tree.map(jnp.zeros_like, adapters)
        gradient = jax.grad(loss, has_aux=True)
        grads, log_ratio = accumulate(partial(gradient, adapters), zero, in_parts(rows, batch // (group * groups)))
        return log_ratio, grads

    return measured(learn, excess, played, rows, batch, "actions")


def sampled(config: lm.LlamaConfig, name: str, excess: bool, batch: int, prompt: int, new: int) -> Measured:
    """The gradient of whole rows whose last `new` tokens were drawn one by one, as in GRPO."""
    model, base, adapters = drawn_model(config, name)
    tokens, _ = prompts_of(config, batch, prompt)
    lengths = jnp.full(batch, prompt, jnp.int32)
    sampling = lm.SamplingConfig(max_new_tokens=new, stop_tokens=())
    at = jnp.broadcast_to(prompt - 1 + jnp.arange(new), (batch, new))

    def play(base: Any, adapters: Any) -> tuple[jax.Array, jax.Array]:
        variables = {"params": base, "lora": adapters}
        out = lm.generate(model, variables, tokens, lengths, jax.random.key(1), sampling)
        return out.tokens[:, 0], out.sampled_log_probs[:, 0]

    def learn(base: Any, adapters: Any, rows: Any) -> tuple[jax.Array, Any]:
        drawn, old = rows

        def loss(adapters: Any) -> tuple[jax.Array, jax.Array]:
            variables = {"params": base, "lora": adapters}
            out: Any = model.apply(variables, jnp.concatenate([tokens, drawn], 1), at=at, logits=False)
            log_ratio = token_log_probs(model, variables, out.hidden, drawn)[0] - old
            return jnp.mean(jnp.exp(log_ratio)), log_ratio

        grads, log_ratio = jax.grad(loss, has_aux=True)(adapters)
        return log_ratio, grads

    program, took = compiled(play, base, adapters, **options_of(excess))
    drawn, old = program(base, adapters)
    played = Played(model, base, adapters, tokens, lengths, drawn, old, took)
    return measured(learn, excess, played, (drawn, old), batch * new, "tokens")


def measured(learn: Callable, excess: bool, played: Played, rows: Any, amount: int, unit: str) -> Measured:
    """The time of a gradient, and how far the probabilities that it computes are from those of play."""
    arguments = (played.base, played.adapters, rows)
    program, took = compiled(learn, *arguments, **options_of(excess))
    log_ratio, _ = program(*arguments)
    facts = {"ratio_error": ratio_error(log_ratio), **sampling_metrics(log_ratio)}
    times = seconds(lambda: program(*arguments))
    took += played.compile_seconds
    return Measured(times, took, amount, unit, facts={name: float(x) for name, x in facts.items()})


def cases(settings: Settings) -> Iterator[Case]:
    """Actions and tokens by dtype, without and with excess precision; for the first dtype, what else may differ."""
    config, name = (TINY, "tiny") if settings.tiny else (SHAPES["135M"], "135M")
    batch, prompt, group, new = (8, 12, 4, 4) if settings.tiny else (64, 256, 16, 64)
    common = described(config) | {"batch": batch, "prompt": prompt}
    for dtype in ("bfloat16",) if settings.tiny else DTYPES:
        several = dtype == "bfloat16" and not settings.tiny
        kinds = LEARNED if several else {kind: LEARNED[kind] for kind in ("activations kept",)}
        for excess in (False, True):
            sizes = common | {"dtype": dtype, "excess_precision": excess}
            which = f"{name}, {dtype}, " + ("excess precision, " if excess else "")
            for kind, more in kinds.items():
                measure = partial(scored, config, dtype, excess, batch, prompt, group, **more)
                yield Case(f"{which}actions, {kind}", sizes | {"group": group, **more}, measure)
            measure = partial(sampled, config, dtype, excess, batch, prompt, new)
            yield Case(f"{which}tokens", sizes | {"new_tokens": new}, measure)
    actions.cache_clear()  # other parts need their memory
    drawn_model.cache_clear()
