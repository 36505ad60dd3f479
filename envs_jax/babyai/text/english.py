"""BabyAI in English: missions in BabyAI's own grammar, views in BabyAI-Text's or in a faithful one.

The sources are `minigrid.envs.babyai.core.verifier` and BabyAI-Text (2302.02662), whose own grammar omits walls behind
objects, does not mention the door that the agent stands in, and has "a open door". The faithful grammar keeps its
sentences and their order, without these errors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise, product

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import (
    BALL,
    BOX,
    COLORS,
    DOOR,
    EMPTY,
    KEY,
    OPEN,
    STATES,
    TYPES,
    UNSEEN,
    VIEW as SIDE,
    WALL,
)
from envs_jax.babyai.mission import AFTER, BEFORE, CLAUSES, GO_TO, NO_CLAUSE, PUT_NEXT, Mission
from envs_jax.babyai.state import color_of, state_of, type_of
from envs_jax.text import Limit, Phrasebook, compact


# The view. Order of ids: carrying (3 types x 6 colours), walls ahead, left and right, then visible objects: kind (door
# open, closed, locked, key, ball, box) x colour x place, places left column first and far to near; last, only in the
# faithful grammar, the open door (6 colours) that the agent stands in.

PORTABLE = (KEY, BALL, BOX)
AGENT_X, AGENT_Y = SIDE // 2, SIDE - 1
PLACES = tuple((i, j) for i in range(SIDE) for j in range(SIDE) if (i, j) != (AGENT_X, AGENT_Y))

CARRY = 0
WALL_AHEAD = CARRY + len(PORTABLE) * len(COLORS)
WALL_LEFT = WALL_AHEAD + AGENT_Y
WALL_RIGHT = WALL_LEFT + AGENT_X
OBJECT = WALL_RIGHT + AGENT_X
STAND = OBJECT + (len(STATES) + len(PORTABLE)) * len(COLORS) * len(PLACES)

WALL_SENTENCES = 3
"""The largest number of sentences about walls in a caption; every other one is about one object of the world."""


def sentence_bound(num_objects: int, faithful: bool = False) -> int:
    """The largest number of sentences that a view can need in a world of `num_objects` objects, doors included: one for
    each (seen, carried or, if `faithful`, stood in), three for walls. At most 48 places, a carried object, a door stood
    in if `faithful`, and three walls in any world."""
    return min(num_objects, len(PLACES) + 1 + faithful) + WALL_SENTENCES


def _steps(n: int) -> str:
    return f"{n} step{'s' if n > 1 else ''}"


def _offset_text(i: int, j: int) -> str:
    dx, dy = i - AGENT_X, AGENT_Y - j
    parts = [f"{_steps(abs(dx))} {'left' if dx < 0 else 'right'}"] if dx else []
    return " and ".join(parts + ([f"{_steps(dy)} forward"] if dy else []))


def _view_phrases(article: str) -> list[str]:
    """The sentences of a view, with the `article` of an open door."""
    doors = [f"{article if state == 'open' else 'a'} {state} {{}} {TYPES[DOOR]}" for state in STATES]
    objects = doors + [f"a {{}} {TYPES[t]}" for t in PORTABLE]
    return [
        *(f"You carry a {color} {TYPES[t]}" for t, color in product(PORTABLE, COLORS)),
        *(f"You see a wall {_steps(n)} forward" for n in range(1, AGENT_Y + 1)),
        *(f"You see a wall {_steps(n)} left" for n in range(1, AGENT_X + 1)),
        *(f"You see a wall {_steps(n)} right" for n in range(1, AGENT_X + 1)),
        *(f"You see {t.format(c)} {_offset_text(i, j)}" for t, c, (i, j) in product(objects, COLORS, PLACES)),
    ]


VIEW = Phrasebook(_view_phrases("a"), separator=", ", name="babyai.VIEW")
"""The sentences of BabyAI-Text. Levels contain walls, doors, keys, balls and boxes; nothing else has a sentence."""

FAITHFUL = Phrasebook(
    [*_view_phrases("an"), *(f"You stand in an open {color} {TYPES[DOOR]}" for color in COLORS)],
    separator=", ",
    name="babyai.FAITHFUL",
)
"""The sentences of the faithful grammar: those of `VIEW`, id for id, with "an open", and six more."""


def _wall(types: jax.Array, base: int, see_through: bool) -> jax.Array:
    """The sentence for a ray of cells, nearest first: the nearest wall if `see_through`, otherwise a wall only if it is
    the first cell that is neither unseen nor empty."""
    stops = types == WALL if see_through else (types != UNSEEN) & (types != EMPTY)
    distance = jnp.argmax(stops)
    wall = types[distance] == WALL
    return jnp.where(wall, base + distance, -1).astype(jnp.int16)


def _caption(image: jax.Array, max_sentences: int, see_through: bool, stand: Sequence[jax.Array] = ()) -> jax.Array:
    """The caption of a view: carried object, the sentences `stand`, walls (`see_through`, as of `_wall`), objects."""
    kind, color, state = (image[..., k].astype(jnp.int16) for k in range(3))
    kind_index = jnp.where(kind == DOOR, state, kind + (len(STATES) - KEY))
    named = (kind >= DOOR) & (kind <= BOX)
    cell_index = np.zeros((SIDE, SIDE), np.int16)
    cell_index[tuple(zip(*PLACES))] = np.arange(len(PLACES))
    ids = jnp.where(named, OBJECT + (kind_index * len(COLORS) + color) * len(PLACES) + cell_index, -1).astype(jnp.int16)
    flat, agent = ids.reshape(-1), AGENT_X * SIDE + AGENT_Y
    carried, carried_color = kind[AGENT_X, AGENT_Y], color[AGENT_X, AGENT_Y]
    carry = jnp.where((carried >= KEY) & (carried <= BOX), CARRY + (carried - KEY) * len(COLORS) + carried_color, -1)
    walls = [
        _wall(kind[AGENT_X, AGENT_Y - 1 :: -1], WALL_AHEAD, see_through),
        _wall(kind[AGENT_X - 1 :: -1, AGENT_Y], WALL_LEFT, see_through),
        _wall(kind[AGENT_X + 1 :, AGENT_Y], WALL_RIGHT, see_through),
    ]
    visible = jnp.where(np.arange(flat.size) == agent, jnp.int16(-1), flat)
    return compact(visible, max_sentences, [carry, *stand, *walls])


def view_caption(image: jax.Array, max_sentences: int) -> jax.Array:
    """The description of a view by BabyAI-Text: carried object, walls ahead, left and right, then every visible object,
    left column first and far to near.

    **Arguments:** `image`, uint8 `[7, 7, 3]`, indexed `[column, row]`, the agent at (3, 6), the cell that shows the
    carried object; `max_sentences`, `C`, see `sentence_bound`.
    **Returns:** a caption of `VIEW`, int16 `[C]`; sentences beyond `C` are left out.
    """
    return _caption(image, max_sentences, see_through=False)


def faithful_caption(image: jax.Array, ground: jax.Array, max_sentences: int) -> jax.Array:
    """The faithful description of a view: carried object, the open door that the agent stands in, the nearest visible
    wall ahead, left and right, regardless of objects before it, then every visible object in the order of BabyAI-Text.

    **Arguments:** `image` and `max_sentences`, as of `view_caption`; `ground`, an integer `[]`, the packed cell under
    the agent, which the view does not show.
    **Returns:** a caption of `FAITHFUL`, int16 `[C]`; sentences beyond `C` are left out.
    """
    ground = jnp.asarray(ground, jnp.int32)
    doorway = (type_of(ground) == DOOR) & (state_of(ground) == OPEN)
    stand = jnp.where(doorway, STAND + color_of(ground), -1).astype(jnp.int16)
    return _caption(image, max_sentences, see_through=True, stand=[stand])


def view_limits(size: int, doors: int, faithful: bool = False) -> tuple[Limit, ...]:
    """Limits on the sentences of a caption of `size` sentences (see `sentence_bound`) in a world with `doors` doors:
    for the tightest prompt that holds every caption of `VIEW` or, if `faithful`, of `FAITHFUL`."""
    bases = (CARRY, WALL_AHEAD, WALL_LEFT, WALL_RIGHT, OBJECT)
    single = [Limit(range(base, end), 1) for base, end in pairwise(bases)]
    key = OBJECT + len(STATES) * len(COLORS) * len(PLACES)
    stand = (Limit(range(STAND, len(FAITHFUL)), min(doors, 1)),) if faithful else ()
    return (*single, Limit(range(OBJECT, key), doors), Limit(range(key, STAND), size - WALL_SENTENCES), *stand)


# Missions. Phrases are whole words, so the comma of "A, then C" belongs to the noun before it.

VERBS = ("go to", "open", "pick up", "put")
NEXT_TO, AND, THEN, AFTER_YOU = range(len(VERBS), len(VERBS) + 4)
NOUN = AFTER_YOU + 1
NOUN_TYPES = ("object", "door", "key", "ball", "box")
PLACE_WORDS = ("", " on your left", " on your right", " in front of you", " behind you")
COMMAS = ("", ",")
ARTICLES = ("the", "a")

MISSION_LENGTH = CLAUSES * 4 + 3
"""The number of phrases of the longest mission: four times `put X next to Y`, and three connectives."""


def _noun_phrases() -> list[str]:
    kinds = product(ARTICLES, ("", *(f"{color} " for color in COLORS)), NOUN_TYPES, PLACE_WORDS, COMMAS)
    return [f"{article} {color}{kind}{location}{comma}" for article, color, kind, location, comma in kinds]


MISSIONS = Phrasebook(
    [*VERBS, "next to", "and", "then", "after you", *_noun_phrases()], separator=" ", name="babyai.MISSIONS"
)
"""The words of a mission: verbs, connectives, and noun phrases with their place and, before ", then", their comma."""


def mission_caption(mission: Mission) -> jax.Array:
    """The text of a mission, in minigrid's wording: a caption of `MISSIONS`, int16 `[MISSION_LENGTH]`."""
    kind, order = mission.kind.astype(jnp.int16), mission.order.astype(jnp.int16)
    has_clause = kind != NO_CLAUSE
    last = jnp.stack([~has_clause[1], has_clause[1]])
    comma = jnp.concatenate([last & (order == BEFORE), jnp.zeros(2, bool)])
    is_put = kind == PUT_NEXT
    # the comma follows the last noun of the first half
    commas = jnp.stack([comma & ~is_put, comma & is_put], axis=1).astype(jnp.int16)
    article, color = mission.many.astype(jnp.int16), mission.color.astype(jnp.int16) + 1
    type_ = jnp.maximum(mission.type.astype(jnp.int16) - DOOR + 1, 0)
    location = mission.location.astype(jnp.int16) + 1
    noun = article
    for digit, base in (
        (color, len(COLORS) + 1),
        (type_, len(NOUN_TYPES)),
        (location, len(PLACE_WORDS)),
        (commas, len(COMMAS)),
    ):
        noun = noun * base + digit
    noun = noun + NOUN

    def optional(present, value):
        return jnp.where(present, value, -1).astype(jnp.int16)

    clauses = jnp.stack(
        [
            optional(has_clause, kind - 1),
            optional(has_clause, noun[:, 0]),
            optional(is_put, NEXT_TO),
            optional(is_put, noun[:, 1]),
        ],
        axis=1,
    )
    sequel = jnp.where(order == BEFORE, THEN, optional(order == AFTER, AFTER_YOU)).astype(jnp.int16)
    parts = [clauses[0], optional(has_clause[1], AND)[None], clauses[1], sequel[None]]
    parts += [clauses[2], optional(has_clause[3], AND)[None], clauses[3]]
    return compact(jnp.concatenate(parts), MISSION_LENGTH)


def mission_limits(
    kinds: Collection[int] = range(GO_TO, PUT_NEXT + 1), clauses: int = CLAUSES, located: bool = True
) -> tuple[int, tuple[Limit, ...]]:
    """The length of the longest mission and limits on its phrases, for the tightest prompt that holds every mission.

    **Arguments:** `kinds`, the clause kinds of a level's missions; `clauses`, the largest number of clauses; `located`,
    whether a noun phrase may name the location of its object.
    **Returns:** the number of phrases of the longest caption, and limits on how often each kind of phrase can occur.
    """
    puts = clauses if PUT_NEXT in kinds else 0
    nouns = clauses + puts
    usable: list[int] = []
    unusable: list[int] = []
    digits = product(ARTICLES, range(len(COLORS) + 1), NOUN_TYPES, PLACE_WORDS, COMMAS)
    for i, (_, _, _, location, comma) in enumerate(digits, NOUN):
        (usable if (located or not location) and (clauses > 1 or not comma) else unusable).append(i)
    verbs = [kind - GO_TO for kind in kinds]
    unusable += [verb for verb in range(len(VERBS)) if verb not in verbs]
    limits = (
        Limit(tuple(verbs), clauses),
        Limit((NEXT_TO,), puts),
        Limit((AND, THEN, AFTER_YOU), clauses - 1),
        Limit(tuple(usable), nouns),
        Limit(tuple(unusable), 0),
    )
    return clauses + puts + nouns + clauses - 1, limits
