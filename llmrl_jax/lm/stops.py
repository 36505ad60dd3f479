"""Stop strings as an automaton over tokens, so that a loop on the device can stop at a string."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import SupportsInt

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int

from llmrl_jax.lm.tokens import FastTokenizer


@struct.dataclass
class StopStrings:
    """Strings that end a continuation as soon as its text contains one, independently of token boundaries.

    An Aho-Corasick automaton over bytes (Aho and Corasick 1975), composed over tokens: the state is the prefix of a
    string that the text ends with, and one look-up advances it by a whole token. Only the continuation's text counts.
    """

    table: Int[Array, "M V"]
    """The state after token `v` in state `m`. State 0 is the initial one; the last one is absorbing and has matched."""
    strings: tuple[str, ...] = struct.field(pytree_node=False)

    @staticmethod
    def build(tokenizer: FastTokenizer, strings: Sequence[str], vocab_size: int) -> StopStrings:
        """**Arguments:** `tokenizer`; `strings`, at least one; `vocab_size`, the model's, which may be padded.

        **Raises:** `ValueError` for an empty string, for one that no sequence of tokens can spell, and for a
        tokenizer whose tokens have no context-free text.
        """
        if isinstance(strings, str) or not strings:
            raise ValueError(f"stop strings are {strings!r}; give a list of at least 1 string")
        for text in strings:
            if not text:
                raise ValueError("a stop string is empty, which every text holds; leave it out")
        spelled = token_bytes(tokenizer, vocab_size)
        for text in dict.fromkeys(strings):
            if not _reachable(_token_table(_byte_table([text.encode()]), spelled)):
                raise ValueError(
                    f"the stop string {text!r} cannot occur: no sequence of the tokenizer's {tokenizer.vocab_size} "
                    "tokens spells it; give a text that the model can write"
                )
        table = _token_table(_byte_table([text.encode() for text in strings]), spelled)
        return StopStrings(jnp.asarray(table), tuple(strings))

    @property
    def matched(self) -> int:
        """State in which some string has occurred."""
        return self.table.shape[0] - 1

    def cut(self, text: str) -> str:
        """`text` up to and without the first stop string in it."""
        return text[: min((index for s in self.strings if (index := text.find(s)) >= 0), default=len(text))]

    def text(self, tokenizer: FastTokenizer, tokens: Iterable[SupportsInt], start: bool = False) -> str:
        """Tokens of a continuation as text, up to the first stop string, which may begin with the space that `decode`
        drops where a text begins. **Arguments:** `start`, see `Generation.texts`."""
        tokens = list(tokens)
        text = tokenizer.decode_continuation(tokens)
        return self.cut(text)[len(text) - len(tokenizer.decode(tokens)) if start else 0 :]


def token_bytes(tokenizer: FastTokenizer, vocab_size: int) -> list[bytes]:
    """The bytes that each token appends to a non-empty text, in UTF-8; empty if there is no such token.

    Derived from the tokenizer's kind of decoder, then checked against the tokenizer's own decoding.

    **Raises:** `ValueError` for another kind of decoder, or if the two differ.
    """
    names = _names(tokenizer)
    spell = _speller(tokenizer)
    spelled = [spell(names[i]) if i in names else b"" for i in range(max(names) + 1)]
    _verify(tokenizer, names, spelled)
    return (spelled + [b""] * vocab_size)[:vocab_size]


def start_bytes(tokenizer: FastTokenizer, vocab_size: int) -> list[bytes]:
    """The bytes that each token gives as the first of a text, where some decoders drop a space; else `token_bytes`.

    **Raises:** as `token_bytes`."""
    spelled = token_bytes(tokenizer, vocab_size)
    whole = {}
    for i, text in enumerate(spelled):
        try:
            whole[i] = text.decode() if text else ""
        except UnicodeDecodeError:
            continue  # a part of a character, which no decoder drops
    rows = [[i] for i, text in whole.items() if text]
    decoded = tokenizer.backend.decode_batch(rows, skip_special_tokens=False)
    for (i,), first in zip(rows, decoded, strict=True):
        spelled[i] = first.encode()
    return spelled


def _names(tokenizer: FastTokenizer) -> dict[int, str]:
    return {i: name for name, i in tokenizer.backend.get_vocab(with_added_tokens=True).items()}


def _speller(tokenizer: FastTokenizer) -> Callable[[str], bytes]:
    """The bytes of a token, from its name in the vocabulary."""
    decoder = tokenizer.backend.decoder
    if decoder is None:  # tokens are then joined by spaces
        return lambda name: b" " + name.encode()
    state = json.loads(decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level
    replaced = []
    for i, step in enumerate(steps):
        # Steps after Fuse act on the whole text, across tokens.
        per_token = "Fuse" not in kinds[:i]
        if step["type"] == "Metaspace" and per_token:
            replaced.append((step["replacement"], " "))
        elif step["type"] == "Replace" and "String" in step["pattern"] and per_token:
            replaced.append((step["pattern"]["String"], step["content"]))
        # Strip then acts only on the beginning of the text, which is not part of a continuation.
        elif not (step["type"] in ("ByteFallback", "Fuse") or step["type"] == "Strip" and step["stop"] == 0):
            raise ValueError(
                f"stop strings need tokens with a text of their own; a decoder of {' and '.join(kinds)} is not known "
                "to give them (ByteLevel, Metaspace, Replace, ByteFallback, Fuse and Strip are): use stop_tokens"
            )

    def spell(name: str) -> bytes:
        if "ByteFallback" in kinds and re.fullmatch("<0x[0-9A-F]{2}>", name):
            return bytes.fromhex(name[3:5])
        for old, new in replaced:
            name = name.replace(old, new)
        return name.encode()

    return spell


def _byte_level(name: str) -> bytes:
    """GPT-2's alphabet: a printable byte is its own character, the others follow from U+0100 on."""
    try:
        return bytes(_ALPHABET[c] for c in name)
    except KeyError:  # an added token, kept unchanged
        return name.encode()


_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_UNPRINTABLE = [b for b in range(256) if b not in _PRINTABLE]
_ALPHABET = {**{chr(b): b for b in _PRINTABLE}, **{chr(0x100 + i): b for i, b in enumerate(_UNPRINTABLE)}}


def _verify(tokenizer: FastTokenizer, names: dict[int, str], spelled: list[bytes]) -> None:
    """Compare each token that is valid text alone, after a plain one, with the tokenizer's own decoding."""
    first = tokenizer.plain_id
    texts = {}
    for i in names:
        try:
            texts[i] = spelled[i].decode()
        except UnicodeDecodeError:
            continue  # a part of a character
    before = tokenizer.decode([first])
    decoded = tokenizer.backend.decode_batch([[first, i] for i in texts], skip_special_tokens=False)
    for (i, text), actual in zip(texts.items(), decoded, strict=True):
        if actual != before + text:
            raise ValueError(
                f"token {i} ({names[i]!r}) was taken to add {text!r}, but behind {before!r} the tokenizer decodes "
                f"{actual!r}; stop strings would not be exact: use stop_tokens"
            )


def _byte_table(strings: Sequence[bytes]) -> np.ndarray:
    """The automaton over bytes, int32 `[M, 256]`: the last state is absorbing and means that a string occurred."""
    children: list[dict[int, int]] = [{}]
    ends: list[bool] = [False]
    for string in strings:
        node = 0
        for byte in string:
            if byte not in children[node]:
                children[node][byte] = len(children)
                children.append({})
                ends.append(False)
            node = children[node][byte]
        ends[node] = True
    matched = len(children)
    table = np.zeros((matched + 1, 256), np.int32)
    table[matched] = matched
    suffix = [0] * len(children)
    # A node's longest suffix in the tree is shallower than the node: in order of depth, its row is already computed.
    queue = [0]
    for node in queue:
        ends[node] |= ends[suffix[node]]
        table[node] = table[suffix[node]] if node else 0
        for byte, child in children[node].items():
            suffix[child] = int(table[node, byte]) if node else 0
            table[node, byte] = child
            queue.append(child)
    return np.where(np.array([*ends, True])[table], matched, table).astype(np.int32)


def token_classes(over_bytes: np.ndarray, spelled: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """An automaton over tokens: the bytes of each token in sequence, from every state.

    Most tokens do the same to every state. They are a class.

    **Arguments:** `over_bytes`, the automaton over bytes, `[M, 256]`; `spelled`, the bytes of each token.
    **Returns:** the state after a token of each class, int32 `[M, C]`; the class of each token, int32 `[V]`.
    """
    columns = [np.arange(len(over_bytes), dtype=np.int32)]
    numbers = {columns[0].tobytes(): 0}
    after: dict[tuple[int, int], int] = {}
    by_byte = np.ascontiguousarray(over_bytes.T, np.int32)
    classes = np.empty(len(spelled), np.int32)
    for i, token in enumerate(spelled):
        number = 0
        for byte in token:
            if (number, byte) not in after:
                column = by_byte[byte][columns[number]]
                after[number, byte] = numbers.setdefault(column.tobytes(), len(columns))
                if len(numbers) > len(columns):
                    columns.append(column)
            number = after[number, byte]
        classes[i] = number
    used, compact = np.unique(classes, return_inverse=True)
    return np.stack([columns[i] for i in used], axis=1), compact.reshape(-1).astype(np.int32)


def _token_table(over_bytes: np.ndarray, spelled: Sequence[bytes]) -> np.ndarray:
    """The automaton over tokens, `[M, V]`."""
    columns, classes = token_classes(over_bytes, spelled)
    return columns.astype(np.int16 if len(columns) < 2**15 else np.int32)[:, classes]


def _reachable(table: np.ndarray) -> bool:
    """Return whether some sequence of tokens leads from the first state to the last."""
    reached, queue = {0}, [0]
    for state in queue:
        new = set(np.unique(table[state]).tolist()) - reached
        reached |= new
        queue.extend(new)
    return len(table) - 1 in reached
