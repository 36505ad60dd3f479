"""The shapes of the measured models, with random weights that are drawn on the device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from llmrl_jax import lm


SHAPES = {
    # SmolLM2-135M
    "135M": lm.LlamaConfig(49_152, 576, 1536, 30, 9, 3, max_position_embeddings=8192, tie_word_embeddings=True),
    # Llama-3.2-1B
    "1B": lm.LlamaConfig(128_256, 2048, 8192, 16, 32, 8, max_position_embeddings=8192, tie_word_embeddings=True),
    # Llama-2-7B
    "7B": lm.LlamaConfig(32_000, 4096, 11_008, 32, 32, 32, max_position_embeddings=4096),
}
"""Published sizes; rotations are the defaults, since they do not affect speed."""

TINY = lm.LlamaConfig(512, 32, 64, 2, 4, 2, max_position_embeddings=512)
"""The model of `--size tiny`."""


def dtype() -> Any:
    """The dtype of weights and computation: bfloat16, and float32 on a CPU, as most gain nothing from fewer bits."""
    return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)


def model_of(config: lm.LlamaConfig, **options: Any) -> lm.Llama:
    """The model of a shape in `dtype()`. **Arguments:** `options`, further fields of `lm.Llama`."""
    return lm.Llama(config, dtype=dtype(), param_dtype=dtype(), **options)


BEFORE, AFTER = "saved", "auto"
"""Attention by plain products, which was all there was, and the device's best: values of `lm.Llama.attention`."""


def attending(form: str) -> dict[str, str]:
    """The option of `lm.Llama` for a form of attention; none where the model has one form."""
    return {"attention": form} if hasattr(lm.Llama, "attention") else {}


def drawn(model: lm.Llama) -> dict[str, Any]:
    """Random base weights, drawn on the device: `{"params": ...}`."""
    blank = model.clone(lora=None)
    return jax.jit(blank.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))


def described(config: lm.LlamaConfig) -> dict[str, Any]:
    """The sizes of a shape, for the record."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "kv_heads": config.kv_heads,
        "matmul_params": config.matmul_params,
    }
