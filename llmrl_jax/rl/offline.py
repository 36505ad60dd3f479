"""Offline learners: algorithms that learn from recorded steps alone, real ones or real and imagined ones.

An algorithm is an `OfflineMethod`, one file each (`bc`, `iql`, `td3_bc`, `awac`, `cql`, `bcq`, `prdc`, `combo`): its
networks, and a gradient step on a batch. All else is here. `make_offline` makes an `OfflineLearner` of a method and
data, which `llmrl_jax.run.loop.train` runs as any other learner:

* Batches are sampled on the device, uniformly with replacement. With imagined data exactly half of every batch is real;
  several sets of imagined data have equal parts of the other half.
* A time-out bootstraps, a terminal state does not: targets are `r + gamma (1 - terminated) V(s')`.
* Observations are arrays, or dicts of which all parts are flattened; the part `instruction`, an int32, indexes a table
  of sentence vectors, so that no step stores a text. Actions that the part `action_mask` does not offer have
  probability 0, and values read the others.
* Data are in `state.frozen.given`, which checkpoints do not hold: they have its checksums, by which a run that
  continues refuses other data.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from envs_jax import tracing
from llmrl_jax.core.checks import Checked, Fraction, NonNegativeFloat, PositiveInt, Width
from llmrl_jax.core.learner import Learner
from llmrl_jax.data.transitions import DataError, Transitions
from llmrl_jax.rl.actors import Scaled
from llmrl_jax.rl.distributions import Distribution
from llmrl_jax.rl.gradient import TrainState, traced_floats
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
    offered,
    prepared,
    vectors,
)
from llmrl_jax.rl.policy import Policy


@dataclass(frozen=True)
class OfflineConfig(Checked):
    """Options shared by all offline algorithms. Floats are traced (`state.hparams`): they can differ between the rows
    of a vmap, while `act` reads those of the configuration (`flexibility`)."""

    NAME: ClassVar[str] = "offline"
    """The name of the algorithm, as in `llmrl_jax.rl.registry`."""

    batch_size: PositiveInt = 256
    """Steps of a batch; with imagined data half of them are real, half imagined."""
    gradient_steps: PositiveInt = 100
    """Gradient steps per update, in one compiled loop. What is learned does not depend on it."""
    hidden: tuple[Width, ...] = (256, 256)
    """Widths of the dense layers of every network."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation between dense layers."""
    normalize: bool = False
    """Whether features are normalised by their mean and standard deviation over the real data."""

    def __post_init__(self):
        super().__post_init__()
        if not self.hidden:
            raise ValueError(f"{self.PREFIX}hidden is empty; the width of at least one dense layer is needed")

    def __init_subclass__(cls):
        cls.PREFIX = f"{cls.NAME}."


@dataclass(frozen=True)
class ActorCriticConfig(OfflineConfig):
    """Options shared by algorithms with an actor and target critics."""

    actor_learning_rate: NonNegativeFloat = 3e-4
    """Learning rate of the actor."""
    critic_learning_rate: NonNegativeFloat = 3e-4
    """Learning rate of the critics."""
    gamma: Fraction = 0.99
    """Discount per step."""
    tau: Fraction = 0.005
    """Polyak averaging rate of the target networks."""


def needs_continuous(config: OfflineConfig, actions: ActionKind) -> None:
    """**Raises** `ValueError` for discrete actions, naming the algorithms that have them."""
    if actions.discrete:
        raise ValueError(
            f"{config.NAME} needs continuous actions, and the data have {actions.count} discrete ones: use bc, iql, "
            "awac, discrete_cql or discrete_bcq"
        )


def needs_discrete(config: OfflineConfig, actions: ActionKind) -> None:
    """**Raises** `ValueError` for continuous actions, naming the algorithm that has them."""
    if not actions.discrete:
        alternative = config.NAME.removeprefix("discrete_")
        raise ValueError(
            f"{config.NAME} needs discrete actions, and those of the data are continuous: use {alternative}"
        )


# --- what an algorithm is ---------------------------------------------------------------------------------------------


@struct.dataclass
class Context:
    """Inputs of a gradient step other than the batch."""

    key: jax.Array
    """The key of this step."""
    hparams: dict[str, jax.Array]
    """The floats of the configuration, float32 `[]`."""
    count: Int[Array, ""]
    """Gradient steps done before this one."""
    frozen: Frozen


class OfflineMethod(Protocol):
    """Algorithm, as pure functions; inputs are those of `Batch`, actions in [-1, 1] or integers."""

    def init(self, key: jax.Array, batch: Batch, hparams: dict[str, jax.Array]) -> TrainState:
        """Networks before the first step. **Arguments:** `batch`, of one row, for its shapes; `hparams`, the floats
        of the configuration."""
        ...

    def step(self, state: TrainState, batch: Batch, context: Context) -> tuple[TrainState, dict[str, jax.Array]]:
        """Gradient step of every network. **Returns:** also metrics, float32 scalars; losses end in `loss`."""
        ...

    def act(self, params: dict[str, Any], x: jax.Array) -> Distribution:
        """Distribution of the policy over actions in states `[B, n]`. With discrete actions there is a third argument,
        the mask `[B, A]` of those that are offered, or None."""
        ...


# --- the learner ------------------------------------------------------------------------------------------------------


@struct.dataclass
class Frozen:
    """The parts that no update changes."""

    given: tuple[Transitions, ...]
    """Prepared data (`llmrl_jax.rl.offline_data.prepared`): real steps, and sets of imagined ones. Checkpoints do not
    hold it. Acting does not read it: `replace(given=())`."""
    table: Any
    """Sentence vectors by instruction, float32 `[K, E]`; `()`: no instructions."""
    mean: jax.Array
    """The mean that is subtracted from features, `[n]`."""
    std: jax.Array
    """The standard deviation by which they are then divided, `[n]`."""
    sizes: tuple[jax.Array, ...] = ()
    """int32 `[]` for each set of `given`: its steps; batches are sampled from these, rows beyond are padding."""


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


class OfflinePolicy(Policy):
    """Learned policy as a `llmrl_jax.rl.policy.Policy`, with `state.params` and `state.frozen`.

    Actions are those of the environment, in its bounds. The value is 0: not every method has one.
    """

    def __init__(self, method: OfflineMethod, actions: ActionKind, features: Features | None = None):
        """**Arguments:** as for `make_offline`."""
        self.method, self.actions, self.features = method, actions, features

    def inputs(self, frozen: Frozen, obs: Any) -> jax.Array:
        """Inputs of the networks for observations `[B, ...]` of the environment."""
        encoded = {"vector": (vectors(obs, self.features) - frozen.mean) / frozen.std}
        if has_instruction(obs):
            encoded[INSTRUCTION] = obs[INSTRUCTION]
        return joined(encoded, frozen.table)

    @tracing.default_types
    def step(self, params, frozen, obs, carry, first):
        x = self.inputs(frozen, obs)
        if self.actions.discrete:
            distribution: Any = self.method.act(params, x, offered(obs, self.actions))  # type: ignore[call-arg]
        else:
            distribution = Scaled(self.method.act(params, x), self.actions)
        return distribution, jnp.zeros(x.shape[0]), carry


@dataclass(frozen=True)
class OfflineLearner(Learner):
    """`Learner` of an `OfflineState`. One step, in its unit, is a gradient step."""

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

    **Example:**

    ```pycon
    >>> import jax, jax.numpy as jnp, llmrl_jax as lr
    >>> obs, ends = jnp.linspace(0, 1, 32).reshape(8, 4), jnp.arange(8) % 4 == 3
    >>> data = lr.Transitions(obs, jnp.arange(8) % 2, jnp.ones(8), obs, ends, jnp.zeros(8, bool))
    >>> actions, iql = lr.rl.actions_of(data, None), lr.rl.algorithm("iql")
    >>> config = iql.config(batch_size=4, gradient_steps=2, hidden=(16,))
    >>> learner = lr.make_offline(iql.make(config, actions), config, data, actions)
    >>> state, metrics = jax.jit(learner.update)(learner.init(jax.random.key(0)))
    >>> learner.unit, int(state.update), bool(jnp.isfinite(metrics["value_loss"]))
    ('gradient steps', 1, True)
    ```
    """
    if not isinstance(table, tuple):
        table = jnp.asarray(table, jnp.float32)
    check_data(data, actions, table, "the data")
    imagined_sets = [] if imagined is None else [imagined] if isinstance(imagined, Transitions) else list(imagined)
    for steps in imagined_sets:
        check_same_form(data, steps, "the imagined data")
        check_data(steps, actions, table, "the imagined data")
    counts(config.batch_size, 1 + len(imagined_sets))
    shape = vectors(jax.tree.map(lambda x: x[:1], data.obs), features).shape
    if len(shape) != 2:
        raise DataError(f"features have the shape {list(shape[1:])}; one axis is needed")
    mean, std = moments(data, features) if config.normalize else (jnp.zeros(shape[1]), jnp.ones(shape[1]))
    sets = tuple(prepared(steps, actions, features, mean, std) for steps in (data, *imagined_sets))
    offline, hparams = Offline(method, config), traced_floats(config)
    frozen = Frozen(sets, table, mean, std, tuple(jnp.int32(len(steps)) for steps in sets))
    return OfflineLearner(
        partial(offline.start, frozen=frozen, hparams=hparams),
        offline.update,
        config.gradient_steps,
        unit="gradient steps",
        policy=OfflinePolicy(method, actions, features),
        frozen=frozen,
    )


def counts(batch_size: int, sets: int) -> tuple[int, ...]:
    """The number of steps of a batch from each set: half of them real if there are imagined ones, which have equal
    parts of the other half.

    **Raises:** `ValueError` if the batch cannot be divided so.
    """
    if sets == 1:
        return (batch_size,)
    shares = (sets - 1, *(1,) * (sets - 1))
    part, left = divmod(batch_size, sum(shares))
    if left:
        ratio = ":".join(map(str, shares))
        raise ValueError(f"a batch of {batch_size} cannot be mixed {ratio}; choose a multiple of {sum(shares)}")
    return tuple(part * share for share in shares)


class Offline:
    """The functions of a learner; `make_offline` documents the arguments."""

    def __init__(self, method: OfflineMethod, config: OfflineConfig):
        self.method, self.config = method, config

    def start(self, key: jax.Array, frozen: Frozen, hparams: dict[str, jax.Array]) -> OfflineState:
        """The state before the first update."""
        init_key, run_key = jax.random.split(key)
        row = batch_of(jax.tree.map(lambda x: x[:1], frozen.given[0]), frozen.table)
        networks = jax.jit(self.method.init)(init_key, row, hparams)
        return OfflineState(frozen=frozen, hparams=hparams, key=run_key, update=jnp.int32(0), **vars(networks))

    def draw(self, frozen: Frozen, key: jax.Array) -> Int[Array, " B"]:
        """The indices of a batch; with imagined data its first half are of real steps, its second of imagined ones, set
        after set."""
        rows = counts(self.config.batch_size, len(frozen.sizes))
        keys = [key] if len(rows) == 1 else [jax.random.fold_in(key, i) for i in range(len(rows))]
        return jnp.concatenate([jax.random.randint(k, (n,), 0, size) for k, n, size in zip(keys, rows, frozen.sizes)])

    def read(self, frozen: Frozen, index: Int[Array, " B"]) -> Batch:
        """The batch of sampled indices."""
        if len(frozen.given) == 1:
            return batch_of(frozen.given[0].take(index), frozen.table)
        ends = itertools.accumulate(counts(self.config.batch_size, len(frozen.given)))
        parts = [steps.take(rows) for steps, rows in zip(frozen.given, jnp.split(index, list(ends)[:-1]))]
        return batch_of(jax.tree.map(lambda *x: jnp.concatenate(x), *parts), frozen.table)

    def batch(self, frozen: Frozen, key: jax.Array) -> Batch:
        """A batch; with imagined data its first half is real, its second half imagined."""
        return self.read(frozen, self.draw(frozen, key))

    def update(self, state: OfflineState) -> tuple[OfflineState, dict[str, jax.Array]]:
        """`gradient_steps` steps, each on a batch of its own.

        All indices are sampled before the loop: the random bits of one batch are many small operations on a CPU, 7% of
        a step of `bc`. The batches are read in the loop, where they stay small.
        """
        steps = self.config.gradient_steps
        count = state.update * steps + jnp.arange(steps)
        keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(state.key, i)))(count)
        indices = jax.vmap(lambda key: self.draw(state.frozen, key))(keys[:, 0])

        def gradient_step(networks, x):
            count, key, index = x
            context = Context(key, state.hparams, count, state.frozen)
            return self.method.step(networks, self.read(state.frozen, index), context)

        networks = TrainState(state.params, state.target, state.opt_state, state.extra)
        networks, metrics = tracing.scan(gradient_step, networks, (count, keys[:, 1], indices))
        state = state.replace(update=state.update + 1, **vars(networks))
        return state, {name: jnp.mean(x.astype(jnp.float32)) for name, x in metrics.items()}
