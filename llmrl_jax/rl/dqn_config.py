"""The hyper-parameters of DQN and the checks on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from jax.sharding import Mesh

from envs_jax.env import Environment
from llmrl_jax.core.checks import (
    Fraction,
    FractionBelowOne,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveOrInf,
    refuse_unread,
)
from llmrl_jax.parallel import RULES, Placement
from llmrl_jax.rl.rollout import RolloutConfig, check_statistics


@dataclass(frozen=True)
class DQNConfig(RolloutConfig):
    """Hyper-parameters. Floats are traced (`state.hparams`): they can differ between the rows of a vmap."""

    PREFIX: ClassVar[str] = "dqn."

    num_steps: PositiveInt = 4
    gradient_steps: PositiveInt = 4
    """Gradient steps per update."""
    batch_size: PositiveInt = 128
    """Stored steps per gradient step; over a mesh, a multiple of its data x fsdp devices."""
    replay_size: PositiveInt = 100_000
    """Capacity of the replay memory in steps, rounded down to a multiple of num_envs. The whole memory is allocated at
    once, in checkpoints too."""
    learning_starts: NonNegativeInt = 0
    """Stored steps before the first gradient step; until then losses are reported as 0."""
    gamma: Fraction = 0.99
    """Discount per step."""
    n_step: PositiveInt = 1
    """Steps whose rewards a target sums before it bootstraps."""
    double: bool = True
    """Whether the online network chooses the action that the target network evaluates (double Q-learning)."""
    target_every: NonNegativeInt = 8
    """Updates between changes of the target network; 0: no target network, targets use the online one."""
    target_steps: NonNegativeInt = 0
    """Environment steps between changes of the target network, instead of target_every; 0: target_every decides."""
    target_tau: Fraction = 1.0
    """Step of the target network towards the online one at each change; 1 copies it. Polyak averaging: a small
    number, with target_every 1."""
    share_encoder: bool = False
    """Whether the target network has only its own heads, and the encoder of the online network, as published for ELLM.
    Needs a network that names its heads."""
    reward_clip: PositiveOrInf = math.inf
    """Absolute value at which rewards, a bonus included, are clipped before they are stored; inf: never."""
    huber_delta: PositiveFloat = 100.0
    """Error of a value beyond which the loss is linear instead of quadratic. If it is small (1 is usual, for rewards
    clipped to 1) and values are larger, large errors weigh no more than small ones, and values may diverge."""
    learning_rate: NonNegativeFloat = 2.5e-4
    """Step size of Adam."""
    max_grad_norm: PositiveOrInf = 10.0
    """Global norm to which gradients are clipped; inf: never."""
    adam_b1: FractionBelowOne = 0.9
    """Adam's decay rate of the first moment."""
    adam_b2: FractionBelowOne = 0.999
    """Adam's decay rate of the second moment."""
    adam_eps: NonNegativeFloat = 1e-8
    """Adam's epsilon."""
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
    """With `acting` epsilon: whether it falls from the first update after which the rewards of training sum to 1 or
    more, instead of from the start."""
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
        if self.target_steps:
            refuse_unread(self, ("target_every",), "--dqn.target-steps above 0")
        steps, what = self.num_envs * self.num_steps, f"num_envs {self.num_envs} x num_steps {self.num_steps}"
        if steps > self.capacity:
            raise ValueError(
                f"{what} = {steps} steps in an update, but dqn.replay_size is {self.replay_size}: raise it"
            )
        for name, most in (("learning_starts", self.capacity), ("n_step", self.capacity // self.num_envs)):
            if getattr(self, name) > most:
                per = " per environment" if name == "n_step" else ""
                raise ValueError(
                    f"dqn.{name} is {getattr(self, name)}, but the memory holds {most} steps{per}: raise "
                    f"dqn.replay_size, which is {self.replay_size}, or lower dqn.{name}"
                )

    @property
    def has_target(self) -> bool:
        """Whether there is a target network."""
        return bool(self.target_every or self.target_steps)

    @property
    def capacity(self) -> int:
        """Steps that the memory holds."""
        return self.replay_size // self.num_envs * self.num_envs


def check(config: DQNConfig, env: Environment, env_params: Any, mesh: Mesh | None) -> None:
    """Reject a configuration that is incompatible with the environment or the mesh.

    **Raises:** `ValueError` if sizes do not divide (the arithmetic is shown), or the environment does not report its
    episodes.
    """
    if mesh is not None:
        ways = Placement(mesh).row_devices
        devices = " x ".join(f"{axis} {mesh.shape[axis]}" for axis in RULES["batch"]) + f" = {ways} devices"
        for name in ("num_envs", "batch_size"):
            size = getattr(config, name)
            if size % ways:
                raise ValueError(f"dqn.{name} {size} is not divided by {devices}: {size} / {ways} = {size / ways:.2f}")
    check_statistics(env, env_params)
