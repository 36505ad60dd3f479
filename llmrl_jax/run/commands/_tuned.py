"""What every kind of fine-tuning leaves in its run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import jax

from llmrl_jax import lm
from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.parallel.hosts import gather
from llmrl_jax.tuning import ChatTemplate


Quantize = Literal["none", "int8", "nf4"]
"""How a frozen base is kept."""


def frozen_kind(quantize: Quantize, tune: str) -> str | None:
    """What `lm.load(quantize=)` takes. **Raises** `ValueError` where every weight is to be tuned: codes have no
    gradient."""
    if quantize != "none" and tune == "full":
        raise ValueError(f"quantize is {quantize}, which freezes the base: take --tune lora, or quantize none")
    return None if quantize == "none" else quantize


def write_tuned(
    folder: Path, base: str, model: lm.Llama, state: Any, tokenizer: FastTokenizer, template: ChatTemplate | None
) -> str:
    """The adapters in peft's format, or the model in transformers'. A run that was resumed after it wrote keeps what
    it has: the same bits.

    **Arguments:** `base`, the folder or hub id that was tuned; `state`, the learner's last.
    **Returns:** the name of what was written inside `folder`.
    """
    name = "model" if model.lora is None else "adapter"
    if (folder / name).exists():
        return name
    trained = gather(state.params)
    if jax.process_index():
        return name
    if model.lora is not None:
        variables = {**state.frozen["base"], "lora": trained}
        lm.save_adapter(folder / name, model, variables, base=base)
    else:
        lm.save_hf(folder / name, model.config, trained)
        tokenizer.save(folder / name)
        if template is not None:
            (folder / name / "chat_template.jinja").write_text(template.source, encoding="utf-8")
    return name
