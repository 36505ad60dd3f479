"""GLAM's prompt, and what an observation puts into it (glam reference, section 2.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, Int

from envs_jax.babyai import french
from envs_jax.babyai.books import books
from envs_jax.babyai.text import mission_limits, view_limits
from envs_jax.env import Environment, Wrapper
from envs_jax.registry import nearest
from envs_jax.text import Block, Choice, CompiledPrompt, Literal as Text, Part, Phrasebook, Prompt, Slot, Tokenizer


HEADS = {
    "english": ("Possible action of the agent:", "Goal of the agent:"),
    "french": ("Actions possibles pour l'agent:", "But de l'agent:"),
}
"""What stands before the list of actions and before the goal."""


@dataclass(frozen=True)
class GlamPrompt:
    """The template, and the function from the observations of `envs_jax.history.PromptHistory` to its slots."""

    prompt: Prompt
    actions: tuple[str, ...]
    """The answers, in the order of the world's actions; the candidates to be scored."""
    history: int
    """Observations in the window, at most."""

    def slots(self, obs: Mapping[str, Array]) -> dict[str, Array]:
        """The slots for the observation of one environment."""
        slots = {"mission": obs["mission"]}
        for k in range(self.history):
            slots[f"text_{k}"] = obs["text"][k]
            if k:
                slots[f"action_{k - 1}"] = obs["actions"][k - 1]
                slots[f"observation_{k}"] = obs["count"] > k
        return slots

    def render(self, obs: Mapping[str, Array]) -> str:
        """The prompt in words, for the observation of one environment, on the host."""
        return self.prompt.render(self.slots(obs))

    def compile(self, tokenizer: Tokenizer, max_length: int | None = None, **options: Any) -> CompiledPrompt:
        """See `envs_jax.text.Prompt.compile`; `heal=False` is the released code's own tokenization of the actions."""
        return self.prompt.compile(tokenizer, max_length, **options)

    def batched(self, compiled: CompiledPrompt) -> Callable[[Any], tuple[Int[Array, "B S"], Int[Array, " B"]]]:
        """The function from batched observations to tokens and lengths that a policy calls inside jit."""
        return jax.vmap(lambda obs: compiled(self.slots(obs)))


def glam_prompt(
    env: Environment,
    actions: Sequence[str] | None = None,
    *,
    history: int = 3,
    list_actions: bool = True,
    language: str | None = None,
) -> GlamPrompt:
    """GLAM's prompt for a BabyAI-Text world: the possible actions, the goal, and the last observations and actions.

    **Arguments:** `env`, wrapped in `PromptHistory(env, history)` or about to be; `actions`, the words for the
    world's first actions (default: its own names without "done", the canonical six); `history`, observations in the
    window; `list_actions`, whether the prompt begins with the list of actions (15 words that never change);
    `language`, "english" or "french", of the observations, the goal and GLAM's own action names; None: the world's.
    **Returns:** the template and what goes with it. Its slots are as narrow as the world's level allows.
    **Raises:** `ValueError` for another language, window or list of actions than can be, `TypeError` for a world
    without text.
    """
    inner = env.unwrapped if isinstance(env, Wrapper) else env
    if language is None:
        language = getattr(inner, "language", "english")
    if language not in HEADS:
        raise ValueError(f"no prompt in {language!r}{nearest(language, list(HEADS))}; english or french")
    observation = env.observation_space(env.default_params)
    parts = getattr(observation, "spaces", {})
    if "text" not in parts or "mission" not in parts:
        raise TypeError(f"{env.id!r} has no text; the ids of text worlds begin with BabyAI-Text/")
    if history < 1:
        raise ValueError(f"the prompt holds {history} observations; at least 1 is needed")
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
    texts = [Slot(f"text_{k}", view, size, suffix=", ", limits=sentences) for k in range(history)]
    heads = HEADS[language] if list_actions else ("", HEADS[language][1])
    return GlamPrompt(Prompt(*_template(heads, names, mission, texts)), names, history)


def _template(heads: tuple[str, str], names: tuple[str, ...], mission: Slot, texts: list[Slot]) -> Iterator[Part]:
    """The template, byte for byte: every observation ends in an open "Action k: ", which the next block answers."""
    if heads[0]:
        yield Text(heads[0] + ",".join(f" {name}" for name in names) + " \n ")
    yield from (Text(heads[1]), mission)
    book = Phrasebook(names, name="actions")
    for k, text in enumerate(texts):
        parts = (Text(f" \n Observation {k}: "), text, Text(f"\n Action {k}: "))
        if k:
            yield Block(f"observation_{k}", (Choice(f"action_{k - 1}", book), *parts))
        else:
            yield from parts
