"""BabyAI's bot and its shortest-path expert as agents; demonstrations: the recorded parts of states, and parquet files
with one row of text per step, readable by any tool (extra `data`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from envs_jax import tracing
from envs_jax.babyai.bot.bot import Memory, bot_action
from envs_jax.babyai.bot.expert import expert_action
from envs_jax.babyai.env import BabyAI
from envs_jax.env import Environment, Wrapper, innermost
from envs_jax.resets import VectorEnv
from llmrl_jax.agents.agent import Record
from llmrl_jax.agents.play import Episode
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import nearest
from llmrl_jax.core.files import new_draft
from llmrl_jax.data.parquet import arrow
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.policy import Policy


# --- the bot ----------------------------------------------------------------------------------------------------------


class StateView(Wrapper):
    """BabyAI environment whose observation is its state, from which the bot reads the part of the grid seen so
    far."""

    def __init__(self, env: Environment):
        """**Raises:** `TypeError` for another environment."""
        super().__init__(env)
        if not isinstance(env, BabyAI):
            raise TypeError(f"the bot plays BabyAI's levels only, and {env.id or type(env).__name__!r} is none of them")

    def reset(self, key, params):
        _, state = self.env.reset(key, params)
        return state, state

    def step(self, key, state, action, params):
        _, state, *outputs = self.env.step(key, state, action, params)
        return state, state, *outputs

    def observation_space(self, params):
        raise TypeError("what the bot observes is the world's state, for which there is no space")

    def describe(self, obs):
        return self.env.describe(self.env.observe(obs))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class BotPolicy(Policy):
    """BabyAI's bot (`envs_jax.babyai.bot_action`) on the observations of `StateView`; it has no parameters and no value
    function, and is deterministic: sampled and greedy actions are the same."""

    num_actions: int
    width: int
    """Number of columns of the grid."""

    def initial_carry(self, batch_size: int) -> Memory:
        return Memory(seen=jnp.zeros((batch_size, self.width), jnp.uint32))

    def step(self, params: Any, frozen: Any, obs: Any, carry: Memory, first: Bool[Array, " B"]):
        memory = Memory(seen=jnp.where(first[:, None], jnp.uint32(0), carry.seen))
        action, memory = jax.vmap(bot_action)(obs, memory)
        # if only movement is allowed, the bot's idle drop before its goal becomes a step that the goal blocks
        chosen = jnp.minimum(action, self.num_actions - 1)[:, None] == jnp.arange(self.num_actions)
        return Categorical.masked(jnp.zeros(chosen.shape), chosen), jnp.zeros(first.shape), memory


# --- a noisy expert ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoisyExpert:
    """`N` copies of a BabyAI environment with an expert that takes a given fraction of random actions.

    `envs` has a pool of prepared episodes, one per copy, which every `play` renews.
    """

    env: Environment
    """Wrapped as for training, not batched."""
    env_params: Any
    copies: int
    """`N`."""
    noise: float
    """Probability that an action is uniformly random instead of the expert's."""
    seen_only: bool = False
    """See `envs_jax.babyai.expert_action`."""

    @property
    def envs(self) -> VectorEnv:
        return VectorEnv(self.env, self.copies, policy="pool", pool_size=self.copies)

    @property
    def num_actions(self) -> int:
        return self.env.action_space(self.env_params).n  # type: ignore[attr-defined]

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """First observations and states of all copies."""
        return jax.jit(self.envs.reset)(key, self.env_params)

    def best(self, state: Any) -> Int[Array, " N"]:
        """Action of the expert in every copy; the agent's last action if it lacks the expert's."""
        act = jax.vmap(lambda inner: expert_action(inner, self.env, self.seen_only))
        return jnp.minimum(act(innermost(state.env)), self.num_actions - 1).astype(jnp.int32)

    def step(self, key: jax.Array, state: Any) -> Any:
        """Take one step in every copy. **Returns:** what `envs.step` returns."""
        noise_key, pick_key, step_key = jax.random.split(key, 3)
        best = self.best(state)
        random_action = jax.random.randint(pick_key, best.shape, 0, self.num_actions)
        action = jnp.where(jax.random.bernoulli(noise_key, self.noise, best.shape), random_action, best)
        return self.envs.step(step_key, state, action, self.env_params)

    @tracing.default_types
    def play(self, keys: Key[Array, " T"], pool_key: jax.Array, obs: Any, state: Any) -> tuple[Any, Any]:
        """Take `T` steps in every copy, one key per step, and renew the pool.

        **Returns:** the observations and states after them.
        """

        def step(carry, key):
            obs, state = carry
            obs, state, *_ = self.step(key, state)
            return (obs, state), None

        (obs, state), _ = tracing.scan(step, (obs, state), keys)
        return obs, self.envs.refresh(pool_key, state, self.env_params)


# --- demonstrations ---------------------------------------------------------------------------------------------------


Keep = Literal["successes", "failures", "all"]
"""Which episodes are written."""

COLUMNS = {
    "episode": "int32",
    "step": "int32",
    "seed": "int64",
    "level": "string",
    "mission": "string",
    "text": "string",
    "action": "int32",
    "action_name": "string",
    "reward": "float",
    "terminated": "bool",
    "truncated": "bool",
    "success": "bool",
    "direction": "int32",
    "position": "fixed_size_list<element: int32>[2]",
}
"""Column -> type, as Arrow spells it. `text` joins the sentences by ", "; `success` is that of the whole episode;
`direction` and `position` are the agent's before the action: 0 right, 1 down, 2 left, 3 up; x and y."""

REPEATED = ("level", "mission", "text", "action_name")
"""Columns with repeated values, written with dictionary encoding."""

METADATA = b"llmrl_jax.demos"
FORMAT = 1
GROUP = 20_000
"""Minimum rows per row group, which is held in memory."""


def text_id(id: str) -> str:
    """The id of a level's text environment: `BabyAI-Text/GoTo-v0` for `BabyAI-GoTo-v0`, with the same options.

    **Raises:** `ValueError` for an id outside BabyAI.
    """
    if not id.startswith("BabyAI-"):
        raise ValueError(
            f"demonstrations are of BabyAI's levels, and {id!r} is none (`llmrl envs list BabyAI` has all)"
        )
    return id if id.startswith("BabyAI-Text/") else "BabyAI-Text/" + id.removeprefix("BabyAI-")


def babyai_steps(world: BabyAI) -> Record:
    """The part of a level's states recorded in a file, for `play_episodes`.

    **Arguments:** `world`, the level with text, see `text_id`.
    **Returns:** a function from a state to `mission`, int16 `[M]`, and `text`, int16 `[C]`, see `world.captions`;
    `direction`, int32 `[]`, the agent's direction: 0 right, 1 down, 2 left, 3 up; `position`, int32 `[2]`, its x and y;
    `max_steps`, int32 `[]`, the episode's step limit.
    """

    def see(state: Any) -> dict[str, Any]:
        obs = world.observe(state)
        fields = {"direction": state.direction, "position": state.position, "max_steps": state.max_steps}
        return {**{name: obs[name] for name in world.captions}, **fields}

    return see


class DemosError(ValueError):
    """Invalid file of demonstrations; the message names the file and the problem."""


@dataclass(frozen=True)
class Written:
    """Counts of a written file."""

    played: int
    """Number of episodes played."""
    succeeded: int
    saved: int
    steps: int
    """Number of rows, of the kept episodes."""


@dataclass(frozen=True)
class Demonstration:
    """Episode of `T` steps, read back."""

    number: int
    success: bool
    mission: str
    text: tuple[str, ...]
    """The observation at each step, `T` strings."""
    action: np.ndarray
    """int32 `[T]`."""
    reward: np.ndarray
    """float32 `[T]`."""


def _schema() -> Any:
    import pyarrow as pa

    plain = {"string": pa.string(), "float": pa.float32(), "bool": pa.bool_(), "int32": pa.int32(), "int64": pa.int64()}
    pair = pa.list_(pa.field("element", pa.int32()), 2)
    return pa.schema([(name, plain.get(kind, pair)) for name, kind in COLUMNS.items()])


def write_demos(
    path: str | Path,
    episodes: Iterable[Episode],
    world: BabyAI,
    *,
    seed: int,
    facts: Mapping[str, Any],
    keep: Keep = "successes",
    pairs: int = 0,
) -> Written:
    """Write episodes as they arrive, by row groups. The file is created atomically.

    **Arguments:** `path`, which ends in `.parquet` and must not exist; `episodes`, of `play_episodes` with
    `babyai_steps`; `world`, the text environment in which they were played; `seed`, theirs; `facts`, further metadata
    of the file (player, versions, ...), as JSON values; `keep`; `pairs`, number of steps after which to stop, at the
    end of an episode (0: after the last episode).
    **Raises:** `ModuleNotFoundError` without pyarrow; `FileExistsError`; `ValueError` for another file extension.
    """
    (pa, parquet), path = arrow(), Path(path)
    if path.suffix != ".parquet":
        raise ValueError(f"{path} does not end in .parquet, which is what demonstrations are")
    if path.exists():
        raise FileExistsError(f"{path} exists already; give another name")
    played = succeeded = saved = steps = 0
    limits: list[int] = []
    schema = _schema()
    rows: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    with (
        doing("demonstrations", pairs or None, "steps") as activity,
        new_draft(path) as draft,
        parquet.ParquetWriter(draft, schema, use_dictionary=list(REPEATED)) as writer,
    ):

        def flush() -> None:
            writer.write_table(pa.table(rows, schema))
            for column in rows.values():
                column.clear()

        for episode in episodes:
            played, succeeded = played + 1, succeeded + episode.success
            limits.append(int(episode.observed["max_steps"][0]))
            if keep != "all" and episode.success != (keep == "successes"):
                continue
            saved, steps = saved + 1, steps + len(episode.action)
            activity.done = steps
            for name, values in _rows(episode, world, seed).items():
                rows[name] += values
            if len(rows["step"]) >= GROUP:
                flush()
            if pairs and steps >= pairs:
                break
        if rows["step"]:
            flush()
        metadata = {
            "format": FORMAT,
            "level": world.id,
            "seed": seed,
            "keep": keep,
            "episodes_played": played,
            "episodes_succeeded": succeeded,
            "episodes_kept": saved,
            "max_steps": [min(limits, default=0), max(limits, default=0)],
            **facts,
        }
        writer.add_key_value_metadata({METADATA: json.dumps(metadata)})
    return Written(played, succeeded, saved, steps)


def _rows(episode: Episode, world: BabyAI, seed: int) -> dict[str, list[Any]]:
    """The rows of an episode, by column."""
    n, names = len(episode.action), world.action_names
    mission = world.books.missions.render(episode.observed["mission"][0])
    return {
        "episode": [episode.number] * n,
        "step": list(range(n)),
        "seed": [seed] * n,
        "level": [world.id] * n,
        "mission": [mission] * n,
        "text": [world.books.view.render(caption) for caption in episode.observed["text"]],
        "action": episode.action.tolist(),
        "action_name": [names[a] for a in episode.action.tolist()],
        "reward": episode.reward.tolist(),
        "terminated": episode.terminated.tolist(),
        "truncated": episode.truncated.tolist(),
        "success": [episode.success] * n,
        "direction": episode.observed["direction"].tolist(),
        "position": episode.observed["position"].tolist(),
    }


def read_demos(path: str | Path) -> tuple[dict[str, Any], Iterator[Demonstration]]:
    """Read a file of `write_demos`: the metadata (`level`, `seed`, `keep`, `max_steps`, ...), and the episodes in
    order, read lazily.

    **Raises:** `FileNotFoundError`; `DemosError` for a file without these metadata, or with a column missing or of
    another type; and, while reading, for an episode with missing steps.
    """
    (_, parquet), path = arrow(), Path(path)
    if not path.is_file():
        files = sorted(p.name for p in path.parent.glob("*.parquet")) if path.parent.is_dir() else []
        raise FileNotFoundError(f"there is no file of demonstrations {path}{nearest(path.name, files)}")
    try:
        schema = parquet.read_schema(path)
        text = (parquet.read_metadata(path).metadata or {}).get(METADATA)
    except Exception as error:
        raise DemosError(f"{path} is not parquet: {error}") from error
    if text is None:
        raise DemosError(f"{path} says nothing of demonstrations in its metadata: `llmrl envs demos` writes such files")
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DemosError(f"{path} has metadata of demonstrations that are no JSON ({error}): write it again") from None
    if not isinstance(metadata, dict):
        raise DemosError(f"{path} has {str(metadata)[:60]} as the metadata of demonstrations; an object is needed")
    if metadata.get("format") != FORMAT:
        raise DemosError(f"{path} has the format {metadata.get('format')}; this version reads {FORMAT}")
    expected = _schema()
    for name, kind in COLUMNS.items():
        if name not in schema.names:
            raise DemosError(f"{path} has no column {name!r}{nearest(name, schema.names)}")
        if schema.field(name).type != expected.field(name).type:
            raise DemosError(f"{path}: the column {name!r} is {schema.field(name).type}, not {kind}")
    return metadata, _episodes(parquet, path)


def _episodes(parquet: Any, path: Path) -> Iterator[Demonstration]:
    read = ("episode", "step", "mission", "text", "action", "reward", "terminated", "truncated", "success")
    rows: list[dict[str, Any]] = []
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=list(read)):
            for row in batch.to_pylist():
                if rows and row["episode"] != rows[0]["episode"]:
                    yield _demonstration(rows, path)
                    rows = []
                rows.append(row)
    if rows:
        yield _demonstration(rows, path)


def _demonstration(rows: list[dict[str, Any]], path: Path) -> Demonstration:
    first, last = rows[0], rows[-1]
    if empty := next((name for row in rows for name, value in row.items() if value is None), ""):
        raise DemosError(f"{path}: episode {first['episode']} has no value in a row of the column {empty!r}")
    steps = [row["step"] for row in rows]
    ends = [row["terminated"] or row["truncated"] for row in rows]
    if steps != list(range(len(rows))) or ends != [False] * (len(rows) - 1) + [True]:
        raise DemosError(
            f"{path}: episode {first['episode']} is not whole: its steps run {steps[0]} .. {steps[-1]} over "
            f"{len(rows)} rows, and {sum(ends)} of them end it (1 is needed, the last)"
        )
    return Demonstration(
        number=first["episode"],
        success=last["success"],
        mission=first["mission"],
        text=tuple(row["text"] for row in rows),
        action=np.array([row["action"] for row in rows], np.int32),
        reward=np.array([row["reward"] for row in rows], np.float32),
    )
