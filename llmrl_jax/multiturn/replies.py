"""Replies of an agent, read by an automaton over tokens: inside jit, and equal to Python's `re` on the host."""

from __future__ import annotations

import dataclasses
import difflib
import re
import string
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from llmrl_jax.lm.layers import AnyArray
from llmrl_jax.lm.stops import start_bytes, token_bytes, token_classes
from llmrl_jax.lm.tokens import FastTokenizer


IMPOSSIBLE = 2**30
"""`ReplyAutomaton.need` of a state from which no valid end can be reached."""
BROKEN = "\ufffd"
"""Decoders write this for bytes that are not UTF-8. It also stands for all characters that no format or name has."""
SPACES = tuple(c for c in map(chr, range(0x110000)) if c.isspace())
"""White space of `str.strip` and of `\\s` in `re`."""


@dataclass(frozen=True)
class ReplyFormat:
    r"""Defines which part of a reply is the action.

    The reply is an optional thought, `opening`, the action, `closing`. `parse` is the definition, by `re`."""

    name: str
    opening: str = ""
    """Text before the action. Empty: the whole reply is the action."""
    closing: str = ""
    """Text after the action, which also ends the reply. Empty: the action reaches to the reply's end."""
    thought: tuple[str, str] | None = None
    """Tags around a thought that must precede the action, if `think`."""
    missing: str | None = None
    """The action of a reply that does not follow the format. None: the whole reply."""
    letters: bool = False
    """Whether all characters but ASCII letters, white space and ":" are first removed."""
    strip: bool = True
    """Whether white space around the action is removed."""
    last: bool = False
    """Whether the last `opening` counts, and not the first."""
    ends: bool = False
    """Whether a reply is complete with the last letter of an action's name, without a stop token."""
    think: bool = True
    """Whether the reply may have a thought. Without, constrained replies begin with `opening`."""

    def __post_init__(self) -> None:
        if self.closing and (not self.opening or self.last or self.ends):
            raise ValueError(
                f"the format {self.name!r} closes with {self.closing!r}, which needs an opening, of which the first "
                "counts, and leaves no other end: set opening, or leave out closing, last and ends"
            )
        if (self.last or self.thought) and not self.opening:
            raise ValueError(f"the format {self.name!r} has no opening: leave out last and thought, or set opening")
        if self.letters and self.filter(self.opening) != self.opening:
            raise ValueError(f"the filter to letters removes a part of {self.opening!r}: set letters to False")
        if self.letters and self.closing or self.thought and (self.letters or self.last):
            raise ValueError(f"the format {self.name!r} joins letters or last with tags: leave one of them out")

    @property
    def pattern(self) -> str:
        """The regular expression whose first group is the action, for `re.search` with `re.DOTALL`."""
        before = ""
        if self.thought and self.think:
            before = rf"{re.escape(self.thought[0])}.*?{re.escape(self.thought[1])}\s*"
        action = f"(.*?){re.escape(self.closing)}" if self.closing else r"(.*)\Z"
        return (".*" if self.last else "") + before + re.escape(self.opening) + action

    def filter(self, text: str) -> str:
        """`text` as the format reads it."""
        return re.sub(r"[^a-zA-Z\s:]", "", text) if self.letters else text

    def parse(self, text: str) -> str:
        """The part of a reply that is the action, whether or not an action has that name."""
        text = self.filter(text)
        match = re.search(self.pattern, text, re.DOTALL)
        if match is None and self.missing is not None:
            return self.missing
        action = text if match is None else match.group(1)
        return action.strip() if self.strip else action


FORMATS = {
    form.name: form
    for form in (
        ReplyFormat("naive", letters=True, strip=False),
        ReplyFormat("cot", opening="ACTION:", letters=True, last=True),
        ReplyFormat("robust_naive", opening="<|ACTION|>", closing="<|END|>"),
        ReplyFormat(
            "robust_cot",
            opening="<|ACTION|>",
            closing="<|END|>",
            missing="Failed to obtain a valid action from the reasoning.",
        ),
        ReplyFormat("tags", opening="<action>", closing="</action>", thought=("<think>", "</think>"), missing=""),
        ReplyFormat("plain", opening="ACTION:", missing="", ends=True),
        ReplyFormat("action", ends=True),
    )
}
"""`naive`, `cot`, `robust_naive` and `robust_cot` are those of BALROG's agents (commit af7d1f1); `tags` is RAGEN's with
`<action>`; `plain` is `THINK ... ACTION: name`; `action` is the name alone, as in GLAM."""


@struct.dataclass
class ReplyAutomaton:
    """A format and the names of actions as an automaton over tokens.

    One look-up reads a token, however tokens straddle tags and names. For all token strings the action equals that of
    `format.parse` on the decoded text, up to the first stop token. Where a tokenizer falls back to bytes, this
    holds for bytes that are valid UTF-8: its decoder drops other ones in runs.
    """

    moves: Int[Array, "M C"]
    """The state after a token of class `c` in state `m`; int16 if it fits."""
    classes: Int[Array, "V"]
    """The class of each token: most tokens do the same to every state."""
    action: Int[Array, "M"]
    """The index of the action if the reply ends in this state; -1: invalid."""
    closed: Bool[Array, "M"]
    """Whether the reply is complete and may end at once: after the closing tag, the end of a name or a stop token.
    Other replies end with a full budget."""
    need: Int[Array, "M"]
    """The least number of further tokens, a stop token included, until the reply is closed with an action; `IMPOSSIBLE`
    if no tokens lead there."""
    spelled: Bool[Array, "C"]
    """Whether the tokens of a class are the tokenizer's: a model's vocabulary may be padded."""
    format: ReplyFormat = struct.field(pytree_node=False)
    actions: tuple[str, ...] = struct.field(pytree_node=False)
    start: int = struct.field(pytree_node=False, default=0)
    """The state before the first token."""

    @staticmethod
    def build(
        tokenizer: FastTokenizer,
        format: str | ReplyFormat,
        actions: Sequence[str],
        vocab_size: int,
        stop_tokens: Sequence[int] = (),
        think: bool = True,
    ) -> ReplyAutomaton:
        """**Arguments:** `tokenizer`; `format`, one of `FORMATS` by name, or another; `actions`, their names;
        `vocab_size`, the model's, which may be padded; `stop_tokens`, which end a reply and are not part of its text;
        `think`, whether there may be a thought (`ReplyFormat.think`).

        **Raises:** `ValueError` for an unknown format or one with a parser of its own; names that are empty, equal, or
        that no reply can have; a format or an action that no sequence of tokens can complete; a stop token that the
        model does not have.
        """
        form = dataclasses.replace(_format(format), think=think)
        names = _names(form, actions)
        wrong = [token for token in stop_tokens if not 0 <= token < vocab_size]
        if wrong:
            raise ValueError(f"the stop token {wrong[0]} is not in the model's vocabulary of {vocab_size}")
        over_bytes, outputs, start, ends = _over_bytes(form, names)
        moves, classes, spelled = _over_tokens(tokenizer, vocab_size, over_bytes, start)
        if len(moves) > len(outputs):
            outputs, start = outputs[[*range(len(outputs)), start]], len(outputs)
        if len(stop_tokens):
            classes[list(stop_tokens)] = moves.shape[1]
            stopped = [ends[action, thoughtful] for action, _, thoughtful in outputs.tolist()]
            moves, spelled = np.column_stack([moves, stopped]), np.append(spelled, True)
        moves, outputs = _trim(moves, outputs, start)
        action, closed = outputs[:, 0], outputs[:, 1].astype(bool)
        valid = closed & (action >= 0) & (outputs[:, 2] == 0)
        absent = [name for name, i in names.items() if not (valid & (action == i)).any()]
        if absent:
            hint = "" if len(stop_tokens) else "; without stop_tokens only a closing tag or a whole name ends a reply"
            raise ValueError(
                f"no sequence of the tokenizer's {tokenizer.vocab_size} tokens is a reply of format {form.name!r} with "
                f"the action {absent[0]!r}{hint}: give other names, another format, or stop_tokens (the tokenizer's "
                f"end-of-sequence token is {tokenizer.eos_id})"
            )
        return ReplyAutomaton(
            moves=jnp.asarray(moves.astype(np.int16 if len(moves) < 2**15 else np.int32)),
            classes=jnp.asarray(classes),
            action=jnp.asarray(action),
            closed=jnp.asarray(closed),
            need=jnp.asarray(_distances(moves, valid)),
            spelled=jnp.asarray(spelled),
            format=form,
            actions=tuple(names),
        )

    @property
    def table(self) -> Int[Array, "M V"]:
        """The state after token `v` in state `m`."""
        return self.moves[:, self.classes]

    def step(self, state: Int[AnyArray, "..."], token: Int[AnyArray, "..."]) -> Int[Array, "..."]:
        """The state after a token, int32."""
        return self.moves[state, self.classes[token]].astype(jnp.int32)

    def allowed(self, state: Int[AnyArray, "..."], left: Int[AnyArray, "..."]) -> Bool[Array, "... V"]:
        """Tokens after which the reply can still be closed with an action. **Arguments:** `left`, tokens that the reply
        may still have, this one included.

        If only such tokens are drawn, and `left` was at least `need[start]` at the beginning, every reply ends with an
        action within its budget. All replies that do can be drawn."""
        fits = (self.need[self.moves[state]] < jnp.asarray(left)[..., None]) & self.spelled
        return fits[..., self.classes]


def _format(format: str | ReplyFormat) -> ReplyFormat:
    if isinstance(format, str):
        if format not in FORMATS:
            close = difflib.get_close_matches(format, FORMATS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"the reply format {format!r} is not one of {', '.join(FORMATS)}{hint}")
        return FORMATS[format]
    if type(format) is not ReplyFormat:
        raise ValueError(
            f"no automaton is known for the parser of {type(format).__name__}: describe the format by the fields of "
            f"ReplyFormat, or take one of {', '.join(FORMATS)}"
        )
    return format


def _names(form: ReplyFormat, actions: Sequence[str]) -> dict[str, int]:
    """Names with their indices, checked."""
    if isinstance(actions, str) or not actions:
        raise ValueError(f"the actions are {actions!r}; give a list of at least 1 name")
    names: dict[str, int] = {}
    for i, name in enumerate(actions):
        read = form.filter(name).strip() if form.strip else form.filter(name)
        if not read or BROKEN in name:
            raise ValueError(f"no reply of format {form.name!r} has the action {name!r}: give a name in plain text")
        if read in names:
            raise ValueError(
                f"action {i}, {name!r}, is action {names[read]} for the format {form.name!r}: give them different names"
            )
        tags = [tag for tag in (form.opening, form.closing) if tag and tag in name]
        if read != name or tags:
            raise ValueError(
                f"no reply of format {form.name!r} has the action {name!r}, "
                + (f"which holds {tags[0]!r}" if tags else f"which is read as {read!r}")
                + ": rename the action or choose another format"
            )
        names[name] = i
    return names


# ------------------------------------------------------------------------------------------- over characters


class _Name(NamedTuple):
    """What has been read of a name."""

    prefix: str | None
    """The text without the white space that it begins with; None if no name begins with it."""
    action: int
    """The action that the text is, but for white space at its end; -1: none."""


class _Search:
    """The longest prefix of a text that a string ends with (Knuth, Morris and Pratt)."""

    def __init__(self, text: str):
        self.text = text
        self._next: dict[tuple[int, str], int] = {}

    def advance(self, matched: int, c: str) -> int:
        if (matched, c) not in self._next:
            read = self.text[:matched] + c
            ends = (n for n in range(min(len(read), len(self.text)), 0, -1) if read.endswith(self.text[:n]))
            self._next[matched, c] = next(ends, 0)
        return self._next[matched, c]


class _Thought:
    """Searches tags around a thought, white space, then the opening: a set of positions in the pattern."""

    def __init__(self, begin: str, end: str, opening: str):
        self.parts, self.gap = begin + end + opening, len(begin + end)
        self.begin = len(begin)
        self.complete = len(self.parts)

    def advance(self, state: frozenset[int], c: str) -> frozenset[int]:
        reached = {i + 1 for i in state if c == self.parts[i]}
        if self.gap in state and c.isspace():
            reached.add(self.gap)
        # The first opening tag counts; within the thought, every position may begin the closing tag.
        reached.add(self.begin if self.begin in state or self.begin in reached else 0)
        return frozenset(reached)


class _Before(NamedTuple):
    """No action has begun."""

    search: Any
    """Progress in the opening."""
    direct: int
    """Length of the opening's prefix that is all that was written, besides white space; -1: there is more."""
    name: _Name | None
    """The whole reply read as a name, where it counts."""


class _Within(NamedTuple):
    """An action has begun."""

    name: _Name
    before: tuple[_Name, ...]
    """`name` before each character of the closing tag's prefix, the last characters; or nothing."""
    search: int
    """Progress in the next opening, where the last counts."""
    thoughtful: bool


class _End(NamedTuple):
    """The reply has ended."""

    action: int
    thoughtful: bool


class _Reader:
    """The automaton of a format over characters.

    `output` is the action, whether the reply is complete, and whether it has a thought that it must not have."""

    def __init__(self, form: ReplyFormat, names: Mapping[str, int]):
        self.form, self.names = form, names
        self.prefixes = {name[:n] for name in names for n in range(len(name) + 1)}
        self.longer = {name[:n] for name in names for n in range(len(name))}
        self.opening: Any = _Search(form.opening)
        self.closing = _Search(form.closing)
        self.first: Any = 0
        if form.thought and form.think:
            self.opening, self.first = _Thought(*form.thought, form.opening), frozenset([0])
        whole = _Name("", -1) if form.missing is None else None
        self.start: Hashable = _Before(self.first, -1 if form.think else 0, whole)
        if not form.opening:
            self.start = _Within(_Name("", -1), (), 0, False)

    def read(self, name: _Name, c: str) -> _Name:
        space = c.isspace() and self.form.strip
        if name.prefix == "" and space:
            return name
        prefix = None if name.prefix is None or name.prefix + c not in self.prefixes else name.prefix + c
        return _Name(prefix, name.action if space else self.names.get(prefix, -1) if prefix else -1)

    def advance(self, state: Any, c: str) -> Hashable:
        if isinstance(state, _End) or self.form.letters and not self.form.filter(c):
            return state
        if isinstance(state, _Before):
            return self._before(state, c)
        assert isinstance(state, _Within)
        name = self.read(state.name, c)
        if self.form.closing:
            history = (*state.before, state.name)
            matched = self.closing.advance(len(state.before), c)
            if matched == len(self.form.closing):
                return _End(history[0].action, state.thoughtful)
            return _Within(name, history[len(history) - matched :], 0, state.thoughtful)
        if self.form.last:
            search = self.opening.advance(state.search, c)
            if search == len(self.form.opening):
                return _Within(_Name("", -1), (), search, not self.form.think)
            return _Within(name, (), search, state.thoughtful)
        return _Within(name, (), 0, state.thoughtful)

    def _before(self, state: _Before, c: str) -> Hashable:
        opening, direct = self.form.opening, state.direct
        if direct >= 0 and not (direct == 0 and c.isspace()):
            direct = direct + 1 if c == opening[direct] else -1
        search = self.opening.advance(state.search, c)
        if search == len(opening) or isinstance(search, frozenset) and self.opening.complete in search:
            thoughtful = not self.form.think and direct != len(opening)
            return _Within(_Name("", -1), (), len(opening) if self.form.last else 0, thoughtful)
        return _Before(search, direct, state.name and self.read(state.name, c))

    def output(self, state: Any) -> tuple[int, bool, bool]:
        if isinstance(state, _End):
            return state.action, True, state.thoughtful
        if isinstance(state, _Before) or self.form.closing:  # no action, as yet
            if self.form.missing is not None:
                return self.names.get(self.form.missing, -1), False, False
            whole = state.name if isinstance(state, _Before) else None  # no name holds the opening
            return whole.action if whole else -1, False, False
        name = state.name
        closed = self.form.ends and name.action >= 0 and name.prefix not in self.longer
        return name.action, closed, state.thoughtful


# ------------------------------------------------------------------------------------------- over bytes and tokens


def _over_bytes(form: ReplyFormat, names: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray, int, dict[Any, int]]:
    """The least automaton over bytes.

    **Returns:** its table, `[M, 256]`; `output` of each state, `[M, 3]`; the first state; the states of replies that
    have ended, by action and thoughtfulness."""
    reader = _Reader(form, names)
    ends = [_End(action, thoughtful) for action in (-1, *names.values()) for thoughtful in (False, True)]
    special = {c for text in (form.opening, form.closing, *(form.thought or ()), *names) for c in text}
    alphabet, stands = _alphabet(special, form)
    states: dict[Hashable, int] = {state: i for i, state in enumerate([reader.start, *ends])}
    rows = []
    queue = list(states)
    for state in queue:
        row = []
        for c in alphabet:
            after = reader.advance(state, c)
            if after not in states:
                states[after] = len(states)
                queue.append(after)
            row.append(states[after])
        rows.append(row)
    outputs = np.array([reader.output(state) for state in queue], np.int32)
    kinds, over_characters = _merge(np.array(rows), outputs)
    outputs, roots = outputs[_firsts(kinds)], kinds[: 1 + len(ends)]

    # Characters of several bytes that matter are read byte by byte; all other bytes are BROKEN.
    encoded = {c.encode(): alphabet.index(stands(c)) for c in (*special, *SPACES) if not c.isascii()}
    begun = [b"", *sorted({c[:n] for c in encoded for n in range(1, len(c))})]
    broken = over_characters[:, alphabet.index(BROKEN)]
    here = np.arange(len(over_characters))
    table = np.empty((len(here), len(begun), 256), np.int64)
    for i, prefix in enumerate(begun):
        for byte in range(256):
            text, after = prefix + bytes([byte]), here
            if prefix and text not in encoded and text not in begun:
                text, after = text[-1:], broken  # the character ends before its last byte
            if text in begun:
                table[:, i, byte] = after * len(begun) + begun.index(text)
                continue
            index = alphabet.index(stands(chr(byte)) if byte < 128 and len(text) == 1 else BROKEN)
            table[:, i, byte] = over_characters[after, encoded.get(text, index)] * len(begun)
    outputs = np.stack([outputs, *[outputs[broken]] * (len(begun) - 1)], axis=1).reshape(-1, outputs.shape[1])
    kinds, over = _merge(table.reshape(-1, 256), outputs)
    roots = kinds[roots * len(begun)]
    closed = {(end.action, int(end.thoughtful)): int(root) for end, root in zip(ends, roots[1:], strict=True)}
    return over.astype(np.int32), outputs[_firsts(kinds)], int(roots[0]), closed


def _alphabet(special: set[str], form: ReplyFormat) -> tuple[list[str], Callable[[str], str]]:
    """Characters of which each stands for all that a format treats equally, and the one that stands for a character."""

    def other(c: str) -> bool:
        return c not in special

    space = next((c for c in SPACES if other(c)), BROKEN)
    letter = next((c for c in string.ascii_letters + ":" if other(c)), BROKEN) if form.letters else BROKEN

    def stands(c: str) -> str:
        if not other(c):
            return c
        return space if c.isspace() else letter if form.letters and form.filter(c) else BROKEN

    return sorted({*special, space, letter, BROKEN}), stands


def _merge(table: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge states that no string tells apart (Moore 1956).

    **Returns:** the new state of each state, and the new table."""
    columns = table[:, _firsts(_number(table.T))]
    kinds, count = _number(outputs), 0
    while count < (count := int(kinds.max()) + 1):
        kinds = _number(np.concatenate([kinds[:, None], kinds[columns]], axis=1))
    return kinds, kinds[table[_firsts(kinds)]]


def _number(rows: np.ndarray) -> np.ndarray:
    """Numbers of rows, equal for equal rows, in order of appearance. (`np.unique` takes ten times as long.)"""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in np.ascontiguousarray(rows)])


def _firsts(kinds: np.ndarray) -> np.ndarray:
    """The first state of each kind."""
    return np.unique(kinds, return_index=True)[1]


def _over_tokens(
    tokenizer: FastTokenizer, vocab_size: int, over_bytes: np.ndarray, start: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The automaton over tokens: `moves`, `classes` and `spelled`. Where the decoder drops the space that a text begins
    with, the beginning is one more state, the last."""
    spelled, first = token_bytes(tokenizer, vocab_size), start_bytes(tokenizer, vocab_size)
    exists = np.array([bool(token) for token in spelled])
    moves, classes = token_classes(over_bytes, spelled)
    begin, begins = token_classes(over_bytes, first)
    kinds, numbers = np.unique(np.stack([classes, begins, exists]), axis=1, return_inverse=True)
    moves = moves[:, kinds[0]]
    if spelled != first:
        row = np.where(kinds[2], begin[start, kinds[1]], len(moves))
        moves = np.concatenate([moves, row[None]])
    return moves, numbers.reshape(-1).astype(np.int32), kinds[2].astype(bool)


def _successors(moves: np.ndarray) -> np.ndarray:
    """Whether some token leads from one state to another, bool `[M, M]`."""
    successors = np.zeros((len(moves), len(moves)), bool)
    successors[np.arange(len(moves))[:, None], moves] = True
    return successors


def _trim(moves: np.ndarray, outputs: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
    """The states that tokens reach, the first one as state 0."""
    successors = _successors(moves)
    order, reached = [start], np.zeros(len(moves), bool)
    reached[start] = True
    for state in order:
        new = np.flatnonzero(successors[state] & ~reached)
        reached[new] = True
        order.extend(new.tolist())
    number = np.zeros(len(moves), moves.dtype)
    number[order] = np.arange(len(order))
    return number[moves[order]], outputs[order]


def _distances(moves: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The least number of tokens from each state to one of `ends`, int32; `IMPOSSIBLE` if there is no path."""
    successors = _successors(moves)
    need = np.where(ends, 0, IMPOSSIBLE).astype(np.int32)
    frontier = ends
    for distance in range(1, len(moves) + 1):
        frontier = successors[:, frontier].any(1) & (need == IMPOSSIBLE)
        need[frontier] = distance
        if not frontier.any():
            break
    return need
