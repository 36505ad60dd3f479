"""The prompts of BK-RL, with the parts of the published ones (bkrl reference, sections 4 to 6)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from llmrl_jax.chat import strip_thinking
from llmrl_jax.systems.bkrl.worlds import World


# --- programs ---------------------------------------------------------------------------------------------------------

CODE_ROLE = """\
You are a reward engineer. You write a function that measures how well the behaviour of an agent agrees with background
knowledge of its world: high where the agent is in a good situation and acts sensibly, low where it is not. The task of
the agent is not known, so the function must be useful for every task of this world. It must not name one target."""

CODE_CONTRACT = """\
Write one function in Python, for JAX:

def compute_potential(obs, past_obs, past_actions):
    ...
    return potential, {{"name of a component": value, ...}}

obs has the arrays above for the current observation. past_obs has the same arrays for the last {window} observations,
with a leading axis of {window}: past_obs[...][-1] is the observation before the current one. past_actions is an int32
array of shape ({window},): past_actions[-1] led from past_obs[...][-1] to obs; -1 stands for actions before the episode
began, where past observations repeat the first one. potential and the components are float32 scalars.

The function is traced by JAX. Use jnp and lax, which are there already: import nothing. Do not use if or while on
values of arrays: use jnp.where, comparisons and sums. Loops run over range(number) only. Change arrays by
x.at[index].set(value). Divide by nothing that can be zero. Helper functions are allowed. For example:

def compute_potential(obs, past_obs, past_actions):
    changed = jnp.any(obs["{part}"] != past_obs["{part}"][-1])
    waited = jnp.mean((past_actions == {waits}).astype(jnp.float32))
    return changed.astype(jnp.float32) - waited, {{"changed": changed, "waited": waited}}"""

CODE_WRITE = """\
Write compute_potential for this world. Think about what is good in most tasks. Put the program into one Markdown block
that begins with ```python and ends with ```."""

CODE_REPAIR = """\
The program was refused: {reason}
Correct it, and write the whole program again, in one Markdown block that begins with ```python."""

CODE_IMPROVE = """\
These are situations from play, with the values of your program for them:

{samples}

{compared}First say how the program can be improved, given these examples. Then write the whole improved program, in one
Markdown block that begins with ```python."""

CODE_COMPARED = """\
In other episodes, the rank correlation of the potential with the rewards that follow is {correlation:+.3f}. """


def code_system(world: World, window: int) -> str:
    """The instructions for who writes a program. **Arguments:** `window`, past observations."""
    part = "image" if world.family == "babyai" else "inventory"
    contract = CODE_CONTRACT.format(window=window, part=part, waits=world.verbs.index("do nothing"))
    return "\n\n".join((CODE_ROLE, world.about, world.arrays, contract))


def code_repair(reason: str) -> str:
    """The request for a program in place of a refused one."""
    return CODE_REPAIR.format(reason=reason)


def code_improve(captions: Sequence[str], values: Sequence[Mapping[str, float]], correlation: float | None) -> str:
    """The request for a better program. **Arguments:** `captions`, of windows; `values`, the potential and its
    components for each; `correlation`, of the potential with rewards; None: there were none to compare it with."""
    samples = []
    for i, (said, named) in enumerate(zip(captions, values), 1):
        numbers = "\n".join(f"{name}: {value:.4f}" for name, value in named.items())
        samples.append(f"Sample#{i}\n{said.strip()}\n{numbers}")
    compared = "" if correlation is None else CODE_COMPARED.format(correlation=correlation)
    return CODE_IMPROVE.format(samples="\n\n".join(samples), compared=compared)


# --- preferences ------------------------------------------------------------------------------------------------------

PREFERENCE_ROLE = """\
You compare two pieces of the play of an agent. The goal of the agent is not known; judge by common sense and by what
you know about such worlds, which piece is better.

{about}

You get the descriptions of two pieces, A and B. """

PREFERENCE_WRITTEN = """\
First write [Thoughts], briefly: do the actions that were chosen have an effect; is the behaviour consistent; can it
lead to a reward? Then write [Rank], and after it one of: A > B, B > A, A = B. Avoid A = B where you can."""

PREFERENCE_CHOSEN = """\
Do the actions that were chosen have an effect; is the behaviour consistent; can it lead to a reward? Write [Rank], and
after it one of: A > B, B > A."""

PREFERENCE_PAIR = """\
Description A:
{first}

Description B:
{second}

Write {parts}."""

RANKS = ("[Rank] A > B", "[Rank] B > A")
"""The answers to choose from, where a model chooses."""
_RANK = re.compile(r"\[rank\](.*)", re.IGNORECASE | re.DOTALL)
_ANSWER = re.compile(r"\b([AB])\s*([><=])\s*([AB])\b")


def preference_system(world: World, thoughts: bool = True) -> str:
    """The instructions for who compares windows. **Arguments:** `thoughts`, whether they are written before the
    answer."""
    asked = PREFERENCE_WRITTEN if thoughts else PREFERENCE_CHOSEN
    return PREFERENCE_ROLE.format(about=world.about) + asked


def preference_pair(first: str, second: str, thoughts: bool = True) -> str:
    """The question about two windows in words."""
    parts = "[Thoughts] and then [Rank]" if thoughts else "[Rank]"
    return PREFERENCE_PAIR.format(first=first.strip(), second=second.strip(), parts=parts)


def read_preference(reply: str) -> float | None:
    """1 if B is better, 0 if A is, 0.5 for a tie; None if the reply, without its thoughts, does not say it after
    [Rank], or says several things."""
    found = _RANK.search(strip_thinking(reply))
    answers = set()
    for left, sign, right in _ANSWER.findall(found[1] if found else ""):
        if left == right:
            return None
        better = {">": left, "<": right, "=": ""}[sign]
        answers.add({"A": 0.0, "B": 1.0, "": 0.5}[better])
    return answers.pop() if len(answers) == 1 else None


# --- goals ------------------------------------------------------------------------------------------------------------

GOAL_ROLE = """\
You help an agent in a game. From what the agent did and sees, propose goals for it.

{about}

Rules: a goal uses only actions and objects of this game, and is about what the agent sees. It is precise, and can be
used again in other situations: it names no numbers of steps, distances or directions. No two goals say the same. Give a
few goals, not many, and use earlier ones again where they fit. Answer with a Markdown list, one goal per line, each
line beginning with "- "."""

GOAL_WINDOW = """\
{said}

Earlier goals:
{known}

Propose goals for the current observation, as a list. Use earlier goals where they fit, and improve on them."""


def goal_system(world: World) -> str:
    """The instructions for who proposes goals."""
    return GOAL_ROLE.format(about=world.about)


def goal_window(said: str, known: Sequence[str]) -> str:
    """The question about one window. **Arguments:** `said`, the window in words; `known`, earlier goals."""
    earlier = "\n".join(f"- {goal}" for goal in known) or "(none)"
    return GOAL_WINDOW.format(said=said.strip(), known=earlier)


def read_goals(reply: str) -> list[str]:
    """The goals of a reply without its thoughts: lines that begin with "- ", without repetition, and without those that
    have characters that cannot be printed (a half of a surrogate pair has no UTF-8)."""
    lines = (line.strip() for line in strip_thinking(reply).splitlines())
    goals = (line[2:].strip() for line in lines if line.startswith("- "))
    return list(dict.fromkeys(goal for goal in goals if goal and goal.isprintable()))
