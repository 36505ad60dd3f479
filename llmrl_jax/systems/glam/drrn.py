"""DRRN: Q-learning over text (He et al., 1511.04636), GLAM's off-policy baseline (glam reference, section 4.1).

One GRU reads the prompt, another each action, and an MLP on the two states gives the action's value. Actions are drawn
from a softmax over the values. Not reproduced: the published code forgot the first observation of every episode but
the first, and its logs dropped the episodes that had just ended.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs_jax.actions import mask_of
from envs_jax.env import Environment, Wrapper
from envs_jax.resets import VectorEnv
from envs_jax.text import TokenTable
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.layers import GRU, linear
from llmrl_jax.rl.learner import Learner
from llmrl_jax.rl.policy import over_offered
from llmrl_jax.rl.replay import Replay, Ring
from llmrl_jax.rl.rollout import EPISODE_INFO, Rollout, Runner, episode_metrics, start


@dataclass(frozen=True)
class DRRNConfig:
    """Sizes and hyper-parameters of DRRN; the defaults are the published ones. Floats are traced."""

    num_envs: int = 32
    """Environments played at once."""
    num_steps: int = 4
    """Steps per environment and update."""
    gradient_steps: int = 1
    """Gradient steps per update."""
    batch_size: int = 64
    """Remembered steps in a gradient step."""
    replay_size: int = 1_500_000
    """Steps remembered at most; room for all is taken at once, in checkpoints too: 265 bytes for each in
    MixedTrainLocal. The published memory has room for 5,000,000, of which runs of 1,500,000 steps fill no more."""
    embedding_dim: int = 128
    """Width of the tokens' embeddings."""
    hidden_dim: int = 128
    """Width of both GRUs and of the MLP's hidden layer."""
    gamma: float = 0.9
    """Discount per step, 0 to 1."""
    learning_rate: float = 1e-4
    """Step size of Adam."""
    max_grad_norm: float = 5.0
    """Global norm to which gradients are clipped; inf: never."""
    adam_b1: float = 0.9
    """Adam's decay of the mean."""
    adam_b2: float = 0.999
    """Adam's decay of the square."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    target_every: int = 0
    """Updates between two copies of the network that targets are computed with; 0: there is one network only."""
    bootstrap_truncation: bool = True
    """Whether a time-out is worth the value of its last observation; False treats it as terminal, as GLAM does."""
    reset: Literal["pool", "always"] = "pool"
    """How episodes restart, see `envs_jax.VectorEnv`; the pool is renewed before every update."""
    pool_size: int = 256
    """Prepared episodes, with `reset` pool."""

    def __post_init__(self):
        lows = {"target_every": 0}
        for f in dataclasses.fields(self):
            x = getattr(self, f.name)
            if f.type == "int" and x < lows.get(f.name, 1):
                raise ValueError(f"drrn {f.name} is {x}; at least {lows.get(f.name, 1)} is needed")
            if f.type == "float" and (not x >= 0 or math.isinf(x) and f.name != "max_grad_norm"):
                raise ValueError(f"drrn {f.name} is {x}; a non-negative number is needed")
        for name in ("gamma", "adam_b1", "adam_b2"):
            if getattr(self, name) > 1:
                raise ValueError(f"drrn {name} is {getattr(self, name)}; at most 1 makes sense")
        if self.num_envs * self.num_steps > self.replay_size:
            raise ValueError(
                f"drrn num_envs {self.num_envs} x num_steps {self.num_steps} = {self.num_envs * self.num_steps} steps "
                f"in an update, but replay_size is {self.replay_size}: raise it"
            )


class QNetwork(nn.Module):
    """The value of every action after every prompt."""

    vocab_size: int
    embedding_dim: int
    hidden_dim: int

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B S"],
        lengths: Int[Array, " B"],
        actions: Int[Array, "A W"],
        action_lengths: Int[Array, " A"],
    ) -> Float[Array, "B A"]:
        """**Arguments:** right-padded tokens and their numbers, of the prompts and of the actions."""
        normal = nn.initializers.normal(1.0)
        embed = nn.Embed(self.vocab_size, self.embedding_dim, embedding_init=normal, name="embed")
        state = GRU(self.hidden_dim, name="state")(embed(tokens), lengths)
        action = GRU(self.hidden_dim, name="action")(embed(actions), action_lengths)
        shape = (tokens.shape[0], actions.shape[0], self.hidden_dim)
        pairs = [jnp.broadcast_to(state[:, None], shape), jnp.broadcast_to(action[None], shape)]
        x = nn.relu(linear(2 * self.hidden_dim, self.hidden_dim, "hidden")(jnp.concatenate(pairs, axis=-1)))
        return linear(self.hidden_dim, 1, "q")(x)[..., 0]


class QPolicy(Protocol):
    """An agent that values actions: it acts as a `llmrl_jax.rl.policy.Policy` does, and has no `unroll`."""

    def init(self, key: jax.Array, obs: Any) -> tuple[Any, Any]: ...

    def initial_carry(self, batch_size: int) -> Any: ...

    def q(self, params: Any, obs: Any) -> Float[Array, "B A"]:
        """The value of every action."""
        ...

    def step(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]
    ) -> tuple[Categorical, Float[Array, " B"], Any]: ...


class DRRNPolicy:
    """DRRN's agent, a `QPolicy`: a softmax over the values of the actions."""

    def __init__(
        self,
        config: DRRNConfig,
        vocab_size: int,
        prompts: Callable[[Any], tuple[Array, Array]],
        actions: TokenTable,
    ):
        """**Arguments:** `config`, for its sizes; `vocab_size`, of the tokenizer; `prompts`, from a batched observation
        to `(tokens int32 [B, S], lengths int32 [B])`, inside jit; `actions`, the tokens of the action strings."""
        self.prompts, self.actions = prompts, actions
        self.network = QNetwork(vocab_size, config.embedding_dim, config.hidden_dim)

    def _inputs(self, obs: Any) -> tuple[Array, Array, Array, Array]:
        return *self.prompts(obs), jnp.asarray(self.actions.tokens), jnp.asarray(self.actions.lengths)

    def init(self, key: jax.Array, obs: Any) -> tuple[Any, tuple[()]]:
        """Draw parameters for a batched observation; nothing is frozen."""
        return jax.jit(self.network.init)(key, *self._inputs(obs))["params"], ()

    def initial_carry(self, batch_size: int) -> tuple[()]:
        return ()

    def q(self, params: Any, obs: Any) -> Float[Array, "B A"]:
        """The value of every action; of those that are not offered, minus infinity."""
        values: Any = self.network.apply({"params": params}, *self._inputs(obs))
        mask = mask_of(obs)
        return values if mask is None else jnp.where(mask, values, -jnp.inf)

    def step(self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]):
        q = self.q(params, obs)
        return over_offered(q, obs), jnp.max(q, axis=-1), carry


@struct.dataclass
class Transition:
    """What is remembered of a step."""

    obs: Any
    action: jax.Array
    reward: jax.Array
    next_obs: Any
    """The observation that the step reached, before any reset."""
    terminated: jax.Array
    """Whether nothing is to come."""


@struct.dataclass
class DRRNState:
    """Everything that DRRN carries from update to update, its whole memory included."""

    params: Any
    frozen: Any
    """`()`: every weight is trained."""
    target: Any
    """The weights that targets are computed with; `()` where they are `params`."""
    opt_state: Any
    replay: Ring
    runner: Runner
    hparams: dict[str, jax.Array]
    """The config's floats by name, float32 `[]`."""
    key: jax.Array
    """The key of the whole run; update `i` uses `fold_in(key, i)`."""
    update: jax.Array
    """int32 `[]`, updates done."""


def q_targets(
    reward: Float[Array, " B"], terminated: Bool[Array, " B"], next_q: Float[Array, "B A"], gamma: float | jax.Array
) -> Float[Array, " B"]:
    """What the chosen actions' values are drawn to: `reward + gamma max_a Q(next, a)`, the reward alone at an end."""
    return reward + gamma * jnp.where(terminated, 0.0, jnp.max(next_q, axis=-1))


def drrn_loss(
    params: Any, target: Any, batch: Transition, policy: QPolicy, gamma: float | jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The mean Huber loss of the chosen actions' values against `q_targets`, and float32 scalars by name.

    **Arguments:** `target`, the weights behind the targets; no gradient goes there.
    """
    q = policy.q(params, batch.obs)
    chosen = jnp.take_along_axis(q, batch.action[:, None], axis=-1)[:, 0]
    wanted = q_targets(batch.reward, batch.terminated, policy.q(target, batch.next_obs), gamma)
    loss = jnp.mean(optax.losses.huber_loss(chosen, jax.lax.stop_gradient(wanted)))
    return loss, {"loss": loss, "q_mean": jnp.mean(chosen), "target_mean": jnp.mean(wanted)}


def make_drrn(config: DRRNConfig, env: Environment, env_params: Any, policy: QPolicy) -> Learner:
    """Build DRRN as a `Learner`.

    **Arguments:** `config`; `env`, one environment, wrapped (with `EpisodeStatistics`), not batched; `env_params`;
    `policy`.
    **Returns:** the learner. Its metrics are those of `drrn_loss` (means over the gradient steps), `grad_norm` (before
    clipping), `entropy` and `value_mean` of the policy that acted, `replay_size`, `nonfinite` (1 where a loss or
    gradient was not finite, bounded by 0), and those of `episode_metrics`.
    """
    vector = VectorEnv(env, config.num_envs, policy=config.reset, pool_size=config.pool_size)
    task_names = tuple(getattr(env.unwrapped if isinstance(env, Wrapper) else env, "task_names", ()))
    memory = Replay(config.replay_size)
    steps_per_update = config.num_envs * config.num_steps

    def adam(hparams):
        return optax.scale_by_adam(hparams["adam_b1"], hparams["adam_b2"], hparams["adam_eps"])

    def init(key: jax.Array) -> DRRNState:
        env_key, policy_key, run_key = jax.random.split(key, 3)
        runner = start(vector, env_params, policy, env_key)  # type: ignore[arg-type]
        params, frozen = policy.init(policy_key, runner.obs)
        floats = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.type == "float"}
        hparams = {name: jnp.float32(x) for name, x in floats.items()}
        obs = jax.tree.map(lambda x: x[0], runner.obs)
        replay = memory.init(Transition(obs, jnp.int32(0), jnp.float32(0), obs, jnp.bool(False)))
        target = jax.tree.map(jnp.copy, params) if config.target_every else ()
        opt_state = adam(hparams).init(params)
        return DRRNState(params, frozen, target, opt_state, replay, runner, hparams, run_key, jnp.int32(0))

    def play(params: Any, runner: Runner, key: jax.Array) -> tuple[Runner, tuple[Transition, Rollout, Any]]:
        """`num_steps` steps in every environment: what to remember and what to report, leaves `[T, N, ...]`."""
        void: Any = ()

        def step(runner, t):
            act_key, step_key = jax.random.split(jax.random.fold_in(key, t))
            distribution, value, _ = policy.step(params, (), runner.obs, runner.carry, runner.first)
            action = distribution.sample(act_key)
            obs, env_state, reward, terminated, truncated, info = vector.step(
                step_key, runner.env_state, action, runner.env_params
            )
            done = terminated | truncated
            ends = terminated if config.bootstrap_truncation else done
            seen = Transition(runner.obs, action, reward, info["final_observation"], ends)
            record = Rollout(  # as far as `episode_metrics` reads it
                obs=void,
                action=void,
                log_prob=void,
                value=value,
                next_value=void,
                reward=void,
                terminated=terminated,
                truncated=truncated,
                first=void,
                carry=void,
                info={name: info[name] for name in EPISODE_INFO if name in info},
            )
            runner = runner.replace(env_state=env_state, obs=obs, first=done)
            return runner, (seen, record, jnp.mean(distribution.entropy()))

        return jax.lax.scan(step, runner, jnp.arange(config.num_steps))

    def learn(state: DRRNState, key: jax.Array) -> tuple[Any, Any, dict[str, jax.Array]]:
        """`gradient_steps` steps on batches from the memory."""
        hparams = state.hparams

        def gradient_step(carry, key):
            params, opt_state = carry
            batch = memory.sample(state.replay, key, config.batch_size)
            target = state.target if config.target_every else params
            grads, metrics = jax.grad(drrn_loss, has_aux=True)(params, target, batch, policy, hparams["gamma"])
            norm = optax.tree.norm(grads)
            scale = jnp.minimum(1.0, hparams["max_grad_norm"] / jnp.maximum(norm, 1e-12))
            direction, opt_state = adam(hparams).update(jax.tree.map(lambda g: g * scale, grads), opt_state)
            params = jax.tree.map(lambda p, d: p - hparams["learning_rate"] * d, params, direction)
            return (params, opt_state), metrics | {"grad_norm": norm}

        keys = jax.random.split(key, config.gradient_steps)
        (params, opt_state), metrics = jax.lax.scan(gradient_step, (state.params, state.opt_state), keys)
        return params, opt_state, {name: jnp.mean(x) for name, x in metrics.items()}

    def update(state: DRRNState) -> tuple[DRRNState, dict[str, jax.Array]]:
        pool_key, play_key, learn_key = jax.random.split(jax.random.fold_in(state.key, state.update), 3)
        runner = state.runner
        runner = runner.replace(env_state=vector.refresh(pool_key, runner.env_state, runner.env_params))
        runner, (seen, record, entropy) = play(state.params, runner, play_key)
        flat = jax.tree.map(lambda x: x.reshape(steps_per_update, *x.shape[2:]), seen)
        state = state.replace(runner=runner, replay=memory.add(state.replay, flat))
        params, opt_state, metrics = learn(state, learn_key)
        target = state.target
        if config.target_every:
            due = (state.update + 1) % config.target_every == 0
            target = jax.tree.map(lambda new, old: jnp.where(due, new, old), params, target)
        metrics |= {
            "entropy": jnp.mean(entropy),
            "value_mean": jnp.mean(record.value),
            "replay_size": state.replay.size,
            "nonfinite": ~(jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["grad_norm"])),
            **episode_metrics(record.info, record.terminated | record.truncated, task_names),
        }
        state = state.replace(params=params, target=target, opt_state=opt_state, update=state.update + 1)
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    return Learner(init, update, steps_per_update, {"nonfinite": 0.0})
