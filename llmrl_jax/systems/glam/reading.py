"""Reading before imitation: text about what stands where, from the world's own captions, asked and answered.

A pre-trained model knows that "a blue key" in one place of a text refers to what another place says of the blue key. A
model drawn at random takes long to find that out from actions alone: swapping the goal of a GoToLocal prompt moved the
action probabilities of one that had imitated 576,000 of them by 0.006 (`docs/systems/glam.md`). Here the end of every
prompt repeats its captions, the goal's first (without its name) and the others in any order, so that most of what is to
be learnt is reference. It is part of the stand-in for pre-training, and summaries say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.bot.expert import expert_action
from envs_jax.env import innermost
from envs_jax.resets import VectorEnv
from llmrl_jax.tuning import Example


if TYPE_CHECKING:
    from llmrl_jax.lm.tokens import WordTokenizer
    from llmrl_jax.systems.glam.build import Glam


THING = r"\w+ (?:ball|box|key|door)"
NAMED = re.compile(rf"(?:a|the) ({THING})")
SEEN = re.compile(rf"You see an? (?:open |closed |locked )?({THING}) ([^,]+),")


@dataclass(frozen=True)
class ReadingConfig:
    """The reading lesson."""

    updates: int = 0
    """Gradient steps; 0: no lesson."""
    env: str = "BabyAI-Text/GoToLocalS7N4-v0"
    """The world whose captions are read; its words are those of the world that is learnt."""
    rows: int = 40_000
    """Texts, each read as often as the updates allow."""
    batch_size: int = 32
    """Texts in a gradient step."""
    learning_rate: float = 2e-3
    """Adam's peak, after 5% of warm-up, decayed by a cosine to a tenth."""
    invented: float = 0.0
    """Share of the texts in which about half of the colours and kinds of things go by words that mean nothing: spare
    tokens (`EmbeddedConfig.spare_words`), drawn anew for each text. What is read is then that names refer, not only
    which."""

    def __post_init__(self):
        if not 0 <= self.invented <= 1:
            raise ValueError(f"invented is {self.invented}; a share between 0 and 1 is needed")


def question(text: str, order: np.random.Generator) -> tuple[list[str], list[bool]] | None:
    """What follows a prompt: pieces of text, and which of them are to be learnt. None where nothing is in view.

    Where the things of the goal are comes first, in the goal's order and without their names, as the prompt has just
    said what the goal is; those that are in view, of several alike the nearest. The others' names are given: which
    comes next is nobody's to know.
    """
    seen: dict[str, str] = {}
    for name, where in sorted(SEEN.findall(text), key=lambda found: sum(map(int, re.findall(r"\d+", found[1])))):
        seen.setdefault(name, where)
    goal = [name for name in dict.fromkeys(NAMED.findall(text.partition("You see")[0])) if name in seen]
    names = list(seen)
    order.shuffle(names)
    pieces = [f" {seen[name]}," for name in goal]
    learn = [True] * len(goal)
    for name in (name for name in names if name not in goal):
        pieces += [f" {name}", f" {seen[name]},"]
        learn += [False, True]
    return (pieces, learn) if pieces else None


def invented_names(text: str, ids: list[int], tokenizer: WordTokenizer, draw: np.random.Generator) -> list[int]:
    """`ids` with about half of the colours and kinds of things that `text` sees in other words: spare tokens."""
    words = sorted({word for name, _ in SEEN.findall(text) for word in name.split()})
    renamed = [word for word, it in zip(words, draw.random(len(words)) < 0.5, strict=True) if it]
    other: dict[int | None, int] = {}
    for word, spare in zip(renamed, draw.choice(tokenizer.spare_ids, len(renamed), replace=False), strict=True):
        forms = (word, *(f"{word}{mark}" for mark in tokenizer.MARKS))
        other |= dict.fromkeys(map(tokenizer.backend.token_to_id, forms), int(spare))
    return [other.get(i, i) for i in ids]


def reading_rows(
    glam: Glam, count: int, seed: int, noise: float = 0.5, batch: int = 512, invented: float = 0.0
) -> list[Example]:
    """`count` texts from states that an expert comes by, half of its actions random.

    **Arguments:** `glam`, the program whose world is looked at and whose prompts are gone on with; `seed`; `invented`,
    see `ReadingConfig`.
    **Raises:** `ValueError` for invented words without spare tokens for them.
    """
    tokenizer: Any = glam.tokenizer
    if invented and len(getattr(tokenizer, "spare_ids", ())) < 16:  # six colours and four kinds are drawn for at most
        raise ValueError(
            f"invented is {invented}, which needs a model of 16 spare tokens at least: give embedded.spare_words, or "
            "leave it 0"
        )
    env: Any = glam.env
    params = glam.env_params
    worlds: Any = VectorEnv(env, batch, policy="pool", pool_size=batch)
    num_actions = env.action_space(params).n

    @jax.jit
    def play(obs: Any, state: Any, key: jax.Array) -> Any:
        def step(carry, key):
            obs, state = carry
            best = jax.vmap(lambda s: expert_action(s, env, True))(innermost(state.env))
            a, b, c = jax.random.split(key, 3)
            random = jax.random.randint(b, best.shape, 0, num_actions)
            action = jnp.where(jax.random.bernoulli(a, noise, best.shape), random, jnp.minimum(best, num_actions - 1))
            obs, state, *_ = worlds.step(c, state, action, params)
            return (obs, state), None

        (obs, state), _ = jax.lax.scan(step, (obs, state), jax.random.split(key, 4))
        state = worlds.refresh(jax.random.fold_in(key, 4), state, params)
        return obs, state, *glam.policy.prompts(obs)

    order = np.random.default_rng(seed)
    key = jax.random.key(seed)
    obs, state = jax.jit(worlds.reset)(key, params)
    rows: list[Example] = []
    while len(rows) < count:
        key = jax.random.fold_in(key, len(rows))
        obs, state, tokens, lengths = play(obs, state, key)
        for row, length in zip(np.asarray(tokens), np.asarray(lengths), strict=True):
            ids = row[:length].tolist()
            text = tokenizer.backend.decode(ids)
            asked = question(text, order)
            if asked is None:
                continue
            learn = [False] * len(ids)
            for piece, taught in zip(*asked, strict=True):
                new = tokenizer.encode(piece)
                ids += new
                learn += [taught] * len(new)
            if invented and order.random() < invented:
                ids = invented_names(text, ids, tokenizer, order)
            rows.append(Example(ids, learn))
    return rows[:count]
