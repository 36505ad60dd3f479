"""COMBO (Yu et al., 2102.08363): conservative values on recorded steps and on those that a learned model imagines.

First an ensemble of learned dynamics (`Dynamics`) learns from the data. Then, every `rollout_every` gradient steps, the
policy plays a few steps in the model from recorded states, and half of every batch is sampled from them. Critics lower
a soft maximum of their values over the states of both, and raise those of recorded actions. Hyper-parameters are
OfflineRL-Kit's, but for fewer rollouts, no weight decay of the model, and the model's steps, which are counted here and
stopped by its error there. `docs/offline-rl.md` lists what else differs.
The soft maximum is over all proposals with their densities, as in `cql` (OfflineRL-Kit's is over three values), so the
weights of its tables do not carry over. The model learns terminal states, which the authors know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs_jax import tracing
from llmrl_jax.core.checks import NonNegativeFloat, PositiveInt, Width, between
from llmrl_jax.rl.actors import init_ensemble, mlp
from llmrl_jax.rl.cql import ConservativeConfig, proposed, soft_gap
from llmrl_jax.rl.gradient import TrainState
from llmrl_jax.rl.offline import Context, needs_continuous
from llmrl_jax.rl.offline_data import ActionKind, Batch, batch_of
from llmrl_jax.rl.registry import OfflineAlgorithm
from llmrl_jax.rl.replay import BufferState, Replay
from llmrl_jax.rl.sac import SoftActorCritic


LOW, HIGH = -10.0, 0.5
"""First bounds of the log of a variance; both learn."""
_BOUND_WEIGHT = 0.01
"""Weight of the distance of the bounds in the loss."""


@struct.dataclass
class Prediction:
    """Predictions of members; leaves `[*K, B, ...]`."""

    mean: jax.Array
    """Change of features and, last, the reward, `[*K, B, n + 1]`."""
    log_variance: jax.Array
    logit: jax.Array
    """Log-odds that the step ends in a terminal state, `[*K, B]`."""


class Dynamics:
    """An ensemble of learned dynamics: each member predicts the change of the features, the reward and the end of a
    step.

    A member is an MLP that gives a Gaussian of the change of features and of the reward (Chua et al., 1805.12114; Yu et
    al., 2005.13239), and the log-odds of a terminal state. Sentence vectors of instructions are inputs only."""

    def __init__(self, members: int, hidden: tuple[int, ...], width: int):
        """**Arguments:** `width`, numbers of an action."""
        self.members, self.hidden, self.width = members, hidden, width

    def init(self, key: jax.Array, inputs: int, features: int) -> dict[str, Any]:
        """Initial parameters. **Arguments:** `inputs`, features with sentence vectors; `features`, without."""
        nets = init_ensemble(key, self.members, inputs + self.width, self.hidden, 2 * (features + 1) + 1)
        bounds = {
            "low": jnp.full((self.members, features + 1), LOW),
            "high": jnp.full((self.members, features + 1), HIGH),
        }
        return {"nets": nets, **bounds}

    def member(self, params: Any, x: Float[Array, "B n"], action: Float[Array, "B D"]) -> Prediction:
        """The prediction of one member; leaves have no axis of members."""
        output = mlp(params["nets"], jnp.concatenate([x, action], axis=-1), "silu")
        mean, log_variance = jnp.split(output[..., :-1], 2, axis=-1)
        log_variance = params["high"] - jax.nn.softplus(params["high"] - log_variance)
        log_variance = params["low"] + jax.nn.softplus(log_variance - params["low"])
        return Prediction(mean, log_variance, output[..., -1])

    def loss(self, params: Any, rows: Batch) -> jax.Array:
        """The negative log-likelihood of each member's own rows, leaves `[K, B, ...]`, summed over members."""

        def member_loss(params: Any, rows: Batch) -> jax.Array:
            prediction = self.member(params, rows.obs, rows.action)
            error = prediction.mean - _model_target(rows)
            gaussian = jnp.mean(error**2 * jnp.exp(-prediction.log_variance) + prediction.log_variance)
            ends = rows.terminated.astype(jnp.float32)
            end = jnp.mean(jax.nn.softplus(prediction.logit) - ends * prediction.logit)
            return gaussian + end + _BOUND_WEIGHT * (jnp.sum(params["high"]) - jnp.sum(params["low"]))

        return jnp.sum(jax.vmap(member_loss)(params, rows))

    def errors(self, params: Any, rows: Batch, counts: Bool[Array, " B"]) -> Float[Array, " K"]:
        """The mean squared error of each member's mean on the same rows, `[B, ...]`, of which some count."""
        prediction = jax.vmap(lambda net: self.member(net, rows.obs, rows.action))(params)
        squares = jnp.mean((prediction.mean - _model_target(rows)) ** 2, axis=2)
        return jnp.mean(squares, axis=1, where=counts)

    def imagined(
        self, params: Any, elite: Int[Array, " E"], x: jax.Array, action: jax.Array, key: jax.Array, features: int
    ) -> Batch:
        """A step from each row, sampled from the prediction of a random one of the best members."""
        member_key, noise_key, end_key = jax.random.split(key, 3)
        prediction = jax.vmap(lambda i: self.member(jax.tree.map(lambda p: p[i], params), x, action))(elite)
        member = jax.random.randint(member_key, (x.shape[0],), 0, elite.shape[0])
        prediction = jax.tree.map(lambda leaf: leaf[member, jnp.arange(x.shape[0])], prediction)
        sampled = prediction.mean + jnp.exp(0.5 * prediction.log_variance) * jax.random.normal(
            noise_key, prediction.mean.shape
        )
        after = jnp.concatenate([x[:, :features] + sampled[:, :-1], x[:, features:]], axis=-1)
        terminated = jax.random.uniform(end_key, prediction.logit.shape) < jax.nn.sigmoid(prediction.logit)
        return Batch(x, action, sampled[:, -1], after, terminated, features)


def _model_target(rows: Batch) -> Float[Array, "B m"]:
    """The change of the features and, last, the reward."""
    return jnp.concatenate([(rows.next_obs - rows.obs)[:, : rows.features], rows.reward[:, None]], axis=-1)


HELD_OUT = 1000
"""The most steps that the model does not learn from; they are a tenth of fewer. They are spread evenly over the data,
which may be ordered by policy."""


@dataclass(frozen=True)
class COMBOConfig(ConservativeConfig):
    """Hyper-parameters, with OfflineRL-Kit's defaults for MuJoCo's environments."""

    NAME: ClassVar[str] = "combo"
    batch_size: PositiveInt = 256
    """Steps of a batch, half recorded and half of the model's; a multiple of 2. Imagined steps that are given stand for
    recorded ones, as half of them; the model does not learn from them."""
    hidden: tuple[Width, ...] = (256, 256, 256)
    """Widths of the dense layers of actor and critics."""
    normalize: bool = True
    members: PositiveInt = 7
    """Members of the model."""
    elites: PositiveInt = 5
    """Members that imagine, those of the smallest errors on steps that the model does not learn from."""
    model_hidden: tuple[Width, ...] = (200, 200, 200, 200)
    """Widths of the dense layers of a member."""
    model_learning_rate: NonNegativeFloat = 1e-3
    """Learning rate of the model."""
    model_steps: PositiveInt = 50_000
    """Gradient steps of the model, which come first; the policy does not learn in them."""
    rollout_every: PositiveInt = 1_000
    """Gradient steps of the policy between rollouts in the model."""
    rollouts: PositiveInt = 10_000
    """Recorded states from which the policy plays in the model."""
    horizon: PositiveInt = 5
    """Steps of a rollout; where one ends, it goes on from another recorded state."""
    kept: PositiveInt = 5
    """Rounds of rollouts that are kept. Their memory is allocated at once, and is part of checkpoints."""

    def __post_init__(self):
        super().__post_init__()
        between(f"{self.PREFIX}elites", self.elites, 1, self.members)
        if self.batch_size % 2:
            raise ValueError(f"{self.PREFIX}batch_size is {self.batch_size}; a multiple of 2 is needed")


class COMBO(SoftActorCritic):
    """Conservative offline model-based policy optimisation."""

    def __init__(self, config: COMBOConfig, actions: ActionKind):
        needs_continuous(config, actions)
        super().__init__(actions, config.hidden, config.activation)
        self.config = config
        self.model = Dynamics(config.members, config.model_hidden, actions.width)
        self.memory = Replay(config.rollouts * config.horizon * config.kept)

    def init(self, key: jax.Array, batch: Batch, hparams: dict[str, jax.Array]) -> TrainState:
        policy_key, model_key = jax.random.split(key)
        n = batch.obs.shape[-1]
        params = self.networks(policy_key, n, hparams) | {"model": self.model.init(model_key, n, batch.features)}
        buffer = self.memory.init(jax.tree.map(lambda x: x[0], batch))
        extra = {"ring": buffer, "elite": jnp.arange(self.config.elites), "model_loss": jnp.float32(0)}
        return TrainState.create(params, ["critic"], extra)

    def step(self, state: TrainState, batch: Batch, context: Context) -> tuple[TrainState, dict[str, jax.Array]]:
        """Step of the model, or once it has had all of its own, one of the critics and the actor."""
        policy_count = context.count - self.config.model_steps
        buffer_key, draw_key, model_key, policy_key = jax.random.split(context.key, 4)
        elite = tracing.cond(policy_count == 0, lambda: self.best(state, context), lambda: state.extra["elite"])
        state = state.replace(extra=state.extra | {"elite": elite})
        rounds = ((policy_count >= 0) & (policy_count % self.config.rollout_every == 0)).astype(jnp.int32)

        def round_of(turn: jax.Array, buffer: BufferState) -> BufferState:
            # XLA moves what does not depend on the turn out of the loop, and so into every step
            return self.rolled(state, buffer, context, jax.random.fold_in(buffer_key, turn))

        # a loop of one turn or none, since the branches of a `cond` would copy the buffer in every step
        buffer = tracing.fori_loop(0, rounds, round_of, state.extra["ring"])
        sample = self.memory.draw(buffer, draw_key, self.config.batch_size // 2)
        imagined = self.memory.get(buffer, sample.index)
        without_buffer = state.replace(extra=state.extra | {"ring": ()})

        def of_model(state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
            state = self.model_step(state, context, model_key)
            zeros = {name: jnp.float32(0) for name in jax.eval_shape(of_policy, state)[1]}
            return state, zeros

        def of_policy(state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
            real = jax.tree.map(lambda x: x[::2], batch)
            return self.policy_step(state, real, imagined, context, policy_key)

        after, metrics = tracing.cond(policy_count < 0, of_model, of_policy, without_buffer)
        metrics |= {"model_loss": after.extra["model_loss"], "imagined": buffer.size.astype(jnp.float32)}
        return after.replace(extra=after.extra | {"ring": buffer}), metrics

    # --- the model ----------------------------------------------------------------------------------------------------

    def best(self, state: TrainState, context: Context) -> jax.Array:
        """Members of the smallest errors on the held-out steps."""
        count, gap = held_out(context.frozen.sizes[0])
        number = jnp.arange(min(HELD_OUT, len(context.frozen.given[0])))
        rows = batch_of(context.frozen.given[0].take(number % count * gap), context.frozen.table)
        return jnp.argsort(self.model.errors(state.params["model"], rows, number < count))[: self.config.elites]

    def model_step(self, state: TrainState, context: Context, key: jax.Array) -> TrainState:
        """Gradient step of every member, on rows of its own."""
        data, shape = context.frozen.given[0], (self.config.members, self.config.batch_size)
        count = context.frozen.sizes[0]
        index = learned(jax.random.randint(key, shape, 0, count - held_out(count)[0]), count)
        rows = jax.vmap(lambda i: batch_of(data.take(i), context.frozen.table))(index)
        loss, grads = jax.value_and_grad(self.model.loss)(state.params["model"], rows)
        state = state.apply_gradients("model", grads, context.hparams["model_learning_rate"])
        return state.replace(extra=state.extra | {"model_loss": loss / self.config.members})

    def rolled(self, state: TrainState, buffer: BufferState, context: Context, key: jax.Array) -> BufferState:
        """Add model rollouts of the policy to the buffer."""
        data, count = context.frozen.given[0], self.config.rollouts

        def start_states(key: jax.Array) -> jax.Array:
            index = jax.random.randint(key, (count,), 0, context.frozen.sizes[0])
            return batch_of(data.take(index), context.frozen.table).obs

        def play(x: jax.Array, key: jax.Array) -> tuple[jax.Array, Batch]:
            act_key, model_key, reset_key = jax.random.split(key, 3)
            action, _ = self.actor.sample(state.params["actor"], x, act_key)
            reached = self.model.imagined(
                state.params["model"], state.extra["elite"], x, action, model_key, data.obs["vector"].shape[-1]
            )
            return jnp.where(reached.terminated[:, None], start_states(reset_key), reached.next_obs), reached

        start_key, rollout_key = jax.random.split(key)
        _, steps = tracing.scan(play, start_states(start_key), jax.random.split(rollout_key, self.config.horizon))
        return self.memory.add(buffer, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps))

    # --- the policy ---------------------------------------------------------------------------------------------------

    def policy_step(
        self, state: TrainState, real: Batch, imagined: Batch, context: Context, key: jax.Array
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """Gradient step of the critics and the actor on as many recorded steps as imagined ones."""
        h, keys = context.hparams, jax.random.split(key, 3)
        rows = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), real, imagined)
        action, _ = self.actor.sample(state.params["actor"], rows.next_obs, keys[0])
        value = jnp.min(self.critics(state.target["critic"], rows.next_obs, action), axis=0)
        target = rows.reward + h["gamma"] * jnp.where(rows.terminated, 0.0, value)
        proposals = proposed(self.actor, state.params["actor"], rows, keys[1], self.config.action_samples)
        loss = jax.value_and_grad(self.loss, has_aux=True)
        (q_loss, gap), grads = loss(state.params["critic"], target, proposals, rows, h["conservative_weight"])
        state = state.apply_gradients("critic", grads, h["critic_learning_rate"])
        state, metrics = self.actor_step(state, rows, keys[2], h)
        metrics |= {"critic_loss": q_loss, "gap": gap, "target_mean": jnp.mean(target)}
        return state.polyak_update(h["tau"], "critic"), metrics

    def loss(
        self, params: Any, target: Float[Array, " B"], proposals: tuple[jax.Array, jax.Array], rows: Batch, weight: Any
    ) -> tuple[jax.Array, jax.Array]:
        """Squared errors plus `weight` times the gap between the soft maximum over all rows and the values of the
        recorded actions, which are the first half of the rows, summed over critics; and the mean gap."""
        data = self.critics(params, rows.obs, rows.action)
        half = data.shape[1] // 2
        gap = soft_gap(self.critics, params, rows.obs, proposals, data[:, :half])
        return jnp.sum(jnp.mean((data - target) ** 2, axis=1)) + weight * jnp.sum(gap), jnp.mean(gap)


def held_out(count: Any) -> tuple[jax.Array, jax.Array]:
    """The number of steps, of `count`, that are held out from the model, and their distance: 0, `gap`, 2 `gap`, ..."""
    size = jnp.clip(count // 10, 1, HELD_OUT)
    return size, jnp.maximum(count // size, 2)


def learned(number: Any, count: Any) -> jax.Array:
    """The index of the step that is the `number`-th of those that the model learns from, from 0."""
    size, gap = held_out(count)
    return number + 1 + jnp.minimum(number // (gap - 1), size - 1)


ALGORITHM = OfflineAlgorithm(COMBOConfig, COMBO)
