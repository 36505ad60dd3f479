"""BK-Goal: a chat model proposes goals for situations, and nearness to them is the potential.

Texts are embedded as the normalised sum of the embeddings of their phrases, on the host as on the device: the goals of
the three collected situations that are most similar to the window's past are looked up, and the potential is the
largest cosine of one of them and the newest transition, where it exceeds a threshold. At
the start of an episode the observation alone takes the place of both.

Replies come through the cache, so that an interrupted run goes on where it was (`--run.resume`).
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from safetensors.numpy import load_file, save_file

from envs_jax.env import Environment
from llmrl_jax.chat import BudgetExceeded, ChatRequest, Message
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.core.config import from_json, to_json
from llmrl_jax.core.files import new_draft, write_whole
from llmrl_jax.lm.encoder import TextEncoder, summed
from llmrl_jax.lm.encoder_weights import make_encoder, resolved
from llmrl_jax.rl.shaping import NO_ACTION, Window
from llmrl_jax.run.folder import write_summary
from llmrl_jax.systems.bkrl import prompts
from llmrl_jax.systems.bkrl.advice import AdviceRun, advice_run, save_potential
from llmrl_jax.systems.bkrl.artifacts import read_goals
from llmrl_jax.systems.bkrl.collect import Windows, pad_starts
from llmrl_jax.systems.bkrl.config import GoalsRun, PreferenceModelConfig
from llmrl_jax.systems.bkrl.potentials import ArtifactError, Manifest, digest
from llmrl_jax.systems.bkrl.preference_model import distil, load_model, make_model, save_weights
from llmrl_jax.systems.bkrl.prompts import TEXT, world_of
from llmrl_jax.systems.bkrl.scripted import ScriptedGoals


# --- the potential ----------------------------------------------------------------------------------------------------

NEAREST = 3
"""Collected situations whose goals count."""


@dataclass(frozen=True)
class Library:
    """Goals, and the situations in which they were proposed."""

    goals: tuple[str, ...]
    """`G` goals."""
    keys: Float[np.ndarray, "N E"]
    """Embeddings of the situations, of norm 1."""
    of_key: Bool[np.ndarray, "N G"]
    """Whether each goal was proposed in each situation."""
    vectors: Float[np.ndarray, "G E"]
    """Embeddings of the goals, of norm 1."""


def action_sentence(verb: str) -> str:
    """An action as captions name it (`prompts.caption`)."""
    return f"You choose the action: {verb}."


def unit(x: Any) -> Any:
    """Rows of norm 1; rows of zeros stay."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def by_phrases(encoder: TextEncoder, env: Environment) -> Callable[[Sequence[Any]], Float[np.ndarray, "B E"]]:
    """`embed(texts)` on the host, where a text is a list of phrases and sentences: the normalised sum of their
    embeddings."""
    embedded: dict[str, np.ndarray] = {}

    def embed(texts: Sequence[Sequence[str]]) -> Float[np.ndarray, "B E"]:
        new = list(dict.fromkeys(part for text in texts for part in text if part not in embedded))
        if new:
            embedded.update(zip(new, encoder.encode_texts(new)))
        zero = np.zeros(encoder.encode_texts(["a"]).shape[1], np.float32)
        return unit(np.stack([sum((embedded[part] for part in text), zero) for text in texts]))

    return embed


def exact_potential(
    query: Float[np.ndarray, "B E"], transition: Float[np.ndarray, "B E"], library: Library, threshold: float
) -> Float[np.ndarray, " B"]:
    """The potential on the host, for embedded texts: the oracle of the one on the device.

    **Arguments:** `query`, of the window's past; `transition`, of the last action and the newest observation.
    """
    values = np.zeros(len(query), np.float32)
    for i, (past, reached) in enumerate(zip(query, transition)):
        nearest = np.argsort(-(library.keys @ past), kind="stable")[:NEAREST]
        goals = library.of_key[nearest].any(axis=0)
        if goals.any():
            best = float((library.vectors[goals] @ reached).max())
            values[i] = best if best > threshold else 0.0
    return values


def split_window(window_texts: Sequence[Sequence[str]], verbs: Sequence[str]) -> tuple[list[str], list[str]]:
    """The phrases and sentences of a window: of its past, and of its newest transition; without an action, of the
    observation twice.

    **Arguments:** `window_texts`, the phrases of each of `K + 1` observations; `verbs`, those of `K` actions.
    """
    *earlier_texts, newest = window_texts
    if not verbs:
        return [*newest], [*newest]
    *earlier, last = [action_sentence(verb) for verb in verbs]
    return [part for text in earlier_texts for part in text] + earlier, [last, *newest]


class GoalPotential:
    """The same on the device, by tables, a `llmrl_jax.rl.shaping.Potential`."""

    reads = (TEXT,)

    def __init__(
        self,
        library: Library,
        phrases: Float[np.ndarray, "P E"],
        verbs: Float[np.ndarray, "A E"],
        window: int,
        threshold: float,
    ):
        """**Arguments:** `library`; `phrases`, embeddings of the phrases of the environment's text; `verbs`, those of
        sentences about actions; `window`; `threshold`, cosine that must be exceeded."""
        self.window = window
        no_action = np.zeros((1, verbs.shape[1]), np.float32)
        self.params = {
            "keys": library.keys.T.astype(np.float32),
            "of_key": library.of_key,
            "goals": library.vectors.T.astype(np.float32),
            "phrases": phrases.astype(np.float32),
            "verbs": np.concatenate([no_action, verbs]).astype(np.float32),
            "threshold": np.float32(threshold),
        }

    def encode(self, params: Any, obs: Any) -> Float[Array, "B E"]:
        return summed(params["phrases"], obs[TEXT])

    def value(self, params: Any, window: Window) -> Float[Array, " B"]:
        verbs = params["verbs"][window.action - NO_ACTION]
        real = window.action[:, :, None] != NO_ACTION
        past = jnp.sum(jnp.where(real, window.features[:, :-1], 0.0), axis=1) + jnp.sum(verbs[:, :-1], axis=1)
        past = jnp.where(real[:, -1], past, window.features[:, -1])  # at the start there is no past
        reached = window.features[:, -1] + verbs[:, -1]
        count = min(NEAREST, params["keys"].shape[1])
        nearest = jax.lax.top_k(jnp.matmul(_unit(past), params["keys"], precision="highest"), count)[1]
        allowed = jnp.any(params["of_key"][nearest], axis=1)
        cosine = jnp.matmul(_unit(reached), params["goals"], precision="highest")
        best = jnp.max(jnp.where(allowed, cosine, -1.0), axis=1)
        return jnp.where(best > params["threshold"], best, 0.0)


def _unit(x: Float[Array, "B E"]) -> Float[Array, "B E"]:
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))


# --- asking -----------------------------------------------------------------------------------------------------------

Embed = Callable[[Sequence[Any]], np.ndarray]
GOALS, TABLES, HEAD = "goals.json", "goals.safetensors", "goal_head.safetensors"


def ask(run: AdviceRun, config: GoalsRun, windows: Windows) -> tuple[list[list[str]], int, str]:
    """Ask for goals in windows, `config.at_once` at a time: those of one batch see the goals of earlier batches.

    **Returns:** the goals of each window, fewer than windows if the budget is spent; the number of replies without a
    list; and why it stopped, empty: it did not.
    """
    system, texts = prompts.goal_system(run.world), run.captions(windows)
    goals: list[list[str]] = []
    counts: Counter[str] = Counter()
    empty = 0
    with doing(f"asking {run.chat.model.name}", len(texts), "situations") as activity:
        for start in range(0, len(texts), config.at_once):
            earlier = [goal for goal, _ in counts.most_common(config.shown)]
            requests = [
                ChatRequest(
                    (Message("system", system), Message("user", prompts.goal_window(text, earlier))),
                    **config.chat.sampling,
                )
                for text in texts[start : start + config.at_once]
            ]
            try:
                replies = run.chat.model.complete(requests)
            except BudgetExceeded as error:
                return goals, empty, str(error)
            for reply in replies:
                goals.append(prompts.read_goals(reply.text))
                empty += not goals[-1]
                counts.update(goals[-1])
            activity.done = len(goals)
    return goals, empty, ""


def split_windows(env: Environment, verbs: Sequence[str], windows: Windows) -> tuple[list[Any], list[Any]]:
    """The phrases of each window's past, and of its newest transition, in its episode."""
    book = env.captions[TEXT]
    pasts, transitions = [], []
    for rows, actions in zip(windows.obs[TEXT], windows.action.tolist()):
        real = [a for a in actions if a != NO_ACTION]
        texts = [book.phrases_of(row) for row in rows[len(actions) - len(real) :]]
        past, transition = split_window(texts, [verbs[a] for a in real])
        pasts.append(past)
        transitions.append(transition)
    return pasts, transitions


def embedder(kind: str, encoder: TextEncoder, env: Environment) -> Embed:
    """`embed(texts)` on the host, where a text is a list of phrases and sentences. **Arguments:** `kind`, `phrases` or
    `whole`, as `GoalsRun.texts`."""
    if kind == "phrases":
        return by_phrases(encoder, env)
    return lambda texts: unit(encoder.encode_texts([". ".join(text) for text in texts]))


def make_library(
    situations: Sequence[Sequence[str]], goals: list[list[str]], embed: Embed, encoder: TextEncoder
) -> Library:
    """The library of the situations with goals.

    **Arguments:** `situations`, the phrases of the windows as the model saw them, their last action and observation
    included; `embed`, of situations, which embeds what is compared with them too; `encoder`, of goals.
    """
    numbers = [i for i, proposed in enumerate(goals) if proposed]
    names = tuple(dict.fromkeys(goal for proposed in goals for goal in proposed))
    of_key = np.array([[name in goals[i] for name in names] for i in numbers], bool)
    keys = embed([situations[i] for i in numbers])
    return Library(names, keys, of_key, unit(encoder.encode_texts(names)))


def propose(config: GoalsRun) -> dict[str, Any]:
    """Ask for goals, and write the potential to the run's folder.

    **Returns:** the summary. **Raises:** `ValueError` if no reply had a goal; what `advice_run` and the chat model
    raise.
    """
    config = dataclasses.replace(config, encoder=resolved(config.encoder))  # so that a run goes on with its own
    encoder = make_encoder(config.encoder)
    with advice_run(config, "bkrl-goals", ScriptedGoals) as run:
        empty, stopped, author = 0, "", config.library or run.chat.model.name
        if config.library:
            texts, goals = read_goals(config.library, run.env, run.world)
            situations = [[*past, *newest] for past, newest in (split_window(*text) for text in texts)]
        else:
            windows = run.data.sample(run.rng, config.situations, config.windows.window - 1)
            goals, empty, stopped = ask(run, config, windows)
            pasts, transitions = split_windows(run.env, run.world.verbs, windows)
            situations = [past + transition for past, transition in zip(pasts, transitions)]
        summary: dict[str, Any] = {
            "situations": len(goals),
            "without_goals": empty,
            "goals": len({goal for proposed in goals for goal in proposed}),
            "encoder": encoder.name,
            **run.spent(stopped),
        }
        if not summary["goals"]:
            write_summary(run.folder, summary)
            raise ValueError(
                f"{author} proposed no goal in {len(goals)} windows{': ' + stopped if stopped else ''}"
                + ("" if config.library else f"; the replies are in {run.folder / 'chat.jsonl'}")
            )
        library = make_library(situations, goals, embedder(config.texts, encoder, run.env), encoder)
        summary |= _save(config, run, library, encoder, summary)
        write_summary(run.folder, summary)
        print(
            f"{summary['goals']} goals by {author} in {summary['situations']} situations "
            f"({empty} without); {run.cost()}; everything is in {run.folder}"
        )
    return summary


def _save(
    config: GoalsRun, run: AdviceRun, library: Library, encoder: TextEncoder, summary: dict[str, Any]
) -> dict[str, Any]:
    window, threshold = config.windows.window, config.threshold
    phrases = encoder.encode_texts(run.env.captions[TEXT].phrases)
    verbs = encoder.encode_texts([action_sentence(verb) for verb in run.world.verbs])
    write_whole(run.folder / GOALS, json.dumps({"goals": library.goals}, indent=1) + "\n")
    tables = {
        "keys": library.keys,
        "of_key": library.of_key,
        "goals": library.vectors,
        "phrases": phrases,
        "verbs": verbs,
    }
    with new_draft(run.folder / TABLES) as draft:
        save_file({name: np.ascontiguousarray(x) for name, x in tables.items()}, draft)
    files: tuple[str, ...] = (GOALS, TABLES)
    options: dict[str, Any] = {"threshold": threshold, "head": None}
    potential: Any = GoalPotential(library, phrases, verbs, window, threshold)
    fit: dict[str, float] = {}
    if config.texts == "whole":
        potential, fit = _distilled(config, run, library, encoder)
        save_weights(run.folder / HEAD, potential.params)
        files, options["head"] = (*files, HEAD), to_json(config.model)
    prompt = digest(prompts.goal_system(run.world), prompts.GOAL_WINDOW)
    report, author = summary | fit, config.library
    return fit | save_potential(run, "bk-goal", potential, prompt, files, options=options, report=report, author=author)


def _distilled(
    config: GoalsRun, run: AdviceRun, library: Library, encoder: TextEncoder
) -> tuple[Any, dict[str, float]]:
    """A network that gives the potential of whole texts, which no table can: fitted to the exact values of collected
    windows. An eighth of them are made starts of episodes."""
    window, count = config.windows.window, config.distilled
    starts = np.maximum(np.arange(count) - (count - count // 8) + 1, 0)
    missing = np.where(starts, 1 + (starts - 1) % window, 0)
    windows = pad_starts(run.data.sample(np.random.default_rng(1), count, window), missing)
    texts = split_windows(run.env, run.world.verbs, windows)
    query, transition = map(embedder("whole", encoder, run.env), texts)
    values = exact_potential(query, transition, library, config.threshold)
    model = make_model(run.env, run.world.family, config.model, (), window)
    obs = {name: windows.obs[name] for name in model.reads}
    is_test = np.isin(windows.episode, run.validation)
    params, fit = distil(model, (obs, windows.action), values, config.model, jax.random.key(config.run.seed), is_test)
    model.params = jax.device_get(params)
    return model, fit


def load_goals(folder: Any, manifest: Manifest, env: Environment) -> Any:
    """The potential that `propose` wrote. **Raises:** `ArtifactError` for tables of another environment or goals."""
    if manifest.options["head"] is not None:
        config = from_json(PreferenceModelConfig, manifest.options["head"])
        return load_model(env, manifest.family, config, folder / HEAD, manifest.window)
    tables = load_file(folder / TABLES)
    if len(tables["phrases"]) != len(env.captions[TEXT]) or len(tables["verbs"]) != len(world_of(env).verbs):
        raise ArtifactError(f"{folder} was made for a world with other words than {env.id}: make it again")
    names = tuple(configs.read_json(folder / GOALS)["goals"])
    library = Library(names, tables["keys"], tables["of_key"], tables["goals"])
    widths = {x.shape[1] for x in (library.keys, library.vectors, tables["phrases"], tables["verbs"])}
    if library.of_key.shape != (len(library.keys), len(names)) or len(library.vectors) != len(names) or len(widths) > 1:
        raise ArtifactError(f"{folder / TABLES} does not belong to {GOALS}: make the potential again")
    return GoalPotential(library, tables["phrases"], tables["verbs"], manifest.window, manifest.options["threshold"])
