"""The language model: a Llama in flax, its adapters, candidate scoring, and Hugging Face's files."""

from llmrl_jax.lm.cache import Cache
from llmrl_jax.lm.candidates import Candidates
from llmrl_jax.lm.config import LlamaConfig, RopeConfig
from llmrl_jax.lm.heads import ValueHead
from llmrl_jax.lm.lora import LoRAConfig, merge
from llmrl_jax.lm.model import Llama, LMOutput
from llmrl_jax.lm.score import Scores, score, score_naive
from llmrl_jax.lm.tokens import FastTokenizer, Tokenizer, WordTokenizer, load_tokenizer
from llmrl_jax.lm.weights import load, load_hf, locate, read_config, save_hf


__all__ = [
    "Cache",
    "Candidates",
    "FastTokenizer",
    "LMOutput",
    "Llama",
    "LlamaConfig",
    "LoRAConfig",
    "RopeConfig",
    "Scores",
    "Tokenizer",
    "ValueHead",
    "WordTokenizer",
    "load",
    "load_hf",
    "load_tokenizer",
    "locate",
    "merge",
    "read_config",
    "save_hf",
    "score",
    "score_naive",
]
