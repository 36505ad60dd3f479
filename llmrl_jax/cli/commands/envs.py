"""List, describe and play the environments; have a bot demonstrate them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro


def list_ids(
    filter: Annotated[str, tyro.conf.Positional] = "", show: Literal["about", "ids"] = "about", json: bool = False
) -> None:
    """List the environments by family, with a line about each.

    Args:
        filter: Substring of the ids to list, case-insensitive; empty: all.
        show: What to print: about (families and descriptions), or ids (only ids, one per line, for scripts).
        json: Print id, family and description of each as JSON.
    """
    import envs_jax

    registered = envs_jax.ids()
    matching = [id for id in registered if filter.lower() in id.lower()]
    if not matching:
        from llmrl_jax.core.checks import nearest

        raise ValueError(f"no id contains {filter!r}{nearest(filter, registered)}; {len(registered)} are registered")
    if json:
        from llmrl_jax.core.files import json_text

        specs = map(envs_jax.spec, matching)
        print(json_text([{"id": s.id, "family": s.family, "about": s.about} for s in specs]))
        return
    if show == "ids":
        print("\n".join(matching))
        return
    families: dict[str, list[str]] = {}
    for id in matching:
        families.setdefault(envs_jax.spec(id).family, []).append(id)
    for family, ids in families.items():
        width = max(map(len, ids))
        lines = [f"  {id:{width}}  {envs_jax.spec(id).about}".rstrip() for id in ids]
        print("\n".join([f"{family} ({len(ids)}): {_description(family)}".removesuffix(": "), *lines, ""]))
    print("`llmrl envs show ID` describes one of them; `--show ids` prints only the ids.")


def _description(family: str) -> str:
    """The first sentence of the docstring of a family's folder; empty for those of other packages."""
    from llmrl_jax.cli.main import first_sentence

    module = sys.modules.get(f"envs_jax.{family}")
    return first_sentence(getattr(module, "__doc__", None))


def show(id: tyro.conf.Positional[str], seed: int = 0) -> None:
    """Show an environment's spaces, actions and parameters, and its first observation with its strings.

    Args:
        id: Id of the environment, as in `llmrl envs list`; options after a question mark.
        seed: Seed of the first episode.
    """
    import jax

    import envs_jax
    from llmrl_jax.core.activity import doing
    from llmrl_jax.core.checks import check_seed
    from llmrl_jax.run import pytrees as trees

    check_seed("seed", seed)
    env, params = envs_jax.make(id)
    with doing("compiling the first reset"):
        obs, _ = jax.jit(env.reset)(jax.random.key(seed), params)
    print(f"{env.id}\n\nobservation space:")
    for name, space in _named_spaces(env.observation_space(params)):
        print(f"  {name}: {_space(space)}")
    print(f"action space: {_space(env.action_space(params))}")
    names = _action_names(env)
    print("".join(f"  {i}: {name}\n" for i, name in enumerate(names)), end="")
    print("parameters:")
    for name, leaf in trees.named_leaves(params).items():
        print(f"  {name or 'value'}: {_array(leaf)}")
    print(f"\nfirst observation (seed {seed}):")
    for name, leaf in trees.named_leaves(obs).items():
        print(f"  {name or 'array'}: {_array(leaf)}")
    _print_strings(env.describe(obs))


def play(
    id: tyro.conf.Positional[str],
    seed: int = 0,
    picture: Literal["auto", "colour", "ascii", "off"] = "auto",
    max_steps: int = 0,
    actions: str = "",
    gif: Path | None = None,
) -> None:
    """Play a discrete environment: type an action's number, name or key; r restarts, ? helps, q quits.

    Reads one key at a time from a terminal (including arrows), else one line at a time; `--actions` needs neither.

    Args:
        id: Id of the environment, as in `llmrl envs list`; options after a question mark.
        seed: Seed of the episodes.
        picture: How to draw the state: colour (24-bit terminal), ascii, off; auto: colour on a terminal.
        max_steps: Steps after which to stop; 0: none.
        actions: Actions to take instead of reading input, comma-separated, by name, key or number ("go forward, 2, r");
            a digit that is a key, as 1 to 6 in Crafter, is no number.
        gif: File for an animation of the game; missing folders above it are created.
    """
    from envs_jax.env import has_picture
    from llmrl_jax.cli.play import Game, typed

    live = not actions and sys.stdin.isatty() and sys.stdout.isatty()
    if picture == "auto":
        import envs_jax

        picture = "colour" if sys.stdout.isatty() and has_picture(envs_jax.make(id)[0]) else "off"
    game = Game(id, seed=seed, picture=picture, max_steps=max_steps, gif=gif, live=live)
    game.play(iter(game.script(actions) if actions else typed() if live else sys.stdin))


def demos(
    id: tyro.conf.Positional[str],
    out: Path,
    episodes: int = 1000,
    seed: int = 0,
    keep: Literal["successes", "failures", "all"] = "successes",
    batch: int = 256,
) -> None:
    """Write demonstrations of BabyAI's bot in a level, with the level's text: parquet, one row per step.

    Columns: episode, step, seed, level, mission, text, action, action_name, reward, terminated, truncated, success (of
    the episode), direction, position.

    Args:
        id: Id of a level, as in `llmrl envs list BabyAI`; options after a question mark (`describe=faithful` and
            `language=french` change the wording of the text).
        out: The file to write, .parquet; missing folders above it are created.
        episodes: Episodes to play.
        seed: Seed of the episodes.
        keep: Which episodes to write: successes, failures, all.
        batch: Episodes played at once; the file does not depend on it.
    """
    import envs_jax
    from llmrl_jax.agents.agent import play_episodes
    from llmrl_jax.agents.babyai import babyai_steps, text_id, write_demos
    from llmrl_jax.core.checks import COUNT, check_seed, in_interval
    from llmrl_jax.core.files import check_writable
    from llmrl_jax.run import info
    from llmrl_jax.systems.glam.build import make_agent
    from llmrl_jax.systems.glam.config import GlamConfig

    check_seed("seed", seed)
    for name, value in (("episodes", episodes), ("batch", batch)):
        in_interval(name, value, COUNT)
    if out.suffix == ".parquet":
        check_writable(out, "--out")
    level = text_id(id)
    world: Any = envs_jax.make(level)[0]
    bot = make_agent(GlamConfig(agent="bot", env=level, num_actions=len(world.action_names), reward_scale=1.0))
    started = time.monotonic()
    see = babyai_steps(world)
    played = play_episodes(bot, (), (), seed=seed, episodes=episodes, record=see, batch_size=batch)
    facts = {"player": "bot", "versions": info.versions()}
    written = write_demos(out, played, world, seed=seed, facts=facts, keep=keep)
    print(
        f"{out} has {written.saved} of {written.played} episodes, {written.steps} steps in all; the bot succeeded in "
        f"{written.succeeded} ({time.monotonic() - started:.1f} s)"
    )


def _named_spaces(space: Any) -> list[tuple[str, Any]]:
    from envs_jax import spaces

    return list(space.spaces.items()) if isinstance(space, spaces.Dict) else [("array", space)]


def _space(space: Any) -> str:
    import numpy as np

    from envs_jax import spaces

    if isinstance(space, spaces.Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, spaces.Box):
        low, high = np.min(space.low), np.max(space.high)
        return f"Box {np.dtype(space.dtype).name}{list(space.shape)} in [{low}, {high}]"
    return str(space)


def _action_names(env: Any) -> tuple[str, ...]:
    try:
        return env.action_names
    except TypeError:
        return ()


def _array(x: Any) -> str:
    import numpy as np

    from llmrl_jax.run import pytrees as trees

    if trees.is_key(x):
        return "key"
    x = np.asarray(x)
    kind = f"{x.dtype.name}{list(x.shape)}"
    return f"{kind} {x.tolist()}" if x.size <= 16 else f"{kind} {x.ravel()[:12].tolist()} ..."


def _print_strings(strings: dict[str, str]) -> None:
    for name, text in strings.items():
        print(f"  {name}:" + "".join(f"\n    {line}" for line in text.split("\n")))


COMMANDS: dict[str, Callable[..., Any]] = {"list": list_ids, "show": show, "play": play, "demos": demos}
