"""Policies given by short parameter vectors, in the published order (2511.21928)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from envs_jax.env import Environment
from envs_jax.spaces import Box, Discrete
from llmrl_jax.core.checks import Checked, PositiveInt


Kind = Literal["linear", "linear_nobias", "sigmoid", "projection", "table", "q_table"]
"""The meaning of the parameters in an environment with `S` features (or states) and `A` actions (or action components).

* `linear`: W `[S, A]` row by row, then b `[A]`: weight (s, a) is `params[s * A + a]`, bias a is `params[S * A + a]`.
* `linear_nobias`: W alone.
* `sigmoid`: as `linear`, each action component squashed into (0, 1); for continuous actions.
* `projection`: `rank` numbers `x`; the parameters of `linear` are `Q[:, :rank] @ x`, with Q orthogonal and random.
* `table`: one action for each state, `params[s]`.
* `q_table`: a value for each state and action, `params[s * A + a]`; the greedy action is taken.

Linear outputs are the action for continuous actions; for discrete actions the argmax is taken.
"""

Init = Literal["normal", "normal_unbounded", "uniform_3.5", "uniform_3", "box"]
"""Distribution of the initial candidates; all except `normal_unbounded` lie within the box.

* `normal`: N(0, 3) rounded to 1 decimal, clipped to the box.
* `normal_unbounded`: the same without clipping, as released: one number in 22 lies outside the box stated in prompts.
* `uniform_3.5`: U(-3.5, 3.5) with 4 decimals, as in the fine-tuning repository.
* `uniform_3`: U(-3, 3) with 1 decimal, published for linear policies without bias.
* `box`: uniform in the box, with the policy's decimals; the only one for tables.
"""

TABLES = ("table", "q_table")


def _in_order(terms: Iterable[jax.Array]) -> jax.Array:
    """The sum from left to right: the order of an XLA reduction, and so its bits, depends on the batch shape."""
    return functools.reduce(jnp.add, terms)


@dataclass(frozen=True)
class Policy(Checked):
    """A policy with `num_params` parameters; holds only static data. `make_policy` reads them from an environment."""

    kind: Kind
    obs_size: PositiveInt
    """`S`: number of features of an observation, or of states for a table."""
    act_size: PositiveInt
    """`A`: number of discrete actions, or of components of a continuous action."""
    discrete: bool
    """Whether an action is discrete, int32 `[]`, or continuous, float32 `[A]`."""
    low: float = -6.0
    """The box stated in prompts and searched by optimizers, the same for every parameter; action ids, for a table."""
    high: float = 6.0
    decimals: int = 1
    """Decimals of a parameter in a prompt."""
    init: Init = "normal"
    """Distribution of `sample`."""
    rank: int = 0
    """Number of parameters of a `projection`; 0 for other kinds."""

    def __post_init__(self):
        super().__post_init__()
        if not self.low < self.high:
            raise ValueError(f"low is {self.low} and high {self.high}; low must be below high")
        if self.kind == "table":
            ids = (self.low, self.high, self.decimals)
            if not (0 <= self.low and self.high < self.act_size) or any(x != int(x) for x in ids) or self.decimals:
                raise ValueError(
                    f"a table's entries are actions, 0 to {self.act_size - 1}, without decimals; low is {self.low:g}, "
                    f"high {self.high:g}, decimals {self.decimals}: leave them out"
                )
        if self.kind in TABLES and (not self.discrete or self.init != "box"):
            raise ValueError(
                f"a {self.kind} is for discrete actions and init 'box', not {self.init!r}; see make_policy"
            )
        if self.kind == "sigmoid" and self.discrete:
            raise ValueError("a sigmoid policy is for continuous actions; squashing changes no argmax, use 'linear'")
        if self.kind == "projection" and not 1 <= self.rank <= self.full_size:
            raise ValueError(f"rank is {self.rank}; a projection here needs 1 to {self.full_size}")
        if self.kind != "projection" and self.rank:
            raise ValueError(f"rank is {self.rank}, which only a projection has; this policy is {self.kind!r}")

    @property
    def full_size(self) -> int:
        """Number of parameters before projection."""
        s, a = self.obs_size, self.act_size
        return {"table": s, "q_table": s * a, "linear_nobias": s * a}.get(self.kind, (s + 1) * a)

    @property
    def num_params(self) -> int:
        """`n`, the number of searched parameters."""
        return self.rank if self.kind == "projection" else self.full_size

    @property
    def actions(self) -> list[int] | None:
        """Ids of the actions that a table's entry may have; None for numbers."""
        return list(range(int(self.low), int(self.high) + 1)) if self.kind == "table" else None

    @property
    def choices(self) -> int:
        """Number of values of a table's entry."""
        return int(self.high - self.low) + 1

    @cached_property
    def projection(self) -> Float[np.ndarray, "full rank"]:
        """The first `rank` columns of Q, float32: the QR decomposition of a Gaussian matrix, with R's diagonal positive
        so that Q is unique."""
        gaussian = np.random.default_rng(0).normal(size=(self.full_size, self.full_size))
        q, r = np.linalg.qr(gaussian)
        return (q * np.sign(np.diag(r)))[:, : self.rank].astype(np.float32)

    def weights(self, params: Float[Array, " n"]) -> tuple[Float[Array, "S A"], Float[Array, " A"]]:
        """W and b of a linear policy, after the projection if there is one; b is zero without bias.

        **Raises:** `TypeError` for a table.
        """
        if self.kind in TABLES:
            raise TypeError(f"a {self.kind} has no weights; its parameters are {self.kind} entries")
        if self.kind == "projection":
            params = _in_order(params[i] * jnp.asarray(self.projection[:, i]) for i in range(self.rank))
        s, a = self.obs_size, self.act_size
        bias = jnp.zeros(a, jnp.float32) if self.kind == "linear_nobias" else params[s * a :]
        return params[: s * a].reshape(s, a), bias

    def act(self, params: Float[Array, " n"], obs: jax.Array) -> jax.Array:
        """The action for one observation.

        A continuous action is not clipped: each environment handles actions out of range inside `step`, as its original
        does. Sums are written out in order, so that results are bit-identical for any number of policies evaluated at
        once (those of a matrix product are not).

        **Arguments:** `params`, float32 `[n]`; `obs`, a state index, int32 `[]`, for tables; else an array with
        `obs_size` entries.
        **Returns:** int32 `[]`, or float32 `[A]` for continuous actions.
        """
        if self.kind == "table":
            return self.clip(params[obs]).astype(jnp.int32)
        if self.kind == "q_table":
            return jnp.argmax(params.reshape(self.obs_size, self.act_size)[obs]).astype(jnp.int32)
        weights, bias = self.weights(params)
        features = obs.reshape(self.obs_size).astype(jnp.float32)
        outputs = [
            _in_order([*(features[i] * weights[i, a] for i in range(self.obs_size)), bias[a]])
            for a in range(self.act_size)
        ]
        if not self.discrete:
            output = jnp.stack(outputs)
            return jax.nn.sigmoid(output) if self.kind == "sigmoid" else output
        best, choice = outputs[0], jnp.int32(0)  # argmax, first of equals, spelled out for the CPU's vector units
        for a, output in enumerate(outputs[1:], start=1):
            choice = jnp.where(output > best, a, choice)
            best = jnp.maximum(best, output)
        return choice

    @property
    def middle(self) -> Float[Array, " n"]:
        """The middle of the box, the default start of searches."""
        return jnp.full(self.num_params, (self.low + self.high) / 2, jnp.float32)

    def clip(self, params: Float[Array, "*B"]) -> Float[Array, "*B"]:
        """The nearest parameters within the box; for a table also rounded to integer actions."""
        inside = jnp.clip(params, self.low, self.high)
        return jnp.round(inside) if self.kind == "table" else inside

    def round(self, params: Float[Array, "*B"]) -> Float[Array, "*B"]:
        """The parameters rounded to `decimals` decimals, as in prompts."""
        return jnp.round(params, self.decimals)

    def sample(self, key: jax.Array, count: int) -> Float[Array, "count n"]:
        """Initial candidates sampled according to `init`, float32 `[count, n]`; candidate `i` depends only on `key` and
        `i`."""
        return jax.vmap(lambda i: self._draw(jax.random.fold_in(key, i)))(jnp.arange(count))

    def _draw(self, key: jax.Array) -> Float[Array, " n"]:
        shape = (self.num_params,)
        if self.kind == "table":
            return jax.random.randint(key, shape, int(self.low), int(self.high) + 1).astype(jnp.float32)
        if self.init in ("normal", "normal_unbounded"):
            samples = jnp.round(3 * jax.random.normal(key, shape), 1)
            return samples if self.init == "normal_unbounded" else self.clip(samples)
        reach, decimals = {"uniform_3.5": (3.5, 4), "uniform_3": (3.0, 1)}.get(self.init, (0.0, self.decimals))
        low, high = (-reach, reach) if reach else (self.low, self.high)
        return self.clip(jnp.round(jax.random.uniform(key, shape, jnp.float32, low, high), decimals))


def make_policy(env: Environment, env_params: Any, kind: Kind | None = None, **options: Any) -> Policy:
    """Create the policy of a kind for an environment.

    **Arguments:** `env` and its `env_params`; `kind`, None for `table` with discrete observations and `linear` with
    vectors; `options`, other fields of `Policy` (`low`, `high`, `decimals`, `init`, `rank`).
    **Raises:** `TypeError` if the environment's observations or actions do not suit the kind.
    """
    observations, actions = env.observation_space(env_params), env.action_space(env_params)
    if not isinstance(observations, Box | Discrete) or not isinstance(actions, Box | Discrete):
        raise TypeError(
            f"{env.id} observes {observations} and acts by {actions}; a policy here needs an array or a numbered "
            "state, and actions that are numbered or an array"
        )
    states, discrete = isinstance(observations, Discrete), isinstance(actions, Discrete)
    kind = kind or ("table" if states else "linear")
    if (kind in TABLES) != states:
        kinds = "'table' or 'q_table'" if states else "'linear', 'linear_nobias', 'sigmoid' or 'projection'"
        raise TypeError(f"{env.id} observes {observations}, which does not suit a {kind!r} policy; use {kinds}")
    if kind in TABLES and not discrete:
        raise TypeError(f"{env.id} acts by {actions}; a {kind!r} policy needs numbered actions")
    obs_size = observations.n if isinstance(observations, Discrete) else math.prod(observations.shape)
    act_size = actions.n if isinstance(actions, Discrete) else math.prod(actions.shape)
    if kind == "table":
        options = {"low": 0.0, "high": float(act_size - 1), "decimals": 0, "init": "box", **options}
    elif kind == "q_table":  # only the order of a state's values matters, so the unit box loses nothing
        options = {"low": 0.0, "high": 1.0, "decimals": 4, "init": "box", **options}
    return Policy(kind, obs_size, act_size, discrete, **options)
