"""Episodes, from their keys to what is recorded of them: the player that every driver of whole episodes is built on.

*Actor*: a function that acts in all lanes at once, with a memory per lane. It is made inside the compiled program from
`variables` (a policy's parameters, for example), so that one program serves every checkpoint.
*Keys*: the first of an episode resets the environment, the second is that of its steps: step `t` uses
`fold_in(key, t)` alone. So an episode depends on its keys and on `variables`, and neither on lanes nor on chunks.
*Records*: `make_player` gives whole episodes, step by step, with what the caller reads from states (`view`) and from
steps (`extra`); `llmrl_jax.agents.evaluate` keeps one result of each episode, and nothing else leaves the device.
*Lanes*: rows of one batch, each with an episode. A lane whose episode has ended stands still until it gets the next.
*Chunks*: steps per call of the device; between two calls the host takes the records and refills lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int, Key

from envs_jax import tracing
from envs_jax.env import Environment
from envs_jax.resets import select
from llmrl_jax.core.activity import doing
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.policy import Policy


CHUNK = 16
"""Default number of steps between transfers to the host."""
IDLE = -1
"""The number of a lane without an episode."""


@struct.dataclass
class EpisodeBatch:
    """`B` episodes in progress."""

    key: Key[Array, " B"]
    """The key of each episode's steps."""
    t: Int[Array, " B"]
    """Steps taken so far."""
    obs: Any
    """The current observations, leaves `[B, ...]`."""
    state: Any
    """The environment's states, leaves `[B, ...]`."""
    carry: Any
    """The actor's memory, leaves `[B, ...]`."""
    done: Bool[Array, " B"]
    """Episodes that have ended. If `advance` freezes them, `t`, `obs` and `state` stay at their final values."""


@struct.dataclass
class Step:
    """Results of one step of every row; undefined for rows that were over."""

    action: Any
    aux: Any
    """The actor's additional output, leaves `[B, ...]`."""
    reward: jax.Array
    """float32 `[B]`."""
    terminated: jax.Array
    truncated: jax.Array
    """bool `[B]`, from the environment."""
    info: Any
    ended: jax.Array
    """bool `[B]`, episodes that this step ended, by the environment or by `max_steps`."""


@dataclass(frozen=True)
class Actor:
    """Function that acts in all rows at once."""

    act: Callable[[Any, Any, Bool[Array, " B"], Any], tuple[Any, Any, Any]]
    """`(obs, carry, first, keys) -> (action, carry, aux)`; `first`, rows at the start of an episode."""
    initial_carry: Callable[[int], Any] = lambda rows: ()
    """The memory before an episode, for a number of rows."""
    draws: bool = True
    """Whether acting is random. If so, the key of each step is split into `keys`, one per row, and the environment's;
    if not, `keys` is None and the environment uses the key unsplit."""


def policy_actor(policy: Policy, params: Any, frozen: Any, greedy: Any) -> Actor:
    """The actor of a policy; its `aux` is `(distribution, value)`.

    **Arguments:** `policy`, `params`, `frozen`, see `llmrl_jax.rl.policy.Policy`; `greedy`, bool `[]`, possibly traced:
    the mode of the distribution instead of a sample.
    """

    def act(obs, carry, first, keys):
        distribution, value, carry = policy.step(params, frozen, obs, carry, first)
        noise = jax.vmap(lambda row, key: row.noise(key))(distribution, keys)
        action = jnp.where(greedy, distribution.mode(), distribution.choose(noise))
        return action, carry, (distribution, value)

    return Actor(act, policy.initial_carry)


def actor_of(policy: Policy, greedy: Any = False) -> Callable[[Any], Actor]:
    """Function from a policy's weights, `(params, frozen)`, to its actor; see `policy_actor`."""

    def actor(weights: Any) -> Actor:
        params, frozen = weights
        return policy_actor(policy, params, frozen, greedy)

    return actor


@tracing.default_types
def begin(
    env: Environment, env_params: Any, actor: Actor, reset_keys: Key[Array, " B"], step_keys: Key[Array, " B"]
) -> EpisodeBatch:
    """Start `B` episodes. **Arguments:** `env`, not batched; the two keys of each episode."""
    count = reset_keys.shape[0]
    obs, state = jax.vmap(env.reset, in_axes=(0, None))(reset_keys, env_params)
    blank = jnp.zeros(count, jnp.int32)
    return EpisodeBatch(step_keys, blank, obs, state, actor.initial_carry(count), jnp.zeros(count, bool))


@tracing.default_types
def advance(
    env: Environment,
    env_params: Any,
    actor: Actor,
    rows: EpisodeBatch,
    max_steps: int | None = None,
    *,
    freeze_finished: bool = True,
) -> tuple[EpisodeBatch, Step]:
    """Take one step in every row.

    **Arguments:** `max_steps`, steps after which an episode always ends; None: only the environment ends it;
    `freeze_finished`, whether finished rows keep their state. If nothing reads them, False saves copying every state.
    """
    keys = jax.vmap(jax.random.fold_in)(rows.key, rows.t)
    act_keys, step_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0) if actor.draws else (None, keys)
    action, carry, aux = actor.act(rows.obs, rows.carry, rows.t == 0, act_keys)
    step_all = jax.vmap(env.step, in_axes=(0, 0, 0, None))
    obs, state, reward, terminated, truncated, info = step_all(step_keys, rows.state, action, env_params)
    t = rows.t + 1
    ended = terminated | truncated
    if max_steps is not None:
        ended = ended | (t >= max_steps)
    step = Step(action, aux, reward, terminated, truncated, info, ended & ~rows.done)
    if freeze_finished:  # also because physics simulated after a fall gives huge numbers, which are slow to compute
        t, obs, state, carry = select(rows.done, (rows.t, rows.obs, rows.state, rows.carry), (t, obs, state, carry))
    return EpisodeBatch(rows.key, t, obs, state, carry, rows.done | ended), step


@tracing.default_types
def rollout(
    env: Environment,
    env_params: Any,
    actor: Actor,
    rows: EpisodeBatch,
    record: Callable[[EpisodeBatch, Step], dict[str, Any]],
    *,
    steps: int,
    max_steps: int | None = None,
    freeze_finished: bool = True,
) -> tuple[EpisodeBatch, dict[str, Any]]:
    """Take `steps` steps and keep what `record` gives for each, from the rows before it and the step; see `advance`.

    **Returns:** the rows after the last step, and the recorded leaves `[steps, B, ...]`; `live`, bool `[steps, B]`,
    marks the rows that had not ended before a step.
    """

    def step_rows(rows, _):
        after, step = advance(env, env_params, actor, rows, max_steps, freeze_finished=freeze_finished)
        return after, {"live": ~rows.done, **record(rows, step)}

    return tracing.scan(step_rows, rows, None, steps)


# --- whole episodes ---------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=1)
def key_pairs(key: Key[Array, ""], episodes: int, first: int | Int[Array, ""] = 0) -> Key[Array, "{episodes} 2"]:
    """The keys of the resets and of the steps of episodes, from number `first` on: those of episode `i` depend only on
    `key` and `i`."""
    return jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(first + jnp.arange(episodes))


@dataclass(frozen=True)
class Episode:
    """Episode of `T` steps, as NumPy arrays."""

    number: int
    success: bool
    """The environment's success flag; without one, whether the environment ended the episode."""
    observed: Any
    """The view before each step, leaves `[T, ...]`."""
    action: np.ndarray
    """`[T, ...]`."""
    reward: np.ndarray
    """float32 `[T]`."""
    terminated: np.ndarray
    """bool `[T]`."""
    truncated: np.ndarray
    """bool `[T]`."""
    end: Any = ()
    """The view after the last step; `()` if it was not recorded."""
    extra: Any = ()
    """Further results of each step, leaves `[T, ...]`."""

    def __len__(self) -> int:
        return len(self.reward)

    @functools.cached_property
    def views(self) -> Any:
        """Views before each step and after the last, leaves `[T + 1, ...]`."""
        return jax.tree.map(lambda x, end: _concatenated(x, end[None]), self.observed, self.end)

    def view_at(self, t: int) -> Any:
        """View before step `t`, or after the last one for `t = T`."""
        return jax.tree.map(lambda x: x[t], self.views)

    def transitions(self, **parts: Any) -> Transitions:
        """Steps, whose observations are the views. **Arguments:** `parts`, fields of other contents."""
        fields = {name: getattr(self, name) for name in ("action", "reward", "terminated", "truncated")}
        before, after = (jax.tree.map(lambda x, part=part: x[part], self.views) for part in (np.s_[:-1], np.s_[1:]))
        return Transitions(**{"obs": before, "next_obs": after, **fields, **parts})


def make_player(
    env: Environment,
    env_params: Any,
    actor: Callable[[Any], Actor],
    view: Callable[[Any, Any], Any],
    extra: Callable[[Step], Any] = lambda step: (),
    *,
    end: bool = True,
    chunk: int = CHUNK,
    max_steps: int | None = None,
) -> Callable[..., Iterator[Episode]]:
    """Build `play(variables, keys, *, lanes=None)`, an iterator over episodes, compiled once.

    **Arguments:** `env`, not batched, and its `env_params`; `actor`, from `variables` to what acts; `view`, from the
    observation and the state of one lane to what is recorded of it; `extra`, what else is recorded of a step of all
    lanes; `end`, whether the view after the last step is recorded too; `chunk`, steps on the device between transfers
    to the host; `max_steps`, steps after which an episode always ends.

    `play` takes the `keys` of the episodes, `[E, 2]`, see `key_pairs`, and yields them in this order as they end. It
    plays `lanes` of them at once (None: all): when half of the lanes are idle they get the next ones, so that a step is
    rarely taken for lanes that have ended.
    """

    def record(rows: EpisodeBatch, step: Step) -> dict[str, Any]:
        return {
            "observed": jax.vmap(view)(rows.obs, rows.state),
            "action": step.action,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated | (step.ended & ~step.terminated),
            "success": step.info.get("success", step.terminated),
            "extra": extra(step),
        }

    @jax.jit
    def start(variables: Any, keys: jax.Array) -> EpisodeBatch:
        return begin(env, env_params, actor(variables), keys[:, 0], keys[:, 1])

    @jax.jit
    def continue_(variables: Any, rows: EpisodeBatch) -> tuple[EpisodeBatch, dict[str, Any], Any]:
        acting = actor(variables)
        rows, steps = rollout(
            env, env_params, acting, rows, record, steps=chunk, max_steps=max_steps, freeze_finished=end
        )
        return rows, steps, jax.vmap(view)(rows.obs, rows.state) if end else ()

    @jax.jit
    def renew(variables: Any, rows: EpisodeBatch, keys: jax.Array, chosen: jax.Array) -> EpisodeBatch:
        return select(chosen, start(variables, keys), rows)

    def play(variables: Any, keys: Key[Array, "E 2"], *, lanes: int | None = None) -> Iterator[Episode]:
        episodes = len(keys)
        lanes = min(lanes or episodes, episodes)
        numbers, next_number, yielded = np.arange(lanes), lanes, 0
        parts: list[list[dict[str, Any]]] = [[] for _ in range(lanes)]
        waiting: dict[int, Episode] = {}
        rows = start(variables, keys[:lanes])
        with doing("playing", episodes, "episodes") as activity:
            while yielded < episodes:
                rows, steps, last = continue_(variables, rows)
                steps, last, ended = jax.device_get((steps, last, rows.done))
                lengths = steps.pop("live").sum(axis=0)
                for lane in np.flatnonzero(numbers != IDLE):
                    index = np.s_[: lengths[lane], lane]
                    parts[lane].append(jax.tree.map(lambda x, index=index: x[index], steps))
                    if ended[lane]:
                        results = jax.tree.map(_concatenated, *parts[lane])
                        results["success"] = bool(results["success"][-1])
                        final = jax.tree.map(lambda x, lane=lane: x[lane].copy(), last)
                        number = int(numbers[lane])
                        waiting[number] = Episode(number=number, end=final, **results)
                        numbers[lane], parts[lane] = IDLE, []
                activity.done = yielded + len(waiting)
                while yielded in waiting:
                    yield waiting.pop(yielded)
                    yielded += 1
                idle = np.flatnonzero(numbers == IDLE)
                if next_number < episodes and 2 * len(idle) >= lanes:
                    refilled = idle[: episodes - next_number]
                    numbers[refilled] = np.arange(next_number, next_number + len(refilled))
                    next_number += len(refilled)
                    chosen = np.isin(np.arange(lanes), refilled)
                    rows = renew(variables, rows, keys[np.where(chosen, numbers, 0)], chosen)

    return play


def _concatenated(*parts: Any) -> Any:
    """On the host; PRNG keys, which NumPy does not have, stay on the device."""
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else jnp.concatenate(parts)


# --- recording of one episode -----------------------------------------------------------------------------------------


def make_recorder(
    env: Environment,
    env_params: Any,
    actor: Callable[[Any], Actor],
    *,
    max_steps: int | None = None,
    chunk: int = CHUNK,
) -> Callable[[Any, jax.Array], Episode]:
    """Build `record(variables, key)`, compiled once for any number of episodes. Their views have `obs` and `state`, and
    `extra` is the actor's `aux`.

    It plays the same episode as an evaluator with the same key: `key` is split into the keys of the reset and of the
    steps. **Arguments:** see `make_player`.
    """

    def view(obs: Any, state: Any) -> dict[str, Any]:
        return {"obs": obs, "state": state}

    play = make_player(env, env_params, actor, view, lambda step: step.aux, chunk=chunk, max_steps=max_steps)
    return lambda variables, key: next(play(variables, jax.random.split(key)[None]))


@dataclass(frozen=True)
class Frame:
    """The observation and the policy's outputs at one step."""

    picture: np.ndarray
    """uint8 `[H, W, 3]`."""
    text: dict[str, str]
    """The observation's strings, from `env.describe`."""
    probabilities: np.ndarray
    """float32 `[A]`, of the actions; empty on the last frame."""
    action: int
    """The action taken; -1 on the last frame."""
    value: float
    """The critic's estimate of the (scaled, discounted) return."""
    reward: float
    """The reward of the preceding step, as seen by the learner."""


def record_episode(
    env: Environment, params: Any, policy: Any, policy_params: Any, frozen: Any, key: jax.Array, *, greedy: bool = False
) -> tuple[list[Frame], bool]:
    """Play one episode of a policy over numbered actions and draw every step.

    **Arguments:** `env`, wrapped as for training, not batched; `policy`, `policy_params`, `frozen`, see
    `llmrl_jax.rl.policy`; `key`, a typed PRNG key; `greedy`, the mode instead of a sample.
    **Returns:** the frames, one more than steps, and the environment's success flag.
    """

    def actor(variables: Any) -> Actor:
        policy_params, frozen = variables
        inner = policy_actor(policy, policy_params, frozen, greedy)

        def act(obs, carry, first, keys):
            action, carry, (distribution, value) = inner.act(obs, carry, first, keys)
            return action, carry, {"probabilities": distribution.probs, "value": value}

        return Actor(act, inner.initial_carry)

    episode = make_recorder(env, params, actor)((policy_params, frozen), key)
    length = len(episode)
    frames = [
        Frame(
            picture=env.render(episode.view_at(t)["state"]),
            text=env.describe(episode.view_at(t)["obs"]),
            probabilities=np.zeros(0, np.float32) if t == length else episode.extra["probabilities"][t],
            action=-1 if t == length else int(episode.action[t]),
            value=0.0 if t == length else float(episode.extra["value"][t]),
            reward=float(episode.reward[t - 1]) if t else 0.0,
        )
        for t in range(length + 1)
    ]
    return frames, episode.success
