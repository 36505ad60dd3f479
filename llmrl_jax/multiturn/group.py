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
from llmrl_jax.core.checks import FractionBelowOne, In, Needs, NonNegativeFloat, NonNegativeInt, PositiveInt
from llmrl_jax.core.learner import Learner
from llmrl_jax.multiturn.credit import Credit, anchored, episode_returns, largest_groups, of_turn
from llmrl_jax.multiturn.learner import TurnLearner, TurnLearnerConfig, TurnState
from llmrl_jax.multiturn.policy import TurnPolicy
from llmrl_jax.multiturn.record import REPLY, Record
from llmrl_jax.multiturn.rollout import Conversation, Rows, Steps, worlds_of
from llmrl_jax.multiturn.starts import Draw, Starts, succeeded, weight
from llmrl_jax.rl.rollout import check_divisible, group_advantages, group_deviation


@dataclass(frozen=True)
class GroupConfig(TurnLearnerConfig):
    """Settings of learners on groups. Every update plays `num_envs` whole episodes, of up to `episode_tokens`, which
    with memory reprompt count the prompts of all turns; what an episode has not got by then is left out."""

    PREFIX: ClassVar[str] = "group."

    group: Annotated[int, In("[2, 2147483647]", "a return is compared with those of its group")] = 8
    """Episodes that begin in the same state; divides num_envs."""
    at_once: NonNegativeInt = 0
    """Episodes played at the same time, a divisor of num_envs: where one has ended, the next one begins, so that fewer
    rows wait for the longest one, and fewer keys and values are in memory; over a mesh, a multiple of its data x fsdp
    devices; 0: all."""
    advantage: Literal["centred", "grpo", "leave_one_out"] = "centred"
    """A return minus its group's mean (`centred`, Dr. GRPO), also divided by the standard deviation (`grpo`), or minus
    the mean of the others."""
    keep_groups: Annotated[float, In("(0, 1]")] = 1.0
    """The share that is learned from of the groups, those with the largest deviation of returns, or of the sum of these
    deviations, as `keep` says."""
    keep: Literal["share", "top_p"] = "share"
    """What `keep_groups` is a share of: `share`, the groups (StarPO-S, 2504.20073); `top_p`, the sum of deviations: the
    fewest groups that have it, none of them idle (RAGEN-2, 2604.06268, with 0.9)."""
    replay_groups: FractionBelowOne = 0.0
    """The share of the groups that begin in stored starts, drawn with weights `p (1 - p)`, where `p` is the success of
    earlier groups there (2408.15099); 0: all begin in fresh ones."""
    starts: Annotated[PositiveInt, Needs("replay_groups")] = 256
    """Starts that are stored; at least as many as groups."""
    starts_decay: Annotated[FractionBelowOne, Needs("replay_groups")] = 0.5
    """Weight of a start's earlier estimate of success beside that of a group which begins there again."""
    anchor_coef: NonNegativeFloat = 0.0
    """GiGPO's weight of the advantage of a turn among the group's turns with the same observation (2505.10978, with 1
    and a gamma of 0.95, which nothing else reads); 0 is GRPO, and 1 with `algo` gigpo."""

    critic: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        if self.num_envs % self.group:
            raise ValueError(
                f"group.num_envs {self.num_envs} is not divided by group.group {self.group}: each world of a group "
                "plays one of its episodes"
            )
        if self.at_once and self.num_envs % self.at_once:
            raise ValueError(
                f"group.num_envs {self.num_envs} is not divided by group.at_once {self.at_once}: as many episodes are "
                "played at the same time until all have been"
            )
        groups = self.num_envs // self.group
        if self.replay_groups and not 0 < round(self.replay_groups * groups) < groups:
            raise ValueError(
                f"group.replay_groups {self.replay_groups} of {groups} groups is none or all of them: at least one has "
                "to begin in a stored start, and one in a fresh one"
            )
        if self.replay_groups and self.starts < groups:
            raise ValueError(f"group.starts is {self.starts}; at least {groups} are needed, the groups of an update")


def make_group_learner(
    config: GroupConfig, policy: TurnPolicy, env: Environment, env_params: Any, mesh: Mesh | None = None
) -> Learner:
    """REINFORCE, GRPO or GiGPO on written replies as a `Learner`; see `TurnLearner` for arguments, metrics and errors.
    It adds `reward_std` (the mean standard deviation of returns within groups, which falls first in RAGEN's echo trap,
    2504.20073), `idle_groups` (the share whose returns are all equal), with `keep` top_p `kept_groups` (the share that
    is learned from), and with `replay_groups` `success_fresh` and `success_stored` (success of the episodes that began
    in fresh and in stored starts, nan if there were none) and `useful_starts` (stored ones with a weight). Environments
    without `success` have that of a positive return."""
    check_divisible(mesh, {"group.at_once": config.at_once})
    if isinstance(env.unwrapped, HostEnvironment):
        if config.at_once:
            raise ValueError(
                f"group.at_once is {config.at_once}, but {env.unwrapped.id} runs on the host, where the states "
                "with which episodes begin are not kept: leave it 0"
            )
        env.unwrapped.check_starts()
    return GroupLearner(config, policy, env, env_params, mesh).learner()


class GroupLearner(TurnLearner):
    """The update; `make_group_learner` documents the arguments."""

    config: GroupConfig

    def make_conversation(self) -> Conversation:
        rows = self.config.at_once or self.config.num_envs
        vector = worlds_of(self.env, rows)
        constrain, size = self.placement.shard_batch, self.config.episode_tokens
        longest = self.policy.longest_text or 0
        if size < longest:
            raise ValueError(
                f"group.episode_tokens is {size}, but a prompt and its reply have up to {longest} tokens: with memory "
                "reprompt it counts those of all turns"
            )
        options: Any = {"once": True, "whole": True, "anchors": self.config.anchor_coef > 0}
        return Conversation(self.policy, vector, size, constrain=constrain, episodes=self.config.num_envs, **options)

    @property
    def steps(self) -> int:
        return self.config.episode_tokens

    @property
    def groups(self) -> int:
        """The number of groups."""
        return self.config.num_envs // self.config.group

    def hparams(self) -> dict[str, jax.Array]:
        traced = super().hparams()
        if not self.config.replay_groups:  # as in checkpoints of runs without stored starts
            del traced["replay_groups"], traced["starts_decay"]
        return traced

    def first_starts(self, key: jax.Array) -> Starts | tuple[()]:
        if not self.config.replay_groups:
            return ()
        return jax.jit(lambda key, params: Starts.empty(self.config.starts, *self.env.reset(key, params)))(
            key, self.env_params
        )

    def _draw(self, state: TurnState, key: jax.Array) -> Draw:
        """The starts of an update's groups. **Arguments:** `key`, that of `begin`, whose groups have lower numbers."""
        share = state.hparams["replay_groups"]
        return state.starts.draw(jax.random.fold_in(key, self.groups), self.groups, share)

    def begin(self, state: TurnState, key: jax.Array) -> Rows:
        group = jnp.arange(self.config.num_envs) // self.config.group
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, group)
        obs, env = jax.vmap(self.env.reset, (0, None))(keys, self.env_params)
        if self.config.replay_groups:
            obs, env = state.starts.rows(self._draw(state, key), obs, env)
        rows = self.conversation.begin(self.env_params, VectorState(env=env), obs)
        return self.shard(rows)

    def credit(self, record: Record, steps: Steps, hparams: dict[str, Any]) -> tuple[Credit, dict[str, jax.Array]]:
        config = self.config
        returns = jnp.sum(jnp.where(record.acts, record.reward, 0.0), axis=1)
        groups = returns.reshape(-1, config.group)
        deviation = group_deviation(groups)
        advantage = jnp.zeros_like(record.reward) + group_advantages(groups, config.advantage).reshape(-1, 1)
        if config.anchor_coef:
            later = episode_returns(record, record.reward, hparams["gamma"])
            kind = "grpo" if config.advantage == "grpo" else "centred"
            step = anchored(later, record.decides, steps.anchor, config.group, kind)
            advantage = advantage + hparams["anchor_coef"] * of_turn(record, step)
        best = largest_groups(deviation, config.keep, hparams["keep_groups"])
        chosen = jnp.repeat(best, config.group)[:, None]
        learn = (record.role == REPLY) & record.free & chosen
        no = jnp.zeros_like(record.decides)
        credit = Credit(advantage, learn, record.decides & chosen, jnp.zeros_like(record.reward), no, record.decides)
        report = {
            "reward_std": jnp.mean(deviation),
            "idle_groups": jnp.mean((deviation == 0).astype(jnp.float32)),
            "finished": jnp.mean(jnp.any(record.bootstraps | record.terminated, axis=1).astype(jnp.float32)),
        }
        if config.keep == "top_p":
            report["kept_groups"] = jnp.mean(best.astype(jnp.float32))
        return credit, report

    def keep_starts(
        self, state: TurnState, key: jax.Array, begun: Rows, record: Record, steps: Steps
    ) -> tuple[Any, dict[str, jax.Array]]:
        if not self.config.replay_groups:
            return (), {}
        draw = self._draw(state, key)
        episodes = begun.episodes
        first = (episodes.obs, episodes.env) if self.conversation.follows else (begun.obs, begun.env_state.env)
        obs, env = jax.tree.map(lambda x: x[:: self.config.group], first)
        success = jnp.mean(succeeded(record, steps).reshape(self.groups, -1).astype(jnp.float32), axis=1)
        starts = state.starts.updated(draw, obs, env, success, state.hparams["starts_decay"])

        def mean(mask):
            return jnp.sum(jnp.where(mask, success, 0.0)) / jnp.sum(mask)

        report = {
            "success_fresh": mean(~draw.stored),
            "success_stored": mean(draw.stored),
            "useful_starts": jnp.sum(weight(starts.success) > 0),
        }
        return self.placement.replicate(starts), report
