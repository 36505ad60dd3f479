"""Proximal policy optimisation (Schulman et al., 1707.06347), for any policy: an MLP, a CNN, a GRU, a language model.

One update plays `num_steps` steps in `num_envs` environments, then takes `epochs` x `minibatches` gradient steps.
Play, advantages and gradient steps are one pure function of the state, so it runs whole on the device, shards over a
mesh, and vmaps over seeds and over the float hyper-parameters.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from envs_jax.env import Environment, Wrapper
from envs_jax.resets import VectorEnv
from llmrl_jax.parallel.hosts import put
from llmrl_jax.rl.learner import Learner
from llmrl_jax.rl.packed import Packed
from llmrl_jax.rl.policy import Auxiliary, Policy
from llmrl_jax.rl.ppo_config import ROWS, PPOConfig, check
from llmrl_jax.rl.returns import gae
from llmrl_jax.rl.rollout import Runner, collect, episode_metrics, start
from llmrl_jax.rl.shuffle import permutations


@struct.dataclass
class PPOState:
    """Everything that PPO carries from update to update."""

    params: Any
    """What is trained."""
    frozen: Any
    """What the policy reads and nothing changes."""
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
    """Of the auxiliary, if there is one."""


def ppo_loss(
    params: Any,
    frozen: Any,
    batch: Batch,
    policy: Policy,
    hparams: dict[str, Any],
    value_broadcast: str = "off",
    auxiliary: Auxiliary | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped objective (1707.06347, eq. 7 and 9), with the value loss clipped alike, and the auxiliary's loss.

    **Returns:** the loss, and a dict of float32 scalars: its parts, `approx_kl` (Schulman's `ratio - 1 - log ratio`),
    `clip_fraction`, and `ratio_error`, the largest `|ratio - 1|`.
    """
    carry = jax.tree.map(lambda x: x[0], batch.carry)
    seen = (params, frozen, batch.obs, carry, batch.first)
    prediction: Any = ()
    if auxiliary is None:
        distribution, value = policy.unroll(*seen)
    else:
        distribution, value, prediction = auxiliary.unroll(*seen)
    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - hparams["clip_eps"], 1 + hparams["clip_eps"])
    policy_loss = -jnp.mean(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))

    old, returns = batch.value, batch.returns
    if value_broadcast == "glam":  # published shapes: values [B, 1] against old values and returns [B]
        value, old, returns = value.reshape(-1, 1), old.reshape(-1), returns.reshape(-1)
    near = old + jnp.clip(value - old, -hparams["value_clip"], hparams["value_clip"])
    value_loss = jnp.mean(jnp.maximum((value - returns) ** 2, (near - returns) ** 2))

    entropy = jnp.mean(distribution.entropy())
    loss = policy_loss + hparams["value_loss_coef"] * value_loss - hparams["entropy_coef"] * entropy
    beside = {}
    if auxiliary is not None:
        found = auxiliary.loss(prediction, batch.target)
        loss += auxiliary.coef * found
        beside = {f"{auxiliary.name}_loss": found}
    return loss, {
        **beside,
        "loss": loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": jnp.mean(ratio - 1 - log_ratio),
        "clip_fraction": jnp.mean((jnp.abs(ratio - 1) > hparams["clip_eps"]).astype(jnp.float32)),
        "ratio_error": jnp.max(jnp.abs(ratio - 1)),
    }


def make_ppo(
    config: PPOConfig,
    env: Environment,
    env_params: Any,
    policy: Policy,
    mesh: Mesh | None = None,
    auxiliary: Auxiliary | None = None,
) -> Learner:
    """Build PPO as a `Learner`.

    **Arguments:** `config`; `env`, one environment, wrapped (with `EpisodeStatistics`, innermost), not batched;
    `env_params`; `policy`; `mesh`, over whose axes data and fsdp the environments are split (parameters stay where
    `policy.init` put them on the mesh; what it left on one device is copied to all); `auxiliary`, what the policy
    learns to predict on the side, from parameters that `policy.init` drew.
    **Returns:** the learner. Its metrics are those of `ppo_loss` (means over the gradient steps), `grad_norm` (before
    clipping), `explained_variance`, `value_mean`, `advantage_mean`, `advantage_std`, `gradient_steps`,
    `first_ratio_error` (`ratio_error` of the first minibatch, bounded by 1e-5), `nonfinite` (1 where a loss or
    gradient was not finite, bounded by 0), those of `episode_metrics`, and the auxiliary's.
    **Raises:** `ValueError` where sizes do not divide (the arithmetic is shown) or an option is out of range.
    """
    check(config, env, env_params, policy, mesh)
    vector = VectorEnv(
        env, config.num_envs, policy=config.reset, pool_size=config.pool_size, reset_ratio=config.reset_ratio
    )
    task_names = tuple(getattr(env.unwrapped if isinstance(env, Wrapper) else env, "task_names", ()))
    steps_per_update = config.num_envs * config.num_steps
    units = config.num_envs if policy.recurrent else steps_per_update  # what minibatches are made of
    total = config.epochs * config.minibatches

    def split(tree: Any, axis: int = 0) -> Any:
        """Split an axis of every leaf over the devices."""
        if mesh is None:
            return tree
        return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec(*[None] * axis, ROWS)))

    def copied(tree: Any) -> Any:
        """A whole copy on every device."""
        if mesh is None:
            return tree
        return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))

    def settled(tree: Any) -> Any:
        """Leaves that lie on the mesh as they are, others copied to every device."""
        if mesh is None:
            return tree

        def settle(x, mesh=mesh):
            placed = isinstance(x.sharding, NamedSharding) and x.sharding.mesh == mesh
            return x if placed else put(x, NamedSharding(mesh, PartitionSpec()))

        return jax.tree.map(settle, tree)

    def place(runner: Runner) -> Runner:
        env_state = runner.env_state
        return Runner(
            env_params=copied(runner.env_params),
            env_state=env_state.replace(env=split(env_state.env), pool=copied(env_state.pool)),
            obs=split(runner.obs),
            carry=split(runner.carry),
            first=split(runner.first),
        )

    def adam(hparams):
        return optax.scale_by_adam(hparams["adam_b1"], hparams["adam_b2"], hparams["adam_eps"])

    def init(key: jax.Array) -> PPOState:
        env_key, policy_key, run_key = jax.random.split(key, 3)
        runner = start(vector, env_params, policy, env_key)
        params, frozen = policy.init(policy_key, runner.obs)
        params, frozen = settled((params, frozen))
        floats = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.type == "float"}
        hparams = {name: jnp.float32(x) for name, x in floats.items()}
        opt_state = settled(adam(hparams).init(params))  # its moments lie where the parameters do
        return PPOState(params, frozen, opt_state, place(runner), *copied((hparams, run_key, jnp.int32(0))))

    def gradient(loss: Callable, params: Any, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        """The gradient over a minibatch, in microbatches, and the loss's metrics."""

        def part(batch):
            return jax.grad(loss, has_aux=True)(params, split(batch, 1))

        k = config.microbatches
        if k == 1:
            return part(batch)
        # part j takes rows j, j + k, ...: each part then lies on all devices
        parts = jax.tree.map(
            lambda x: jnp.moveaxis(x.reshape(x.shape[0], x.shape[1] // k, k, *x.shape[2:]), 2, 0), batch
        )

        def add(total, batch):
            grads, metrics = part(batch)
            return jax.tree.map(jnp.add, total, grads), metrics

        grads, metrics = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
        means = {name: jnp.mean(x) for name, x in metrics.items()}
        return jax.tree.map(lambda g: g / k, grads), means | {"ratio_error": jnp.max(metrics["ratio_error"])}

    def learn(state: PPOState, batch: Batch, key: jax.Array) -> tuple[Any, Any, dict[str, jax.Array]]:
        """`epochs` x `minibatches` gradient steps, fewer when the KL exceeds its target."""
        hparams = state.hparams
        packed = Packed(state.params, allowed=mesh is None)
        learning_rate = hparams["learning_rate"]
        if config.schedule == "linear":
            learning_rate *= jnp.maximum(0.0, 1 - state.update / config.schedule_updates)

        def loss(params, batch):
            tree = packed.tree(params)
            return ppo_loss(tree, state.frozen, batch, policy, hparams, config.value_broadcast, auxiliary)

        order = permutations(key, config.epochs, units).reshape(total, units // config.minibatches)

        def gradient_step(loop):
            i, params, opt_state, sums, _ = loop
            minibatch = jax.tree.map(lambda x: x.at[:, order[i]].get(mode="promise_in_bounds"), batch)
            if config.normalize_advantages:
                a = minibatch.advantage
                minibatch = minibatch.replace(advantage=(a - jnp.mean(a)) / (jnp.std(a) + 1e-8))
            grads, metrics = gradient(loss, params, minibatch)
            norm = optax.tree.norm(grads)
            scale = jnp.minimum(1.0, hparams["max_grad_norm"] / jnp.maximum(norm, 1e-12))
            grads = jax.tree.map(lambda g: g * scale, grads)
            direction, opt_state = adam(hparams).update(grads, opt_state)
            params = jax.tree.map(lambda p, d: p - learning_rate * d, params, direction)
            error = metrics.pop("ratio_error")
            kl = metrics["approx_kl"]
            metrics |= {"grad_norm": norm, "first_ratio_error": jnp.where(i == 0, error, 0.0)}
            return i + 1, params, opt_state, jax.tree.map(jnp.add, sums, metrics), kl > hparams["target_kl"]

        names = ["loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm"]
        names += [] if auxiliary is None else [f"{auxiliary.name}_loss"]
        sums = {name: jnp.float32(0) for name in (*names, "first_ratio_error")}
        loop = (jnp.int32(0), packed.one(state.params), packed.each(packed.one, state.opt_state), sums, jnp.bool(False))
        loop = jax.lax.while_loop(lambda loop: (loop[0] < total) & ~loop[4], gradient_step, loop)
        done, params, opt_state, sums, _ = loop
        params, opt_state = packed.tree(params), packed.each(packed.tree, opt_state)
        metrics = {name: sums[name] / done for name in names} | {"first_ratio_error": sums["first_ratio_error"]}
        sound = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["grad_norm"])
        return params, opt_state, metrics | {"gradient_steps": done, "nonfinite": ~sound}

    def update(state: PPOState) -> tuple[PPOState, dict[str, jax.Array]]:
        with contextlib.nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            pool_key, play_key, shuffle_key = jax.random.split(jax.random.fold_in(state.key, state.update), 3)
            runner = state.runner
            runner = runner.replace(env_state=vector.refresh(pool_key, runner.env_state, runner.env_params))
            runner, rollout = collect(
                vector,
                policy,
                state.params,
                state.frozen,
                runner,
                play_key,
                config.num_steps,
                bootstrap_truncation=config.bootstrap_truncation,
                constrain=split,
                unroll=config.unroll,
                auxiliary=auxiliary,
            )
            target: Any = ()
            if auxiliary is not None:
                target = auxiliary.targets(state.params, state.frozen, rollout, runner)
            advantage, returns = gae(
                rollout.reward,
                rollout.value,
                rollout.next_value,
                rollout.terminated,
                rollout.truncated,
                state.hparams["gamma"],
                state.hparams["gae_lambda"],
            )
            batch = Batch(
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
            if not policy.recurrent:  # every step is an environment of its own, one step long
                batch = jax.tree.map(
                    lambda x: jnp.swapaxes(x, 0, 1).reshape(1, x.shape[0] * x.shape[1], *x.shape[2:]), batch
                )
            params, opt_state, metrics = learn(state, copied(batch), shuffle_key)
            spread = jnp.var(returns)
            unexplained = jnp.where(spread > 0, jnp.var(returns - rollout.value) / jnp.maximum(spread, 1e-12), 1.0)
            metrics |= {
                "explained_variance": 1 - unexplained,
                "value_mean": jnp.mean(rollout.value),
                "advantage_mean": jnp.mean(advantage),
                "advantage_std": jnp.std(advantage),
                **episode_metrics(rollout, task_names),
                **({} if auxiliary is None else auxiliary.report(rollout, target, task_names)),
            }
            state = state.replace(params=params, opt_state=opt_state, runner=place(runner), update=state.update + 1)
            return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    return Learner(init, update, steps_per_update, {"first_ratio_error": 1e-5, "nonfinite": 0.0})
