"""brax's environments as ours (`from_brax`, `envs_jax.make("brax/<name>")`), and ours as brax's (`to_brax`, `make`).

brax is imported at the first call, not with this module: it takes seconds to import.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import envs_jax
from envs_jax import spaces
from envs_jax.bridges.arrays import narrow
from envs_jax.checks import at_least, nearest
from envs_jax.env import Environment
from envs_jax.extras import require
from envs_jax.physics.render import Painter


@struct.dataclass
class BraxParams:
    """The parameters of a brax environment. Its masses, gains and time steps are constants of the program."""

    max_steps: Any = 1000
    """Steps until truncation; brax's own `create` has the same default, as `episode_length`."""


@struct.dataclass
class BraxState:
    """The state of a brax environment under our interface."""

    env: Any
    """brax's own `State`."""
    time: jax.Array
    """int32 `[]`, steps since the reset."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the two warnings that brax 0.14 always gives: one on import, one when it loads a model."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "JAXopt is no longer maintained", DeprecationWarning)
        warnings.filterwarnings("ignore", "Brax System, piplines and environments", UserWarning)
        yield


def _brax() -> Any:
    """`brax.envs`. **Raises:** `ModuleNotFoundError` if brax, or one of its dependencies, is not installed."""
    with _quiet():
        return require("the bridge to brax", "control", "brax.envs")


def _space(shape: Any) -> spaces.Space:
    """The space of a brax observation from its shape and dtype; brax gives no bounds."""
    if isinstance(shape, dict):
        return spaces.Dict({name: _space(inner) for name, inner in shape.items()})
    low, high = -np.inf, np.inf
    if np.issubdtype(shape.dtype, np.integer):
        low, high = np.iinfo(shape.dtype).min, np.iinfo(shape.dtype).max
    return spaces.Box(low, high, tuple(shape.shape), np.dtype(shape.dtype))


@contextlib.contextmanager
def _single_precision() -> Iterator[None]:
    """float32 throughout: brax steps only arrays of the width that its models were loaded with, and accelerators would
    round the factors of the physics' products to TF32 or bfloat16, by default."""
    with jax.enable_x64(False), jax.default_matmul_precision("highest"):
        yield


class FromBrax(Environment[BraxState, BraxParams]):
    """A brax environment under our interface: its `reset` and `step`, with our own time limit.

    Observation: brax's own, without bounds. Action: float32 `[action_size]` in [-1, 1], which is what brax's policies
    produce. Terminated when brax sets `done`, truncated after `max_steps`; if `info["truncation"]` is set (see
    `to_brax`), the episode is truncated and not terminated. `info` has brax's `metrics`.

    `info["time_out"]` is not read: brax's inverted pendulum sets it when the pole falls, which is not a time-out.
    """

    def __init__(self, env: Any, max_steps: int = 1000):
        """**Arguments:** `env`, a `brax.envs.Env` without wrappers; `max_steps`, of the default parameters.

        **Raises:** `TypeError` for one of brax's wrappers of batches, time limits and resets, replaced here by
        `VectorEnv` and `max_steps`; `ValueError` for a `max_steps` below 1.
        """
        envs, inner = _brax(), env
        training = envs.training  # the module that holds the wrappers
        batches = (training.VmapWrapper, training.DomainRandomizationVmapWrapper)
        while isinstance(inner, envs.Wrapper):
            if isinstance(inner, (*batches, training.EpisodeWrapper, training.AutoResetWrapper, training.EvalWrapper)):
                raise TypeError(
                    f"brax's {type(inner).__name__} cannot be bridged: hand over the environment inside it. "
                    "envs_jax.VectorEnv makes batches and resets them, params.max_steps is the time limit"
                )
            inner = inner.env
        at_least("max_steps", max_steps, 1)
        self.env, self.max_steps = env, max_steps
        self.id = f"brax/{type(inner).__name__}"

    @property
    def default_params(self):
        return BraxParams(max_steps=self.max_steps)

    def reset(self, key, params):
        with _single_precision():
            state = narrow(self.env.reset(jax.random.key_data(key)))
        return state.obs, BraxState(state, jnp.int32(0))

    def step(self, key, state, action, params):
        with _single_precision():
            # brax's environments mutate the dicts of the state passed to them: the map makes new ones
            after = narrow(self.env.step(jax.tree.map(lambda x: x, state.env), action))
        time = state.time + 1
        cut = jnp.asarray(after.info.get("truncation", 0.0)) > 0
        result = BraxState(after, time)
        terminated, truncated = (after.done > 0) & ~cut, cut | (time >= params.max_steps)
        return after.obs, result, after.reward.astype(jnp.float32), terminated, truncated, dict(after.metrics)

    @functools.cached_property
    def _observation_space(self) -> spaces.Space:
        return _space(jax.eval_shape(self.reset, jax.eval_shape(lambda: jax.random.key(0)), self.default_params)[0])

    def observation_space(self, params):
        return self._observation_space

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (self.env.action_size,))

    @functools.cached_property
    def _painter(self) -> Painter:
        return Painter(self.env.unwrapped.sys.mj_model, {})

    def render(self, state):
        """A picture by MuJoCo's renderer: uint8 `[480, 480, 3]`. **Raises:** as `Painter`; `NotImplementedError` for an
        environment without a MuJoCo model."""
        if not hasattr(self.env.unwrapped, "sys"):
            return super().render(state)
        return self._painter.picture(np.asarray(state.env.pipeline_state.q, np.float64))


def world(name: str, max_steps: int = 1000, **options: Any) -> FromBrax:
    """The environment of `envs_jax.make("brax/<name>?<option>=<value>")`. Arguments, errors: see `from_brax`."""
    envs = _brax()
    if name not in envs._envs:
        names = sorted(envs._envs)
        raise KeyError(f"brax has no environment {name!r}{nearest(name, names)} (it has {', '.join(names)})")
    with _quiet():
        env = FromBrax(envs.get_environment(name, **options), max_steps)
    env.id = f"brax/{name}"
    return env


def from_brax(name: str, *, max_steps: int = 1000, **options: Any) -> tuple[FromBrax, BraxParams]:
    """An environment of brax's registry as ours.

    **Arguments:** `name`, as for `brax.envs.get_environment`; `max_steps`, until truncation; `options` of this
    environment, such as `backend` ("generalized" by default, "spring", "positional" or "mjx").
    **Returns:** `(env, params)`, as `envs_jax.make` does.
    **Raises:** `KeyError` for an unknown name; `ModuleNotFoundError` without brax.
    """
    env = world(name, max_steps, **options)
    return env, env.default_params


@functools.cache
def _to_brax_class() -> Any:
    envs = _brax()
    base: Any = envs.Env

    class ToBrax(base):
        """One of our environments under brax's interface; see `to_brax`."""

        def __init__(self, env: Environment, params: Any):
            self.env, self.params = env, params
            self._actions: Any = env.action_space(params)
            self._shape = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.key(0)), params)[0]
            for path, x in jax.tree_util.tree_leaves_with_path(self._shape):
                if x.ndim == 0:
                    location = f"{env.id}'s observation{jax.tree_util.keystr(path)}"
                    raise TypeError(
                        f"brax's observations are vectors or more; {location} is one number: wrap the world"
                    )
            space: Any = self._actions
            if not isinstance(space, spaces.Discrete):
                box = isinstance(space, spaces.Box) and len(space.shape) == 1
                if not box or not np.issubdtype(np.dtype(space.dtype), np.floating):
                    raise TypeError(f"brax's actions are vectors of floats; {env.id} wants {space}")

        def _state(self, env, obs, reward, terminated, truncated, key):
            late = (truncated & ~terminated).astype(jnp.float32)
            info = {"truncation": late, "time_out": late, "key": jax.random.key_data(key)}
            return envs.State(env, obs, reward, (terminated | truncated).astype(jnp.float32), {}, info)

        def reset(self, rng):
            typed = jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)
            first, key = jax.random.split(rng if typed else jax.random.wrap_key_data(rng))
            obs, env = self.env.reset(first, self.params)
            return self._state(env, obs, jnp.float32(0), jnp.bool(False), jnp.bool(False), key)

        def _action(self, action):
            space = self._actions
            if isinstance(space, spaces.Discrete):
                return jnp.argmax(action).astype(space.dtype)
            low, high = (np.broadcast_to(np.asarray(x, np.float32), space.shape) for x in (space.low, space.high))
            finite = np.isfinite(low) & np.isfinite(high)
            low, high = np.where(finite, low, -1.0), np.where(finite, high, 1.0)
            inside = low + (jnp.clip(action, -1.0, 1.0) + 1) * (high - low) / 2
            return jnp.where(finite, inside, action).astype(space.dtype)

        def step(self, state, action):
            key, now = jax.random.split(jax.random.wrap_key_data(state.info["key"]))
            result = self.env.step(now, state.pipeline_state, self._action(action), self.params)
            obs, env, reward, terminated, truncated, _ = result
            after = self._state(env, obs, reward, terminated, truncated, key)
            return after.replace(
                metrics=dict(state.metrics), info={**state.info, **after.info}
            )  # keeps what wrappers added

        @property
        def observation_size(self):
            if isinstance(self._shape, dict):
                return jax.tree.map(lambda x: x.shape, self._shape)
            return self._shape.shape[-1]

        @property
        def action_size(self):
            space = self._actions
            return space.n if isinstance(space, spaces.Discrete) else space.shape[0]

        @property
        def backend(self):
            return "envs_jax"

        def render(self, trajectory, *_, **__):
            """The pictures of a list of `pipeline_state`s, of the size that the environment renders."""
            return [self.env.render(state) for state in trajectory]

    return ToBrax


def to_brax(env: Environment, params: Any) -> Any:
    """An environment as a `brax.envs.Env`, for brax's wrappers and trainers.

    The state is in `pipeline_state`, the keys of the steps are drawn from `info["key"]`. Actions are vectors: for a
    box, [-1, 1] is scaled to its bounds (and clipped) if they are finite; for `Discrete(n)` an action is `n` scores, of
    which the largest is taken.

    `done` is 1 when an episode ends either way, `info["truncation"]` and `info["time_out"]` are 1 only when it is
    truncated. brax's `EpisodeWrapper` overwrites `truncation`: to bootstrap from truncated states, either set
    `params.max_steps` above the wrapper's `episode_length`, or train with `bootstrap_on_timeout=True`.

    **Raises:** `TypeError` for observations or actions that brax cannot represent.
    """
    return _to_brax_class()(env, params)


def make(id: str, **options: Any) -> Any:
    """One of our environments by its id, with its default parameters, as `brax.envs.get_environment` would return it.
    **Arguments:** as of `envs_jax.make`."""
    return to_brax(*envs_jax.make(id, **options))
