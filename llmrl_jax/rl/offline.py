"""Offline learners: algorithms that learn from recorded steps alone, real ones or real and imagined ones.

An algorithm is an `OfflineMethod`, one file each (`bc`, `iql`, `td3_bc`, `awac`, `cql`, `bcq`, `prdc`, `combo`): its
networks, and a gradient step on a batch. All else is here. `make_offline` makes an `OfflineLearner` of a method and
data, which `llmrl_jax.run.loop.train` runs as any other learner:

* Batches are drawn on the device, uniformly with replacement. With imagined data exactly half of every batch is real;
  several sets of imagined data have equal parts of the other half.
* A time-out bootstraps, a terminal state does not: targets are `r + gamma (1 - terminated) V(s')`.
* Observations are arrays, or dicts of which all parts are flattened; the part `instruction`, an int32, indexes a table
  of sentence vectors, so that no step stores a text.
* Data are in `state.frozen.given`, which checkpoints do not hold: they have its checksums, by which a run that
  continues refuses other data.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Int

from envs_jax import tracing
from llmrl_jax.core.learner import Learner
from llmrl_jax.core.mixing import Source, counts, mixed
from llmrl_jax.data.transitions import DataError, Transitions
from llmrl_jax.rl.actors import Scaled
from llmrl_jax.rl.distributions import Distribution
from llmrl_jax.rl.gradient import descend, traced_floats
from llmrl_jax.rl.offline_config import OfflineConfig
from llmrl_jax.rl.offline_data import (
    INSTRUCTION,
    ActionKind,
    Batch,
    Features,
    batch_of,
    check_data,
    check_same_form,
    has_instruction,
    joined,
    moments,
    prepared,
    vectors,
)


ADAM = optax.scale_by_adam()
"""Adam with b1 0.9, b2 0.999, eps 1e-8, as all references have it."""


# --- what an algorithm is ---------------------------------------------------------------------------------------------


@struct.dataclass
class Trained:
    """What a gradient step changes."""

    params: dict[str, Any]
    """Trained parameters by network; a method acts with these alone."""
    target: dict[str, Any]
    """Parameters of target networks, by network."""
    opt: dict[str, Any]
    """Adam's moments, by network."""
    extra: Any = ()
    """What else a method keeps."""

    @classmethod
    def begin(cls, params: dict[str, Any], targets: Sequence[str] = (), extra: Any = ()) -> Trained:
        """Before the first step. **Arguments:** `targets`, the networks that have a target network, a copy."""
        opt = {name: ADAM.init(tree) for name, tree in params.items()}
        return cls(params, {name: jax.tree.map(jnp.copy, params[name]) for name in targets}, opt, extra)

    def descended(self, name: str, grads: Any, learning_rate: Any) -> Trained:
        """One network after a step of Adam."""
        params, opt, _ = descend(ADAM, self.params[name], grads, self.opt[name], learning_rate)
        return self.replace(params={**self.params, name: params}, opt={**self.opt, name: opt})

    def followed(self, tau: Any, *names: str) -> Trained:
        """Target networks after a step of `tau` towards their networks (Polyak averaging)."""
        moved = {
            name: jax.tree.map(lambda t, p: t + tau * (p - t), self.target[name], self.params[name]) for name in names
        }
        return self.replace(target={**self.target, **moved})

    def copied(self, now: jax.Array, *names: str) -> Trained:
        """Target networks as copies of their networks where `now`, bool `[]`, else as they were."""
        copies = {name: self.params[name] for name in names}
        old = {name: self.target[name] for name in names}
        return self.replace(target={**self.target, **tracing.cond(now, lambda: copies, lambda: old)})


@struct.dataclass
class Context:
    """What a gradient step reads beside its batch."""

    key: jax.Array
    """The key of this step."""
    hparams: dict[str, jax.Array]
    """The floats of the configuration, float32 `[]`."""
    count: Int[Array, ""]
    """Gradient steps done before this one."""
    frozen: Frozen


class OfflineMethod(Protocol):
    """An algorithm, as pure functions; inputs are those of `Batch`, actions in [-1, 1] or integers."""

    def init(self, key: jax.Array, batch: Batch, hparams: dict[str, jax.Array]) -> Trained:
        """The networks before the first step. **Arguments:** `batch`, of one row, for its shapes; `hparams`, the floats
        of the configuration."""
        ...

    @tracing.default_types
    def step(self, trained: Trained, batch: Batch, context: Context) -> tuple[Trained, dict[str, jax.Array]]:
        """One gradient step of every network. **Returns:** also metrics, float32 scalars; losses end in `loss`."""
        ...

    def act(self, params: dict[str, Any], x: jax.Array) -> Distribution:
        """The policy's distribution over actions in states `[B, n]`."""
        ...


# --- the learner ------------------------------------------------------------------------------------------------------


@struct.dataclass
class Frozen:
    """What no update changes."""

    given: tuple[Transitions, ...]
    """Prepared data (`llmrl_jax.rl.offline_data.prepared`): real steps, and sets of imagined ones. Checkpoints do not
    hold it. Acting does not read it: `replace(given=())`."""
    table: Any
    """Sentence vectors by instruction, float32 `[K, E]`; `()`: no instructions."""
    mean: jax.Array
    """The mean that is subtracted from features, `[n]`."""
    std: jax.Array
    """The deviation by which they are divided then, `[n]`."""
    sizes: tuple[jax.Array, ...] = ()
    """int32 `[]` for each set of `given`: its steps; batches are drawn of these, rows beyond are padding."""


@struct.dataclass
class OfflineState:
    """Everything an offline learner carries from update to update, and the data."""

    params: dict[str, Any]
    frozen: Frozen
    target: dict[str, Any]
    opt_state: dict[str, Any]
    extra: Any
    hparams: dict[str, jax.Array]
    """The config's floats by name, float32 `[]`."""
    key: jax.Array
    """The key of the whole run; gradient step `i` uses `fold_in(key, i)`."""
    update: jax.Array
    """int32 `[]`, updates done."""


class OfflinePolicy:
    """The learned policy as a `llmrl_jax.agents.contract.Player`, with `state.params` and `state.frozen`.

    Actions are those of the world, in its bounds. The value is 0: not every method has one.
    """

    recurrent = False

    def __init__(self, method: OfflineMethod, actions: ActionKind, features: Features | None = None):
        """**Arguments:** as for `make_offline`."""
        self.method, self.actions, self.features = method, actions, features

    def inputs(self, frozen: Frozen, obs: Any) -> jax.Array:
        """The inputs of the networks for observations `[B, ...]` of the world."""
        encoded = {"vector": (vectors(obs, self.features) - frozen.mean) / frozen.std}
        if has_instruction(obs):
            encoded[INSTRUCTION] = obs[INSTRUCTION]
        return joined(encoded, frozen.table)

    def initial_carry(self, batch_size):
        return ()

    @tracing.default_types
    def step(self, params, frozen, obs, carry, first):
        x = self.inputs(frozen, obs)
        distribution: Any = self.method.act(params, x)
        if not self.actions.discrete:
            distribution = Scaled(distribution, self.actions)
        return distribution, jnp.zeros(x.shape[0]), carry


@dataclass(frozen=True)
class OfflineLearner(Learner):
    """A `Learner` of an `OfflineState`. One step, in its unit, is a gradient step."""

    policy: OfflinePolicy = None  # type: ignore[assignment]
    """Acts with `state.params` and `state.frozen`."""
    frozen: Frozen = None  # type: ignore[assignment]
    """The prepared data and the rest of the frozen part, of which `init` makes states."""


@tracing.default_types
def make_offline(
    method: OfflineMethod,
    config: OfflineConfig,
    data: Transitions,
    actions: ActionKind,
    *,
    imagined: Transitions | Sequence[Transitions] | None = None,
    features: Features | None = None,
    table: Any = (),
) -> OfflineLearner:
    """Build a learner.

    **Arguments:** `method`, of the registry's `make`; `config`; `data`, real steps, whose observations are arrays or
    dicts of them; `actions`, see `llmrl_jax.rl.offline_data.actions_of`; `imagined`, steps of the same form, of which
    half of every batch is then made, or several sets of them, with equal parts of this half; `features`, from
    observations without their instruction, and the number 1 of their batch axes, to `[B, n]` (default: all parts
    flattened, in the order of their names); `table`, float32 `[K, E]`, the vectors whose rows `obs["instruction"]`
    numbers.
    **Returns:** the learner. Its metrics are those of the method, means over the gradient steps.
    **Raises:** `DataError` for data with numbers that are not finite, of another width or kind than `actions`, with
    instructions that the table lacks, or imagined data of another form; `ValueError` for a batch that cannot be
    divided.
    """
    if not isinstance(table, tuple):
        table = jnp.asarray(table, jnp.float32)
    check_data(data, actions, table, "the data")
    others = [] if imagined is None else [imagined] if isinstance(imagined, Transitions) else list(imagined)
    for other in others:
        check_same_form(data, other, "the imagined data")
        check_data(other, actions, table, "the imagined data")
    counts(config.batch_size, shares_of(1 + len(others)))
    shape = vectors(jax.tree.map(lambda x: x[:1], data.obs), features).shape
    if len(shape) != 2:
        raise DataError(f"features have the shape {list(shape[1:])}; one axis is needed")
    mean, std = moments(data, features) if config.normalize else (jnp.zeros(shape[1]), jnp.ones(shape[1]))
    given = tuple(prepared(steps, actions, features, mean, std) for steps in (data, *others))
    offline, hparams = Offline(method, config), traced_floats(config)
    frozen = Frozen(given, table, mean, std, tuple(jnp.int32(len(steps)) for steps in given))
    return OfflineLearner(
        partial(offline.start, frozen=frozen, hparams=hparams),
        offline.update,
        config.gradient_steps,
        unit="gradient steps",
        policy=OfflinePolicy(method, actions, features),
        frozen=frozen,
    )


def shares_of(sets: int) -> tuple[int, ...]:
    """The shares of a batch of a number of sets: real steps have half of it if there are imagined ones."""
    return (max(1, sets - 1), *(1,) * (sets - 1))


def drawn_from(size: jax.Array) -> Source:
    """Indices of the first `size` steps of a set as a source of batches: drawn uniformly and independently."""
    return lambda key, rows: jax.random.randint(key, (rows,), 0, size)


class Offline:
    """The functions of a learner; `make_offline` documents the arguments."""

    def __init__(self, method: OfflineMethod, config: OfflineConfig):
        self.method, self.config = method, config

    def start(self, key: jax.Array, frozen: Frozen, hparams: dict[str, jax.Array]) -> OfflineState:
        """The state before the first update."""
        init_key, run_key = jax.random.split(key)
        row = batch_of(jax.tree.map(lambda x: x[:1], frozen.given[0]), frozen.table)
        trained = jax.jit(self.method.init)(init_key, row, hparams)
        return OfflineState(
            trained.params, frozen, trained.target, trained.opt, trained.extra, hparams, run_key, jnp.int32(0)
        )

    def draw(self, frozen: Frozen, key: jax.Array) -> Int[Array, " B"]:
        """The indices of a batch; with imagined data its first half are of real steps, its second of imagined ones, set
        after set."""
        sources, rows = [drawn_from(size) for size in frozen.sizes], self.config.batch_size
        return sources[0](key, rows) if len(sources) == 1 else mixed(key, rows, sources, shares_of(len(sources)))

    def read(self, frozen: Frozen, index: Int[Array, " B"]) -> Batch:
        """The batch of drawn indices."""
        if len(frozen.given) == 1:
            return batch_of(frozen.given[0].take(index), frozen.table)
        ends = itertools.accumulate(counts(self.config.batch_size, shares_of(len(frozen.given))))
        parts = [steps.take(some) for steps, some in zip(frozen.given, jnp.split(index, list(ends)[:-1]))]
        return batch_of(jax.tree.map(lambda *x: jnp.concatenate(x), *parts), frozen.table)

    def batch(self, frozen: Frozen, key: jax.Array) -> Batch:
        """A batch; with imagined data its first half is real, its second half imagined."""
        return self.read(frozen, self.draw(frozen, key))

    def update(self, state: OfflineState) -> tuple[OfflineState, dict[str, jax.Array]]:
        """`gradient_steps` steps, each on a batch of its own.

        All indices are drawn before the loop: the random bits of one batch are many small operations on a CPU, 7% of a
        step of `bc`. The batches are read in the loop, where they stay small.
        """
        steps = self.config.gradient_steps
        count = state.update * steps + jnp.arange(steps)
        keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(state.key, i)))(count)
        drawn = jax.vmap(lambda key: self.draw(state.frozen, key))(keys[:, 0])

        def one(trained, x):
            count, key, index = x
            context = Context(key, state.hparams, count, state.frozen)
            return self.method.step(trained, self.read(state.frozen, index), context)

        trained = Trained(state.params, state.target, state.opt_state, state.extra)
        trained, metrics = tracing.scan(one, trained, (count, keys[:, 1], drawn))
        state = state.replace(
            params=trained.params,
            target=trained.target,
            opt_state=trained.opt,
            extra=trained.extra,
            update=state.update + 1,
        )
        return state, {name: jnp.mean(x.astype(jnp.float32)) for name, x in metrics.items()}
