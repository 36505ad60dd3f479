"""Tokenizers: a word-level one built from a program's own texts, and those of published models.

All of them implement the protocol `envs_jax.text.Tokenizer`: `encode` adds no special token, `decode` drops none, and
the special ids are attributes. They run on the host, when a program is built; inside jit there are only their tables.

A tokenizer may name a beginning-of-sequence token and still put nothing before a text (SmolLM2, Qwen). Its
post-processor decides, as in transformers 5, and is read once, into `prefix_ids`.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsInt

import jax
import numpy as np

from envs_jax.text import Tokenizer
from llmrl_jax.core.files import expanded
from llmrl_jax.core.packaged import LANGUAGE_MODELS
from llmrl_jax.lm import gguf
from llmrl_jax.lm.tensors import read_json


if TYPE_CHECKING:
    import tokenizers

__all__ = ["FastTokenizer", "Tokenizer", "WordTokenizer", "load_tokenizer"]

TOKENIZER_FILE, CONFIG_FILE, MAP_FILE = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
_VOCABULARIES = ("vocab", "merges", "tokenizer.model", "spiece", "sentencepiece", "tiktoken", "tekken")
"""Parts of the names of files from which transformers reads other tokenizers."""
_SPECIALS = ("bos_token", "eos_token", "pad_token")
TEMPLATE_SPECIALS = (*_SPECIALS, "unk_token", "sep_token", "cls_token", "mask_token")
"""Special tokens that chat templates may write."""


class FastTokenizer:
    """`tokenizers.Tokenizer` with the ids of its special tokens."""

    merges = True
    """Whether the end of a text and the start of the next one may be one token."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        pad_token: str | None = None,
    ):
        """**Arguments:** `backend`; the special tokens by name, each None or empty if the model has none. Padding that
        is not named, or is not in the vocabulary, falls back to the end-of-sequence token, then to id 0; padding is
        distinguished from text by lengths only, never by its id.

        **Raises:** `ValueError` for a `bos_token` or `eos_token` that is not in the vocabulary."""
        self.backend = backend
        self.prefix_ids: tuple[int, ...] = _prefix(backend)
        specials = {"bos_token": bos_token, "eos_token": eos_token, "pad_token": pad_token}
        self.specials = {name: token or None for name, token in specials.items()}
        self.bos_id, self.eos_id = self._id("bos_token"), self._id("eos_token")
        pad = backend.token_to_id(pad_token) if pad_token else None
        self.pad_id: int = next((i for i in (pad, self.eos_id) if i is not None), 0)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)

    def _id(self, name: str) -> int | None:
        token = self.specials[name]
        token_id = None if token is None else self.backend.token_to_id(token)
        if token is not None and token_id is None:
            raise ValueError(
                f"the {name} {token!r} is not in the tokenizer's vocabulary of {self.backend.get_vocab_size()}"
            )
        return token_id

    @property
    def end_id(self) -> int:
        """`eos_id`, for rows from which a model learns where to stop. **Raises:** `ValueError` if there is none."""
        if self.eos_id is None:
            raise ValueError(
                "the tokenizer names no end-of-sequence token, so a model would not learn where to stop: set eos_token "
                f"in the model's {CONFIG_FILE}"
            )
        return self.eos_id

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens. **Raises** `ValueError` for a text that is not Unicode."""
        return self._encoding(text).ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode`, and where each token begins and ends in the text, in characters."""
        encoding = self._encoding(text)
        offsets, last = [], 0
        for start, end in encoding.offsets:
            # A post-processor that trims offsets leaves none of the characters of a token of spaces.
            offsets.append((last if start == end else start, end))
            last = end
        return encoding.ids, offsets

    def encode_parts(
        self, parts: Sequence[str], *, start: bool = True
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Token ids of the consecutive parts of a text, and where each token begins and ends in its part.

        A part never changes the tokens of those before it, so that a model that has read them can write it: its tokens
        are those that it adds to the part before or, if the tokenizer merges across the boundary, its own.

        **Arguments:** `parts`; `start`, whether the first is the start of a text: its ids are those of `encode_start`,
        and what comes before the text has the offsets (0, 0).
        """
        encoded = []
        for i, part in enumerate(parts):
            if i:
                encoded.append(self.encode_after(parts[i - 1], part))
                continue
            ids, offsets = self.encode_with_offsets(part)
            before = self.encode_start(part)[: -len(ids) or None] if start else []
            encoded.append((before + ids, [(0, 0)] * len(before) + offsets))
        return encoded

    def encode_after(self, context: str, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of `text`, the part after `context` (`encode_parts`), and their offsets in `text`."""
        if not self.merges:
            return self.encode_with_offsets(text)
        # A tokenizer that puts a space before a text does not put it within one.
        for before in (context, "\n") if self._adds_space else (context,):
            head = self.encode(before)
            ids, offsets = self.encode_with_offsets(before + text)
            if ids[: len(head)] == head:
                shift = len(before)
                return ids[len(head) :], [(max(0, a - shift), max(0, b - shift)) for a, b in offsets[len(head) :]]
        return self.encode_with_offsets(text)

    @functools.cached_property
    def _adds_space(self) -> bool:
        """Return whether the tokenizer puts a space before a text, as SentencePiece does."""
        head = self.encode("\n")
        return self.encode("\na") != head + self.encode("a")

    def _encoding(self, text: str) -> tokenizers.Encoding:
        try:
            return self.backend.encode(text, add_special_tokens=False)
        except TypeError:
            raise _not_unicode(text) from None

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, in parallel."""
        try:
            return [e.ids for e in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        except TypeError:
            wrong = next((text for text in texts if not isinstance(text, str) or _surrogate(text) >= 0), "")
            raise _not_unicode(wrong) from None

    def encode_start(self, text: str) -> list[int]:
        """Token ids of a text from its start: `prefix_ids`, then `encode(text)`.

        The prefix is not repeated if the text spells it. An empty text without a prefix becomes `bos_id`, as in
        `generate` of transformers, or no token if there is none.
        """
        tokens, prefix = self.encode(text), list(self.prefix_ids)
        if tokens[: len(prefix)] != prefix:
            tokens = prefix + tokens
        return tokens or ([] if self.bos_id is None else [self.bos_id])

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """Text of token ids, special tokens included."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def decode_continuation(self, ids: Iterable[SupportsInt]) -> str:
        """`decode` of what continues another text, with the space that some decoders drop where a text begins: all of
        a word tokenizer, and those of SentencePiece."""
        tokens = [int(i) for i in ids]
        before, joined = self.decode([self.plain_id]), self.decode([self.plain_id, *tokens])
        return joined[len(before) :] if joined.startswith(before) else self.decode(tokens)

    @functools.cached_property
    def plain_id(self) -> int:
        """The lowest token that is letters or digits, or the lowest one: no decoder changes it for what follows."""
        names = self.backend.get_vocab(with_added_tokens=True)
        return min((i for name, i in names.items() if name.isascii() and name.isalnum()), default=min(names.values()))

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json` for `load_tokenizer`, `tokenizers` and transformers'
        `AutoTokenizer`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / TOKENIZER_FILE))
        config: dict[str, Any] = {name: token for name, token in self.specials.items() if token is not None}
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _prefix(backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    """The ids that the tokenizer's post-processor puts before a text."""
    import tokenizers
    from tokenizers import models

    if backend.post_processor is None:
        return ()
    # A vocabulary of one word gives a text that is sure to have a token, whatever the tokenizer's own vocabulary is.
    text = tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a")).encode("a")
    encoding = backend.post_processor.process(text)
    return tuple(encoding.ids[: encoding.special_tokens_mask.index(0)])


def _surrogate(text: str) -> int:
    """The place of the first lone surrogate of a text; -1 if there is none."""
    return next((i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff"), -1)


def _not_unicode(text: Any) -> Exception:
    """The error for what `tokenizers` refuses to encode."""
    if not isinstance(text, str):
        return TypeError(f"a text to encode is a {type(text).__name__}; a str is needed")
    index = _surrogate(text)
    return ValueError(
        f"a text holds {text[index]!r} at character {index}, half of a surrogate pair, which is no character: remove "
        "it, or decode the text again from its bytes"
    )


def check_tokens(tokens: Any, lengths: Any, vocab_size: int) -> None:
    """**Raises** `ValueError` for a row with a token that the model does not have: inside a program, it would be read
    as another one. Padding may be any number. Traced or abstract arrays, and those of several processes, are not
    checked.

    **Arguments:** `tokens`, `[B, S]`; `lengths`, `[B]`; None: there is no padding.
    """
    if not all(map(_has_values, (tokens,) if lengths is None else (tokens, lengths))):
        return
    ids = np.asarray(tokens)
    wrong = (ids < 0) | (ids >= vocab_size)
    if lengths is not None:
        wrong &= np.arange(ids.shape[1]) < np.asarray(lengths)[:, None]
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"row {row} holds the token {ids[row, column]} at place {column}; the model's vocabulary is 0 to "
            f"{vocab_size - 1}: encode the text with the model's own tokenizer"
        )


def check_lengths(lengths: Any, rows: int, width: int) -> None:
    """**Raises** `ValueError` unless there is a length for each of `rows` prompts, from 1 to `width`, to which they are
    padded. Traced or abstract arrays, and those of several processes, are checked for their shape only."""
    if lengths.shape != (rows,):
        raise ValueError(f"lengths have shape {lengths.shape}; one for each of {rows} prompts is needed")
    if rows and _has_values(lengths):
        numbers = np.asarray(lengths)  # of an array itself NumPy's functions are operations of a surrounding trace
        if not (1 <= numbers.min() and numbers.max() <= width):
            raise ValueError(f"lengths are {numbers}; they must lie between 1 and the padded {width}")


def _has_values(x: Any) -> bool:
    """Return whether an array has values here."""
    concrete = isinstance(x, np.ndarray) or isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    return concrete and getattr(x, "is_fully_addressable", True)


class WordTokenizer(FastTokenizer):
    """Tokenizer with one token per word between white space, including punctuation ("left," and "left" are two tokens).

    It has no unknown token: an out-of-vocabulary word is an error, unless there are spare tokens (`spare_ids`): then
    its trailing punctuation is dropped until it is known, else the rest is hashed to a spare token. The same word has
    the same token everywhere; some two of `n` such words share one of `s` tokens with a probability of about n^2 / 2s.
    Files do not record this: in other libraries such words are unknown. White space, including newlines, has no token.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> tokenizer = lr.WordTokenizer.from_texts(["go to the red ball", "turn left"])
    >>> tokenizer.decode(tokenizer.encode("turn to the ball"))
    'turn to the ball'
    ```
    """

    PAD, EOS = "<pad>", "<eos>"
    SPARE, MARKS = "<spare_{}>", ",.:;!?"
    _adds_space = False
    merges = False

    def __init__(self, backend: tokenizers.Tokenizer):
        super().__init__(backend, eos_token=self.EOS, pad_token=self.PAD)
        self._vocabulary = backend.get_vocab()
        self._longest = max(map(len, self._vocabulary), default=0)
        names = map(self.SPARE.format, itertools.count())
        spares = itertools.takewhile(self._vocabulary.__contains__, names)
        self.spare_ids: list[int] = [self._vocabulary[name] for name in spares]

    @classmethod
    def from_texts(cls, texts: Iterable[str], spare: int = 0) -> WordTokenizer:
        """Tokenizer of all words in `texts`, in alphabetical order after `<pad>` and `<eos>`, followed by `spare`
        tokens for other words.

        **Raises:** `ValueError` if there is no word, a word is a special token, or `spare` is negative."""
        import tokenizers
        from tokenizers import models, pre_tokenizers

        words = sorted({word for text in texts for word in text.split()})
        if not words:
            raise ValueError("a word tokenizer needs at least one word")
        if spare < 0:
            raise ValueError(f"spare is {spare}; 0 or more tokens for other words can be had")
        spares = [cls.SPARE.format(i) for i in range(spare)]
        for special in (cls.PAD, cls.EOS, *spares):
            if special in words:
                raise ValueError(f"the word {special!r} is taken: it is a special token")
        vocabulary = {word: i for i, word in enumerate([cls.PAD, cls.EOS, *words, *spares])}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.add_special_tokens([cls.PAD, cls.EOS])
        return cls(backend)

    @classmethod
    def from_prompt(cls, prompt: Any, answers: Iterable[str] = (), spare: int = 0) -> WordTokenizer:
        """Tokenizer of all texts of an `envs_jax.text.Prompt`, and of the answers to it."""
        return cls.from_texts([*(text for unit in prompt.units for text in unit.texts), *answers], spare)

    def _resolve(self, word: str) -> str:
        """The word, or its spare token."""
        if word in self._vocabulary:
            return word
        if self.spare_ids:
            stem = word.rstrip(self.MARKS) or word[0]
            # No prefix that is longer than all words can be one of them: the cost is linear in the marks.
            for end in range(min(len(word) - 1, self._longest), len(stem) - 1, -1):
                if word[:end] in self._vocabulary:
                    return word[:end]
            if _surrogate(stem) >= 0:
                raise _not_unicode(stem)
            code = int.from_bytes(hashlib.blake2b(stem.encode(), digest_size=8).digest())
            return self.SPARE.format(code % len(self.spare_ids))
        close = difflib.get_close_matches(word, list(self._vocabulary), n=3)
        hint = f"; the nearest are {', '.join(map(repr, close))}" if close else ""
        raise ValueError(f"the word {word!r} is not among the {self.vocab_size} of this tokenizer{hint}")

    def encode(self, text: str) -> list[int]:
        """Ids of the words of `text`. **Raises** `ValueError` for an unknown word if there are no spare tokens."""
        return super().encode(" ".join(map(self._resolve, text.split())))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode`, and where each word begins and ends in the text, in characters."""
        return self.encode(text), [word.span() for word in re.finditer(r"\S+", text)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, in parallel."""
        return super().encode_batch([" ".join(map(self._resolve, text.split())) for text in texts])


def load_tokenizer(path_or_id: str | Path) -> FastTokenizer:
    """Tokenizer from a folder with `tokenizer.json`, from such a file, from a GGUF file, or by the name of a packaged
    model or its id on the Hugging Face hub.

    Files are read with `tokenizers`; anything else is loaded by transformers' `AutoTokenizer`, without running code
    from the hub.
    **Raises:** `FileNotFoundError` for a path that does not exist, `ValueError` for a tokenizer without a fast version.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> tokenizer = lr.load_tokenizer("tiny")  # the folder that `load_model`'s example writes
    >>> len(tokenizer.encode("what colour is the sky ?"))
    6
    ```
    """
    packaged = LANGUAGE_MODELS.get(str(path_or_id).lower())
    path = expanded(path_or_id)
    if packaged and not path.exists():
        path = packaged.locate()
    if path.is_file() and path.suffix != ".json":
        tokenizer, config = gguf.read_tokenizer(path)
        return FastTokenizer(tokenizer, **{name: config.get(name) for name in _SPECIALS})
    file = path if path.suffix == ".json" else path / TOKENIZER_FILE
    if file.is_file():
        return _from_file(file)
    local = path.is_absolute() or path.suffix == ".json" or str(path_or_id).startswith(".")
    if local and not path.is_dir():
        raise FileNotFoundError(f"there is no tokenizer at {path_or_id}: neither a folder nor a {TOKENIZER_FILE}")
    if path.is_dir() and not any(part in file.name for file in path.iterdir() for part in _VOCABULARIES):
        raise ValueError(f"{path_or_id} has no {TOKENIZER_FILE}: copy the model's {TOKENIZER_FILE} into its folder")
    from transformers import AutoTokenizer

    try:
        slow_or_fast = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
    except Exception as error:  # of several libraries, most of several lines
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ValueError(
            f"{path_or_id} has no {TOKENIZER_FILE}, and transformers reads no other tokenizer there ({reason[0]}): "
            f"copy the model's {TOKENIZER_FILE} into its folder"
        ) from error
    backend = getattr(slow_or_fast, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"the tokenizer of {path_or_id} has no fast form ({TOKENIZER_FILE}); convert it first")
    specials = {name: getattr(slow_or_fast, name, None) for name in _SPECIALS}
    return FastTokenizer(backend, **{name: None if token is None else str(token) for name, token in specials.items()})


def _from_file(file: Path) -> FastTokenizer:
    import tokenizers
    from tokenizers import models

    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        raise ValueError(
            f"{file} is not a tokenizer that `tokenizers` {tokenizers.__version__} reads: {error}"
        ) from error
    backend.no_padding()
    backend.no_truncation()
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    ours = added == {WordTokenizer.PAD, WordTokenizer.EOS} and backend.normalizer is None
    if ours and isinstance(backend.model, models.WordLevel):
        return WordTokenizer(backend)
    config = tokenizer_config(file.parent)
    try:
        return FastTokenizer(backend, **{name: config.get(name) for name in _SPECIALS})
    except ValueError as error:
        named = " and ".join(name for name in (CONFIG_FILE, MAP_FILE) if (file.parent / name).is_file())
        raise ValueError(f"{file.parent / named}: {error}") from None


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """The values of a folder's `tokenizer_config.json`, with special tokens as texts, or None. As in transformers 5,
    those that `special_tokens_map.json` names, null included, replace them, unless the former has
    `added_tokens_decoder`: then the latter is not read.

    **Returns:** what the files hold; nothing of those that do not exist.
    **Raises:** `ValueError`, naming the file, for one that is no JSON object, or a token that is neither a text nor an
    object with `content`."""
    values: dict[str, Any] = {}
    for name in (CONFIG_FILE, MAP_FILE):
        file = folder / name
        if not file.is_file() or "added_tokens_decoder" in values:
            continue
        read = read_json(file)
        try:
            tokens = special_tokens(read)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
        values |= tokens if name == MAP_FILE else {**read, **tokens}
    return values


def special_tokens(values: Mapping[str, Any]) -> dict[str, str | None]:
    """The special tokens that `values` name, as texts; None for null and for the empty text.

    **Raises:** `ValueError` for a token that is neither a text nor an object with `content`."""
    tokens = {}
    for name in TEMPLATE_SPECIALS:
        if name in values:
            token = values[name]
            token = token.get("content") if isinstance(token, Mapping) else token
            if token is not None and not isinstance(token, str):
                raise ValueError(f"the {name} is {token!r}; a text, or an object with `content`, is needed")
            tokens[name] = token or None
    return tokens
