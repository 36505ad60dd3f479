"""How good the suggestions of a chat model are: the four-way table over states that an agent meets."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, UInt32

from llmrl_jax.agents.play import actor_of, key_pairs, make_player
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.lm.encoder_names import resolved
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.run.folder import opened
from llmrl_jax.systems.ellm.asking import Asker
from llmrl_jax.systems.ellm.build import Ellm, build, make_env
from llmrl_jax.systems.ellm.closed_accuracy import closed_accuracy
from llmrl_jax.systems.ellm.evaluation import categories_table, category_shares
from llmrl_jax.systems.ellm.facts import ClosedFacts, Facts, facts_of
from llmrl_jax.systems.ellm.goals import unpacked
from llmrl_jax.systems.ellm.prompts import choose_shots
from llmrl_jax.systems.ellm.runs import HELD_OUT, load_run, refuse_other_settings
from llmrl_jax.systems.ellm.scripted import ScriptedSuggester
from llmrl_jax.systems.ellm.settings import AccuracyRun, Half, StatesMet
from llmrl_jax.systems.ellm.suggesters import CATEGORIES
from llmrl_jax.workflows.chat_model import make_chat


CHUNK = 25


@dataclasses.dataclass(frozen=True)
class Met:
    """`S` different states."""

    keys: UInt32[np.ndarray, " S"]
    feasible: Bool[np.ndarray, "S A"]
    """The oracle's goals where a key was met first; a key does not say how many items are held."""


def meet(env: Any, env_params: Any, facts: Facts, policy: Any, weights: Any, key: jax.Array, episodes: int) -> Met:
    """The different states of some episodes, in the order of their keys.

    **Arguments:** `env`, whose observations have the key, and as goals the oracle's, without a novelty filter;
    `weights`, the policy's parameters and frozen part."""
    play = make_player(
        env,
        env_params,
        actor_of(policy),
        lambda obs, state: {name: obs[name] for name in ("key", "goals")},
        end=False,
        chunk=CHUNK,
    )
    played = list(play(weights, key_pairs(key, episodes)))
    seen = jax.tree.map(lambda *x: np.concatenate(x), *(one.seen for one in played))
    order = np.argsort(np.concatenate([np.arange(len(one)) for one in played]), kind="stable")  # step by step
    every, masks = seen["key"][order], seen["goals"][order]
    distinct, first = np.unique(every, return_index=True)
    return Met(distinct, np.asarray(unpacked(jnp.asarray(masks[first]), len(facts.captions))))


def tally(facts: Facts, met: Met, goals: Sequence[Sequence[str] | None]) -> dict[str, float]:
    """The four-way table of suggestions, and how many of the oracle's goals they contain.

    **Arguments:** `goals`, the suggestions in each state; None where a reply could not be read."""
    counts = dict.fromkeys(CATEGORIES, 0)
    hits = wanted = 0
    for feasible, suggested in zip(met.feasible, goals, strict=True):
        wanted += int(feasible.sum())
        for goal in suggested or ():
            if goal not in facts.captions:
                counts["nonsensical"] += 1
                continue
            i = facts.captions.index(goal)
            hits += int(feasible[i])
            kind = "good" if feasible[i] else "poorly_timed" if facts.valid[i] else "bad"
            counts[kind] += 1
    shares = category_shares(np.array([[counts[kind] for kind in CATEGORIES], [0] * len(CATEGORIES)]))
    return shares | {
        "states": float(len(goals)),
        "unreadable": float(sum(goal is None for goal in goals)),
        "recall": hits / wanted if wanted else float("nan"),
    }


def states_met(config: StatesMet, seed: int) -> tuple[Ellm, Met]:
    """The states that an agent meets under the oracle's goals, or that random play meets, and the world's parts."""
    oracle: dict[str, Any] = {"suggester": "oracle", "once": False, "encoder": resolved(config.ellm.encoder)}
    key = jax.random.fold_in(jax.random.key(seed), HELD_OUT)
    if config.from_run:
        _, before, state, _ = load_run(Path(config.from_run), config.checkpoint)
        refuse_other_settings(config.ellm, AccuracyRun().ellm, before.config, ("encoder", "suggester", "goals"))
        settings, policy, weights = before.config, before.policy, (state.params, state.frozen)
        settings = dataclasses.replace(settings, **_oracle_only(oracle))
    else:
        settings = dataclasses.replace(config.ellm, **_oracle_only(oracle))
        policy, weights = None, ((), ())
    made = build(settings, keys=True)
    if not isinstance(made.facts, Facts):
        raise ValueError(
            f"the goals of {settings.env} are closed-form, and the answers about them do not depend on states: give "
            f"llmrl ellm accuracy --env {settings.env}, without --from"
        )
    policy = policy or RandomPolicy(len(made.facts.captions))
    met = meet(made.env, made.env_params, made.facts, policy, weights, key, config.episodes)
    return made, _sample(of_half(met, config.half), config.states, seed)


def of_half(met: Met, half: Half) -> Met:
    """The states of one half: in `training` if the SHA-256 of the four bytes of their key, lowest first, begins with an
    even byte."""
    if half == "both":
        return met
    digests = [hashlib.sha256(int(key).to_bytes(4, "little")).digest() for key in met.keys]
    chosen = np.array([digest[0] % 2 == (half == "held-out") for digest in digests], bool)
    return Met(met.keys[chosen], met.feasible[chosen])


def accuracy(config: AccuracyRun, states: tuple[Ellm, Met] | None = None) -> dict[str, Any]:
    """Ask a chat model about states, print the table, and write `accuracy.json` and `suggestions.jsonl`.

    **Arguments:** `states`, of `states_met`, to ask several models about them; None: those that the settings describe.
    **Returns:** the numbers of `tally`, or with closed-form goals those of `closed_accuracy`. **Raises:** what `build`,
    `load_run` and the chat model raise."""
    goals = config.ellm.goals
    shots = choose_shots(goals.shots, goals.examples)
    config.chat.check_usable()
    facts = facts_of(make_env(config.ellm))
    if isinstance(facts, ClosedFacts):
        return closed_accuracy(config, facts)
    made, met = states_met(config, config.run.seed) if states is None else states
    with opened(config.run, "ellm-accuracy") as folder:
        configs.save_config(config, folder / "config.json")
        chat = make_chat(config.chat, ScriptedSuggester(made.facts), folder)
        asker = Asker(made.facts, made.encoder, chat.model, config.chat.sampling, 1, goals.parse, shots)
        try:
            with doing(f"asking {chat.model.name} about {len(met.keys)} states"):
                suggested = asker.goals_of([int(key) for key in met.keys])
        finally:
            chat.close()
        found = tally(made.facts, met, suggested)
        spent = chat.spent
        about = {"model": chat.model.name, "env": made.config.env, "seed": config.run.seed}
        configs.save_config({**about, **found, "calls": spent.calls, "usd": spent.usd}, folder / "accuracy.json")
        _write(folder / "suggestions.jsonl", made.facts, met, suggested)
    print(categories_table({chat.model.name: found}))
    print(
        f"{int(found['states'])} states, {int(found['unreadable'])} replies that could not be read; "
        f"{100 * found['recall']:.1f}% of the oracle's goals were suggested; {spent.calls} requests"
    )
    print(f"Everything is in {folder}")
    return found


def _oracle_only(options: dict[str, Any]) -> dict[str, Any]:
    """The oracle's options, with those that only other suggesters read at their defaults."""
    from llmrl_jax.systems.ellm.config import EllmConfig

    default = EllmConfig()
    return options | {name: getattr(default, name) for name in ("goals", "uniform_goals", "fixed", "intrinsic")}


def _sample(met: Met, most: int, seed: int) -> Met:
    if len(met.keys) <= most:
        return met
    chosen = np.sort(np.random.default_rng(seed).choice(len(met.keys), most, replace=False))
    return Met(met.keys[chosen], met.feasible[chosen])


def _write(path: Path, facts: Facts, met: Met, goals: Sequence[Sequence[str] | None]) -> None:
    """One line per state: its key and text, the suggestions, the oracle's goals."""
    import json

    from llmrl_jax.core.files import write_whole

    lines = []
    for key, feasible, suggested in zip(met.keys.tolist(), met.feasible, goals, strict=True):
        oracle = [facts.captions[i] for i in np.flatnonzero(feasible)]
        row = {"key": key, "state": facts.describe(key), "suggested": suggested, "oracle": oracle}
        lines.append(json.dumps(row) + "\n")
    write_whole(path, "".join(lines))
