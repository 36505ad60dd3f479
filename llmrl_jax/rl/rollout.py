"""Rollouts of a policy in a batch of environments, and their advantages; shared by the algorithms."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from envs_jax import tracing
from envs_jax.env import Environment, Wrapper
from envs_jax.resets import VectorEnv
from llmrl_jax.core.checks import Checked, Needs, PositiveInt
from llmrl_jax.parallel import RULES, Placement
from llmrl_jax.rl.policy import Auxiliary, Policy


@dataclass(frozen=True)
class RolloutConfig(Checked):
    """Play of a learner's updates: how many environments and steps, and how episodes restart."""

    num_envs: PositiveInt = 16
    """Environments played at once; over a mesh, a multiple of its data x fsdp devices."""
    num_steps: PositiveInt = 64
    """Steps per environment and update."""
    reset: Literal["pool", "always", "optimistic"] = "pool"
    """How episodes restart, see `envs_jax.VectorEnv`."""
    pool_size: Annotated[PositiveInt, Needs("reset", "pool")] = 256
    """Episodes in the pool, with `reset` pool."""
    pool_every: Annotated[PositiveInt, Needs("reset", "pool")] = 1
    """Updates between renewals of the pool, with `reset` pool. Where an episode is expensive to prepare, as in Crafter,
    about as many steps as the pool's episodes last."""
    reset_ratio: Annotated[PositiveInt, Needs("reset", "optimistic")] = 16
    """Environments per fresh episode and step, with `reset` optimistic; divides num_envs."""

    def vector_env(self, env: Environment) -> VectorEnv:
        """Batch of environments. **Arguments:** `env`, one of them, wrapped."""
        return VectorEnv(env, self.num_envs, policy=self.reset, pool_size=self.pool_size, reset_ratio=self.reset_ratio)


@struct.dataclass
class Runner:
    """State of play in the middle of episodes; all that an exact continuation needs."""

    env_params: Any
    env_state: Any
    obs: Any
    """The next observations, leaves `[N, ...]`."""
    carry: Any
    """The policy's memory, leaves `[N, ...]`."""
    first: jax.Array
    """bool `[N]`, rows whose `obs` starts an episode."""


@struct.dataclass
class Rollout:
    """`T` recorded steps of `N` environments; leaves `[T, N, ...]`."""

    obs: Any
    action: jax.Array
    log_prob: jax.Array
    """Log-probability of the action under the policy that chose it."""
    value: jax.Array
    """The critic's value of `obs`."""
    next_value: Any
    """The critic's value of the observation that the step reached, before any reset; meaningless where terminated."""
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    first: jax.Array
    """Whether `obs` starts an episode."""
    carry: Any
    """The policy's memory before the first step, leaves `[N, ...]`."""
    info: dict[str, jax.Array]
    """`episode_info` of the environment's `info`."""
    prediction: Any = ()
    """The auxiliary's prediction from `obs`, see `llmrl_jax.rl.policy.Auxiliary`; `()` if there is none."""
    next_obs: Any = ()
    """The observation that the step reached, before any reset."""


SHARED = ("hparams", "runner.env_params")
"""The parts of the state of a learner that plays which are the same for all keys, see `Learner.shared`."""

_EPISODE_INFO = ("episode_return", "episode_length", "success", "task")
"""The entries of an environment's `info` that `episode_metrics` reads, besides further ones named `episode_*`: numbers
whose last value in an episode is that of the whole episode."""


def episode_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of an environment's `info` that `episode_metrics` reads."""
    return {name: x for name, x in info.items() if name in _EPISODE_INFO or name.startswith("episode_")}


def start(env: VectorEnv, env_params: Any, policy: Policy, key: jax.Array) -> Runner:
    """Reset every environment."""

    def copied(x: Any) -> jax.Array:
        """Of no weak type; and a copy, as a run donates its state, and others hold these parameters too."""
        return jnp.copy(jax.lax.convert_element_type(x, jnp.result_type(x)))

    env_params = jax.tree.map(copied, env_params)
    obs, env_state = _compiled_reset(env)(key, env_params)
    return Runner(env_params, env_state, obs, policy.initial_carry(env.num_envs), jnp.ones(env.num_envs, bool))


_RESETS: WeakKeyDictionary[Environment, dict[tuple, Any]] = WeakKeyDictionary()


def _compiled_reset(batch: VectorEnv) -> Any:
    """`jax.jit(batch.reset)`, compiled once for several seeds, and for all equal batches of an environment:
    JAX forgets the program of a bound method with the method, which is another object each time."""
    sizes = {name: getattr(batch, name) for name in ("policy", "pool_size", "reset_ratio", "batched_params")}
    programs = _RESETS.setdefault(batch.env, {})
    kind = (type(batch), batch.num_envs, *sizes.values())
    if kind not in programs:
        alive, make, n = weakref.ref(batch.env), type(batch), batch.num_envs  # the program goes with the environment
        programs[kind] = jax.jit(lambda key, params: make(alive(), n, **sizes).reset(key, params))  # type: ignore[arg-type]
    return programs[kind]


def step_info(env: Environment, env_params: Any) -> dict[str, Any]:
    """The entries of an environment's `info`, as shapes."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    _, state = jax.eval_shape(env.reset, key, env_params)
    action = jax.eval_shape(env.action_space(env_params).sample, key)
    return jax.eval_shape(env.step, key, state, action, env_params)[5]


def check_statistics(env: Environment, env_params: Any) -> None:
    """Check that an environment reports its episodes. **Raises** `ValueError` if it does not."""
    if "episode_return" not in step_info(env, env_params):
        raise ValueError(
            "the environment does not report episode_return; wrap it in EpisodeStatistics (envs_jax.wrappers)"
        )


def check_divisible(mesh: Mesh | None, sizes: Mapping[str, int]) -> None:
    """Check that the devices over which rows are split divide `sizes`, each by its text in the message.

    **Raises:** `ValueError`, with the arithmetic."""
    if mesh is None:
        return
    count = Placement(mesh).row_devices
    devices = " x ".join(f"{axis} {mesh.shape[axis]}" for axis in RULES["batch"]) + f" = {count} devices"
    for text, size in sizes.items():
        if size % count:
            raise ValueError(f"{text} is not divided by {devices}: {size} / {count} = {size / count:.2f}")


def with_pool(env: VectorEnv, runner: Runner, key: jax.Array, update: Int[Array, ""] | int, period: int) -> Runner:
    """A runner with a new pool of episodes in every `period`-th update (`env.policy` pool); else as it is."""

    def renewed(env_state):
        return env.refresh(key, env_state, runner.env_params)

    if period == 1 or env.policy != "pool":
        return runner.replace(env_state=renewed(runner.env_state))
    return runner.replace(env_state=tracing.cond(update % period == 0, renewed, lambda x: x, runner.env_state))


def shard_runner(runner: Runner, placement: Placement) -> Runner:
    """A runner whose environments are split over the devices, with the pool of episodes replicated."""
    env_state = runner.env_state
    return Runner(
        env_params=placement.replicate(runner.env_params),
        env_state=env_state.replace(env=placement.shard_batch(env_state.env), pool=placement.replicate(env_state.pool)),
        obs=placement.shard_batch(runner.obs),
        carry=placement.shard_batch(runner.carry),
        first=placement.shard_batch(runner.first),
    )


def next_values(
    evaluate: Callable[[Any, Any], Float[Array, " N"]],
    final_obs: Any,
    carry: Any,
    value: Float[Array, "T N"],
    terminated: Bool[Array, "T N"],
    truncated: Bool[Array, "T N"],
) -> Float[Array, "T N"]:
    """The value of every observation that a step reached, at the cost of a few forward passes.

    If the episode continues it is the next step's value. The remaining steps, truncated ones and the last one, are
    evaluated in rounds: each round takes the earliest such step of every environment. The number of rounds is the
    maximum over environments of the number of such steps: one, plus the truncations. The result is exact, and rows
    never leave their device.
    """
    steps = jnp.arange(value.shape[0])[:, None]
    open_ended = (truncated | (steps == steps[-1])) & ~terminated

    def one_round(loop):
        pending, next_value = loop
        t = jnp.argmax(pending, axis=0)

        def pick(x):
            return jax.vmap(lambda column, i: column[i], in_axes=(1, 0))(x, t)

        evaluated = pending & (steps == t)
        values = evaluate(jax.tree.map(pick, final_obs), jax.tree.map(pick, carry))
        return pending & ~evaluated, jnp.where(evaluated, values, next_value)

    shifted = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    return tracing.while_loop(lambda loop: jnp.any(loop[0]), one_round, (open_ended, shifted))[1]


def collect(
    env: VectorEnv,
    policy: Policy,
    params: Any,
    frozen: Any,
    runner: Runner,
    key: jax.Array,
    num_steps: int,
    *,
    bootstrap_truncation: bool = True,
    constrain: Callable[[Any], Any] = lambda rows: rows,
    unroll: int = 1,
    auxiliary: Auxiliary | None = None,
) -> tuple[Runner, Rollout]:
    """Play `num_steps` steps in every environment.

    **Arguments:** `env`, whose resets are within the step (not `next_step` or `none`); `policy`, `params`, `frozen`;
    `runner`, from `start` or from the last call; `key`, of this rollout; `bootstrap_truncation`, False to record
    time-outs as terminal; `constrain`, applied to pytrees of rows `[N, ...]`, to keep them on their devices; `unroll`,
    steps unrolled per iteration of the loop; `auxiliary`, whose predictions are recorded too.
    **Returns:** the runner after the last step, and the record.
    """

    def act(runner):
        inputs = (params, frozen, runner.obs, runner.carry, runner.first)
        return (*policy.step(*inputs), ()) if auxiliary is None else auxiliary.step(*inputs)

    def step(runner, draws):
        key, noise = draws
        distribution, value, carry, prediction = act(runner)
        action = distribution.choose(noise)
        obs, env_state, reward, terminated, truncated, info = env.step(key, runner.env_state, action, runner.env_params)
        done = terminated | truncated
        record = Rollout(
            obs=runner.obs,
            action=action,
            log_prob=distribution.log_prob(action),
            value=value,
            next_value=(),
            reward=reward,
            terminated=terminated if bootstrap_truncation else done,
            truncated=truncated,
            first=runner.first,
            carry=(),
            info=episode_info(info),
            prediction=prediction,
        )
        runner = runner.replace(env_state=env_state, obs=constrain(obs), carry=constrain(carry), first=constrain(done))
        return runner, (record, info["final_observation"], carry)

    keys = jax.vmap(lambda t: jax.random.split(jax.random.fold_in(key, t)))(jnp.arange(num_steps))
    shapes, _, _ = jax.eval_shape(policy.step, params, frozen, runner.obs, runner.carry, runner.first)
    noise = jax.vmap(shapes.noise)(keys[:, 0])
    after, (rollout, final_obs, carries) = tracing.scan(step, runner, (keys[:, 1], noise), unroll=unroll)
    no = jnp.zeros_like(runner.first)
    next_value = next_values(
        lambda obs, carry: policy.step(params, frozen, constrain(obs), constrain(carry), no)[1],
        final_obs,
        carries,
        rollout.value,
        rollout.terminated,
        rollout.truncated,
    )
    return after, rollout.replace(next_value=next_value, carry=runner.carry, next_obs=final_obs)


def task_names(env: Environment) -> tuple[str, ...]:
    """The names of an environment's tasks, indexed by `info["task"]`; empty if it has none."""
    return tuple(getattr(env.unwrapped if isinstance(env, Wrapper) else env, "task_names", ()))


def episode_metrics(
    info: dict[str, jax.Array], done: Bool[Array, "*S"], task_names: Sequence[str] = ()
) -> dict[str, jax.Array]:
    """Means over the episodes that ended in recorded steps.

    **Arguments:** `info`, see `episode_info`, in the shape of `done`; `done`, whether a step ended its episode,
    terminated or truncated; `task_names`, see the function of that name.
    **Returns:** float32 scalars: `episodes`, how many ended; the means of `episode_return`, `episode_length`, `success`
    and of the further entries, nan if none ended; for an environment with several tasks also `episodes/<task>` and
    `success/<task>`.
    """

    def mean(x, mask):
        return jnp.sum(jnp.where(mask, x, 0).astype(jnp.float32)) / jnp.sum(mask)

    metrics = {"episodes": jnp.sum(done).astype(jnp.float32)}
    for name in [*_EPISODE_INFO[:3], *sorted(set(info) - set(_EPISODE_INFO))]:
        if name in info:
            metrics[name] = mean(info[name], done)
    if len(task_names) > 1 and {"task", "success"} <= set(info):
        for index, task in enumerate(task_names):
            mask = done & (info["task"] == index)
            metrics[f"episodes/{task}"] = jnp.sum(mask).astype(jnp.float32)
            metrics[f"success/{task}"] = mean(info["success"], mask)
    return metrics


# --- advantages -------------------------------------------------------------------------------------------------------


def _accumulate(x: Float[Array, "T *B"], decay: Float[Array, "T *B"], last: Float[Array, "*B"]) -> Float[Array, "T *B"]:
    """`y[t] = x[t] + decay[t] * y[t + 1]`, with `y[T] = last`."""

    def back(y, step):
        x_t, decay_t = step
        y = x_t + decay_t * y
        return y, y

    return tracing.scan(back, last, (x, decay), reverse=True, unroll=min(16, x.shape[0]))[1]


def gae(
    reward: Float[Array, "T *B"],
    value: Float[Array, "T *B"],
    next_value: Float[Array, "T *B"],
    terminated: Bool[Array, "T *B"],
    truncated: Bool[Array, "T *B"],
    gamma: float | jax.Array,
    gae_lambda: float | jax.Array,
) -> tuple[Float[Array, "T *B"], Float[Array, "T *B"]]:
    """Generalised advantage estimation (Schulman et al., 1506.02438, eq. 16), with termination and truncation separate.

    `delta[t] = reward[t] + gamma * next_value[t] * (1 - terminated[t]) - value[t]`: a truncated step still bootstraps.
    `A[t] = delta[t] + gamma * gae_lambda * A[t + 1]`, cut at the end of an episode of either kind.

    **Arguments:** `reward`, `value` (of the step's observation), `next_value` (of the observation that the step
    reached, before any reset), `terminated`, `truncated`, all `[T, ...]`; `gamma` and `gae_lambda`, in [0, 1].
    **Returns:** `(advantages, returns)`, float32 `[T, ...]`; the returns are `advantages + value`.
    """
    goes_on = ~(terminated | truncated)
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    advantages = _accumulate(delta, gamma * gae_lambda * goes_on, jnp.zeros_like(delta[-1]))
    return advantages, advantages + value


def group_advantages(returns: Float[Array, "G n"], kind: str) -> Float[Array, "G n"]:
    """The advantage of each return within its group of `n`, without a critic.

    `centred`: minus the mean (Dr. GRPO, 2503.20783); `grpo`: and divided by the standard deviation (2402.03300);
    `leave_one_out`: minus the mean of the others (2402.14740).
    """
    centred = returns - jnp.mean(returns, axis=1, keepdims=True)
    if kind == "leave_one_out":
        return centred * returns.shape[1] / (returns.shape[1] - 1)
    if kind == "grpo":
        return centred / (jnp.std(returns, axis=1, keepdims=True) + 1e-4)
    return centred


def group_deviation(returns: Float[Array, "G n"]) -> Float[Array, " G"]:
    """The standard deviation of each group's returns; 0 where they are equal but for rounding, to a millionth of the
    largest: that of equal numbers often is not."""
    low, high = jnp.min(returns, axis=1), jnp.max(returns, axis=1)
    equal = high - low <= 1e-6 * jnp.maximum(jnp.abs(low), jnp.abs(high))
    return jnp.where(equal, 0.0, jnp.std(returns, axis=1))
