"""The tokenizer and the chat template in a GGUF file's metadata.

Byte-level BPE (`gpt2`) and SentencePiece's BPE (`llama`). How a byte-level one divides a text into words is stored only
as a name, `tokenizer.ggml.pre`; an unknown one is refused, since other words would have other tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl_jax.lm.gguf.file import Header, read_header


if TYPE_CHECKING:
    import tokenizers

IDS = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}
"""Special tokens by Hugging Face's names, and the fields of their ids after `tokenizer.ggml.`."""
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_NO_ID = 2**32 - 1
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
"""Types of tokens."""

# Parts of Unicode-aware expressions that divide a text into words, from the tokenizers of the models.
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_OTHER_CHARACTERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_OTHER_CHARACTERS}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_OTHER_CHARACTERS}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2, _DIGITS = "", "digits"
"""GPT-2's words; GPT-2's words, and each digit by itself."""
WORDS = {
    **dict.fromkeys(("gpt-2", "phi-2"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "tekken": _TEKKEN,
}
_WHOLE_WORDS = (_LLAMA3, _TEKKEN)
"""Words that are tokens are not put together by merges in these vocabularies, and they put BOS before a text."""


def special_id(header: Header, name: str) -> int | None:
    """The id of a special token; None if the file names none. **Raises** `ValueError` for one that cannot occur."""
    value = header.get(f"tokenizer.ggml.{IDS.get(name, name)}", int)
    if value is None or value in (_NO_ID, -1):
        return None
    count = len(header.get("tokenizer.ggml.tokens", list, ()))
    if count and not 0 <= value < count:
        raise ValueError(
            f"{header.path}: the field tokenizer.ggml.{IDS.get(name, name)} is {value}; the vocabulary is 0 to "
            f"{count - 1}"
        )
    return value


def end_tokens(path: str | Path) -> set[int]:
    """The tokens that end a text, a turn or a message."""
    header = read_header(path)
    return {i for name in _ENDS if (i := special_id(header, name)) is not None}


def tokenizer_config(path: str | Path) -> dict[str, Any]:
    """The `tokenizer_config.json` of a Hugging Face folder: the special tokens and the chat template."""
    header = read_header(path)
    tokens = _tokens(header)
    ids = {name: special_id(header, name) for name in (*IDS, "unk_token")}
    ids["unk_token"] = special_id(header, "unknown_token_id")
    config: dict[str, Any] = {name: tokens[i] for name, i in ids.items() if i is not None}
    template = header.get("tokenizer.chat_template", str)
    return config if template is None else {**config, "chat_template": template}


def read_tokenizer(path: str | Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer of a GGUF file, and its special tokens by their names in `tokenizer_config`.

    **Raises:** `ValueError`, naming the file and the field, for one that is missing, damaged or not supported."""
    header = read_header(path)
    kind = header.need("tokenizer.ggml.model", str)
    makers = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in makers:
        raise ValueError(
            f"{path}: the tokenizer {kind!r} is not supported (supported: gpt2, which is "
            "byte-level BPE, and llama, which is SentencePiece)"
        )
    tokens = _tokens(header)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if vocabulary[token] != i)
        raise ValueError(f"{path}: the vocabulary has the token {twice!r} twice")
    try:
        backend, add_bos = makers[kind](header, vocabulary)
    except ValueError:
        raise
    except Exception as error:  # of the library, about the vocabulary or the merges
        raise ValueError(f"{path}: the vocabulary and the merges are no tokenizer: {error}") from error
    _add_special(backend, header, tokens)
    names = tokenizer_config(path)
    _add_template(backend, header, names, add_bos)
    return backend, names


def _tokens(header: Header) -> list[str]:
    return header.need("tokenizer.ggml.tokens", list)


def _types(header: Header, count: int) -> list[int]:
    """The type of each token."""
    types = header.get("tokenizer.ggml.token_type", np.ndarray)
    if types is None:
        return [_NORMAL] * count
    if len(types) != count or types.dtype.kind not in "iu":
        raise ValueError(
            f"{header.path}: the field tokenizer.ggml.token_type has {len(types)} values of {types.dtype}; an integer "
            f"for each of the {count} tokens is needed"
        )
    return types.tolist()


def _merges(header: Header) -> list[tuple[str, str]]:
    pairs = [tuple(merge.split(" ")) for merge in header.need("tokenizer.ggml.merges", list)]
    if wrong := next((pair for pair in pairs if len(pair) != 2), None):
        raise ValueError(f"{header.path}: the merge {' '.join(wrong)!r} is not of two tokens")
    return pairs  # type: ignore[return-value]


def _byte_level(header: Header, vocabulary: dict[str, int]) -> tuple[tokenizers.Tokenizer, bool]:
    """**Returns:** the tokenizer, and whether it adds BOS before a text by default."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    name = header.need("tokenizer.ggml.pre", str)
    if name not in WORDS:
        raise ValueError(
            f"{header.path}: the field tokenizer.ggml.pre is {name!r}, whose words are not known "
            f"(known: {', '.join(WORDS)}); take the model's Hugging Face folder"
        )
    words = WORDS[name]
    model = models.BPE(vocabulary, _merges(header), ignore_merges=words in _WHOLE_WORDS)
    backend = tokenizers.Tokenizer(model)
    parts: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words in (_GPT2, _DIGITS))]
    if words == _DIGITS:
        parts = [pre_tokenizers.Digits(individual_digits=True), *parts]
    elif words != _GPT2:
        parts = [pre_tokenizers.Split(tokenizers.Regex(words), "isolated"), *parts]
    backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    if words == _QWEN2:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend, words in _WHOLE_WORDS


def _sentencepiece(header: Header, vocabulary: dict[str, int]) -> tuple[tokenizers.Tokenizer, bool]:
    """**Returns:** as `_byte_level`."""
    import tokenizers
    from tokenizers import decoders, models, normalizers

    if "tokenizer.ggml.merges" in header.metadata:
        merges = _merges(header)
    else:
        scores = header.need("tokenizer.ggml.scores", np.ndarray)
        if len(scores) != len(vocabulary):
            raise ValueError(
                f"{header.path}: the field tokenizer.ggml.scores has {len(scores)} values for {len(vocabulary)} tokens"
            )
        types = _types(header, len(vocabulary))
        merges = merges_of({t: i for t, i in vocabulary.items() if types[i] in (_NORMAL, _USER)}, scores)
    unknown = special_id(header, "unknown_token_id")
    tokens = _tokens(header)
    byte_fallback = _BYTE in _types(header, len(tokens))
    model = models.BPE(vocabulary, merges, unk_token=tokens[unknown or 0], fuse_unk=True, byte_fallback=byte_fallback)
    backend = tokenizers.Tokenizer(model)
    prefix = header.get("tokenizer.ggml.add_space_prefix", bool, True)
    spaces = normalizers.Replace(" ", "\u2581")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if prefix else spaces
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefix else parts)
    return backend, True


def merges_of(vocabulary: dict[str, int], scores: Sequence[float] | np.ndarray) -> list[tuple[str, str]]:
    """The merges of a SentencePiece vocabulary: every way to make a token of two others, the best score first, and
    within a token as SentencePiece would meet them, by the ids of the parts."""
    merges = []
    for token, i in vocabulary.items():
        splits = [
            (vocabulary[left], vocabulary[right], left, right)
            for cut in range(1, len(token))
            if (left := token[:cut]) in vocabulary and (right := token[cut:]) in vocabulary
        ]
        merges += [(-float(scores[i]), i, *split) for split in sorted(splits)]
    return [(left, right) for *_, left, right in sorted(merges, key=lambda split: split[:4])]


def _add_special(backend: tokenizers.Tokenizer, header: Header, tokens: list[str]) -> None:
    """Control tokens, and those that their user defined, are found in a text before anything else."""
    from tokenizers import AddedToken

    types = _types(header, len(tokens))
    control, user = (
        [AddedToken(token, normalized=False, special=special) for token, t in zip(tokens, types) if t == kind and token]
        for kind, special in ((_CONTROL, True), (_USER, False))
    )
    backend.add_special_tokens(control)
    backend.add_tokens(user)
    if backend.get_vocab_size() != len(tokens):
        raise ValueError(f"{header.path}: the vocabulary grows from {len(tokens)} to {backend.get_vocab_size()} tokens")


def _add_template(backend: tokenizers.Tokenizer, header: Header, names: dict[str, Any], add_bos: bool) -> None:
    """Set the special tokens that are added before and after a text."""
    from tokenizers import processors

    added = {
        "bos_token": header.get("tokenizer.ggml.add_bos_token", bool, add_bos),
        "eos_token": header.get("tokenizer.ggml.add_eos_token", bool, False),
    }
    special = {name: names[name] for name, enabled in added.items() if enabled and name in names}
    if not special:
        return
    single = [special[name] if name in special else None for name in ("bos_token", "eos_token")]
    template = [part for part in (single[0], "$A", single[1]) if part is not None]
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, backend.token_to_id(token)) for token in special.values()]
    )
