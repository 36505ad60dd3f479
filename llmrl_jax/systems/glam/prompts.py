"""GLAM's prompt, the slots filled by an observation, and other words for it: variants and rewrites.

Prompt and rewrites: `agents/base_agent.py` of Carta et al. (2302.02662). `VARIANTS` are equivalent prompts, for agents
that learnt their prompt instead of the task: language models fine-tuned by RL with one prompt perform worse with others
("prompt overfitting", Aissi et al., 2410.19920). They change the text around the environment's words (sentences,
missions and actions) and its order.

`REWRITES` change the words themselves, as the published generalisation tests do. Those replace strings in the rendered
prompt, one after the other. Here prompts are built on the device, so a rewrite applies to the phrases and literals of
the template, before tokenization. Since no replaced string spans two of these, the prompts are the same. The published
code rewrites the names of actions in the prompt, but not the candidates that it scores. None of its rewrites changes an
action name in any of its lists, so this makes no difference; here both are rewritten, since an agent answers with the
words that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from envs_jax.actions import MASK
from envs_jax.babyai.text import french
from envs_jax.babyai.text.books import books
from envs_jax.env import Environment, Wrapper
from envs_jax.text import (
    Block,
    Choice,
    CompiledPrompt,
    Limit,
    Literal as Text,
    Part,
    Phrasebook,
    Prompt,
    Slot,
    Tokenizer,
)
from envs_jax.text.phrases import compact
from llmrl_jax.core.checks import at_least, nearest


@dataclass(frozen=True)
class Wording:
    """The fixed text of a prompt, including white space; the defaults are byte-identical to GLAM's."""

    actions: str = "Possible action of the agent:"
    """Before the list of actions; empty: no list."""
    after_actions: str = ""
    goal: str = "Goal of the agent:"
    after_goal: str = ""
    separator: str = " \n "
    """Between the list of actions and the goal."""
    goal_first: bool = False
    """Whether the goal precedes the list of actions."""
    observation: str = " \n Observation {k}: "
    """Before the sentences of observation `k` of the window, 0 the oldest."""
    sentence: tuple[str, str] = ("", ", ")
    """Before and after each sentence."""
    action: str = "\n Action {k}: "
    """Before the action that followed observation `k`, and at the end."""
    after_action: str = ""
    """After a past action."""


WORDINGS = {
    "english": Wording(),
    "french": Wording(actions="Actions possibles pour l'agent:", goal="But de l'agent:"),
}
"""The published prompts, by language."""


@dataclass(frozen=True)
class GlamPrompt:
    """The template, and the function from the observations of `envs_jax.history.PromptHistory` to its slots."""

    prompt: Prompt
    actions: tuple[str, ...]
    """The answers (candidates to score), in the order of the environment's actions."""
    history: int
    """Maximum number of observations in the window."""
    lists_offered: bool = False
    """Whether the prompt lists only the actions available in the observation's `action_mask`."""

    def slots(self, obs: Mapping[str, Array]) -> dict[str, Array]:
        """The slots for the observation of one environment."""
        slots = {"mission": obs["mission"]}
        for k in range(self.history):
            slots[f"text_{k}"] = obs["text"][k]
            if k:
                slots[f"action_{k - 1}"] = obs["actions"][k - 1]
                slots[f"observation_{k}"] = obs["count"] > k
        if self.lists_offered:
            ids = jnp.arange(len(self.actions))
            offered = jnp.asarray(obs[MASK])[: len(self.actions)]
            last = jnp.max(jnp.where(offered, ids, 0))
            # the last one separately, since no comma follows it
            slots["offered"] = compact(jnp.where(offered & (ids < last), ids, -1), max(1, len(self.actions) - 1))
            slots["last_offered"] = last
        return slots

    def render(self, obs: Mapping[str, Array]) -> str:
        """The prompt as text, for the observation of one environment, on the host."""
        return self.prompt.render(self.slots(obs))

    def compile(self, tokenizer: Tokenizer, max_length: int | None = None, **options: Any) -> CompiledPrompt:
        """See `envs_jax.text.Prompt.compile`; `heal=False` is the released code's tokenization of the actions."""
        return self.prompt.compile(tokenizer, max_length, **options)

    def batched(self, compiled: CompiledPrompt) -> Callable[[Any], tuple[Int[Array, "B S"], Int[Array, " B"]]]:
        """The function from batched observations to tokens and lengths, called by a policy inside jit."""
        return jax.vmap(lambda obs: compiled(self.slots(obs)))


def check_observed(env: Environment) -> None:
    """**Raises** `TypeError` for an environment without what GLAM's prompt consists of, which is named."""
    parts = getattr(env.observation_space(env.default_params), "spaces", {})
    missing = [f"no {name!r} to observe" for name in ("text", "mission") if name not in parts]
    if not missing and not hasattr(env.unwrapped, "level"):
        missing = ["no level of BabyAI, whose sentences bound the length of the prompt"]
    if missing:
        has = f"; its parts in words are {', '.join(map(repr, env.captions))}" if env.captions else ""
        raise TypeError(
            f"{env.id!r} has {' and '.join(missing)}{has}: GLAM's prompt states a goal (its 'mission') and describes "
            "what is seen (its 'text'). It plays the ids that begin with BabyAI-Text/ (`llmrl envs list BabyAI-Text`); "
            "`llmrl agent` plays all with text and a finite number of actions, `llmrl ellm` Crafter and Housekeep, and "
            "`llmrl rl` those without text"
        )


def glam_prompt(
    env: Environment,
    actions: Sequence[str] | None = None,
    *,
    history: int = 3,
    list_actions: bool = True,
    language: str | None = None,
    wording: Mapping[str, Any] | None = None,
) -> GlamPrompt:
    """GLAM's prompt for a BabyAI-Text environment: the possible actions, the goal, and the last observations and
    actions.

    **Arguments:** `env`, wrapped in `PromptHistory(env, history)` or to be wrapped later; `actions`, names of the
    environment's first actions (default: its own names without "done", the canonical six); `history`, observations in
    the window; `list_actions`, whether the prompt begins with the list of actions (15 constant words, or, if the
    available actions depend on the state, those available); `language`, "english" or "french", of the observations, the
    goal and GLAM's own action names; None: the environment's; `wording`, fields of `Wording` that differ from the
    published ones.
    **Returns:** the prompt. Its slots are as narrow as the level allows.
    **Raises:** `ValueError` for an invalid language, window or list of actions, `TypeError` for an environment without
    text.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> env, env_params = lr.make("BabyAI-Text/GoToObjS4-v0")
    >>> template = lr.glam_prompt(lr.PromptHistory(env, 1), history=1)
    >>> tokenizer = lr.WordTokenizer.from_prompt(template.prompt, template.actions)
    >>> template.actions[0], template.compile(tokenizer).max_length < 100
    ('turn left', True)
    ```
    """
    inner = env.unwrapped if isinstance(env, Wrapper) else env
    if language is None:
        language = getattr(inner, "language", "english")
    if language not in WORDINGS:
        raise ValueError(f"no prompt in {language!r}{nearest(language, list(WORDINGS))}; english or french")
    check_observed(env)
    parts = getattr(env.observation_space(env.default_params), "spaces", {})
    at_least("history", history, 1)
    if "actions" in parts and parts["actions"].shape[-1] + 1 != history:
        raise ValueError(
            f"the prompt needs {history} observations, but PromptHistory keeps {parts['actions'].shape[-1] + 1}"
        )
    names = tuple(actions) if actions is not None else tuple(n for n in env.action_names if n != "done")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"the actions {list(names)} are none, or two of them are the same words")
    if language == "french":
        names = tuple(french.ACTIONS.get(name, name) for name in names)
    (longest, limits), (size, sentences) = (env.caption_limits[name] for name in ("mission", "text"))
    phrases = books("faithful" if inner.faithful else "glam", language)  # type: ignore[attr-defined]
    mission = Slot("mission", phrases.missions, longest, prefix=" ", suffix="", limits=limits)
    words = replace(WORDINGS[language], **(wording or {}))
    if not list_actions:
        words = replace(words, actions="")
    before, after = words.sentence
    texts = [
        Slot(f"text_{k}", phrases.view, size, prefix=before, suffix=after, limits=sentences) for k in range(history)
    ]
    varies = bool(words.actions) and MASK in parts
    return GlamPrompt(Prompt(*_template(words, names, varies, mission, texts)), names, history, varies)


def _listed(wording: Wording, names: tuple[str, ...], varies: bool) -> Iterator[Part]:
    """The list of actions: all of them, or the available ones."""
    yield Text(wording.actions)
    if varies:
        book = Phrasebook(names, name="actions")
        at_most_once = tuple(Limit((i,), 1) for i in range(len(names)))
        yield Slot("offered", book, max(1, len(names) - 1), prefix=" ", suffix=",", limits=at_most_once)
        yield Choice("last_offered", book, prefix=" ")
    else:
        yield Text(",".join(f" {name}" for name in names))
    yield Text(wording.after_actions)


def _template(
    wording: Wording, names: tuple[str, ...], varies: bool, mission: Slot, texts: list[Slot]
) -> Iterator[Part]:
    """The template: every observation ends in an open "Action k: ", completed by the next block."""
    goal: list[Part] = [Text(wording.goal), mission, Text(wording.after_goal)]
    if wording.actions:
        heads = [list(_listed(wording, names, varies)), goal]
        first, second = reversed(heads) if wording.goal_first else heads
        yield from (*first, Text(wording.separator), *second)
    else:
        yield from goal
    book = Phrasebook(names, name="actions")
    for k, text in enumerate(texts):
        parts = (Text(wording.observation.format(k=k)), text, Text(wording.action.format(k=k)))
        if k:
            answered = Choice(f"action_{k - 1}", book, suffix=wording.after_action)
            yield Block(f"observation_{k}", (answered, *parts))
        else:
            yield from parts


# --- equivalent prompts -----------------------------------------------------------------------------------------------

STRUCTURAL: dict[str, dict[str, Any]] = {
    "goal_first": {"goal_first": True},
    "no_action_list": {"actions": ""},
    "bulleted": {
        "observation": " \n Observation {k}:",
        "sentence": (" \n - ", ""),
        "action": " \n Action {k}: ",
    },
}
"""Variants that change the order, omit parts, or use other separators: in any language."""

ENGLISH: dict[str, dict[str, Any]] = {
    "paraphrased": {
        "actions": "Moves that you can make:",
        "goal": "Task that you have to do:",
        "observation": " \n Perception {k}: ",
        "action": "\n Move {k}: ",
    },
    "tagged": {
        "actions": "<actions>",
        "after_actions": " </actions>",
        "goal": "<goal>",
        "after_goal": " </goal>",
        "observation": " \n <observation> ",
        "action": "</observation> \n <action> ",
        "after_action": " </action>",
    },
    "prose": {
        "actions": "In this world you can",
        "after_actions": ".",
        "separator": " ",
        "goal": "Your task is to",
        "after_goal": ".",
        "observation": " Look around: ",
        "action": "so you decide to ",
        "after_action": ".",
    },
}
"""Variants with other English text: other labels, XML-like tags, sentences."""

VARIANTS = {**STRUCTURAL, **ENGLISH}
"""The fields of `Wording` that each variant changes."""


def find_variant(name: str, language: str = "english") -> Mapping[str, Any]:
    """The fields of `Wording` that a variant changes; an empty name changes none.

    **Raises:** `KeyError` for an unknown one, with the nearest name; `ValueError` for an English variant in another
    language.
    """
    if not name:
        return {}
    if name not in VARIANTS:
        raise KeyError(f"there is no variant {name!r}{nearest(name, list(VARIANTS))} (there are {', '.join(VARIANTS)})")
    if language != "english" and name in ENGLISH:
        raise ValueError(f"the variant {name} has no words in {language}; those that have: {', '.join(STRUCTURAL)}")
    return VARIANTS[name]


# --- other words ------------------------------------------------------------------------------------------------------

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
"""Other words for the canonical six actions, in their order."""


def find_rewrite(name: str, language: str = "english") -> Rewrite:
    """A rewrite by its published name. **Raises** `KeyError`, with the nearest name, for an unknown one."""
    if language not in REWRITES:
        raise KeyError(f"there are no rewrites in {language!r}{nearest(language, list(REWRITES))}; english or french")
    rewrites = REWRITES[language]
    if name not in rewrites:
        raise KeyError(f"there is no rewrite {name!r}{nearest(name, list(rewrites))} (there are {', '.join(rewrites)})")
    return rewrites[name]


def rewritten(template: GlamPrompt, rewrite: Rewrite) -> GlamPrompt:
    """A template whose prompts are the rewritten prompts of the original, with the same slots."""
    books: dict[int, Phrasebook] = {}

    def change_book(book: Phrasebook) -> Phrasebook:
        if id(book) not in books:
            phrases = map(rewrite, book.phrases)
            name = f"{book.name}, {rewrite.name}"
            books[id(book)] = Phrasebook(phrases, separator=book.separator, name=name, distinct=False)
        return books[id(book)]

    def change(part: Part) -> Part:
        if isinstance(part, Text):
            return Text(rewrite(part.text))
        if isinstance(part, Block):
            return replace(part, parts=tuple(map(change, part.parts)))
        changed: Any = replace(
            part, book=change_book(part.book), prefix=rewrite(part.prefix), suffix=rewrite(part.suffix)
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

    def in_vocabulary(word: str) -> bool:
        try:
            return unk_id not in tokenizer.encode(word)
        except ValueError:  # raised by a word-level tokenizer
            return False

    texts = [*(text for unit in template.prompt.units for text in unit.texts), *template.actions]
    words = {word for text in texts for word in text.split()}
    return sorted({word.rstrip(",:") for word in words if not in_vocabulary(word)})
