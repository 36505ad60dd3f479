"""The interface of every environment: pure `reset` and `step` over arrays, six values, no hidden reset."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import jax
import numpy as np

from envs_jax.spaces import Box, Discrete, Space
from envs_jax.tracing import standard_promotion


if TYPE_CHECKING:
    from envs_jax.text.phrases import Phrasebook
    from envs_jax.text.template import Limit


State = TypeVar("State")
Params = TypeVar("Params")

Observation = Any
"""An array or a dict of arrays."""
Info = dict[str, Any]
StepResult = tuple[Any, Any, jax.Array, jax.Array, jax.Array, Info]


@dataclass(frozen=True)
class Stack:
    """A part of an observation whose last axis has the newest frames, the newest last: each step drops the oldest frame
    and appends one."""

    frames: int
    """Length of the last axis."""
    fill: Literal["first", "zeros"]
    """The frames before the first frame of an episode: copies of it, or zeros."""


def traced(*trees: Any) -> bool:
    """Return whether the value of a leaf is not known yet, since a program is being traced."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(trees))


def _checked(step: Callable[..., StepResult]) -> Callable[..., StepResult]:
    """A `step` that takes a Python integer too, and checks the action first, if its value and those of the parameters
    are known."""

    @functools.wraps(step)
    def checked(self: Any, key: Any, state: Any, action: Any, params: Any) -> StepResult:
        if not traced(action, params):
            self._check_action(state, action, params)
        if isinstance(action, int):
            action = np.int32(action)  # of NumPy, whose value is still known where a program is being traced
        return step(self, key, state, action, params)

    return checked


def check_numbers(env: Environment, space: Space, action: Any, ignored: np.ndarray | None = None) -> None:
    """Refuse an action outside a discrete space, or a batch of such spaces; any other space has no bounds here.

    **Arguments:** `env`, for the message; `ignored`, bool `[N]`, the rows of a batch whose action may have any value.
    **Raises:** `ValueError` naming the action and what is needed."""
    low: Any
    high: Any
    shape: tuple[int, ...]
    if isinstance(space, Discrete):
        low, high, shape = 0, space.n - 1, ()
    elif isinstance(space, Box) and np.issubdtype(np.dtype(space.dtype), np.integer):
        low, high, shape = space.low, space.high, tuple(space.shape)
    else:
        return
    x = np.asarray(action)
    if x.shape == shape and np.issubdtype(x.dtype, np.integer):
        right = (low <= x) & (x <= high)
        if ignored is not None:
            right |= ignored.reshape(-1, *[1] * (x.ndim - 1))
        if np.all(right):
            return
    needed = f"an integer from {np.min(low)} to {np.max(high)}"
    if shape:
        needed = f"an array {list(shape)} of integers from {np.min(low)} to {np.max(high)}"
    raise ValueError(f"the action of {env.id or type(env).__name__} is {action}; {needed} is needed")


def _with_attributes(kind: type[Environment], attributes: Mapping[str, Any]) -> Environment:
    world = object.__new__(kind)
    vars(world).update(attributes)
    return world


class Environment(Generic[State, Params]):
    """Environment as a set of pure functions; holds only static facts (sizes, tables, names).

    `reset` and `step` are safe under `jit`, `vmap` and `scan`. `params` is a pytree of numbers that may differ between
    the rows of one compiled program. Nothing is reset implicitly: `envs_jax.resets` does that, with a policy that the
    user names.
    """

    id: str = ""
    maker: tuple[Callable[..., Environment], tuple[Any, ...]] | None = None
    """The function and the arguments that build it again when it is unpickled, as in another process: its parts may be
    functions and compiled models, which cannot be pickled. None: they can. Set by `envs_jax.make`."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return vars(self).get("maker") or super().__reduce_ex__(protocol)

    def __copy__(self) -> Environment:
        return _with_attributes(type(self), vars(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Environment:
        return copy.copy(self) if self.maker else _with_attributes(type(self), copy.deepcopy(vars(self), memo))

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "reset" in vars(cls):
            cls.reset = standard_promotion(cls.reset)  # type: ignore[method-assign]
        if "step" in vars(cls):
            cls.step = _checked(standard_promotion(cls.step))  # type: ignore[method-assign]

    def _check_action(self, state: Any, action: Any, params: Any) -> None:
        """Check an action of known value. **Raises:** `ValueError` for one outside a discrete space."""
        with jax.ensure_compile_time_eval():  # a constant of a program that is being traced has a value too
            space = self.action_space(params)
        check_numbers(self, space, action)

    @property
    def unwrapped(self) -> Environment:
        """Innermost environment: this one, unless it is a `Wrapper`."""
        return self

    @property
    def default_params(self) -> Params:
        """Parameters that the reference package uses. A pytree; every leaf may be traced."""
        raise NotImplementedError

    def reset(self, key: jax.Array, params: Params) -> tuple[Observation, State]:
        """Start an episode.

        **Arguments:** `key`, a typed PRNG key (scalar); `params`, see `default_params`.
        **Returns:** the first observation and the state.
        """
        raise NotImplementedError

    def step(self, key: jax.Array, state: State, action: jax.Array, params: Params) -> StepResult:
        """Advance one step.

        **Arguments:** `key`, a typed PRNG key; `state`; `action`, a member of `action_space`; `params`.
        **Returns:** `(obs, state, reward, terminated, truncated, info)`: `reward` float32 `[]`, the flags bool `[]`
        (both may be true at once), `info` a dict of the same structure on every step. `obs` belongs to the state that
        the step reached, even if the episode ended there.
        **Raises:** `ValueError` for a number that is no action of a discrete environment, where it and `params` have
        known values, as outside `jit` and `vmap`. Traced numbers are not known before the program runs, and such an
        action is undefined.
        """
        raise NotImplementedError

    def observation_space(self, params: Params) -> Space:
        """Space that every observation belongs to."""
        raise NotImplementedError

    def action_space(self, params: Params) -> Space:
        """Space of actions."""
        raise NotImplementedError

    @property
    def action_names(self) -> tuple[str, ...]:
        """Actions in words, in order; for discrete environments only."""
        space = self.action_space(self.default_params)
        if not isinstance(space, Discrete):
            raise TypeError(f"{self.id} has no list of action names: its action space is {space}")
        return tuple(f"action {i}" for i in range(space.n))

    @property
    def captions(self) -> Mapping[str, Phrasebook]:
        """Parts of the observation that are captions, integers `[C]`, and the phrasebook of each; empty for an
        environment without text."""
        return {}

    @property
    def episode_captions(self) -> tuple[str, ...]:
        """Captions that stay the same throughout an episode, as a mission does."""
        return ()

    @property
    def caption_limits(self) -> Mapping[str, tuple[int, tuple[Limit, ...]]]:
        """Limits by caption: the most phrases that it can have, and how often some of them can occur, for the tightest
        prompt that holds every caption; a caption that is not here may have any phrases in all of its places."""
        return {}

    @property
    def stacked(self) -> Mapping[str, Stack]:
        """Parts of the observation, a dict, that are stacks of frames; a replay memory holds each frame of these
        once."""
        return {}

    def describe(self, obs: Observation) -> dict[str, str]:
        """Strings of one observation, on the host; empty for an environment without text."""
        return {name: book.render(obs[name]) for name, book in self.captions.items() if name in obs}

    def render(self, state: State) -> np.ndarray:
        """Picture of one state: uint8 `[H, W, 3]`, on the host."""
        raise NotImplementedError(f"{self.id or type(self).__name__} has no picture")

    def ascii(self, state: State) -> str:
        """State as lines of characters, on the host, for a terminal; empty for an environment with `render` alone."""
        return ""

    def event_text(self, info: Info) -> str:
        """Special events of one step, in words, on the host, from its `info`; usually none."""
        return ""

    @property
    def keys(self) -> Mapping[str, int]:
        """Keys for playing by hand, and the actions they stand for: letters, or the names `left`, `right`, `up`, `down`
        and `space`. `llmrl envs play` derives keys from the names of the actions if an environment gives none; `q`, `r`
        and `?` are reserved."""
        return {}


class Wrapper(Environment[State, Params]):
    """Environment that changes another one; forwards whatever it does not override."""

    def __init__(self, env: Environment):
        self.env = env

    @property
    def id(self) -> str:  # type: ignore[override]
        """Id that it was made with, else that of the wrapped environment."""
        return vars(self).get("id", self.env.id)

    @id.setter
    def id(self, id: str) -> None:
        vars(self)["id"] = id

    def _check_action(self, state: Any, action: Any, params: Any) -> None:
        if type(self).action_space is not Wrapper.action_space:  # else the wrapped environment checks its own
            super()._check_action(state, action, params)

    @property
    def unwrapped(self) -> Environment:
        return self.env.unwrapped

    @property
    def default_params(self):
        return self.env.default_params

    def reset(self, key, params):
        return self.env.reset(key, params)

    def step(self, key, state, action, params):
        return self.env.step(key, state, action, params)

    def observation_space(self, params):
        return self.env.observation_space(params)

    def action_space(self, params):
        return self.env.action_space(params)

    @property
    def action_names(self):
        return self.env.action_names

    @property
    def captions(self):
        return self.env.captions

    @property
    def episode_captions(self):
        return self.env.episode_captions

    @property
    def caption_limits(self):
        return self.env.caption_limits

    @property
    def stacked(self):
        return self.env.stacked

    def describe(self, obs):
        return self.env.describe(obs)

    def render(self, state):
        return self.env.render(state)

    def ascii(self, state):
        return self.env.ascii(state)

    def event_text(self, info):
        return self.env.event_text(info)

    @property
    def keys(self):
        return self.env.keys


def has_picture(env: Environment) -> bool:
    """Return whether an environment draws its states."""
    return type(env.unwrapped).render is not Environment.render


def innermost(state: Any) -> Any:
    """The state of the innermost environment, without what wrappers added."""
    while hasattr(state, "env"):
        state = state.env
    return state
