"""Deep Q-learning (Mnih et al., Nature 518, 2015), for any policy that returns a value for every action.

One update plays `num_steps` steps in `num_envs` environments, stores them, and takes `gradient_steps` gradient steps
on batches from the replay buffer. Options: double Q-learning (van Hasselt et al., 1509.06461), a target network copied
periodically or by Polyak averaging, n-step returns, prioritised replay (Schaul et al., 1511.05952), actions drawn
epsilon-greedily or from a softmax over the values. The state includes the replay buffer, so the learner resumes, vmaps
and shards as PPO does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from envs_jax import tracing
from envs_jax.actions import mask_of
from envs_jax.env import Environment
from llmrl_jax.core.checks import (
    Fraction,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveOrInf,
    refuse_unread,
)
from llmrl_jax.core.learner import Learner
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.kernels.flat_tree import FlatTree
from llmrl_jax.parallel import Placement
from llmrl_jax.rl import bonus as bonuses
from llmrl_jax.rl.bonus import Bonus
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.gradient import AdamConfig, apply_gradients, clipped_adam, linear_decay, traced_floats
from llmrl_jax.rl.networks import network_q_policy
from llmrl_jax.rl.policy import Policy, epsilon_greedy, masked_categorical
from llmrl_jax.rl.registry import Algorithm
from llmrl_jax.rl.replay import COUNTERS, BufferState, Replay, importance_weights
from llmrl_jax.rl.rollout import (
    SHARED,
    RolloutConfig,
    Runner,
    check_divisible,
    check_statistics,
    episode_info,
    episode_metrics,
    shard_runner,
    start,
    task_names,
    with_pool,
)


@dataclass(frozen=True)
class DQNConfig(AdamConfig, RolloutConfig):
    """Hyper-parameters. Floats are traced (`state.hparams`): they can differ between the rows of a vmap.

    Those of DQN, with double targets (1509.06461), n-step returns and prioritised replay (1511.05952).
    **Raises:** `ValueError` for an option out of range, or one that another option leaves unread.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> lr.DQNConfig(num_envs=8, double=True, n_step=3).n_step
    3
    ```
    """

    PREFIX: ClassVar[str] = "dqn."

    num_steps: PositiveInt = 4
    gradient_steps: PositiveInt = 4
    """Gradient steps per update."""
    batch_size: PositiveInt = 128
    """Stored steps per gradient step; over a mesh, a multiple of its data x fsdp devices."""
    replay_size: PositiveInt = 100_000
    """Capacity of the replay buffer in steps, rounded down to a multiple of num_envs. The whole memory is allocated at
    once, in checkpoints too."""
    learning_starts: NonNegativeInt = 0
    """Stored steps before the first gradient step; until then losses are reported as 0."""
    learn_after_reward: bool = False
    """Whether gradient steps also wait for the first reward: for the first update after which the positive rewards of
    training sum to 1 or more. Steps are stored all the while."""
    gamma: Fraction = 0.99
    """Discount per step."""
    n_step: PositiveInt = 1
    """Steps whose rewards a target sums before it bootstraps."""
    double: bool = True
    """Whether the online network chooses the action that the target network evaluates (double Q-learning)."""
    target_every: Annotated[NonNegativeInt, Needs("target_steps", 0)] = 8
    """Updates between changes of the target network; 0: no target network, targets use the online one."""
    target_steps: NonNegativeInt = 0
    """Environment steps between changes of the target network, instead of target_every; 0: target_every decides."""
    target_tau: Fraction = 1.0
    """Polyak averaging rate of the target network at each change; 1 copies the online network. Polyak averaging is a
    small number, with target_every 1."""
    share_encoder: bool = False
    """Whether the target network has only its own heads, and the encoder of the online network, as published for ELLM.
    Needs a network that names its heads."""
    reward_clip: PositiveOrInf = math.inf
    """Absolute value at which rewards, a bonus included, are clipped before they are stored; inf: never."""
    huber_delta: PositiveFloat = 100.0
    """Error of a value beyond which the loss is linear instead of quadratic. If it is small (1 is usual, for rewards
    clipped to 1) and values are larger, large errors weigh no more than small ones, and values may diverge."""
    max_grad_norm: PositiveOrInf = 10.0
    adam_eps: NonNegativeFloat = 1e-8
    acting: Literal["epsilon", "softmax"] = "epsilon"
    """How actions are drawn: `epsilon`, the best one, or a random one with probability epsilon; `softmax`, with
    probabilities proportional to exp(value / temperature)."""
    epsilon_start: Annotated[Fraction, Needs("acting", "epsilon")] = 1.0
    """With `acting` epsilon: the initial probability of a random action."""
    epsilon_end: Annotated[Fraction, Needs("acting", "epsilon")] = 0.05
    """With `acting` epsilon: the final probability of a random action."""
    epsilon_steps: Annotated[PositiveInt, Needs("acting", "epsilon")] = 50_000
    """With `acting` epsilon: environment steps over which it falls linearly."""
    epsilon_after_reward: Annotated[bool, Needs("acting", "epsilon")] = False
    """With `acting` epsilon: whether it falls from the first update after which the positive rewards of training sum to
    1 or more, instead of from the start."""
    guide_fraction: Annotated[Fraction, Needs("acting", "epsilon")] = 0.5
    """With a guide, as in `llmrl ellm explore`: the fraction of random actions that the guide chooses."""
    temperature: Annotated[PositiveFloat, Needs("acting", "softmax")] = 1.0
    """With `acting` softmax: the temperature, in units of value."""
    replay: Literal["uniform", "prioritized"] = "uniform"
    """How stored steps are drawn: `prioritized`, in proportion to (|TD error| + 1e-6) ** priority_alpha, with the
    importance weights of the paper."""
    priority_alpha: Annotated[Fraction, Needs("replay", "prioritized")] = 0.6
    """With `replay` prioritized: 0 draws uniformly, 1 in proportion to the error."""
    priority_beta: Annotated[Fraction, Needs("replay", "prioritized")] = 0.4
    """With `replay` prioritized: exponent of the importance weights, 0 (no correction) to 1 (full)."""
    bootstrap_truncation: bool = True
    """Whether to bootstrap from the last observation of a time-out; False treats it as terminal, as GLAM does."""

    def __post_init__(self):
        super().__post_init__()
        if not self.has_target:
            refuse_unread(self, ("target_tau", "share_encoder"), "--dqn.target-every 0")
        steps, label = self.num_envs * self.num_steps, f"num_envs {self.num_envs} x num_steps {self.num_steps}"
        if steps > self.capacity:
            raise ValueError(
                f"{label} = {steps} steps in an update, but dqn.replay_size is {self.replay_size}: raise it"
            )
        for name, limit in (("learning_starts", self.capacity), ("n_step", self.capacity // self.num_envs)):
            if getattr(self, name) > limit:
                per = " per environment" if name == "n_step" else ""
                raise ValueError(
                    f"dqn.{name} is {getattr(self, name)}, but the memory holds {limit} steps{per}: raise "
                    f"dqn.replay_size, which is {self.replay_size}, or lower dqn.{name}"
                )

    @property
    def has_target(self) -> bool:
        """Return whether there is a target network."""
        return bool(self.target_every or self.target_steps)

    @property
    def waits_for_reward(self) -> bool:
        """True if epsilon or gradient steps wait for the first reward."""
        return self.learn_after_reward or self.acting == "epsilon" and self.epsilon_after_reward

    @property
    def capacity(self) -> int:
        """Steps that the replay buffer holds."""
        return self.replay_size // self.num_envs * self.num_envs


def check(config: DQNConfig, env: Environment, env_params: Any, mesh: Mesh | None) -> None:
    """Reject a configuration that is incompatible with the environment or the mesh.

    **Raises:** `ValueError` if sizes do not divide (the arithmetic is shown), or the environment does not report its
    episodes.
    """
    check_divisible(
        mesh, {f"dqn.{name} {getattr(config, name)}": getattr(config, name) for name in ("num_envs", "batch_size")}
    )
    check_statistics(env, env_params)


@struct.dataclass
class DQNState:
    """Everything that DQN carries from update to update, including the replay buffer."""

    params: Any
    """Trained parameters."""
    frozen: Any
    """Parameters that the policy reads and no update changes."""
    target: Any
    """The parameters of the target network; `()` if there is none."""
    opt_state: Any
    """Adam's moments."""
    replay: BufferState
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
    first_reward: Any = ()
    """When the first reward was earned, if epsilon or gradient steps wait for it; else `()`."""


_GUIDE = 0x61DE
"""Folded into the key of the parameters for those of a guide."""


# --- the learner ------------------------------------------------------------------------------------------------------


def make_dqn(
    config: DQNConfig,
    env: Environment,
    env_params: Any,
    policy: Policy,
    mesh: Mesh | None = None,
    bonus: Bonus | None = None,
    guide: Policy | None = None,
) -> Learner:
    """Build DQN as a `Learner`.

    **Arguments:** `config`; `env`, one environment, wrapped (with `EpisodeStatistics`), not batched; `env_params`;
    `policy`; `mesh`, over whose axes data and fsdp the environments, the replay buffer and batches are split; `bonus`,
    which changes the rewards of steps before they are stored (novelty, shaping), and learns with every gradient step;
    `guide`, a policy that makes the fraction `config.guide_fraction` of random actions (its `init` gives its trained
    parameters, which are kept in `state.frozen`).
    **Returns:** the learner. Its metrics are those of `dqn_loss` (means over the gradient steps), `grad_norm` (before
    clipping), `entropy` and `value_mean` of the acting policy, `epsilon` with `acting` epsilon, `replay_size`,
    `nonfinite` (1 if a loss, a gradient or a metric of the bonus's own learning was not finite, bounded by 0), those of
    `episode_metrics`, and the bonus's.
    Episode returns are sums of the environment's rewards, without the bonus.
    **Raises:** `ValueError` if sizes do not divide (the arithmetic is shown), the environment does not report its
    episodes, an option of the bonus was changed that DQN does not read, or the policy cannot share its encoder.

    **Example:**

    ```pycon
    >>> import jax, llmrl_jax as lr
    >>> env, env_params = lr.make("CartPole-v1")
    >>> env = lr.EpisodeStatistics(env)
    >>> config = lr.DQNConfig(num_envs=4, num_steps=4, batch_size=16, replay_size=256, learning_starts=16)
    >>> policy = lr.rl.network_q_policy(env, env_params, lr.rl.NetworkConfig(hidden=(16,)), config)
    >>> learner = lr.make_dqn(config, env, env_params, policy)
    >>> state = jax.eval_shape(learner.init, jax.random.key(0))
    >>> learner.steps_per_update, "epsilon" in jax.eval_shape(learner.update, state)[1]
    (16, True)
    ```
    """
    check(config, env, env_params, mesh)
    if config.share_encoder and not policy.heads:
        raise ValueError("dqn.share_encoder is True, but the network does not name its heads: leave it out")
    if guide is None:
        refuse_unread(config, ("guide_fraction",), "DQN without a guide")
    elif config.acting != "epsilon":
        raise ValueError(f"dqn.acting is {config.acting}; a guide needs epsilon")
    if bonus is not None:
        bonus.check_one_reward()
    dqn = DQN(config, env, env_params, policy, Placement(mesh), bonus, guide)
    shared = (*SHARED, *COUNTERS)
    return Learner(dqn.init, dqn.update, config.num_envs * config.num_steps, {"nonfinite": 0.0}, shared=shared)


@struct.dataclass
class _StepRecord:
    """Per-step records that are not stored in the replay buffer; leaves `[T, N]`."""

    done: jax.Array
    truncated: jax.Array
    value: jax.Array
    """The highest value of an action."""
    entropy: jax.Array
    """Entropy of the distribution that the action was sampled from."""
    info: dict[str, jax.Array]


class DQN:
    """DQN's update and its parts; `make_dqn` documents the arguments."""

    def __init__(
        self,
        config: DQNConfig,
        env: Environment,
        env_params: Any,
        policy: Policy,
        placement: Placement,
        bonus: Bonus | None = None,
        guide: Policy | None = None,
    ):
        self.config, self.env_params, self.policy, self.placement = config, env_params, policy, placement
        self.bonus, self.guide = bonus, guide
        self.task_names = task_names(env)
        self.vector = config.vector_env(env)
        prioritized = config.replay == "prioritized"
        self.memory = Replay(config.capacity, rows=config.num_envs, prioritized=prioritized, stacked=env.stacked)

    def init(self, key: jax.Array) -> DQNState:
        env_key, policy_key, run_key = jax.random.split(key, 3)
        runner = start(self.vector, self.env_params, self.policy, env_key)
        params, frozen = self.placement.device_put(self.policy.init(policy_key, runner.obs))
        target = jax.tree.map(jnp.copy, params) if self.config.has_target else ()
        if self.guide is not None:
            guide_key = jax.random.fold_in(policy_key, _GUIDE)
            frozen = {"own": frozen, "guide": self.placement.device_put(self.guide.init(guide_key, runner.obs))}
        hparams = self._hparams()
        opt_state = self.placement.device_put(clipped_adam(hparams).init(params))
        obs = jax.tree.map(lambda x: x[0], runner.obs)
        action, reward, flag = jnp.int32(0), jnp.float32(0), jnp.bool(False)
        truncated = flag if self.config.n_step > 1 else ()
        step = jax.eval_shape(lambda: Transitions(obs, action, reward, obs, flag, truncated))
        option = f"dqn.replay_size, which is {self.config.replay_size}"
        self.memory.check_room(step, option, self.placement.row_devices)
        # Inside jit, so that no device ever holds the whole buffer
        replay = jax.jit(lambda: self._placed(self.memory.init(step)))()
        hparams, run_key, update = self.placement.replicate((hparams, run_key, jnp.int32(0)))
        first = self.placement.replicate(FirstReward.start()) if self.config.waits_for_reward else ()
        bonus = bonuses.start(self.bonus, key, runner.obs, self.placement)
        runner = shard_runner(runner, self.placement)
        return DQNState(params, frozen, target, opt_state, replay, runner, hparams, run_key, update, bonus, first)

    def _hparams(self) -> dict[str, jax.Array]:
        """The config's floats, without those that nothing reads: checkpoints of earlier versions lack them."""
        unread = {"guide_fraction": self.guide is None, "reward_clip": self.config.reward_clip == math.inf}
        return {name: x for name, x in traced_floats(self.config).items() if not unread.get(name)}

    def update(self, state: DQNState) -> tuple[DQNState, dict[str, jax.Array]]:
        """Play, store the steps, take gradient steps, update the target network."""
        pool_key, play_key, learn_key = jax.random.split(jax.random.fold_in(state.key, state.update), 3)
        epsilon = {"epsilon": self._epsilon(state)} if self.config.acting == "epsilon" else {}
        runner, steps, played = self._play(state, pool_key, play_key)
        state, steps, report = self._rewarded(state, steps, played)
        replay = self._placed(self.memory.add(state.replay, steps, played.done))
        (params, opt_state, priorities, bonus), metrics = self._learn_when_ready(
            state.replace(replay=replay), learn_key
        )
        metrics |= {
            **report,
            "entropy": jnp.mean(played.entropy),
            "value_mean": jnp.mean(played.value),
            "replay_size": self.memory.num_readable(replay),
            **epsilon,
            **episode_metrics(played.info, played.done, self.task_names),
        }
        state = state.replace(
            params=params,
            target=self._update_target(state, params),
            opt_state=opt_state,
            replay=self._placed(replay.replace(priorities=priorities)),
            runner=shard_runner(runner, self.placement),
            update=state.update + 1,
            bonus=bonuses.shard(bonus, self.placement),
        )
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    def filled(self, state: DQNState, steps: Transitions) -> DQNState:
        """The state with recorded steps in its buffer, leaves `[T, N, ...]`, rewards as they are learned from."""
        ended = steps.terminated | steps.truncated
        steps = steps if self.config.n_step > 1 else steps.replace(truncated=())
        return state.replace(replay=self._placed(self.memory.add(state.replay, steps, ended)))

    def learn(self, state: DQNState) -> tuple[DQNState, dict[str, jax.Array]]:
        """An update without play: gradient steps on the replay buffer as it is, and the target network. For a buffer
        that was filled from recorded steps."""
        learn_key = jax.random.split(jax.random.fold_in(state.key, state.update), 3)[2]
        (params, opt_state, priorities, bonus), metrics = self._learn(state, learn_key)
        replay = self._placed(state.replay.replace(priorities=priorities))
        target = self._update_target(state, params)
        state = state.replace(params=params, target=target, opt_state=opt_state, replay=replay, bonus=bonus)
        return state.replace(update=state.update + 1), metrics

    def _placed(self, replay: BufferState) -> BufferState:
        return self.memory.shard(replay, self.placement.shard_batch, self.placement.replicate)

    # --- play ---------------------------------------------------------------------------------------------------------

    def _policy_frozen(self, frozen: Any) -> Any:
        """The policy's part of `state.frozen`."""
        return frozen if self.guide is None else frozen["own"]

    def _epsilon(self, state: DQNState) -> Float[Array, ""]:
        """The probability of a random action in an update."""
        begin, end = state.hparams["epsilon_start"], state.hparams["epsilon_end"]
        updates = self.config.epsilon_steps / (self.config.num_envs * self.config.num_steps)
        first = state.first_reward if self.config.epsilon_after_reward else None
        return decayed(state.update, updates, begin, end, first)

    def _distribution(self, state: DQNState, q: Float[Array, "N A"], obs: Any) -> Categorical:
        if self.config.acting != "epsilon":
            return masked_categorical(q / state.hparams["temperature"], obs)
        if self.guide is None:
            return epsilon_greedy(q, obs, self._epsilon(state))
        params, frozen = state.frozen["guide"]
        guide_q = self.guide.q(params, frozen, obs)
        return mixed_exploration(q, guide_q, obs, self._epsilon(state), state.hparams["guide_fraction"])

    def _play(self, state: DQNState, pool_key: jax.Array, key: jax.Array) -> tuple[Runner, Transitions, _StepRecord]:
        """`num_steps` steps in every environment: the transitions to store and the records, leaves `[T, N, ...]`."""
        config, rows = self.config, self.placement.shard_batch

        def step(runner, t):
            act_key, step_key = jax.random.split(jax.random.fold_in(key, t))
            q = self.policy.q(state.params, self._policy_frozen(state.frozen), runner.obs)
            distribution = self._distribution(state, q, runner.obs)
            action = distribution.sample(act_key)
            obs, env_state, reward, terminated, truncated, info = self.vector.step(
                step_key, runner.env_state, action, runner.env_params
            )
            done = terminated | truncated
            ends = terminated if config.bootstrap_truncation else done
            cut = truncated if config.n_step > 1 else ()
            transition = Transitions(runner.obs, action, reward, info["final_observation"], ends, cut)
            played = _StepRecord(done, truncated, jnp.max(q, axis=-1), distribution.entropy(), episode_info(info))
            runner = runner.replace(env_state=env_state, obs=rows(obs), first=rows(done))
            return runner, (transition, played)

        runner = with_pool(self.vector, state.runner, pool_key, state.update, config.pool_every)
        runner, (steps, played) = tracing.scan(step, runner, jnp.arange(config.num_steps))
        return runner, steps, played

    def _rewarded(
        self, state: DQNState, steps: Transitions, played: _StepRecord
    ) -> tuple[DQNState, Transitions, dict[str, jax.Array]]:
        """The steps with the rewards used for learning, and the metrics of the bonus, if there is one."""
        bonus_steps = steps.replace(truncated=played.truncated)
        bonus, reward, report = bonuses.one_reward(self.bonus, state.bonus, bonus_steps, state.hparams["gamma"])
        state, steps = state.replace(bonus=bonus), steps.replace(reward=reward)
        if self.config.reward_clip < math.inf:
            bound = state.hparams["reward_clip"]
            steps = steps.replace(reward=jnp.clip(steps.reward, -bound, bound))
        if self.config.waits_for_reward:
            state = state.replace(first_reward=state.first_reward.after(steps.reward, state.update + 1))
        return state, steps, report

    # --- learn --------------------------------------------------------------------------------------------------------

    def _learn_when_ready(self, state: DQNState, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """`_learn`, once the replay buffer holds enough; before that nothing changes, and metrics are 0."""
        if not self.config.learning_starts and not self.config.learn_after_reward:
            return self._learn(state, key)

        def wait(state, key):
            zeros = {name: jnp.float32(0) for name in jax.eval_shape(self._learn, state, key)[1]}
            return (state.params, state.opt_state, state.replay.priorities, state.bonus), zeros

        ready = self.memory.can_sample(state.replay, self.config.learning_starts)
        if self.config.learn_after_reward:
            ready &= state.first_reward.update != NOT_YET
        return tracing.cond(ready, self._learn, wait, state, key)

    def _learn(self, state: DQNState, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """`gradient_steps` steps on batches from the replay buffer.

        **Returns:** the parameters, Adam's moments, the buffer's priorities and the bonus's state; means of the
        metrics. Not the buffer: a branch that returns it may copy it."""
        config, hparams, replay, frozen = self.config, state.hparams, state.replay, self._policy_frozen(state.frozen)
        flat = FlatTree(state.params, allowed=self.placement.mesh is None)
        optimizer = clipped_adam(hparams)

        def loss(params, batch, discount, target, weight):
            options = {"double": config.double, "delta": hparams["huber_delta"], "weight": weight}
            return dqn_loss(flat.restore(params), frozen, target, batch, self.policy, discount, **options)

        keys = jax.random.split(key, config.gradient_steps)
        uniform = config.replay == "uniform"  # batches that depend on no gradient step are sampled and read at once
        batches = jax.vmap(lambda key: self._sample(replay, key, hparams))(keys) if uniform else ()

        def gradient_step(carry, x):
            params, opt_state, priorities, bonus = carry
            key, sampled = x
            buffer = replay.replace(priorities=priorities)
            index, batch, discount, weight = sampled if uniform else self._sample(buffer, key, hparams)
            target = _target_params(config, self.policy, state.target, flat.restore(params))
            grads, (metrics, errors) = jax.grad(loss, has_aux=True)(params, batch, discount, target, weight)
            params, opt_state, norm = apply_gradients(optimizer, params, grads, opt_state, hparams["learning_rate"])
            if config.replay == "prioritized":
                priority = (errors + 1e-6) ** hparams["priority_alpha"]
                priorities = self.memory.prioritize(buffer, index, priority).priorities
            bonus, bonus_metrics = bonuses.learn(self.bonus, bonus, batch, jax.random.fold_in(key, bonuses.INIT))
            finite = jnp.isfinite(jnp.stack([metrics["loss"], norm, *bonus_metrics.values()]))
            metrics |= bonus_metrics | {"grad_norm": norm, "nonfinite": 1 - jnp.all(finite).astype(jnp.float32)}
            return (params, opt_state, priorities, bonus), metrics

        carry = (flat.flatten(state.params), flat.flatten_moments(state.opt_state), replay.priorities, state.bonus)
        (params, opt_state, priorities, bonus), metrics = tracing.scan(gradient_step, carry, (keys, batches))
        learned = (flat.restore(params), flat.restore_moments(opt_state), priorities, bonus)
        nonfinite = jnp.max(metrics.pop("nonfinite"))
        return learned, {name: jnp.mean(x) for name, x in metrics.items()} | {"nonfinite": nonfinite}

    def _sample(
        self, buffer: BufferState, key: jax.Array, hparams: dict[str, jax.Array]
    ) -> tuple[jax.Array, Transitions, jax.Array, jax.Array | None]:
        """A batch: indices in the buffer, the transitions, the discounts of the targets, and importance weights if
        any."""
        config, weight = self.config, None
        if config.replay == "prioritized":
            sampled = self.memory.draw_prioritized(buffer, key, config.batch_size)
            weight = importance_weights(sampled.probability, buffer.size, hparams["priority_beta"])
        else:
            sampled = self.memory.draw(buffer, key, config.batch_size)
        if config.n_step > 1:
            batch, discount = self.memory.n_step(buffer, sampled.index, config.n_step, hparams["gamma"])
        else:
            batch, discount = self.memory.get(buffer, sampled.index), hparams["gamma"]
        return sampled.index, self.placement.shard_batch(batch), discount, weight

    def _update_target(self, state: DQNState, params: Any) -> Any:
        """The target network after an update."""
        return _update_target(self.config, state.update, state.hparams["target_tau"], state.target, params)


# --- loss -------------------------------------------------------------------------------------------------------------


def q_targets(
    reward: Float[Array, " B"],
    terminated: Bool[Array, " B"],
    next_value: Float[Array, " B"],
    discount: float | jax.Array,
) -> Float[Array, " B"]:
    """Targets of the chosen actions' values: `reward + discount * next_value`, the reward alone where terminated.

    **Arguments:** `discount`, over all steps that `reward` sums, one number or `[B]`.
    """
    return reward + discount * jnp.where(terminated, 0.0, next_value)


def dqn_loss(
    params: Any,
    frozen: Any,
    target: Any,
    batch: Transitions,
    policy: Policy,
    discount: float | jax.Array,
    *,
    double: bool = False,
    delta: float | jax.Array = 1.0,
    weight: Float[Array, " B"] | None = None,
) -> tuple[jax.Array, tuple[dict[str, jax.Array], Float[Array, " B"]]]:
    """Mean Huber loss of the chosen actions' values against `q_targets`.

    **Arguments:** `target`, the parameters of the target network, which get no gradient; `batch`, leaves `[B, ...]`
    (an out-of-range action makes the loss nan); `discount`, see `q_targets`; `double`, whether `params` instead of
    `target` choose the action that `target` evaluates (1509.06461, eq. 4); `delta`, error beyond which the loss is
    linear; `weight`, per row (None: 1).
    **Returns:** the loss; its metrics, float32 scalars; and the absolute errors.
    """
    q = policy.q(params, frozen, batch.obs)
    action = jnp.where(batch.action < 0, q.shape[-1], batch.action)  # nan beyond the last one; -1 is not the last one
    chosen = jnp.take_along_axis(q, action[:, None], axis=-1, mode="fill")[:, 0]
    if double:
        next_q, online = policy.q_values_of((target, params), frozen, batch.next_obs)
        next_value = jnp.take_along_axis(next_q, jnp.argmax(online, axis=-1)[:, None], axis=-1)[:, 0]
    else:
        next_value = jnp.max(policy.q(target, frozen, batch.next_obs), axis=-1)
    q_target = jax.lax.stop_gradient(q_targets(batch.reward, batch.terminated, next_value, discount))
    losses = optax.losses.huber_loss(chosen, q_target, delta=delta)  # type: ignore[arg-type]
    loss = jnp.mean(losses if weight is None else weight * losses)
    metrics = {"loss": loss, "q_mean": jnp.mean(chosen), "target_mean": jnp.mean(q_target)}
    return loss, (metrics, jnp.abs(chosen - q_target))


# --- target network ---------------------------------------------------------------------------------------------------


def _target_params(config: DQNConfig, policy: Policy, target: Any, params: Any) -> Any:
    """The parameters that targets are computed with: the target network's, with the trained encoder if it is shared;
    the trained ones if there is no target network."""
    if not config.has_target:
        return params
    if config.share_encoder:
        return {**params, **{name: target[name] for name in policy.heads}}
    return target


def _update_target(config: DQNConfig, update: Int[Array, ""], tau: Float[Array, ""], target: Any, params: Any) -> Any:
    """The target network after update `update` (from 0), which moves by the fraction `tau` towards `params` when it is
    due."""
    if not config.has_target:
        return target
    if period := config.target_steps:  # whether the steps of this update pass a multiple of it
        due = crosses_multiple(update, config.num_envs * config.num_steps, period)
    else:
        due = (update + 1) % config.target_every == 0
    return jax.tree.map(
        lambda new, old: jnp.where(due, (tau * new + (1 - tau) * old).astype(old.dtype), old), params, target
    )


def crosses_multiple(update: Int[Array, "*B"], steps: int, period: int) -> Bool[Array, "*B"]:
    """Return whether the steps of update `update` (from 0, `steps` each) reach a multiple of `period`.

    **Arguments:** `update`, int32; `steps` and `period`, from 1 to 2^31 - 1. Exact although the product of both may
    have 62 bits: the remainder of a division by `period` is doubled and added to, one bit of `steps` after another."""
    divisor = jnp.uint32(period)
    residue = update.astype(jnp.uint32) % divisor
    left = jnp.zeros_like(residue)  # of all steps before the update
    for bit in f"{steps % period:b}":
        left = _remainder(left + left, divisor)
        left = _remainder(left + residue, divisor) if bit == "1" else left
    return left + jnp.uint32(min(steps, period)) >= divisor


def _remainder(x: jax.Array, divisor: jax.Array) -> jax.Array:
    """`x % divisor` for `x` below twice `divisor`, as sums of two remainders are."""
    return jnp.where(x >= divisor, x - divisor, x)


# --- exploration ------------------------------------------------------------------------------------------------------


NOT_YET = -1


@struct.dataclass
class FirstReward:
    """Update with the first reward; part of a learner's state if epsilon or gradient steps wait for it."""

    total: Float[Array, ""]
    """The sum of all positive rewards so far: costs of actions do not put the first reward off."""
    update: Int[Array, ""]
    """The update after which the sum was 1 or more; `NOT_YET` before that."""

    @classmethod
    def start(cls) -> FirstReward:
        return cls(jnp.float32(0), jnp.int32(NOT_YET))

    def after(self, reward: jax.Array, update: Int[Array, ""]) -> FirstReward:
        """With the rewards of one update."""
        total = self.total + jnp.sum(jnp.maximum(reward, 0))
        began = (self.update == NOT_YET) & (total >= 1)
        return FirstReward(total, jnp.where(began, update, self.update))


def decayed(
    update: Int[Array, ""], updates: float, begin: Any, end: Any, first: FirstReward | None = None
) -> Float[Array, ""]:
    """Epsilon in an update: falls linearly from `begin` to `end` over `updates` updates.

    **Arguments:** `first`, counts from the update after the first reward instead of from 0; until then it is `begin`.
    """
    if first is not None:
        update = jnp.where(first.update == NOT_YET, 0, update - first.update)
    return end + (begin - end) * linear_decay(update, updates)


def mixed_exploration(
    q: Float[Array, "*B A"],
    guide_q: Float[Array, "*B A"],
    obs: Any,
    epsilon: float | jax.Array,
    fraction: float | jax.Array,
) -> Categorical:
    """The best of the offered actions; with probability `epsilon` another one, which is the guide's best with
    probability `fraction`, else uniformly random (Du et al., 2302.06692)."""
    exploration = epsilon_greedy(q, obs, epsilon * (1 - fraction) / (1 - epsilon * fraction + 1e-9))
    mask = mask_of(obs)
    offered = guide_q if mask is None else jnp.where(mask, guide_q, -jnp.inf)
    best = jnp.argmax(offered, axis=-1, keepdims=True) == jnp.arange(q.shape[-1])
    guide_prob = epsilon * fraction
    probs = (1 - guide_prob) * exploration.probs + guide_prob * best
    return Categorical.masked(jnp.log(jnp.where(probs > 0, probs, 1.0)), probs > 0)


ALGORITHM = Algorithm(DQNConfig, make_dqn, network_q_policy)
