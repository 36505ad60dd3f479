"""One search: a task, a method, a seed. Every round is a line of a log, from which alone a search resumes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.env import Environment
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents.evaluate import play_random
from llmrl_jax.agents.play import make_recorder
from llmrl_jax.agents.population import episode_keys, make_population_evaluator, step_limit, vector_actor
from llmrl_jax.chat import ChatModel
from llmrl_jax.core.files import append_line, write_whole
from llmrl_jax.rl.policy import drawable
from llmrl_jax.systems.props.build import make_optimizer
from llmrl_jax.systems.props.config import PropsConfig
from llmrl_jax.systems.props.optimizers import WORST_RETURN, centers
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import Trajectory, Transition, Values
from llmrl_jax.systems.props.proposals import NoProposal
from llmrl_jax.systems.props.search import num_final_evaluations, population_of
from llmrl_jax.systems.props.tasks import Task


LOG = "log.jsonl"
"""A line per round: proposals, returns and, for a model, all messages. `dropped` are proposals with a non-finite
return, which are not passed to the optimizer. A numeric method's last line may contain its `centers` (see
`optimizers.centers`), which are not passed either. A line with `stopped` says why a search ended early; later
lines use another key."""

STOPPED = 0x570
"""Folded into the key of queries after a resumed stop."""

LOG_KEYS = {"trajectories": "trajectories", "episodes": "replay_buffer"}
"""Episodes passed to an optimizer besides the returns -> their name in the log."""


@dataclass(frozen=True)
class Result:
    """The result of a search so far."""

    params: tuple[float, ...] | None
    """The policy with the highest mean return; None before the first evaluation."""
    value: float
    """Its mean return: the maximum of many, so biased upwards. A mean of fewer episodes, from the warm-up, counts only
    while there is no other."""
    rounds: int
    candidates: int
    """Number of evaluated policies, including the warm-up."""
    episodes: int
    steps: int
    """Number of environment steps."""
    stopped: str = ""
    """Why the search ended early; empty if it did not."""
    short: bool = False
    """Whether `value` is a mean over fewer episodes, from the warm-up."""


class Study:
    """One search, with its log in a folder.

    **Arguments:** `task`; `config`; `seed`; `model`, queried by methods that use one; `chat`, `temperature` and
    `max_tokens` of its replies; `folder`, created if missing. An existing log is read, and the search resumes from it:
    identical to an uninterrupted search, given the same replies.
    **Raises:** what `make_optimizer` and `Task.make` raise; `ValueError` for a log that does not fit.
    """

    def __init__(
        self, task: Task, config: PropsConfig, seed: int, model: ChatModel, chat: dict[str, Any], folder: str | Path
    ):
        self.task, self.config, self.seed = task, config, seed
        self.settings = config.task_settings(task)
        self.env, self.env_params, self.policy = task.make(self.settings, **config.policy.chosen)
        self.optimizer = make_optimizer(config, task, self.env, self.env_params, self.policy, model, chat)
        self.evaluate = make_population_evaluator(
            self.env, self.env_params, self.policy, max_steps=self.settings.max_steps
        )
        self.recorder = EpisodeRecorder(self.env, self.env_params, self.policy, self.settings.max_steps)
        self._ask, self._tell = self.optimizer.ask, self.optimizer.tell
        self._rounds = self._num_final = 0
        if not config.asks:
            self._ask, self._tell = jax.jit(self._ask), jax.jit(self._tell)
            self._num_final = num_final_evaluations(self.optimizer)
            self._rounds = max(1, (self.total - self._num_final) // population_of(self.optimizer))
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        search_key, self.key = jax.random.split(jax.random.key(seed))
        self.state = self._first = self.optimizer.init(search_key)
        self.result = Result(None, -np.inf, 0, 0, 0, 0)
        self._resume()

    @property
    def log(self) -> Path:
        """The log's path."""
        return self.folder / LOG

    @property
    def total(self) -> int:
        """Number of policies that a numeric method may evaluate, in whole rounds, at least one."""
        return self.settings.iterations * self.config.proposals

    @property
    def finished(self) -> bool:
        """Return whether the search is complete."""
        if self.result.stopped:
            return True
        if self.config.asks:
            polishing = self.config.polish and self.state.left
            return not polishing and self._host_state.rounds - (self._warmup > 0) >= self.settings.iterations
        return self.result.rounds >= self._rounds + (self._num_final > 0)

    @property
    def _host_state(self) -> Any:
        return self.state.proposer if self.config.polish else self.state

    @property
    def _warmup(self) -> int:
        return (self.optimizer.proposer if self.config.polish else self.optimizer).warmup if self.config.asks else 0

    def run(
        self, stop: Callable[[], bool] = lambda: False, report: Callable[[Result], None] = lambda result: None
    ) -> Result:
        """Run until the search is complete, or `stop()` returns true between two rounds. **Returns:** the result so
        far."""
        while not self.finished and not stop():
            self._round()
            report(self.result)
        return self.result

    def _round(self) -> None:
        started = time.monotonic()
        is_final = not self.config.asks and self.result.rounds == self._rounds
        try:
            params, state = (self._centers(), self.state) if is_final else self._ask(self.state)
        except NoProposal as error:
            self._write({"round": self.result.rounds, "stopped": str(error), "record": error.record})
            self._count(None, str(error))
            return
        record = getattr(state, "record", None)
        proposed = time.monotonic()
        params = jnp.asarray(params, jnp.float32)
        returns, lengths = self._evaluated(params, record)
        line: dict[str, Any] = {"round": self.result.rounds} | ({"centers": True} if is_final else {})
        indices = np.arange(len(returns))
        if record is None or record["outcome"] == "polish":  # a numeric method needs the values of all its candidates
            returns = np.nan_to_num(returns, nan=WORST_RETURN, posinf=WORST_RETURN, neginf=WORST_RETURN)
        elif not (is_finite := np.isfinite(returns).all(axis=1)).all():
            line["dropped"] = [
                {"params": p.tolist(), "returns": [str(r) for r in rewards], "lengths": length.tolist()}
                for p, rewards, length in zip(np.asarray(params)[~is_finite], returns[~is_finite], lengths[~is_finite])
            ]
            (indices,) = np.nonzero(is_finite)
            params, returns, lengths = params[indices], returns[indices], lengths[indices]
        values = jnp.asarray(returns.mean(axis=1) if returns.size else np.zeros(0), jnp.float32)
        line |= {
            "params": np.asarray(params).tolist(),
            "values": np.asarray(values).tolist(),
            "returns": returns.tolist(),
            "lengths": lengths.tolist(),
            "ask_seconds": round(proposed - started, 4),
            "evaluate_seconds": round(time.monotonic() - proposed, 4),
        }
        episodes = self._episodes(params, record, indices)
        line |= {LOG_KEYS[name]: [_to_json(t) for t in trajectories] for name, trajectories in episodes.items()}
        if record is not None:
            line["record"] = record
        if not is_final:
            self.state = self._tell(state, params, values, **episodes)
        self._count(line)
        best = {"best": self.result.value, "episodes": self.result.episodes, "steps": self.result.steps}
        self._write(line | best)

    def _centers(self) -> jax.Array:
        candidates = centers(self.optimizer, self._first, self.state)
        assert candidates is not None
        return candidates

    def _evaluated(self, params: jax.Array, record: dict[str, Any] | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns and lengths `[P, E]`."""
        count = params.shape[0]
        if not count:
            return np.zeros((0, 0), np.float32), np.zeros((0, 0), np.int32)
        played = jax.device_get(self.evaluate(params, self._keys(count, self._episodes_of(record))))
        return np.asarray(played.returns), np.asarray(played.lengths)

    def _episodes_of(self, record: dict[str, Any] | None) -> int:
        """Number of episodes per policy of a round."""
        warmup = record is not None and record["outcome"] == "warmup"
        return self.config.warmup_episodes if warmup and self.config.warmup_episodes else self.settings.episodes

    def _keys(self, count: int, episodes: int) -> jax.Array:
        key = jax.random.fold_in(self.key, self.result.rounds)
        if self.config.common:
            return episode_keys(key, episodes)
        return jax.vmap(lambda i: episode_keys(jax.random.fold_in(key, i), episodes))(jnp.arange(count))

    def _episodes(self, params: jax.Array, record: dict[str, Any] | None, indices: np.ndarray) -> dict[str, Any]:
        """The first episode of each policy, or all of them, if prompts show episodes; `indices`, those of
        the policies among the candidates."""
        if not params.shape[0] or not self.config.asks or (record or {}).get("outcome") == "polish":
            return {}
        keys = self._keys(int(indices[-1]) + 1, self._episodes_of(record))
        keys = keys[indices] if keys.ndim == 2 else jnp.broadcast_to(keys, (params.shape[0], *keys.shape))
        if self.config.view(self.policy).trajectory_steps:
            return {"trajectories": [self.recorder.play(p, k[0])[0] for p, k in zip(params, keys)]}
        if self.config.method == "legacy" and self.config.use_replay_buffer:
            return {"episodes": [self.recorder.play(params[0], key)[0] for key in keys[0]]}
        return {}

    def _count(self, line: dict[str, Any] | None, stopped: str = "") -> None:
        """Update the result with a line of the log."""
        result = self.result
        returns, lengths = (
            [*line[name], *(dropped[name] for dropped in line.get("dropped", ()))] if line else []
            for name in ("returns", "lengths")
        )
        if line and line["values"]:
            top = int(np.argmax(line["values"]))
            short = len(line["returns"][top]) < self.settings.episodes  # means of few episodes are too noisy to compare
            if result.params is None or (not short, line["values"][top]) > (not result.short, result.value):
                result = replace(result, params=tuple(line["params"][top]), value=line["values"][top], short=short)
        self.result = replace(
            result,
            rounds=result.rounds + 1,
            candidates=result.candidates + len(returns),
            episodes=result.episodes + sum(map(len, returns)),
            steps=result.steps + int(sum(map(sum, lengths))),
            stopped=stopped,
        )

    def _write(self, line: dict[str, Any]) -> None:
        append_line(self.log, json.dumps(line))

    def _resume(self) -> None:
        """Restore the optimizer from the log; a truncated last line is dropped.

        **Raises:** `ValueError` if an earlier line is not one that a search wrote; nothing is changed then."""
        if not self.log.exists():
            return
        valid: list[str] = []
        *complete, cut = self.log.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
        for number, text in enumerate([*complete, *([cut] if cut else [])], 1):
            try:
                text.encode()  # refuses bytes that are no text
                line = json.loads(text)
            except (ValueError, RecursionError) as error:
                if cut and number > len(complete):
                    break
                raise self._damaged(number, f"cannot be read ({error})") from None
            if wrong := fault(line, self.policy.num_params, self.config.asks):
                raise self._damaged(number, f"({text[:60]!r}) is no round of a search: {wrong} is needed")
            if line["round"] != self.result.rounds:
                raise ValueError(f"{self.log}: line {number} is of round {line['round']}; the log is not whole")
            valid.append(text + "\n")
            if "stopped" in line:  # a new query must differ, or a cache would repeat the reply
                self._reseed()
                continue
            try:
                self._replay(line)
            except (AttributeError, IndexError, KeyError, TypeError) as error:  # inside `record` or a trajectory
                raise self._damaged(number, f"cannot be replayed ({type(error).__name__}: {error})") from error
        write_whole(self.log, "".join(valid))

    def _damaged(self, number: int, problem: str) -> ValueError:
        remedy = "mend it, or delete it and all after it to go on from there"
        return ValueError(f"{self.log}: line {number} {problem}; {remedy}")

    def _reseed(self) -> None:
        state = self._host_state
        state = replace(state, key=jax.random.fold_in(state.key, STOPPED))
        self.state = replace(self.state, proposer=state) if self.config.polish else state

    def _replay(self, line: dict[str, Any]) -> None:
        size = self.policy.num_params
        params = np.asarray(line["params"], np.float32).reshape(-1, size)
        values = jnp.asarray(line["values"], jnp.float32)
        if self.config.asks:
            extra = {name: [_from_json(t) for t in line[key]] for name, key in LOG_KEYS.items() if key in line}
            self.state = self.optimizer.replay(self.state, jnp.asarray(params), values, line["record"], **extra)
        elif "centers" not in line:
            expected, state = self._ask(self.state)
            if not np.array_equal(np.asarray(expected), params):
                raise ValueError(
                    f"{self.log}: round {line['round']} holds other policies than {self.optimizer.name} asks for; "
                    "was it written with other settings?"
                )
            self.state = self._tell(state, jnp.asarray(params), values)
        self._count(line)

    def unjudged(self) -> dict[str, Any]:
        """The result so far, as JSON values."""
        values = {**asdict(self.result), "task": self.task.name, "method": self.config.method, "seed": self.seed}
        return {**values, "final": None}

    def judge(self) -> dict[str, Any]:
        """The result with the best policy's returns in fresh episodes, and those of random actions there, as JSON
        values, for tables."""
        values = self.unjudged()
        if self.result.params is None:
            return values
        keys = episode_keys(self._fresh, self.config.final_episodes)
        played = jax.device_get(self.evaluate(jnp.asarray([self.result.params], jnp.float32), keys))
        returns = np.asarray(played.returns, np.float64)[0]
        return {
            **values,
            **_mean("final", returns),
            "final_episodes": int(returns.size),
            "final_length": float(np.mean(played.lengths)),
            **self._random(),
        }

    def _random(self) -> dict[str, Any]:
        """The return of random actions in the fresh episodes; empty where actions have no uniform distribution."""
        if not drawable(self.env.action_space(self.env_params)):
            return {}
        played = play_random(
            EpisodeStatistics(self.env),
            self.env_params,
            self._fresh,
            episodes=self.config.final_episodes,
            max_steps=step_limit(self.env, self.env_params, self.settings.max_steps),
        )
        return _mean("random", np.asarray(played.episode_return, np.float64))

    @property
    def _fresh(self) -> jax.Array:
        """The key of the fresh episodes, in which results are judged."""
        return jax.random.fold_in(self.key, 0x7FFFFFFF)


def _mean(name: str, returns: np.ndarray) -> dict[str, float | None]:
    """A mean return and its standard error (None for a single episode), under a name."""
    error = float(returns.std(ddof=1) / np.sqrt(returns.size)) if returns.size > 1 else None
    return {name: float(returns.mean()), f"{name}_standard_error": error}


# --- lines of the log -------------------------------------------------------------------------------------------------


NUMBER = (int, float)


def fault(line: Any, num_params: int, asks: bool) -> str:
    """The missing part of a line; empty if it has everything that is read from it, apart from the parts of `record`.

    **Arguments:** `line`, the JSON value; `num_params`, of a policy; `asks`, whether the method queries a language
    model."""
    if not isinstance(line, dict) or not isinstance(line.get("round"), int):
        return "an object with the number of its `round`"
    if "stopped" in line:
        return ""
    columns: list[Any] = [line.get(name) for name in ("params", "values", "returns", "lengths")]
    params, values, returns, lengths = columns
    if not all(isinstance(x, list) for x in columns):
        return "a list of each of `params`, `values`, `returns` and `lengths`"
    if not len(params) == len(values) == len(returns) == len(lengths):
        return "one of each of `params`, `values`, `returns` and `lengths` for every policy"
    dropped = line.get("dropped", [])
    if not isinstance(dropped, list) or not all(isinstance(entry, dict) for entry in dropped):
        return "a list of objects in `dropped`"
    if not all(_is_list_of((*NUMBER, str), x) for x in (*returns, *(entry.get("returns") for entry in dropped))):
        return "numbers of the episodes in `returns`"  # in `dropped` they are written as words
    if not all(_is_list_of(int, x) for x in (*lengths, *(entry.get("lengths") for entry in dropped))):
        return "numbers of the episodes in `lengths`"
    if not _is_list_of(NUMBER, values) or not all(_is_list_of(NUMBER, x) and len(x) == num_params for x in params):
        return f"a number for each of `values`, and {num_params} for each of `params`,"
    if asks and not isinstance(line.get("record"), dict):
        return "the `record` of the queries"
    if not all(isinstance(line.get(name), NUMBER) for name in ("best", "episodes")):  # which the figures show
        return "numbers in `best` and `episodes`"
    return ""


def _is_list_of(kind: Any, x: Any) -> bool:
    """Return whether `x` is a list of values of a type."""
    return isinstance(x, list) and all(isinstance(value, kind) for value in x)


def _to_json(trajectory: Trajectory) -> list[Any]:
    return [[step.state, step.action, step.reward] for step in trajectory]


def _from_json(steps: list[Any]) -> Trajectory:
    def values(x: Any) -> Any:
        return tuple(x) if isinstance(x, list) else x

    return tuple(Transition(values(state), values(action), reward) for state, action, reward in steps)


# --- single episodes --------------------------------------------------------------------------------------------------


CHUNK = 256
"""Number of steps on the device between transfers to the host."""


class EpisodeRecorder:
    """Plays single episodes, identical to those of an evaluator with the same key.

    **Arguments:** `env`, `env_params` and `policy`; `max_steps`, see `llmrl_jax.agents.population`.
    """

    def __init__(self, env: Environment, env_params: Any, policy: Policy, max_steps: int | None = None):
        self.env = env
        limit = step_limit(env, env_params, max_steps)
        self._record = make_recorder(
            env,
            env_params,
            lambda params: vector_actor(policy, params[None]),
            max_steps=limit,
            chunk=min(limit, CHUNK),
        )

    def play(self, params: jax.Array, key: jax.Array, frames: int = 0) -> tuple[Trajectory, list[np.ndarray]]:
        """An episode, and pictures of at most `frames` of its states, evenly spaced, including the last one.

        **Arguments:** `params`, float32 `[n]`; `key`, the episode's, typed; `frames`, 0 for no pictures.
        """
        episode = self._record(params, key)
        steps = tuple(
            Transition(_values(episode.observed["obs"][t]), _values(episode.action[t]), float(episode.reward[t]))
            for t in range(len(episode))
        )
        if not frames:
            return steps, []
        chosen = np.unique(np.linspace(0, len(episode), min(frames, len(episode) + 1)).round().astype(int))
        return steps, [self.env.render(episode.view_at(int(t))["state"]) for t in chosen]


def _values(x: Any) -> Values:
    """A number, or a tuple of numbers."""
    flat = np.asarray(x)
    if flat.ndim == 0:
        return int(flat) if np.issubdtype(flat.dtype, np.integer) else float(flat)
    return tuple(float(v) for v in flat.reshape(-1))
