"""Building prompts inside jit, compared with rendering and tokenizing the same states on the host."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

import envs_jax
from benchmarks.harness import OURS, Result, Row, compiled as compiled_program, rates, seconds
from envs_jax.history import PromptHistory
from llmrl_jax.lm.tokens import FastTokenizer, WordTokenizer
from llmrl_jax.systems.glam.prompts import GlamPrompt, glam_prompt


LOOPS = 50
"""Batches that one program builds on the device."""


def observations(env: Any, params: Any, n: int, steps: int = 6) -> Any:
    """The observations `[LOOPS, n, ...]` of as many environments after a few random actions."""

    def play(key):
        obs, state = env.reset(key, params)

        def step(carry, t):
            obs, state = carry
            k = jax.random.fold_in(key, t)
            obs, state, *_ = env.step(k, state, jax.random.randint(k, (), 0, 6), params)
            return (obs, state), None

        return jax.lax.scan(step, (obs, state), jnp.arange(steps))[0][0]

    return jax.jit(jax.vmap(jax.vmap(play)))(jax.random.split(jax.random.key(0), (LOOPS, n)))


def byte_level_bpe(prompt: GlamPrompt) -> FastTokenizer:
    """A byte-level BPE with GPT-2's pre-tokenization, trained on all texts of the prompt."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator((text for unit in prompt.prompt.units for text in unit.texts), trainer)
    return FastTokenizer(backend)


def measure(prompt: GlamPrompt, tokenizer: FastTokenizer, batches: Any, *, repeats: int = 7) -> dict[str, Any]:
    """Prompts per second, on the device and on the host, for one tokenizer and observations `[LOOPS, n, ...]`.

    The device builds all batches inside one program, whose carry the tokens enter, so that nothing is optimised away;
    the host builds the first. `host_tokenize` is `encode_batch_fast` (parallel, in Rust) of rendered strings; `host`
    also renders the states in Python, as a loop outside jit must.
    """
    start = time.perf_counter()
    compiled = prompt.compile(tokenizer)
    build = time.perf_counter() - start
    batched = prompt.batched(compiled)

    def build_many(batches):
        def body(total, obs):
            tokens, lengths = batched(obs)
            return total + jnp.sum(tokens) + jnp.sum(lengths), None

        return jax.lax.scan(body, jnp.int32(0), batches)[0]

    device, compile_seconds = compiled_program(build_many, batches)
    on_device = rates(batches["count"].size, seconds(lambda: device(batches), repeats=repeats))
    obs = jax.tree.map(lambda x: x[0], batches)
    n = len(obs["count"])

    def render() -> list[str]:
        fetched = jax.device_get(obs)
        rows = [{name: value[i] for name, value in fetched.items()} for i in range(n)]
        return [prompt.prompt.render(prompt.slots(row), tail=False) for row in rows]

    def encode(texts: list[str]) -> list[list[int]]:  # the fastest form of the peer, without our checks
        return [e.ids for e in tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)]

    texts = render()
    tokenize = rates(n, seconds(lambda: encode(texts), repeats=repeats))
    whole = rates(n, seconds(lambda: encode(render())))
    assert compiled.verify([prompt.slots({k: np.asarray(v)[i] for k, v in obs.items()}) for i in range(0, n, 16)])
    return {
        "device": on_device,
        "host_tokenize": tokenize,
        "host": whole,
        "max_length": compiled.max_length,
        "mean_length": float(np.mean(jax.jit(batched)(obs)[1])),
        "build_seconds": build,
        "compile_seconds": compile_seconds,
    }


TITLE = "Building prompts"


def run(quick: bool) -> Result:
    """Prompts per second inside jit, and on the host."""
    rows, notes = [], []
    for setting, kinds in numbers(64 if quick else 1024).items():
        for kind, measured in kinds.items():
            case = f"{setting}, {kind}"
            rows.append(Row(case, OURS, "prompts/s", measured["device"], measured["compile_seconds"]))
            rows.append(Row(case, "tokenizers", "prompts/s", measured["host_tokenize"], note="of ready strings"))
            rows.append(Row(case, "host", "prompts/s", measured["host"], note="worded in Python, then tokenizers"))
            notes.append(f"{case}: {measured['mean_length']:.0f} tokens, at most {measured['max_length']}.")
    notes.append("`tokenizers` encodes the whole batch at once (`encode_batch_fast`, in Rust, on all cores).")
    return Result(rows, notes=notes)


def numbers(num_envs: int = 1024, repeats: int = 7) -> dict[str, Any]:
    """Prompts of the demo and of GLAM, with word-level tokens and byte-level BPE.

    **Returns:** `{setting: {tokenizer: numbers of `measure`}}`."""
    results: dict[str, Any] = {}
    settings = {
        "demo: GoToLocalS6N2, 1 observation": ("BabyAI-Text/GoToLocalS6N2-v0", 1, False),
        "GoToLocal, 1 observation": ("BabyAI-Text/GoToLocal-v0", 1, False),
        "GLAM: GoToLocal, 3 observations, actions listed": ("BabyAI-Text/GoToLocal-v0", 3, True),
    }
    for name, (id, history, list_actions) in settings.items():
        env, params = envs_jax.make(id)
        env = PromptHistory(env, history)
        prompt = glam_prompt(env, history=history, list_actions=list_actions)
        batches = observations(env, params, num_envs)
        kinds = {
            "words": WordTokenizer.from_prompt(prompt.prompt, prompt.actions),
            "byte-level BPE": byte_level_bpe(prompt),
        }
        results[name] = {
            kind: measure(prompt, tokenizer, batches, repeats=repeats) for kind, tokenizer in kinds.items()
        }
    return results
