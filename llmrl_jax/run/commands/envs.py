"""List, describe and play the worlds; have a bot demonstrate them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from llmrl_jax.run.commands._demos import demos


def list_ids(filter: Annotated[str, tyro.conf.Positional] = "") -> None:
    """List the ids of all worlds.

    Args:
        filter: Part of the ids to list, in any case; empty lists all.
    """
    import envs_jax

    known = envs_jax.ids()
    found = [id for id in known if filter.lower() in id.lower()]
    if not found:
        from envs_jax.registry import nearest

        raise ValueError(f"no id contains {filter!r}{nearest(filter, known)}; {len(known)} are registered")
    print("\n".join(found))


def show(id: tyro.conf.Positional[str], seed: int = 0) -> None:
    """Show a world's spaces, actions and parameters, and its first observation with its strings.

    Args:
        id: Id of the world, as `llmrl envs list` spells it; options after a question mark.
        seed: Seed of the first episode.
    """
    import jax

    import envs_jax
    from llmrl_jax.run import leaves as trees

    env, params = envs_jax.make(id)
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
    """Play a discrete world: type an action's number, name or key; r starts anew, ? helps, q quits.

    Reads a key at a time from a terminal (arrows too), else a line at a time; `--actions` needs neither.

    Args:
        id: Id of the world, as `llmrl envs list` spells it; options after a question mark.
        seed: Seed of the episodes.
        picture: How to draw the state: colour (24-bit terminal), ascii, off; auto draws in colour on a terminal.
        max_steps: Steps after which to stop; 0: none.
        actions: Actions to take instead of reading any, between commas, by number, name or key ("go forward, 2, r").
        gif: Where to write what was played as a moving picture.
    """
    from llmrl_jax.run.play import Game, has_picture, typed

    live = not actions and sys.stdin.isatty() and sys.stdout.isatty()
    if picture == "auto":
        import envs_jax

        picture = "colour" if sys.stdout.isatty() and has_picture(envs_jax.make(id)[0]) else "off"
    game = Game(id, seed=seed, picture=picture, max_steps=max_steps, gif=gif, live=live)
    game.play(iter(game.script(actions) if actions else typed() if live else sys.stdin))


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

    from llmrl_jax.run import leaves as trees

    if trees.is_key(x):
        return "key"
    x = np.asarray(x)
    kind = f"{x.dtype.name}{list(x.shape)}"
    return f"{kind} {x.tolist()}" if x.size <= 16 else f"{kind} {x.ravel()[:12].tolist()} ..."


def _print_strings(strings: dict[str, str]) -> None:
    for name, text in strings.items():
        print(f"  {name}:" + "".join(f"\n    {line}" for line in text.split("\n")))


COMMANDS: dict[str, Callable[..., Any]] = {"list": list_ids, "show": show, "play": play, "demos": demos}
