"""A description of the environment for ProPS+, rendered from its specification and the policy's layout.

Counts, ranges, ids and indices are read from the objects that the search uses, which rules out the errors of the
published descriptions (props reference, section 3.4); `facts.FACTS` adds their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from envs_jax.env import Environment, Wrapper
from envs_jax.spaces import Box, Discrete
from llmrl_jax.agents.population import LONGEST
from llmrl_jax.core.checks import nearest
from llmrl_jax.systems.props.facts import FACTS, SAME, Facts
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.templates import fill, load, number


def facts_of(env: Environment) -> Facts:
    """The meaning of an environment's arrays. **Raises:** `KeyError`, with the nearest name, for an environment without
    facts."""
    id = env.id.partition("?")[0]
    id = SAME.get(id, id)
    if id not in FACTS:
        raise KeyError(
            f"there is no description of {env.id!r}{nearest(id, list(FACTS))} (pass facts=Facts(...), or hide=True)"
        )
    return FACTS[id]


def describe(
    env: Environment,
    env_params: Any,
    policy: Policy,
    *,
    hints: int = 0,
    hide: bool = False,
    facts: Facts | None = None,
    max_steps: int | None = None,
) -> str:
    """The section of a prompt about the environment: goal, state, actions, policy, reward, ends, hints.

    **Arguments:** `env` and `env_params`, as evaluated; `policy`, of the same environment; `hints`, 0 none, 1 a rule of
    behavior, 2 also its meaning for the parameters, or a map; `hide`, whether to omit all meanings, so that shapes,
    ranges and the policy remain; `facts` (None: those of `FACTS`); `max_steps`, the evaluator's step limit, if it is
    not the environment's own.
    **Raises:** `ValueError` for another level of hints, hints together with `hide`, or facts or a policy whose size is
    not the environment's; `KeyError` for an environment without facts.
    """
    if hints not in (0, 1, 2):
        raise ValueError(f"hints is {hints}; it is 0 (none), 1 (a rule) or 2 (a rule, and what it means here)")
    if hide and hints:
        raise ValueError(f"hints is {hints} and hide is true; a hint says what things mean, so let one of them go")
    if facts is None:
        facts = Facts("") if hide else facts_of(env)
    inner = env.unwrapped if isinstance(env, Wrapper) else env
    observations, actions = env.observation_space(env_params), env.action_space(env_params)
    discrete = isinstance(actions, Discrete)
    entries = _entries(observations, facts.observations, hide, "observation entries", env.id)
    components = [] if discrete else _entries(actions, facts.actions, hide, "action components", env.id)
    choices = list(env.action_names) if discrete else []
    sizes = (observations.n if isinstance(observations, Discrete) else len(entries), len(choices or components))
    if (policy.obs_size, policy.act_size, policy.discrete) != (*sizes, discrete):
        raise ValueError(
            f"the policy is for {policy.obs_size} observations and {policy.act_size} actions, but {env.id} has "
            f"{sizes[0]} and {sizes[1]}; make it of this world (make_policy)"
        )
    names = _Names(entries, choices, components, policy)
    table = getattr(inner, "table", None)
    words: dict[str, Any] = {"env": inner, "p": env_params, "act": names.act, "entry": names.entry}
    words |= {"weight": names.weight, "states": sizes[0], "actions": sizes[1]}
    if table is not None:
        possible = table.prob > 0
        words["rewards"] = sorted({float(r) for r in table.reward[possible]})
        chance = bool((possible.sum(-1) > 1).any())
        words["slip"] = " A move may go to one side of where it was meant to." if chance else ""

    def say(text: str) -> str:
        return fill(load(text), words)

    steps = getattr(env_params, "max_steps", None) if max_steps is None else max_steps
    limited = steps is not None and int(steps) <= LONGEST
    limit = f"It ends after {steps} steps at the latest." if limited else "There is no time limit."
    linear = policy.kind in ("linear", "linear_nobias", "sigmoid")
    levels = facts.hints[: hints if linear or "weight(" not in facts.hints[1] else min(hints, 1)]
    slots = {
        "hide": hide,
        "goal": say(facts.goal),
        "states": observations.n if isinstance(observations, Discrete) else None,
        "numbering": say(facts.states),
        "entries": entries,
        "choices": choices,
        "components": components,
        "formula": _formula(policy),
        "layout": _layout(policy, names.of_entries(hide), names.of_actions(hide)),
        "reward": say(facts.reward),
        "ends": say(facts.ends),
        "limit": limit,
        "hints": [say(hint) for hint in levels if hint],
    }
    return fill(load(name="environment.j2"), slots)


def _entries(space: Any, names: Sequence[str], hide: bool, what: str, id: str) -> list[dict[str, str]]:
    """The entries of a vector, with ranges; none for a discrete space."""
    if isinstance(space, Discrete):
        return []
    if not isinstance(space, Box):
        raise ValueError(f"{id} has {what} in {space}; only vectors and numbered ones can be described")
    size = math.prod(space.shape)
    if hide:
        names = [""] * size
    if len(names) != size:
        raise ValueError(f"{id} has {size} {what}, and its facts name {len(names)}: {list(names)}")
    low, high = (np.broadcast_to(np.asarray(b, np.float64), space.shape).ravel() for b in (space.low, space.high))
    return [{"name": name, "range": _range(a, b)} for name, a, b in zip(names, low, high)]


def _range(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return "unbounded"
    if math.isinf(low) or math.isinf(high):
        return f"at least {number(low)}" if math.isinf(high) else f"at most {number(high)}"
    return f"in [{number(low)}, {number(high)}]"


class _Names:
    """Looks up ids by names, so that ids in texts agree with the lists above them."""

    def __init__(self, entries, choices, components, policy: Policy):
        self._entries = [entry["name"] for entry in entries]
        self._actions = choices or [component["name"] for component in components]
        self._policy = policy

    def act(self, words: str) -> str:
        """`2 (accelerate right)`."""
        index = _find(words, self._actions, "action")
        return f"{index} ({self._actions[index]})"

    def entry(self, words: str) -> str:
        """`state[1]`."""
        return f"state[{_find(words, self._entries, 'observation entry')}]"

    def weight(self, entry: str, action: str) -> str:
        """`params[5]`, the weight of that entry for that action."""
        s, a = _find(entry, self._entries, "observation entry"), _find(action, self._actions, "action")
        return f"params[{s * self._policy.act_size + a}]"

    def of_entries(self, hide: bool) -> list[str]:
        """Each entry with its name in the layout."""
        return [
            f"state[{i}]" + (f" ({name.partition(' (')[0]})" if not hide else "")
            for i, name in enumerate(self._entries)
        ]

    def of_actions(self, hide: bool) -> str:
        """The meaning of one number per action, in order."""
        if self._policy.discrete:
            return f"actions 0 to {len(self._actions) - 1}, in order"
        if len(self._actions) == 1:
            return "action[0]"
        return f"action[0] to action[{len(self._actions) - 1}], in order"


def _find(words: str, names: Sequence[str], what: str) -> int:
    """The index of the one name that equals the words or begins with them."""
    places = [i for i, name in enumerate(names) if name == words] or [
        i for i, name in enumerate(names) if name.startswith(words)
    ]
    if len(places) != 1:
        raise ValueError(f"a text speaks of the {what} {words!r}, which fits {len(places)} of {list(names)}")
    return places[0]


def _formula(policy: Policy) -> str:
    """The policy's formula, in one sentence."""
    if policy.kind == "table":
        return "a table. The action in state s is params[s]."
    if policy.kind == "q_table":
        return (
            f"a table of values. In state s the action a with the largest params[{policy.act_size} * s + a] is taken."
        )
    bias = "" if policy.kind == "linear_nobias" else " + b"
    product = f"state @ W{bias}"
    size = f"W is {policy.obs_size} x {policy.act_size}"
    where = f" {size}; W and b are the parameters below."
    if policy.kind == "projection":
        where = (
            f" {size}; W and b, {policy.full_size} numbers, are a fixed linear function, unknown to you, of the "
            f"{policy.rank} parameters."
        )
    elif policy.kind == "linear_nobias":
        where = f" {size}; it is the parameters below."
    if policy.kind == "sigmoid":
        return f"squashed. The action is sigmoid({product}), component by component.{where}"
    if policy.discrete:
        return f"linear. The action with the largest score in {product} is taken.{where}"
    return f"linear. The action is {product}.{where}"


def _layout(policy: Policy, entries: list[str], actions: str) -> list[str]:
    """The layout of the parameters."""
    if policy.kind not in ("linear", "linear_nobias", "sigmoid"):
        return []
    width = policy.act_size
    lines = [
        f"{_span(s * width, width)}: the weight{'s' * (width > 1)} of {name} for {actions}"
        for s, name in enumerate(entries)
    ]
    if policy.kind != "linear_nobias":
        lines.append(f"{_span(len(entries) * width, width)}: the bias{'es' * (width > 1)} of {actions}")
    return lines


def _span(start: int, count: int) -> str:
    return f"params[{start}]" + (f" to params[{start + count - 1}]" if count > 1 else "")
