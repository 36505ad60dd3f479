"""Our environments under Gymnasium's interface: one (`make`), a batch (`make_vec`), or all (`register_all`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

import envs_jax
from envs_jax import spaces
from envs_jax.checks import at_least
from envs_jax.env import Environment
from envs_jax.extras import missing
from envs_jax.resets import VectorEnv


try:
    import gymnasium
except ModuleNotFoundError as error:
    raise missing("the bridge to Gymnasium", "reference", "gymnasium") from error

TextMode = Literal["strings", "ids"]
"""Missions and texts as Python strings, or as captions: arrays of phrase ids, padded with -1."""

NAMESPACE = "llmrl_jax"
FPS = 4
"""Frames per second for the playback of recorded episodes."""


def to_gymnasium(space: spaces.Space) -> gymnasium.Space:
    """The same space in Gymnasium's classes. An infinite bound becomes the largest finite number of its type.

    (Every observation is finite, as the conformance kit checks, and Gymnasium warns about infinite bounds.)
    """
    if isinstance(space, spaces.Dict):
        return gymnasium.spaces.Dict({name: to_gymnasium(inner) for name, inner in space.spaces.items()})
    if isinstance(space, spaces.Discrete):
        return gymnasium.spaces.Discrete(space.n)
    if isinstance(space, spaces.Box):
        low, high = (np.broadcast_to(np.asarray(bound), space.shape) for bound in (space.low, space.high))
        if np.issubdtype(np.dtype(space.dtype), np.floating):
            largest = np.finfo(space.dtype).max
            low, high = (np.clip(bound, -largest, largest) for bound in (low, high))
        low, high = (bound.astype(space.dtype) for bound in (low, high))
        return gymnasium.spaces.Box(low, high, tuple(space.shape), space.dtype)
    raise TypeError(f"Gymnasium has no space for {space!r}")


def _convert(space: spaces.Space, x: Any) -> Any:
    """An observation as Gymnasium expects it: arrays, int64 if the space is discrete. Any leading axes."""
    if isinstance(space, spaces.Dict):
        return {name: _convert(inner, x[name]) for name, inner in space.spaces.items()}
    return np.asarray(x).astype(np.int64)[()] if isinstance(space, spaces.Discrete) else np.asarray(x)


def text_spaces(env: Environment, params: Any) -> dict[str, gymnasium.spaces.Text]:
    """The captions in an environment's observations, with the spaces of the strings that `env.describe` returns.

    Maximum length and character set follow from the phrases of their books.
    """
    space = env.observation_space(params)
    if not isinstance(space, spaces.Dict):
        return {}
    texts = {}
    for name, book in env.captions.items():
        part = space.spaces.get(name)
        if not isinstance(part, spaces.Box) or len(part.shape) != 1:  # such as a window of captions
            continue
        longest = part.shape[0] * max(map(len, book.phrases)) + (part.shape[0] - 1) * len(book.separator)
        characters = "".join(sorted(set(book.separator if part.shape[0] > 1 else "").union(*book.phrases)))
        texts[name] = gymnasium.spaces.Text(longest, min_length=0, charset=characters)
    return texts


@dataclass(frozen=True)
class _World:
    """The data shared by all copies of one environment, mainly its compiled programs."""

    env: Environment
    params: Any
    texts: Mapping[str, gymnasium.spaces.Text]
    reset: Callable[..., Any]
    """`(seed, params) -> (obs, state)`."""
    step: Callable[..., Any]
    """`(seed, time, state, action, params)` -> the six values."""
    arguments: tuple[str, tuple[tuple[str, Any], ...], int]
    """The arguments of `_shared`: what a copy in another process is made of, since programs cannot be pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _get_world, self.arguments

    def space(self, text: str, params: Any) -> gymnasium.Space:
        """The space of one environment's observations."""
        space = to_gymnasium(self.env.observation_space(params))
        if text == "strings" and self.texts:
            assert isinstance(space, gymnasium.spaces.Dict)
            return gymnasium.spaces.Dict({**space.spaces, **self.texts})
        return space


@functools.lru_cache(maxsize=256)
def _shared(id: str, options: tuple[tuple[str, Any], ...], num_envs: int) -> _World:
    """An environment by its id; a batch of `num_envs`, if not 0, that restarts ended episodes on the next step."""
    env, params = envs_jax.make(id, **dict(options))
    played = VectorEnv(env, num_envs, policy="next_step") if num_envs else env

    @jax.jit
    def reset(seed, params):
        return played.reset(jax.random.split(jax.random.key(seed))[0], params)

    @jax.jit
    def step(seed, time, state, action, params):
        key = jax.random.fold_in(jax.random.split(jax.random.key(seed))[1], time)
        return played.step(key, state, action, params)

    return _World(env, params, text_spaces(env, params), reset, step, (id, options, num_envs))


def _get_world(id: str, options: tuple[tuple[str, Any], ...], num_envs: int) -> _World:
    try:
        hash(options)
    except TypeError:
        return _shared.__wrapped__(id, options, num_envs)
    return _shared(id, options, num_envs)


def _world(id: str, options: Mapping[str, Any], num_envs: int, text: str, render_mode: str | None) -> _World:
    if text not in TextMode.__args__:  # type: ignore[attr-defined]
        raise ValueError(
            f"text is {text!r}; it is 'strings' or 'ids' (the option of the same name of some worlds goes into the id: "
            f"{id.partition('?')[0]}?text={text})"
        )
    world = _get_world(id, tuple(sorted(options.items())), num_envs)
    if render_mode not in (None, *_render_modes(world.env)):
        raise ValueError(
            f"{id} cannot be rendered as {render_mode!r}; its modes are {[None, *_render_modes(world.env)]}"
        )
    return world


def _render_modes(env: Environment) -> list[str]:
    return [] if type(env).render is Environment.render else ["rgb_array"]


def _no_options(options: Mapping[str, Any] | None) -> None:
    if options:
        raise ValueError(f"reset takes no options, not {', '.join(map(repr, options))}")


class GymnasiumEnv(gymnasium.Env):
    """One environment as a `gymnasium.Env`. Seeded by `reset(seed=)`; `info` has NumPy scalars, rewards are floats."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}

    def __init__(
        self,
        id: str,
        *,
        render_mode: str | None = None,
        text: TextMode = "strings",
        params: Any = None,
        **options: Any,
    ):
        """**Arguments:** `id` and `options`, as of `envs_jax.make`; `render_mode`, "rgb_array" or None; `text`, the
        form of missions and texts; `params`, the environment's parameters (default: its own)."""
        self._world = world = _world(id, options, 0, text, render_mode)
        self.render_mode, self.text = render_mode, text
        self.params = world.params if params is None else params
        self.metadata = {"render_modes": _render_modes(world.env), "render_fps": FPS}
        self.observation_space = world.space(text, self.params)
        self.action_space = to_gymnasium(world.env.action_space(self.params))
        arguments = {"text": text, "params": params, **options}
        self.spec = gymnasium.envs.registration.EnvSpec(
            **_registration(id, {name: value for name, value in arguments.items() if value is not None})
        )
        self._state: Any = None
        self._ended = False

    def _observe(self, obs: Any) -> Any:
        converted = _convert(self._world.env.observation_space(self.params), obs)
        if self.text == "strings" and self._world.texts:
            texts = self._world.env.describe(obs)
            converted |= {name: texts[name] for name in self._world.texts}
        return converted

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        _no_options(options)
        self._seed = self.np_random.integers(1 << 32, dtype=np.uint32)
        self._time, self._ended = 0, False
        obs, self._state = self._world.reset(self._seed, self.params)
        return self._observe(jax.device_get(obs)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._state is None or self._ended:
            reason = "the episode has ended" if self._ended else "there is no episode yet"
            raise gymnasium.error.ResetNeeded(f"{reason}: call reset before step")
        action = _action(self.action_space, action)
        obs, self._state, *result = self._world.step(self._seed, self._time, self._state, action, self.params)
        obs, reward, terminated, truncated, info = jax.device_get((obs, *result))
        self._time += 1
        self._ended = bool(terminated | truncated)
        info = jax.tree.map(lambda x: np.asarray(x)[()], info)
        return self._observe(obs), float(reward), bool(terminated), bool(truncated), info

    def render(self) -> Any:
        """The picture of the state, uint8 `[H, W, 3]`; None without a render mode."""
        if self.render_mode is None:
            return None
        if self._state is None:
            raise gymnasium.error.ResetNeeded("there is no episode yet: call reset before render")
        return self._world.env.render(jax.device_get(self._state))


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv):
    """A batch of one environment as a `gymnasium.vector.VectorEnv`: one compiled program steps all rows.

    An episode that ended restarts on the next step, which ignores its action and has reward 0. `info[name]` is an array
    `[N]`, and `info["_" + name]` says in which rows it is valid: those that were stepped.
    """

    def __init__(
        self,
        id: str,
        num_envs: int = 1,
        *,
        render_mode: str | None = None,
        text: TextMode = "ids",
        params: Any = None,
        **options: Any,
    ):
        """**Arguments:** as of `GymnasiumEnv`, and `num_envs`, `N`. With `text="strings"` texts are tuples of strings,
        made on the host, row by row."""
        at_least("num_envs", num_envs, 1)
        self._world = world = _world(id, options, num_envs, text, render_mode)
        self.num_envs, self.render_mode, self.text = num_envs, render_mode, text
        self.params = world.params if params is None else params
        self.metadata = {
            "render_modes": _render_modes(world.env),
            "render_fps": FPS,
            "autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP,
        }
        self.single_observation_space = world.space(text, self.params)
        self.single_action_space = to_gymnasium(world.env.action_space(self.params))
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._state: Any = None

    def _observe(self, obs: Any) -> Any:
        converted = _convert(self._world.env.observation_space(self.params), obs)
        if self.text == "strings" and self._world.texts:
            rows = [self._world.env.describe(row) for row in _rows(obs, self.num_envs)]
            converted |= {name: tuple(row[name] for row in rows) for name in self._world.texts}
        return converted

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        _no_options(options)
        self._seed, self._time = self.np_random.integers(1 << 32, dtype=np.uint32), 0
        self._ended = np.zeros(self.num_envs, bool)
        obs, self._state = self._world.reset(self._seed, self.params)
        return self._observe(jax.device_get(obs)), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self._state is None:
            raise gymnasium.error.ResetNeeded("there are no episodes yet: call reset before step")
        actions = _action(self.action_space, actions, ignored=self._ended)
        obs, self._state, *result = self._world.step(self._seed, self._time, self._state, actions, self.params)
        obs, reward, terminated, truncated, info = jax.device_get((obs, *result))
        self._time += 1
        stepped, self._ended = ~self._ended, terminated | truncated
        del info["final_observation"]  # the observation itself: nothing is reset on the step that ends
        return self._observe(obs), reward, terminated, truncated, _masked(info, stepped)

    def render(self) -> Any:
        """The pictures of all rows; None without a render mode."""
        if self.render_mode is None:
            return None
        if self._state is None:
            raise gymnasium.error.ResetNeeded("there are no episodes yet: call reset before render")
        states = jax.device_get(self._state.env)
        return tuple(self._world.env.render(state) for state in _rows(states, self.num_envs))


def _rows(tree: Any, n: int) -> list[Any]:
    """The `n` rows of a batch."""
    leaves, structure = jax.tree.flatten(tree)
    return [jax.tree.unflatten(structure, [leaf[i] for leaf in leaves]) for i in range(n)]


def _action(space: gymnasium.Space, action: Any, ignored: np.ndarray | None = None) -> np.ndarray:
    """An action, or a batch of them, in the form that the environment expects.

    **Arguments:** `ignored`, bool `[N]`, the rows of a batch whose discrete action may have any value: their episode
    ended.
    **Raises:** `ValueError` for another shape, and for values that are not members of a discrete space.
    """
    array = np.asarray(action)
    discrete = isinstance(space, (gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete))
    fits = array.shape == space.shape
    if fits and discrete and ignored is not None:
        array = np.where(ignored.reshape(-1, *[1] * (array.ndim - 1)), array.dtype.type(0), array)
    if discrete:
        fits = fits and np.issubdtype(array.dtype, np.integer) and space.contains(array.astype(space.dtype))
    if not fits:
        raise ValueError(f"the action {action!r} is not in {space}")
    return array.astype(np.int32 if discrete else space.dtype)


def _masked(info: Mapping[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """Gymnasium's form of a batch of infos: values, zero outside of `rows`, and `_name`, the rows that have them."""
    masked: dict[str, Any] = {}
    for name, value in info.items():
        if isinstance(value, Mapping):
            masked[name] = _masked(value, rows)
        else:
            masked[name] = np.where(rows.reshape(-1, *[1] * (value.ndim - 1)), value, np.zeros((), value.dtype))
        masked[f"_{name}"] = rows
    return masked


def make(id: str, **options: Any) -> GymnasiumEnv:
    """One environment as a `gymnasium.Env`, without any wrapper. **Arguments:** as of `GymnasiumEnv`."""
    return GymnasiumEnv(id, **options)


def make_vec(id: str, num_envs: int, **options: Any) -> GymnasiumVectorEnv:
    """`num_envs` copies of an environment as a `gymnasium.vector.VectorEnv`. **Arguments:** as of
    `GymnasiumVectorEnv`."""
    return GymnasiumVectorEnv(id, num_envs, **options)


def gymnasium_id(id: str) -> str:
    """The name of an environment in Gymnasium's registry: `llmrl_jax/<id>`. Gymnasium allows one slash in a name, so
    that of `BabyAI-Text/...` becomes a hyphen."""
    return f"{NAMESPACE}/{id.partition('?')[0].replace('/', '-')}"


def _registration(id: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": gymnasium_id(id),
        "entry_point": f"{__name__}:GymnasiumEnv",
        "vector_entry_point": f"{__name__}:GymnasiumVectorEnv",
        "kwargs": {"id": id, **options},
    }


def register_all() -> list[str]:
    """Register every environment with Gymnasium, for `gymnasium.make` and `make_vec`; repeated calls are harmless.

    **Returns:** the names, in the order of `envs_jax.ids()`; see `gymnasium_id`.
    """
    for id in envs_jax.ids():
        if gymnasium_id(id) not in gymnasium.registry:
            gymnasium.register(**_registration(id, {}))
    return [gymnasium_id(id) for id in envs_jax.ids()]
