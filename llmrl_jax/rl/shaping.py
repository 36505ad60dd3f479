"""Potential-based shaping over windows of history, a `llmrl_jax.rl.bonus.Bonus`.

`r + gamma * phi(h') - phi(h)` (Ng, Harada and Russell, 1999, eq. 2), where `h` is the newest observation with the last
`K` observations and actions of its episode. The potential of a terminal state is 0; a truncated one keeps its
potential, as the learner bootstraps there. So every policy's return changes by `-phi(h_0)` only, and the optimal policy
is unchanged. `K = 0` is the ordinary potential of an observation.

An observation is encoded once (`Potential.encode`), when it is played; windows are made of these features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs_jax import tracing
from llmrl_jax.core.checks import Checked, FiniteFloat
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.bonus import BonusState, Moments
from llmrl_jax.rl.gradient import traced_floats
from llmrl_jax.rl.rollout import next_values


NO_ACTION = -1
"""Stands for the actions before an episode."""


@struct.dataclass
class Window:
    """Newest observation of each row, and what led to it."""

    features: Any
    """Of observations, leaves `[B, K + 1, ...]`, the newest last; copies of an episode's first one stand for those
    before it."""
    action: Int[Array, "B K"]
    """`action[k]` was taken at `features[k]`; `NO_ACTION` before the episode."""
    time: Int[Array, " B"]
    """Steps of the episode before the newest observation."""


class Potential(Protocol):
    """Scalar over windows, as pure functions of its parameters."""

    window: int
    """Past observations and actions that it sees, `K`."""
    params: Any
    """Arrays that it reads; a learner's state holds them."""

    def encode(self, params: Any, obs: Any) -> Any:
        """Features of observations, leaves `[B, ...]`."""
        ...

    def value(self, params: Any, window: Window) -> Float[Array, " B"]:
        """Potential of windows."""
        ...


class OfObservation:
    """A potential of the newest observation alone."""

    window, params = 0, ()

    def __init__(self, potential: Callable[[Any], Float[Array, " B"]]):
        """**Arguments:** `potential`, from observations, leaves `[B, ...]`, to float32 `[B]`."""
        self.potential = potential

    def encode(self, params: Any, obs: Any) -> Float[Array, " B"]:
        return self.potential(obs)

    def value(self, params: Any, window: Window) -> Float[Array, " B"]:
        return window.features[:, 0]


@dataclass(frozen=True)
class ShapingConfig(Checked):
    """Settings of potential-based shaping. Floats are traced."""

    PREFIX: ClassVar[str] = "shaping."
    """Of its options on the command line."""

    coef: FiniteFloat = 1.0
    """Weight of the shaping reward."""
    extrinsic_coef: FiniteFloat = 1.0
    """Weight of the environment's reward."""
    compat: Literal["none", "paper"] = "none"
    """`paper`: as the published code, each shaping reward is credited to the action after it and does not stop at the
    end of an episode, the potential is divided by a running standard deviation, and the first action of an episode
    stands for those before it."""


@struct.dataclass
class _History:
    """The last steps of each row's episode: leaves `[N, K, ...]`, the newest last, and int32 `[N]`."""

    features: Any
    action: jax.Array
    time: jax.Array


class Shaping:
    """Shaping by a potential over windows, a `llmrl_jax.rl.bonus.Bonus` whose rewards replace the environment's."""

    name = "shaping"

    def __init__(self, potential: Potential, config: ShapingConfig | None = None):
        """**Arguments:** `potential`; `config`."""
        self.potential, self.config = potential, config or ShapingConfig()

    @property
    def _paper(self) -> bool:
        return self.config.compat == "paper"

    def init(self, key: jax.Array, obs: Any) -> BonusState:
        params = jax.tree.map(jnp.asarray, self.potential.params)
        first = self.potential.encode(params, obs)
        n, k = jax.tree.leaves(obs)[0].shape[0], self.potential.window
        past = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (n, k, *x.shape[1:])), first)
        rows: dict[str, Any] = {"history": _History(past, jnp.full((n, k), NO_ACTION), jnp.zeros(n, jnp.int32))}
        replicated: dict[str, Any] = {"params": params, "hparams": traced_floats(self.config)}
        if self._paper:
            rows |= {"sum": jnp.zeros(n), "last": jnp.zeros(n)}
            replicated["moments"] = Moments.start()
        return BonusState(replicated, rows)

    def stream(self, state: BonusState) -> None:
        return None

    def check_one_reward(self) -> None:
        pass

    def value(self, state: BonusState, obs: Any, batch_dims: int):
        raise NotImplementedError("shaped rewards replace the environment's: they have no value function of their own")

    def update(self, state: BonusState, steps: Transitions, key: jax.Array):
        return state, {}

    def reward(self, state: BonusState, steps: Transitions, gamma: float | jax.Array):
        params, h = state.whole["params"], state.whole["hparams"]
        count, rows = steps.reward.shape
        flat = jax.tree.map(lambda x: x.reshape(count * rows, *x.shape[2:]), steps.obs)
        features = jax.tree.map(lambda x: x.reshape(count, rows, *x.shape[1:]), self.potential.encode(params, flat))
        played = _Played.create(state.rows["history"], features, steps, first_action=self._paper)
        phi = self.potential.value(params, played.windows()).reshape(count, rows)
        after = {"history": played.history(steps)}
        if self._paper:
            extra, shaped, moments = self._published(state, phi, gamma)
            after, replicated = after | extra, state.whole | {"moments": moments}
        else:
            replicated = state.whole

            def reached(x: Any, _: Any) -> Float[Array, " N"]:
                features = self.potential.encode(params, x["obs"])
                return self.potential.value(params, played.reached(x["time"], features))

            times = jnp.broadcast_to(jnp.arange(count)[:, None], (count, rows))
            reached_steps = {"obs": steps.next_obs, "time": times}
            following = next_values(reached, reached_steps, (), phi, steps.terminated, steps.truncated)
            shaped = gamma * jnp.where(steps.terminated, 0.0, following) - phi
        reward = h["extrinsic_coef"] * steps.reward + h["coef"] * shaped
        report = {
            "shaping_mean": jnp.mean(shaped),
            "shaping_std": jnp.std(shaped),
            "potential_mean": jnp.mean(phi),
            "potential_std": jnp.std(phi),
        }
        return BonusState(replicated, after), reward, report

    def _published(self, state: BonusState, phi: Float[Array, "T N"], gamma: float | jax.Array):
        """The published rewards (`train_rs.py` of BK-RL): `gamma * phi_t - phi_{t-1}` at step `t`."""

        def add(total, x):
            total = gamma * total + x
            return total, total

        sums, totals = tracing.scan(add, state.rows["sum"], phi)
        moments = state.whole["moments"].update(totals)
        potentials = jnp.concatenate([state.rows["last"][None], phi]) / jnp.sqrt(moments.var + 1e-8)
        return {"sum": sums, "last": potentials[-1]}, gamma * potentials[1:] - potentials[:-1], moments


@struct.dataclass
class _Played:
    """Steps in the order of time, after those that the history holds."""

    features: Any
    """Leaves `[K + T, N, ...]`."""
    action: Int[Array, "S N"]
    """Taken at these."""
    begin: Int[Array, "T N"]
    """The start of each step's episode, counted from the first of the `T` steps; negative: before it."""
    window: int = struct.field(pytree_node=False)
    first_action: bool = struct.field(pytree_node=False)

    @classmethod
    def create(cls, history: _History, features: Any, steps: Transitions, *, first_action: bool) -> _Played:
        """**Arguments:** `features`, of `steps.obs`; `first_action`, whether an episode's first action stands for those
        before it."""
        join = lambda past, new: jnp.concatenate([jnp.swapaxes(past, 0, 1), new])  # noqa: E731
        count = steps.reward.shape[0]
        done = (steps.terminated | steps.truncated)[:-1]
        starts = jnp.where(done, jnp.arange(1, count)[:, None], -history.time)
        begin = jax.lax.cummax(jnp.concatenate([-history.time[None], starts]))
        if steps.action.ndim == 2:
            actions = steps.action.astype(jnp.int32)
        elif window := history.action.shape[1]:
            raise ValueError(f"a potential over {window} earlier actions needs discrete ones; these are vectors")
        else:  # nothing reads them
            actions = jnp.full(steps.reward.shape, NO_ACTION)
        action = join(history.action, actions)
        return cls(
            features=jax.tree.map(join, history.features, features),
            action=action,
            begin=begin,
            window=history.action.shape[1],
            first_action=first_action,
        )

    def _take(self, tree: Any, index: Int[Array, "*S N"]) -> Any:
        """The entries of each row at its own indices: leaves `[*S, N, ...]`."""
        rows = np.arange(index.shape[-1])
        return jax.tree.map(lambda x: x[index, rows], tree)

    def _window_indices(self, time: Int[Array, "*S N"], begin: Int[Array, "*S N"]) -> tuple[Any, Any, Any]:
        """Indices `[*S, K + 1, N]` of the window that ends at a time; whether they are in the episode; its first."""
        newest = jnp.arange(self.window + 1)[:, None]
        first = begin[..., None, :] + self.window
        index = time[..., None, :] + newest
        return jnp.maximum(index, first), index >= first, first

    def _actions(self, index: Any, real: Any) -> Any:
        """The actions at indices `[*S, K, N]`, `NO_ACTION` before the episode."""
        action = self._take(self.action, index)
        return action if self.first_action else jnp.where(real, action, NO_ACTION)

    def windows(self) -> Window:
        """The windows of all `T x N` steps, in one batch."""
        count, rows = self.begin.shape
        time = jnp.broadcast_to(jnp.arange(count)[:, None], (count, rows))
        index, real, _ = self._window_indices(time, self.begin)
        batch = lambda x: jnp.swapaxes(x, 1, 2).reshape(count * rows, -1, *x.shape[3:])  # noqa: E731
        return Window(
            features=jax.tree.map(batch, self._take(self.features, index)),
            action=batch(self._actions(index[:, :-1], real[:, :-1])),
            time=(time - self.begin).reshape(-1),
        )

    def reached(self, time: Int[Array, " N"], features: Any) -> Window:
        """The windows that end in what one step of each row reached. **Arguments:** `time`, of the step; `features`, of
        what it reached, leaves `[N, ...]`."""
        begin = self._take(self.begin, time)
        index, real, _ = self._window_indices(time + 1, begin)
        past = self._take(self.features, index[:-1])
        join = lambda past, new: jnp.swapaxes(jnp.concatenate([past, new[None]]), 0, 1)  # noqa: E731
        return Window(
            features=jax.tree.map(join, past, features),
            action=jnp.swapaxes(self._actions(index[:-1], real[:-1]), 0, 1),
            time=time + 1 - begin,
        )

    def history(self, steps: Transitions) -> _History:
        """The history of the next steps."""
        keep = lambda x: jnp.swapaxes(x[x.shape[0] - self.window :], 0, 1)  # noqa: E731
        done: Bool[Array, " N"] = (steps.terminated | steps.truncated)[-1]
        count = self.begin.shape[0]
        time = jnp.where(done, 0, count - self.begin[-1])
        return _History(jax.tree.map(keep, self.features), keep(self.action), time)
