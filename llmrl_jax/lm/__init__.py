"""Language models: Llama in flax, adapters, scoring, sampling, sentence encoders, and Hugging Face's file formats."""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach


if TYPE_CHECKING:
    from llmrl_jax.lm.cache import Cache, DecodeState
    from llmrl_jax.lm.config import LlamaConfig, RopeConfig
    from llmrl_jax.lm.encoder import (
        Bert,
        BertConfig,
        HashedEncoder,
        SentenceEncoder,
        TextEncoder,
    )
    from llmrl_jax.lm.encoder_weights import load_encoder
    from llmrl_jax.lm.generate import Finish, Generation, generate, stream
    from llmrl_jax.lm.lora import LoRAConfig, PatternedLoRA, merge
    from llmrl_jax.lm.model import Llama, LMOutput, ValueHead
    from llmrl_jax.lm.peft import load_adapter, save_adapter
    from llmrl_jax.lm.quantize import Quantized, dequantize, nbytes, quantize
    from llmrl_jax.lm.sampling import SamplingConfig
    from llmrl_jax.lm.score import Candidates, Scores, choose_form, costs, score, score_naive
    from llmrl_jax.lm.source import end_tokens, locate, read_config
    from llmrl_jax.lm.stops import StopStrings
    from llmrl_jax.lm.tokens import FastTokenizer, Tokenizer, WordTokenizer, load_tokenizer
    from llmrl_jax.lm.weights import convert, load, load_hf, save_hf


__all__ = [
    "Bert",
    "BertConfig",
    "Cache",
    "Candidates",
    "DecodeState",
    "FastTokenizer",
    "Finish",
    "Generation",
    "HashedEncoder",
    "LMOutput",
    "Llama",
    "LlamaConfig",
    "LoRAConfig",
    "PatternedLoRA",
    "Quantized",
    "RopeConfig",
    "SamplingConfig",
    "Scores",
    "SentenceEncoder",
    "StopStrings",
    "TextEncoder",
    "Tokenizer",
    "ValueHead",
    "WordTokenizer",
    "choose_form",
    "convert",
    "costs",
    "dequantize",
    "end_tokens",
    "generate",
    "load",
    "load_adapter",
    "load_encoder",
    "load_hf",
    "load_tokenizer",
    "locate",
    "merge",
    "nbytes",
    "quantize",
    "read_config",
    "save_adapter",
    "save_hf",
    "score",
    "score_naive",
    "stream",
]

__getattr__ = attach(
    __name__,
    {
        "cache": ["Cache", "DecodeState"],
        "config": ["LlamaConfig", "RopeConfig"],
        "encoder": ["Bert", "BertConfig", "HashedEncoder", "SentenceEncoder", "TextEncoder"],
        "encoder_weights": ["load_encoder"],
        "generate": ["Finish", "Generation", "generate", "stream"],
        "lora": ["LoRAConfig", "PatternedLoRA", "merge"],
        "model": ["LMOutput", "Llama", "ValueHead"],
        "peft": ["load_adapter", "save_adapter"],
        "quantize": ["Quantized", "dequantize", "nbytes", "quantize"],
        "sampling": ["SamplingConfig"],
        "score": ["Candidates", "Scores", "choose_form", "costs", "score", "score_naive"],
        "source": ["end_tokens", "locate", "read_config"],
        "stops": ["StopStrings"],
        "tokens": ["FastTokenizer", "Tokenizer", "WordTokenizer", "load_tokenizer"],
        "weights": ["convert", "load", "load_hf", "save_hf"],
    },
)


def __dir__() -> list[str]:
    return __all__
