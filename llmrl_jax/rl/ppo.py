"""Proximal policy optimisation (Schulman et al., 1707.06347), for any policy: an MLP, a CNN, a GRU, a language model.

One update plays `num_steps` steps in `num_envs` environments, then takes `epochs` x `minibatches` gradient steps. The
rollout, advantages and gradient steps are one pure function of the state, so an update runs entirely on the device,
shards over a mesh, and vmaps over seeds and over the float hyper-parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float

from envs_jax import tracing
from envs_jax.env import Environment
from envs_jax.spaces import Box
from llmrl_jax.core.checks import (
    Fraction,
    In,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
)
from llmrl_jax.core.learner import Learner
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.kernels.flat_tree import FlatTree
from llmrl_jax.kernels.permutations import permutations
from llmrl_jax.parallel import Placement
from llmrl_jax.rl import bonus as bonuses
from llmrl_jax.rl.bonus import Bonus
from llmrl_jax.rl.gradient import (
    AdamConfig,
    accumulate,
    apply_gradients,
    clipped_adam,
    in_parts,
    linear_decay,
    traced_floats,
)
from llmrl_jax.rl.networks import network_policy
from llmrl_jax.rl.policy import Auxiliary, Policy
from llmrl_jax.rl.precision import (
    SAMPLING_METRICS,
    compares_sampling,
    exact_rounding,
    ratio_bound,
    ratio_error,
    sampling_metrics,
)
from llmrl_jax.rl.registry import Algorithm
from llmrl_jax.rl.rollout import (
    SHARED,
    Rollout,
    RolloutConfig,
    Runner,
    check_divisible,
    check_statistics,
    collect,
    episode_metrics,
    gae,
    shard_runner,
    start,
    task_names,
    with_pool,
)


@dataclass(frozen=True)
class PPOConfig(AdamConfig, RolloutConfig):
    """Hyper-parameters. Floats are traced (`state.hparams`): they can differ between the rows of a vmap.

    Those of PPO (Schulman et al., 1707.06347) with generalised advantages (1506.02438).
    **Raises:** `ValueError` for an option out of range.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> config = lr.PPOConfig(num_envs=32, num_steps=64, learning_rate=3e-4, entropy_coef=0.01)
    >>> config.num_envs * config.num_steps  # steps of an update
    2048
    ```
    """

    PREFIX: ClassVar[str] = "ppo."

    unroll: PositiveInt = 1
    """Steps unrolled per iteration of the rollout's loop: slightly faster for very cheap steps, slower to compile."""
    epochs: PositiveInt = 4
    """Passes over the steps of an update."""
    minibatches: PositiveInt = 4
    """Gradient steps per epoch; divides num_envs x num_steps (with a recurrent policy: num_envs)."""
    microbatches: PositiveInt = 1
    """Sequential parts in which a minibatch's gradient is computed, to save memory; divides the minibatch."""
    gamma: Fraction = 0.99
    """Discount per step."""
    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantage estimation."""
    schedule: Literal["constant", "linear"] = "constant"
    """Whether the learning rate stays constant or falls linearly to zero over `schedule_updates`."""
    schedule_updates: Annotated[NonNegativeInt, Needs("schedule", "linear")] = 0
    """Updates after which a linear schedule reaches zero; used with `schedule` linear only."""
    clip_eps: NonNegativeFloat = 0.2
    """Distance of the probability ratio from 1 beyond which the policy loss is clipped."""
    value_clip: Annotated[float, In("[0, inf]")] = 0.2
    """Change of a value beyond which the value loss is clipped, in units of return; inf: never."""
    value_loss_coef: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    entropy_coef: NonNegativeFloat = 0.01
    """Weight of the entropy bonus, per nat."""
    normalize_advantages: bool = True
    """Whether advantages are normalised to mean 0 and standard deviation 1 within each minibatch. With a bonus of
    novelty, its noise is not scaled up: they are divided by at least 0.1 of its scale (`rl.bonus.Stream.floor`)."""
    target_kl: Annotated[float, In("[0, inf]")] = math.inf
    """An update stops after a minibatch whose approximate KL exceeds this, in nats; inf: off."""
    bootstrap_truncation: bool = True
    """Whether to bootstrap from the last observation of a time-out; False treats it as terminal, as GLAM does."""
    value_broadcast: Literal["off", "glam"] = "off"
    """`glam`: every value is compared with every return of its microbatch, a bug of the published code that pulls
    values to the mean return (`train_language_agent.py`)."""


GLAM = PPOConfig(
    num_envs=32,
    num_steps=40,
    epochs=4,
    minibatches=20,
    gamma=0.99,
    gae_lambda=0.99,
    learning_rate=1e-6,
    normalize_advantages=False,
)
"""GLAM's published hyper-parameters (Carta et al., 2302.02662): 1,280 steps and 80 gradient steps per update, in
minibatches of 64. The bugs of the published code are not included: add `bootstrap_truncation=False,
value_broadcast="glam"` for them."""


def check(config: PPOConfig, env: Environment, env_params: Any, policy: Policy, mesh: Mesh | None) -> None:
    """Reject a configuration that is incompatible with the environment, the policy or the mesh.

    **Raises:** `ValueError` if sizes do not divide (the arithmetic is shown), or a changed option is not read.
    """
    if config.schedule == "linear" and config.schedule_updates < 1:
        raise ValueError("ppo.schedule is linear; it needs ppo.schedule_updates, the update at which it reaches zero")
    rows, label = config.num_envs, f"ppo.num_envs {config.num_envs}"
    if not policy.recurrent:
        rows, label = rows * config.num_steps, f"{label} x ppo.num_steps {config.num_steps} = {rows * config.num_steps}"
    for name in ("minibatches", "microbatches"):
        parts = getattr(config, name)
        if rows % parts:
            raise ValueError(f"{label} is not divided by ppo.{name}: {rows} / {parts} = {rows / parts:.2f}")
        rows, label = rows // parts, f"{label} / ppo.{name} {parts} = {rows // parts}"
        steps = rows * config.num_steps if policy.recurrent else rows
        if name == "minibatches" and config.normalize_advantages and steps == 1:
            raise ValueError(
                f"--ppo.normalize-advantages is on, but a minibatch has one step ({label}): its advantage minus its "
                "mean is 0, so the policy would never change. Lower --ppo.minibatches, or pass "
                "--ppo.no-normalize-advantages"
            )
    check_divisible(mesh, {f"ppo.num_envs {config.num_envs}": config.num_envs, label: rows})
    check_statistics(env, env_params)


@struct.dataclass
class PPOState:
    """Everything that PPO carries from update to update."""

    params: Any
    """Trained parameters."""
    frozen: Any
    """Parameters that the policy reads and no update changes."""
    opt_state: Any
    """Adam's moments."""
    runner: Runner
    """The environments, in the middle of their episodes."""
    hparams: dict[str, jax.Array]
    """The config's floats by name, float32 `[]`."""
    key: jax.Array
    """The key of the whole run; update `i` uses `fold_in(key, i)`."""
    update: jax.Array
    """int32 `[]`, updates done."""
    bonus: Any = ()
    """State of the reward bonus, see `llmrl_jax.rl.bonus`; `()` if there is none."""


@struct.dataclass
class Batch:
    """Recorded steps as the loss reads them; leaves `[T, B, ...]`, `carry` `[1, B, ...]`."""

    obs: Any
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    returns: jax.Array
    first: jax.Array
    carry: Any
    target: Any = ()
    """Targets of the auxiliary, if there is one."""
    steps: Any = ()
    """Training data of the bonus, if there is one: `Transitions`."""


_LOSS_METRICS = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
"""The metrics of `ppo_loss` whose means over the gradient steps are reported."""


def normalized(advantage: Float[Array, "*B"], floor: float | jax.Array = 0.0) -> Float[Array, "*B"]:
    """Advantages with mean 0 and standard deviation 1, or less: a deviation below `floor` is replaced by it."""
    return (advantage - jnp.mean(advantage)) / jnp.maximum(jnp.std(advantage) + 1e-8, floor)


def ppo_loss(
    params: Any,
    frozen: Any,
    batch: Batch,
    policy: Policy,
    hparams: dict[str, Any],
    value_broadcast: str = "off",
    auxiliary: Auxiliary | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Clipped objective (1707.06347, eq. 7 and 9), with the value loss clipped in the same way, plus the loss of
    the auxiliary.

    **Returns:** the loss, and a dict of float32 scalars: its terms, `approx_kl` (Schulman's `ratio - 1 - log ratio`),
    `clip_fraction`, `ratio_error`, the largest `max(ratio, 1 / ratio) - 1`, and, of a policy that states its `dtype`,
    `sampling_metrics` (`llmrl_jax.rl.precision`).
    """
    carry = jax.tree.map(lambda x: x[0], batch.carry)
    inputs = (params, frozen, batch.obs, carry, batch.first)
    prediction: Any = ()
    if auxiliary is None:
        distribution, value = policy.unroll(*inputs)
    else:
        distribution, value, prediction = auxiliary.unroll(*inputs)
    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - hparams["clip_eps"], 1 + hparams["clip_eps"])
    policy_loss = -jnp.mean(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))

    old, returns = batch.value, batch.returns
    if value_broadcast == "glam":  # published shapes: values [B, 1] against old values and returns [B]
        value, old, returns = value.reshape(-1, 1), old.reshape(-1), returns.reshape(-1)
    clipped_value = old + jnp.clip(value - old, -hparams["value_clip"], hparams["value_clip"])
    value_loss = jnp.mean(jnp.maximum((value - returns) ** 2, (clipped_value - returns) ** 2))

    entropy = jnp.mean(distribution.entropy())
    loss = policy_loss + hparams["value_loss_coef"] * value_loss - hparams["entropy_coef"] * entropy
    extra_metrics = sampling_metrics(log_ratio) if compares_sampling(policy) else {}
    if auxiliary is not None:
        auxiliary_loss = auxiliary.loss(prediction, batch.target)
        loss += auxiliary.coef * auxiliary_loss
        extra_metrics |= {f"{auxiliary.name}_loss": auxiliary_loss}
    return loss, {
        **extra_metrics,
        "loss": loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": jnp.mean(ratio - 1 - log_ratio),
        "clip_fraction": jnp.mean((jnp.abs(ratio - 1) > hparams["clip_eps"]).astype(jnp.float32)),
        "ratio_error": ratio_error(log_ratio),
    }


def make_ppo(
    config: PPOConfig,
    env: Environment,
    env_params: Any,
    policy: Policy,
    mesh: Mesh | None = None,
    auxiliary: Auxiliary | None = None,
    bonus: Bonus | None = None,
) -> Learner:
    """Build PPO as a `Learner`.

    **Arguments:** `config`; `env`, one environment, wrapped (with `EpisodeStatistics`, innermost), not batched;
    `env_params`; `policy`; `mesh`, over whose axes data and fsdp the environments are split (parameters stay where
    `policy.init` put them on the mesh; those on one device are copied to all); `auxiliary`, an additional prediction
    task of the policy, with parameters from `policy.init`; `bonus`, which changes the rewards before advantages are
    computed (novelty, shaping), and learns with every gradient step.
    **Returns:** the learner. Its metrics are those of `ppo_loss` (means over the gradient steps), `grad_norm` (before
    clipping), `explained_variance`, `value_mean`, `advantage_mean`, `advantage_std`, `gradient_steps`,
    `first_ratio_error` (`ratio_error` of the first minibatch, bounded as in `llmrl_jax.rl.precision`: by 1e-5 for
    discrete actions where matrix products are in float32, as on a CPU; by more for continuous actions, for rows padded
    to several lengths, and for the products of fewer bits that GPUs and TPUs use by default), `nonfinite` (1 if a loss
    or gradient was not finite, bounded by 0), those of `episode_metrics`, and those of the auxiliary and the bonus. A
    policy that states its `dtype`, as a language model, adds `sampling_kl` and `sampling_near_one` over the first
    minibatch (`llmrl_jax.rl.precision.sampling_metrics`).
    Episode returns are sums of the environment's rewards, without the bonus.
    **Raises:** `ValueError` if sizes do not divide (the arithmetic is shown) or an option is out of range.

    **Example:**

    ```pycon
    >>> import jax, llmrl_jax as lr
    >>> env, env_params = lr.make("CartPole-v1")
    >>> env = lr.EpisodeStatistics(env)
    >>> policy = lr.rl.network_policy(env, env_params, lr.rl.NetworkConfig(hidden=(16,)), None)
    >>> learner = lr.make_ppo(lr.PPOConfig(num_envs=8, num_steps=16), env, env_params, policy)
    >>> state = jax.jit(learner.init)(jax.random.key(0))
    >>> state, metrics = jax.jit(learner.update)(state)
    >>> int(state.update), bool(metrics["first_ratio_error"] < 1e-5)
    (1, True)
    ```
    """
    check(config, env, env_params, policy, mesh)
    ppo = PPO(config, env, env_params, policy, Placement(mesh), auxiliary, bonus)
    steps_per_update = config.num_envs * config.num_steps
    density = isinstance(env.action_space(env_params), Box)
    bounds = {"first_ratio_error": ratio_bound(policy, mesh, density), "nonfinite": 0.0}
    options = exact_rounding(getattr(policy, "dtype", jnp.float32))
    return Learner(ppo.init, ppo.update, steps_per_update, bounds, compiler_options=options, shared=SHARED)


class PPO:
    """PPO's update and its parts; `make_ppo` documents the arguments."""

    def __init__(
        self,
        config: PPOConfig,
        env: Environment,
        env_params: Any,
        policy: Policy,
        placement: Placement,
        auxiliary: Auxiliary | None,
        bonus: Bonus | None,
    ):
        self.config, self.env_params, self.policy = config, env_params, policy
        self.placement, self.auxiliary, self.bonus = placement, auxiliary, bonus
        self.task_names = task_names(env)
        self.vector = config.vector_env(env)

    def init(self, key: jax.Array) -> PPOState:
        env_key, policy_key, run_key = jax.random.split(key, 3)
        runner = start(self.vector, self.env_params, self.policy, env_key)
        params, frozen = self.placement.device_put(self.policy.init(policy_key, runner.obs))
        hparams = traced_floats(self.config)
        opt_state = self.placement.device_put(clipped_adam(hparams).init(params))  # moments are placed as params are
        hparams, run_key, update = self.placement.replicate((hparams, run_key, jnp.int32(0)))
        bonus = bonuses.start(self.bonus, key, runner.obs, self.placement)
        runner = shard_runner(runner, self.placement)
        return PPOState(params, frozen, opt_state, runner, hparams, run_key, update, bonus=bonus)

    def update(self, state: PPOState) -> tuple[PPOState, dict[str, jax.Array]]:
        """Rollout, advantages, gradient steps."""
        key = jax.random.fold_in(state.key, state.update)
        pool_key, play_key, shuffle_key = jax.random.split(key, 3)
        bonus_key = jax.random.fold_in(key, bonuses.INIT)
        runner, rollout = self._play(state, pool_key, play_key)
        target = () if self.auxiliary is None else self.auxiliary.targets(state.params, state.frozen, rollout, runner)
        batch = self._batch(rollout, target, state.hparams)
        report: dict[str, jax.Array] = {}
        if self.bonus is not None:
            state, batch, report = self._with_bonus(state, rollout, batch, runner.obs)
        rows = self.placement.replicate(self._rows(batch))
        params, opt_state, bonus, metrics = self._learn(state, rows, shuffle_key, bonus_key)
        metrics |= self._report(rollout, batch) | report
        state = state.replace(
            params=params,
            opt_state=opt_state,
            runner=shard_runner(runner, self.placement),
            update=state.update + 1,
            bonus=bonuses.shard(bonus, self.placement),
        )
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    # --- play ---------------------------------------------------------------------------------------------------------

    def _play(self, state: PPOState, pool_key: jax.Array, play_key: jax.Array) -> tuple[Runner, Rollout]:
        """`num_steps` steps in every environment, with a refreshed pool of episodes."""
        runner = with_pool(self.vector, state.runner, pool_key, state.update, self.config.pool_every)
        return collect(
            self.vector,
            self.policy,
            state.params,
            state.frozen,
            runner,
            play_key,
            self.config.num_steps,
            bootstrap_truncation=self.config.bootstrap_truncation,
            constrain=self.placement.shard_batch,
            unroll=self.config.unroll,
            auxiliary=self.auxiliary,
        )

    def _batch(self, rollout: Rollout, target: Any, hparams: dict[str, jax.Array]) -> Batch:
        """The rollout with its advantages and returns, leaves `[T, N, ...]`."""
        advantage, returns = gae(
            rollout.reward,
            rollout.value,
            rollout.next_value,
            rollout.terminated,
            rollout.truncated,
            hparams["gamma"],
            hparams["gae_lambda"],
        )
        return Batch(
            rollout.obs,
            rollout.action,
            rollout.log_prob,
            rollout.value,
            advantage,
            returns,
            rollout.first,
            jax.tree.map(lambda x: x[None], rollout.carry),
            target,
        )

    def _with_bonus(
        self, state: PPOState, rollout: Rollout, batch: Batch, obs_after: Any
    ) -> tuple[PPOState, Batch, dict[str, jax.Array]]:
        """The batch with the bonus's advantages and returns, and the data that the bonus learns from.

        **Arguments:** `batch`, with the environment's rewards; `obs_after`, the observations after the rollout.
        """
        bonus, hparams = self.bonus, state.hparams
        assert bonus is not None
        steps = Transitions(
            rollout.obs, rollout.action, rollout.reward, rollout.next_obs, rollout.terminated, rollout.truncated
        )
        after, reward, report = bonus.reward(state.bonus, steps, hparams["gamma"])
        stream = bonus.stream(after)
        if stream is None:
            batch = self._batch(rollout.replace(reward=reward), batch.target, hparams)
        else:
            advantage, returns = bonuses.stream_advantages(
                bonus, after, stream, steps, reward, obs_after, hparams["gae_lambda"]
            )
            combined = stream.extrinsic_coef * batch.advantage + stream.coef * advantage
            batch, steps = batch.replace(advantage=combined), steps.replace(returns=returns)
        return state.replace(bonus=after), batch.replace(steps=steps), report

    def _rows(self, batch: Batch) -> Batch:
        """The rows of minibatches, along axis 1: whole environments if the policy is recurrent; else steps, each as an
        environment with one step."""
        if self.policy.recurrent:
            return batch
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(1, x.shape[0] * x.shape[1], *x.shape[2:]), batch)

    # --- learn --------------------------------------------------------------------------------------------------------

    def _learn(
        self, state: PPOState, rows: Batch, key: jax.Array, bonus_key: jax.Array
    ) -> tuple[Any, Any, Any, dict[str, jax.Array]]:
        """`epochs` x `minibatches` gradient steps, fewer when the KL exceeds its target.

        **Arguments:** `key`, for the order of the rows; `bonus_key`, for the bonus.
        **Returns:** the parameters, Adam's moments, the bonus's state, and the means of the metrics over the steps
        taken."""
        config, hparams = self.config, state.hparams
        count, total = rows.action.shape[1], config.epochs * config.minibatches
        flat = FlatTree(state.params, allowed=self.placement.mesh is None)
        optimizer, learning_rate = clipped_adam(hparams), hparams["learning_rate"]
        if config.schedule == "linear":
            learning_rate *= linear_decay(state.update, config.schedule_updates)

        def loss(params, batch, policy):
            tree = flat.restore(params)
            return ppo_loss(tree, state.frozen, batch, policy, hparams, config.value_broadcast, self.auxiliary)

        stream = None if self.bonus is None else self.bonus.stream(state.bonus)
        floor = 0.0 if stream is None else stream.floor * stream.coef
        order = permutations(key, config.epochs, count).reshape(total, count // config.minibatches)

        def gradient_step(loop):
            i, params, opt_state, bonus, sums, _ = loop
            minibatch = jax.tree.map(lambda x: x.at[:, order[i]].get(mode="promise_in_bounds"), rows)
            if config.normalize_advantages:
                minibatch = minibatch.replace(advantage=normalized(minibatch.advantage, floor))
            grads, metrics = self._gradient(loss, params, minibatch)
            params, opt_state, norm = apply_gradients(optimizer, params, grads, opt_state, learning_rate)
            first = {of_first[name]: jnp.where(i == 0, metrics.pop(name), 0.0) for name in of_first}
            kl = metrics["approx_kl"]
            metrics |= {"grad_norm": norm} | first
            bonus, bonus_metrics = self._learn_bonus(bonus, minibatch.steps, jax.random.fold_in(bonus_key, i))
            sums = jax.tree.map(jnp.add, sums, metrics | bonus_metrics)
            return i + 1, params, opt_state, bonus, sums, kl > hparams["target_kl"]

        names = [*_LOSS_METRICS, "grad_norm", *([] if self.auxiliary is None else [f"{self.auxiliary.name}_loss"])]
        learned = list(jax.eval_shape(self._learn_bonus, state.bonus, rows.steps, bonus_key)[1])
        names += learned
        # metrics of the first minibatch, by their names in the loss
        of_first = {"ratio_error": "first_ratio_error"}
        if compares_sampling(self.policy):
            of_first |= {name: name for name in SAMPLING_METRICS}
        sums = {name: jnp.float32(0) for name in (*names, *of_first.values())}
        params, opt_state = flat.flatten(state.params), flat.flatten_moments(state.opt_state)
        loop = (jnp.int32(0), params, opt_state, state.bonus, sums, jnp.bool(False))
        loop = tracing.while_loop(lambda loop: (loop[0] < total) & ~loop[5], gradient_step, loop)
        steps_taken, params, opt_state, bonus, sums, _ = loop
        metrics = {name: sums[name] / steps_taken for name in names} | {name: sums[name] for name in of_first.values()}
        finite = jnp.all(jnp.isfinite(jnp.stack([metrics[name] for name in ("loss", "grad_norm", *learned)])))
        metrics |= {"gradient_steps": steps_taken, "nonfinite": ~finite}
        return flat.restore(params), flat.restore_moments(opt_state), bonus, metrics

    def _learn_bonus(self, state: Any, steps: Any, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """A gradient step of the bonus, if there is one, on the steps of a minibatch, leaves `[T, B, ...]`."""
        flat = jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), steps)
        return bonuses.learn(self.bonus, state, self.placement.shard_batch(flat), key)

    def _gradient(self, loss: Callable, params: Any, minibatch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        """The gradient over a minibatch, in microbatches, and the loss's metrics."""
        k, count = self.config.microbatches, minibatch.first.size
        buckets = self._buckets(count // k)

        def gradient_with(policy):
            return lambda params, rows: jax.grad(loss, has_aux=True)(params, rows, policy)

        def part(rows):
            rows = self.placement.shard_batch(rows, 1)
            if not buckets:
                return gradient_with(self.policy)(params, rows)
            longest = tracing.largest_of_runs(jnp.max(self._lengths(rows)))
            needed = jnp.searchsorted(np.array(list(buckets), np.int32), longest)
            # the choice is outside the gradient, so that nothing is computed again for it
            return tracing.switch(needed, [gradient_with(bucket) for bucket in buckets.values()], params, rows)

        if k == 1:
            return part(minibatch)
        if buckets:  # in the order in which every part gets neighbours in length
            order = jnp.argsort(self._lengths(minibatch)).reshape(k, -1).T.reshape(-1)
            minibatch = jax.tree.map(lambda x: x[:, order], minibatch)
        grads, metrics = accumulate(part, jax.tree.map(jnp.zeros_like, params), in_parts(minibatch, k, axis=1))
        means = {name: jnp.mean(x) for name, x in metrics.items()}
        return jax.tree.map(lambda g: g / k, grads), means | {"ratio_error": jnp.max(metrics["ratio_error"])}

    def _buckets(self, rows: int) -> Mapping[int, Policy]:
        """The policy's buckets for a part of `rows` rows; an auxiliary has its own pass, of the policy as it is."""
        return {} if self.auxiliary is not None else self.policy.buckets(rows)

    def _lengths(self, rows: Batch) -> jax.Array:
        """The lengths of the rows of a part, if the policy has buckets."""
        return self.policy.lengths(jax.tree.map(lambda x: x.reshape(rows.first.size, *x.shape[2:]), rows.obs))

    def _report(self, rollout: Rollout, batch: Batch) -> dict[str, jax.Array]:
        """Metrics of the critic and of the episodes that ended in the rollout."""
        spread = jnp.var(batch.returns)
        unexplained = jnp.where(spread > 0, jnp.var(batch.returns - rollout.value) / jnp.maximum(spread, 1e-12), 1.0)
        metrics = {
            "explained_variance": 1 - unexplained,
            "value_mean": jnp.mean(rollout.value),
            "advantage_mean": jnp.mean(batch.advantage),
            "advantage_std": jnp.std(batch.advantage),
            **episode_metrics(rollout.info, rollout.terminated | rollout.truncated, self.task_names),
        }
        if self.auxiliary is not None:
            metrics |= self.auxiliary.report(rollout, batch.target, self.task_names)
        return metrics


ALGORITHM = Algorithm(PPOConfig, make_ppo, network_policy)
