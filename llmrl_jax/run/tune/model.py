"""What every kind of fine-tuning leaves in its run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from llmrl_jax import lm
from llmrl_jax.core.config import FREE
from llmrl_jax.core.files import replacing
from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.parallel import make_mesh
from llmrl_jax.parallel.hosts import gather
from llmrl_jax.run.config import RunConfig
from llmrl_jax.tuning import ChatTemplate, GRPOConfig


Quantize = Literal["none", "int8", "nf4"]
"""How a frozen base is kept."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What fine-tuning asks of a model, whatever it learns from."""

    model: str
    """A folder with config.json, safetensors and tokenizer.json, or a Hugging Face hub id."""
    tune: Literal["lora", "full"] = "lora"
    """Train adapters over a frozen base, or every weight."""
    lora: lm.LoRAConfig = field(default_factory=lm.LoRAConfig)
    """The adapters, where `tune` is `lora`."""
    quantize: Quantize = "none"
    """Keep the frozen base's matrices in 8.5 (int8) or 4.5 (nf4) bits a weight; with adapters only."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the frozen base and of what the model computes; what is trained and the loss are float32 in any case."""
    remat: bool = False
    """Recompute activations in the backward pass: slower, but it needs far less memory."""
    mesh: str = field(default="", metadata=FREE)
    """Devices by axis, as in `data=4,fsdp=2`. Empty: one device."""
    run: RunConfig = field(default_factory=lambda: RunConfig(checkpoint_every=100))

    def __post_init__(self):
        if self.quantize != "none" and self.tune == "full":
            raise ValueError(f"quantize is {self.quantize}, which freezes the base: take --tune lora, or quantize none")

    def load(self, folder: Path) -> tuple[lm.Llama, dict[str, Any], Mesh | None]:
        """The model, its weights on the mesh, and the mesh."""
        mesh = make_mesh(self.mesh) if self.mesh else None
        dtype = jnp.dtype(self.dtype)
        adapters = self.lora if self.tune == "lora" else None
        kind = None if self.quantize == "none" else self.quantize
        # steps of 1e-5 would be lost in bfloat16's rounding
        kept = jnp.dtype(jnp.float32) if self.tune == "full" else dtype
        model, variables = lm.load(folder, mesh=mesh, dtype=kept, lora=adapters, quantize=kind)
        return model.clone(dtype=dtype, remat=self.remat), variables, mesh


def with_end_tokens(config: GRPOConfig, folder: Path, tokenizer: FastTokenizer) -> GRPOConfig:
    """The configuration with every token that ends a text or a turn of the model's, where it names none itself."""
    return config if config.stop_tokens is not None else replace(config, stop_tokens=lm.end_tokens(folder, tokenizer))


def write_tuned(
    folder: Path,
    base: str,
    model: lm.Llama,
    state: Any,
    tokenizer: FastTokenizer,
    template: ChatTemplate | None,
    ends: Sequence[int] = (),
) -> str:
    """The adapters in peft's format, or the model in transformers', in place of what an earlier part of the run wrote.

    **Arguments:** `base`, the folder or hub id that was tuned; `state`, the learner's last; `ends`, all tokens that end
    a text or a turn of the base (`lm.end_tokens`), where config.json's one is not enough.
    **Returns:** the name of what was written inside `folder`.
    """
    name = "model" if model.lora is None else "adapter"
    trained = gather(state.params)
    if jax.process_index():
        return name
    with replacing(folder / name) as draft:
        if model.lora is not None:
            variables = {**state.frozen["base"], "lora": trained}
            lm.save_adapter(draft, model, variables, base=base)
        else:
            lm.save_hf(draft, model.config, trained, end_tokens=ends)
            tokenizer.save(draft)
            if template is not None:
                (draft / "chat_template.jinja").write_text(template.source, encoding="utf-8")
    return name
