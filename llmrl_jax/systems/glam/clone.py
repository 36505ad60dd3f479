"""Behaviour cloning: a language model fine-tuned on an agent's actions (Carta et al., 2302.02662).

A demonstrated step is a row of text: GLAM's prompt, with the policy's window of observations and actions at that step,
and the action as the answer. The rows are used for ordinary supervised fine-tuning (`llmrl_jax.tuning`). The result is
an ordinary model, usable for RL and for the tests. `clone` is the implementation of `llmrl glam clone`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import envs_jax
from envs_jax.babyai.text.english import MISSION_LENGTH
from llmrl_jax import lm
from llmrl_jax.agents.agent import play_episodes
from llmrl_jax.agents.babyai import (
    Demonstration,
    DemosError,
    babyai_steps,
    read_demos,
    text_id,
    write_demos,
)
from llmrl_jax.agents.language import ScoringPolicy
from llmrl_jax.core.activity import say
from llmrl_jax.core.checks import refuse_unread
from llmrl_jax.core.files import replacing
from llmrl_jax.data.parquet import arrow
from llmrl_jax.lm.small import EMBEDDED, refuse_unread_weights
from llmrl_jax.parallel.hosts import gather
from llmrl_jax.run import info
from llmrl_jax.run.folder import begin, check_folder, opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.glam.build import Glam, build, make_agent
from llmrl_jax.systems.glam.config import CLONE_PRESETS, CloneRun, CloningConfig, GlamConfig
from llmrl_jax.systems.glam.eval import Weights, load_run, make_experiment, success_table, task_names
from llmrl_jax.tuning import Example, make_evaluation, make_sft, pack
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment
from llmrl_jax.workflows.tuning import write_tuned


# --- demonstrations as rows -------------------------------------------------------------------------------------------

BATCH = 1024
"""Number of prompts assembled at once."""


def windows(mission: np.ndarray, text: np.ndarray, action: np.ndarray, history: int) -> dict[str, np.ndarray]:
    """The observations of `envs_jax.history.PromptHistory` at every step of an episode.

    **Arguments:** `mission`, int16 `[M]`; `text`, int16 `[T, C]`; `action`, int32 `[T]`; `history`, `n`.
    **Returns:** `mission` `[T, M]`, `text` `[T, n, C]`, `actions` int32 `[T, n - 1]`, `count` int32 `[T]`.
    """
    steps = len(action)
    count = np.minimum(np.arange(steps) + 1, history).astype(np.int32)
    source = np.arange(steps)[:, None] + 1 - count[:, None] + np.arange(history)  # the step at each position
    valid = np.arange(history) < count[:, None]
    window = np.where(valid[..., None], text[np.minimum(source, steps - 1)], text.dtype.type(-1))
    past_actions = np.where(valid[:, 1:], action[np.minimum(source[:, :-1], steps - 1)], -1).astype(np.int32)
    return {"mission": np.repeat(mission[None], steps, axis=0), "text": window, "actions": past_actions, "count": count}


@dataclass(frozen=True)
class CloningData:
    """Steps as rows of tokens, for training and for held-out measurements."""

    train: list[Example]
    held_out: list[Example]
    episodes: int
    """Number of episodes that they come from."""

    def facts(self) -> dict[str, int]:
        """Their numbers, for the summary of a run."""
        return {"episodes": self.episodes, "pairs": len(self.train), "held_out_pairs": len(self.held_out)}


def cloning_data(glam: Glam, path: str | Path, config: CloningConfig) -> CloningData:
    """The rows of a file of demonstrations, with the prompts and actions of a program.

    **Arguments:** `glam`, whose policy scores actions; `path`, a file of `write_demos`, of the level `glam.config.env`.
    **Raises:** what `read_demos` raises; `ValueError` for a prompt that lists the available actions of each state;
    `DemosError` for demonstrations of another level, without a training episode, with words outside the level's
    vocabulary, or with actions that the agent does not have.
    """
    if glam.prompt.lists_offered:
        raise ValueError(
            f"the prompt of {glam.config.env} lists the actions that each state offers, which demonstrations do not "
            "hold: take --no-list-actions, or leave actions=useful out"
        )
    metadata, episodes = read_demos(path)
    level = text_id(glam.config.env)
    if metadata["level"] != level:
        raise DemosError(
            f"{path} shows {metadata['level']}, but env is {level}: give --env {metadata['level']}, or other demos"
        )
    demos: list[Demonstration] = []
    steps = 0
    for demo in episodes:
        demos.append(demo)
        steps += len(demo.action)
        if steps >= config.read:
            break
    held_out = round(config.held_out * len(demos))
    if len(demos) == held_out:
        raise DemosError(
            f"{path} has {len(demos)} episodes, of which held_out keeps {held_out}: none is left to learn from"
        )
    rows = _rows(glam, demos, path, config.end)
    first = sum(len(demo.action) for demo in demos[: len(demos) - held_out])
    return CloningData(rows[:first], rows[first:], len(demos))


def _windows(glam: Glam, demo: Demonstration, path: str | Path) -> dict[str, np.ndarray]:
    """The windows of one episode, after checking its words and actions against the program's."""
    world: Any = glam.env.unwrapped  # type: ignore[attr-defined]
    n = glam.config.num_actions
    if demo.action.max() >= n:
        raise DemosError(
            f"{path}: episode {demo.number} does {world.action_names[demo.action.max()]!r}, which is not among the "
            f"agent's {n} actions: take --num-actions {demo.action.max() + 1}, or other demos"
        )
    missions, view = world.books.missions, world.books.view
    try:
        mission = missions.caption(missions.parse(demo.mission), MISSION_LENGTH)
        text = [view.caption(view.parse(words), world.max_sentences) for words in demo.text]
    except ValueError as error:
        raise DemosError(f"{path}: episode {demo.number}: {error}") from error
    return windows(mission, np.stack(text), demo.action, glam.config.history)


def demonstrated_steps(
    glam: Glam, demos: Sequence[Demonstration], path: str | Path
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The observations of an agent in all steps of demonstrations of its level, and the actions there.

    **Arguments:** `path`, their file, for messages. **Returns:** the observations, leaves `[N, ...]`, and the actions,
    int32 `[N]`. **Raises:** `DemosError` for words or actions that the agent does not have.
    """
    episodes = [_windows(glam, demo, path) for demo in demos]
    obs = {name: np.concatenate([episode[name] for episode in episodes]) for name in episodes[0]}
    return obs, np.concatenate([demo.action for demo in demos])


def _rows(glam: Glam, demos: Sequence[Demonstration], path: str | Path, end: bool) -> list[Example]:
    """One row of tokens per step: its prompt, without loss, and its action."""
    assert isinstance(glam.policy, ScoringPolicy)  # ensured by `check`
    obs, action_ids = demonstrated_steps(glam, demos, path)
    actions = action_ids.tolist()
    eos = glam.tokenizer.eos_id
    stop = [eos] if end and eos is not None else []
    answers = [[*sequence, *stop] for sequence in glam.policy.candidates.sequences]
    prompts = jax.jit(glam.policy.prompts)
    token_ids = list(range(glam.policy.model.config.vocab_size))  # rows share their integers to save memory
    rows: list[Example] = []
    for start in range(0, len(actions), BATCH):
        part = {name: x[start : start + BATCH] for name, x in obs.items()}
        short = BATCH - len(part["count"])
        full = {name: np.pad(x, ((0, short), *((0, 0) for _ in x.shape[1:])), "edge") for name, x in part.items()}
        tokens, lengths = map(np.asarray, prompts(full))
        for row, n, action in zip(tokens[: BATCH - short], lengths, actions[start : start + BATCH], strict=False):
            if n > len(row):
                raise DemosError(f"{path}: row {len(rows)} needs a prompt of more than the {len(row)} tokens there are")
            answer = answers[action]
            rows.append(
                Example([token_ids[t] for t in row[:n].tolist()] + answer, [False] * int(n) + [True] * len(answer))
            )
    return rows


def policy_weights(glam: Glam) -> Weights:
    """From the state of fine-tuning (an `SFTState`) to `(params, frozen)` of the policy. Its critic is random, since
    demonstrations do not train it."""

    def weights(state: Any) -> tuple[Any, Any]:
        heads = glam.policy.init_heads(jax.random.key(0))
        if glam.policy.model.lora is None:
            return {"params": state.params, **heads}, {}
        return {"lora": state.params, **heads}, {"params": state.frozen["base"]["params"]}

    return weights


# --- runs -------------------------------------------------------------------------------------------------------------


UNREAD = (
    "ppo",
    "symbolic",
    "drrn",
    "dqn",
    "reward_scale",
    "stop_value_gradient",
    "competence_coef",
    "stop_competence_gradient",
)
"""Settings of `GlamConfig` that only RL reads."""


def check(config: GlamConfig) -> None:
    """**Raises** `ValueError` for a configuration that cannot learn from demonstrations, or changed settings that only
    RL reads."""
    if config.agent != "llm":
        raise ValueError(f"agent is {config.agent}, but only the language model imitates: leave --agent out")
    if config.policy != "scoring":
        raise ValueError("policy is heads, but cloning teaches to write actions: leave --policy out")
    if config.model == EMBEDDED and config.tune == "lora":
        raise ValueError("model is embedded, whose random weights adapters cannot make up for: take --tune full")

    def changed(preset: GlamConfig) -> int:
        return sum(getattr(config, name) != getattr(preset, name) for name in UNREAD)

    usual = min((glam for glam, _ in CLONE_PRESETS.values()), key=changed)  # the preset with the nearest RL settings
    refuse_unread(config, UNREAD, "cloning", usual=usual, remedy="`llmrl glam train` does")


def player(config: CloneRun) -> tuple[Any, Any, Any, dict[str, Any]]:
    """The demonstrator: the agent in the level with unscaled rewards, its weights, and the metadata for the file of
    demonstrations."""
    overrides: dict[str, Any] = {"env": text_id(config.glam.env), "reward_scale": 1.0}
    if not config.from_run:
        return make_agent(replace(config.glam, agent="bot", **overrides)), (), (), {"player": "bot"}
    folder = Path(config.from_run)
    saved, _, state, update = load_run(folder, config.checkpoint)
    facts = {"player": folder.name, "agent": saved.glam.agent, "update": update, "greedy": config.greedy}
    return make_agent(replace(saved.glam, **overrides)), state.params, state.frozen, facts


def demos_of(config: CloneRun, folder: Path) -> Path:
    """The file of demonstrations of a run, whose folder is `folder`."""
    return Path(config.demos) if config.demos else folder / "demos.parquet"


def demonstrations(config: CloneRun, folder: Path) -> Path:
    """The file of demonstrations: the given one, one generated now, or one generated before a resume."""
    path = demos_of(config, folder)
    if config.demos or path.exists() and config.run.resume:
        return path
    agent, params, frozen, metadata = player(config)
    name = metadata["player"] if config.from_run else "the bot"
    print(f"{config.clone.read} steps are played by {name} in {config.glam.env}", flush=True)
    started = time.monotonic()
    world: Any = envs_jax.make(text_id(config.glam.env))[0]
    seed, see = config.run.seed, babyai_steps(world)
    played = play_episodes(agent, params, frozen, seed=seed, episodes=config.episodes, record=see, greedy=config.greedy)
    facts = {**metadata, "versions": info.versions()}
    written = write_demos(path, played, world, seed=config.run.seed, facts=facts, pairs=config.clone.read)
    if not written.saved:
        path.unlink()
        raise ValueError(f"{name} succeeded in none of {written.played} episodes: there is nothing to imitate")
    seconds = time.monotonic() - started
    print(
        f"{written.steps} steps of {written.saved} successes among {written.played} episodes ({seconds:.1f} s)",
        flush=True,
    )
    return path


def _write(folder: Path, config: CloneRun, glam: Glam, state: Any) -> list[str]:
    """Write the model as a folder for `--model`, and the adapters separately if there are any."""
    base, model = config.glam.model, glam.policy.model
    tokenizer: Any = glam.tokenizer
    ends = () if base == EMBEDDED else lm.end_tokens(base, tokenizer)
    written = [write_tuned(folder, base, model, state, tokenizer, None, ends)]
    if model.lora is None:
        return written
    merged = gather(lm.merge(lm.dequantize(state.frozen["base"]["params"]), state.params, model.lora))
    if jax.process_index() == 0:
        with replacing(folder / "model") as draft:
            tokenizer.save(lm.save_hf(draft, model.config, merged, end_tokens=ends))
    return [*written, "model"]


def make(config: CloneRun, glam: Glam | None = None, data: CloningData | None = None) -> Experiment:
    """The model of a run, what it learns from, and its evaluation.

    **Arguments:** `glam`, `data`: what `build` and `cloning_data` give, if they were called already.
    **Raises:** what these raise.
    """
    glam = build(config.glam) if glam is None else glam
    data = cloning_data(glam, demos_of(config, config.run.folder), config.clone) if data is None else data
    model, cloning = glam.policy.model, config.clone
    length = cloning.length or max(len(row.tokens) for row in (*data.train, *data.held_out))
    rows = pack(data.train, length, several=cloning.pack)
    say(
        f"{len(data.train)} steps to learn and {len(data.held_out)} held out, of {data.episodes} episodes, in "
        f"{len(rows.tokens)} rows of {length} tokens, {(rows.segments > 0).mean():.0%} full"
    )
    updates = max(1, round(cloning.epochs * (len(rows.tokens) // cloning.sft.batch_size)))
    base = {"params": glam.policy.base(jax.random.key(config.run.seed))}
    loss = None
    if data.held_out:
        held_out = pack(data.held_out, length, several=cloning.pack)
        loss = make_evaluation(model, held_out, cloning.sft.batch_size, cloning.sft.head_chunk)
    return make_experiment(
        config,
        glam,
        make_sft(cloning.sft, model, base, rows, updates, glam.mesh, take=True),
        policy_weights(glam),
        during=loss,
        at_ends=True,
        updates=updates,
        shown={"loss": "loss", "learning_rate": "lr"},
        unit="tokens",
    )


def clone(config: CloneRun) -> RunResult:
    """Imitate demonstrations, and write the run to its folder, with the model as `model/`.

    **Returns:** the result of the run.
    **Raises:** `ValueError` for settings that cloning cannot use; what `read_demos`, `cloning_data`, `build` and
    `llmrl_jax.run.loop.train` raise.
    """
    check(config.glam)
    if not config.run.resume:
        refuse_unread_weights(config.glam, (GlamConfig(), *(glam for glam, _ in CLONE_PRESETS.values())))
    arrow()
    if config.demos:
        read_demos(config.demos)  # errors in the file are raised before anything is created
    check_folder(config.run)
    glam = build(config.glam)
    with opened(config.run, "clone") as folder:
        if config.run.resume:
            begin(folder, config)
        demos = demonstrations(config, folder)
        data = cloning_data(glam, demos, config.clone)
        x = make(config, glam, data)
        if jax.process_index() == 0:
            begin(folder, config)  # from here on, a resume finds its demonstrations
        return _train(x, glam, folder, {"demonstrations": str(demos), **data.facts()})


def _train(x: Experiment, glam: Glam, folder: Path, data_facts: dict[str, Any]) -> RunResult:
    """Train, write the model, and evaluate it before and after. **Arguments:** `data_facts`, for the summary."""
    config: CloneRun = x.config
    episodes, seed, key = config.eval_episodes, config.run.seed, x.key(config.run.seed)
    assert x.evaluate is not None
    states = [x.learner.init(jax.random.key(seed))]
    before = x.evaluate(states[0], key, episodes) if episodes else {}
    x = replace(x, learner=replace(x.learner, init=lambda key: states.pop()))  # no other reference: memory is needed

    def facts(result: RunResult) -> dict[str, Any]:
        values = {"env": config.glam.env, **data_facts, "updates": result.update, "before": before}
        if result.stopped:
            return values
        values |= {"written": _write(folder, config, glam, result.state), "after": {}}
        if episodes:
            results = x.results(result.state, key, episodes)
            values["random"] = results.pop("random")
            values["after"] = results
            rates = {f"{stage}, {mode}": row for stage in ("before", "after") for mode, row in values[stage].items()}
            print(success_table({**rates, "random actions": values["random"]}, task_names(glam)))
        print(f"The model is {folder / 'model'}, for `llmrl glam train --model` and `llmrl glam test --model`")
        return values

    return experiments.train(x, folder, facts=facts, at_end=False)
