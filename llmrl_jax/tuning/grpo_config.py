"""The hyper-parameters of GRPO and RLOO and the checks on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from jax.sharding import Mesh

from llmrl_jax.core.checks import Checked, In, NonNegativeFloat, NonNegativeInt, PositiveInt, PositiveOrInf
from llmrl_jax.parallel import Placement
from llmrl_jax.tuning.prompts import Prompts


@dataclass(frozen=True)
class GRPOConfig(Checked):
    """Hyper-parameters. The defaults are GRPO's, without the length bias that 2503.20783 describes."""

    PREFIX: ClassVar[str] = "grpo."

    prompts: PositiveInt = 8
    """Prompts per update."""
    group: Annotated[int, In("[2, 2147483647]", "a reward is compared with those of its group")] = 8
    """Continuations of each prompt."""
    max_new_tokens: PositiveInt = 64
    """Maximum number of tokens of a continuation."""
    temperature: Annotated[float, In("(0, inf)", "for samples that differ")] = 1.0
    """Temperature of the policy, for sampling and for ratios, KL and entropy."""
    epochs: PositiveInt = 1
    """Passes over the continuations of an update."""
    minibatches: PositiveInt = 1
    """Gradient steps per epoch; divides prompts x group."""
    microbatches: PositiveInt = 1
    """Sequential parts in which a minibatch's gradient is computed, to save memory; divides the minibatch."""
    advantage: Literal["grpo", "centred", "leave_one_out"] = "centred"
    """`grpo`: reward minus the group's mean, divided by its standard deviation; `centred`: not divided (Dr. GRPO), so
    that hard and easy prompts are not weighted up; `leave_one_out`: minus the mean of the others (RLOO)."""
    aggregate: Literal["token", "sequence"] = "token"
    """`token`: the mean over all tokens of a minibatch (DAPO); `sequence`: the mean over continuations of the mean per
    continuation, as published for GRPO, in which long wrong answers weigh less per token."""
    clip_low: NonNegativeFloat = 0.2
    """Distance of a ratio below 1 beyond which the loss is clipped."""
    clip_high: NonNegativeFloat = 0.2
    """Distance of a ratio above 1 beyond which the loss is clipped; 0.28 in DAPO."""
    kl_coef: NonNegativeFloat = 0.0
    """Weight of the KL to the base, per nat (2402.03300, eq. 4: the non-negative estimator)."""
    entropy_coef: NonNegativeFloat = 0.0
    """Weight of an entropy bonus, per nat and token."""
    learning_rate: NonNegativeFloat = 1e-5
    """Step size of Adam, constant."""
    max_grad_norm: PositiveOrInf = 1.0
    """Global norm to which gradients are clipped; inf: never."""
    head_chunk: NonNegativeInt = 0
    """Tokens of each continuation whose logits are in memory at once; divides max_new_tokens; 0: all."""
    stop_tokens: tuple[int, ...] | None = None
    """Tokens that end a continuation; None: the first end-of-sequence token of the model's configuration. Commands
    use all that the model's folder names (`lm.end_tokens`)."""

    def __post_init__(self):
        super().__post_init__()
        if self.head_chunk and self.max_new_tokens % self.head_chunk:
            raise ValueError(
                f"grpo.head_chunk is {self.head_chunk}; it must divide grpo.max_new_tokens, {self.max_new_tokens}"
            )
        rows, what = self.prompts * self.group, f"grpo.prompts {self.prompts} x grpo.group {self.group}"
        for name in ("minibatches", "microbatches"):
            parts = getattr(self, name)
            if rows % parts:
                raise ValueError(f"{what} = {rows} rows are not divided by grpo.{name} {parts}")
            rows, what = rows // parts, f"{what} / grpo.{name} {parts}"


def check(config: GRPOConfig, prompts: Prompts, mesh: Mesh | None) -> None:
    """Reject a configuration that is incompatible with the prompts or the mesh.

    **Raises:** `ValueError` for too few prompts, or if the devices do not divide sizes (the arithmetic is shown).
    """
    count = prompts.tokens.shape[0]
    if count < config.prompts:
        raise ValueError(
            f"there are {count} prompts, fewer than the {config.prompts} of one update: lower grpo.prompts, or add data"
        )
    if mesh is not None:
        ways = Placement(mesh).row_devices
        rows = config.prompts * config.group // config.minibatches // config.microbatches
        what = f"grpo.prompts {config.prompts}"
        whole = f"{what} x grpo.group {config.group} / grpo.minibatches {config.minibatches}"
        whole += f" / grpo.microbatches {config.microbatches} = {rows} rows"
        for size, text in ((config.prompts, what), (rows, whole)):
            if size % ways:
                raise ValueError(f"{text} are not divided by {ways} devices (data x fsdp)")
