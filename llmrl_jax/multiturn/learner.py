"""Parts that the learners of written replies share: settings, state, and an update: play, credit, gradient steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh

from envs_jax import tracing
from envs_jax.env import Environment
from envs_jax.resets import VectorEnv
from llmrl_jax.core.checks import In, Needs, NonNegativeFloat, NonNegativeInt, PositiveInt
from llmrl_jax.core.learner import Learner
from llmrl_jax.kernels.permutations import permutations
from llmrl_jax.multiturn.credit import Credit
from llmrl_jax.multiturn.health import Watch, correlation, text_metrics
from llmrl_jax.multiturn.loss import Aggregate, Batch, Ratio, Room, totals, turn_loss, uses
from llmrl_jax.multiturn.policy import TurnPolicy
from llmrl_jax.multiturn.record import NOTHING, REPLY, Record
from llmrl_jax.multiturn.rollout import Conversation, Rows, Steps, Values, worlds_of
from llmrl_jax.parallel import Placement
from llmrl_jax.rl.gradient import (
    AdamConfig,
    accumulate,
    apply_gradients,
    clipped_adam,
    in_parts,
    linear_decay,
    traced_floats,
)
from llmrl_jax.rl.precision import RATIO_BOUNDS, SAMPLING_METRICS, exact_rounding, matmul_precision, platform_of
from llmrl_jax.rl.rollout import check_divisible, check_statistics, episode_metrics, task_names


@dataclass(frozen=True)
class TurnLearnerConfig(AdamConfig):
    """Settings that all learners of written replies have. Floats are traced (`state.hparams`)."""

    num_envs: PositiveInt = 64
    """Environments played at once, or with groups the episodes of an update; over a mesh, a multiple of its data x fsdp
    devices."""
    episode_tokens: PositiveInt = 512
    """The most tokens of an episode, observations and replies, with memory append: one in which no further turn fits
    ends there as by a time-out, and is counted (`cut_episodes`)."""
    epochs: PositiveInt = 2
    """Passes over the tokens of an update."""
    minibatches: PositiveInt = 4
    """Gradient steps per epoch; divides num_envs."""
    microbatches: PositiveInt = 1
    """Sequential parts in which a minibatch's gradient is computed, to save memory; divides the minibatch."""
    schedule: Literal["constant", "linear"] = "constant"
    """Whether the learning rate stays constant or falls linearly to zero over `schedule_updates`."""
    schedule_updates: Annotated[NonNegativeInt, Needs("schedule", "linear")] = 0
    """Updates after which a linear schedule reaches zero."""
    gamma: Annotated[float, In("[0, 1]")] = 0.99
    """Discount per turn."""
    clip_low: NonNegativeFloat = 0.2
    """Distance of a ratio below 1 beyond which the loss is clipped."""
    clip_high: NonNegativeFloat = 0.2
    """Distance of a ratio above 1 beyond which the loss is clipped; 0.28 in DAPO (2503.14476)."""
    ratio: Ratio = "token"
    """How probability ratios enter the loss, see `llmrl_jax.multiturn.loss.Ratio`."""
    aggregate: Aggregate = "token"
    """Whether each token or each reply has the same weight."""
    entropy_coef: NonNegativeFloat = 0.01
    """Weight of the entropy bonus, per nat and token."""
    kl_coef: NonNegativeFloat = 0.0
    """Weight of the KL to the base without its adapters, per nat and token."""
    echo_coef: NonNegativeFloat = 0.0
    """Weight of the cross-entropy of the environment's own tokens (ECHO, 2605.24517)."""
    invalid_reward: Annotated[float, In("(-inf, 0]")] = 0.0
    """Added to the reward of a reply that names no action, in learning only."""
    head_chunk: NonNegativeInt = 0
    """Tokens of a row whose logits are in memory at once; 0: all."""
    watch: bool = False
    """Whether the run stops where replies show a collapse (`llmrl_jax.multiturn.health.Watch`)."""

    critic: ClassVar[bool] = True
    """Whether a critic is fitted."""

    def __post_init__(self):
        super().__post_init__()
        if self.num_envs % (self.minibatches * self.microbatches):
            raise ValueError(
                f"{self.PREFIX}num_envs {self.num_envs} is not divided by {self.PREFIX}minibatches "
                f"{self.minibatches} x {self.PREFIX}microbatches {self.microbatches}"
            )
        if self.schedule == "linear" and self.schedule_updates < 1:
            raise ValueError(
                f"{self.PREFIX}schedule is linear; it needs {self.PREFIX}schedule_updates, the update at which it "
                "reaches zero"
            )


@struct.dataclass
class TurnState:
    """Everything that is carried from update to update."""

    params: Any
    frozen: Any
    """The base under the adapters, and the tables of the reply format."""
    opt_state: Any
    rows: Any
    """The conversations, in the middle of their turns; `()` for learners that begin new episodes with every update."""
    hparams: dict[str, jax.Array]
    key: jax.Array
    """The key of the whole run; update `i` uses `fold_in(key, i)`."""
    update: jax.Array
    """int32 `[]`, updates done."""
    watch: Any = ()
    """Memory of the watch; `()` without one."""
    starts: Any = ()
    """Starts that are played again (`llmrl_jax.multiturn.starts`); `()` without them."""


SPARED = (0.6, 0.0)
"""The shares of the room for earlier tokens that gradients leave out where no row of a part needs it. Each is compiled
by itself."""
PART = 2048
"""Tokens in a part of a gradient on a CPU."""
TURN = 4
"""Tokens of replies for each value of a turn, at least, in the sizes that are usual."""
WORTH = 0.8
"""The share of a row's length up to which a shorter one is worth the time that its gradient takes to compile."""


class TurnLearner:
    """An update of a policy that writes. Subclasses say how episodes are played and credited.

    **Arguments:** `config`; `policy`; `env`, one environment with text, wrapped in `EpisodeStatistics`, not batched;
    `env_params`; `mesh`, over whose axes data and fsdp the environments are split.
    **Raises:** `ValueError` if sizes do not divide, an episode of two turns does not fit, or an option has no effect.
    """

    def __init__(self, config: Any, policy: TurnPolicy, env: Environment, env_params: Any, mesh: Mesh | None):
        check_statistics(env, env_params)
        part = config.num_envs // config.minibatches // config.microbatches
        check_divisible(mesh, {f"{config.PREFIX}num_envs": config.num_envs, "rows of a gradient": part})
        if config.kl_coef and policy.model.lora is None:
            raise ValueError(
                f"{config.PREFIX}kl_coef is {config.kl_coef}, but all weights are trained, so there is no base to "
                "compare with: train adapters, or leave it 0"
            )
        self.config, self.policy, self.env, self.env_params = config, policy, env, env_params
        self.placement = Placement(mesh)
        self.task_names = task_names(env)
        self.conversation = self.make_conversation()
        self.watch = Watch() if config.watch else None

    # --- what a learner decides ---------------------------------------------------------------------------------------

    def make_conversation(self) -> Conversation:
        """The loop over tokens."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Tokens of each row, or episode, in an update."""
        raise NotImplementedError

    @property
    def values(self) -> Values:
        """The tokens of which values are used."""
        return None

    def first_rows(self, key: jax.Array) -> Any:
        """The conversations before the first update."""
        return ()

    def begin(self, state: TurnState, key: jax.Array) -> Rows:
        """The conversations at the beginning of an update."""
        raise NotImplementedError

    def credit(self, record: Record, steps: Steps, hparams: dict[str, Any]) -> tuple[Credit, dict[str, jax.Array]]:
        """Credit of the replies, and metrics. **Arguments:** `record`, with the rewards that are learned from."""
        raise NotImplementedError

    def keep(self, rows: Rows, record: Record, credit: Credit) -> Any:
        """The conversations that are carried to the next update."""
        return ()

    def hparams(self) -> dict[str, jax.Array]:
        """The traced settings."""
        return traced_floats(self.config)

    def first_starts(self, key: jax.Array) -> Any:
        """The stored starts before the first update."""
        return ()

    def keep_starts(
        self, state: TurnState, key: jax.Array, begun: Rows, record: Record, steps: Steps
    ) -> tuple[Any, dict[str, jax.Array]]:
        """The stored starts for the next update, and metrics. **Arguments:** `key`, that of `begin`, and `begun`, what
        it returned."""
        return (), {}

    # --- the update ---------------------------------------------------------------------------------------------------

    def learner(self) -> Learner:
        """The `Learner`. Its metrics are those of the loss (means over gradient steps), `grad_norm`, of the first
        minibatch `first_ratio_error`, `sampling_kl` and `sampling_near_one`, of the play `turns`, `valid`, `truncated`,
        `reply_length`, `utilisation` and `cut_episodes`, those of `episode_metrics` and `text_metrics`, `agreement`
        (the correlation of return and success), the learner's own, and those of the watch."""
        precision = matmul_precision(self.policy.dtype, platform_of(self.placement.mesh))
        # in float32 the sums of one token and of whole rows have another order, in logits that the temperature divides
        bound = max(RATIO_BOUNDS[precision], 1e-4 / min(1.0, self.policy.temperature))
        bounds = {"nonfinite": 0.0, "first_ratio_error": bound}
        return Learner(
            self.init,
            self.update,
            self.config.num_envs * self.steps,
            bounds,
            unit="tokens",
            alarms={} if self.watch is None else self.watch.alarms,
            compiler_options=exact_rounding(self.policy.dtype),
            shared=("hparams",),
        )

    def init(self, key: jax.Array) -> TurnState:
        env_key, policy_key, run_key = jax.random.split(key, 3)
        placement = self.placement
        params, frozen = placement.device_put(self.policy.init(policy_key))
        hparams = self.hparams()
        opt_state = placement.device_put(clipped_adam(hparams).init(params))
        watch = () if self.watch is None else self.watch.init()
        hparams, run_key, update, watch = placement.replicate((hparams, run_key, jnp.int32(0), watch))
        rows = self.shard(self.first_rows(env_key))
        starts = placement.replicate(self.first_starts(env_key))
        return TurnState(params, frozen, opt_state, rows, hparams, run_key, update, watch, starts)

    def shard(self, rows: Any) -> Any:
        """Conversations split over the devices, with the pool of episodes on each."""
        if rows == ():
            return rows
        placement, state = self.placement, rows.env_state
        state = state.replace(env=placement.shard_batch(state.env), pool=placement.replicate(state.pool))
        split = placement.shard_batch(rows.replace(env_params=(), env_state=()))
        return split.replace(env_params=placement.replicate(rows.env_params), env_state=state)

    def update(self, state: TurnState) -> tuple[TurnState, dict[str, jax.Array]]:
        """Play, credit, gradient steps."""
        begin_key, play_key, shuffle_key = jax.random.split(jax.random.fold_in(state.key, state.update), 3)
        begun = self.begin(state, begin_key)
        before = begun.length
        rows, record, steps = self.conversation.play(state.params, state.frozen, begun, play_key, self.steps)
        fine = jnp.where(record.acts & ~record.valid, state.hparams["invalid_reward"], 0.0)
        credit, report = self.credit(record.replace(reward=record.reward + fine), steps, state.hparams)
        places = jnp.arange(record.token.shape[1])
        # the first token of a rollout was drawn at the end of the last one, by the parameters before its update
        new, fresh = places >= before[:, None], places > before[:, None]
        batch = Batch(record, credit, credit.learn & fresh, new & (record.role != NOTHING))
        params, opt_state, metrics = self._learn(state, batch, shuffle_key)
        metrics |= report | self._report(record, steps, before, state.frozen["replies"])
        rows = self.shard(self.keep(rows, record, credit))
        starts, counted = self.keep_starts(state, begin_key, begun, record, steps)
        metrics |= counted
        if self.watch is not None:
            state = state.replace(watch=self.watch.update(state.watch, metrics))
            metrics |= self.watch.metrics(state.watch)
        state = state.replace(params=params, opt_state=opt_state, rows=rows, starts=starts, update=state.update + 1)
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    def _learn(self, state: TurnState, batch: Batch, key: jax.Array) -> tuple[Any, Any, dict[str, jax.Array]]:
        """`epochs` x `minibatches` gradient steps."""
        config, hparams = self.config, state.hparams
        batch = self.placement.replicate(batch)
        optimizer, count = clipped_adam(hparams), config.epochs * config.minibatches
        order = permutations(key, config.epochs, config.num_envs).reshape(count, -1)
        rate = hparams["learning_rate"]
        if config.schedule == "linear":
            rate = rate * linear_decay(state.update, config.schedule_updates)
        of_first = {"ratio_error": "first_ratio_error"} | {name: name for name in SAMPLING_METRICS}

        def gradient_step(carry, i):
            params, opt_state = carry
            minibatch = jax.tree.map(lambda x: x[order[i]], batch)
            minibatch = self.normalised(minibatch)
            grads, metrics = self._gradient(params, state.frozen, minibatch, hparams)
            params, opt_state, norm = apply_gradients(optimizer, params, grads, opt_state, rate)
            return (params, opt_state), metrics | {"grad_norm": norm}

        (params, opt_state), metrics = tracing.scan(gradient_step, (state.params, state.opt_state), jnp.arange(count))
        means = {name: jnp.mean(x) for name, x in metrics.items() if name not in of_first}
        means |= {new: metrics[old][0] for old, new in of_first.items()}
        # a minibatch may have no token that the present parameters wrote
        compared = jnp.any(batch.fresh[order[0]])
        means |= {name: jnp.where(compared, means[name], jnp.nan) for name in SAMPLING_METRICS}
        finite = jnp.all(jnp.isfinite(jnp.stack([metrics["loss"], metrics["grad_norm"]])))
        return params, opt_state, means | {"nonfinite": ~finite}

    def normalised(self, batch: Batch) -> Batch:
        """A minibatch with the advantages that its gradient step uses."""
        return batch

    def _gradient(self, params: Any, frozen: Any, batch: Batch, hparams: Any) -> tuple[Any, dict[str, jax.Array]]:
        """The gradient over a minibatch, in parts, and the loss's metrics."""
        total, (count, length) = totals(batch), batch.record.token.shape
        parts, rooms = self._parts(count, length), self._rooms(length)

        def in_room(room):
            def gradient(params, rows):
                rows = jax.tree.map(lambda x: x[:, : room.tokens], rows)

                def loss(params):
                    return turn_loss(self.policy, params, frozen, rows, total, self.config, hparams, room)

                return jax.grad(loss, has_aux=True)(params)

            return gradient

        def part(rows):
            rows = self.placement.shard_batch(rows)
            needed = (rows.record.role != NOTHING, *uses(rows, self.config))
            most = jnp.stack([tracing.largest_of_runs(jnp.max(jnp.sum(x, axis=1))) for x in needed])
            # the first room that is large enough; the last one always is
            small = jnp.any(most > jnp.array(rooms[:-1]).reshape(-1, len(needed)), axis=1)
            return tracing.switch(jnp.sum(jnp.cumprod(small)), list(map(in_room, rooms)), params, rows)

        if parts == 1:
            return part(batch)
        # in the order in which every part gets neighbours in length
        order = jnp.argsort(jnp.sum(batch.record.role != NOTHING, axis=1)).reshape(parts, -1).T.reshape(-1)
        batch = jax.tree.map(lambda x: x[order], batch)
        zero = jax.tree.map(jnp.zeros_like, params)
        grads, metrics = accumulate(part, zero, in_parts(batch, parts))
        sums = {name: jnp.sum(x) for name, x in metrics.items()}
        return grads, sums | {"ratio_error": jnp.max(metrics["ratio_error"])}

    def _parts(self, rows: int, length: int) -> int:
        """The number of parts in which the gradient of a minibatch is computed: microbatches, and on one CPU parts
        whose activations stay in its caches and whose rows are of similar length."""
        parts, mesh = self.config.microbatches, self.placement.mesh
        if tracing.platform() != "cpu" or (mesh is not None and mesh.size > 1):
            return parts
        rows //= parts
        return parts * next(
            n for n in range(1, rows + 1) if rows % n == 0 and (rows // n * length <= PART or n == rows)
        )

    def _rooms(self, length: int) -> list[Room]:
        """The sizes for which gradients are compiled: the first one in which a part's rows fit is chosen."""
        continued = bool(self.conversation.held)
        spare = length - self.steps if continued else self.steps
        sizes = {length - math.floor(spare * share) for share in SPARED}
        widths = sorted(width for width in sizes if width == length or width <= WORTH * length)
        # of earlier tokens, only those of the open turn are learned from, and with `echo_coef` the next one is read
        read = min(length, self.steps + self.policy.reply_tokens + 1) if continued else length
        by_turn = self.values == "turn"
        # before each reply there is a token of the environment
        most = Room(length, read, read // 2 + 1 if by_turn else read)
        few = read // 2
        return [*(Room(width, min(few, width), max(1, few // TURN) if by_turn else few) for width in widths), most]

    def _report(self, record: Record, steps: Steps, before: jax.Array, replies: Any) -> dict[str, jax.Array]:
        """Metrics of the play: of the tokens behind `before`."""
        new = jnp.arange(record.token.shape[1]) >= before[:, None]
        acts, written = record.acts & new, (record.role == REPLY) & new
        used, turns = (record.role != NOTHING) & new, jnp.sum(acts)
        many = jnp.maximum(turns, 1)
        closed = replies.closed[replies.step(record.state, record.token)]
        info, done = steps.info, steps.done | steps.cut  # an episode that is cut for lack of room has failed
        agreement = {}
        if "success" in info:
            info = {**info, "success": info["success"].astype(bool) & steps.done}
            returns, success = (info[name].astype(jnp.float32) for name in ("episode_return", "success"))
            agreement = {"agreement": correlation(returns, success, done)}
        return {
            "turns": turns,
            "valid": jnp.sum(record.valid & new) / many,
            "truncated": jnp.sum(acts & (record.left == 1) & ~closed) / many,
            "reply_length": jnp.sum(written) / many,
            "utilisation": jnp.sum(used) / steps.computed,
            "cut_episodes": jnp.sum(steps.cut),
            **episode_metrics(info, done, self.task_names),
            **text_metrics(record, new, replies, self.policy.reply_tokens),
            **agreement,
        }


def pool_of(config: Any, env: Environment) -> VectorEnv:
    """The batch of environments of a learner whose episodes continue."""
    return worlds_of(env, config.num_envs, config.pool_size)
