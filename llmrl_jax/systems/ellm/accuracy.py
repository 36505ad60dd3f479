"""The accuracy of a chat model's suggestions beside the oracle's (`llmrl ellm accuracy`), and the oracle's answers as
data to fine-tune a language model on, and as examples for prompts (`llmrl ellm answers`).

About open-ended goals a model is asked in states that an agent visits: the four-way table. About closed-form goals it
is asked for every pair of an object and a place, whatever the state: how often it agrees.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, UInt32

from llmrl_jax.agents.play import actor_of, key_pairs, make_player
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import refuse_unread
from llmrl_jax.core.files import write_whole
from llmrl_jax.lm.encoder_weights import resolved
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.run.folder import begin, opened
from llmrl_jax.systems.ellm import prompts
from llmrl_jax.systems.ellm.build import HELD_OUT, Ellm, build, load_run, make_env
from llmrl_jax.systems.ellm.closed_goals import ClosedGoalSpec, answers_of_run, counts_line, pair_counts
from llmrl_jax.systems.ellm.config import (
    AccuracyRun,
    AnswersRun,
    EllmConfig,
    Split,
    StatesConfig,
    refuse_other_settings,
)
from llmrl_jax.systems.ellm.eval import categories_table, category_shares
from llmrl_jax.systems.ellm.goals import CATEGORIES, goal_spec_for, unpacked
from llmrl_jax.systems.ellm.open_goals import Asker, OpenGoalSpec
from llmrl_jax.systems.ellm.scripted import ScriptedJudge, ScriptedSuggester
from llmrl_jax.workflows.chat_model import make_chat


CHUNK = 25


@dataclasses.dataclass(frozen=True)
class VisitedStates:
    """`S` different states."""

    keys: UInt32[np.ndarray, " S"]
    feasible: Bool[np.ndarray, "S A"]
    """The oracle's goals where a key occurred first; a key does not say how many items are held."""


def visit(env: Any, env_params: Any, policy: Any, weights: Any, key: jax.Array, episodes: int) -> VisitedStates:
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
    visited = jax.tree.map(lambda *x: np.concatenate(x), *(episode.observed for episode in played))
    order = np.argsort(np.concatenate([np.arange(len(episode)) for episode in played]), kind="stable")  # step by step
    keys, masks = visited["key"][order], visited["goals"][order]
    distinct, first = np.unique(keys, return_index=True)
    return VisitedStates(distinct, np.asarray(unpacked(jnp.asarray(masks[first]), env.spec.num_goals)))


def category_counts(
    spec: OpenGoalSpec, states: VisitedStates, goals: Sequence[Sequence[str] | None]
) -> dict[str, float]:
    """The four-way table of suggestions, and how many of the oracle's goals they contain.

    **Arguments:** `goals`, the suggestions in each state; None where a reply could not be read."""
    counts = dict.fromkeys(CATEGORIES, 0)
    hits = feasible_goals = 0
    for feasible, suggested in zip(states.feasible, goals, strict=True):
        feasible_goals += int(feasible.sum())
        for goal in suggested or ():
            if goal not in spec.captions:
                counts["nonsensical"] += 1
                continue
            i = spec.captions.index(goal)
            hits += int(feasible[i])
            kind = "good" if feasible[i] else "poorly_timed" if spec.valid[i] else "bad"
            counts[kind] += 1
    shares = category_shares(np.array([[counts[kind] for kind in CATEGORIES], [0] * len(CATEGORIES)]))
    return shares | {
        "states": float(len(goals)),
        "unreadable": float(sum(goal is None for goal in goals)),
        "recall": hits / feasible_goals if feasible_goals else float("nan"),
    }


def visited_states(config: StatesConfig, seed: int) -> tuple[Ellm, VisitedStates]:
    """The components of a run with the oracle's goals, and the states that an agent or random play visits. Whatever its
    own goals were, the agent is given the oracle's there, also those that it has reached."""
    usual = EllmConfig()
    oracle: dict[str, Any] = {"suggester": "oracle", "once": False, "encoder": resolved(config.ellm.encoder)}
    oracle |= {name: getattr(usual, name) for name in ("goals", "uniform_goals", "fixed", "intrinsic")}
    key = jax.random.fold_in(jax.random.key(seed), HELD_OUT)
    settings, policy, weights = config.ellm, None, ((), ())
    if config.from_run:
        _, before, state, _ = load_run(Path(config.from_run), config.checkpoint)
        refuse_other_settings(config.ellm, AccuracyRun().ellm, before.config, ("encoder", "suggester", "goals"))
        settings, policy, weights = before.config, before.policy, (state.params, state.frozen)
    else:
        _refuse_unread(config.ellm, ("env", "suggester", "goals", "encoder", "observe", "network"), "random play")
    built = build(dataclasses.replace(settings, **oracle), keys=True)
    if isinstance(built.spec, ClosedGoalSpec):
        raise ValueError(
            f"the goals of {settings.env} are closed-form, and the answers about them do not depend on states: give "
            f"llmrl ellm accuracy --env {settings.env}, without --from"
        )
    policy = policy or RandomPolicy(built.spec.actions)
    states = visit(built.env, built.env_params, policy, weights, key, config.episodes)
    return built, _sample(of_half(states, config.half), config.states, seed)


def _refuse_unread(settings: EllmConfig, read: Collection[str], subject: str) -> None:
    """**Raises** `ValueError` for settings of training."""
    unread = [f.name for f in dataclasses.fields(EllmConfig) if f.name not in read]
    refuse_unread(settings, unread, subject, usual=AccuracyRun().ellm)


def of_half(states: VisitedStates, half: Split) -> VisitedStates:
    """The states of one half: in `training` if the SHA-256 of the four bytes of their key, lowest first, begins with an
    even byte."""
    if half == "both":
        return states
    digests = [hashlib.sha256(int(key).to_bytes(4, "little")).digest() for key in states.keys]
    chosen = np.array([digest[0] % 2 == (half == "held-out") for digest in digests], bool)
    return VisitedStates(states.keys[chosen], states.feasible[chosen])


def accuracy(config: AccuracyRun, states: tuple[Ellm, VisitedStates] | None = None) -> dict[str, Any]:
    """Ask a chat model about states, print the table, and write `accuracy.json` and `suggestions.jsonl`, or with
    closed-form goals `judgements.json`, with every answer.

    **Arguments:** `states`, of `visited_states`, to ask several models about them; None: those of the settings.
    **Returns:** the numbers of `category_counts`, or with closed-form goals those of `pair_counts`. **Raises:** what
    `build`, `load_run` and the chat model raise."""
    goals = config.ellm.goals
    shots = prompts.choose_shots(goals.shots, goals.examples)
    config.chat.check_usable()
    spec = goal_spec_for(make_env(config.ellm))
    if isinstance(spec, ClosedGoalSpec):
        return _pair_accuracy(config, spec)
    built, visited = visited_states(config, config.run.seed) if states is None else states
    with opened(config.run, "ellm-accuracy") as folder:
        configs.save_config(config, folder / "config.json")
        chat = make_chat(config.chat, ScriptedSuggester(built.spec), folder)
        asker = Asker(built.spec, built.encoder, chat.model, config.chat.sampling, 1, goals.parse, shots)
        try:
            with doing(f"asking {chat.model.name} about {len(visited.keys)} states"):
                suggested = asker.goals_of([int(key) for key in visited.keys])
        finally:
            chat.close()
        numbers = category_counts(built.spec, visited, suggested)
        spent = chat.spent
        metadata = {"model": chat.model.name, "env": built.config.env, "seed": config.run.seed}
        configs.save_config({**metadata, **numbers, "calls": spent.calls, "usd": spent.usd}, folder / "accuracy.json")
        _write(folder / "suggestions.jsonl", built.spec, visited, suggested)
    print(categories_table({chat.model.name: numbers}))
    print(
        f"{int(numbers['states'])} states, {int(numbers['unreadable'])} replies that could not be read; "
        f"{100 * numbers['recall']:.1f}% of the oracle's goals were suggested; {spent.calls} requests"
    )
    print(f"Everything is in {folder}")
    return numbers


def _sample(states: VisitedStates, limit: int, seed: int) -> VisitedStates:
    if len(states.keys) <= limit:
        return states
    chosen = np.sort(np.random.default_rng(seed).choice(len(states.keys), limit, replace=False))
    return VisitedStates(states.keys[chosen], states.feasible[chosen])


def _write(path: Path, spec: OpenGoalSpec, states: VisitedStates, goals: Sequence[Sequence[str] | None]) -> None:
    """One line per state: its key and text, the suggestions, the oracle's goals."""
    lines = []
    for key, feasible, suggested in zip(states.keys.tolist(), states.feasible, goals, strict=True):
        oracle = [spec.captions[i] for i in np.flatnonzero(feasible)]
        row = {"key": key, "state": spec.describe(key), "suggested": suggested, "oracle": oracle}
        lines.append(json.dumps(row) + "\n")
    write_whole(path, "".join(lines))


def _pair_accuracy(config: AccuracyRun, spec: ClosedGoalSpec) -> dict[str, Any]:
    """`accuracy` about all pairs of the environment's objects and places."""
    subject = f"{config.ellm.env}, where every pair of an object and a place is asked about,"
    refuse_unread(config, ("from_run", "checkpoint", "states", "episodes", "half"), subject)
    _refuse_unread(config.ellm, ("env", "suggester", "judge"), subject)
    judge = config.ellm.judge
    with opened(config.run, "ellm-accuracy") as folder:
        begin(folder, config)
        chat = make_chat(config.chat, ScriptedJudge(), folder)
        try:
            answers = answers_of_run(folder, chat.model, spec, config.chat.sampling, judge.samples, judge.share)
        finally:
            chat.close()
        numbers, spent = pair_counts(answers, spec), chat.spent
        metadata = {"model": chat.model.name, "env": config.ellm.env, "samples": judge.samples, "share": judge.share}
        configs.save_config({**metadata, **numbers, "calls": spent.calls, "usd": spent.usd}, folder / "accuracy.json")
    print(counts_line(numbers, spent.calls))
    print(f"Everything is in {folder}")
    return numbers


# --- llmrl ellm answers -----------------------------------------------------------------------------------------------


def rows_of(spec: OpenGoalSpec, states: VisitedStates, shots: tuple[prompts.Shot, ...]) -> list[dict[str, object]]:
    """A row per state in which the oracle has a goal: the request and the oracle's reply as `messages`, and the state's
    `key`, text and `goals`.

    **Arguments:** `shots`, the examples of the prompt, as for the requests to the tuned model."""
    rows: list[dict[str, object]] = []
    for key, feasible in zip(states.keys.tolist(), states.feasible, strict=True):
        state, goals = spec.describe(key), [spec.captions[i] for i in np.flatnonzero(feasible)]
        if goals:
            prompt = prompts.open_ended(state, spec.verbs, shots)
            reply = prompts.bullets(goals)
            messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]
            rows.append({"key": key, "state": state, "goals": goals, "messages": messages})
    return rows


def write_answers(config: AnswersRun) -> int:
    """Write the file of `llmrl ellm answers`. **Returns:** its number of rows.

    **Raises:** what `choose_shots`, `build` and `load_run` raise; `ValueError` for a file of
    another kind, or if no state has an answer."""
    if config.file.suffix != ".jsonl":
        raise ValueError(f"--file is {config.file}; a name that ends in .jsonl is needed")
    goals = config.ellm.goals
    shots = prompts.choose_shots(goals.shots, goals.examples)
    built, states = visited_states(config, config.seed)
    rows = rows_of(built.spec, states, shots)
    if not rows:
        raise ValueError(f"no state of {config.episodes} episodes has an answer: play more, with --episodes")
    write_whole(config.file, "".join(json.dumps(row) + "\n" for row in rows))
    skipped = len(states.keys) - len(rows)
    print(f"{config.file}: {len(rows)} rows; {skipped} states in which the oracle has no goal are left out")
    return len(rows)
