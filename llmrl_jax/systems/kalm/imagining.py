"""Imagined episodes for instructions that no data show: the implementation of `llmrl kalm imagine`."""

from __future__ import annotations

import functools
import io
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import write_whole
from llmrl_jax.data.parquet import write_parquet
from llmrl_jax.data.transitions import DataError, Trajectories
from llmrl_jax.run.folder import begin, opened, write_summary
from llmrl_jax.systems.kalm import grounded, patterns
from llmrl_jax.systems.kalm.collecting import ABOUT, EPISODES, read
from llmrl_jax.systems.kalm.config import ImagineRun
from llmrl_jax.systems.kalm.grounded import Grounded
from llmrl_jax.systems.kalm.imagination import Imagined, imagine, in_pieces, piece_of
from llmrl_jax.systems.kalm.worlds import GOAL, INSTRUCTION, STATE, World


PARTS = "parts"
"""The folder, in that of a run, of what is imagined already while it goes on."""


def chosen_goals(world: World, level: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """The numbers of sentences to imagine episodes for: all goals of the level equally often, up to one, each in a
    random wording; int32 `[count]`."""
    said = np.array(world.instructions.of(level))
    goal = world.instructions.configuration[said]
    wanted = np.concatenate([rng.permutation(goal.max() + 1) for _ in range(-(-count // (int(goal.max()) + 1)))])[
        :count
    ]
    return np.array([rng.choice(said[goal == i]) for i in wanted], np.int32)


def starts(world: World, level: str, numbers: np.ndarray, data: Trajectories, rng: np.random.Generator) -> np.ndarray:
    """A first state for each sentence, in which its goal does not hold, float32 `[B, d]`: of the data, or where not
    every state suits every sentence as the world begins."""
    recorded, goals = np.asarray(data.obs[STATE])[:, 0], world.instructions.goals[numbers]

    def drawn() -> np.ndarray:
        if world.first is not None:
            return world.first(level, numbers, int(rng.integers(2**31)))
        return recorded[rng.integers(len(recorded), size=len(numbers))]

    found = drawn()
    for _ in range(100):
        done = np.asarray(world.holds(goals, found))
        if not done.any():
            return found
        found = np.where(done[:, None], drawn(), found)
    raise ValueError("some goals hold in nearly all first states of the data: collect more episodes")


def imagine_all(
    found: Grounded, numbers: np.ndarray, first: np.ndarray, level: str, together: int, kept: Path | None = None
) -> Imagined:
    """Episodes for sentences, in parts of one shape, on the host.

    **Arguments:** `kept`, a folder to which each part is written, and from which those that are there are read.
    """
    world, said = found.world, found.world.instructions
    tokens, lengths = patterns.prompts([said.texts[i] for i in numbers], found.tokenizer)
    goals, horizon = said.goals[numbers], world.horizon[level]

    together = min(together, len(numbers))
    size = piece_of(found.model, together)

    @jax.jit
    def run(variables: Any, tokens: Any, lengths: Any, first: Any, goals: Any) -> Imagined:
        return imagine(found.model, variables, found.units, tokens, lengths, first, goals, world.rules(level), horizon)

    @functools.cache
    def program() -> Any:
        rows = (jnp.asarray(x[np.arange(size) % len(numbers)]) for x in (tokens, lengths, first, goals))
        return run.lower(found.variables, *rows).compile()

    def part(start: int, count: int) -> Imagined:
        play = functools.partial(program(), found.variables)
        rows = tuple(x[start : start + count] for x in (tokens, lengths, first, goals))
        return in_pieces(play, rows, size)

    parts = []
    with doing("imagining", len(numbers), "episodes") as activity:
        for start in range(0, len(numbers), together):
            count = min(together, len(numbers) - start)
            file = kept / f"{start}-{start + count}.npz" if kept else None
            parts.append(_read_part(file) if file and file.exists() else part(start, count))
            if file and not file.exists():
                _write_part(file, parts[-1])
            activity.done = start + count
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _read_part(file: Path) -> Imagined:
    with np.load(file, allow_pickle=False) as arrays:
        return Imagined(**arrays)


def _write_part(file: Path, made: Imagined) -> None:
    file.parent.mkdir(exist_ok=True)
    held = io.BytesIO()
    np.savez(held, **vars(made))
    write_whole(file, held.getvalue())


def as_episodes(made: Imagined, goals: np.ndarray, numbers: np.ndarray) -> Trajectories:
    """Imagined episodes in the form of recorded ones. What ends without success is cut off, and so bootstraps; a task
    of one step is over after it, as it is in the world."""
    steps = made.rewards.shape[1]
    last = np.arange(steps) == made.lengths[:, None] - 1
    over = made.success | (steps == 1)
    same = {
        GOAL: np.repeat(goals[:, None], steps, 1).astype(np.int32),
        INSTRUCTION: np.repeat(numbers[:, None], steps, 1).astype(np.int32),
    }
    return Trajectories(
        obs={STATE: made.states[:, :-1], **same},
        action=made.actions,
        reward=made.rewards,
        next_obs={STATE: made.states[:, 1:], **same},
        terminated=last & over[:, None],
        truncated=last & ~over[:, None],
        length=made.lengths,
    )


def statistics(world: World, made: Imagined) -> dict[str, float]:
    """What is reported of imagined episodes: success by the world's rules, length, and the shares of steps, and of
    episodes with a step, that are impossible."""
    steps = np.arange(made.rewards.shape[1]) < made.lengths[:, None]
    summary = {"success": float(made.success.mean()), "mean_length": float(made.lengths.mean())}
    for name, wrong in world.implausible(made.states[:, :-1], made.states[:, 1:]).items():
        wrong = np.asarray(wrong) & steps
        summary[f"impossible/{name}"] = float(wrong.sum() / steps.sum())
        summary[f"episodes_impossible/{name}"] = float(wrong.any(1).mean())
    return summary


def imagine_run(config: ImagineRun) -> dict[str, Any]:
    """Imagine episodes, and write them to the run's folder as recorded ones are. **Returns:** the summary.

    The parts that were imagined before a run was interrupted are in its folder `parts`, and are not imagined again.
    **Raises:** what `grounded.load` and `collecting.read` raise; `ValueError` for a run that is continued with other
    options.
    """
    found = grounded.load(config.grounded)
    if found.returns is not None:
        raise DataError(
            f"{config.grounded} was grounded with --returns: its states carry returns, so that it can act (`llmrl kalm "
            "test`) and not imagine"
        )
    world, _, data = read(config.data, found.world.name)
    rng = np.random.default_rng(config.run.seed)
    numbers = chosen_goals(world, config.level, config.episodes, rng)
    goals = world.instructions.goals[numbers]
    with opened(config.run, "kalm-imagine") as folder:
        begin(folder, config)
        first = starts(world, config.level, numbers, data, rng)
        made = imagine_all(found, numbers, first, config.level, config.together, folder / PARTS)
        write_parquet(folder / EPISODES, as_episodes(made, goals, numbers))
        write_whole(folder / ABOUT, json.dumps({"world": world.name, "level": config.level, "imagined": True}) + "\n")
        summary = {"episodes": config.episodes, **statistics(world, made)}
        write_summary(folder, summary)
        shutil.rmtree(folder / PARTS)
        wrong = ", ".join(
            f"{name.partition('/')[2]} {100 * x:.1f}%" for name, x in summary.items() if name.startswith("impossible/")
        )
        print(
            f"{config.episodes} imagined episodes, {100 * summary['success']:.1f}% with success by the world's rules; "
            f"impossible steps: {wrong}; everything is in {folder}"
        )
    return summary
