"""BabyAI-Text in French, as GLAM's fork words it (glam reference, sections 2.3 and 2.4): the same ids, other phrases.

The fork translates "go to" missions only; the other verbs and connectives are this package's.
"""

from __future__ import annotations

from itertools import product

from envs_jax.babyai.constants import COLORS
from envs_jax.babyai.text import (
    AGENT_X,
    AGENT_Y,
    ARTICLES,
    COMMAS,
    MISSIONS,
    NOUN_TYPES,
    PLACE_WORDS,
    PLACES,
    VIEW,
)
from envs_jax.text import Phrasebook


NOUNS = {"object": "objet", "door": "porte", "key": "clef", "ball": "balle", "box": "boîte"}
ADJECTIVES = ("rouge", "verte", "bleue", "violette", "jaune", "grise")
STATES = ("ouverte", "fermée", "fermée à clef")
SIDES = ("", " à ta gauche", " à ta droite", " devant toi", " derrière toi")

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
"""GLAM's translations, its spelling included."""


def _where(i: int, j: int) -> str:
    dx, dy = i - AGENT_X, AGENT_Y - j
    parts = [f"{abs(dx)} pas à {'gauche' if dx < 0 else 'droite'}"] if dx else []
    return " et ".join(parts + ([f"{dy} pas devant"] if dy else []))


def _view_phrases() -> list[str]:
    things = [f"porte {{}} {state}" for state in STATES] + [f"{NOUNS[t]} {{}}" for t in ("key", "ball", "box")]
    return [
        *(f"Tu portes une {t} {c}" for t, c in product(("key", "ball", "box"), COLORS)),  # English words, as the fork
        *(f"Tu vois un mur à {n} pas devant" for n in range(1, AGENT_Y + 1)),
        *(f"Tu vois un mur à {n} pas à gauche" for n in range(1, AGENT_X + 1)),
        *(f"Tu vois un mur à {n} pas à droite" for n in range(1, AGENT_X + 1)),
        *(f"Tu vois une {t.format(c)} {_where(i, j)}" for t, c, (i, j) in product(things, ADJECTIVES, PLACES)),
    ]


def _noun_phrase(article: str, color: str, kind: str, side: str, comma: str) -> str:
    """GLAM's article is "une" wherever the English goal has the letter a ("ball", "a key"), else "la"."""
    english = f"{article} {color} {kind}"
    words = ("une" if "a" in english else "la", NOUNS[kind], ADJECTIVES[COLORS.index(color)] if color else "")
    return " ".join(word for word in words if word) + side + comma


VIEW_FRENCH = Phrasebook(_view_phrases(), separator=", ", name="babyai.VIEW_FRENCH")
"""The sentences of `VIEW`, id for id."""

MISSIONS_FRENCH = Phrasebook(
    [
        *("aller à", "ouvrir", "ramasser", "poser", "à côté de", "et", "puis", "après avoir"),
        *(_noun_phrase(*words) for words in product(ARTICLES, ("", *COLORS), NOUN_TYPES, SIDES, COMMAS)),
    ],
    separator=" ",
    name="babyai.MISSIONS_FRENCH",
    distinct=False,
)
"""The words of `MISSIONS`, id for id; GLAM's articles make some of them equal."""

assert len(VIEW_FRENCH) == len(VIEW) and len(MISSIONS_FRENCH) == len(MISSIONS) and len(SIDES) == len(PLACE_WORDS)
