"""Play of a learner on groups, by how many of an update's episodes are played at a time.

    python experiments/agent_at_once.py

The demo's agent, after a short imitation and after 40 updates of `grpo`: `utilisation`, and seconds of the processors
for each token that is read or written; and seconds of whole updates. `<out>/at-once.json` has the figures.
"""

from __future__ import annotations

import datetime
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from commands import command

from llmrl_jax.core.files import write_whole
from llmrl_jax.multiturn.group import GroupLearner
from llmrl_jax.multiturn.record import NOTHING
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.systems.agent.build import build
from llmrl_jax.systems.agent.clone import lesson, write_model
from llmrl_jax.systems.agent.config import DEMO, DEMO_CLONE, demo_config


@dataclass(frozen=True)
class Experiment:
    """Play with fewer rows than episodes."""

    demonstrations: int = 1500
    """Episodes of the expert that are imitated."""
    updates: int = 40
    """Updates of `grpo` before the second measurement."""
    at_once: tuple[int, ...] = (64, 32, 16, 8)
    """Episodes played at a time, of 64."""
    rollouts: int = 4
    """Rollouts of each, whose samples are the same for all."""
    seed: int = 0
    """Seed of everything."""
    out: str = "runs/agent_at_once"
    """Folder of the model and of the results."""


def measured(x: Experiment, agent: Any, config: Any, at_once: int, params: Any, frozen: Any) -> dict[str, Any]:
    """Rollouts with a policy, the first of which is also played once before."""
    learner = GroupLearner(replace(config, at_once=at_once), agent.policy, agent.env, agent.env_params, None)
    state = jax.jit(learner.init)(jax.random.key(x.seed)).replace(params=params, frozen=frozen)

    @jax.jit
    def play(state: Any, i: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(x.seed), i)
        rows = learner.begin(state, jax.random.fold_in(key, 0))
        played = learner.conversation.play(state.params, state.frozen, rows, jax.random.fold_in(key, 1), learner.steps)
        _, record, steps = played
        success = jnp.any(record.reward > 0, axis=1)
        return jnp.sum(record.role != NOTHING), steps.computed, jnp.sum(record.acts), jnp.mean(success)

    jax.block_until_ready(play(state, 0))
    rows = []
    for i in range(x.rollouts):
        started = time.process_time()
        tokens, computed, turns, success = map(float, jax.block_until_ready(play(state, i)))
        microseconds = (time.process_time() - started) / tokens * 1e6
        rows.append([round(tokens / computed, 3), round(microseconds, 1), int(turns), round(success, 3)])
    names = ("utilisation", "microseconds_a_token", "turns", "success")
    return {"at_once": at_once} | {name: list(column) for name, column in zip(names, zip(*rows))}


def main() -> None:
    """Imitate, measure, learn, measure again."""
    x = parse(Experiment, description=__doc__)
    out = Path(x.out)
    if not (out / "model").exists():
        untrained = build(replace(DEMO, tune="full"))
        learner, updates = lesson(untrained, replace(DEMO_CLONE, episodes=x.demonstrations), x.seed)
        state, update = learner.init(jax.random.key(x.seed)), jax.jit(learner.update, donate_argnums=0)
        for _ in range(updates):
            state, _ = update(state)
        write_model(untrained, state, out)
    config = demo_config(algo="grpo")
    agent = build(replace(config.agent, model=str(out / "model")))
    group = GroupLearner(config.group, agent.policy, agent.env, agent.env_params, None)
    state, update = jax.jit(group.init)(jax.random.key(x.seed)), jax.jit(group.update)
    results: dict[str, Any] = {}
    seconds = results["update_cpu_seconds"] = []
    for name, updates in (("after_imitation", 0), ("after_rl", x.updates)):
        for _ in range(updates):
            started = time.process_time()
            state, _ = jax.block_until_ready(update(state))
            seconds.append(round(time.process_time() - started, 2))
        results[name] = [measured(x, agent, config.group, n, state.params, state.frozen) for n in x.at_once]
    record = {
        "command": command(Path(__file__).name, x),
        "date": datetime.date.today().isoformat(),
        **info.stamp("experiments"),
        "machine": info.machine(),
        **results,
    }
    write_whole(out / "at-once.json", json.dumps(record, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
