"""Sentence encoders by name: an installed one, a folder or hub id, or the substitute without semantics."""

from __future__ import annotations

from llmrl_jax.core.packaged import MINILM
from llmrl_jax.lm.encoder import TextEncoder
from llmrl_jax.lm.hashed import HashedEncoder


HASHED = "hashed"
AUTO = "auto"


def resolved(name: str) -> str:
    """The encoder that `auto` stands for on this machine; other names unchanged."""
    if name != AUTO:
        return name
    return HASHED if MINILM.folder() is None else MINILM.name


def make_encoder(name: str) -> TextEncoder:
    """The encoder of a name: `auto`, `hashed`, or one that `load_encoder` knows. **Raises:** what that raises."""
    from llmrl_jax.lm.encoder_weights import load_encoder

    name = resolved(name)
    return HashedEncoder() if name == HASHED else load_encoder(name)
