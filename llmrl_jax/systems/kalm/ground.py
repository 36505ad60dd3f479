"""Grounding a language model in recorded episodes: the implementation of `llmrl kalm ground`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.core.activity import doing
from llmrl_jax.data.transitions import DataError, Trajectories
from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.parallel import make_mesh
from llmrl_jax.run.folder import opened, write_summary
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.systems.kalm import explaining, grounded, patterns
from llmrl_jax.systems.kalm.collecting import read
from llmrl_jax.systems.kalm.config import GroundRun
from llmrl_jax.systems.kalm.grounding import make_grounding
from llmrl_jax.systems.kalm.patterns import Episodes, Rows
from llmrl_jax.systems.kalm.world_model import WorldModel, targets
from llmrl_jax.systems.kalm.worlds import INSTRUCTION, STATE, World


TEST_ROWS = 256
"""Most rows of a test."""
WANTED = 0.9
"""The quantile of the data's returns that a decision transformer is asked for."""


def wordings(world: World, level: str, data: Trajectories) -> list[list[str]]:
    """For each episode all sentences for its goal."""
    said = np.asarray(data.obs[INSTRUCTION])[:, 0]
    known: dict[int, list[str]] = {}
    found = []
    for number in said.tolist():
        if number not in world.instructions.of(level):
            raise DataError(f"an episode has the instruction {number}, which is none of level {level}")
        goal = int(world.instructions.configuration[number])
        if goal not in known:
            known[goal] = world.instructions.wordings(level, goal)
        found.append(known[goal])
    return found


def rows_of(
    config: GroundRun,
    episodes: Episodes,
    texts: list[list[str]],
    chosen: np.ndarray,
    tokenizer: FastTokenizer,
    seed: int,
) -> Rows:
    """The rows of some episodes."""
    some = Episodes(
        episodes.states,
        episodes.actions,
        episodes.first_state[chosen],
        episodes.first_action[chosen],
        episodes.lengths[chosen],
    )
    rng = np.random.default_rng((seed, len(chosen)))
    written = patterns.write(
        some, [texts[i] for i in chosen], tokenizer, rng, patterns=config.patterns, copies=config.copies
    )
    return patterns.pack(written, config.length)


def evaluation(
    model: WorldModel, rows: Rows, episodes: Episodes, batch_size: int
) -> Callable[[Any, Any], dict[str, float]]:
    """`evaluate(state, key)`: the three errors on held-out episodes."""
    count = min(len(rows.tokens), max(TEST_ROWS, batch_size)) // batch_size * batch_size
    parts = jax.tree.map(lambda x: jnp.asarray(x[:count]).reshape(-1, batch_size, *x.shape[1:]), rows)
    whole = {name: float(x) for name, x in targets(jax.tree.map(lambda x: x[:count], rows)).items()}
    tables = jnp.asarray(episodes.states), jnp.asarray(episodes.actions)

    @jax.jit
    def total(variables: Any, units: Any) -> dict[str, jax.Array]:
        return jax.tree.map(
            jnp.sum, jax.lax.map(lambda part: model.losses(variables, units, part, tables, whole), parts)
        )

    def evaluate(state: Any, key: jax.Array) -> dict[str, float]:
        found = total({**state.frozen["base"], **state.params}, state.frozen["units"])
        return {f"held_out/{name}": float(x) for name, x in found.items()}

    return evaluate


def ground(config: GroundRun) -> RunResult:
    """Ground a language model, and write the run to its folder, with `grounded/`.

    **Returns:** how it ended. **Raises:** `ValueError`, `DataError` and `FileNotFoundError` for data or a model that
    cannot be used.
    """
    if not config.data:
        raise ValueError("data is empty: give the --data folder of `llmrl kalm collect`")
    world, level, data = read(config.data)
    episodes = Episodes.of(data, STATE, returns=config.returns)
    wanted = float(np.quantile(np.asarray(data.reward).sum(1), WANTED)) if config.returns else None
    mesh = make_mesh(config.mesh) if config.mesh else None
    llama, variables, tokenizer, _ = grounded.language_model(config, world, config.run.seed, mesh)
    env = world.make(level)
    actions = env.action_space(env.default_params)
    model = WorldModel.around(llama, episodes, getattr(actions, "n", 0), config.states)
    order = np.random.default_rng(config.run.seed).permutation(len(data))
    held = order[: round(config.held_out * len(data))]
    texts = wordings(world, level, data)
    with doing("writing rows"):
        rows = rows_of(config, episodes, texts, order[len(held) :], tokenizer, config.run.seed)
        test = rows_of(config, episodes, texts, held, tokenizer, config.run.seed) if len(held) else None
    full = (rows.segments > 0).mean()
    print(f"{len(data)} episodes in {len(rows.tokens)} rows of {config.length} places, {full:.0%} full")
    updates = max(1, round(config.epochs * (len(rows.tokens) // config.sft.batch_size)))
    learner = make_grounding(config.sft, config.weights, model, variables, rows, episodes, updates, mesh)
    size = config.sft.batch_size
    evaluate = evaluation(model, test, episodes, size) if test is not None and len(test.tokens) >= size else None
    with opened(config.run, "kalm-ground") as folder:
        result = run_training(
            learner,
            config.run,
            num_updates=updates,
            evaluate=evaluate,
            full_config=config,
            folder=folder,
            shown={"loss": "loss", "state": "state", "action": "action", "text": "text"},
        )
        values: dict[str, Any] = {"rows": len(rows.tokens), "updates": result.update, **result.facts("places")}
        if not result.stopped:
            if evaluate is not None:
                values |= evaluate(result.state, jax.random.key(0))
            grounded.save(folder, config, world, model, result.state, tokenizer, wanted)
            if "explanation" in config.patterns and len(held):
                found = grounded.load(folder)
                rates = explaining.accuracy(found, episodes, texts, held[:TEST_ROWS].tolist())
                values |= {f"held_out/{name}": rate for name, rate in rates.items()}
        write_summary(folder, values)
        said = ", ".join(f"{name[9:]} {values[name]:.3f}" for name in sorted(values) if name.startswith("held_out/"))
        print(f"{result.update} updates{'; held-out episodes: ' + said if said else ''}; everything is in {folder}")
    return result
