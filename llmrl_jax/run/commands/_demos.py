"""`llmrl envs demos`: what BabyAI's bot does, as text."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import tyro


def demos(
    id: tyro.conf.Positional[str],
    out: Path,
    episodes: int = 1000,
    seed: int = 0,
    keep: Literal["successes", "failures", "all"] = "successes",
    batch: int = 256,
) -> None:
    """Write what BabyAI's bot does in a level, with the level's text: parquet, one row for each step.

    Columns: episode, step, seed, level, mission, text, action, action_name, reward, terminated, truncated, success (of
    the episode), direction, position.

    Args:
        id: Id of a level, as `llmrl envs list BabyAI` spells it; options after a question mark (`describe=faithful` and
            `language=french` say how the text is worded).
        out: The file to write, .parquet.
        episodes: Episodes to play.
        seed: Seed of the episodes.
        keep: Which episodes are written: successes, failures, all.
        batch: Episodes played at once; the file does not depend on it.
    """
    import envs_jax
    from llmrl_jax.agents.demonstration_file import write_demos
    from llmrl_jax.agents.demonstrations import play_episodes, text_id
    from llmrl_jax.run import info
    from llmrl_jax.systems.glam.agents import make_agent
    from llmrl_jax.systems.glam.config import GlamConfig

    level = text_id(id)
    world: Any = envs_jax.make(level)[0]
    bot = make_agent(GlamConfig(agent="bot", env=level, num_actions=len(world.action_names), reward_scale=1.0))
    started = time.monotonic()
    played = play_episodes(bot, (), (), seed=seed, episodes=episodes, batch_size=batch)
    facts = {"player": "bot", "versions": info.versions()}
    written = write_demos(out, played, world, seed=seed, facts=facts, keep=keep)
    print(
        f"{out} has {written.kept} of {written.played} episodes, {written.steps} steps in all; the bot succeeded in "
        f"{written.succeeded} ({time.monotonic() - started:.1f} s)"
    )
