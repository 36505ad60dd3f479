"""Held-out episodes: achievements, the Crafter score, returns, and the categories of goals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax.env import Environment
from llmrl_jax.agents.evaluate import make_evaluator
from llmrl_jax.agents.play import Step
from llmrl_jax.core.activity import doing
from llmrl_jax.core.statistics import mean_interval, wilson
from llmrl_jax.parallel import Placement
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.run.pytrees import mesh_of
from llmrl_jax.systems.ellm.facts import WorldFacts
from llmrl_jax.systems.ellm.suggesters import CATEGORIES


@struct.dataclass
class Played:
    """`E` episodes, as NumPy arrays."""

    unlocked: Any
    """bool `[E, achievements]`."""
    earned: Any
    """float32 `[E]`, the sum of the rewards for goals."""
    episode_return: Any
    """float32 `[E]`, of the world's own rewards."""
    length: Any
    """int32 `[E]`."""
    tally: Any
    """int32 `[E, 2, 4]`, suggestions and rewards of each category."""
    unknown: Any
    """float32 `[E]`, the share of steps in states that had not been answered."""
    measures: Mapping[str, Any] = struct.field(default_factory=dict)
    """float32 `[E]` each, the world's `measures`."""


def make_player(env: Environment, facts: WorldFacts, policy: Any, episodes: int) -> Callable[..., Played]:
    """Build `play(params, frozen, env_params, key, greedy=False) -> Played`, compiled once.

    **Arguments:** `env`, `Suggested`, not batched; `policy`, see `llmrl_jax.rl.policy.Policy`. The parameters of
    the world, which have the known suggestions, are an argument: they change while a run learns.
    """

    def outcomes(step: Step) -> Played:
        info = step.info
        kinds = [
            jnp.stack([info[f"episode_{what}/{kind}"] for kind in CATEGORIES], -1) for what in ("suggested", "paid")
        ]
        return Played(
            unlocked=info["achievements"] > 0,
            earned=info["episode_earned"],
            episode_return=info["episode_return"],
            length=info["episode_length"],
            tally=jnp.stack(kinds, axis=1).astype(jnp.int32),
            unknown=info["episode_unknown"],
            measures={name: info[f"episode_{name}"] for name in facts.measures},
        )

    evaluate = make_evaluator(env, None, policy, episodes=episodes, lanes=episodes, outcomes=outcomes)

    def play(params: Any, frozen: Any, env_params: Any, key: jax.Array, greedy: bool = False) -> Played:
        params, frozen, env_params, key = _committed((params, frozen, env_params, key))
        return evaluate(params, frozen, key, greedy=greedy, env_params=env_params)

    return play


def play_random(env: Environment, facts: WorldFacts, env_params: Any, key: jax.Array, episodes: int) -> Played:
    """Episodes of random actions, with the starts of `make_player` for the same key."""
    play = make_player(env, facts, RandomPolicy(facts.actions), episodes)
    with doing("random actions"):
        return play((), (), env_params, key)


def _committed(tree: Any) -> Any:
    """Arrays that stay where they are, or are on every device of the mesh of the others: jit compiles again where the
    same arrays could move in one call and not in the next, as those of a new state and of one that a run has
    updated."""
    arrays = jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jnp.asarray(x), tree)
    mesh = mesh_of(arrays)
    if mesh is not None:
        return Placement(mesh).device_put(arrays)
    return jax.tree.map(lambda x: jax.device_put(x, x.sharding), arrays)


def crafter_score(success: np.ndarray) -> float:
    """Crafter's score in percent (Hafner, 2109.06780): `exp(mean ln(1 + s)) - 1` over achievements.

    **Arguments:** `success`, the fraction of episodes with each achievement.
    """
    return float(np.exp(np.mean(np.log1p(100 * np.asarray(success, np.float64)))) - 1)


def summarise(facts: WorldFacts, played: Played) -> dict[str, float]:
    """Numbers about episodes, by name: means with the ends of their 95% intervals, the score, success per
    achievement, and suggestions and rewards per category."""
    count = len(played.length)
    out: dict[str, float] = {"episodes": float(count)}
    means = {
        "achievements": played.unlocked.sum(axis=1),
        "earned": played.earned,
        "episode_return": played.episode_return,
        "episode_length": played.length,
        **played.measures,
    }
    if not facts.achievements:
        del means["achievements"]
    for name, values in means.items():
        interval = mean_interval(values.astype(np.float64))
        out |= {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
    if facts.achievements:
        out["score"] = crafter_score(played.unlocked.mean(axis=0))
    out["unknown"] = float(played.unknown.mean())
    for name, won in zip(facts.achievements, played.unlocked.T, strict=True):
        rate = wilson(int(won.sum()), count)
        out |= {f"unlocked/{name}": rate.mean, f"unlocked_low/{name}": rate.low, f"unlocked_high/{name}": rate.high}
    return out | category_shares(played.tally.sum(axis=0))


def category_shares(tally: np.ndarray) -> dict[str, float]:
    """How many goals were suggested and rewarded, and the share of each category.

    **Arguments:** `tally`, int `[2, 4]`: suggestions, rewards. **Returns:** shares are nan where there are none."""
    out: dict[str, float] = {}
    for what, row in zip(("suggested", "paid"), tally):
        total = int(row.sum())
        out[what] = float(total)
        out |= {f"{what}/{kind}": int(n) / total if total else math.nan for kind, n in zip(CATEGORIES, row)}
    return out


def report(found: Mapping[str, Mapping[str, float]], facts: WorldFacts) -> str:
    """Results of several agents as tables: means with intervals, success per achievement, categories of goals."""
    from llmrl_jax.report.figures import text_table

    def interval(values: Mapping[str, float], name: str) -> str:
        low, high = values[f"{name}_low"], values[f"{name}_high"]
        return f"{values[name]:.2f}" + (f" [{low:.2f}, {high:.2f}]" if math.isfinite(low) else "")

    def share(values: Mapping[str, float], name: str) -> str:
        return "-" if math.isnan(values[name]) else f"{100 * values[name]:.1f}%"

    names = list(found)
    rows = [["", *names]]
    first = {"achievements": "achievements per episode"} if facts.achievements else {}
    labels = {**first, **facts.measures, "earned": "reward for goals", "episode_length": "steps"}
    rows += [[label, *(interval(values, name) for values in found.values())] for name, label in labels.items()]
    if facts.achievements:
        rows.append(["Crafter score", *(f"{values['score']:.2f}%" for values in found.values())])
    tables = [text_table(rows)]
    known = [name for name in facts.achievements if any(values[f"unlocked/{name}"] > 0 for values in found.values())]
    if known:
        rows = [["episodes with", *names]]
        rows += [[name, *(share(values, f"unlocked/{name}") for values in found.values())] for name in known]
        tables.append(text_table(rows))
    if any(values["suggested"] for values in found.values()):
        tables.append(categories_table(found))
    return "\n\n".join(tables)


def categories_table(found: Mapping[str, Mapping[str, float]]) -> str:
    """The four-way table: shares of suggested and of rewarded goals by category, for several agents."""
    from llmrl_jax.report.figures import text_table

    rows = [["goals", "", "count", *(kind.replace("_", " ") for kind in CATEGORIES)]]
    for name, values in found.items():
        for what, label in (("suggested", "suggested"), ("paid", "rewarded")):
            if not values[what]:
                continue
            shares = (values[f"{what}/{kind}"] for kind in CATEGORIES)
            cells = ("-" if math.isnan(x) else f"{100 * x:.1f}%" for x in shares)
            rows.append([name, label, f"{values[what]:.0f}", *cells])
    return text_table(rows)
