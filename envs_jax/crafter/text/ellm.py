"""ELLM's captions: what the player sees, faces, holds and feels, as its published environment words them.

The four sentences are those of `text_crafter/text_crafter/text_env`, byte for byte. They are a function of 35 bits, of
which 32 reach the prompt of a language model: `prompt_key` packs them, `describe_key` gives the sentences of a key.
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
"""Names that differ from Crafter's: of a table in the visible sentence, of a sapling in the inventory sentence."""

VISIBLE = tuple(sorted((name for name in CODES if name not in ("sand", "arrow")), key=lambda n: NAMES.get(n, n)))
"""Names in the visible sentence, in its order: bit `i` of `Facts.visible` is `VISIBLE[i]`."""
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
"""Names in the target sentence; 0 stands for no sentence: outside the world, path, sand or lava."""
INVENTORY = c.ITEMS[c.VITALS :]
"""Bit `i` of `Facts.inventory` is `INVENTORY[i]`."""
FEELINGS = ("hurt", "hungry", "thirsty", "sleepy")
"""Bit `i` of `Facts.status` is `FEELINGS[i]`: vital sign `i` is below its largest value."""
SLEEPY = 3

VISIBLE_BITS, TARGET_BITS, INVENTORY_BITS = len(VISIBLE), 4, len(INVENTORY)
TARGET_BIT = VISIBLE_BITS
INVENTORY_BIT = TARGET_BIT + TARGET_BITS
SLEEPY_BIT = INVENTORY_BIT + INVENTORY_BITS

SIZES = {"visible": 1 + VISIBLE_BITS, "target": 1, "inventory": 1 + INVENTORY_BITS, "status": 1 + len(FEELINGS)}
"""Phrases of the longest caption of each sentence."""
SIZE = sum(SIZES.values())
"""Phrases of the longest caption."""


@struct.dataclass
class Facts:
    """The content of ELLM's sentences about a state, as bits."""

    visible: UInt32[Array, ""]
    """15 bits, `VISIBLE`."""
    target: Int[Array, ""]
    """An index into `TARGETS`."""
    inventory: UInt32[Array, ""]
    """12 bits, `INVENTORY`: at least one of the item."""
    status: UInt32[Array, ""]
    """4 bits, `FEELINGS`."""


def _book() -> Phrasebook:
    """The words of all sentences. A name has its punctuation with it: a comma, or the period of the last one."""
    names = dict.fromkeys(NAMES.get(name, name) for name in VISIBLE + INVENTORY)
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


_VISIBLE, _INVENTORY, _FEELINGS = _first(VISIBLE), _first(INVENTORY), _first(FEELINGS)
_TARGETS = np.array([-1] + [ELLM.index(f"you are targeting {name}.") for name in TARGETS[1:]], np.int16)
_YOU_SEE, _YOU_SEE_NOTHING = ELLM.index("you see"), ELLM.index("you see .")
_YOU_HAVE, _YOU_FEEL = ELLM.index("you have in your inventory"), ELLM.index("you feel")
_TARGET_OF = np.zeros(1 + max(code for codes in CODES.values() for code in codes) + 5, np.int32)
for _i, _name in enumerate(TARGETS[1:], 1):
    _TARGET_OF[list(CODES[_name])] = _i


def facts(view: UInt8[Array, "9 7 2"], inventory: Int[Array, "16"], facing: Int[Array, ""]) -> Facts:
    """The content of the sentences, inside jit.

    **Arguments:** `view`, uint8 `[9, 7, 2]`; `inventory`, counts in the order of `constants.ITEMS`; `facing`, an index
    into `constants.DIRECTIONS`.
    """
    codes = cell_codes(view)
    return Facts(
        visible=_word(any_of(present(codes), VISIBLE)),
        target=jnp.asarray(_TARGET_OF)[faced(codes, facing)],
        inventory=_word(inventory[c.VITALS :] > 0),
        status=_word(inventory[: c.VITALS] < c.MAX_COUNT),
    )


def _word(bits: Array) -> UInt32[Array, ""]:
    """Bools as the bits of a word."""
    shifts = np.arange(bits.shape[0], dtype=np.uint32)
    return jnp.sum(bits.astype(jnp.uint32) << shifts, dtype=jnp.uint32)


def _listed(word: UInt32[Array, ""], first: np.ndarray, last: Int[Array, ""] | int) -> Int16[Array, " names"]:
    """The phrases of a list: "name," for each set bit, and for the highest one the form `last`."""
    bit = np.uint32(1) << np.arange(len(first), dtype=np.uint32)
    is_set, has_next = (word & bit) != 0, word >= 2 * bit
    return jnp.where(is_set, first + jnp.where(has_next, _COMMA, last).astype(jnp.int16), jnp.int16(-1))


def _visible(facts: Facts) -> tuple[Array, Array]:
    several = (facts.visible & (facts.visible - 1)) != 0
    head = jnp.where(facts.visible == 0, _YOU_SEE_NOTHING, _YOU_SEE).astype(jnp.int16)
    return head, _listed(facts.visible, _VISIBLE, jnp.where(several, _AND, _PERIOD))


def _inventory(facts: Facts) -> tuple[Array, Array]:
    head = jnp.where(facts.inventory == 0, -1, _YOU_HAVE).astype(jnp.int16)
    return head, _listed(facts.inventory, _INVENTORY, _PERIOD)


def _status(facts: Facts) -> tuple[Array, Array]:
    return jnp.where(facts.status == 0, -1, _YOU_FEEL).astype(jnp.int16), _listed(facts.status, _FEELINGS, _PERIOD)


def sentences(facts: Facts) -> dict[str, Int16[Array, " phrases"]]:
    """The four sentences as captions of `ELLM`, int16: `visible` `[16]`, `target` `[1]`, `inventory` `[13]`, `status`
    `[5]`. A sentence with nothing to say is empty."""
    parts = {"visible": _visible(facts), "inventory": _inventory(facts), "status": _status(facts)}
    captions = {name: compact(names, SIZES[name], [head]) for name, (head, names) in parts.items()}
    return captions | {"target": jnp.asarray(_TARGETS)[facts.target][None]}


def caption(facts: Facts) -> Int16[Array, "35"]:
    """All sentences as one caption of `ELLM`, int16 `[35]`: visible, target, inventory, status.

    `ELLM.render` gives the published text of an observation (which has more spaces where a sentence is missing; its
    tokenizer drops them).
    """
    see_head, visible = _visible(facts)
    have_head, inventory = _inventory(facts)
    feel_head, status = _status(facts)
    target = jnp.asarray(_TARGETS)[facts.target]
    phrases = [visible, target[None], have_head[None], inventory, feel_head[None], status]
    return compact(jnp.concatenate(phrases), SIZE, [see_head])


def prompt_key(facts: Facts) -> UInt32[Array, ""]:
    """The part of a state that a language model is shown, as 32 bits: 15 of `visible`, 4 of `target`, 12 of
    `inventory`, and whether the player is sleepy, from the lowest bit on."""
    target = facts.target.astype(jnp.uint32) << np.uint32(TARGET_BIT)
    sleepy = (facts.status >> np.uint32(SLEEPY)) << np.uint32(SLEEPY_BIT)
    return facts.visible | target | facts.inventory << np.uint32(INVENTORY_BIT) | sleepy


def key_facts(key: SupportsInt) -> Facts:
    """The facts of a `prompt_key`, on the host; `status` has no more than the bit of `sleepy`.

    **Raises:** `ValueError` for a number that is no key.
    """
    key = int(key)
    target = key >> TARGET_BIT & (1 << TARGET_BITS) - 1
    if not 0 <= key < 1 << 32 or target >= len(TARGETS):
        raise ValueError(f"{key} is no key of a prompt: keys are 32-bit numbers that `prompt_key` makes")
    visible, inventory = key & (1 << VISIBLE_BITS) - 1, key >> INVENTORY_BIT & (1 << INVENTORY_BITS) - 1
    words: list[Any] = [np.array(word, np.uint32) for word in (visible, target, inventory, key >> SLEEPY_BIT << SLEEPY)]
    return Facts(words[0], words[1].astype(np.int32), *words[2:])


def _bits(word: Any, names: Sequence[str]) -> list[str]:
    return [NAMES.get(name, name) for i, name in enumerate(names) if int(word) >> i & 1]


def describe(facts: Facts) -> list[str]:
    """The sentences of a state, in lower case, without the empty ones, on the host."""
    visible = _bits(facts.visible, VISIBLE)
    if len(visible) > 1:
        visible[-1] = f"and {visible[-1]}"
    items, feelings = _bits(facts.inventory, INVENTORY), _bits(facts.status, FEELINGS)
    return [
        f"you see {', '.join(visible)}.",
        *([f"you are targeting {TARGETS[int(facts.target)]}."] if int(facts.target) else []),
        *([f"you have in your inventory {', '.join(items)}."] if items else []),
        *([f"you feel {', '.join(feelings)}."] if feelings else []),
    ]


def describe_key(key: SupportsInt) -> str:
    """The sentences that a prompt shows for a key, capitalised and joined, on the host: "You see cow, and tree. You are
    targeting cow. You have in your inventory wood."

    **Raises:** `ValueError` for a number that is no key.
    """
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in describe(key_facts(key)))
