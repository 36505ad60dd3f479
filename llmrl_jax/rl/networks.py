"""Small networks in flax.linen: actor-critics (MLP, CNN, GRU) for discrete and continuous actions, and Q-networks; what
they see of observations, among it grids of codes as one-hot vectors and their products with a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs_jax import spaces, tracing
from envs_jax.actions import mask_of
from envs_jax.env import Environment
from llmrl_jax.core.checks import Checked, In, Width, refuse_unread
from llmrl_jax.core.draw import draw
from llmrl_jax.kernels.products import convolve, thin_matmul
from llmrl_jax.rl.distributions import Normal, TanhNormal
from llmrl_jax.rl.policy import Policy, masked_categorical


def flatten(obs: Any, batch_dims: int) -> jax.Array:
    """All leaves of an observation as one float32 vector, the leading `batch_dims` axes kept."""
    leaves = [x.reshape(*x.shape[:batch_dims], -1).astype(jnp.float32) for x in jax.tree.leaves(obs)]
    return jnp.concatenate(leaves, axis=-1)


def with_one_hots(space: spaces.Space) -> Callable[[Any, int], jax.Array]:
    """`flatten` for the observations of a space, with one-hot vectors for its `Discrete` parts, and pixels as numbers
    from 0 to 1."""

    def convert(space, x):
        if isinstance(space, spaces.Discrete):
            return jax.nn.one_hot(x, space.n)
        if _is_pixels(space):
            return x.astype(jnp.float32) / 255
        return {k: convert(space.spaces[k], v) for k, v in x.items()} if isinstance(space, spaces.Dict) else x

    return lambda obs, batch_dims: flatten(convert(space, obs), batch_dims)


def image(obs: Any, batch_dims: int) -> jax.Array:
    """The observation, or its `image` if it is a dict, as float32 `[..., H, W, C]`, not rescaled."""
    return (obs["image"] if isinstance(obs, dict) else obs).astype(jnp.float32)


def pixels(space: spaces.Space, env: str) -> Callable[[Any, int], jax.Array]:
    """`image` for the observations of a space, whose pixels of 0 to 255 become numbers from 0 to 1.

    **Raises:** `ValueError` for observations of the environment `env` without an image.
    """
    part = space.spaces.get("image") if isinstance(space, spaces.Dict) else space
    if not isinstance(part, spaces.Box) or len(part.shape) != 3:
        raise ValueError(
            f"network.channels are for images, and {env} has none [H, W, C] in its observation {space}: leave them out"
        )
    scale = 255 if _is_pixels(part) else 1
    return lambda obs, batch_dims: image(obs, batch_dims) / scale


def _is_pixels(space: spaces.Space) -> bool:
    """Return whether numbers are intensities: 255 is the largest of a byte. Grids of codes have fewer."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and bool(np.all(np.asarray(space.high) == 255))


def dense(features: int, scale: float, name: str | None = None) -> nn.Dense:
    """A dense layer with an orthogonal initial kernel of gain `scale` and zero initial bias."""
    return nn.Dense(features, kernel_init=nn.initializers.orthogonal(scale), name=name)


def _is_float_row(space: spaces.Box) -> bool:
    return len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)


def _side_by_side(scale: float) -> Callable:
    """Two orthogonal matrices concatenated to one kernel `[inputs, 2 x features]`."""
    orthogonal = nn.initializers.orthogonal(scale)

    def init(key, shape, dtype=jnp.float32):
        half = (shape[0], shape[1] // 2)
        return jnp.concatenate([orthogonal(k, half, dtype) for k in jax.random.split(key)], axis=1)

    return init


class Towers(nn.Module):
    """Two towers of dense layers over one input, one for the actor and one for the critic; they share no weights.

    Their first layers are one product: in small networks the number of operations costs more than the arithmetic.
    """

    hidden: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, x):
        activate = getattr(nn, self.activation)
        first, *remaining = self.hidden
        x = activate(nn.Dense(2 * first, kernel_init=_side_by_side(math.sqrt(2)), name="first")(x))
        towers = jnp.split(x, 2, axis=-1)
        for i, features in enumerate(remaining):
            towers = [
                activate(dense(features, math.sqrt(2), name=f"{tower}_{i + 1}")(x))
                for tower, x in zip(("actor", "critic"), towers)
            ]
        return towers


class Head(nn.Module):
    """A linear layer of few outputs, see `thin_matmul`."""

    outputs: int
    scale: float

    @nn.compact
    def __call__(self, x):
        shape = (x.shape[-1], self.outputs)
        kernel = self.param("kernel", nn.initializers.orthogonal(self.scale), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.outputs,))
        return thin_matmul(x, kernel) + bias


PICTURE = 36
"""Pixels of the shorter side from which an image is a picture, whose first convolutions have strides."""
STRIDED = ((8, 4), (4, 2), (3, 1))
"""Sizes and strides of these (Mnih et al. 2015)."""


class Convolutions(nn.Module):
    """Convolutions with ReLU over `[..., H, W, C]`, flattened, then one dense layer: of 3 x 3 with stride 1, but the
    first three of a picture are those of DQN, 8 x 8 / 4, 4 x 4 / 2 and 3 x 3, without padding."""

    channels: tuple[int, ...]
    features: int

    @nn.compact
    def __call__(self, x):
        gain, zeros = nn.initializers.orthogonal(math.sqrt(2)), nn.initializers.zeros
        strided = STRIDED if min(x.shape[-3:-1]) >= PICTURE else ()
        for i, channels in enumerate(self.channels):
            if i < len(strided):
                size, stride = strided[i]
                layer: Any = nn.Conv(channels, (size, size), (stride, stride), padding="VALID", kernel_init=gain)
            else:
                layer = Conv(channels, 3, kernel_init=gain, bias_init=zeros)
            x = nn.relu(layer(x))
        return nn.relu(dense(self.features, math.sqrt(2))(x.reshape(*x.shape[:-3], -1)))


class GRUCore(nn.Module):
    """A GRU along the leading axis, reset where an episode starts."""

    features: int

    @nn.compact
    def __call__(self, carry, x, first):
        cell = nn.GRUCell(self.features, name="gru")

        def step(cell, carry, inputs):
            x, first = inputs
            return cell(jnp.where(first[:, None], 0.0, carry), x)

        return nn.scan(step, variable_broadcast="params", split_rngs={"params": False})(cell, carry, (x, first))


class ActorCritic(nn.Module):
    """Encoder, memory (if any), then an actor and a critic that share nothing else."""

    outputs: int
    """Number of logits, or dimension of a continuous action."""
    continuous: bool
    hidden: tuple[int, ...]
    channels: tuple[int, ...]
    memory: int
    activation: str

    @nn.compact
    def __call__(self, x, carry, first):
        """**Arguments:** `x`, float32 `[T, B, ...]`; `carry`, `[B, memory]` or `()`; `first`, bool `[T, B]`.
        **Returns:** the head's output `[T, B, outputs]`, log standard deviations `[outputs]` or None, the value
        `[T, B]`, the carry."""
        if self.channels:
            x = Convolutions(self.channels, self.hidden[0], name="encoder")(x)
        if self.memory:
            if not self.channels:
                x = getattr(nn, self.activation)(dense(self.memory, math.sqrt(2), name="encoder")(x))
            carry, x = GRUCore(self.memory, name="memory")(carry, x, first)
        for_actor, for_critic = Towers(self.hidden, self.activation, name="towers")(x)
        head = Head(self.outputs, 0.01, name="actor")(for_actor)
        value = Head(1, 1.0, name="critic")(for_critic)[..., 0]
        log_std = self.param("log_std", nn.initializers.zeros, (self.outputs,)) if self.continuous else None
        return head, log_std, value, carry


@dataclass(frozen=True)
class NetworkConfig(Checked):
    """Small network for an environment with ordinary array observations.

    **Raises:** `ValueError` without a hidden layer, or for a width below 1.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> lr.rl.NetworkConfig(hidden=(32,), memory=16).activation
    'auto'
    ```
    """

    PREFIX: ClassVar[str] = "network."

    hidden: tuple[Width, ...] = (64, 64)
    """Widths of the dense layers."""
    channels: tuple[Width, ...] = ()
    """Channels of convolutions over an image, the observation or its part `image`, which is then the only input: 3 x 3,
    and those of DQN (8 x 8 / 4, 4 x 4 / 2, 3 x 3) from 36 pixels a side. Empty: no convolutions; all parts of the
    observation are flattened into one vector."""
    memory: Annotated[int, In("[0, 1048576]")] = 0
    """Units of a GRU; 0: no memory."""
    dueling: bool = False
    """Q-networks: separate layers for the value of the state and the advantages of actions."""
    activation: Literal["auto", "tanh", "relu"] = "auto"
    """Activation between dense layers; auto: tanh in actor-critics, relu in Q-networks."""

    def __post_init__(self):
        super().__post_init__()
        if not self.hidden:
            raise ValueError("network.hidden is empty; the width of at least one dense layer is needed")


class NetworkPolicy(Policy):
    """`Policy` made of a small network: an MLP by default, a CNN with `channels`, recurrent with `memory`.

    Discrete actions get a `Categorical`; a box with finite bounds a `TanhNormal`, another box a `Normal`. Weights are
    orthogonal with gain sqrt(2), 0.01 for the actor's output and 1 for the critic's, as in purejaxrl and CleanRL.
    """

    def __init__(
        self,
        action_space: spaces.Space,
        *,
        hidden: tuple[int, ...] = (64, 64),
        channels: tuple[int, ...] = (),
        memory: int = 0,
        activation: Literal["tanh", "relu"] = "tanh",
        features: Callable[[Any, int], jax.Array] | None = None,
    ):
        """**Arguments:** `action_space`, of one environment; `hidden`, widths of the actor's and of the critic's dense
        layers; `channels`, of the convolutions, empty for none; `memory`, units of a GRU, 0 for none; `activation`;
        `features`, from an observation and its number of batch axes to float32 features (default `image` with
        convolutions, else `flatten`).
        **Raises:** `TypeError` for an action space that is neither `Discrete` nor a float `Box` of one axis."""
        self.low = self.high = None
        if isinstance(action_space, spaces.Discrete):
            outputs = action_space.n
        elif isinstance(action_space, spaces.Box) and _is_float_row(action_space):
            outputs = action_space.shape[0]
            low, high = (np.broadcast_to(np.float32(x), (outputs,)) for x in (action_space.low, action_space.high))
            if np.all(np.isfinite(low) & np.isfinite(high)):
                self.low, self.high = low, high
        else:
            raise TypeError(
                f"no network for the action space {action_space}: Discrete or a float Box of one axis is needed"
            )
        continuous = not isinstance(action_space, spaces.Discrete)
        self.features = features or (image if channels else flatten)
        self.memory, self.recurrent = memory, memory > 0
        self.network = ActorCritic(outputs, continuous, tuple(hidden), tuple(channels), memory, activation)

    def init(self, key, obs):
        x = self.features(obs, 1)[None]
        batch = x.shape[1]
        first = jnp.zeros((1, batch), bool)
        return draw(self.network, key, x, self.initial_carry(batch), first), ()

    def initial_carry(self, batch_size):
        return jnp.zeros((batch_size, self.memory), jnp.float32) if self.memory else ()

    def _apply(self, params, obs, x, carry, first):
        head, log_std, value, carry = cast(tuple, self.network.apply({"params": params}, x, carry, first))
        if log_std is None:
            return masked_categorical(head, obs), value, carry
        log_std = jnp.broadcast_to(log_std, head.shape)
        if self.low is None or self.high is None:
            return Normal(head, log_std), value, carry
        low, high = (jnp.broadcast_to(x, head.shape) for x in (self.low, self.high))
        return TanhNormal(head, log_std, low, high), value, carry

    @tracing.default_types
    def step(self, params, frozen, obs, carry, first):
        obs = jax.tree.map(lambda x: x[None], obs)
        distribution, value, carry = self._apply(params, obs, self.features(obs, 2), carry, first[None])
        return jax.tree.map(lambda x: x[0], distribution), value[0], carry

    @tracing.default_types
    def unroll(self, params, frozen, obs, carry, first):
        distribution, value, _ = self._apply(params, obs, self.features(obs, 2), carry, first)
        return distribution, value


def network_policy(env: Environment, env_params: Any, network: NetworkConfig, config: Any) -> NetworkPolicy:
    """Actor-critic of a configuration for an environment; `config` is not used.

    **Raises:** `TypeError` for an action space without a network, `ValueError` for options that it does not read.

    **Example:**

    ```pycon
    >>> import jax, jax.numpy as jnp, llmrl_jax as lr
    >>> env, env_params = lr.make("CartPole-v1")
    >>> policy = lr.rl.network_policy(env, env_params, lr.rl.NetworkConfig(hidden=(16,)), None)
    >>> obs, first = jnp.zeros((3, 4)), jnp.ones(3, bool)
    >>> params, frozen = policy.init(jax.random.key(0), obs)
    >>> distribution, value, carry = jax.jit(policy.step)(params, frozen, obs, policy.initial_carry(3), first)
    >>> distribution.logits.shape, value.shape
    ((3, 2), (3,))
    ```
    """
    refuse_unread(network, ["dueling"], "an actor-critic")
    space = env.observation_space(env_params)
    return NetworkPolicy(
        env.action_space(env_params),
        hidden=network.hidden,
        channels=network.channels,
        memory=network.memory,
        activation="tanh" if network.activation == "auto" else network.activation,
        features=pixels(space, env.id) if network.channels else with_one_hots(space),
    )


# --- Q-networks -------------------------------------------------------------------------------------------------------


class QNetwork(nn.Module):
    """An encoder with one output value per action."""

    outputs: int
    """Number of actions."""
    hidden: tuple[int, ...]
    channels: tuple[int, ...]
    activation: str
    dueling: bool
    """Whether the value is that of the state plus the action's advantage minus the mean advantage (Wang et al.,
    1511.06581, eq. 9)."""

    @nn.compact
    def __call__(self, x):
        """**Arguments:** `x`, float32 `[B, ...]`. **Returns:** float32 `[B, outputs]`."""
        if self.channels:
            x = Convolutions(self.channels, self.hidden[0], name="encoder")(x)
        for i, features in enumerate(self.hidden):
            x = getattr(nn, self.activation)(dense(features, math.sqrt(2), name=f"hidden_{i}")(x))
        if not self.dueling:
            return Head(self.outputs, 1.0, name="q")(x)
        advantage = Head(self.outputs, 1.0, name="advantage")(x)
        return Head(1, 1.0, name="value")(x) + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


class NetworkQPolicy(Policy):
    """`llmrl_jax.rl.policy.Policy` made of a small network: an MLP by default, a CNN with `channels`."""

    def __init__(
        self,
        num_actions: int,
        *,
        hidden: tuple[int, ...] = (64, 64),
        channels: tuple[int, ...] = (),
        activation: str = "relu",
        dueling: bool = False,
        features: Callable[[Any, int], jax.Array] | None = None,
        epsilon: float | None = 0.05,
        temperature: float = 1.0,
    ):
        """**Arguments:** `num_actions`; `hidden`, widths of the dense layers; `channels`, of the convolutions, empty
        for none; `activation`, `relu` or `tanh`; `dueling`, see `QNetwork`; `features`, from an observation and its
        number of batch axes to float32 features (default `image` with convolutions, else `flatten`). Actions after
        training (`step`): `epsilon`, the probability of a random one, or None for a softmax at `temperature`."""
        self.epsilon, self.temperature = epsilon, temperature
        self.features = features or (image if channels else flatten)
        self.network = QNetwork(num_actions, tuple(hidden), tuple(channels), activation, dueling)

    def init(self, key, obs):
        return draw(self.network, key, self.features(obs, 1)), ()

    @tracing.default_types
    def q(self, params, frozen, obs):
        values: Any = self.network.apply({"params": params}, self.features(obs, 1))
        mask = mask_of(obs)
        return values if mask is None else jnp.where(mask, values, -jnp.inf)


def network_q_policy(env: Environment, env_params: Any, network: NetworkConfig, config: Any) -> NetworkQPolicy:
    """Q-policy of a configuration for an environment; `config`, a `llmrl_jax.rl.dqn.DQNConfig`, sets how
    actions are sampled after training.

    **Raises:** `ValueError` for an environment whose actions are not discrete, or options that it does not read.

    **Example:**

    ```pycon
    >>> import jax, jax.numpy as jnp, llmrl_jax as lr
    >>> env, env_params = lr.make("CartPole-v1")
    >>> config = lr.rl.NetworkConfig(hidden=(16,), dueling=True)
    >>> policy = lr.rl.network_q_policy(env, env_params, config, lr.DQNConfig())
    >>> params, frozen = policy.init(jax.random.key(0), jnp.zeros((3, 4)))
    >>> policy.q(params, frozen, jnp.zeros((3, 4))).shape
    (3, 2)
    ```
    """
    actions, space = env.action_space(env_params), env.observation_space(env_params)
    if not isinstance(actions, spaces.Discrete):
        kind = f"a {type(actions).__name__} of shape {getattr(actions, 'shape', ())}"
        raise ValueError(
            f"dqn needs a finite number of actions, but those of {env.id} are {kind}: choose another algorithm, as in "
            "--algo ppo"
        )
    refuse_unread(network, ["memory"], "dqn")
    return NetworkQPolicy(
        actions.n,
        hidden=network.hidden,
        channels=network.channels,
        activation="relu" if network.activation == "auto" else network.activation,
        dueling=network.dueling,
        features=pixels(space, env.id) if network.channels else with_one_hots(space),
        epsilon=config.epsilon_end if config.acting == "epsilon" else None,
        temperature=config.temperature,
    )


# --- symbols ----------------------------------------------------------------------------------------------------------


def plane_sizes(space: spaces.Box) -> tuple[int, ...]:
    """The number of codes of each plane of a grid `[..., planes]`."""
    high = np.broadcast_to(np.asarray(space.high), space.shape).reshape(-1, space.shape[-1]).max(axis=0)
    return tuple(int(x) + 1 for x in high)


def one_hots(grid: Any, sizes: tuple[int, ...]) -> list[Float[Array, "*S N"]]:
    """The planes of a grid `[..., planes]` as one-hot vectors, `[..., n]` each. **Arguments:** `sizes`, of
    `plane_sizes`."""
    return [jax.nn.one_hot(grid[..., i], n) for i, n in enumerate(sizes)]


@struct.dataclass
class Symbols:
    """A grid of codes and further numbers, which stand for one vector: the one-hot vectors of the grid's codes, plane
    after plane and cell after cell, and then the numbers."""

    grid: jax.Array
    """The codes, integers `[B, ..., planes]`; one that is not among its plane's is a vector of zeros."""
    numbers: jax.Array
    """float32 `[B, D]`."""
    sizes: tuple[int, ...] = struct.field(pytree_node=False)
    """The number of codes of each plane."""

    @property
    def width(self) -> int:
        """The length of the vector."""
        return self._cells * sum(self.sizes) + self.numbers.shape[-1]

    @property
    def _cells(self) -> int:
        return int(np.prod(self.grid.shape[1:-1]))

    def vector(self) -> Float[Array, "B width"]:
        """The vector itself."""
        planes = [x.reshape(x.shape[0], -1) for x in one_hots(self.grid, self.sizes)]
        return jnp.concatenate([*planes, self.numbers], axis=-1)

    def rows(self) -> Int[Array, "B K"]:
        """The places of the ones in the vector, int32, one for each cell and plane; `width` for zeros."""
        codes = self.grid.reshape(self.grid.shape[0], self._cells, -1).astype(jnp.int32)
        rows, before = [], 0
        for i, n in enumerate(self.sizes):
            code = codes[..., i]
            row = before + n * np.arange(self._cells, dtype=np.int32) + code
            rows.append(jnp.where((code >= 0) & (code < n), row, self.width))
            before += n * self._cells
        return jnp.concatenate(rows, axis=-1)

    def product(self, kernel: Float[Array, "width F"]) -> Float[Array, "B F"]:
        """`vector() @ kernel`. On a CPU it is the sum of the rows of the kernel at the ones, which is several times
        faster, with a gradient that adds to these rows only; the sums differ by rounding. Elsewhere, where a product is
        fast and a hundred small operations in sequence are not, it is the product of matrices."""
        if tracing.platform() != "cpu":
            return self.vector() @ kernel
        return _summed_rows(kernel, self.rows(), self.numbers)


@jax.custom_vjp
def _summed_rows(
    kernel: Float[Array, "N F"], rows: Int[Array, "B K"], numbers: Float[Array, "B D"]
) -> Float[Array, "B F"]:
    """The sum of `K` rows of a kernel, plus the product of `numbers` with its last `D` rows.

    The rows are added one after the other: gathering all, `[B, K, F]`, takes 2 to 4 times as long on a CPU. So does the
    gradient, which otherwise scatters as many.

    **Arguments:** `kernel`; `rows`, of it, from 0; `N` adds nothing; `numbers`.
    """
    start = numbers @ kernel[kernel.shape[0] - numbers.shape[-1] :]

    def add(total, row):
        return total + kernel.at[row].get(mode="fill", fill_value=0), None

    return tracing.scan(add, start, rows.T, unroll=2)[0]


def _forward(kernel, rows, numbers):
    return _summed_rows(kernel, rows, numbers), (kernel, rows, numbers)


def _backward(residuals, gradient):
    kernel, rows, numbers = residuals
    first = kernel.shape[0] - numbers.shape[-1]
    start = jnp.zeros(kernel.shape, gradient.dtype).at[first:].set(numbers.T @ gradient)

    def add(total, row):
        return total.at[row].add(gradient, mode="drop"), None

    of_kernel = tracing.scan(add, start, rows.T, unroll=2)[0].astype(kernel.dtype)
    of_kernel, of_numbers = tracing.cotangents(
        (of_kernel, (gradient @ kernel[first:].T).astype(numbers.dtype)), (kernel, numbers)
    )
    return of_kernel, None, of_numbers


_summed_rows.defvjp(_forward, _backward)


# --- layers that flax lacks, or that are faster here ------------------------------------------------------------------


def uniform(fan_in: int) -> Callable:
    """Uniform within `1 / sqrt(fan_in)`: PyTorch's default initialisation of weights and biases."""
    bound = 1 / math.sqrt(fan_in)
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)


def unit_columns(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
    """A Gaussian kernel `[in, out]` in which the weights of every output have norm 1, as in BabyAI's networks."""
    kernel = jax.random.normal(key, shape, dtype)
    return kernel / jnp.linalg.norm(kernel, axis=0, keepdims=True)


def linear(inputs: int, outputs: int, name: str) -> nn.Dense:
    """A dense layer with PyTorch's initial values."""
    return nn.Dense(outputs, kernel_init=uniform(inputs), bias_init=uniform(inputs), name=name)


class Conv(nn.Module):
    """`convolve` plus a bias, with PyTorch's initial values unless others are given."""

    features: int
    size: int
    kernel_init: Callable | None = None
    bias_init: Callable | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "*N H W C"]) -> Float[Array, "*N h w D"]:
        size, channels = self.size, x.shape[-1]
        draw = uniform(channels * size * size)
        kernel = self.param("kernel", self.kernel_init or draw, (size, size, channels, self.features))
        bias = self.param("bias", self.bias_init or draw, (self.features,))
        return convolve(x, kernel) + bias


class GRU(nn.Module):
    """The last state of a GRU over right-padded sequences, with PyTorch's equations and initial values.

    The inputs' contribution to the gates is one product over all positions; only the rest is sequential.
    """

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "B S E"], lengths: Int[Array, " B"]) -> Float[Array, "B D"]:
        """**Arguments:** `x`; `lengths`, the number of valid positions, from the left.
        **Returns:** the state after each row's last position; zeros for an empty row."""
        wide, draw = 3 * self.features, uniform(self.features)
        kernel = self.param("input_kernel", draw, (x.shape[-1], wide))
        bias = self.param("input_bias", draw, (wide,))
        inner_kernel = self.param("state_kernel", draw, (self.features, wide))
        inner_bias = self.param("state_bias", draw, (wide,))
        inputs = jnp.moveaxis(x @ kernel + bias, 1, 0)
        counts = jnp.arange(x.shape[1])[:, None] < lengths

        def step(state, inputs):
            gates, count = inputs
            reset_in, update_in, new_in = jnp.split(gates, 3, axis=-1)
            reset_of, update_of, new_of = jnp.split(state @ inner_kernel + inner_bias, 3, axis=-1)
            update = nn.sigmoid(update_in + update_of)
            new = nn.tanh(new_in + nn.sigmoid(reset_in + reset_of) * new_of)
            return jnp.where(count[:, None], (1 - update) * new + update * state, state), None

        return tracing.scan(step, jnp.zeros((x.shape[0], self.features)), (inputs, counts))[0]


class LSTM(nn.Module):
    """An LSTM along the leading axis, reset where an episode starts, with PyTorch's equations and initial values."""

    features: int
    truncate: int
    """Maximum number of steps of backpropagation through time: no gradient passes from one segment of `truncate` steps
    to the one before it."""

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "T B E"],
        carry: tuple[Float[Array, "B D"], Float[Array, "B D"]],
        first: Bool[Array, "T B"],
    ) -> tuple[tuple[Float[Array, "B D"], Float[Array, "B D"]], Float[Array, "T B D"]]:
        """**Arguments:** `x`; `carry`, the hidden state and the cell before the first step; `first`.
        **Returns:** the carry after the last step, and the hidden states."""
        wide, draw = 4 * self.features, uniform(self.features)
        kernel = self.param("input_kernel", draw, (x.shape[-1], wide))
        bias = self.param("input_bias", draw, (wide,))
        inner_kernel = self.param("state_kernel", draw, (self.features, wide))
        inner_bias = self.param("state_bias", draw, (wide,))

        def step(carry, inputs):
            gates, first, cut = inputs
            carry = jax.tree.map(lambda s: jnp.where(first[:, None], 0.0, s), carry)
            hidden, cell = jax.tree.map(lambda s: jnp.where(cut, jax.lax.stop_gradient(s), s), carry)
            inlet, forget, new, outlet = jnp.split(gates + hidden @ inner_kernel + inner_bias, 4, axis=-1)
            cell = nn.sigmoid(forget) * cell + nn.sigmoid(inlet) * nn.tanh(new)
            hidden = nn.sigmoid(outlet) * nn.tanh(cell)
            return (hidden, cell), hidden

        cuts = jnp.arange(x.shape[0]) % self.truncate == 0
        return tracing.scan(step, carry, (x @ kernel + bias, first, cuts))
