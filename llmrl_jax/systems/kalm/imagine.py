"""Imagined episodes for instructions that no data show: the implementation of `llmrl kalm imagine`.

A grounded model generates an episode autoregressively, without the environment (Pang et al., 2404.09248), in two
passes of one position for each step, behind a cache: the action is read off the state at the same time, and the next
state off the action. (The published program takes both from one pass, so that each action belongs to the state before.)
"""

from __future__ import annotations

import functools
import io
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from envs_jax import tracing
from envs_jax.threads import cores
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checksum import checksum
from llmrl_jax.core.files import expanded, write_whole
from llmrl_jax.data.transitions import DataError, Trajectories
from llmrl_jax.lm.cache import UNROLLED
from llmrl_jax.run.folder import begin, opened, write_summary
from llmrl_jax.systems.kalm.collect import read_cases, read_episodes, write_episodes
from llmrl_jax.systems.kalm.config import ImagineRun
from llmrl_jax.systems.kalm.ground import GroundedModel, load_model
from llmrl_jax.systems.kalm.prompts import rollout_prompts
from llmrl_jax.systems.kalm.world_model import Normalizer, WorldModel
from llmrl_jax.systems.kalm.worlds import GOAL, INSTRUCTION, STATE, Label, World


PIECE = 16
"""Episodes of a small model that a core imagines at once: the cache of more does not fit a core's own, and products as
small as these gain nothing from two cores."""
PARTS, SOURCE = "parts", "source.json"
"""The folder, in that of a run, of finished parts while the run goes on."""


@struct.dataclass
class Imagined:
    """`B` episodes of at most `T` steps. Steps after the end are undefined."""

    states: Float[Array, "B T+1 d"]
    actions: jax.Array
    """int32 `[B, T]`, or float32 `[B, T, a]`."""
    rewards: Float[Array, "B T"]
    lengths: Int[Array, " B"]
    """Steps up to the first success, or all."""
    success: jax.Array
    """bool `[B]`, whether the rules say so."""


def imagine(
    model: WorldModel,
    variables: Any,
    normalizer: Normalizer,
    tokens: Int[Any, "B P"],
    lengths: Int[Any, " B"],
    first: Float[Any, "B d"],
    goals: Any,
    label: Label,
    horizon: int,
) -> Imagined:
    """Episodes for instructions, from given first states; the most likely action is taken.

    **Arguments:** `tokens` and `lengths`, see `prompts.rollout_prompts`; `goals`, leaves `[B, ...]`; `horizon`, T.
    """
    cache = model.start(variables, tokens, lengths, 2 * horizon)
    layers = model.unstacked_weights(variables)

    def step(carry: Any, _: None) -> Any:
        cache, state = carry
        hidden, cache = model.advance(variables, cache, model.enter_state(variables, normalizer, state), layers)
        action = model.act(variables, hidden)
        hidden, cache = model.advance(variables, cache, model.enter_action(variables, action), layers)
        after = model.next_state(variables, normalizer, hidden, state)
        return (cache, after), (after, action)

    first = jnp.asarray(first, jnp.float32)
    _, steps = tracing.scan(step, (cache, first), None, length=horizon)
    after, actions = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), steps)
    states = jnp.concatenate([first[:, None], after], axis=1)
    rewards, success = label(goals, states, actions)
    reached = jnp.any(success, axis=1)
    ends = jnp.where(reached, jnp.argmax(success, axis=1) + 1, horizon)
    return Imagined(states, actions, jnp.asarray(rewards, jnp.float32), ends.astype(jnp.int32), reached)


def piece_of(model: WorldModel, lanes: int) -> int:
    """Number of episodes in one program, of those that are imagined at the same time: on a CPU `PIECE` for a model of
    few layers, else all of them."""
    small = model.llama.config.num_hidden_layers <= UNROLLED and tracing.platform() == "cpu"
    return min(lanes, PIECE) if small else lanes


def in_pieces(play: Callable[..., Imagined], rows: Any, size: int) -> Imagined:
    """Episodes on the host, `size` at a time, as many programs at the same time as there are cores.

    **Arguments:** `play`, a compiled function of `size` rows; `rows`, its arguments, leaves `[B, ...]` of NumPy. The
    last piece is filled up with the first rows.
    """
    count = len(jax.tree.leaves(rows)[0])

    def piece(start: int) -> Imagined:
        index = np.arange(start, start + size) % count
        return jax.tree.map(np.asarray, play(*jax.tree.map(lambda x: jnp.asarray(x[index]), rows)))

    with ThreadPoolExecutor(cores()) as pool:
        pieces = list(pool.map(piece, range(0, count, size)))
    return jax.tree.map(lambda *x: np.concatenate(x)[:count], *pieces)


def chosen_goals(world: World, level: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """The numbers of sentences to imagine episodes for: all goals of the level equally often, up to one, each in a
    random wording; int32 `[count]`."""
    sentences = np.array(world.instructions.sentence_ids(level))
    goal = world.instructions.configuration[sentences]
    goals = int(goal.max()) + 1
    rounds = np.concatenate([rng.permutation(goals) for _ in range(-(-count // goals))])
    return np.array([rng.choice(sentences[goal == i]) for i in rounds[:count]], np.int32)


def starts(world: World, level: str, numbers: np.ndarray, data: Trajectories, rng: np.random.Generator) -> np.ndarray:
    """A first state for each sentence, in which its goal does not hold, float32 `[B, d]`: of the data, or where not
    every state suits every sentence as the environment begins."""
    recorded, goals = np.asarray(data.obs[STATE])[:, 0], world.instructions.goals[numbers]

    def sample() -> np.ndarray:
        if world.first is not None:
            return world.first(level, numbers, int(rng.integers(2**31)))
        return recorded[rng.integers(len(recorded), size=len(numbers))]

    states = sample()
    for _ in range(100):
        satisfied = np.asarray(world.holds(goals, states))
        if not satisfied.any():
            return states
        states = np.where(satisfied[:, None], sample(), states)
    raise ValueError("some goals hold in nearly all first states of the data: collect more episodes")


def imagine_all(
    grounded: GroundedModel,
    numbers: np.ndarray,
    first: np.ndarray,
    level: str,
    lanes: int,
    parts: Path | None = None,
) -> Imagined:
    """Episodes for sentences, in parts of one shape, on the host.

    **Arguments:** `parts`, a folder to which each part is written, and from which those that are there are read.
    """
    world, instructions = grounded.world, grounded.world.instructions
    prompts = rollout_prompts([instructions.texts[i] for i in numbers], grounded.tokenizer)
    rows = (*prompts, first, instructions.goals[numbers])
    horizon, lanes = world.horizon[level], min(lanes, len(numbers))
    size = piece_of(grounded.model, lanes)
    if parts:
        check_source(parts, grounded.variables, grounded.normalizer, rows)

    @jax.jit
    def run(variables: Any, tokens: Any, lengths: Any, first: Any, goals: Any) -> Imagined:
        label, normalizer = world.rules(level), grounded.normalizer
        return imagine(grounded.model, variables, normalizer, tokens, lengths, first, goals, label, horizon)

    @functools.cache
    def program() -> Any:
        examples = (jnp.asarray(x[np.arange(size) % len(numbers)]) for x in rows)
        return run.lower(grounded.variables, *examples).compile()

    imagined = []
    with doing("imagining", len(numbers), "episodes") as activity:
        for start in range(0, len(numbers), lanes):
            end = min(start + lanes, len(numbers))
            file = parts / f"{start}-{end}.npz" if parts else None
            if file and file.exists():
                imagined.append(_read_part(file))
            else:
                play = functools.partial(program(), grounded.variables)
                imagined.append(in_pieces(play, tuple(x[start:end] for x in rows), size))
                if file:
                    _write_part(file, imagined[-1])
            activity.done = end
    return jax.tree.map(lambda *x: np.concatenate(x), *imagined)


def check_source(parts: Path, *source: Any) -> None:
    """Write checksums of what episodes are imagined from beside their parts.

    **Arguments:** `parts`, the folder; `source`, trees of arrays. **Raises:** `ValueError` if it has parts of another
    source, as after the model was grounded again under its name."""
    sums = jax.jit(lambda source: jax.tree.map(checksum, source))(jax.tree.map(jnp.asarray, source))
    text = json.dumps([int(x) for x in jax.tree.leaves(sums)]) + "\n"
    file = parts / SOURCE
    if any(parts.glob("*.npz")) and (file.read_text(encoding="utf-8") if file.exists() else "") != text:
        raise ValueError(
            f"{parts} has episodes of another model, or from other recorded episodes or goals, than those that are "
            f"there now: delete {parts}, and they are imagined again"
        )
    parts.mkdir(exist_ok=True)
    write_whole(file, text)


def _read_part(file: Path) -> Imagined:
    with np.load(file, allow_pickle=False) as arrays:
        return Imagined(**arrays)


def _write_part(file: Path, imagined: Imagined) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **vars(imagined))
    write_whole(file, buffer.getvalue())


def as_episodes(imagined: Imagined, goals: np.ndarray, numbers: np.ndarray) -> Trajectories:
    """Imagined episodes in the form of recorded ones. What ends without success is cut off, and so bootstraps; a task
    of one step is over after it, as it is in the environment."""
    steps = imagined.rewards.shape[1]
    last = np.arange(steps) == imagined.lengths[:, None] - 1
    terminal = imagined.success | (steps == 1)
    constant = {
        GOAL: np.repeat(goals[:, None], steps, 1).astype(np.int32),
        INSTRUCTION: np.repeat(numbers[:, None], steps, 1).astype(np.int32),
    }
    return Trajectories(
        obs={STATE: imagined.states[:, :-1], **constant},
        action=imagined.actions,
        reward=imagined.rewards,
        next_obs={STATE: imagined.states[:, 1:], **constant},
        terminated=last & terminal[:, None],
        truncated=last & ~terminal[:, None],
        length=imagined.lengths,
    )


def statistics(world: World, imagined: Imagined) -> dict[str, float]:
    """Statistics of imagined episodes: success by the environment's rules, length, and the fractions of steps, and of
    episodes with a step, that are impossible."""
    steps = np.arange(imagined.rewards.shape[1]) < imagined.lengths[:, None]
    summary = {"success": float(imagined.success.mean()), "mean_length": float(imagined.lengths.mean())}
    for name, wrong in world.implausible(imagined.states[:, :-1], imagined.states[:, 1:]).items():
        wrong = np.asarray(wrong) & steps
        summary[f"impossible/{name}"] = float(wrong.sum() / steps.sum())
        summary[f"episodes_impossible/{name}"] = float(wrong.any(1).mean())
    return summary


def imagine_run(config: ImagineRun) -> dict[str, Any]:
    """Imagine episodes, and write them to the run's folder as recorded ones are. **Returns:** the summary.

    The parts that were imagined before a run was interrupted are in its folder `parts`, and are not imagined again.
    **Raises:** what `load_model`, `read_episodes` and `read_cases` raise; `ValueError` for a run that is continued with
    other options.
    """
    grounded = load_model(config.grounded)
    if grounded.returns is not None:
        raise DataError(
            f"{config.grounded} was grounded with --returns: its states carry returns, so that it can act (`llmrl kalm "
            "test`) and not imagine"
        )
    rng = np.random.default_rng(config.run.seed)
    if expanded(config.data).is_file():
        world = grounded.world
        cases = read_cases(expanded(config.data), world, config.level, rng)
        index = np.arange(config.episodes) % len(cases.states)
        numbers, first = cases.instructions[index], cases.states[index]
    else:
        world, _, data = read_episodes(config.data, grounded.world.name)
        numbers = chosen_goals(world, config.level, config.episodes, rng)
        first = starts(world, config.level, numbers, data, rng)
    with opened(config.run, "kalm-imagine") as folder:
        begin(folder, config)
        imagined = imagine_all(grounded, numbers, first, config.level, config.together, folder / PARTS)
        write_episodes(
            folder,
            world,
            config.level,
            as_episodes(imagined, world.instructions.goals[numbers], numbers),
            imagined=True,
        )
        summary = {"episodes": config.episodes, **statistics(world, imagined)}
        write_summary(folder, summary)
        shutil.rmtree(folder / PARTS)
        impossible = ", ".join(
            f"{name.partition('/')[2]} {100 * x:.1f}%" for name, x in summary.items() if name.startswith("impossible/")
        )
        print(
            f"{config.episodes} imagined episodes, {100 * summary['success']:.1f}% with success by the world's rules; "
            f"impossible steps: {impossible}; everything is in {folder}"
        )
    return summary
