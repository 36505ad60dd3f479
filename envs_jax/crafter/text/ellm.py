"""ELLM's captions: what the player sees, faces, holds and feels, as its published environment words them.

The four sentences follow the ellm reference, section 2.4, byte for byte. They are a function of 35 bits, of which 32
reach the prompt of a language model: `prompt_key` packs them, `describe_key` gives the sentences of a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsInt

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int, Int16, UInt8, UInt32

from envs_jax.crafter import constants as c
from envs_jax.crafter.text.cells import CODES, any_of, cell_codes, faced, present
from envs_jax.text import Phrasebook, compact


NAMES = {"table": "crafting table", "sapling": "plant"}
"""What the visible sentence calls a table, and the inventory sentence a sapling; other names are Crafter's own."""

VISIBLE = tuple(sorted((name for name in CODES if name not in ("sand", "arrow")), key=lambda n: NAMES.get(n, n)))
"""What the visible sentence can name, in its order: bit `i` of `Facts.visible` is `VISIBLE[i]`."""
TARGETS = (
    "",
    "water",
    "grass",
    "stone",
    "tree",
    "coal",
    "iron",
    "diamond",
    "table",
    "furnace",
    "cow",
    "zombie",
    "skeleton",
    "plant",
    "arrow",
)
"""What the target sentence can name; 0 stands for no sentence: outside the world, path, sand or lava."""
HELD = c.ITEMS[c.VITALS :]
"""Bit `i` of `Facts.held` is `HELD[i]`."""
FEELINGS = ("hurt", "hungry", "thirsty", "sleepy")
"""Bit `i` of `Facts.status` is `FEELINGS[i]`: vital sign `i` is below its largest value."""
SLEEPY = 3

VISIBLE_BITS, TARGET_BITS, HELD_BITS = len(VISIBLE), 4, len(HELD)
TARGET_BIT = VISIBLE_BITS
HELD_BIT = TARGET_BIT + TARGET_BITS
SLEEPY_BIT = HELD_BIT + HELD_BITS

SIZES = {"visible": 1 + VISIBLE_BITS, "target": 1, "inventory": 1 + HELD_BITS, "status": 1 + len(FEELINGS)}
"""Phrases of the longest caption of each sentence."""
SIZE = sum(SIZES.values())
"""Phrases of the longest caption."""


@struct.dataclass
class Facts:
    """What ELLM's sentences say about a state, as bits."""

    visible: UInt32[Array, ""]
    """15 bits, `VISIBLE`."""
    target: Int[Array, ""]
    """An index into `TARGETS`."""
    held: UInt32[Array, ""]
    """12 bits, `HELD`: at least one of the item."""
    status: UInt32[Array, ""]
    """4 bits, `FEELINGS`."""


def _book() -> Phrasebook:
    """The words of all sentences. A name has its punctuation with it: a comma, or the period of the last one."""
    names = dict.fromkeys(NAMES.get(name, name) for name in VISIBLE + HELD)
    phrases = ["you see", "you see ."]
    phrases += [form for name in names for form in (f"{name},", f"{name}.", f"and {name}.")]
    phrases += [f"you are targeting {name}." for name in TARGETS[1:]]
    phrases += ["you have in your inventory", "you feel", *(f"{f}{end}" for f in FEELINGS for end in ",.")]
    return Phrasebook(phrases, separator=" ", name="crafter.ELLM")


ELLM = _book()
"""The words of ELLM's sentences, in lower case; a caption's text is exactly the published one."""

_COMMA, _PERIOD, _AND = range(3)


def _first(names: Sequence[str]) -> np.ndarray:
    """The id of "name,", for each name; "name." and, except for feelings, "and name." follow it."""
    return np.array([ELLM.index(f"{NAMES.get(name, name)},") for name in names], np.int16)


_VISIBLE, _HELD, _FEELINGS = _first(VISIBLE), _first(HELD), _first(FEELINGS)
_TARGETS = np.array([-1] + [ELLM.index(f"you are targeting {name}.") for name in TARGETS[1:]], np.int16)
_SEE, _SEE_NOTHING = ELLM.index("you see"), ELLM.index("you see .")
_HAVE, _FEEL = ELLM.index("you have in your inventory"), ELLM.index("you feel")
_TARGET_OF = np.zeros(1 + max(code for codes in CODES.values() for code in codes) + 5, np.int32)
for _i, _name in enumerate(TARGETS[1:], 1):
    _TARGET_OF[list(CODES[_name])] = _i


def facts(view: UInt8[Array, "9 7 2"], inventory: Int[Array, "16"], facing: Int[Array, ""]) -> Facts:
    """What the sentences say, inside jit.

    **Arguments:** `view`, uint8 `[9, 7, 2]`; `inventory`, counts in the order of `constants.ITEMS`; `facing`, an index
    into `constants.DIRECTIONS`.
    """
    codes = cell_codes(view)
    return Facts(
        visible=_word(any_of(present(codes), VISIBLE)),
        target=jnp.asarray(_TARGET_OF)[faced(codes, facing)],
        held=_word(inventory[c.VITALS :] > 0),
        status=_word(inventory[: c.VITALS] < c.MOST),
    )


def _word(bits: Array) -> UInt32[Array, ""]:
    """Bools as the bits of a word."""
    shifts = np.arange(bits.shape[0], dtype=np.uint32)
    return jnp.sum(bits.astype(jnp.uint32) << shifts, dtype=jnp.uint32)


def _listed(word: UInt32[Array, ""], first: np.ndarray, last: Int[Array, ""] | int) -> Int16[Array, " names"]:
    """The phrases of a list: "name," for each set bit, and for the highest one the form `last`."""
    bit = np.uint32(1) << np.arange(len(first), dtype=np.uint32)
    here, more = (word & bit) != 0, word >= 2 * bit
    return jnp.where(here, first + jnp.where(more, _COMMA, last).astype(jnp.int16), jnp.int16(-1))


def _visible(seen: Facts) -> tuple[Array, Array]:
    several = (seen.visible & (seen.visible - 1)) != 0
    head = jnp.where(seen.visible == 0, _SEE_NOTHING, _SEE).astype(jnp.int16)
    return head, _listed(seen.visible, _VISIBLE, jnp.where(several, _AND, _PERIOD))


def _inventory(seen: Facts) -> tuple[Array, Array]:
    return jnp.where(seen.held == 0, -1, _HAVE).astype(jnp.int16), _listed(seen.held, _HELD, _PERIOD)


def _status(seen: Facts) -> tuple[Array, Array]:
    return jnp.where(seen.status == 0, -1, _FEEL).astype(jnp.int16), _listed(seen.status, _FEELINGS, _PERIOD)


def sentences(seen: Facts) -> dict[str, Int16[Array, " phrases"]]:
    """The four sentences as captions of `ELLM`, int16: `visible` `[16]`, `target` `[1]`, `inventory` `[13]`, `status`
    `[5]`. A sentence with nothing to say is empty."""
    parts = {"visible": _visible(seen), "inventory": _inventory(seen), "status": _status(seen)}
    captions = {name: compact(names, SIZES[name], [head]) for name, (head, names) in parts.items()}
    return captions | {"target": jnp.asarray(_TARGETS)[seen.target][None]}


def caption(seen: Facts) -> Int16[Array, "35"]:
    """All sentences as one caption of `ELLM`, int16 `[35]`: visible, target, inventory, status.

    `ELLM.render` gives the published text of an observation (which has more spaces where a sentence is missing; its
    tokenizer drops them).
    """
    (see, visible), (have, held), (feel, status) = _visible(seen), _inventory(seen), _status(seen)
    target = jnp.asarray(_TARGETS)[seen.target]
    return compact(jnp.concatenate([visible, target[None], have[None], held, feel[None], status]), SIZE, [see])


def prompt_key(seen: Facts) -> UInt32[Array, ""]:
    """What a language model is shown of a state, as 32 bits: 15 of `visible`, 4 of `target`, 12 of `held`, and whether
    the player is sleepy, from the lowest bit on."""
    target = seen.target.astype(jnp.uint32) << np.uint32(TARGET_BIT)
    sleepy = (seen.status >> np.uint32(SLEEPY)) << np.uint32(SLEEPY_BIT)
    return seen.visible | target | seen.held << np.uint32(HELD_BIT) | sleepy


def key_facts(key: SupportsInt) -> Facts:
    """The facts of a `prompt_key`, on the host; `status` has no more than the bit of `sleepy`.

    **Raises:** `ValueError` for a number that is no key.
    """
    key = int(key)
    target = key >> TARGET_BIT & (1 << TARGET_BITS) - 1
    if not 0 <= key < 1 << 32 or target >= len(TARGETS):
        raise ValueError(f"{key} is no key of a prompt: keys are 32-bit numbers that `prompt_key` makes")
    visible, held = key & (1 << VISIBLE_BITS) - 1, key >> HELD_BIT & (1 << HELD_BITS) - 1
    words: list[Any] = [np.array(word, np.uint32) for word in (visible, target, held, key >> SLEEPY_BIT << SLEEPY)]
    return Facts(words[0], words[1].astype(np.int32), *words[2:])


def _bits(word: Any, names: Sequence[str]) -> list[str]:
    return [NAMES.get(name, name) for i, name in enumerate(names) if int(word) >> i & 1]


def describe(seen: Facts) -> list[str]:
    """The sentences of a state, in lower case, without the empty ones, on the host."""
    visible = _bits(seen.visible, VISIBLE)
    if len(visible) > 1:
        visible[-1] = f"and {visible[-1]}"
    held, feelings = _bits(seen.held, HELD), _bits(seen.status, FEELINGS)
    return [
        f"you see {', '.join(visible)}.",
        *([f"you are targeting {TARGETS[int(seen.target)]}."] if int(seen.target) else []),
        *([f"you have in your inventory {', '.join(held)}."] if held else []),
        *([f"you feel {', '.join(feelings)}."] if feelings else []),
    ]


def describe_key(key: SupportsInt) -> str:
    """The sentences that a prompt shows for a key, capitalised and joined, on the host: "You see cow, and tree. You are
    targeting cow. You have in your inventory wood."

    **Raises:** `ValueError` for a number that is no key.
    """
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in describe(key_facts(key)))
