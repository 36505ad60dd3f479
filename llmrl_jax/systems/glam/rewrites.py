"""Rewrites of the prompt's words: GLAM's generalisation tests (glam reference, section 2.7).

The published tests replace strings in the rendered prompt, one after the other. Here prompts are built on the device,
so a rewrite applies to the phrases and literals of the template, before tokenization. Since no replaced string spans
two of these, the prompts are the same.

The published code rewrites the names of actions in the prompt, but not the candidates that it scores. None of its
rewrites changes an action name in any of its lists, so this makes no difference; here both are rewritten, since an
agent answers with the words that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from envs_jax import spaces
from envs_jax.actions import OtherActions
from envs_jax.env import Environment
from envs_jax.text import Block, Literal, Part, Phrasebook, Prompt, Tokenizer
from llmrl_jax.core.checks import nearest
from llmrl_jax.systems.glam.prompt import GlamPrompt


NO_MODIFICATION = "no_modification_test"
"""The published name of the test without a rewrite."""

_NOUNS = {"key": "chair", "ball": "table", "box": "car"}
_ADJECTIVES = {
    "red": "vermilion",
    "green": "jade",
    "blue": "cyan",
    "purple": "violet",
    "yellow": "golden",
    "grey": "silver",
}
_INVENTED_NOUNS = {"key": "dax", "ball": "xolo", "box": "afze"}
_INVENTED_ADJECTIVES = {
    "red": "faze",
    "green": "jatu",
    "blue": "croh",
    "purple": "vurst",
    "yellow": "gakul",
    "grey": "sil",
}
_NOUNS_FRENCH = {"clef": "chaise", "balle": "table", "boîte": "voiture"}
_ADJECTIVES_FRENCH = {
    "rouge": "vermilion",
    "verte": "jade",
    "bleue": "cyan",
    "violette": "mauve",
    "jaune": "dorée",
    "grise": "argent",
}


def _translated(invented: Mapping[str, str], english: Mapping[str, str], french: Mapping[str, str]) -> dict[str, str]:
    """The same invented words for the French names of the same objects."""
    return dict(zip(french, (invented[word] for word in english), strict=True))


_INVENTED_NOUNS_FRENCH = _translated(_INVENTED_NOUNS, _NOUNS, _NOUNS_FRENCH)
_INVENTED_ADJECTIVES_FRENCH = _translated(_INVENTED_ADJECTIVES, _ADJECTIVES, _ADJECTIVES_FRENCH)


@dataclass(frozen=True)
class Rewrite:
    """Strings and their replacements, in order."""

    name: str
    """The name in the published code."""
    changes: tuple[tuple[str, str], ...] = ()

    def __call__(self, text: str) -> str:
        """The text with every occurrence of each string replaced, the first string first."""
        for old, new in self.changes:
            text = text.replace(old, new)
        return text


def _rewrites(**changes: Mapping[str, str]) -> dict[str, Rewrite]:
    named = {name: Rewrite(name, tuple(pairs.items())) for name, pairs in changes.items()}
    return {NO_MODIFICATION: Rewrite(NO_MODIFICATION), **named}


REWRITES: dict[str, dict[str, Rewrite]] = {
    "english": _rewrites(
        other_name_same_categories=_NOUNS,
        adj_synonym=_ADJECTIVES,
        no_meaning_nouns=_INVENTED_NOUNS,
        no_meaning_adj=_INVENTED_ADJECTIVES,
        no_meaning_words={**_INVENTED_NOUNS, **_INVENTED_ADJECTIVES},
        change_intro_first_personne_speaker={"Goal of the agent": "I would like the agent to"},
        change_intro_first_personne_agent={"Goal of the agent": "You have to"},
    ),
    "french": _rewrites(
        other_name_same_categories=_NOUNS_FRENCH,
        adj_synonym=_ADJECTIVES_FRENCH,
        no_meaning_nouns=_INVENTED_NOUNS_FRENCH,
        no_meaning_adj=_INVENTED_ADJECTIVES_FRENCH,
        no_meaning_words={**_INVENTED_NOUNS_FRENCH, **_INVENTED_ADJECTIVES_FRENCH},
        change_intro_first_personne_speaker={"But de l'agent": "Je veux que l'agent fasse"},
        change_intro_first_personne_agent={"But de l'agent": "Tu dois faire"},
    ),
}
"""Rewrites by language and published name.

As in the published code, a French prompt keeps "key", "ball" and "box" for carried objects, and its locked doors,
"fermée à clef", are rewritten with the keys. The published list replaces "gris" within "grise", which gives
"argente"."""

SYNONYMS = {
    "synonym_actions": ("rotate left", "rotate right", "move ahead", "take", "release", "switch"),
    "second_synonym_actions": ("shift left", "shift right", "go ahead", "take", "release", "turn"),
}
"""Other words for the canonical six actions, in their order (glam reference, section 2.2)."""

EXTRA_ACTIONS = ("sleep", "do nothing", "think")
"""Actions without effect, which extend the canonical six to the augmented set of nine."""


def find_rewrite(name: str, language: str = "english") -> Rewrite:
    """A rewrite by its published name. **Raises** `KeyError`, with the nearest name, for an unknown one."""
    if language not in REWRITES:
        raise KeyError(f"there are no rewrites in {language!r}{nearest(language, list(REWRITES))}; english or french")
    known = REWRITES[language]
    if name not in known:
        raise KeyError(f"there is no rewrite {name!r}{nearest(name, list(known))} (there are {', '.join(known)})")
    return known[name]


def rewritten(template: GlamPrompt, rewrite: Rewrite) -> GlamPrompt:
    """A template whose prompts are the rewritten prompts of the original, with the same slots."""
    books: dict[int, Phrasebook] = {}

    def say(book: Phrasebook) -> Phrasebook:
        if id(book) not in books:
            phrases = map(rewrite, book.phrases)
            name = f"{book.name}, {rewrite.name}"
            books[id(book)] = Phrasebook(phrases, separator=book.separator, name=name, distinct=False)
        return books[id(book)]

    def change(part: Part) -> Part:
        if isinstance(part, Literal):
            return Literal(rewrite(part.text))
        if isinstance(part, Block):
            return replace(part, parts=tuple(map(change, part.parts)))
        changed: Any = replace(
            part, book=say(part.book), prefix=rewrite(part.prefix), suffix=rewrite(part.suffix)
        )  # a slot's limits are ids, which do not change
        return changed

    if not rewrite.changes:
        return template
    prompt = Prompt(*map(change, template.prompt.parts))
    return replace(template, prompt=prompt, actions=tuple(map(rewrite, template.actions)))


def unknown_words(tokenizer: Tokenizer, template: GlamPrompt) -> list[str]:
    """The words of a template, without commas, that a tokenizer rejects or maps to its unknown token."""
    model = getattr(getattr(tokenizer, "backend", None), "model", None)
    unk = getattr(model, "unk_token", None)
    unk_id = None if unk is None else tokenizer.backend.token_to_id(unk)  # type: ignore[attr-defined]

    def known(word: str) -> bool:
        try:
            return unk_id not in tokenizer.encode(word)
        except ValueError:  # raised by a word-level tokenizer
            return False

    texts = [*(text for unit in template.prompt.units for text in unit.texts), *template.actions]
    words = {word for text in texts for word in text.split()}
    return sorted({word.rstrip(",:") for word in words if not known(word)})


def check_done(env: Environment, actions: Sequence[str]) -> None:
    """Check that the missions of an environment can be accomplished with some of its actions: the option `done_actions`
    makes "done" one of those that are needed. **Raises:** `ValueError` if it is missing."""
    if getattr(env.unwrapped, "done_actions", False) and "done" not in actions:
        raise ValueError(
            f"{env.id} is won by saying done, but num_actions is {len(actions)}, without it: take "
            f"{env.action_names.index('done') + 1}, or leave done_actions out of the environment"
        )


class ExtraActions(OtherActions):
    """A BabyAI environment with its first `n` actions and further ones without effect.

    Each of these is the environment's "done", as in the published code (glam reference, section 2.2). Environments that
    read it (`done_actions`) are refused. If the environment masks useless actions, the further ones are always masked.
    """

    def __init__(self, env: Environment, n: int, names: tuple[str, ...]):
        """**Raises:** `ValueError` for an `n` that includes "done", a name that is already an action's, or an
        environment that reads "done"."""
        super().__init__(env)
        known = env.action_names
        self.idle = known.index("done")
        if not 1 <= n <= self.idle:
            raise ValueError(f"n is {n}, but {env.id} has {self.idle} actions that do something")
        if len({*known, *names}) < len(known) + len(names):
            raise ValueError(f"two of the actions {', '.join((*known, *names))} have the same name")
        check_done(env, (*known[:n], *names))
        self.n, self.names = n, names

    def step(self, key, state, action, params):
        return super().step(key, state, jnp.where(action < self.n, action, self.idle), params)

    def offered(self, mask):
        return jnp.concatenate([mask[: self.n], jnp.zeros(len(self.names), bool)])

    def action_space(self, params):
        return spaces.Discrete(self.n + len(self.names))

    @property
    def action_names(self):
        return (*self.env.action_names[: self.n], *self.names)
