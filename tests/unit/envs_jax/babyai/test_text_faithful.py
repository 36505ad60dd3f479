"""The faithful descriptions, and French: hand-made views with hand-written sentences."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from envs_jax.babyai.constants import BALL, BOX, COLORS, DOOR, EMPTY, KEY, OPEN, RED, STATES, TYPES, UNSEEN, WALL
from envs_jax.babyai.state import EMPTY_CELL, pack
from envs_jax.babyai.text.books import books
from envs_jax.babyai.text.english import (
    FAITHFUL,
    MISSIONS,
    PLACES,
    VIEW,
    faithful_caption,
    sentence_bound,
    view_caption,
    view_limits,
)


ALL = sentence_bound(len(PLACES), faithful=True)

SIGNS = {"o": (DOOR, 0), "c": (DOOR, 1), "l": (DOOR, 2), "k": (KEY, 0), "b": (BALL, 0), "x": (BOX, 0)}
"""The first letter of a cell: an open, closed or locked door, a key, a ball, a box. The second is its colour's."""
COLOR_SIGNS = "rgbpye"


def drawn(text: str) -> np.ndarray:
    """A view, uint8 `[7, 7, 3]`, from its drawing, far row first: `#` wall, `.` empty or the agent, `?` unseen."""
    rows = [line.split() for line in text.strip().splitlines()]
    image = np.zeros((7, 7, 3), np.uint8)
    for j, row in enumerate(rows):
        for i, sign in enumerate(row):
            plain = {"#": (WALL, 5, 0), ".": (EMPTY, 0, 0), "?": (UNSEEN, 0, 0)}
            kind, state = SIGNS.get(sign[0], (0, 0))
            image[i, j] = plain[sign] if sign in plain else (kind, COLOR_SIGNS.index(sign[1]), state)
    return image


@functools.cache
def speakers():
    faithful = jax.jit(jax.vmap(lambda image, under: faithful_caption(image, under, ALL)))
    return faithful, jax.jit(jax.vmap(lambda image: view_caption(image, ALL)))


def faithful(image, under=EMPTY_CELL) -> np.ndarray:
    return np.asarray(speakers()[0](image[None], np.array([under], np.int16)))[0]


def glam(image) -> np.ndarray:
    return np.asarray(speakers()[1](image[None]))[0]


ROOM = drawn("""
    ?  ?  ?  ?  ?  ?  ?
    #  #  #  #  #  #  ?
    #  .  .  .  .  .  #
    #  .  .  br .  .  #
    #  .  .  .  .  .  #
    #  kg .  .  .  .  lb
    #  .  xy ke .  .  #
""")
"""A grey key is carried; a ball stands before the wall ahead, a box before that on the left."""


def test_what_stands_before_a_wall_does_not_hide_it():
    things = [
        "You see a green key 2 steps left and 1 step forward",
        "You see a yellow box 1 step left",
        "You see a red ball 3 steps forward",
        "You see a locked blue door 3 steps right and 1 step forward",
    ]
    walls = ["You see a wall 5 steps forward", "You see a wall 3 steps left", "You see a wall 3 steps right"]
    assert FAITHFUL.phrases_of(faithful(ROOM)) == ["You carry a grey key", *walls, *things]
    assert VIEW.phrases_of(glam(ROOM)) == ["You carry a grey key", walls[2], *things]


DOORWAY = drawn("""
    #  #  #  #  #  #  #
    .  .  .  .  .  .  .
    .  .  .  op .  .  .
    .  .  .  .  .  .  .
    .  .  .  .  og .  .
    .  .  .  .  .  .  .
    ?  ?  #  .  #  ?  ?
""")


def test_standing_in_a_doorway_is_said_and_doorways_have_a_place():
    rest = [
        "You see a wall 6 steps forward",
        "You see a wall 1 step left",
        "You see a wall 1 step right",
        "You see an open purple door 4 steps forward",
        "You see an open green door 1 step right and 2 steps forward",
    ]
    assert FAITHFUL.phrases_of(faithful(DOORWAY, pack(DOOR, RED, OPEN, 3))) == ["You stand in an open red door", *rest]
    assert FAITHFUL.phrases_of(faithful(DOORWAY)) == rest
    assert VIEW.phrases_of(glam(DOORWAY)) == [
        *rest[1:3],
        "You see a open purple door 4 steps forward",
        "You see a open green door 1 step right and 2 steps forward",
    ]


def test_a_closed_door_ahead_is_no_wall_and_unseen_cells_say_nothing():
    image = drawn("""
        ?  ?  ?  ?  ?  ?  ?
        ?  ?  ?  ?  ?  ?  ?
        ?  ?  ?  ?  ?  ?  ?
        #  #  #  #  cy #  #
        .  .  .  .  .  .  .
        .  .  .  .  .  .  .
        .  .  .  .  .  .  .
    """)
    assert FAITHFUL.render(faithful(image)) == (
        "You see a wall 3 steps forward, You see a closed yellow door 1 step right and 3 steps forward"
    )
    image[3, 3] = image[4, 3]
    assert FAITHFUL.phrases_of(faithful(image))[0] == "You see a closed yellow door 3 steps forward"


def describe(image: np.ndarray, under: tuple[int, int, int]) -> list[str]:
    """The faithful sentences, one rule after another."""

    def steps(n):
        return "1 step" if n == 1 else f"{n} steps"

    kind, color, _ = image[3, 6]
    said = [f"You carry a {COLORS[color]} {TYPES[kind]}"] if kind in (KEY, BALL, BOX) else []
    if under[0] == DOOR:
        said.append(f"You stand in an open {COLORS[under[1]]} door")
    rays = {
        "forward": [(3, 6 - n) for n in range(1, 7)],
        "left": [(3 - n, 6) for n in range(1, 4)],
        "right": [(3 + n, 6) for n in range(1, 4)],
    }
    for way, ray in rays.items():
        walls = [n for n, cell in enumerate(ray, 1) if image[cell][0] == WALL]
        said += [f"You see a wall {steps(walls[0])} {way}"] if walls else []
    for i in range(7):
        for j in range(7):
            kind, color, state = image[i, j]
            if kind not in (DOOR, KEY, BALL, BOX) or (i, j) == (3, 6):
                continue
            where = [f"{steps(abs(i - 3))} {'left' if i < 3 else 'right'}"] if i != 3 else []
            where += [f"{steps(6 - j)} forward"] if j < 6 else []
            door = STATES[state] + " " if kind == DOOR else ""
            article = "an" if door == "open " else "a"
            said.append(f"You see {article} {door}{COLORS[color]} {TYPES[kind]} {' and '.join(where)}")
    return said


def test_random_views_read_as_the_rules_say():
    rng = np.random.default_rng(0)
    n = 256
    kind = rng.choice(
        [UNSEEN, EMPTY, WALL, DOOR, KEY, BALL, BOX], (n, 7, 7), p=[0.3, 0.3, 0.12, 0.07, 0.07, 0.07, 0.07]
    )
    kind[:16] = rng.choice([DOOR, KEY, BALL, BOX], (16, 7, 7))  # so full that every place speaks
    color = np.where(kind == WALL, 5, rng.integers(0, 6, kind.shape))
    state = np.where(kind == DOOR, rng.integers(0, 3, kind.shape), 0)
    images = np.stack([kind, color, state], axis=-1).astype(np.uint8)
    images[:, 3, 6] = [rng.choice([(EMPTY, 0, 0), (KEY, 2, 0), (BALL, 0, 0), (BOX, 5, 0)]) for _ in range(n)]
    unders = [(DOOR, int(rng.integers(6)), OPEN) if rng.random() < 0.5 else (EMPTY, 0, 0) for _ in range(n)]
    captions = np.asarray(speakers()[0](images, np.array([pack(*under) for under in unders], np.int16)))
    assert [FAITHFUL.phrases_of(c) for c in captions] == [describe(*both) for both in zip(images, unders)]


def test_the_faithful_book_is_glams_with_an_and_six_more():
    assert [p.replace("an open", "a open") for p in FAITHFUL.phrases[: len(VIEW)]] == list(VIEW.phrases)
    assert FAITHFUL.phrases[len(VIEW) :] == tuple(f"You stand in an open {color} door" for color in COLORS)


def test_bounds_and_limits():
    assert sentence_bound(8, faithful=True) == 11  # a door stood in is none in sight
    assert sentence_bound(500, faithful=True) == 48 + 1 + 1 + 3
    limits = view_limits(11, doors=2, faithful=True)
    assert [limit.at_most for limit in limits] == [1, 1, 1, 1, 2, 8, 1]
    assert sorted(i for limit in limits for i in limit.ids) == list(range(len(FAITHFUL)))
    assert view_limits(11, doors=0, faithful=True)[-1].at_most == 0


def test_french_says_the_same_of_a_view():
    spoken = books("faithful", "french")
    assert spoken.view.phrases_of(faithful(ROOM)) == [
        "Tu portes une clef grise",
        "Tu vois un mur à 5 pas devant",
        "Tu vois un mur à 3 pas à gauche",
        "Tu vois un mur à 3 pas à droite",
        "Tu vois une clef verte à 2 pas à gauche et à 1 pas devant",
        "Tu vois une boîte jaune à 1 pas à gauche",
        "Tu vois une balle rouge à 3 pas devant",
        "Tu vois une porte bleue fermée à clef à 3 pas à droite et à 1 pas devant",
    ]
    assert spoken.view.phrases_of(faithful(DOORWAY, pack(DOOR, RED, OPEN, 3)))[::5] == [
        "Tu te tiens dans une porte rouge ouverte",
        "Tu vois une porte verte ouverte à 1 pas à droite et à 2 pas devant",
    ]
    # as GLAM's fork has it: the carried thing stays English, distances have no preposition
    assert books("glam", "french").view.render(glam(ROOM)) == (
        "Tu portes une key grey, Tu vois un mur à 3 pas à droite, "
        "Tu vois une clef verte 2 pas à gauche et 1 pas devant, "
        "Tu vois une boîte jaune 1 pas à gauche, Tu vois une balle rouge 3 pas devant, "
        "Tu vois une porte bleue fermée à clef 3 pas à droite et 1 pas devant"
    )


@pytest.mark.parametrize(
    ("english", "french"),
    [
        (["go to", "the red ball"], "aller à la balle rouge"),
        (["pick up", "a green key on your left"], "ramasser une clef verte à ta gauche"),
        (["put", "the box", "next to", "the blue object"], "poser la boîte à côté de l'objet bleu"),
        (["open", "a grey door,", "then", "go to", "a object"], "ouvrir une porte grise, puis aller à un objet"),
        (["go to", "the key", "after you", "pick up", "the ball"], "aller à la clef mais d'abord ramasser la balle"),
        (
            ["go to", "a purple box behind you", "and", "open", "the door"],
            "aller à une boîte violette derrière toi et ouvrir la porte",
        ),
    ],
)
def test_missions_in_french(english, french):
    caption = MISSIONS.caption(english, 19)
    assert books("faithful", "french").missions.render(caption) == french


def test_glams_articles_in_french():
    goal = MISSIONS.caption(["go to", "the red ball"], 19)
    assert books("glam", "french").missions.render(goal) == "aller à une balle rouge"


def test_books_by_name():
    assert books() == books("glam", "english") and books().view is VIEW and books("faithful").view is FAITHFUL
    assert books("faithful").missions is MISSIONS
    with pytest.raises(ValueError, match="'faithfull'.*'faithful'"):
        books("faithfull")
    with pytest.raises(ValueError, match="'français'.*english, french"):
        books(language="français")
