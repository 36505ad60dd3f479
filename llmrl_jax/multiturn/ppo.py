"""PPO (1707.06347) for policies that write, with a turn or a token as the action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from envs_jax.env import Environment
from llmrl_jax.core.checks import Fraction, In, NonNegativeFloat, PositiveInt
from llmrl_jax.core.learner import Learner
from llmrl_jax.multiturn.credit import Credit, token_advantages, turn_advantages
from llmrl_jax.multiturn.learner import TurnLearner, TurnLearnerConfig, TurnState, pool_of
from llmrl_jax.multiturn.loss import Batch
from llmrl_jax.multiturn.policy import TurnPolicy
from llmrl_jax.multiturn.record import Record, carried_over
from llmrl_jax.multiturn.rollout import Conversation, Rows, Steps, Values


Level = Literal["turn", "token"]
"""What an action is. `turn`: one advantage for a reply, the critic's value where an observation ends; `token`: one for
each token."""


@dataclass(frozen=True)
class TurnPPOConfig(TurnLearnerConfig):
    """Settings of PPO on turns or tokens. Episodes go on over updates."""

    PREFIX: ClassVar[str] = "ppo."

    num_steps: PositiveInt = 256
    """Tokens of each row in an update, read and written."""
    pool_size: PositiveInt = 256
    """Episodes prepared for each update, from which ended ones are replaced (`envs_jax.VectorEnv`)."""
    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantage estimation, per turn or per token."""
    value_loss_coef: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    value_clip: Annotated[float, In("[0, inf]")] = 0.2
    """Change of a value beyond which the value loss is clipped, in units of return; inf: never."""
    normalize_advantages: bool = True
    """Whether advantages are normalised to mean 0 and standard deviation 1 over the tokens of a minibatch."""


def make_turn_ppo(
    config: TurnPPOConfig,
    policy: TurnPolicy,
    env: Environment,
    env_params: Any,
    mesh: Mesh | None = None,
    level: Level = "turn",
) -> Learner:
    """PPO on written replies as a `Learner`; see `TurnLearner` for arguments, metrics and errors. It adds
    `value_loss`, `value_mean`, `advantage_std` and `explained_variance`. **Arguments:** `level`, whether an action is a
    reply or a token of it."""
    return TurnPPO(config, policy, env, env_params, mesh, level).learner()


class TurnPPO(TurnLearner):
    """PPO's update; `make_turn_ppo` documents the arguments."""

    config: TurnPPOConfig

    def __init__(
        self,
        config: TurnPPOConfig,
        policy: TurnPolicy,
        env: Environment,
        env_params: Any,
        mesh: Mesh | None,
        level: Level = "turn",
    ):
        self.level: Level = level
        super().__init__(config, policy, env, env_params, mesh)

    def make_conversation(self) -> Conversation:
        self.vector = pool_of(self.config, self.env)
        constrain, tokens = self.placement.shard_batch, self.config.episode_tokens
        return Conversation(self.policy, self.vector, tokens, constrain=constrain, values=self.values)

    @property
    def steps(self) -> int:
        return self.config.num_steps

    @property
    def values(self) -> Values:
        return self.level

    def first_rows(self, key: jax.Array) -> Rows:
        copied = jax.tree.map(jnp.copy, self.env_params)
        return self.conversation.start(key, copied)

    def begin(self, state: TurnState, key: jax.Array) -> Rows:
        rows = state.rows
        return rows.replace(env_state=self.vector.refresh(key, rows.env_state, rows.env_params))

    def credit(self, record: Record, steps: Steps, hparams: dict[str, Any]) -> tuple[Credit, dict[str, jax.Array]]:
        advantages = turn_advantages if self.level == "turn" else token_advantages
        credit = advantages(record, record.reward, hparams["gamma"], hparams["gae_lambda"])
        fits = credit.fits
        count = jnp.maximum(jnp.sum(fits), 1)

        def mean(x):
            return jnp.sum(jnp.where(fits, x, 0.0)) / count

        error, centre = credit.returns - record.value, mean(credit.returns)
        spread = jnp.maximum(mean((credit.returns - centre) ** 2), 1e-12)
        report = {
            "value_mean": mean(record.value),
            "advantage_std": jnp.sqrt(jnp.maximum(mean(error**2) - mean(error) ** 2, 0.0)),
            "explained_variance": 1 - (mean(error**2) - mean(error) ** 2) / spread,
        }
        return credit, report

    def normalised(self, batch: Batch) -> Batch:
        if not self.config.normalize_advantages:
            return batch
        learn, x = batch.credit.learn, batch.credit.advantage
        count = jnp.maximum(jnp.sum(learn), 1)
        mean = jnp.sum(jnp.where(learn, x, 0.0)) / count
        deviation = jnp.sqrt(jnp.sum(jnp.where(learn, (x - mean) ** 2, 0.0)) / count)
        return batch.replace(credit=batch.credit.replace(advantage=(x - mean) / (deviation + 1e-8)))

    def keep(self, rows: Rows, record: Record, credit: Credit) -> Rows:
        record = record.replace(learned=record.learned | credit.turn)
        length = rows.length + self.steps
        short, count = carried_over(record, length, self.conversation.size, record.decides & ~credit.resolved)
        return rows.replace(record=short, length=count)
