"""A prompt as tokens inside jit: tables made on the host, checked against the tokenizer, assembled on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.text.phrases import Tokenizer, TokenTable, pad_rows
from envs_jax.text.template import PromptError, Slots, Template, Unit


BLOCK = 32
"""Positions that are assembled together, from those parts of the template that can reach them."""


class CompiledPrompt:
    """A function from slots to tokens, for one environment; callers `vmap` it.

    `compiled(slots)` returns `(tokens int32 [S], length int32 [])`, right-padded with `pad_id`; `S` is the attribute
    `max_length`. Every unit of the template is a row of one flat token table; a position takes the last unit that
    starts at or before it, of those that can reach it. Nothing is cut silently: `S` holds the longest case, and a
    prompt that is cut anyway (under `overflow="report"`, if the environment breaks a slot's `size` or `limits`, or if a
    caption has a phrase after its padding) has a `length` above `S`, which callers must check.
    """

    def __init__(
        self,
        prompt: Template,
        tokenizer: Tokenizer,
        max_length: int | None = None,
        *,
        heal: bool = True,
        bos: bool | None = None,
        overflow: str = "refuse",
        samples: int = 64,
    ):
        """See `Prompt.compile`; `samples` random slots are checked against the tokenizer, in addition to every
        border."""
        self.prompt, self.tokenizer, self.heal = prompt, tokenizer, heal
        self.pad_id = tokenizer.pad_id
        start = tokenizer.prefix_ids if bos is None else ()
        if bos:
            if tokenizer.bos_id is None:
                raise PromptError("bos asks for a beginning-of-sequence token, but the tokenizer has none")
            start = (tokenizer.bos_id,)
        self._bos = list(start)
        self._rows: list[list[int]] = [[]]
        self._bases: dict[tuple[str, ...], int] = {}
        self._plan = [self._table(i) for i in range(len(prompt.units))]
        self._end = self._tail_row()
        self._check_borders()
        lengths = np.array([len(row) for row in self._rows], np.int32)
        self._lengths, self._starts = lengths, (np.cumsum(lengths) - lengths).astype(np.int32)
        self._flat = np.array([t for row in self._rows for t in row] or [self.pad_id], np.int32)
        needed = self.longest()
        total = sum(needed.values())
        if overflow not in ("refuse", "report"):
            raise ValueError(f"overflow is {overflow!r}; it is refuse or report")
        if max_length is not None and total > max_length and overflow == "refuse":
            parts = ", ".join(f"{n} for {name}" for name, n in needed.items())
            raise PromptError(
                f"the longest prompt takes {total} tokens ({parts}), but there is room for {max_length}: keep fewer "
                "observations, leave the list of actions out, take a model with more positions, or accept that the "
                "rarest prompts are cut and counted (overflow='report')"
            )
        self.top_token: int = max([*self._bos, *self._flat.tolist()])
        """The highest id that a prompt can have; a model's vocabulary must be larger."""
        self.max_length: int = total if max_length is None else min(total, max_length)
        self.head: tuple[int, ...] = self._head()
        """The tokens with which every prompt begins. Each has at least one more."""
        self._blocks = self._entries_by_block()
        self.verify([self._random_slots(np.random.default_rng(i)) for i in range(samples)])

    # Tables, on the host.

    def _before(self, index: int) -> str:
        """A text that may come right before a unit: the context in which it is tokenized."""
        return self.prompt.units[index - 1].texts[0] if index else ""

    def _after(self, context: str, text: str) -> list[int]:
        """The tokens that `text` adds after `context`."""
        head, full = self.tokenizer.encode(context), self.tokenizer.encode(context + text)
        if full[: len(head)] != head:
            raise self._border_error(context, text)
        return full[len(head) :]

    def _border_error(self, left: str, right: str) -> PromptError:
        def show(ids: Sequence[int]) -> str:
            return " ".join(repr(self.tokenizer.decode([i])) for i in ids)

        head, full = self.tokenizer.encode(left), self.tokenizer.encode(left + right)
        start = next((i for i, (a, b) in enumerate(zip(head, full)) if a != b), min(len(head), len(full)))
        return PromptError(
            f"the tokenizer joins tokens across the border between {left!r} and {right!r} (near "
            f"{show(full[max(0, start - 2) : start + 3])}), so prompts cannot be assembled from parts: use a "
            "tokenizer that cuts at white space, or move the border"
        )

    def _table(self, index: int) -> int:
        """The first row of a unit's texts; units with the same texts share rows."""
        texts = self.prompt.units[index].texts
        if texts not in self._bases:
            self._bases[texts] = len(self._rows)
            context = self._before(index)
            self._rows += [self._after(context, text) for text in texts]
        return self._bases[texts]

    def _tail_row(self) -> list[int]:
        """The tokens of the white space that ends the prompt; none if the answer begins with it."""
        if self.heal or not self.prompt.tail:
            return []
        return self._after(self.prompt.units[-1].texts[0], self.prompt.tail)

    def _borders(self) -> set[tuple[int, int]]:
        """The pairs of units that may be adjacent when optional units between them are absent."""
        pairs: set[tuple[int, int]] = set()
        open_: list[int] = []
        for index, unit in enumerate(self.prompt.units):
            pairs |= {(before, index) for before in open_}
            pairs |= {(index, index)} if unit.size > 1 else set()
            skippable = unit.optional or bool(unit.blocks)
            open_ = [*open_, index] if skippable else [index]
        return pairs

    def _check_borders(self) -> None:
        """Check every border between units, for each combination of the last two words before it and the first two
        after it.

        Tokens at a border are assumed to depend on these words only. If a tokenizer looks further, the random samples
        of `verify` may still find it."""
        units = self.prompt.units
        for left, right in sorted(self._borders()):
            tails = {" ".join(text.split()[-2:]): i for i, text in enumerate(units[left].texts)}
            heads = {" ".join(text.split()[:2]): i for i, text in enumerate(units[right].texts)}
            context = self._before(left)
            start = self.tokenizer.encode(context)
            for i in tails.values():
                for j in heads.values():
                    joined = self._rows[self._plan[left] + i] + self._rows[self._plan[right] + j]
                    a, b = units[left].texts[i], units[right].texts[j]
                    if self.tokenizer.encode(context + a + b) != start + joined:
                        raise self._border_error(context + a, b)

    def longest(self) -> dict[str, int]:
        """The most tokens that each part can take: slots by name, the rest as "fixed text"."""
        needed: dict[str, int] = {"fixed text": len(self._bos) + len(self._end)}
        for unit, base in zip(self.prompt.units, self._plan):
            lengths = [len(self._rows[base + i]) for i in range(len(unit.texts))]
            name = unit.slot or "fixed text"
            needed[name] = needed.get(name, 0) + _longest_caption(unit, lengths)
        return needed

    def _head(self) -> tuple[int, ...]:
        """The fixed text before the first slot or block, as tokens; without the last one if nothing else is certain to
        follow."""
        head, certain, open_ = list(self._bos), len(self._bos) + len(self._end), True
        for unit, base in zip(self.prompt.units, self._plan):
            open_ = open_ and unit.slot is None and not unit.blocks
            if open_:
                head += self._rows[base]
            if not unit.optional and not unit.blocks:
                certain += min(len(self._rows[base + i]) for i in range(len(unit.texts)))
        return tuple(head[: min(certain, self.max_length) - 1])

    def _entries_by_block(self) -> list[list[int]]:
        """For each block of positions, the entries (units, or places of a slot) that can have a token there.

        An entry starts no earlier than the fewest tokens before it, and ends no later than the most. The limits of
        slots are not used, as an environment may break them."""
        blocks: list[list[int]] = [[] for _ in range(0, self.max_length, BLOCK)]
        certain: list[tuple[tuple[str, ...], int]] = []
        end, number = len(self._bos), 0
        for unit, base in zip(self.prompt.units, self._plan):
            sizes = [len(self._rows[base + i]) for i in range(len(unit.texts))]
            start = len(self._bos) + sum(minimum for required, minimum in certain if set(required) <= set(unit.blocks))
            for position in range(unit.size if unit.slot is not None else 1):
                end += max(sizes)
                for b, block in enumerate(blocks):
                    if start + position * min(sizes) < (b + 1) * BLOCK and end > b * BLOCK:
                        block.append(number)
                number += 1
            certain.append((unit.blocks, 0 if unit.optional else min(sizes)))
        return blocks

    def _random_slots(self, rng: np.random.Generator) -> dict[str, Any]:
        slots: dict[str, Any] = {}
        for unit in self.prompt.units:
            for name in unit.blocks:
                slots.setdefault(name, bool(rng.integers(2)))
            if unit.slot is None or unit.slot in slots:
                continue
            if not unit.optional:
                slots[unit.slot] = rng.integers(len(unit.texts))
                continue
            banned = {i for limit in unit.limits if limit.at_most == 0 for i in limit.ids}
            allowed = [i for i in range(len(unit.texts)) if i not in banned]
            ids = rng.choice(allowed, rng.integers(unit.size + 1))
            slots[unit.slot] = np.concatenate([ids, np.full(unit.size - len(ids), -1)]).astype(np.int32)
        return slots

    def tokens(self, slots: Slots) -> list[int]:
        """The tokens for one environment, on the host, without padding; what `__call__` computes on the device."""
        pieces = self.prompt.pieces(slots)
        return self._bos + [t for index, i in pieces for t in self._rows[self._plan[index] + i]] + self._end

    def verify(self, samples: Sequence[Slots] | Mapping[str, Any]) -> int:
        """Check prompts against the tokenizer.

        **Arguments:** `samples`, a sequence of slots; or one mapping of slots with a leading batch axis, for which
        the function inside jit is checked too.
        **Returns:** the number of prompts that were compared.
        **Raises:** `PromptError` for the first whose tokens differ from those of its text.
        """
        if isinstance(samples, Mapping):
            rows = len(next(iter(samples.values())))
            assembled, lengths = map(np.asarray, jax.jit(jax.vmap(self.__call__))(samples))
            samples = [{name: np.asarray(x)[i] for name, x in samples.items()} for i in range(rows)]
            for slots, row, n in zip(samples, assembled, lengths):
                if row[:n].tolist() != self.tokens(slots):
                    text = self.prompt.render(slots)
                    raise PromptError(f"{n} tokens were assembled for {text!r}, {len(self.tokens(slots))} are right")
        for slots in samples:
            text = self.prompt.render(slots, tail=not self.heal)
            ours, theirs = self.tokens(slots), self._bos + list(self.tokenizer.encode(text))
            if ours != theirs:
                position = next(
                    (i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs))
                )
                window = slice(max(0, position - 2), position + 3)
                raise PromptError(
                    f"assembled and whole tokens differ at {position}: {self.tokenizer.decode(ours[window])!r} is "
                    f"{ours[window]}, but the tokenizer makes {theirs[window]} of it, in the prompt {text!r}"
                )
        return len(samples)

    def candidates(self, answers: Sequence[str]) -> TokenTable:
        """The tokens of the answers to be scored after the prompt.

        With `heal` an answer begins with the white space at the end of the prompt, and its tokens are those that the
        tokenizer gives it in this context. Without, it is tokenized alone, as in GLAM's own code.
        **Raises:** `PromptError` if an answer has no token, or merges with the end of the prompt.
        """
        context = self.prompt.units[-1].texts[0]
        if self.heal:
            rows = [self._after(context, self.prompt.tail + answer) for answer in answers]
        else:
            rows = [list(self.tokenizer.encode(answer)) for answer in answers]
        for answer, row in zip(answers, rows):
            if not row:
                raise PromptError(f"the answer {answer!r} has no token")
        return pad_rows(rows, self.pad_id)

    # Assembly, on the device.

    def __call__(self, slots: Slots) -> tuple[jax.Array, jax.Array]:
        """The tokens of one prompt, inside jit.

        **Arguments:** `slots`, integer arrays and flags by name, see `Choice`, `Slot` and `Block`.
        **Returns:** tokens int32 `[max_length]`, right-padded, and their number, int32 `[]`.
        """
        for name in self.prompt.names:
            if name not in slots:
                raise KeyError(f"the prompt needs a slot {name!r} (it got {', '.join(slots)})")
        rows, lost = [], jnp.zeros((), bool)
        for unit, base in zip(self.prompt.units, self._plan):
            row = jnp.full((1,), base, jnp.int32)
            present: Any = True
            if unit.slot is not None:
                ids = jnp.atleast_1d(jnp.asarray(slots[unit.slot]))
                if ids.ndim != 1 or ids.shape[0] < unit.size or not jnp.issubdtype(ids.dtype, jnp.integer):
                    raise TypeError(
                        f"the slot {unit.slot!r} is {ids.dtype}{list(ids.shape)}; integers, at least [{unit.size}], "
                        "are needed (map over a batch with jax.vmap)"
                    )
                lost |= jnp.any(ids[unit.size :] >= 0)
                row = base + ids[: unit.size].astype(jnp.int32)
                present = ids[: unit.size] >= 0
                lost |= jnp.any(present[1:] & ~present[:-1])  # a phrase after padding
            for name in unit.blocks:
                present &= jnp.asarray(slots[name], bool)
            rows.append(jnp.where(present, row, 0))
        index = jnp.concatenate(rows)
        sizes = jnp.asarray(self._lengths)[index]
        ends = len(self._bos) + jnp.cumsum(sizes)
        offsets = ends - sizes
        jumps = jnp.asarray(self._starts)[index] - offsets
        sources = []
        for first, entries in zip(range(0, self.max_length, BLOCK), self._blocks):
            positions = jnp.arange(first, min(first + BLOCK, self.max_length), dtype=jnp.int32)
            source = positions
            for entry in entries:  # a later one overwrites an earlier one, so empty ones have no effect
                source = jnp.where(positions >= offsets[entry], positions + jumps[entry], source)
            sources.append(source)
        position = jnp.arange(self.max_length, dtype=jnp.int32)
        source = jnp.concatenate(sources)
        length = ends[-1]
        tokens = jnp.where(
            position < length, jnp.asarray(self._flat)[jnp.where(position < length, source, 0)], self.pad_id
        )
        for k, token in enumerate(self._bos):
            tokens = tokens.at[k].set(token)
        for token in self._end:
            tokens, length = jnp.where(position == length, token, tokens), length + 1
        return tokens, jnp.where(lost, self.max_length + 1, length).astype(jnp.int32)


def _longest_caption(unit: Unit, lengths: Sequence[int]) -> int:
    """The most tokens that the phrases of one unit take together, under its size and limits."""
    limited = {i for limit in unit.limits for i in limit.ids}
    if len(limited) < sum(len(limit.ids) for limit in unit.limits):
        raise PromptError(f"the limits of the slot {unit.slot!r} overlap")
    free = max((n for i, n in enumerate(lengths) if i not in limited), default=0)
    room = [free] * unit.size
    for limit in unit.limits:
        room += [max((lengths[i] for i in limit.ids), default=0)] * limit.at_most
    return sum(sorted(room, reverse=True)[: unit.size])
