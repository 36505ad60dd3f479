"""GGUF files, as llama.cpp writes them: a model, its tokenizer and its chat template in one file.

The parts of a file are translated to what a Hugging Face folder has (`config.json`, `tokenizer_config.json`, names of
tensors), so that one check and one reader serve both.
"""

from llmrl_jax.lm.gguf.file import SUFFIX, Header, is_gguf, part_of_bytes, read_header
from llmrl_jax.lm.gguf.model import GGUFTensors, check_decoder, hf_config
from llmrl_jax.lm.gguf.tokenizer import end_tokens, read_tokenizer, tokenizer_config


__all__ = [
    "SUFFIX",
    "GGUFTensors",
    "Header",
    "check_decoder",
    "end_tokens",
    "hf_config",
    "is_gguf",
    "read_tokenizer",
    "part_of_bytes",
    "read_header",
    "tokenizer_config",
]
