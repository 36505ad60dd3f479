"""The language model compared with transformers and peft on torch: forward pass, greedy generation, fine-tuning
step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import OURS, Result, Row, compiled, rates, seconds
from llmrl_jax import lm
from llmrl_jax.tuning import Packed, SFTConfig, make_sft


TITLE = "The language model: forward, greedy text and fine-tuning, compared with torch"

TORCH = "torch"
LENGTH, NEW = 192, 48
LORA = lm.LoRAConfig(rank=8, alpha=16.0, targets=("q_proj", "v_proj"))


def sizes() -> dict[str, lm.LlamaConfig]:
    """The two benchmarked models: 27 and 110 million weights."""
    return {
        "27M": lm.LlamaConfig.preset("small", 4096),
        "110M": lm.LlamaConfig(32_000, 768, 2048, 12, 12, 12, max_position_embeddings=2048, tie_word_embeddings=True),
    }


class Torch:
    """The same weights in transformers, with its default attention, float32."""

    def __init__(self, folder: str, threads: int):
        import torch
        import transformers

        torch.set_num_threads(threads)
        self.torch, self.folder = torch, folder
        self.model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def forward(self, tokens: np.ndarray) -> Callable[[], np.ndarray]:
        """Logits of every position."""
        rows = self.torch.tensor(tokens).long()

        def call() -> np.ndarray:
            with self.torch.inference_mode():
                return self.model(rows, use_cache=False).logits.numpy()

        return call

    def greedy(self, tokens: np.ndarray) -> Callable[[], np.ndarray]:
        """`generate` without sampling, for the requested number of tokens."""
        rows = self.torch.tensor(tokens).long()
        how = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}

        def call() -> np.ndarray:
            with self.torch.inference_mode():
                out = self.model.generate(rows, attention_mask=self.torch.ones_like(rows), **how)
            return out[:, rows.shape[1] :].numpy()

        return call

    def fine_tuning(self, tokens: np.ndarray) -> Callable[[], float]:
        """A step of AdamW on peft's adapters: loss, gradients, clipping, update."""
        import warnings

        import peft

        # peft uses a name that transformers has changed
        warnings.filterwarnings("ignore", message=".is_gradient_checkpointing.", category=FutureWarning)
        settings = peft.LoraConfig(r=LORA.rank, lora_alpha=LORA.alpha, target_modules=list(LORA.targets))
        model = peft.get_peft_model(self.model, settings).train()
        learnt = [p for p in model.parameters() if p.requires_grad]
        optimizer = self.torch.optim.AdamW(learnt, lr=1e-4, weight_decay=0.0)
        rows = self.torch.tensor(tokens).long()

        def call() -> float:
            optimizer.zero_grad()
            loss = model(input_ids=rows, labels=rows, use_cache=False).loss
            loss.backward()
            self.torch.nn.utils.clip_grad_norm_(learnt, 1.0)
            optimizer.step()
            return loss.item()

        return call


def _packed(tokens: np.ndarray) -> Packed:
    """Full rows, with a loss on every token after the first."""
    places = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    return Packed(tokens, places, np.ones_like(tokens), np.ones(tokens.shape, bool))


def _model(name: str, config: lm.LlamaConfig, batches: tuple[int, ...], threads: int) -> tuple[list[Row], list[str]]:
    model = lm.Llama(config)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    rng = np.random.default_rng(0)
    how = lm.SamplingConfig(max_new_tokens=NEW, temperature=0.0, stop_tokens=())
    rows: list[Row] = []
    bars = []
    with tempfile.TemporaryDirectory() as folder:
        theirs = Torch(str(lm.save_hf(f"{folder}/model", config, variables["params"])), threads)

        def pair(case: str, amount: int, ours: Callable, compile_seconds: float, peer: Callable, who: str) -> None:
            mine, other = seconds(ours), seconds(peer)
            rows.extend(
                [
                    Row(case, OURS, "tokens/s", rates(amount, mine), compile_seconds),
                    Row(case, who, "tokens/s", rates(amount, other)),
                ]
            )
            ratio = rows[-2].median / rows[-1].median
            bars.append(f"{case}: {ratio:.2f} times {who} (at least 1: {'met' if ratio >= 1 else 'missed'}).")

        for batch in batches:
            tokens = rng.integers(3, config.vocab_size, (batch, LENGTH)).astype(np.int32)
            placed, lengths = jnp.asarray(tokens), np.full(batch, LENGTH)

            forward, took = compiled(lambda v, t: model.apply(v, t).logits, variables, placed)
            peer = theirs.forward(tokens)
            np.testing.assert_allclose(forward(variables, placed), peer(), atol=2e-3)
            case = f"{name}, forward, {batch} x {LENGTH} tokens"
            pair(case, batch * LENGTH, lambda p=forward, t=placed: p(variables, t), took, peer, TORCH)

            def decode(v: Any, t: jax.Array, lengths: np.ndarray = lengths) -> jax.Array:
                return lm.generate(model, v, t, lengths, jax.random.key(0), how).tokens[:, 0]

            greedy, took = compiled(decode, variables, placed)
            peer = theirs.greedy(tokens)
            same = float((np.asarray(greedy(variables, placed)) == peer()).mean())
            if same < 0.9:  # only a tie in the last bit may separate two greedy texts
                raise AssertionError(f"only {same:.0%} of the greedy tokens are torch's")
            case = f"{name}, {NEW} greedy tokens after {LENGTH}, batch {batch}"
            pair(case, batch * NEW, lambda p=greedy, t=placed: p(variables, t), took, peer, TORCH)

        tokens = rng.integers(3, config.vocab_size, (4, LENGTH)).astype(np.int32)
        adapted = lm.Llama(config, lora=LORA)
        how_sft = SFTConfig(batch_size=4, learning_rate=1e-4, schedule="constant", warmup=0.0)
        learner = make_sft(how_sft, adapted, variables, _packed(tokens), 1000)
        state = learner.init(jax.random.key(1))
        update, took = compiled(learner.update, state)
        peer = theirs.fine_tuning(tokens)
        first = float(update(state)[1]["loss"])
        np.testing.assert_allclose(first, peer(), rtol=1e-3)
        case = f"{name}, a step of LoRA fine-tuning, 4 x {LENGTH} tokens"
        pair(case, 4 * LENGTH, lambda: update(state), took, peer, "peft on torch")
    return rows, bars


def _compilation(layers: int) -> tuple[Row, str]:
    """Time to trace and compile a deep model, forward pass and gradient of its adapters."""
    model = lm.Llama(lm.LlamaConfig(32_000, 2048, 5632, layers, 32, 4, max_position_embeddings=2048), lora=LORA)
    shapes = model.abstract()
    tokens = jax.ShapeDtypeStruct((1, 128), jnp.int32)

    def loss(lora: Any, params: Any, tokens: jax.Array) -> jax.Array:
        logits = model.apply({"params": params, "lora": lora}, tokens).logits
        return -jax.nn.log_softmax(logits)[..., 0].mean()

    times = [compiled(jax.grad(loss), shapes["lora"], shapes["params"], tokens)[1] for _ in range(2)]
    # the first also includes jax's one-time setup
    row = Row(f"{layers} layers (TinyLlama's shape), adapter gradients", OURS, "s to compile", times[1:], None)
    return row, f"{layers} layers compile in {times[1]:.1f} s (under 5: {'met' if times[1] < 5 else 'missed'})."


def run(quick: bool = False) -> Result:
    """Tokens per second."""
    threads = len(os.sched_getaffinity(0))
    rows, bars = [], []
    for name, config in list(sizes().items())[: 1 if quick else 2]:
        measured = _model(name, config, (1,) if quick else (1, 4), threads)
        rows += measured[0]
        bars += measured[1]
    row, bar = _compilation(22)
    notes = [
        f"float32, {threads} threads. Logits agree within 2e-3 and the first losses within 1e-3 before anything is "
        "timed. torch runs eagerly with its default attention and transformers' own cache; random weights.",
    ]
    return Result([*rows, row], [*bars, bar], notes)
