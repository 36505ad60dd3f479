"""What every kind of fine-tuning leaves in its run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmrl_jax import lm
from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.tuning import ChatTemplate


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
    if model.lora is not None:
        variables = {**state.frozen["base"], "lora": state.params}
        lm.save_adapter(folder / name, model, variables, base=base)
    else:
        lm.save_hf(folder / name, model.config, state.params)
        tokenizer.save(folder / name)
        if template is not None:
            (folder / name / "chat_template.jinja").write_text(template.source, encoding="utf-8")
    return name
