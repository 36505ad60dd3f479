"""Runs that ask a chat model for a potential: their data, the model, a folder that can be continued, the artifact."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs_jax.env import Environment
from llmrl_jax.chat import ChatModel
from llmrl_jax.core import config as configs
from llmrl_jax.core.files import write_whole
from llmrl_jax.data.transitions import DataError
from llmrl_jax.run.config import refuse_changes
from llmrl_jax.run.folder import opened
from llmrl_jax.systems.bkrl import potentials
from llmrl_jax.systems.bkrl.build import make_env
from llmrl_jax.systems.bkrl.collect import EpisodeDataset, Windows, read_episodes, read_npy
from llmrl_jax.systems.bkrl.config import WindowConfig
from llmrl_jax.systems.bkrl.potentials import Kind, Manifest
from llmrl_jax.systems.bkrl.prompts import TEXT, World, caption, world_of
from llmrl_jax.workflows.chat_model import Chat, make_chat


SCALE_WINDOWS = 2048
"""Windows by which potentials are scaled."""
VALIDATION = 0.2
"""The fraction of the episodes with which potentials are tested."""
DATA = "data.sha256"
"""The hash of the data with which a run began, beside its config.json."""


@dataclass(frozen=True)
class AdviceRun:
    """A run that asks a chat model about windows."""

    folder: Path
    chat: Chat
    env: Environment
    world: World
    data: EpisodeDataset
    rng: np.random.Generator
    train: np.ndarray
    """Numbers of the episodes by which programs are improved and to which preference models are fitted."""
    validation: np.ndarray
    """Numbers of the others, with which programs are compared and networks validated. `prefer` asks the model about
    them too, and `goals` about all episodes."""
    remote: bool = False
    """Whether the model is on a server, where it may have a price."""

    def cost(self) -> str:
        """The number of requests so far and their cost, for people."""
        spent = self.chat.spent
        parts = [f"{spent.calls:,} requests", f"{spent.tokens:,} tokens"]
        if self.remote:
            parts.append("an unknown price" if spent.usd is None else f"{spent.usd:.2f} USD")
        return ", ".join(parts)

    def spent(self, stopped: str) -> dict[str, Any]:
        """The same for a summary. **Arguments:** `stopped`, why the budget ended the run; empty: it did not."""
        spent = self.chat.spent
        values = {"calls": spent.calls, "tokens": spent.tokens, "usd": spent.usd}
        return values | ({"stopped": stopped} if stopped else {})

    def captions(self, windows: Windows) -> list[str]:
        """The windows in words."""
        book = self.env.captions[TEXT]
        texts = [[book.render(row) for row in rows] for rows in windows.obs[TEXT]]
        return [caption(text, actions, self.world.verbs) for text, actions in zip(texts, windows.action.tolist())]


def read_data(config: WindowConfig, env: Environment) -> EpisodeDataset:
    """The collected episodes. **Raises:** what `read_episodes` and `read_npy` raise, and `ValueError` for episodes of
    another environment."""
    if not config.data:
        raise ValueError("data is empty: give the --data folder of a run of `llmrl bkrl collect`")
    path = Path(config.data)
    if path.suffix == ".npy":
        return read_npy(path, env)
    data = read_episodes(path)
    space: Any = env.observation_space(env.default_params)
    for name in space.spaces:
        if name not in data.obs:
            raise ValueError(f"the episodes of {path} lack {name!r}, which {env.id} has: choose the --env of the data")
        shape, recorded = list(space.spaces[name].shape), list(data.obs[name].shape[1:])
        if shape != recorded:
            raise ValueError(
                f"{name!r} has the shape {recorded} in {path} and {shape} in {env.id}: choose the --env of the data"
            )
    largest = int(data.action.max(initial=0))
    if largest >= len(env.action_names):
        raise ValueError(
            f"{path} has action {largest}, and {env.id} {len(env.action_names)} actions: choose the --env of the data"
        )
    return data


@contextlib.contextmanager
def advice_run(config: Any, command: str, scripted: Callable[[World], ChatModel]) -> Iterator[AdviceRun]:
    """A run's folder with its chat model and data; a run of that name is continued with `config.run.resume`, from the
    cache of replies.

    **Arguments:** `config`, with `windows`, `chat` and `run`; `command`, prefix of an unnamed run's folder; `scripted`,
    makes the model `scripted`.
    **Raises:** what `read_data` raises; `ValueError` for a run that is continued with other settings, and `DataError`
    with other data.
    """
    config.chat.check_usable()
    env = make_env(config.windows.env)
    world = world_of(env)
    data = read_data(config.windows, env)
    train, validation = data.split(VALIDATION)
    with opened(config.run, command) as folder:
        if config.run.resume:
            refuse_changes(folder, configs.load_config(type(config), folder / "config.json"), config)
            _refuse_other_data(folder, config.windows.data, data.digest)
        write_whole(folder / DATA, data.digest + "\n")
        configs.save_config(config, folder / "config.json")
        chat = make_chat(config.chat, scripted(world), folder)
        try:
            rng = np.random.default_rng((config.run.seed, config.windows.seed))
            yield AdviceRun(folder, chat, env, world, data, rng, train, validation, config.chat.remote)
        finally:
            chat.close()


def _refuse_other_data(folder: Path, path: str, digest: str) -> None:
    """**Raises** `DataError` for other data than those with which a run began: other windows would be sampled, and paid
    for again. Runs of older versions have no data hash; they resume unchecked."""
    note = folder / DATA
    began = note.read_text().strip() if note.exists() else digest
    if began != digest:
        raise DataError(
            f"{path} has other episodes (SHA-256 {digest[:12]}...) than those with which {folder} began "
            f"({began[:12]}...): put these back, or begin another run"
        )


def save_potential(
    run: AdviceRun,
    kind: Kind,
    potential: Any,
    prompt: str,
    files: tuple[str, ...],
    *,
    options: dict[str, Any] | None = None,
    report: dict[str, Any],
    author: str = "",
) -> dict[str, float]:
    """Write the manifest of a potential whose files are in the run's folder.

    **Arguments:** `potential`, a `llmrl_jax.rl.shaping.Potential` with `reads`; `prompt`, hash of the prompts;
    `options`, of the kind; `report`, measurements; `author`, who made it, where that is not the run's chat model.
    **Returns:** its mean, standard deviation, lowest and highest value on collected windows.
    **Raises:** `ValueError` for a potential that is the same on all of them.
    """
    windows = run.data.sample(np.random.default_rng(0), SCALE_WINDOWS, potential.window)
    scale, summary = potentials.fixed_scale(potential, windows)
    statistics = {f"potential_{name}": x for name, x in summary.items()}
    potentials.save_manifest(
        run.folder,
        Manifest(
            kind=kind,
            family=run.world.family,
            observation=potentials.observation_spec(run.env, tuple(potential.reads)),
            actions=tuple(run.env.action_names),
            window=potential.window,
            scale=scale,
            model=author or run.chat.model.name,
            prompt=prompt,
            data=run.data.digest,
            files=dict.fromkeys(files, ""),
            options=options or {},
            report=report | statistics,
        ),
    )
    return statistics
