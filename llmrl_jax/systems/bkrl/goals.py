"""BK-Goal: a chat model proposes goals for situations, and nearness to them is the potential.

Replies come through the cache, so that an interrupted run goes on where it was (`--run.resume`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load_file, save_file

from envs_jax.env import Environment
from llmrl_jax.chat import BudgetExceeded, ChatRequest, Message
from llmrl_jax.core.activity import doing
from llmrl_jax.core.config import from_json, to_json
from llmrl_jax.core.files import new_draft, write_whole
from llmrl_jax.lm.encoder import TextEncoder
from llmrl_jax.lm.encoder_names import make_encoder, resolved
from llmrl_jax.rl.shaping import NO_ACTION
from llmrl_jax.run.folder import write_summary
from llmrl_jax.systems.bkrl import manifest as manifests, prompts
from llmrl_jax.systems.bkrl.agent import seen_parts
from llmrl_jax.systems.bkrl.asking import Asked, asking, save_potential
from llmrl_jax.systems.bkrl.collected import Windows, begun
from llmrl_jax.systems.bkrl.config import GoalsRun
from llmrl_jax.systems.bkrl.goal_potential import (
    GoalPotential,
    Library,
    action_sentence,
    by_phrases,
    exact,
    parts_of,
    unit,
)
from llmrl_jax.systems.bkrl.manifest import Manifest, digest
from llmrl_jax.systems.bkrl.preference_model import PreferenceModelConfig, distil
from llmrl_jax.systems.bkrl.preferences import load_model, make_model, save_weights
from llmrl_jax.systems.bkrl.scripted import ScriptedGoals
from llmrl_jax.systems.bkrl.worlds import TEXT, world_of


Embed = Callable[[Sequence[Any]], np.ndarray]
GOALS, TABLES, HEAD = "goals.json", "goals.safetensors", "goal_head.safetensors"


def ask(asked: Asked, config: GoalsRun, windows: Windows) -> tuple[list[list[str]], int, str]:
    """Ask for goals in windows, `config.at_once` at a time: those of one batch see the goals of earlier batches.

    **Returns:** the goals of each window, fewer than windows if the budget is spent; the number of replies without a
    list; and why it stopped, empty: it did not.
    """
    system, said = prompts.goal_system(asked.world), asked.captions(windows)
    found: list[list[str]] = []
    counts: dict[str, int] = {}
    empty = 0
    with doing(f"asking {asked.chat.model.name}", len(said), "situations") as activity:
        for start in range(0, len(said), config.at_once):
            known = sorted(counts, key=lambda goal: -counts[goal])[: config.shown]
            some = said[start : start + config.at_once]
            requests = [
                ChatRequest(
                    (Message("system", system), Message("user", prompts.goal_window(text, known))),
                    **config.chat.sampling,
                )
                for text in some
            ]
            try:
                replies = asked.chat.model.complete(requests)
            except BudgetExceeded as error:
                return found, empty, str(error)
            for reply in replies:
                goals = prompts.read_goals(reply.text)
                empty += not goals
                found.append(goals)
                for goal in goals:
                    counts[goal] = counts.get(goal, 0) + 1
            activity.done = len(found)
    return found, empty, ""


def windows_in_parts(env: Environment, verbs: Sequence[str], windows: Windows) -> tuple[list[Any], list[Any]]:
    """The phrases of what led to each window's newest observation, and of its newest transition, in its episode."""
    book = env.captions[TEXT]
    led, reached = [], []
    for rows, actions in zip(windows.obs[TEXT], windows.action.tolist()):
        done = [a for a in actions if a != NO_ACTION]
        texts = [book.phrases_of(row) for row in rows[len(actions) - len(done) :]]
        before, newest = parts_of(texts, [verbs[a] for a in done])
        led.append(before)
        reached.append(newest)
    return led, reached


def embedder(kind: str, encoder: TextEncoder, env: Environment) -> Embed:
    """`embed(texts)` on the host, where a text is a list of phrases and sentences. **Arguments:** `kind`, `phrases` or
    `whole`, as `GoalsRun.texts`."""
    if kind == "phrases":
        return by_phrases(encoder, env)
    return lambda texts: unit(encoder.encode_texts([". ".join(text) for text in texts]))


def make_library(asked: Asked, windows: Windows, goals: list[list[str]], embed: Embed, encoder: TextEncoder) -> Library:
    """The library of the situations with goals. Those are the windows as the model saw them, their last action and
    observation included.

    **Arguments:** `embed`, of situations, which embeds what is compared with them too; `encoder`, of goals.
    """
    kept = [i for i, some in enumerate(goals) if some]
    names = tuple(dict.fromkeys(goal for some in goals for goal in some))
    led, reached = windows_in_parts(asked.env, asked.world.verbs, windows)
    place = {goal: i for i, goal in enumerate(names)}
    of_key = np.zeros((len(kept), len(names)), bool)
    for row, i in enumerate(kept):
        of_key[row, [place[goal] for goal in goals[i]]] = True
    keys = embed([led[i] + reached[i] for i in kept])
    return Library(names, keys, of_key, unit(encoder.encode_texts(names)))


def propose(config: GoalsRun) -> dict[str, Any]:
    """Ask for goals, and write the potential to the run's folder.

    **Returns:** the summary. **Raises:** `ValueError` if no reply had a goal; what `asking` and the chat model raise.
    """
    config = dataclasses.replace(config, encoder=resolved(config.encoder))  # so that a run goes on with its own
    encoder = make_encoder(config.encoder)
    with asking(config, "bkrl-goals", ScriptedGoals) as asked:
        size = config.windows.window
        windows = asked.data.sample(asked.rng, config.situations, size - 1)
        goals, empty, stopped = ask(asked, config, windows)
        spent = asked.chat.spent
        summary: dict[str, Any] = {
            "situations": len(goals),
            "without_goals": empty,
            "goals": len({goal for some in goals for goal in some}),
            "encoder": encoder.name,
            "calls": spent.calls,
            "tokens": spent.tokens,
            "usd": spent.usd,
            **({"stopped": stopped} if stopped else {}),
        }
        if not summary["goals"]:
            write_summary(asked.folder, summary)
            raise ValueError(
                f"{asked.chat.model.name} proposed no goal in {len(goals)} windows{': ' + stopped if stopped else ''}; "
                f"the replies are in {asked.folder / 'chat.jsonl'}"
            )
        library = make_library(asked, windows, goals, embedder(config.texts, encoder, asked.env), encoder)
        summary |= _save(config, asked, library, encoder, summary)
        write_summary(asked.folder, summary)
        print(
            f"{summary['goals']} goals by {asked.chat.model.name} in {summary['situations']} situations "
            f"({empty} without); {asked.cost()}; everything is in {asked.folder}"
        )
    return summary


def _save(
    config: GoalsRun, asked: Asked, library: Library, encoder: TextEncoder, summary: dict[str, Any]
) -> dict[str, Any]:
    window, threshold = config.windows.window, config.threshold
    phrases = encoder.encode_texts(asked.env.captions[TEXT].phrases)
    verbs = encoder.encode_texts([action_sentence(verb) for verb in asked.world.verbs])
    write_whole(asked.folder / GOALS, json.dumps({"goals": library.goals}, indent=1) + "\n")
    tables = {
        "keys": library.keys,
        "of_key": library.of_key,
        "goals": library.vectors,
        "phrases": phrases,
        "verbs": verbs,
    }
    with new_draft(asked.folder / TABLES) as draft:
        save_file({name: np.ascontiguousarray(x) for name, x in tables.items()}, draft)
    files: tuple[str, ...] = (GOALS, TABLES)
    options: dict[str, Any] = {"threshold": threshold, "head": None}
    potential: Any = GoalPotential(library, phrases, verbs, window, threshold)
    found: dict[str, float] = {}
    if config.texts == "whole":
        potential, found = _distilled(config, asked, library, encoder)
        save_weights(asked.folder / HEAD, potential.params)
        files, options["head"] = (*files, HEAD), to_json(config.model)
    prompt = digest(prompts.goal_system(asked.world), prompts.GOAL_WINDOW)
    return found | save_potential(asked, "bk-goal", potential, prompt, files, options=options, report=summary | found)


def _distilled(config: GoalsRun, asked: Asked, library: Library, encoder: TextEncoder) -> tuple[Any, dict[str, float]]:
    """A network that gives the potential of whole texts, which no table can: fitted to the exact values of collected
    windows. An eighth of them are made starts of episodes."""
    window, count = config.windows.window, config.distilled
    starts = np.maximum(np.arange(count) - (count - count // 8) + 1, 0)
    missing = np.where(starts, 1 + (starts - 1) % window, 0)
    windows = begun(asked.data.sample(np.random.default_rng(1), count, window), missing)
    led, reached = windows_in_parts(asked.env, asked.world.verbs, windows)
    query, transition = map(embedder("whole", encoder, asked.env), (led, reached))
    values = exact(query, transition, library, config.threshold)
    model = make_model(asked.env, asked.world.family, config.model, (), window)
    seen = {name: windows.obs[name] for name in seen_parts(asked.env, asked.world.family)}
    held = np.isin(windows.episode, asked.held)
    params, found = distil(model, (seen, windows.action), values, config.model, jax.random.key(config.run.seed), held)
    model.params = jax.device_get(params)
    return model, found


def load_goals(folder: Any, manifest: Manifest, env: Environment) -> Any:
    """The potential that `propose` wrote. **Raises:** `ArtifactError` for tables of another world or other goals."""
    if manifest.options["head"] is not None:
        config = from_json(PreferenceModelConfig, manifest.options["head"])
        return load_model(env, manifest.family, config, folder / HEAD, manifest.window)
    tables = load_file(folder / TABLES)
    if len(tables["phrases"]) != len(env.captions[TEXT]) or len(tables["verbs"]) != len(world_of(env).verbs):
        raise manifests.ArtifactError(f"{folder} was made for a world with other words than {env.id}: make it again")
    names = tuple(json.loads((folder / GOALS).read_text())["goals"])
    library = Library(names, tables["keys"], tables["of_key"], tables["goals"])
    widths = {x.shape[1] for x in (library.keys, library.vectors, tables["phrases"], tables["verbs"])}
    if library.of_key.shape != (len(library.keys), len(names)) or len(library.vectors) != len(names) or len(widths) > 1:
        raise manifests.ArtifactError(f"{folder / TABLES} does not belong to {GOALS}: make the potential again")
    return GoalPotential(library, tables["phrases"], tables["verbs"], manifest.window, manifest.options["threshold"])
