"""Episodes of an agent that seeks novelty: in memory, sampled as windows; on disk; and their collection.

`collect` is the implementation of `llmrl bkrl collect`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from envs_jax.env import Environment
from envs_jax.npy import array_of, items_of, read_objects
from llmrl_jax.agents.play import actor_of, key_pairs, make_player
from llmrl_jax.core.files import digest_of, new_draft
from llmrl_jax.data.parquet import arrow, read_parquet, write_parquet
from llmrl_jax.data.transitions import DataError, Transitions, episode_lengths
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.novelty import RND
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.rl.shaping import NO_ACTION
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.bkrl.build import make_env, make_features, make_policy, observed_parts, playable
from llmrl_jax.systems.bkrl.config import CollectRun
from llmrl_jax.systems.bkrl.prompts import TEXT, world_of
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment
from llmrl_jax.workflows.rl_training import evaluated


FLAT = ("action", "reward", "terminated", "truncated")
"""The fields of `EpisodeDataset` that have an item per step."""


@dataclass(frozen=True)
class Windows:
    """`B` windows of `n` actions; `n + 1` observations each."""

    obs: Any
    """Leaves `[B, n + 1, ...]`, the newest last."""
    action: Int[np.ndarray, "B n"]
    time: Int[np.ndarray, " B"]
    """The step of the episode at which the window begins."""
    episode: Int[np.ndarray, " B"]
    has_next: Bool[np.ndarray, " B"]
    """Whether a step of the episode follows the last observation. None follows a terminal state; what would follow a
    truncation is unknown."""
    return_to_go: Float[np.ndarray, " B"]
    """Discounted sum of the rewards after the last observation; 0 if no step follows."""
    return_from_start: Float[np.ndarray, " B"]
    """Discounted sum of the rewards from the first step of the window on."""

    def __len__(self) -> int:
        return len(self.time)


def pad_starts(windows: Windows, missing: Int[np.ndarray, " B"]) -> Windows:
    """Windows as shaping shows them near the start of an episode: `NO_ACTION` in the place of the first `missing`
    actions of each, and the first observation after these in the place of those before it."""
    step = np.arange(windows.action.shape[1] + 1)
    rows, first = np.arange(len(windows))[:, None], np.asarray(missing)[:, None]
    obs = jax.tree.map(lambda x: x[rows, np.maximum(step, first)], windows.obs)
    action = np.where(step[:-1] < first, NO_ACTION, windows.action).astype(windows.action.dtype)
    return dataclasses.replace(windows, obs=obs, action=action)


@dataclass(frozen=True)
class EpisodeDataset:
    """`E` episodes of `S` steps in all, in order."""

    obs: Any
    """Leaves `[S + E, ...]`: those of each episode before every step, and at its end."""
    action: Int[np.ndarray, " S"]
    reward: Float[np.ndarray, " S"]
    terminated: Bool[np.ndarray, " S"]
    truncated: Bool[np.ndarray, " S"]
    digest: str
    """SHA-256 of the files that they were read from."""

    @cached_property
    def lengths(self) -> Int[np.ndarray, " E"]:
        """Steps of each episode."""
        return episode_lengths(self.terminated, self.truncated)

    @cached_property
    def starts(self) -> Int[np.ndarray, " E"]:
        """The first step of each episode. Its first observation is at `starts[i] + i`."""
        return np.cumsum(self.lengths) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def split(self, fraction: float) -> tuple[Int[np.ndarray, " A"], Int[np.ndarray, " B"]]:
        """Episodes to train with and episodes to test with: every `1 / fraction`-th one is for tests.

        **Raises:** `DataError` for so few episodes that none would be for tests.
        """
        period = max(2, round(1 / fraction))
        if len(self) < period:
            raise DataError(
                f"there are {len(self)} episodes; at least {period} are needed, so that one is for tests: collect more"
            )
        is_test = np.arange(len(self)) % period == period - 1
        return np.flatnonzero(~is_test), np.flatnonzero(is_test)

    def sample(
        self, rng: np.random.Generator, count: int, actions: int, episodes: Any = None, *, gamma: float = 0.99
    ) -> Windows:
        """Windows of `actions` steps: an episode with so many steps, uniformly, and a step in it, uniformly.

        **Arguments:** `episodes`, the numbers of those to draw from (None: all); `gamma`, discount of rewards to come.
        **Raises:** `DataError` if no episode is long enough.
        """
        candidates = np.arange(len(self)) if episodes is None else np.asarray(episodes)
        long_enough = candidates[self.lengths[candidates] >= actions]
        if not len(long_enough):
            raise DataError(
                f"none of {len(candidates)} episodes has {actions} steps: collect longer ones, or take a shorter window"
            )
        episode = rng.choice(long_enough, count)
        time = rng.integers(0, self.lengths[episode] - actions + 1)
        return self.windows_at(episode, time, actions, gamma=gamma)

    def windows_at(self, episode: Any, time: Any, actions: int, *, gamma: float = 0.99) -> Windows:
        """The windows that begin at given steps of given episodes."""
        episode, time = np.asarray(episode), np.asarray(time)
        first = self.starts[episode] + time
        steps = first[:, None] + np.arange(actions)
        observations = (first + episode)[:, None] + np.arange(actions + 1)
        end = time + actions
        last = self.starts[episode] + end
        has_next = end < self.lengths[episode]
        to_go = self.returns_to_go(gamma)
        largest = len(to_go) - 1
        return Windows(
            obs=jax.tree.map(lambda x: x[observations], self.obs),
            action=self.action[steps],
            time=time,
            episode=episode,
            has_next=has_next,
            return_to_go=np.where(has_next, to_go[np.minimum(last, largest)], 0.0).astype(np.float32),
            return_from_start=np.where(time == self.lengths[episode], 0.0, to_go[np.minimum(first, largest)]).astype(
                np.float32
            ),
        )

    def returns_to_go(self, gamma: float) -> Float[np.ndarray, " S"]:
        """Discounted sum of the rewards from each step on, in its episode."""
        total, returns = 0.0, np.zeros(len(self.reward))
        ends = self.terminated | self.truncated
        for i in range(len(self.reward) - 1, -1, -1):
            total = float(self.reward[i]) + (0.0 if ends[i] else gamma * total)
            returns[i] = total
        return returns

    def transitions(self) -> Transitions:
        """The same as steps, with the observation that each reached."""
        number = np.repeat(np.arange(len(self)), self.lengths)
        before = np.arange(len(self.action)) + number
        take = lambda index: jax.tree.map(lambda x: x[index], self.obs)  # noqa: E731
        flags = self.terminated, self.truncated
        parts = (take(before), self.action, self.reward, take(before + 1), *flags)
        return Transitions(*jax.tree.map(jnp.asarray, parts))


def from_transitions(steps: Transitions, digest: str = "") -> EpisodeDataset:
    """Whole episodes, from their steps."""
    host = jax.tree.map(np.asarray, steps)
    lengths = episode_lengths(host.terminated, host.truncated)
    ends = np.cumsum(lengths)

    def joined(before: np.ndarray, after: np.ndarray) -> np.ndarray:
        return np.insert(before, ends, after[ends - 1], axis=0)

    obs = jax.tree.map(joined, host.obs, host.next_obs)
    action = host.action.astype(np.int32)
    return EpisodeDataset(obs, action, host.reward.astype(np.float32), host.terminated, host.truncated, digest)


def write_episodes(path: Path, data: EpisodeDataset) -> None:
    """Write episodes as parquet, atomically."""
    write_parquet(path, data.transitions())


def read_episodes(path: str | Path) -> EpisodeDataset:
    """Read a parquet file of `write_episodes`, or all of a folder, in the order of their names.

    **Raises:** `FileNotFoundError`; `DataError` for files that are none, are damaged, or do not belong together.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted((path / "collected").glob("*.parquet")) or sorted(path.glob("*.parquet"))
        if not files:
            raise FileNotFoundError(f"there are no collected episodes in {path}: `llmrl bkrl collect` writes them")
    else:
        files = [path]
    parts = []
    for file in files:
        steps = read_parquet(file)
        if not isinstance(steps, Transitions):
            raise DataError(f"{file} has no steps of episodes; a file of `llmrl bkrl collect` is needed")
        parts.append(from_transitions(steps))
    return joined(parts, digest_of(*files), [str(file) for file in files])


def joined(parts: Sequence[EpisodeDataset], digest: str, names: Sequence[str] = ()) -> EpisodeDataset:
    """The episodes of several parts. **Raises:** `DataError` if their observations have other parts or shapes."""
    first = shapes(parts[0].obs)
    for i, part in enumerate(parts):
        if shapes(part.obs) != first:
            label = names[i] if names else f"part {i}"
            raise DataError(f"{label} has observations {shapes(part.obs)}, and the first part {first}: read one world")
    join: Any = lambda *xs: np.concatenate(xs)  # noqa: E731
    obs = jax.tree.map(join, *(part.obs for part in parts))
    flat = {name: join(*(getattr(part, name) for part in parts)) for name in FLAT}
    return EpisodeDataset(obs=obs, **flat, digest=digest)


def shapes(obs: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The parts of observations, with their shapes and types."""
    return {name: [list(x.shape[1:]), np.dtype(x.dtype).name] for name, x in sorted(obs.items())}


# --- the published layout: a list of dicts in an npy file (`train_rnd.py --precollect`) -------------------------------
#
# NumPy writes such a list by pickling it. `envs_jax.npy` reads it, and runs nothing that is in it.

SCALES = np.array([10, 5, 3], np.float32)
"""By which the published images of BabyAI are divided, per plane."""
STEPS = ("action", "timestep", "reward", "terminated", "truncated", "infos")
"""The entries of an episode that have one item per action."""


def check_images(parts: Container[str], env: Environment) -> None:
    """**Raises** `ValueError` for observations without an image, which the published layout needs."""
    if "image" not in parts:
        raise ValueError(
            f"the published layout (--npy) has pictures, which these observations of {env.id} lack: collect with an "
            "--env without ?image=none"
        )


def episodes_of(data: EpisodeDataset, env: Environment) -> list[dict[str, Any]]:
    """The published list. **Raises:** as `check_images`."""
    world = world_of(env)
    check_images(data.obs, env)
    episodes = []
    for i, (start, length) in enumerate(zip(data.starts, data.lengths)):
        observations = slice(start + i, start + i + length + 1)
        steps = slice(start, start + length)
        image = data.obs["image"][observations].astype(np.float32).transpose(0, 3, 1, 2)
        parts: dict[str, Any] = {
            "image": image / SCALES.reshape(1, 3, 1, 1) if world.family == "babyai" else image / np.float32(255),
            "description": _strings(env, TEXT, data.obs[TEXT][observations]),
        }
        if world.family == "babyai":
            parts |= {
                "direction": data.obs["direction"][observations].tolist(),
                "mission": _strings(env, "mission", data.obs["mission"][observations]),
            }
        episodes.append(
            parts
            | {
                "action": data.action[steps].tolist(),
                "timestep": list(range(int(length))),
                "reward": data.reward[steps].tolist(),
                "terminated": data.terminated[steps].tolist(),
                "truncated": data.truncated[steps].tolist(),
                "infos": [{} for _ in range(int(length))],
            }
        )
    return episodes


def write_npy(path: Path, data: EpisodeDataset, env: Environment) -> None:
    """Write episodes in the published layout, atomically."""
    array = np.empty(len(data), object)
    array[:] = episodes_of(data, env)
    with new_draft(path) as draft, draft.open("wb") as file:
        np.save(file, array, allow_pickle=True)


def read_npy(path: Path, env: Environment) -> EpisodeDataset:
    """Read a file of the published layout, of BabyAI; missions are left out, as no potential depends on them.

    **Arguments:** `env`, for its phrases and actions.
    **Raises:** `ValueError` for another environment; `DataError` for a file of another layout, or with values that this
    environment does not have.
    """
    if world_of(env).family != "babyai":
        raise ValueError(f"{path} is read for {env.id}, but published files can be read for BabyAI only: use parquet")
    episodes = read_objects(path, DataError)
    if not episodes:
        raise DataError(f"{path} has no episodes")
    parts = [_episode(f"{path}: episode {i}", episode, env) for i, episode in enumerate(episodes)]
    return joined(parts, digest_of(path))


def _episode(location: str, episode: Any, env: Environment) -> EpisodeDataset:
    needed = {"image", "description", "direction", "action", "reward"}
    if not isinstance(episode, dict) or not needed <= set(episode):
        raise DataError(f"{location} is not of the published layout: it needs {', '.join(sorted(needed))}")
    steps = items_of(episode["action"])
    if not steps:
        raise DataError(f"{location} has no list of actions")
    count = len(steps)
    action = _numbers(location, "action", steps, count, (0, len(env.action_names) - 1), integer=True)
    last = np.arange(count) == count - 1
    flags = episode.get("terminated", last.tolist())
    terminated = _numbers(location, "terminated", flags, count, (0, 1), integer=True).astype(bool)
    if terminated[:-1].any():
        raise DataError(f"{location} is terminated at step {int(terminated.argmax())} of {count}, and goes on")
    obs = {
        "image": _image(location, episode["image"], count + 1),
        "direction": _numbers(location, "direction", episode["direction"], count + 1, (0, 3), integer=True),
        TEXT: _captions(location, episode["description"], count + 1, env),
    }
    reward = _numbers(location, "reward", episode["reward"], count, (-1e9, 1e9)).astype(np.float32)
    return EpisodeDataset(obs, action, reward, terminated, last & ~terminated, digest="")


def _numbers(
    location: str, name: str, values: Any, count: int, span: tuple[float, float], *, integer: bool = False
) -> np.ndarray:
    """Numbers of an entry: int32 if they are whole. **Arguments:** `span`, the lowest and the highest."""
    items = items_of(values)
    if items is None or len(items) != count:
        contents = "no list" if items is None else f"{len(items)} items"
        raise DataError(
            f"{location} has {contents} as {name!r}; {count} numbers are needed, for {count} steps or observations"
        )
    for item in items:
        if not isinstance(item, int if integer else int | float) or not span[0] <= item <= span[1] or item != item:
            description = f"whole numbers from {span[0]} to {span[1]}" if integer else "numbers of at most 1e9"
            raise DataError(f"{location} has {str(item)[:40]!r} in {name!r}; {description} are needed")
    return np.array(items, np.int32 if integer else np.float64)


def _image(location: str, values: Any, count: int) -> np.ndarray:
    image = array_of(values, (count, 3, 7, 7))
    if image is None:
        raise DataError(f"{location} has no images of the shape {[count, 3, 7, 7]}: one for each observation is needed")
    codes = image * SCALES.reshape(1, 3, 1, 1)
    integers = np.rint(codes)
    if not (np.abs(codes - integers) < 1e-3).all() or image.min() < 0 or image.max() > 1:
        low, high = float(image.min()), float(image.max())
        raise DataError(
            f"{location} has images from {low:g} to {high:g} that are no codes divided by {SCALES.astype(int).tolist()}"
        )
    return integers.astype(np.uint8).transpose(0, 2, 3, 1)


def _captions(location: str, values: Any, count: int, env: Environment) -> np.ndarray:
    texts = items_of(values)
    if texts is None or len(texts) != count or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{location} has no {count} texts as 'description': one for each observation is needed")
    book, size = env.captions[TEXT], env.observation_space(env.default_params).spaces[TEXT].shape[0]  # type: ignore
    captions = np.full((count, size), -1, np.int16)
    for i, text in enumerate(texts):
        try:
            captions[i] = book.caption(book.parse(text), size)
        except ValueError as error:
            raise DataError(f"{location} says {text[:200]!r}, which {env.id} does not say: {error}") from error
    return captions


def _strings(env: Environment, part: str, captions: np.ndarray) -> list[str]:
    return [env.captions[part].render(row) for row in captions]


# --- collection -------------------------------------------------------------------------------------------------------

FOLDER = "collected"
CHUNK = 32
"""Steps between transfers to the host."""


def experiment(config: CollectRun) -> Experiment:
    """The environment, the agent that seeks novelty, and its learner."""
    agent, env = config.agent, make_env(config.agent.env)
    names = observed_parts(env, world_of(env).family)
    env = playable(env, names)
    policy, space = make_policy(env, names, agent.network), env.observation_space(env.default_params)
    bonus = RND(agent.rnd, make_features(space, names, flat=not agent.rnd.channels))  # type: ignore[arg-type]
    mesh = make_mesh(agent.mesh) if agent.mesh else None
    learner = make_ppo(agent.ppo, env, env.default_params, policy, mesh, bonus=bonus)
    shown_metrics = {"success": "success", "rnd_reward": "novelty"}
    return evaluated(
        Experiment(config, learner, policy, env, env.default_params, about={"env": agent.env}, shown=shown_metrics)
    )


def collect(config: CollectRun) -> RunResult:
    """Train an agent that seeks novelty, and write its episodes to `collected/` in the run's folder.

    **Returns:** how the training ended. **Raises:** `ModuleNotFoundError` without pyarrow; what `world_of` and
    `llmrl_jax.run.loop.train` raise.
    """
    arrow()
    env = make_env(config.agent.env)
    space: Any = env.observation_space(env.default_params)
    if config.npy:
        check_images(space.spaces, env)
    x, full_env = experiment(config), playable(env, tuple(space.spaces))
    play = make_player(full_env, full_env.default_params, actor_of(x.policy), lambda obs, state: obs, chunk=CHUNK)
    with opened(config.run, "bkrl-collect") as folder:

        def write(state: Any, key: jax.Array) -> dict[str, float]:
            """Write one set of episodes. Returns its statistics."""
            played = play((state.params, state.frozen), key_pairs(key, config.episodes))
            steps = [episode.transitions(truncated=episode.truncated & ~episode.terminated) for episode in played]
            data = from_transitions(jax.tree.map(lambda *x: np.concatenate(x), *steps))
            file = folder / FOLDER / f"update-{int(state.update):06d}.parquet"
            write_episodes(file, data)
            if config.npy:
                write_npy(file.with_suffix(".npy"), data, env)
            return {
                "collected_episodes": float(len(data)),
                "collected_return": float(np.add.reduceat(data.reward, data.starts).mean()),
                "collected_length": float(data.lengths.mean()),
            }

        def facts(result: RunResult) -> dict[str, Any]:
            if result.stopped:
                return {}
            data = read_episodes(folder)
            print(f"{len(data)} episodes of {len(data.action)} steps are in {folder / FOLDER}")
            return {"episodes": len(data), "collected_steps": len(data.action), "data": data.digest}

        (folder / FOLDER).mkdir(exist_ok=True)
        return experiments.train(replace(x, during=write), folder, facts=facts, at_end=False)
