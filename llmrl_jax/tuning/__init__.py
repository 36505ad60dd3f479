"""Fine-tuning of language models on text: rows, packing, chat templates, supervised fine-tuning."""

from llmrl_jax.tuning.loss import token_log_probs
from llmrl_jax.tuning.packing import Packed, pack
from llmrl_jax.tuning.rows import DataError, Example, encode_row, read_rows
from llmrl_jax.tuning.sft import SFTConfig, make_evaluation, make_sft
from llmrl_jax.tuning.template import ChatTemplate, TemplateError


__all__ = [
    "ChatTemplate",
    "DataError",
    "Example",
    "Packed",
    "SFTConfig",
    "TemplateError",
    "encode_row",
    "make_evaluation",
    "make_sft",
    "pack",
    "read_rows",
    "token_log_probs",
]
