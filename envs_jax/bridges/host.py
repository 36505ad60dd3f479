"""Environments of Python with text, under our interface: a compiled program asks the host once for all rows.

What is on the device is an episode's seed and its actions so far, from which the host can build the episode again; the
Python objects are only a store of episodes that need not be built again. So a step is a function of its arguments, as
`jax.pure_callback` demands, a copied state goes on by itself, and a state that was saved goes on in another process.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces, tracing
from envs_jax.checks import at_least
from envs_jax.env import Environment
from envs_jax.resets import FRESH, VectorEnv
from envs_jax.threads import spare_thread


spare_thread()  # environments are stepped in callbacks


class HostError(ValueError):
    """An environment of Python that failed: the row, the seed, and what it did."""


@dataclass(frozen=True)
class HostWorld:
    """A Python environment and how it is played."""

    make: Callable[[], Any]
    """Makes one environment, with Gymnasium's `reset(seed=...) -> (obs, info)` and `step(action) -> (obs, reward,
    terminated, truncated, info)`. `obs` is a str, or a dict with `text`, and perhaps `mission`, a str that stays the
    same throughout the episode. Objects are used again for later episodes."""
    actions: Sequence[str] | Mapping[str, Any]
    """The names of the actions; `step` gets the index of one, or what a mapping has for it."""
    max_turns: int = 64
    """The most actions of an episode, which is then truncated."""
    turn_tokens: int = 256
    """The most tokens of what is said at a turn, with the words around it."""
    head_tokens: int = 128
    """The most tokens of an episode's instruction and mission."""
    long: Literal["raise", "cut"] = "raise"
    """What is done with a text that has more tokens: an error, or its end is cut (`episode_cut_tokens`)."""
    failure: Literal["raise", "end"] = "raise"
    """What is done with a step that raises, returns no text or hangs: an error, or the episode is truncated there
    (`episode_failed`). A reset that fails is always an error."""
    timeout: float | None = None
    """Seconds that a call may take; each is then in a thread of its own, which is left behind if it hangs."""
    objects: int = 1024
    """The most environments that are kept in the midst of episodes; others are built again when they are needed."""
    vocabulary: Sequence[str] = ()
    """Texts of the environment, for a model whose tokens are made from them."""

    def __post_init__(self):
        if not callable(self.make):
            raise TypeError(f"make is {self.make!r}; a function that makes an environment is needed")
        names = list(self.actions)
        if isinstance(self.actions, str) or not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"actions is {self.actions!r}; the names of the actions are needed")
        if len(set(names)) != len(names):
            raise ValueError(f"actions has a name twice: {names}")
        for name in ("max_turns", "turn_tokens", "head_tokens", "objects"):
            at_least(name, getattr(self, name), 1)
        for name, values in (("long", ("raise", "cut")), ("failure", ("raise", "end"))):
            if getattr(self, name) not in values:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it is {' or '.join(values)}")
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout is {self.timeout}; seconds above 0 are needed, or None")


class Encoder(Protocol):
    """From text on the host to the observation on the device."""

    names: tuple[str, ...]
    """The arrays that it makes, by name."""
    lengths: tuple[int, ...]
    vocab_size: int

    def __call__(self, mission: str, text: str) -> tuple[list[np.ndarray], int, int]:
        """Ids, int32, padded with -1 to `lengths`; and the tokens that were cut of the mission, and of the text.
        **Raises:** `ValueError`."""
        ...


@struct.dataclass
class HostParams:
    """The rows for which the host is asked."""

    active: Any = True
    """bool `[]`; where it is false the state stays as it is, and other results are of no use."""


@struct.dataclass
class HostState:
    """All that an episode is built from."""

    seed: jax.Array
    """int32 `[]`."""
    actions: jax.Array
    """int16 `[max_turns]`, the actions so far."""
    turn: jax.Array
    """int32 `[]`, their number."""
    mark: jax.Array
    """uint32 `[]`, the checksum of the last text, by which an episode that is built again is recognised."""
    over: jax.Array
    """bool `[]`, whether the episode has ended: then the host is not asked, and `truncated` stays true."""


@dataclass
class Episode:
    """An episode in progress, on the host."""

    env: Any
    mission: str
    mark: int
    total: float = 0.0
    cut: int = 0
    begun: bool = False
    """Whether its mission has been encoded."""


def _checksum(mission: str, text: str) -> int:
    return zlib.crc32(f"{mission}\0{text}".encode("utf-8", "surrogatepass"))


class HostEnvironment(Environment[HostState, HostParams]):
    """A Python environment as one of ours.

    The observation is a dict of the encoder's arrays. `info` has `success` (that of the environment's `info`, else
    whether the sum of rewards is positive), `episode_failed` and `episode_cut_tokens`. What is random in the
    environment must follow from the seed of its `reset`; an episode that comes out otherwise when it is built again is
    an error. The environment must not call jax, which would wait for the program that is waiting for it.
    """

    def __init__(self, world: HostWorld, encode: Encoder, id: str = ""):
        """**Arguments:** `world`; `encode`, for an agent that writes an `llmrl_jax.multiturn.text.FreeText`; `id`.

        An environment is made and reset twice, which finds most mistakes before anything is compiled.
        **Raises:** `HostError` for an environment that cannot be reset, or has no text."""
        self.world, self.encode, self.id = world, encode, id or getattr(world.make, "__name__", "host")
        self._names = tuple(world.actions)
        values = world.actions
        self._values = list(values.values()) if isinstance(values, Mapping) else list(range(len(self._names)))
        self._lock = threading.Lock()
        self._live: OrderedDict[tuple[int, bytes], list[Episode]] = OrderedDict()
        self._stored = 0
        self._spare: list[Any] = []
        self.failure: HostError | None = None
        """The last error on the host, which JAX reports as one of its own, see `named`."""
        self._starts = [self._begin(0, 0, fresh=True) for _ in range(2)]
        self._spare += [episode.env for episode, _ in self._starts]

    def forget(self) -> None:
        """Drop the episodes in progress, which are built again when they go on, as in another process."""
        with self._lock:
            self._live.clear()
            self._stored = 0

    def check_starts(self) -> None:
        """**Raises** `HostError` if two environments that are reset with one seed begin differently, so that no two
        episodes of a group would begin in one state."""
        (a, first), (b, second) = self._starts
        if a.mark != b.mark:
            raise HostError(
                f"{self.id} begins with {first[:80]!r} and with {second[:80]!r} after reset(seed=0): a group compares "
                "episodes that begin in one state, so what is random in the environment must follow from the seed"
            )

    # --- the interface of environments --------------------------------------------------------------------------------

    @property
    def default_params(self):
        return HostParams()

    @property
    def action_names(self):
        return self._names

    def action_space(self, params):
        return spaces.Discrete(len(self._names))

    def observation_space(self, params):
        top = self.encode.vocab_size - 1
        return spaces.Dict(
            {name: spaces.Box(-1, top, (n,), np.int32) for name, n in zip(self.encode.names, self.encode.lengths)}
        )

    def _observation_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        return {name: jax.ShapeDtypeStruct((n,), np.int32) for name, n in zip(self.encode.names, self.encode.lengths)}

    def reset(self, key, params):
        seed = (jax.random.bits(key, (), jnp.uint32) >> 1).astype(jnp.int32)
        shapes = self._observation_shapes(), jax.ShapeDtypeStruct((), np.uint32)
        active = jnp.asarray(params.active, bool)
        obs, mark = jax.pure_callback(self._on_reset, shapes, seed, active, vmap_method="broadcast_all")
        blank = jnp.zeros(self.world.max_turns, jnp.int16)
        return obs, HostState(seed, blank, jnp.int32(0), mark, jnp.bool_(False))

    def step(self, key, state, action, params):
        flag = jax.ShapeDtypeStruct((), np.bool_)
        info = {"success": flag, "episode_failed": flag, "episode_cut_tokens": jax.ShapeDtypeStruct((), np.int32)}
        shapes = (
            *(self._observation_shapes(), jax.ShapeDtypeStruct((), np.uint32)),
            *(jax.ShapeDtypeStruct((), np.float32), flag, flag, info),
        )
        action, active = jnp.asarray(action, jnp.int32), jnp.asarray(params.active, bool) & ~state.over
        obs, mark, reward, terminated, truncated, info = jax.pure_callback(
            self._on_step, shapes, state, action, active, vmap_method="broadcast_all"
        )
        turn = state.turn + active
        truncated = truncated | state.over | (active & (turn >= self.world.max_turns))
        index = jnp.where(active, state.turn, self.world.max_turns)
        after = HostState(
            seed=state.seed,
            actions=state.actions.at[index].set(action.astype(jnp.int16), mode="drop"),
            turn=turn,
            mark=jnp.where(active, mark, state.mark),
            over=terminated | truncated,
        )
        return obs, after, reward, terminated, truncated, info

    # --- on the host --------------------------------------------------------------------------------------------------

    def _on_reset(self, seed: Any, active: Any) -> Any:
        seed, active = np.asarray(seed), np.asarray(active)
        obs = self._blank(seed.shape)
        mark = np.zeros(seed.shape, np.uint32)
        with self._lock, self._noting_failure():
            first: dict[int, tuple[int, int, str]] = {}
            for row in np.flatnonzero(active.reshape(-1)).tolist():
                number = int(seed.flat[row])
                episode, text = self._begin(row, number)
                other, earlier, opening = first.setdefault(number, (row, episode.mark, text))
                if earlier != episode.mark:
                    raise HostError(
                        f"rows {other} and {row} of {self.id} begin with the seed {number}, one with {opening[:80]!r} "
                        f"and one with {text[:80]!r}: what is random in the environment must follow from the seed"
                    )
                self._write(obs, row, self._encoded(episode, text, f"row {row}, seed {number}, reset"))
                mark.flat[row] = episode.mark
                self._keep(number, b"", episode)
        return obs, mark

    def _on_step(self, state: Any, action: Any, active: Any) -> Any:
        state = jax.tree.map(np.asarray, state)
        action, active = np.asarray(action), np.asarray(active)
        shape = action.shape
        obs, mark = self._blank(shape), np.zeros(shape, np.uint32)
        reward = np.zeros(shape, np.float32)
        terminated, truncated, success, failed = (np.zeros(shape, bool) for _ in range(4))
        cut = np.zeros(shape, np.int32)
        past = state.actions.reshape(-1, state.actions.shape[-1])
        with self._lock, self._noting_failure():
            for row in np.flatnonzero(active.reshape(-1)).tolist():
                seed, turn, chosen = int(state.seed.flat[row]), int(state.turn.flat[row]), int(action.flat[row])
                done = past[row, :turn]
                episode = self._episode(row, seed, done, int(state.mark.flat[row]))
                where = f"row {row}, seed {seed}, step {turn + 1}"
                try:
                    text, gain, ended, stopped, info = self._step(episode, chosen, where)
                    self._write(obs, row, self._encoded(episode, text, where))
                except HostError:
                    if self.world.failure == "raise":
                        raise
                    text, gain, ended, stopped, info = "", 0.0, False, True, {"success": False}
                    failed.flat[row] = True
                    self._write(obs, row, self._encoded(episode, text, where))
                episode.total += gain
                episode.mark = _checksum(episode.mission, text)
                reward.flat[row], terminated.flat[row], truncated.flat[row] = gain, ended, stopped
                success.flat[row] = info.get("success", episode.total > 0)
                cut.flat[row], mark.flat[row] = episode.cut, episode.mark
                if not (ended or stopped or turn + 1 == self.world.max_turns):
                    self._keep(seed, np.append(done, np.int16(chosen)).tobytes(), episode)
                elif not failed.flat[row]:
                    self._spare.append(episode.env)
        info = {"success": success, "episode_failed": failed, "episode_cut_tokens": cut}
        return obs, mark, reward, terminated, truncated, info

    def _blank(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        return {name: np.full((*shape, n), -1, np.int32) for name, n in zip(self.encode.names, self.encode.lengths)}

    def _encoded(self, episode: Episode, text: str, where: str) -> list[np.ndarray]:
        """A text's tokens; those that are cut are counted."""
        try:
            arrays, *cut = self.encode(episode.mission, text)
        except Exception as error:
            raise HostError(f"{self.id}, {where}: {error}") from error
        # the mission is read once
        episode.cut += cut[1] if episode.begun else sum(cut)
        episode.begun = True
        return arrays

    def _write(self, obs: Mapping[str, np.ndarray], row: int, arrays: Sequence[np.ndarray]) -> None:
        """Put tokens into a row of the observations."""
        for name, ids in zip(self.encode.names, arrays):
            obs[name].reshape(-1, len(ids))[row] = ids

    def _keep(self, seed: int, actions: bytes, episode: Episode) -> None:
        self._live.setdefault((seed, actions), []).append(episode)
        self._stored += 1
        while self._stored > self.world.objects:
            _, oldest = self._live.popitem(last=False)
            self._stored -= len(oldest)
            self._spare += [episode.env for episode in oldest]

    def _episode(self, row: int, seed: int, actions: np.ndarray, mark: int) -> Episode:
        """The episode of a seed after some actions: the one that is there, or built again."""
        name = seed, actions.tobytes()
        there = self._live.get(name)
        if there:
            self._stored -= 1
            episode = there.pop()
            if not there:
                del self._live[name]
            if episode.mark == mark:
                return episode
        episode, text = self._begin(row, seed)
        self._encoded(episode, text, f"row {row}, seed {seed}, reset")
        for turn, action in enumerate(actions.tolist()):
            where = f"row {row}, seed {seed}, step {turn + 1}, which is played again"
            text, reward, *_ = self._step(episode, action, where)
            episode.total += reward
            episode.mark = _checksum(episode.mission, text)
            self._encoded(episode, text, where)
        if episode.mark != mark:
            raise HostError(
                f"{self.id}, row {row}: the episode of the seed {seed} says {text[:80]!r} after its {len(actions)} "
                "actions are played again, and said something else at first: what is random in the environment must "
                "follow from the seed"
            )
        return episode

    def _begin(self, row: int, seed: int, fresh: bool = False) -> tuple[Episode, str]:
        """An episode's beginning, and its first text."""
        where = f"row {row}, seed {seed}, reset"
        env = self._spare.pop() if self._spare and not fresh else self._call(where, self.world.make)
        result = self._call(where, lambda: env.reset(seed=seed))
        if not isinstance(result, tuple) or len(result) != 2:
            raise HostError(f"{self.id}, {where}: returned {_shown(result)}; (obs, info) is needed")
        mission, text = self._text(result[0], where)
        return Episode(env, mission, _checksum(mission, text)), text

    def _step(self, episode: Episode, action: int, where: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        value = self._values[action]
        result = self._call(where, lambda: episode.env.step(value))
        if not isinstance(result, tuple) or len(result) != 5:
            raise HostError(
                f"{self.id}, {where}: returned {_shown(result)}; (obs, reward, terminated, truncated, info) is needed"
            )
        obs, reward, terminated, truncated, info = result
        try:
            number = float(reward)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise HostError(f"{self.id}, {where}: the reward is {_shown(reward)}; a finite number is needed")
        ended, stopped = bool(terminated), bool(truncated)
        _, text = self._text(obs, where, last=ended or stopped)
        return text, number, ended, stopped, info if isinstance(info, Mapping) else {}

    def _text(self, obs: Any, where: str, last: bool = False) -> tuple[str, str]:
        """Mission and text of an observation; the text may be empty only where an episode ends."""
        mission, text = (obs.get("mission", ""), obs.get("text")) if isinstance(obs, Mapping) else ("", obs)
        if not isinstance(text, str) or not isinstance(mission, str) or not (text.strip() or last):
            raise HostError(
                f"{self.id}, {where}: the observation is {_shown(obs)}; a text is needed, or a dict with the texts "
                "`text` and `mission`"
            )
        return mission, text

    def _call(self, where: str, function: Callable[[], Any]) -> Any:
        """The result of a call of the environment. **Raises:** `HostError` if it raises, or takes longer than the
        time-out."""
        try:
            if self.world.timeout is None:
                return function()
            answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

            def answer() -> None:
                try:
                    answers.put((function(), None))
                except Exception as error:
                    answers.put((None, error))

            threading.Thread(target=answer, daemon=True, name=f"{self.id}, {where}").start()
            result, error = answers.get(timeout=self.world.timeout)
            if error is not None:
                raise error
            return result
        except queue.Empty:
            raise HostError(f"{self.id}, {where}: no answer within {self.world.timeout:g} s") from None
        except Exception as error:
            raise HostError(f"{self.id}, {where}: {type(error).__name__}: {error}") from error

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except HostError as error:
            self.failure = error
            raise

    @contextmanager
    def named(self) -> Iterator[None]:
        """In this context the error of a program that asked this environment is the `HostError` that was raised on the
        host, without JAX's log of it."""
        self.failure = None

        def keep_record(record: logging.LogRecord) -> bool:
            return not (record.exc_info and isinstance(record.exc_info[1], HostError))

        log = logging.getLogger("jax._src.callback")
        log.addFilter(keep_record)
        try:
            yield
        except Exception as error:
            if self.failure is not None and error is not self.failure:
                raise HostError(str(self.failure)) from error
            raise
        finally:
            log.removeFilter(keep_record)


def errors_named(env: Environment | None) -> AbstractContextManager[None]:
    """`HostEnvironment.named` of an environment, wrapped or not; no change for one of another kind."""
    inner = None if env is None else env.unwrapped
    return inner.named() if isinstance(inner, HostEnvironment) else nullcontext()


def _shown(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 80 else f"{text[:77]}..."


class HostVector(VectorEnv):
    """A batch of a Python environment: only rows that act are stepped, and only episodes that ended begin again, each
    with a seed of its own."""

    def __init__(self, env: Environment, num_envs: int, *, policy: Literal["always", "none"] = "always"):
        super().__init__(env, num_envs, policy=policy, batched_params=True)

    def _asking(self, params: HostParams) -> HostParams:
        return HostParams(jnp.broadcast_to(params.active, (self.num_envs,)))

    def reset(self, key, params):
        return super().reset(key, self._asking(params))

    def step(self, key, state, action, params):
        return super().step(key, state, action, self._asking(params))

    def step_rows(self, key, state, action, params, rows):
        return self.step(key, state, action, HostParams(rows))

    def _fresh(self, key, state, rows, params):
        shapes = jax.eval_shape(lambda: self._resets(key, HostParams(rows), self.num_envs))

        def begin(_: Any) -> Any:
            return self._resets(jax.random.fold_in(key, FRESH), HostParams(rows), self.num_envs)

        def nothing(_: Any) -> Any:
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        return tracing.cond(jnp.any(rows), begin, nothing, None)

    def _stacked(self, space, params):
        return spaces.stack(space(params), self.num_envs)
