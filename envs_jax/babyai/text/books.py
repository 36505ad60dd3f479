"""The phrasebooks of BabyAI environments, by grammar of the descriptions and by language."""

from __future__ import annotations

from dataclasses import dataclass

from envs_jax.babyai.text import french
from envs_jax.babyai.text.english import FAITHFUL, MISSIONS, VIEW
from envs_jax.checks import nearest
from envs_jax.text import Phrasebook


@dataclass(frozen=True)
class Books:
    """The books of missions and of views. Captions do not depend on the language, only the words do."""

    missions: Phrasebook
    view: Phrasebook


BOOKS = {
    ("glam", "english"): Books(MISSIONS, VIEW),
    ("glam", "french"): Books(french.MISSIONS_FRENCH, french.VIEW_FRENCH),
    ("faithful", "english"): Books(MISSIONS, FAITHFUL),
    ("faithful", "french"): Books(french.FAITHFUL_MISSIONS_FRENCH, french.FAITHFUL_FRENCH),
}
"""By grammar (`glam`: byte for byte GLAM's own; `faithful`: accurate descriptions) and language."""


def books(describe: str = "glam", language: str = "english") -> Books:
    """The books of a grammar and a language.

    **Raises:** `ValueError` for an unknown name, with the nearest one.
    """
    for value, label, names in (
        (describe, "grammar of descriptions", list(dict.fromkeys(d for d, _ in BOOKS))),
        (language, "language", list(dict.fromkeys(spoken for _, spoken in BOOKS))),
    ):
        if value not in names:
            raise ValueError(
                f"no {label} is called {value!r}{nearest(str(value), names)} (there are {', '.join(names)})"
            )
    return BOOKS[describe, language]
