"""Tokenizers like those of published models, trained in a second on BabyAI's text."""

from __future__ import annotations

import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from envs_jax.babyai.text.english import MISSIONS, VIEW
from llmrl_jax.lm.tokens import FastTokenizer


pytest.register_assert_rewrite("tests.serving", "tests.chat_server")

LLAMA3_SPLIT = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def corpus() -> list[str]:
    goals = [f" \n Goal of the agent: {phrase}" for phrase in MISSIONS.phrases[::3]]
    return [
        "Possible action of the agent: turn left, turn right, go forward, pick up, drop, toggle",
        *goals,
        *(f" \n Observation 0: {sentence}, \n Action 0: go forward" for sentence in VIEW.phrases[::5]),
        *(f"Colors: {color}, \n Action: drop" for color in ("red", "green", "very dark blue")),
    ]


def begins_with(token: str, backend: Tokenizer):
    """The post-processor of Llama's kind, which puts a token before every text."""
    ids = [(token, backend.token_to_id(token))]
    return processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=ids)


def byte_level(pre_tokenizer, texts: list[str], size: int) -> FastTokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = begins_with("<|begin_of_text|>", backend)
    return FastTokenizer(backend, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")


@pytest.fixture(scope="session")
def bpe() -> FastTokenizer:
    """Byte-level BPE behind Llama-3's regular expression."""
    split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated")
    cut = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return byte_level(cut, corpus(), 420)


@pytest.fixture(scope="session")
def greedy() -> FastTokenizer:
    """Byte-level BPE that never cuts: it learns tokens that span words."""
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return byte_level(cut, ["Colors: red, red, red, \n Action: "] * 50, 400)


@pytest.fixture(scope="session")
def sentencepiece() -> FastTokenizer:
    """Llama-2's rules: a dummy prefix, "▁" for a space, bytes for what has no piece (newlines), no cutting."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    lines = [line for text in corpus() for line in text.split("\n")]
    trained.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *learned["vocab"]]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [tuple(merge) for merge in learned["merges"]]
    model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = begins_with("<s>", backend)
    return FastTokenizer(backend, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="session")
def bare(bpe) -> FastTokenizer:
    """SmolLM2's kind: it names a beginning-of-sequence token, and puts nothing before a text."""
    backend = Tokenizer.from_str(bpe.backend.to_str())
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return FastTokenizer(backend, **bpe.specials)
