"""Learners without a critic, which compare the episodes of a group that began in the same state: REINFORCE and GRPO on
whole episodes, and GiGPO, which also compares turns in equal states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from envs_jax.bridges.host import HostEnvironment
from envs_jax.env import Environment
from envs_jax.resets import VectorState
from llmrl_jax.core.checks import In, NonNegativeFloat
from llmrl_jax.core.learner import Learner
from llmrl_jax.multiturn.credit import Credit, anchored, episode_returns, group_advantages, of_turn
from llmrl_jax.multiturn.learner import TurnLearner, TurnLearnerConfig, TurnState
from llmrl_jax.multiturn.policy import TurnPolicy
from llmrl_jax.multiturn.record import REPLY, Record
from llmrl_jax.multiturn.rollout import Conversation, Rows, Steps, worlds_of


@dataclass(frozen=True)
class GroupConfig(TurnLearnerConfig):
    """Settings of learners on groups. Every update plays one whole episode in each world; rows that have ended wait for
    the longest one, up to `episode_tokens`, which with memory reprompt count the prompts of all turns; what an episode
    has not got by then is left out."""

    PREFIX: ClassVar[str] = "group."

    group: Annotated[int, In("[2, 2147483647]", "a return is compared with those of its group")] = 8
    """Episodes that begin in the same state; divides num_envs."""
    advantage: Literal["centred", "grpo", "leave_one_out"] = "centred"
    """A return minus its group's mean (`centred`, Dr. GRPO), also divided by the standard deviation (`grpo`), or minus
    the mean of the others."""
    keep_groups: Annotated[float, In("(0, 1]")] = 1.0
    """The share of the groups that is learned from, those with the largest deviation of returns (StarPO-S,
    2504.20073); 1: all."""
    anchor_coef: NonNegativeFloat = 0.0
    """GiGPO's weight of the advantage of a turn among the group's turns with the same observation (2505.10978); 0 is
    GRPO."""

    critic: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        if self.num_envs % self.group:
            raise ValueError(
                f"group.num_envs {self.num_envs} is not divided by group.group {self.group}: each world of a group "
                "plays one of its episodes"
            )


GIGPO = GroupConfig(anchor_coef=1.0, gamma=0.95)
"""GiGPO's published discount and weight."""


def make_group_learner(
    config: GroupConfig, policy: TurnPolicy, env: Environment, env_params: Any, mesh: Mesh | None = None
) -> Learner:
    """REINFORCE, GRPO or GiGPO on written replies as a `Learner`; see `TurnLearner` for arguments, metrics and errors.
    It adds `reward_std` (the mean standard deviation of returns within groups, which falls first in RAGEN's echo trap,
    2504.20073) and `idle_groups` (the share whose returns are all equal)."""
    if isinstance(env.unwrapped, HostEnvironment):
        env.unwrapped.check_starts()
    return GroupLearner(config, policy, env, env_params, mesh).learner()


class GroupLearner(TurnLearner):
    """The update; `make_group_learner` documents the arguments."""

    config: GroupConfig

    def make_conversation(self) -> Conversation:
        vector = worlds_of(self.env, self.config.num_envs)
        constrain, size = self.placement.shard_batch, self.config.episode_tokens
        longest = self.policy.longest_text or 0
        if size < longest:
            raise ValueError(
                f"group.episode_tokens is {size}, but a prompt and its reply have up to {longest} tokens: with memory "
                "reprompt it counts those of all turns"
            )
        anchors = self.config.anchor_coef > 0
        return Conversation(self.policy, vector, size, constrain=constrain, once=True, anchors=anchors, whole=True)

    @property
    def steps(self) -> int:
        return self.config.episode_tokens

    def begin(self, state: TurnState, key: jax.Array) -> Rows:
        group = jnp.arange(self.config.num_envs) // self.config.group
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, group)
        obs, env = jax.vmap(self.env.reset, (0, None))(keys, self.env_params)
        rows = self.conversation.begin(self.env_params, VectorState(env=env), obs)
        return self.shard(rows)

    def credit(self, record: Record, steps: Steps, hparams: dict[str, Any]) -> tuple[Credit, dict[str, jax.Array]]:
        config = self.config
        returns = jnp.sum(jnp.where(record.acts, record.reward, 0.0), axis=1)
        deviation = jnp.std(returns.reshape(-1, config.group), axis=1)
        advantage = jnp.zeros_like(record.reward) + group_advantages(returns, config.group, config.advantage)[:, None]
        if config.anchor_coef:
            later = episode_returns(record, record.reward, hparams["gamma"])
            kind = "grpo" if config.advantage == "grpo" else "centred"
            step = anchored(later, record.decides, steps.anchor, config.group, kind)
            advantage = advantage + hparams["anchor_coef"] * of_turn(record, step)
        count = max(1, round(config.keep_groups * len(deviation)))
        best = jnp.argsort(jnp.argsort(-deviation, stable=True), stable=True) < count
        chosen = jnp.repeat(best, config.group)[:, None]
        learn = (record.role == REPLY) & record.free & chosen
        no = jnp.zeros_like(record.decides)
        credit = Credit(advantage, learn, record.decides & chosen, jnp.zeros_like(record.reward), no, record.decides)
        report = {
            "reward_std": jnp.mean(deviation),
            "idle_groups": jnp.mean((deviation == 0).astype(jnp.float32)),
            "finished": jnp.mean(jnp.any(record.bootstraps | record.terminated, axis=1).astype(jnp.float32)),
        }
        return credit, report
