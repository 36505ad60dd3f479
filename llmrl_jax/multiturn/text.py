"""Conversations between an environment and a model, as tokens on the device: an episode's head and turns."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal as Either

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from envs_jax.env import Environment
from envs_jax.text import CompiledPrompt, Literal, Part, Prompt, Slot, Tokenizer
from envs_jax.text.template import PromptError


@dataclass(frozen=True)
class TurnWording:
    """The fixed text around what an environment says, white space included."""

    instruction: str = ""
    """Before everything, once an episode; `{actions}` stands for the names of the actions."""
    goal: str = "Goal:"
    """Before the captions that stay the same throughout an episode, if there are any."""
    observation: str = " Observation:"
    """Before the captions of each turn."""
    sentence: tuple[str, str] = (" ", ",")
    """Before and after each phrase."""
    reply: str = " Reply:"
    """After them: what follows is the model's reply. White space at its end is left to the reply, since tokenizers cut
    before it, unless it ends with a line break, which is the prompt's."""
    between: str = ""
    """Before the turns that follow a reply."""
    end: str = ""
    """The marker that ends a reply, before `between`; where a reply has ended with this token, it is not repeated."""


CHATML = TurnWording(
    instruction="<|im_start|>user\nYou act in a world, one action a turn. Actions: {actions}.",
    goal="\nGoal:",
    observation="\nObservation:",
    reply="<|im_end|>\n<|im_start|>assistant\n",
    between="\n<|im_start|>user",
    end="<|im_end|>",
)
"""The markers of ChatML, which Qwen's and SmolLM2's chat models know."""

WORDINGS: dict[str, TurnWording] = {"plain": TurnWording(), "chatml": CHATML}
"""By name, for options."""


def _end(tokenizer: Tokenizer, words: TurnWording) -> int:
    """The token that ends a reply; -1 if there is none, or the tokenizer writes the marker with several."""
    ids = tokenizer.encode(words.end) if words.end else []
    return ids[0] if len(ids) == 1 else -1


def check_text(env: Environment) -> None:
    """**Raises** `TypeError` for an environment without a caption that changes, or without discrete actions."""
    if not set(env.captions) - set(env.episode_captions):
        raise TypeError(
            f"{env.id or type(env).__name__} describes no observation in words (captions: {list(env.captions)}); take "
            "a text world: llmrl envs list text"
        )
    env.action_names  # raises for an environment whose actions have no names  # noqa: B018


class TurnText:
    """The tokens of an episode's head (instruction and goal) and of each turn's observation.

    A conversation is the head, then a turn, the reply's own tokens, a turn, and so on: tokens are joined, never text,
    so what was written is read back as it was. That head and first turn are the tokenizer's own tokens of their text
    is checked when it is built; a turn after a reply begins where no tokenizer joins (`between`, or white space).
    """

    def __init__(self, env: Environment, tokenizer: Tokenizer, wording: TurnWording | None = None):
        """**Raises:** `TypeError` for an environment without text, `PromptError` for a tokenizer that joins tokens
        across the border between head and turn, or between a phrase and its neighbours."""
        check_text(env)
        words = TurnWording() if wording is None else wording
        head = list(self._head(env, words))
        turn = list(self._turn(env, words))
        heal = not words.reply.endswith("\n")
        self.head: CompiledPrompt | None = Prompt(*head).compile(tokenizer, heal=True) if head else None
        first = None if self.head is None else False
        opening = Prompt(*turn).compile(tokenizer, heal=heal, bos=first)
        before = words.end + words.between
        self.turn = opening if not before else Prompt(Literal(before), *turn).compile(tokenizer, heal=heal, bos=False)
        self.opening = opening
        """The first turn, which follows no reply."""
        self.end: int = _end(tokenizer, words)
        """The token with which `turn` begins, and a reply may end; -1: none."""
        self.pad_id: int = tokenizer.pad_id
        self.episode = tuple(env.episode_captions)
        self.moving = tuple(name for name in env.captions if name not in self.episode)
        if self.head is not None:
            self._check(Prompt(*head, *turn).compile(tokenizer, heal=heal))

    @staticmethod
    def _slot(env: Environment, name: str, words: TurnWording) -> Slot:
        book = env.captions[name]
        places = env.observation_space(env.default_params).spaces[name].shape[-1]  # type: ignore[attr-defined]
        size, limits = env.caption_limits.get(name, (places, ()))
        before, after = words.sentence
        return Slot(name, book, size, prefix=before, suffix=after, limits=limits)

    def _head(self, env: Environment, words: TurnWording) -> Iterator[Part]:
        if words.instruction:
            yield Literal(words.instruction.format(actions=", ".join(env.action_names)))
        if env.episode_captions:
            yield Literal(words.goal)
            for name in env.episode_captions:
                slot = self._slot(env, name, words)
                # a mission is one sentence of several phrases
                yield Slot(name, slot.book, slot.size, prefix=words.sentence[0], suffix="", limits=slot.limits)

    def _turn(self, env: Environment, words: TurnWording) -> Iterator[Part]:
        yield Literal(words.observation)
        for name in env.captions:
            if name not in env.episode_captions:
                yield self._slot(env, name, words)
        yield Literal(words.reply)

    def _check(self, joined: CompiledPrompt) -> None:
        """**Raises** `PromptError` if head and turn, joined as tokens, are not the tokens of their text."""
        assert self.head is not None
        for i in range(64):
            slots = joined._random_slots(np.random.default_rng(i))
            ours = [*self.head.tokens(slots), *self.opening.tokens(slots)]
            if ours != joined.tokens(slots):
                raise PromptError(
                    f"the tokenizer joins tokens across the border between the head and the first turn of "
                    f"{joined.prompt.render(slots)!r}: begin `observation` of the wording with white space or a marker"
                )

    @property
    def sizes(self) -> tuple[int, int]:
        """The most tokens of a head, and of a turn."""
        return 0 if self.head is None else self.head.max_length, max(self.turn.max_length, self.opening.max_length)

    @property
    def top_token(self) -> int:
        """The highest id that occurs; a model's vocabulary must be larger."""
        return max(part.top_token for part in (self.head, self.turn, self.opening) if part is not None)

    def heads(self, obs: Any) -> Pieces:
        """The head of each episode of a batch of observations."""
        rows = len(next(iter(obs.values())))
        if self.head is None:
            return jnp.zeros((rows, 0), jnp.int32), jnp.zeros(rows, jnp.int32)
        return jax.vmap(self.head, axis_size=rows)({name: obs[name] for name in self.episode})

    def turns(self, obs: Any, opening: bool = False) -> Pieces:
        """The observation of each row as the text of a turn; `opening`, of one that follows no reply."""
        return jax.vmap(self.opening if opening else self.turn)({name: obs[name] for name in self.moving})

    def render(self, obs: Mapping[str, Any], opening: bool = True) -> str:
        """Head and turn, or the turn alone, of one observation, as text, on the host."""
        parts = [self.head, self.opening] if opening else [self.turn]
        return "".join(part.prompt.render(obs) for part in parts if part is not None)


KEPT_TEXTS = 4096
"""Texts whose tokens are kept, since missions stay and observations return."""


class FreeText:
    """The tokens of an episode's head and of each turn where an environment says what it likes: made on the host, and
    padded. It is the encoder of a `HostEnvironment`, and the text of a policy that plays there.

    A turn is the wording's words and the environment's text between them, with the white space before a phrase and no
    mark after it; a head is the instruction and, if there is one, the mission. Tokens are joined, never text, as in
    `TurnText`.
    """

    names: tuple[str, ...] = ("head", "opening", "turn")
    """The parts of the observation: ids, padded with -1."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        actions: Sequence[str],
        wording: TurnWording | None = None,
        *,
        turn_tokens: int = 256,
        head_tokens: int = 128,
        long: Either["raise", "cut"] = "raise",
    ):
        """**Arguments:** `actions`, their names, for the instruction; `turn_tokens` and `head_tokens`, the most of a
        turn and of a head; `long`, whether a text that has more is an error, or loses its end.
        **Raises:** `PromptError` if the words around a text have more, or none."""
        self.tokenizer, self.words = tokenizer, TurnWording() if wording is None else wording
        self._instruction = self.words.instruction.format(actions=", ".join(actions))
        self._long = long
        self.end: int = _end(tokenizer, self.words)
        """The token with which a turn that follows a reply begins, and a reply may end; -1: none."""
        self.pad_id: int = tokenizer.pad_id
        self.vocab_size: int = tokenizer.vocab_size
        self.lengths: tuple[int, ...] = (head_tokens, turn_tokens, turn_tokens)
        self._part = functools.lru_cache(KEPT_TEXTS)(self._encode)
        for name, size, make in zip(self.names, self.lengths, self._makers()):
            if len(make("")) > size:
                raise PromptError(
                    f"the {name} has {len(make(''))} tokens without any text of the world, but there is room for "
                    f"{size}: give more {'head' if name == 'head' else 'turn'}_tokens"
                )
            if name != "head" and not make(""):
                raise PromptError(
                    f"the {name} has no token where the world says nothing, and a policy has to read one before it "
                    "replies: give the wording words in `observation` or `reply`"
                )

    # --- on the host --------------------------------------------------------------------------------------------------

    def _head(self, mission: str) -> str:
        goal = f"{self.words.goal}{self.words.sentence[0]}{mission}" if mission else ""
        return self._instruction + goal

    def _turn(self, text: str, opening: bool) -> str:
        words, said = self.words, f"{self.words.sentence[0]}{text}" if text else ""
        turn = f"{'' if opening else words.end + words.between}{words.observation}{said}{words.reply}"
        # white space at the end is the reply's, as in `TurnText`
        return turn if words.reply.endswith("\n") else turn.rstrip()

    def _makers(self) -> tuple[Callable[[str], list[int]], ...]:
        """For each part, the function from the mission or the text to its tokens."""
        encode, start = self.tokenizer.encode, list(self.tokenizer.prefix_ids)
        return (
            lambda mission: start + list(encode(self._head(mission).rstrip())),
            lambda text: list(encode(self._turn(text, opening=True))),
            lambda text: list(encode(self._turn(text, opening=False))),
        )

    def __call__(self, mission: str, text: str) -> tuple[list[np.ndarray], int, int]:
        """The parts of an observation, int32, and the tokens that were cut of the mission, and of the text. **Raises:**
        `ValueError` for a text that is too long, or that the tokenizer cannot encode."""
        parts = [self._part(i, said) for i, said in enumerate((mission, text, text))]
        return [ids for ids, _ in parts], parts[0][1], parts[2][1]

    def _encode(self, index: int, said: str) -> tuple[np.ndarray, int]:
        """A part, and the tokens that were cut."""
        name, size, make = self.names[index], self.lengths[index], self._makers()[index]
        tokens = make(said)
        length = len(tokens)
        if length > size:
            if self._long == "raise":
                raise ValueError(
                    f"the {name} has {length} tokens, and there is room for {size}: give more "
                    f"{'head' if name == 'head' else 'turn'}_tokens, or take long='cut' ({said[:80]!r})"
                )
            tokens = _longest(make, said, size)
        ids = np.full(size, -1, np.int32)
        ids[: len(tokens)] = tokens
        return ids, length - len(tokens)

    def render(self, obs: Mapping[str, Any], opening: bool = True) -> str:
        """Head and turn, or the turn alone, of one observation, as text, on the host."""
        names = ("head", "opening") if opening else ("turn",)
        ids = np.concatenate([np.asarray(obs[name]) for name in names])
        return self.tokenizer.decode(ids[ids >= 0].tolist())

    # --- on the device ------------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> tuple[int, int]:
        """The most tokens of a head, and of a turn."""
        return self.lengths[0], self.lengths[1]

    @property
    def top_token(self) -> int:
        """The highest id that may occur; a model's vocabulary must be larger."""
        return self.vocab_size - 1

    @staticmethod
    def _pieces(ids: Int[Array, "N _"]) -> Pieces:
        return jnp.maximum(ids, 0), jnp.sum(ids >= 0, axis=1, dtype=jnp.int32)

    def heads(self, obs: Any) -> Pieces:
        """The head of each episode of a batch of observations."""
        return self._pieces(obs["head"])

    def turns(self, obs: Any, opening: bool = False) -> Pieces:
        """The observation of each row as the text of a turn; `opening`, of one that follows no reply."""
        return self._pieces(obs["opening" if opening else "turn"])


def _longest(make: Callable[[str], list[int]], text: str, size: int) -> list[int]:
    """The tokens that `make` gives the most words of a text that fit, by bisection."""
    words = re.findall(r"\s*\S+", text)
    low, high = 0, len(words)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(make("".join(words[:middle]))) <= size else (low, middle)
    return make("".join(words[:low]))


Pieces = tuple[Int[Array, "N _"], Int[Array, " N"]]
"""A text of each row as right-padded tokens, and its length."""


def join(pieces: Sequence[Pieces], size: int) -> Pieces:
    """The texts of each row, one after the other, in `size` places. What does not fit is cut: `length` says how many
    there would be."""
    rows = jnp.arange(len(pieces[0][0]))[:, None]
    tokens = jnp.zeros((len(rows), size), jnp.int32)
    length = jnp.zeros(len(rows), jnp.int32)
    for piece, count in pieces:
        places = jnp.arange(piece.shape[1])
        index = jnp.where(places < count[:, None], length[:, None] + places, size)
        tokens = tokens.at[rows, index].set(piece, mode="drop")
        length = length + count
    return tokens, length


def continued(end: int, before: Pieces, turn: Pieces) -> Pieces:
    """The turn of each row as it follows a text: without its first token where that is `end` and so is the text's last.

    **Arguments:** `end`, the token that ends a reply (-1: none); `before`, the text, whose replies may be marked
    (`llmrl_jax.multiturn.rollout.mark`)."""
    if end < 0:
        return turn
    (text, length), (tokens, count) = before, turn
    last = jnp.take_along_axis(text, jnp.maximum(length - 1, 0)[:, None], axis=1)[:, 0]
    doubled = (length > 0) & ((last == end) | (last == ~end)) & (tokens[:, 0] == end)
    return jnp.where(doubled[:, None], jnp.roll(tokens, -1, axis=1), tokens), count - doubled
