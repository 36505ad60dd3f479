"""BabyAI-Text in French: the ids of the English books, other phrases (2302.02662).

`VIEW_FRENCH` and `MISSIONS_FRENCH` have the wording of GLAM's fork, including its English words and its articles; the
fork translates "go to" missions only, the other verbs and connectives are this package's. The faithful books are
correct French.
"""

from __future__ import annotations

from itertools import product

from envs_jax.babyai.constants import COLORS
from envs_jax.babyai.text.english import (
    AGENT_X,
    AGENT_Y,
    ARTICLES,
    COMMAS,
    FAITHFUL,
    MISSIONS,
    NOUN_TYPES,
    PLACE_WORDS,
    PLACES,
    VIEW,
)
from envs_jax.text import Phrasebook


NOUNS = {"object": "objet", "door": "porte", "key": "clef", "ball": "balle", "box": "boîte"}
PORTABLE = ("key", "ball", "box")
ADJECTIVES = ("rouge", "verte", "bleue", "violette", "jaune", "grise")
MASCULINE = ("rouge", "vert", "bleu", "violet", "jaune", "gris")
STATES = ("ouverte", "fermée", "fermée à clef")
SIDES = ("", " à ta gauche", " à ta droite", " devant toi", " derrière toi")
WORDS = ("aller à", "ouvrir", "ramasser", "poser", "à côté de", "et", "puis", "mais d'abord")
"""The verbs and connectives of `MISSIONS`. "A after you C" is rendered as "A but first C", so that C can stay an
infinitive."""

ACTIONS = {
    "turn left": "tourner à gauche",
    "turn right": "tourner à droite",
    "go forward": "aller tout droit",
    "pick up": "attraper",
    "drop": "lâcher",
    "toggle": "basculer",
    "eat": "manger",
    "dance": "dancer",
    "sleep": "dormir",
    "do nothing": "ne rien faire",
    "cut": "couper",
    "think": "penser",
}
"""GLAM's translations, in its spelling."""


def _offset_text(i: int, j: int, before: str) -> str:
    """The position of a cell in words; `before` is the text before each distance."""
    dx, dy = i - AGENT_X, AGENT_Y - j
    parts = [f"{before}{abs(dx)} pas à {'gauche' if dx < 0 else 'droite'}"] if dx else []
    return " et ".join(parts + ([f"{before}{dy} pas devant"] if dy else []))


def _view_phrases(carried: list[str], before: str) -> list[str]:
    """The sentences of a view; `carried`: noun and adjective of each carried object, by type; `before`, as of
    `_offset_text`."""
    objects = [f"porte {{}} {state}" for state in STATES] + [f"{NOUNS[t]} {{}}" for t in PORTABLE]
    return [
        *(f"Tu portes une {item}" for item in carried),
        *(f"Tu vois un mur à {n} pas devant" for n in range(1, AGENT_Y + 1)),
        *(f"Tu vois un mur à {n} pas à gauche" for n in range(1, AGENT_X + 1)),
        *(f"Tu vois un mur à {n} pas à droite" for n in range(1, AGENT_X + 1)),
        *(
            f"Tu vois une {t.format(c)} {_offset_text(i, j, before)}"
            for t, c, (i, j) in product(objects, ADJECTIVES, PLACES)
        ),
    ]


def _glam_noun_phrase(article: str, color: str, kind: str, side: str, comma: str) -> str:
    """GLAM's article is "une" if the English goal contains the letter a ("ball", "a key"), else "la"."""
    english = f"{article} {color} {kind}"
    words = ("une" if "a" in english else "la", NOUNS[kind], ADJECTIVES[COLORS.index(color)] if color else "")
    return " ".join(word for word in words if word) + side + comma


def _noun_phrase(article: str, color: str, kind: str, side: str, comma: str) -> str:
    if kind == "object":
        noun, adjectives = ("l'" if article == "the" else "un ") + NOUNS[kind], MASCULINE
    else:
        noun, adjectives = ("la " if article == "the" else "une ") + NOUNS[kind], ADJECTIVES
    return noun + (f" {adjectives[COLORS.index(color)]}" if color else "") + side + comma


_NOUN_PHRASES = tuple(product(ARTICLES, ("", *COLORS), NOUN_TYPES, SIDES, COMMAS))

VIEW_FRENCH = Phrasebook(
    _view_phrases([f"{t} {c}" for t, c in product(PORTABLE, COLORS)], before=""),
    separator=", ",
    name="babyai.VIEW_FRENCH",
)
"""The sentences of `VIEW`, id for id, in the wording of GLAM's fork."""

MISSIONS_FRENCH = Phrasebook(
    [*WORDS, *(_glam_noun_phrase(*words) for words in _NOUN_PHRASES)],
    separator=" ",
    name="babyai.MISSIONS_FRENCH",
    distinct=False,
)
"""The words of `MISSIONS`, id for id; GLAM's articles make some of them equal."""

FAITHFUL_FRENCH = Phrasebook(
    [
        *_view_phrases([f"{NOUNS[t]} {c}" for t, c in product(PORTABLE, ADJECTIVES)], before="à "),
        *(f"Tu te tiens dans une porte {c} {STATES[0]}" for c in ADJECTIVES),
    ],
    separator=", ",
    name="babyai.FAITHFUL_FRENCH",
)
"""The sentences of `FAITHFUL`, id for id."""

FAITHFUL_MISSIONS_FRENCH = Phrasebook(
    [*WORDS, *(_noun_phrase(*words) for words in _NOUN_PHRASES)],
    separator=" ",
    name="babyai.FAITHFUL_MISSIONS_FRENCH",
)
"""The words of `MISSIONS`, id for id, with the articles and genders of French."""

assert len(VIEW_FRENCH) == len(VIEW) and len(FAITHFUL_FRENCH) == len(FAITHFUL)
assert len(MISSIONS_FRENCH) == len(FAITHFUL_MISSIONS_FRENCH) == len(MISSIONS) and len(SIDES) == len(PLACE_WORDS)
