"""SAC, the soft actor-critic (Haarnoja et al., 1812.05905), for continuous actions with bounds.

One update plays `num_steps` steps in `num_envs` environments, stores them, and takes `gradient_steps` gradient steps on
batches from the replay buffer. The first `learning_starts` steps are uniform random actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float

from envs_jax import spaces, tracing
from envs_jax.env import Environment
from llmrl_jax.core.checks import (
    Fraction,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    refuse_unread,
)
from llmrl_jax.core.learner import Learner
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.actors import Critics, Scaled, SquashedActor
from llmrl_jax.rl.distributions import TanhNormal
from llmrl_jax.rl.gradient import TrainState, traced_floats
from llmrl_jax.rl.networks import NetworkConfig, with_one_hots
from llmrl_jax.rl.offline_data import ActionKind, Batch, Features
from llmrl_jax.rl.policy import Policy
from llmrl_jax.rl.registry import Algorithm
from llmrl_jax.rl.replay import COUNTERS, BufferState, Replay
from llmrl_jax.rl.rollout import (
    SHARED,
    RolloutConfig,
    Runner,
    check_statistics,
    episode_info,
    episode_metrics,
    start,
    task_names,
    with_pool,
)


class SoftActorCritic:
    """A squashed Gaussian actor, twin critics, and the weight of the entropy, which is adapted so that the entropy is
    minus the number of action values. Hyper-parameters: `actor_learning_rate`, `temperature_learning_rate`, and
    `initial_temperature`."""

    def __init__(self, actions: ActionKind, hidden: tuple[int, ...], activation: str):
        self.width = actions.width
        self.actor = SquashedActor(actions.width, hidden, activation)
        self.critics = Critics(actions, hidden, activation)

    def networks(self, key: jax.Array, inputs: int, hparams: dict[str, jax.Array]) -> dict[str, Any]:
        """Initial parameters: `actor`, `critic`, `log_temperature`."""
        actor_key, critic_key = jax.random.split(key)
        return {
            "actor": self.actor.init(actor_key, inputs),
            "critic": self.critics.init(critic_key, inputs),
            "log_temperature": jnp.log(hparams["initial_temperature"]),
        }

    def soft_targets(
        self, state: TrainState, batch: Batch, key: jax.Array, h: dict[str, jax.Array]
    ) -> Float[Array, " B"]:
        """`r + gamma (1 - terminated) [min Q'(s', a') - temperature log pi(a' | s')]`, with `a'` of the policy."""
        action, log_prob = self.actor.sample(state.params["actor"], batch.next_obs, key)
        value = jnp.min(self.critics(state.target["critic"], batch.next_obs, action), axis=0)
        value = value - jnp.exp(state.params["log_temperature"]) * log_prob
        return batch.reward + h["gamma"] * jnp.where(batch.terminated, 0.0, value)

    def actor_loss(self, params: Any, critic: Any, batch: Batch, key: jax.Array, temperature: Any) -> jax.Array:
        """`mean [temperature log pi(a | s) - min Q(s, a)]` for an action of the policy, and its log-density."""
        action, log_prob = self.actor.sample(params, batch.obs, key)
        return jnp.mean(temperature * log_prob - jnp.min(self.critics(critic, batch.obs, action), axis=0))

    def actor_step(
        self, state: TrainState, batch: Batch, key: jax.Array, h: dict[str, jax.Array]
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """A step of the entropy's weight, and one of the actor with that weight."""
        _, log_prob = self.actor.sample(state.params["actor"], batch.obs, key)
        distance = jnp.mean(log_prob) - self.width
        grad = jax.grad(lambda log: -jnp.exp(log) * distance)(state.params["log_temperature"])
        state = state.apply_gradients("log_temperature", grad, h["temperature_learning_rate"])
        temperature = jnp.exp(state.params["log_temperature"])
        pi_loss, grads = jax.value_and_grad(self.actor_loss)(
            state.params["actor"], state.params["critic"], batch, key, temperature
        )
        state = state.apply_gradients("actor", grads, h["actor_learning_rate"])
        return state, {"actor_loss": pi_loss, "temperature": temperature, "entropy": -jnp.mean(log_prob)}

    def act(self, params: dict[str, Any], x: Float[Array, "B n"]) -> TanhNormal:
        """Distribution of the policy over actions in [-1, 1]."""
        return self.actor.distribution(params["actor"], x)


@dataclass(frozen=True)
class SACConfig(RolloutConfig):
    """Hyper-parameters. Floats are traced (`state.hparams`).

    Those of SAC with an adapted weight of the entropy (Haarnoja et al., 1812.05905).
    **Raises:** `ValueError` for an option out of range.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> lr.SACConfig(num_envs=4, learning_starts=1_000).batch_size
    256
    ```
    """

    PREFIX: ClassVar[str] = "sac."

    num_steps: PositiveInt = 1
    gradient_steps: PositiveInt = 16
    """Gradient steps per update; as many as num_envs times num_steps is the usual one per step."""
    batch_size: PositiveInt = 256
    """Stored steps per gradient step."""
    replay_size: PositiveInt = 1_000_000
    """Capacity of the replay buffer in steps, rounded down to a multiple of num_envs. It is allocated at once, and is
    part of checkpoints."""
    learning_starts: NonNegativeInt = 5_000
    """Steps of uniform random actions before the first gradient step; until then losses are reported as 0."""
    gamma: Fraction = 0.99
    """Discount per step."""
    tau: Fraction = 0.005
    """Polyak averaging rate of the target critics."""
    actor_learning_rate: NonNegativeFloat = 3e-4
    """Learning rate of the actor."""
    critic_learning_rate: NonNegativeFloat = 3e-4
    """Learning rate of the critics."""
    temperature_learning_rate: NonNegativeFloat = 3e-4
    """Learning rate of the entropy coefficient."""
    initial_temperature: PositiveFloat = 1.0
    """First weight of the entropy; it is adapted so that the entropy is minus the number of action values."""
    pool_every: Annotated[PositiveInt, Needs("reset", "pool")] = 16

    def __post_init__(self):
        super().__post_init__()
        for label, needed in (
            ("an update", self.num_envs * self.num_steps),
            ("sac.learning_starts", self.learning_starts),
        ):
            if needed > self.capacity:
                raise ValueError(
                    f"{label} has {needed} steps, but the memory holds {self.capacity}: raise sac.replay_size"
                )

    @property
    def capacity(self) -> int:
        """Steps that the replay buffer holds."""
        return self.replay_size // self.num_envs * self.num_envs


class SACPolicy(Policy):
    """Actor and critics of an environment; acts as a `llmrl_jax.rl.policy.Policy`. The value is 0."""

    def __init__(self, actions: ActionKind, hidden: tuple[int, ...], activation: str, features: Features):
        """**Arguments:** `actions`, continuous; `hidden`, widths of the dense layers; `activation`; `features`, from an
        observation and its number of batch axes to float32 features."""
        self.actions, self.features = actions, features
        self.nets = SoftActorCritic(actions, hidden, activation)

    def step(self, params, frozen, obs, carry, first):
        distribution = self.nets.act(params, self.features(obs, 1))
        return Scaled(distribution, self.actions), jnp.zeros(distribution.mean.shape[0]), carry


def sac_policy(env: Environment, env_params: Any, network: NetworkConfig, config: Any) -> SACPolicy:
    """Networks of a configuration for an environment; `config` is not used.

    **Raises:** `ValueError` for actions that are not a float vector with finite bounds, or options that it does not
    read.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> env, env_params = lr.make("Pendulum-v1")
    >>> policy = lr.rl.sac_policy(env, env_params, lr.rl.NetworkConfig(hidden=(16,)), lr.SACConfig())
    >>> policy.actions.width  # `make_sac` takes the policy
    1
    ```
    """
    refuse_unread(network, ["channels", "memory", "dueling"], "sac")
    space = env.action_space(env_params)
    box = isinstance(space, spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)
    if not box or not np.all(np.isfinite(space.low) & np.isfinite(space.high)):  # type: ignore[attr-defined]
        raise ValueError(
            f"sac needs continuous actions with finite bounds, but those of {env.id} are {space}: choose another "
            "algorithm, as in --algo ppo"
        )
    actions = ActionKind.box(space.low, space.high, space.shape[0])  # type: ignore[attr-defined]
    activation = "relu" if network.activation == "auto" else network.activation
    return SACPolicy(actions, network.hidden, activation, with_one_hots(env.observation_space(env_params)))


@struct.dataclass
class SACState:
    """Everything that SAC carries from update to update, including the replay buffer."""

    params: dict[str, Any]
    frozen: Any
    """`()`."""
    target: dict[str, Any]
    opt_state: dict[str, Any]
    replay: BufferState
    """Actions are in [-1, 1]."""
    runner: Runner
    hparams: dict[str, jax.Array]
    """The config's floats by name, float32 `[]`."""
    key: jax.Array
    """The key of the whole run; update `i` uses `fold_in(key, i)`."""
    update: jax.Array
    """int32 `[]`, updates done."""


def make_sac(
    config: SACConfig, env: Environment, env_params: Any, policy: SACPolicy, mesh: Mesh | None = None
) -> Learner:
    """Build SAC as a `Learner`.

    **Arguments:** `config`; `env`, one environment, wrapped (with `EpisodeStatistics`), not batched; `env_params`;
    `policy`; `mesh`, None: SAC runs on one device.
    **Returns:** the learner. Its metrics are `critic_loss`, `actor_loss`, `temperature`, `entropy` and `target_mean`,
    means over the gradient steps, `replay_size`, and those of `episode_metrics`.
    **Raises:** `ValueError` for a mesh, or an environment that does not report its episodes.

    **Example:**

    ```pycon
    >>> import jax, llmrl_jax as lr
    >>> env, env_params = lr.make("Pendulum-v1")
    >>> env = lr.EpisodeStatistics(env)
    >>> config = lr.SACConfig(num_envs=2, num_steps=4, batch_size=16, replay_size=64, learning_starts=8)
    >>> policy = lr.rl.sac_policy(env, env_params, lr.rl.NetworkConfig(hidden=(16,)), config)
    >>> learner = lr.make_sac(config, env, env_params, policy)
    >>> state = jax.eval_shape(learner.init, jax.random.key(0))
    >>> learner.steps_per_update, sorted(jax.eval_shape(learner.update, state)[1])[:3]
    (8, ['actor_loss', 'critic_loss', 'entropy'])
    ```
    """
    if mesh is not None:
        raise ValueError("sac runs on one device: leave --mesh out")
    check_statistics(env, env_params)
    sac = SAC(config, env, env_params, policy)
    return Learner(sac.init, sac.update, config.num_envs * config.num_steps, shared=(*SHARED, *COUNTERS))


class SAC:
    """SAC's update and its parts; `make_sac` documents the arguments."""

    def __init__(self, config: SACConfig, env: Environment, env_params: Any, policy: SACPolicy):
        self.config, self.env_params, self.policy, self.nets = config, env_params, policy, policy.nets
        self.task_names = task_names(env)
        self.vector = config.vector_env(env)
        self.memory = Replay(config.capacity, rows=config.num_envs)

    def init(self, key: jax.Array) -> SACState:
        env_key, policy_key, run_key = jax.random.split(key, 3)
        runner = start(self.vector, self.env_params, self.policy, env_key)  # type: ignore[arg-type]
        hparams = traced_floats(self.config)
        inputs = self.policy.features(runner.obs, 1).shape[-1]
        create = jax.jit(lambda key, h: TrainState.create(self.nets.networks(key, inputs, h), ["critic"]))
        nets = create(policy_key, hparams)
        obs = jax.tree.map(lambda x: x[0], runner.obs)
        step = jax.eval_shape(
            lambda: Transitions(obs, jnp.zeros(self.nets.width), jnp.float32(0), obs, jnp.bool(False))
        )
        self.memory.check_room(step, f"sac.replay_size, which is {self.config.replay_size}")
        replay = self.memory.init(step)
        return SACState(nets.params, (), nets.target, nets.opt_state, replay, runner, hparams, run_key, jnp.int32(0))

    def update(self, state: SACState) -> tuple[SACState, dict[str, jax.Array]]:
        """Play, store the steps, take gradient steps."""
        pool_key, play_key, learn_key = jax.random.split(jax.random.fold_in(state.key, state.update), 3)
        runner = with_pool(self.vector, state.runner, pool_key, state.update, self.config.pool_every)
        runner, (steps, done, info) = self._play(state.replace(runner=runner), play_key)
        state = state.replace(runner=runner, replay=self.memory.add(state.replay, steps))
        nets, metrics = self._learn_when_ready(state, learn_key)
        metrics |= {"replay_size": state.replay.size, **episode_metrics(info, done, self.task_names)}
        state = state.replace(params=nets.params, target=nets.target, opt_state=nets.opt_state, update=state.update + 1)
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    def _play(self, state: SACState, key: jax.Array) -> tuple[Runner, Any]:
        """`num_steps` steps in every environment: the steps to store, which end an episode, and its records."""
        config = self.config
        random = state.update < -(-config.learning_starts // (config.num_envs * config.num_steps))

        def step(runner, t):
            act_key, step_key = jax.random.split(jax.random.fold_in(key, t))
            policy_action = self.nets.act(state.params, self.policy.features(runner.obs, 1)).sample(act_key)
            uniform = jax.random.uniform(act_key, policy_action.shape, minval=-1.0, maxval=1.0)
            action = jnp.where(random, uniform, policy_action)
            obs, env_state, reward, terminated, truncated, info = self.vector.step(
                step_key, runner.env_state, self.policy.actions.outward(action), runner.env_params
            )
            done = terminated | truncated
            transition = Transitions(runner.obs, action, reward, info["final_observation"], terminated)
            return runner.replace(env_state=env_state, obs=obs, first=done), (transition, done, episode_info(info))

        return tracing.scan(step, state.runner, jnp.arange(config.num_steps))

    def _learn_when_ready(self, state: SACState, key: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        """`gradient_steps` steps once the buffer holds enough; before that nothing changes, and metrics are 0."""

        def wait(state, key):
            zeros = {name: jnp.float32(0) for name in jax.eval_shape(self._learn, state, key)[1]}
            return TrainState(state.params, state.target, state.opt_state), zeros

        ready = self.memory.can_sample(state.replay, max(1, self.config.learning_starts))
        return tracing.cond(ready, self._learn, wait, state, key)

    def _learn(self, state: SACState, key: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        def gradient_step(nets, key):
            draw_key, step_key = jax.random.split(key)
            index = self.memory.draw(state.replay, draw_key, self.config.batch_size).index
            rows = self.memory.get(state.replay, index)
            x, y = self.policy.features(rows.obs, 1), self.policy.features(rows.next_obs, 1)
            return self.step(nets, Batch(x, rows.action, rows.reward, y, rows.terminated), step_key, state.hparams)

        nets = TrainState(state.params, state.target, state.opt_state)
        nets, metrics = tracing.scan(gradient_step, nets, jax.random.split(key, self.config.gradient_steps))
        return nets, {name: jnp.mean(x) for name, x in metrics.items()}

    def step(
        self, state: TrainState, batch: Batch, key: jax.Array, h: dict[str, jax.Array]
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """One gradient step of every network."""
        target_key, actor_key = jax.random.split(key)
        target = self.nets.soft_targets(state, batch, target_key, h)
        loss, grads = jax.value_and_grad(self.nets.critics.loss)(state.params["critic"], target, batch)
        state = state.apply_gradients("critic", grads, h["critic_learning_rate"])
        state, metrics = self.nets.actor_step(state, batch, actor_key, h)
        return state.polyak_update(h["tau"], "critic"), {
            **metrics,
            "critic_loss": loss,
            "target_mean": jnp.mean(target),
        }


ALGORITHM = Algorithm(SACConfig, make_sac, sac_policy)
