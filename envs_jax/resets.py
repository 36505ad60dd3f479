"""A batch of environments, with a policy for resetting those whose episode ended.

The reset policy has the largest effect on the cost of a procedural environment (`always` costs 50 times as much as
`pool` on Crafter-like environments), so it is always named explicitly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces, tracing
from envs_jax.checks import at_least
from envs_jax.env import Environment, Wrapper, check_numbers, traced
from envs_jax.hashing import mixed_bits


ResetPolicy = Literal["always", "pool", "optimistic", "next_step", "none"]

FRESH = 0xFFFFFFFF
"""The number that is folded into the key of fresh episodes; no row has this number."""


@struct.dataclass
class VectorState:
    """The state of a batch of `N` environments."""

    env: Any
    """The environments' states, leaves `[N, ...]`."""
    pool: Any = None
    """`(obs, state)` of prepared episodes, leaves `[K, ...]`; None unless the policy is `pool`."""
    done: Any = None
    """bool `[N]`, episodes that ended on the last step; None unless the policy is `next_step`."""


def select(mask: jax.Array, on_true: Any, on_false: Any) -> Any:
    """Choose whole rows of two pytrees, by a bool mask `[N]` over their leading axis."""

    def pick(a, b):
        m = mask.reshape(mask.shape + (1,) * (a.ndim - 1))
        return jnp.where(m, a, b)

    return jax.tree.map(pick, on_true, on_false)


def hashed(key: jax.Array, n: int) -> jax.Array:
    """One number for each of `n` rows, uint32 `[n]`, hashed from a key and the row: good for a single choice, not for a
    stream.

    The finaliser of MurmurHash3 over the words of the key. It costs a tenth of a draw from `jax.random`, which takes
    most of the time of a step of a small environment.
    """
    x = jnp.arange(n, dtype=jnp.uint32)
    for word in jax.random.key_data(key):
        x = mixed_bits(x ^ word)
    return x


class VectorEnv(Wrapper):
    """`num_envs` copies of an environment, stepped together, with a named reset policy.

    * `always`: a fresh episode is generated for every row on every step, and used for the rows whose episode ended.
      Exact but expensive.
    * `pool`: ended rows take a random one of `pool_size` prepared episodes; `refresh` renews the pool. The default.
    * `optimistic`: `num_envs / reset_ratio` fresh episodes per step; rows share one when more end at once.
    * `next_step`: as in Gymnasium: the step after the end ignores its action, resets, and has reward 0.
    * `none`: nothing is reset.

    The batch keeps the environment's contract with a leading axis `[N]`, and `info["final_observation"]` is the
    observation before any reset. What row `i` draws is a function of `key` and `i`, so a row does not depend on how
    many rows or devices there are (except `optimistic`, where rows that end together are numbered); give a new `key`
    to each step.

    **Example:**

    ```pycon
    >>> import envs_jax, jax
    >>> env, params = envs_jax.make("CartPole-v1")
    >>> batch = envs_jax.VectorEnv(env, 8, policy="always")
    >>> obs, state = jax.jit(batch.reset)(jax.random.key(0), params)
    >>> obs.shape, obs.dtype
    ((8, 4), dtype('float32'))
    ```
    """

    def __init__(
        self,
        env: Environment,
        num_envs: int,
        *,
        policy: ResetPolicy = "pool",
        pool_size: int = 256,
        reset_ratio: int = 16,
        batched_params: bool = False,
    ):
        """**Arguments:** `env`; `num_envs`, `N`; `policy`, see above; `pool_size`, `K`; `reset_ratio`, rows per fresh
        episode under `optimistic`; `batched_params`, whether every leaf of `params` has a leading axis `[N]` (then
        `policy` cannot be `pool` or `optimistic`, whose episodes do not belong to one row)."""
        super().__init__(env)
        policies = ResetPolicy.__args__  # type: ignore[attr-defined]
        if policy not in policies:
            raise ValueError(f"unknown reset policy {policy!r}; it is one of {', '.join(policies)}")
        at_least("num_envs", num_envs, 1)
        if policy == "pool":
            at_least("pool_size", pool_size, 1)
        if policy == "optimistic":
            at_least("reset_ratio", reset_ratio, 1)
        if policy == "optimistic" and num_envs % reset_ratio:
            raise ValueError(f"num_envs {num_envs} is not a multiple of reset_ratio {reset_ratio}")
        if batched_params and policy in ("pool", "optimistic"):
            raise ValueError(f"batched_params needs the policy always, next_step or none, not {policy!r}")
        self.num_envs, self.policy = num_envs, policy
        self.pool_size, self.reset_ratio, self.batched_params = pool_size, reset_ratio, batched_params
        self._checked_with: tuple[Any, Any] = (None, None)

    def _keys(self, key: jax.Array, n: int) -> jax.Array:
        return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(n))

    def _resets(self, key: jax.Array, params: Any, n: int):
        axes = 0 if self.batched_params else None
        return jax.vmap(self.env.reset, in_axes=(0, axes))(self._keys(key, n), params)

    def reset(self, key, params):
        first, fill = jax.random.split(key)
        if self.policy == "pool":  # in one program with the rows: an environment's reset is traced and compiled once
            return self._reset_with_pool(first, fill, params)
        obs, state = self._resets(first, params, self.num_envs)
        vector = VectorState(env=state)
        if self.policy == "next_step":
            vector = vector.replace(done=jnp.zeros(self.num_envs, bool))
        return obs, vector

    @tracing.standard_promotion
    def _reset_with_pool(self, first: jax.Array, fill: jax.Array, params: Any):
        """As `_resets` with `first` and `refresh` with `fill`."""
        n = self.num_envs
        keys = jnp.concatenate([self._keys(first, n), self._keys(fill, self.pool_size)])
        episodes = jax.vmap(self.env.reset, in_axes=(0, None))(keys, params)
        obs, state = jax.tree.map(lambda x: x[:n], episodes)
        return obs, VectorState(env=state, pool=jax.tree.map(lambda x: x[n:], episodes))

    @tracing.standard_promotion
    def refresh(self, key: jax.Array, state: VectorState, params: Any) -> VectorState:
        """New pool of prepared episodes; the identity under every other policy."""
        if self.policy != "pool":
            return state
        return state.replace(pool=self._resets(key, params, self.pool_size))

    def _check_action(self, state: VectorState, action: Any, params: Any) -> None:
        ignored = None
        if self.policy == "next_step":
            if traced(state.done):
                return
            ignored = np.asarray(state.done)
        if self._checked_with[0] is not params:  # joining the spaces of many rows takes longer than a step
            with jax.ensure_compile_time_eval():
                self._checked_with = (params, self.action_space(params))
        check_numbers(self, self._checked_with[1], action, ignored)

    def step(self, key, state, action, params):
        n = self.num_envs
        axes = (0, 0, 0, 0 if self.batched_params else None)
        obs, env, reward, terminated, truncated, info = jax.vmap(self.env.step, in_axes=axes)(
            self._keys(key, n), state.env, action, params
        )
        if self.policy == "next_step":
            skip, (fresh_obs, fresh_env) = state.done, self._resets(jax.random.fold_in(key, FRESH), params, n)
            obs, env = select(skip, (fresh_obs, fresh_env), (obs, env))
            reward = jnp.where(skip, 0.0, reward)
            terminated, truncated = terminated & ~skip, truncated & ~skip
            return (
                obs,
                state.replace(env=env, done=terminated | truncated),
                reward,
                terminated,
                truncated,
                {**info, "final_observation": obs},
            )
        info = {**info, "final_observation": obs}
        done = terminated | truncated
        if self.policy == "none":
            return obs, state.replace(env=env), reward, terminated, truncated, info
        obs, env = select(done, self._fresh(key, state, done, params), (obs, env))
        return obs, state.replace(env=env), reward, terminated, truncated, info

    def step_rows(self, key: jax.Array, state: VectorState, action: Any, params: Any, rows: jax.Array) -> Any:
        """`step`, of which the results of other rows than `rows`, bool `[N]`, are not used: a batch whose rows are
        costly computes no others."""
        return self.step(key, state, action, params)

    def restart(self, key: jax.Array, state: VectorState, rows: jax.Array, params: Any) -> tuple[Any, VectorState]:
        """Fresh episodes in some rows, as `step` begins them, for a caller that ends episodes itself.

        **Arguments:** `rows`, bool `[N]`.
        **Returns:** fresh observations, of use in these rows only, and the state with fresh episodes there.
        **Raises:** `ValueError` under `next_step` and `none`, which begin no episode within a step."""
        if self.policy in ("next_step", "none"):
            raise ValueError(f"the reset policy {self.policy} begins no episodes within a step: take pool or always")
        obs, env = self._fresh(key, state, rows, params)
        return obs, state.replace(env=select(rows, env, state.env))

    def _fresh(self, key: jax.Array, state: VectorState, rows: jax.Array, params: Any) -> tuple[Any, Any]:
        """Observations and states of fresh episodes, leaves `[N, ...]`, for use in `rows`."""
        n = self.num_envs
        if self.policy == "always":
            return self._resets(jax.random.fold_in(key, FRESH), params, n)
        if self.policy == "optimistic":
            num_fresh = n // self.reset_ratio
            rank = jnp.where(rows, jnp.cumsum(rows) - 1, 0) % num_fresh
            return jax.tree.map(lambda x: x[rank], self._resets(jax.random.fold_in(key, FRESH), params, num_fresh))
        index = hashed(key, n) % self.pool_size
        return jax.tree.map(lambda x: x[index], state.pool)

    def _stacked(self, space: Callable[[Any], spaces.Space], params: Any) -> spaces.Space:
        """The space of the batch; `space` makes that of one environment from its parameters."""
        n = self.num_envs
        if not self.batched_params:
            return spaces.stack(space(params), n)
        for path, x in jax.tree_util.tree_leaves_with_path(params):
            if np.shape(x)[:1] != (n,):
                raise ValueError(
                    f"params{jax.tree_util.keystr(path)} has the shape {np.shape(x)}; with batched_params every leaf "
                    f"needs ({n}, ...): repeat what is the same for all rows, as jnp.full({n}, x) does"
                )
        # with NumPy if possible: jax takes a tenth of a millisecond for each number
        leaves = jax.tree.map(lambda x: x if isinstance(x, jax.core.Tracer) else np.asarray(x), params)
        return spaces.join([space(jax.tree.map(operator.itemgetter(row), leaves)) for row in range(n)])

    def observation_space(self, params):
        return self._stacked(self.env.observation_space, params)

    def action_space(self, params):
        return self._stacked(self.env.action_space, params)
