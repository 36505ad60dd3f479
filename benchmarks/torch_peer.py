"""torch as a peer: the same weights in transformers, computed eagerly and by `torch.compile`."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import Row, rates, seconds
from llmrl_jax import lm


EAGER, COMPILED = "eager", "torch.compile"


class Way(NamedTuple):
    """One way in which torch computes a case."""

    note: str
    call: Callable[[], Any]
    builds: bool = False
    """Whether the first call runs `torch.compile`, which needs a C++ compiler."""


def _reason(error: Exception) -> str:
    """An error in one short line, without torch's advice on how to debug it."""
    text = f"{type(error).__name__}: {error}".partition("Set TORCHDYNAMO_VERBOSE")[0]
    return f"{COMPILED} fails here ({' '.join(text.split())[:160]})"


@functools.cache
def compiler_error() -> str:
    """Why `torch.compile` builds no program on this machine, in one line; empty if it does.

    The probe also takes torch's one-time work out of the compile times that are measured later, and gives them an empty
    cache on disk.
    """
    import torch

    folder = tempfile.mkdtemp(prefix="inductor-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    try:
        torch.compile(lambda x: x + 1)(torch.ones(3))
    except Exception as error:  # torch wraps whatever its compiler raises
        return _reason(error)
    return ""


def rows(case: str, who: str, unit: str, amount: float, ways: list[Way], check: Callable[[Any], None]) -> list[Row]:
    """Measure a case in every way; the first one is eager.

    **Arguments:** `amount`, of `unit` per call; `check`, raises `AssertionError` if a first result is wrong.
    **Returns:** a row for each way. If its program cannot be built here, the row has NaN and its note says why. Compile
    seconds are the time of the first call beyond the median of the others.
    """
    made: list[Row] = []
    for way in ways:
        started = time.perf_counter()
        try:
            if way.builds and compiler_error():
                raise RuntimeError(compiler_error())
            started = time.perf_counter()
            result = way.call()
        except Exception as error:
            if not way.builds:
                raise
            reason = compiler_error() or _reason(error)
            made.append(Row(case, who, unit, [float("nan")], None, f"{way.note}: {reason}"))
            continue
        first = time.perf_counter() - started
        check(result)
        times = seconds(way.call)
        took = max(0.0, first - statistics.median(times)) if way.builds else None
        made.append(Row(case, who, unit, rates(amount, times), took, way.note))
    return made


class Torch:
    """The weights of a folder in transformers, with its default attention, float32.

    **Arguments:** `kind`: `float32`; `autocast`, float32 weights with forward passes and losses in `torch.autocast` to
    bfloat16; `bfloat16`, weights of that type, which computes all in it but for peft's adapters.
    """

    def __init__(self, folder: str, threads: int, kind: str = "float32"):
        import torch

        torch.set_num_threads(threads)
        self.torch, self.folder = torch, folder
        self.dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        self.how = lambda: torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast")
        self.model = self._load()

    def _load(self) -> Any:
        import transformers

        return transformers.LlamaForCausalLM.from_pretrained(self.folder, dtype=self.dtype).eval()

    def compiled(self, function: Callable) -> Callable:
        """`torch.compile` for the shapes of the first call; programs of earlier cases are dropped."""
        self.torch._dynamo.reset()
        return self.torch.compile(function, dynamic=False)

    def forward(self, tokens: np.ndarray) -> list[Way]:
        """Logits of every position."""
        rows = self.torch.tensor(tokens).long()

        def way(note: str, model: Callable) -> Way:
            def call() -> np.ndarray:
                with self.torch.inference_mode(), self.how():
                    return model(rows, use_cache=False).logits.float().numpy()

            return Way(note, call, note == COMPILED)

        return [way(EAGER, self.model), way(COMPILED, self.compiled(self.model))]

    def greedy(self, tokens: np.ndarray, new: int) -> list[Way]:
        """`generate` without sampling, for `new` tokens: with a growing cache, with a static one, and with a compiled
        step on the static one."""
        import transformers

        rows = self.torch.tensor(tokens).long()
        how = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        static = {"cache_implementation": "static"}
        self.torch._dynamo.reset()
        config = transformers.CompileConfig(mode="default", dynamic=False)
        config._compile_all_devices = True  # transformers compiles on accelerators only, unless this is set

        def way(note: str, builds: bool, **more: Any) -> Way:
            def call() -> np.ndarray:
                with self.torch.inference_mode():
                    out = self.model.generate(rows, attention_mask=self.torch.ones_like(rows), **how, **more)
                return out[:, rows.shape[1] :].numpy()

            return Way(note, call, builds)

        return [
            way(f"{EAGER}, growing cache", False),
            way(f"{EAGER}, static cache", False, **static, disable_compile=True),
            way(f"{COMPILED}, static cache", True, **static, compile_config=config),
        ]

    def fine_tuning(self, tokens: np.ndarray, lora: lm.LoRAConfig) -> list[Way]:
        """A step of AdamW on peft's adapters: loss, gradients, clipping, update. Every way starts from new adapters."""
        return [self._step(tokens, lora, note) for note in (EAGER, COMPILED)]

    def _step(self, tokens: np.ndarray, lora: lm.LoRAConfig, note: str) -> Way:
        import warnings

        import peft

        # peft uses a name that transformers has changed
        warnings.filterwarnings("ignore", message=".is_gradient_checkpointing.", category=FutureWarning)
        settings = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets))
        model = peft.get_peft_model(self._load(), settings).train()
        learnt = [p for p in model.parameters() if p.requires_grad]
        optimizer = self.torch.optim.AdamW(learnt, lr=1e-4, weight_decay=0.0)
        rows = self.torch.tensor(tokens).long()
        run = self.compiled(model) if note == COMPILED else model

        def call() -> float:
            optimizer.zero_grad()
            with self.how():
                loss = run(input_ids=rows, labels=rows, use_cache=False).loss
            loss.backward()
            self.torch.nn.utils.clip_grad_norm_(learnt, 1.0)
            optimizer.step()
            return loss.item()

        return Way(note, call, note == COMPILED)

    def scoring(self, tokens: np.ndarray, actions: lm.Candidates) -> dict[str, list[Way]]:
        """Scores `[B, A]` of candidates: a pass per candidate in one batch, and a repeated prefix cache."""
        import transformers

        torch, model = self.torch, self.model
        table, width = torch.tensor(actions.tokens).long(), actions.width
        real = torch.arange(width) < torch.tensor(actions.lengths)[:, None]
        prompts = torch.tensor(tokens).long()
        batch, count = len(prompts), len(actions)
        rows, targets = table.repeat(batch, 1), real.repeat(batch, 1)

        def total(logits: Any) -> Any:
            """Scores from logits `[B * A, W, V]` that predict each candidate's tokens."""
            picked = logits.log_softmax(-1).gather(-1, rows[..., None])[..., 0]
            return (picked * targets).sum(-1).view(batch, count)

        def naive() -> Any:
            whole = torch.cat([prompts.repeat_interleave(count, 0), rows], dim=1)
            return total(model(whole, use_cache=False, logits_to_keep=width + 1).logits[:, :-1])

        def prefix() -> Any:
            cache = transformers.DynamicCache(config=model.config)
            first = model(prompts, past_key_values=cache, logits_to_keep=1).logits
            cache.batch_repeat_interleave(count)
            rest = model(rows[:, :-1], past_key_values=cache).logits
            return total(torch.cat([first.repeat_interleave(count, 0), rest], dim=1))

        def way(note: str, function: Callable) -> Way:
            def call() -> np.ndarray:
                with torch.inference_mode():
                    return function().numpy()

            return Way(note, call, note.endswith(COMPILED))

        ways = {}
        for name, function in (("prefix cache", prefix), ("naive", naive)):
            ways[name] = [way(EAGER, function), way(COMPILED, self.compiled(function))]
        return ways
