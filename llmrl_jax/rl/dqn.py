"""Deep Q-learning (Mnih et al., Nature 518, 2015), for any policy that returns a value for every action.

One update plays `num_steps` steps in `num_envs` environments, stores them, and takes `gradient_steps` gradient steps
on batches from the replay memory. Options: double Q-learning (van Hasselt et al., 1509.06461), a target network copied
periodically or by Polyak averaging, n-step returns, prioritised replay (Schaul et al., 1511.05952), actions drawn
epsilon-greedily or from a softmax over the values. The state includes the replay memory, so the learner resumes, vmaps
and shards as PPO does.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float

from envs_jax import tracing
from envs_jax.env import Environment
from envs_jax.resets import VectorEnv
from llmrl_jax.core.learner import Learner
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.parallel import Placement
from llmrl_jax.parallel.memory import available, nbytes
from llmrl_jax.rl import bonus as bonuses
from llmrl_jax.rl.bonus import Bonus
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.dqn_config import DQNConfig, check
from llmrl_jax.rl.dqn_loss import dqn_loss
from llmrl_jax.rl.dqn_target import follow, network_of_targets
from llmrl_jax.rl.exploration import FirstReward, decayed, guided
from llmrl_jax.rl.gradient import FlatTree, clipped_adam, descend, traced_floats
from llmrl_jax.rl.policy import QPolicy, epsilon_greedy, over_offered
from llmrl_jax.rl.q_network import network_q_policy
from llmrl_jax.rl.registry import Algorithm
from llmrl_jax.rl.replay import COUNTERS, Replay, Ring, importance_weights
from llmrl_jax.rl.rollout import SHARED, Runner, episode_info, episode_metrics, place, start, task_names, with_pool


@struct.dataclass
class DQNState:
    """Everything that DQN carries from update to update, including the replay memory."""

    params: Any
    """Trained parameters."""
    frozen: Any
    """Parameters that the policy reads and no update changes."""
    target: Any
    """The parameters of the target network; `()` if there is none."""
    opt_state: Any
    """Adam's moments."""
    replay: Ring
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
    """When the first reward was earned, if epsilon waits for it; else `()`."""


GUIDE = 0x61DE
"""Folded into the key of the parameters for those of a guide."""


# --- the learner ------------------------------------------------------------------------------------------------------


def make_dqn(
    config: DQNConfig,
    env: Environment,
    env_params: Any,
    policy: QPolicy,
    mesh: Mesh | None = None,
    bonus: Bonus | None = None,
    guide: QPolicy | None = None,
) -> Learner:
    """Build DQN as a `Learner`.

    **Arguments:** `config`; `env`, one environment, wrapped (with `EpisodeStatistics`), not batched; `env_params`;
    `policy`; `mesh`, over whose axes data and fsdp the environments, the memory and batches are split; `bonus`, which
    changes the rewards of steps before they are stored (novelty, shaping), and learns with every gradient step;
    `guide`, a policy that makes the fraction `config.guide_fraction` of random actions (its `init` gives its trained
    parameters, which are kept in `state.frozen`).
    **Returns:** the learner. Its metrics are those of `dqn_loss` (means over the gradient steps), `grad_norm` (before
    clipping), `entropy` and `value_mean` of the acting policy, `epsilon` with `acting` epsilon, `replay_size`,
    `nonfinite` (1 if a loss, a gradient or a metric of the bonus's own learning was not finite, bounded by 0), those of
    `episode_metrics`, and the bonus's.
    Episode returns are sums of the environment's rewards, without the bonus.
    **Raises:** `ValueError` if sizes do not divide (the arithmetic is shown), the environment does not report its
    episodes, an option of the bonus was changed that DQN does not read, or the policy cannot share its encoder.
    """
    check(config, env, env_params, mesh)
    if config.share_encoder and not getattr(policy, "heads", ()):
        raise ValueError("dqn.share_encoder is True, but the network does not name its heads: leave it out")
    if guide is not None and config.acting != "epsilon":
        raise ValueError(f"dqn.acting is {config.acting}; a guide needs epsilon")
    if bonus is not None:
        bonus.check_one_reward()
    dqn = DQN(config, env, env_params, policy, Placement(mesh), bonus, guide)
    shared = (*SHARED, *COUNTERS)
    return Learner(dqn.init, dqn.update, config.num_envs * config.num_steps, {"nonfinite": 0.0}, shared=shared)


@struct.dataclass
class Played:
    """Per-step records that are not stored in the replay memory; leaves `[T, N]`."""

    done: jax.Array
    truncated: jax.Array
    value: jax.Array
    """The highest value of an action."""
    entropy: jax.Array
    """Entropy of the distribution that the action was drawn from."""
    info: dict[str, jax.Array]


class DQN:
    """DQN's update and its parts; `make_dqn` documents the arguments."""

    def __init__(
        self,
        config: DQNConfig,
        env: Environment,
        env_params: Any,
        policy: QPolicy,
        placement: Placement,
        bonus: Bonus | None = None,
        guide: QPolicy | None = None,
    ):
        self.config, self.env_params, self.policy, self.placement = config, env_params, policy, placement
        self.bonus, self.guide = bonus, guide
        self.task_names = task_names(env)
        self.vector = VectorEnv(
            env, config.num_envs, policy=config.reset, pool_size=config.pool_size, reset_ratio=config.reset_ratio
        )
        prioritized = config.replay == "prioritized"
        self.memory = Replay(config.capacity, rows=config.num_envs, prioritized=prioritized, stacked=env.stacked)

    def init(self, key: jax.Array) -> DQNState:
        env_key, policy_key, run_key = jax.random.split(key, 3)
        runner = start(self.vector, self.env_params, self.policy, env_key)
        params, frozen = self.placement.settled(self.policy.init(policy_key, runner.obs))
        target = jax.tree.map(jnp.copy, params) if self.config.has_target else ()
        if self.guide is not None:
            guide_key = jax.random.fold_in(policy_key, GUIDE)
            frozen = {"own": frozen, "guide": self.placement.settled(self.guide.init(guide_key, runner.obs))}
        hparams = self._hparams()
        opt_state = self.placement.settled(clipped_adam(hparams).init(params))
        obs = jax.tree.map(lambda x: x[0], runner.obs)
        action, reward, flag = jnp.int32(0), jnp.float32(0), jnp.bool(False)
        truncated = flag if self.config.n_step > 1 else ()
        step = jax.eval_shape(lambda: Transitions(obs, action, reward, obs, flag, truncated))
        self._check_room(step)
        # Inside jit, so that no device ever holds the whole memory
        replay = jax.jit(lambda: self._placed(self.memory.init(step)))()
        counters = self.placement.whole((hparams, run_key, jnp.int32(0)))
        first = self.placement.whole(FirstReward.start()) if self.config.epsilon_after_reward else ()
        state = DQNState(params, frozen, target, opt_state, replay, place(runner, self.placement), *counters)
        state = state.replace(first_reward=first)
        if self.bonus is None:
            return state
        bonus = self.bonus.init(jax.random.fold_in(key, bonuses.INIT), runner.obs)
        return state.replace(bonus=bonuses.place(bonus, self.placement))

    def _check_room(self, step: Any) -> None:
        """**Raises** `ValueError` for a memory of such steps that is larger than the machine's: a CPU would notice when
        it is used, not when it is allocated."""
        needed, there = nbytes(jax.eval_shape(self.memory.init, step)), available(self.placement.row_devices)
        if there is not None and needed > there:
            raise ValueError(
                f"a replay memory of {self.config.capacity} steps takes {needed / 1e9:.1f} GB, but there are "
                f"{there / 1e9:.1f} GB: lower dqn.replay_size, which is {self.config.replay_size}"
            )

    def _hparams(self) -> dict[str, jax.Array]:
        """The config's floats, without those that nothing reads: checkpoints of earlier versions lack them."""
        unread = {"guide_fraction": self.guide is None, "reward_clip": self.config.reward_clip == math.inf}
        return {name: x for name, x in traced_floats(self.config).items() if not unread.get(name)}

    def update(self, state: DQNState) -> tuple[DQNState, dict[str, jax.Array]]:
        """Play, store the steps, take gradient steps, update the target network."""
        pool_key, play_key, learn_key = jax.random.split(jax.random.fold_in(state.key, state.update), 3)
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
            "replay_size": self.memory.held(replay),
            **({"epsilon": self._epsilon(state)} if self.config.acting == "epsilon" else {}),
            **episode_metrics(played.info, played.done, self.task_names),
        }
        state = state.replace(
            params=params,
            target=self._followed(state, params),
            opt_state=opt_state,
            replay=self._placed(replay.replace(priorities=priorities)),
            runner=place(runner, self.placement),
            update=state.update + 1,
            bonus=bonuses.place(bonus, self.placement),
        )
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    def filled(self, state: DQNState, steps: Transitions) -> DQNState:
        """The state with recorded steps in its memory, leaves `[T, N, ...]`, rewards as they are learned from."""
        ended = steps.terminated | steps.truncated
        steps = steps if self.config.n_step > 1 else steps.replace(truncated=())
        return state.replace(replay=self._placed(self.memory.add(state.replay, steps, ended)))

    def learn(self, state: DQNState) -> tuple[DQNState, dict[str, jax.Array]]:
        """An update without play: gradient steps on the memory as it is, and the target network. For a memory that was
        filled from recorded steps."""
        learn_key = jax.random.split(jax.random.fold_in(state.key, state.update), 3)[2]
        (params, opt_state, priorities, bonus), metrics = self._learn(state, learn_key)
        replay = self._placed(state.replay.replace(priorities=priorities))
        target = self._followed(state, params)
        state = state.replace(params=params, target=target, opt_state=opt_state, replay=replay, bonus=bonus)
        return state.replace(update=state.update + 1), metrics

    def _placed(self, replay: Ring) -> Ring:
        return self.memory.place(replay, self.placement.rows, self.placement.whole)

    # --- play ---------------------------------------------------------------------------------------------------------

    def _own(self, frozen: Any) -> Any:
        """The policy's part of `state.frozen`."""
        return frozen if self.guide is None else frozen["own"]

    def _epsilon(self, state: DQNState) -> Float[Array, ""]:
        """The probability of a random action in an update."""
        begin, end = state.hparams["epsilon_start"], state.hparams["epsilon_end"]
        updates = self.config.epsilon_steps / (self.config.num_envs * self.config.num_steps)
        return decayed(state.update, updates, begin, end, state.first_reward or None)

    def _distribution(self, state: DQNState, q: Float[Array, "N A"], obs: Any) -> Categorical:
        if self.config.acting != "epsilon":
            return over_offered(q / state.hparams["temperature"], obs)
        if self.guide is None:
            return epsilon_greedy(q, obs, self._epsilon(state))
        params, frozen = state.frozen["guide"]
        guide_q = self.guide.q(params, frozen, obs)
        return guided(q, guide_q, obs, self._epsilon(state), state.hparams["guide_fraction"])

    def _play(self, state: DQNState, pool_key: jax.Array, key: jax.Array) -> tuple[Runner, Transitions, Played]:
        """`num_steps` steps in every environment: the transitions to store and the records, leaves `[T, N, ...]`."""
        config, rows = self.config, self.placement.rows

        def step(runner, t):
            act_key, step_key = jax.random.split(jax.random.fold_in(key, t))
            q = self.policy.q(state.params, self._own(state.frozen), runner.obs)
            distribution = self._distribution(state, q, runner.obs)
            action = distribution.sample(act_key)
            obs, env_state, reward, terminated, truncated, info = self.vector.step(
                step_key, runner.env_state, action, runner.env_params
            )
            done = terminated | truncated
            ends = terminated if config.bootstrap_truncation else done
            cut = truncated if config.n_step > 1 else ()
            seen = Transitions(runner.obs, action, reward, info["final_observation"], ends, cut)
            played = Played(done, truncated, jnp.max(q, axis=-1), distribution.entropy(), episode_info(info))
            runner = runner.replace(env_state=env_state, obs=rows(obs), first=rows(done))
            return runner, (seen, played)

        runner = with_pool(self.vector, state.runner, pool_key, state.update, config.pool_every)
        runner, (steps, played) = tracing.scan(step, runner, jnp.arange(config.num_steps))
        return runner, steps, played

    def _rewarded(
        self, state: DQNState, steps: Transitions, played: Played
    ) -> tuple[DQNState, Transitions, dict[str, jax.Array]]:
        """The steps with the rewards used for learning, and the metrics of the bonus, if there is one."""
        report: dict[str, jax.Array] = {}
        if self.bonus is not None:
            state, steps, report = self._with_bonus(state, steps, played)
        if self.config.reward_clip < math.inf:
            most = state.hparams["reward_clip"]
            steps = steps.replace(reward=jnp.clip(steps.reward, -most, most))
        if self.config.epsilon_after_reward:
            state = state.replace(first_reward=state.first_reward.after(steps.reward, state.update + 1))
        return state, steps, report

    def _with_bonus(
        self, state: DQNState, steps: Transitions, played: Played
    ) -> tuple[DQNState, Transitions, dict[str, jax.Array]]:
        assert self.bonus is not None
        seen = steps.replace(truncated=played.truncated)
        bonus, reward, report = bonuses.one_reward(self.bonus, state.bonus, seen, state.hparams["gamma"])
        return state.replace(bonus=bonus), steps.replace(reward=reward), report

    # --- learn --------------------------------------------------------------------------------------------------------

    def _learn_when_ready(self, state: DQNState, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """`_learn`, once the memory holds enough; before that nothing changes, and metrics are 0."""
        if not self.config.learning_starts:
            return self._learn(state, key)

        def wait(state, key):
            zeros = {name: jnp.float32(0) for name in jax.eval_shape(self._learn, state, key)[1]}
            return (state.params, state.opt_state, state.replay.priorities, state.bonus), zeros

        ready = self.memory.can_sample(state.replay, self.config.learning_starts)
        return tracing.cond(ready, self._learn, wait, state, key)

    def _learn(self, state: DQNState, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """`gradient_steps` steps on batches from the memory.

        **Returns:** the parameters, Adam's moments, the memory's priorities and the bonus's state; means of the
        metrics. Not the memory: a branch that returns it may copy it."""
        config, hparams, replay, frozen = self.config, state.hparams, state.replay, self._own(state.frozen)
        flat = FlatTree(state.params, allowed=self.placement.mesh is None)
        optimizer = clipped_adam(hparams)

        def loss(params, batch, discount, target, weight):
            options = {"double": config.double, "delta": hparams["huber_delta"], "weight": weight}
            return dqn_loss(flat.restore(params), frozen, target, batch, self.policy, discount, **options)

        keys = jax.random.split(key, config.gradient_steps)
        known = config.replay == "uniform"  # batches that depend on no gradient step are drawn and read at once
        batches = jax.vmap(lambda key: self._sample(replay, key, hparams))(keys) if known else ()

        def gradient_step(carry, x):
            params, opt_state, priorities, bonus = carry
            key, drawn = x
            ring = replay.replace(priorities=priorities)
            index, batch, discount, weight = drawn if known else self._sample(ring, key, hparams)
            target = network_of_targets(config, self.policy, state.target, flat.restore(params))
            grads, (metrics, errors) = jax.grad(loss, has_aux=True)(params, batch, discount, target, weight)
            params, opt_state, norm = descend(optimizer, params, grads, opt_state, hparams["learning_rate"])
            if config.replay == "prioritized":
                priority = (errors + 1e-6) ** hparams["priority_alpha"]
                priorities = self.memory.prioritize(ring, index, priority).priorities
            bonus, own = self._learn_bonus(bonus, batch, key)
            finite = jnp.isfinite(jnp.stack([metrics["loss"], norm, *own.values()]))
            metrics |= own | {"grad_norm": norm, "nonfinite": 1 - jnp.all(finite).astype(jnp.float32)}
            return (params, opt_state, priorities, bonus), metrics

        carry = (flat.flatten(state.params), flat.flatten_moments(state.opt_state), replay.priorities, state.bonus)
        (params, opt_state, priorities, bonus), metrics = tracing.scan(gradient_step, carry, (keys, batches))
        learned = (flat.restore(params), flat.restore_moments(opt_state), priorities, bonus)
        nonfinite = jnp.max(metrics.pop("nonfinite"))
        return learned, {name: jnp.mean(x) for name, x in metrics.items()} | {"nonfinite": nonfinite}

    def _learn_bonus(self, state: Any, batch: Transitions, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """A gradient step of the bonus on a batch from the memory, if there is one."""
        if self.bonus is None:
            return state, {}
        if isinstance(batch.truncated, tuple):
            batch = batch.replace(truncated=jnp.zeros_like(batch.terminated))
        return self.bonus.update(state, batch, jax.random.fold_in(key, bonuses.INIT))

    def _sample(
        self, ring: Ring, key: jax.Array, hparams: dict[str, jax.Array]
    ) -> tuple[jax.Array, Transitions, jax.Array, jax.Array | None]:
        """A batch: indices in the memory, the transitions, the discounts of the targets, and importance weights if
        any."""
        config, weight = self.config, None
        if config.replay == "prioritized":
            drawn = self.memory.draw_prioritized(ring, key, config.batch_size)
            weight = importance_weights(drawn.probability, ring.size, hparams["priority_beta"])
        else:
            drawn = self.memory.draw(ring, key, config.batch_size)
        if config.n_step > 1:
            batch, discount = self.memory.n_step(ring, drawn.index, config.n_step, hparams["gamma"])
        else:
            batch, discount = self.memory.get(ring, drawn.index), hparams["gamma"]
        return drawn.index, self.placement.rows(batch), discount, weight

    def _followed(self, state: DQNState, params: Any) -> Any:
        """The target network after an update."""
        return follow(self.config, state.update, state.hparams["target_tau"], state.target, params)


ALGORITHM = Algorithm(DQNConfig, make_dqn, network_q_policy)
