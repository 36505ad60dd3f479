"""The hyper-parameters of GRPO and RLOO and the checks on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jax.sharding import Mesh

from llmrl_jax.core.checks import COUNT, check_choices, fields_in
from llmrl_jax.parallel import Placement
from llmrl_jax.tuning.prompts import Prompts


@dataclass(frozen=True)
class GRPOConfig:
    """Hyper-parameters. The defaults are GRPO's, without the length bias that 2503.20783 describes."""

    prompts: int = 8
    """Prompts per update."""
    group: int = 8
    """Continuations of each prompt; at least 2."""
    max_new_tokens: int = 64
    """Maximum number of tokens of a continuation."""
    temperature: float = 1.0
    """Temperature of the policy, for sampling and for ratios, KL and entropy. Above 0."""
    epochs: int = 1
    """Passes over the continuations of an update."""
    minibatches: int = 1
    """Gradient steps per epoch; divides prompts x group."""
    microbatches: int = 1
    """Sequential parts in which a minibatch's gradient is computed, to save memory; divides the minibatch."""
    advantage: Literal["grpo", "centred", "leave_one_out"] = "centred"
    """`grpo`: reward minus the group's mean, divided by its standard deviation; `centred`: not divided (Dr. GRPO), so
    that hard and easy prompts are not weighted up; `leave_one_out`: minus the mean of the others (RLOO)."""
    aggregate: Literal["token", "sequence"] = "token"
    """`token`: the mean over all tokens of a minibatch (DAPO); `sequence`: the mean over continuations of the mean per
    continuation, as published for GRPO, in which long wrong answers weigh less per token."""
    clip_low: float = 0.2
    """Distance of a ratio below 1 beyond which the loss is clipped."""
    clip_high: float = 0.2
    """Distance of a ratio above 1 beyond which the loss is clipped; 0.28 in DAPO."""
    kl_coef: float = 0.0
    """Weight of the KL to the base, per nat (2402.03300, eq. 4: the non-negative estimator)."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus, per nat and token."""
    learning_rate: float = 1e-5
    """Step size of Adam, constant."""
    max_grad_norm: float = 1.0
    """Global norm to which gradients are clipped; inf: never."""
    head_chunk: int = 0
    """Tokens of each continuation whose logits are in memory at once; divides max_new_tokens; 0: all."""
    stop_tokens: tuple[int, ...] | None = None
    """Tokens that end a continuation; None: the first end-of-sequence token of the model's configuration. Commands
    use all that the model's folder names (`lm.end_tokens`)."""

    def __post_init__(self):
        counts = ("prompts", "max_new_tokens", "epochs", "minibatches", "microbatches")
        fields_in(self, COUNT, *counts, prefix="grpo.")
        remedy = "a reward is compared with those of its group"
        fields_in(self, "[2, 2147483647]", "group", prefix="grpo.", remedy=remedy)
        fields_in(self, "(0, inf)", "temperature", prefix="grpo.", remedy="for samples that differ")
        fields_in(self, "[0, inf)", "clip_low", "clip_high", "kl_coef", "entropy_coef", prefix="grpo.")
        fields_in(self, "[0, inf)", "learning_rate", "head_chunk", prefix="grpo.")
        fields_in(self, "(0, inf]", "max_grad_norm", prefix="grpo.")
        check_choices(self, prefix="grpo.")
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
