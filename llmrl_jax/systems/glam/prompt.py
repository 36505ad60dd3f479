"""GLAM's prompt, and the slots filled by an observation (glam reference, section 2.4)."""

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
from envs_jax.babyai.text.english import mission_limits, view_limits
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
    between: str = " \n "
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
    """**Raises** `TypeError` for an environment without what GLAM's prompt consists of."""
    parts = getattr(env.observation_space(env.default_params), "spaces", {})
    if missing := [name for name in ("text", "mission") if name not in parts]:
        raise TypeError(
            f"{env.id!r} has no {' and '.join(map(repr, missing))} to observe: GLAM's prompt states a goal (its "
            "'mission') and describes what is seen (its 'text'). It plays the ids that begin with BabyAI-Text/ (`llmrl "
            "envs list BabyAI-Text`); `llmrl ellm` plays Crafter and Housekeep, `llmrl rl` worlds without text"
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
        kept = parts["actions"].shape[-1] + 1
        raise ValueError(f"the prompt wants {history} observations, but PromptHistory keeps {kept}")
    names = tuple(actions) if actions is not None else tuple(n for n in env.action_names if n != "done")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"the actions {list(names)} are none, or two of them are the same words")
    if language == "french":
        names = tuple(french.ACTIONS.get(name, name) for name in names)
    size = parts["text"].shape[-1]
    level, faithful = inner.level, inner.faithful  # type: ignore[attr-defined]
    rows, columns = level.rooms.rows, level.rooms.columns
    sentences = view_limits(size, doors=rows * (columns - 1) + columns * (rows - 1), faithful=faithful)
    longest, words = mission_limits(level.kinds, len(level.clauses), level.located)
    spoken = books("faithful" if faithful else "glam", language)
    view, goals = spoken.view, spoken.missions
    mission = Slot("mission", goals, longest, prefix=" ", suffix="", limits=words)
    said = replace(WORDINGS[language], **(wording or {}))
    if not list_actions:
        said = replace(said, actions="")
    before, after = said.sentence
    texts = [Slot(f"text_{k}", view, size, prefix=before, suffix=after, limits=sentences) for k in range(history)]
    varies = bool(said.actions) and MASK in parts
    return GlamPrompt(Prompt(*_template(said, names, varies, mission, texts)), names, history, varies)


def _listed(wording: Wording, names: tuple[str, ...], varies: bool) -> Iterator[Part]:
    """The list of actions: all of them, or the available ones."""
    yield Text(wording.actions)
    if varies:
        book = Phrasebook(names, name="actions")
        once = tuple(Limit((i,), 1) for i in range(len(names)))
        yield Slot("offered", book, max(1, len(names) - 1), prefix=" ", suffix=",", limits=once)
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
        yield from (*first, Text(wording.between), *second)
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
