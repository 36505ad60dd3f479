"""The hyper-parameters of PPO, with GLAM's preset, and the checks on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from jax.sharding import Mesh

from envs_jax.env import Environment
from llmrl_jax.core.checks import (
    Fraction,
    FractionBelowOne,
    In,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    PositiveOrInf,
)
from llmrl_jax.parallel import RULES, Placement
from llmrl_jax.rl.policy import Policy
from llmrl_jax.rl.rollout import RolloutConfig, check_statistics


@dataclass(frozen=True)
class PPOConfig(RolloutConfig):
    """Hyper-parameters. Floats are traced (`state.hparams`): they can differ between the rows of a vmap."""

    PREFIX: ClassVar[str] = "ppo."

    unroll: PositiveInt = 1
    """Steps unrolled per iteration of the rollout's loop: slightly faster for very cheap steps, slower to compile."""
    epochs: PositiveInt = 4
    """Passes over the steps of an update."""
    minibatches: PositiveInt = 4
    """Gradient steps per epoch; divides num_envs x num_steps (with a recurrent policy: num_envs)."""
    microbatches: PositiveInt = 1
    """Sequential parts in which a minibatch's gradient is computed, to save memory; divides the minibatch."""
    gamma: Fraction = 0.99
    """Discount per step."""
    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantage estimation."""
    learning_rate: NonNegativeFloat = 2.5e-4
    """Step size of Adam."""
    schedule: Literal["constant", "linear"] = "constant"
    """Whether the learning rate stays constant or falls linearly to zero over `schedule_updates`."""
    schedule_updates: Annotated[NonNegativeInt, Needs("schedule", "linear")] = 0
    """Updates after which a linear schedule reaches zero; used with `schedule` linear only."""
    clip_eps: NonNegativeFloat = 0.2
    """Distance of the probability ratio from 1 beyond which the policy loss is clipped."""
    value_clip: Annotated[float, In("[0, inf]")] = 0.2
    """Change of a value beyond which the value loss is clipped, in units of return; inf: never."""
    value_loss_coef: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    entropy_coef: NonNegativeFloat = 0.01
    """Weight of the entropy bonus, per nat."""
    max_grad_norm: PositiveOrInf = 0.5
    """Global norm to which gradients are clipped; inf: never."""
    adam_b1: FractionBelowOne = 0.9
    """Adam's decay rate of the first moment."""
    adam_b2: FractionBelowOne = 0.999
    """Adam's decay rate of the second moment."""
    adam_eps: NonNegativeFloat = 1e-5
    """Adam's epsilon."""
    normalize_advantages: bool = True
    """Whether advantages are normalised to mean 0 and standard deviation 1 within each minibatch. With a bonus of
    novelty, its noise is not scaled up: they are divided by at least 0.1 of its scale (`rl.bonus.Stream.floor`)."""
    target_kl: Annotated[float, In("[0, inf]")] = math.inf
    """An update stops after a minibatch whose approximate KL exceeds this, in nats; inf: off."""
    bootstrap_truncation: bool = True
    """Whether to bootstrap from the last observation of a time-out; False treats it as terminal, as GLAM does."""
    value_broadcast: Literal["off", "glam"] = "off"
    """`glam`: every value is compared with every return of its microbatch, a bug of the published code that pulls
    values to the mean return (glam reference, section 3.3)."""


GLAM = PPOConfig(
    num_envs=32,
    num_steps=40,
    epochs=4,
    minibatches=20,
    gamma=0.99,
    gae_lambda=0.99,
    learning_rate=1e-6,
    normalize_advantages=False,
)
"""GLAM's published hyper-parameters (glam reference, section 3.3): 1,280 steps and 80 gradient steps per update, in
minibatches of 64. The bugs of the published code are not included: add `bootstrap_truncation=False,
value_broadcast="glam"` for them."""


def check(config: PPOConfig, env: Environment, env_params: Any, policy: Policy, mesh: Mesh | None) -> None:
    """Reject a configuration that is incompatible with the environment, the policy or the mesh.

    **Raises:** `ValueError` if sizes do not divide (the arithmetic is shown), or a changed option is not read.
    """
    if config.schedule == "linear" and config.schedule_updates < 1:
        raise ValueError("ppo.schedule is linear; it needs ppo.schedule_updates, the update at which it reaches zero")
    rows, what = config.num_envs, f"ppo.num_envs {config.num_envs}"
    if not policy.recurrent:
        rows, what = rows * config.num_steps, f"{what} x ppo.num_steps {config.num_steps} = {rows * config.num_steps}"
    for name in ("minibatches", "microbatches"):
        parts = getattr(config, name)
        if rows % parts:
            raise ValueError(f"{what} is not divided by ppo.{name}: {rows} / {parts} = {rows / parts:.2f}")
        rows, what = rows // parts, f"{what} / ppo.{name} {parts} = {rows // parts}"
        steps = rows * config.num_steps if policy.recurrent else rows
        if name == "minibatches" and config.normalize_advantages and steps == 1:
            raise ValueError(
                f"--ppo.normalize-advantages is on, but a minibatch has one step ({what}): its advantage minus its "
                "mean is 0, so the policy would never change. Lower --ppo.minibatches, or pass "
                "--ppo.no-normalize-advantages"
            )
    if mesh is not None:
        ways = Placement(mesh).row_devices
        devices = " x ".join(f"{axis} {mesh.shape[axis]}" for axis in RULES["batch"]) + f" = {ways} devices"
        for size, text in ((config.num_envs, f"ppo.num_envs {config.num_envs}"), (rows, what)):
            if size % ways:
                raise ValueError(f"{text} is not divided by {devices}: {size} / {ways} = {size / ways:.2f}")
    check_statistics(env, env_params)
