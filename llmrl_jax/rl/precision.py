"""Bounds of the first probability ratio's distance from 1, in either direction, by the precision of matrix products.

Acting and learning compute the same function of the same parameters, but in batches of different shapes, for which a
device may sum in another order. In float32 the difference is a few units in the last place. Where the factors of a
product are rounded to fewer bits, as in bfloat16, such a difference moves some of them to the next number, and after a
few layers the two passes differ as much as either differs from the exact result. Programs of fewer bits are compiled so
that they round after every operation (`exact_rounding`): then the same shapes agree on a CPU as they do in float32.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from envs_jax import tracing


RATIO_BOUNDS = {"float32": 1e-5, "tensorfloat32": 0.0625, "float16": 0.0625, "bfloat16": 0.5}
"""Precision of matrix products -> the largest `ratio_error` of a correct program.

Measured with SmolLM2-135M (30 layers) in GLAM's update. In bfloat16 0.16 on an H200, before programs rounded after
every operation; the bound is three times that. On a CPU, with rows padded to other lengths in play than in learning:
0.015 in bfloat16, 0.045 without these roundings, 0.023 in `mixed`, and 0.0024 in float16, which has 8 times the
precision of bfloat16 and an eighth of its bound. With the factors of all products rounded as TensorFloat32 does,
log-probabilities differ from those in float32 by up to 0.0081 nats, so two passes by 0.016: the bound is four times
that. In float32, batches of 4 and of 1 prompts differ by 4e-6.

A bound of 0.5 finds what changes the probability of an action that was taken by half. An error of the program with a
smaller effect looks like rounding in bfloat16: only float32 on a CPU, or with
`jax_default_matmul_precision="highest"`, finds it."""

LENGTHS_BOUND = 1e-4
"""The least bound for policies that pad rows to several lengths, which play and learning may choose differently: sums
over other lengths are rounded differently, in every layer. 2.7e-5 was measured in float32 with SmolLM2-135M (30
layers); with one length, 0."""

DENSITY_BOUND = 1e-3
"""The least bound for continuous actions. The logarithm of a normal density changes with the mean by `(x - mean) / std`
per standard deviation, so a rounding of the mean (1e-7) is amplified by 1 / std, without limit while a policy becomes
certain: 1.2e-5 was measured in Debug-Aim-v0 with jax 0.12. At a standard deviation of 1e-3, and 3 of them from the
mean, one unit in the last place changes the ratio by 2e-4."""


def ratio_error(log_ratio: Float[Array, "*B"]) -> Float[Array, ""]:
    """The distance of the ratios of probabilities from 1: the largest of `max(r, 1 / r) - 1`. For small errors it is
    that of `|r - 1|`, which cannot exceed 1 for a probability that fell.

    **Arguments:** `log_ratio`, `log r` in nats.
    """
    return jnp.expm1(jnp.max(jnp.abs(log_ratio)))


_NEAR_ONE = (0.999, 1.002)
"""The range of ratios that `sampling_near_one` counts."""

SAMPLING_METRICS = ("sampling_kl", "sampling_near_one")
"""The names of `sampling_metrics`."""


def sampling_metrics(log_ratio: Float[Array, "*B"], weight: Any = None) -> dict[str, Float[Array, ""]]:
    """Agreement of the policy that sampled with the policy that learns, before its first gradient step. The two have
    the same parameters, so only rounding and errors of the program separate them.

    **Arguments:** `log_ratio`, for each sampled action or token its log-probability under the learner minus that at
    sampling, in nats; `weight`, in the shape of `log_ratio`, of each in the means, with a sum of 1, or less for a part
    of a batch, whose metrics are added; 0 excludes an entry. None: all have the same.
    **Returns:** float32 scalars. `sampling_kl`: an estimate of KL(sampler || learner) in nats, the mean of
    `r - 1 - log r` for the ratio `r`. It is the estimator k3 of Schulman, "Approximating KL divergence"
    (http://joschu.net/blog/kl-approx.html, 2020): unbiased like the mean of `-log r`, never negative, and of much
    lower variance for ratios near 1. `sampling_near_one`: the fraction whose ratio lies in [0.999, 1.002].
    """

    def mean(x):
        return jnp.mean(x) if weight is None else jnp.sum(jnp.where(weight > 0, weight * x, 0.0))

    low, high = _NEAR_ONE
    ratio = jnp.exp(log_ratio)
    near_one: Bool[Array, "*B"] = (ratio >= low) & (ratio <= high)
    # expm1, since r - 1 loses all digits of a ratio this near 1
    return {
        "sampling_kl": mean(jnp.expm1(log_ratio) - log_ratio),
        "sampling_near_one": mean(near_one.astype(jnp.float32)),
    }


def compares_sampling(policy: Any) -> bool:
    """Return whether a learner reports `sampling_metrics` of a policy: those that state the `dtype` in which they
    compute do, as language models."""
    return hasattr(policy, "dtype")


def exact_rounding(dtype: Any) -> dict[str, bool]:
    """XLA's options for a program in which a policy plays and learns in `dtype`: one of 16 bits is rounded to after
    every operation. By default XLA leaves roundings out between operations that it fuses (excess precision). It fuses
    other operations in play than in learning, and the two would be rounded in different places.
    """
    return {"xla_allow_excess_precision": False} if jnp.finfo(dtype).bits < 32 else {}


_SEVERAL_PASSES = ("TF32_TF32_F32_X3", "BF16_BF16_F32_X6", "BF16_BF16_F32_X9")
_FLOAT32 = ("highest", "float32", "F32_F32_F32", "F64_F64_F64", *_SEVERAL_PASSES)
_TENSORFLOAT32 = ("high", "tensorfloat32", "TF32_TF32_F32", "F16_F16_F32", "F16_F16_F16", "BF16_BF16_F32_X3")


def matmul_precision(dtype: Any, platform: str | None = None) -> str:
    """The precision of the factors of matrix products, a name in `RATIO_BOUNDS`.

    Products of float32 have it on a CPU only: by default, GPUs use TensorFloat32 and TPUs bfloat16
    (`jax.lax.Precision`). The option `jax_default_matmul_precision` of jax changes it.

    **Arguments:** `dtype` in which a model computes; `platform`, `cpu`, `gpu` or `tpu` (None: the default device's).
    """
    name = jnp.dtype(dtype).name
    if name != "float32":
        return name if name in RATIO_BOUNDS else "float32"
    platform = platform or tracing.platform()
    if platform == "cpu":
        return name
    chosen = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    if chosen in (None, "default", "fastest"):
        return "bfloat16" if platform == "tpu" else "tensorfloat32"
    return name if chosen in _FLOAT32 else "tensorfloat32" if chosen in _TENSORFLOAT32 else "bfloat16"


def platform_of(mesh: Mesh | None) -> str:
    """The platform of a mesh's devices; without a mesh, of the default device."""
    return tracing.platform() if mesh is None else mesh.devices.flat[0].platform


def ratio_bound(policy: Any, mesh: Mesh | None, density: bool = False) -> float:
    """The bound of the `ratio_error` of a policy's first minibatch, from the `dtype` in which it computes (float32 if
    it states none) and the lengths to which it pads (`widths`, see `LENGTHS_BOUND`).

    **Arguments:** `density`, whether actions are continuous (see `DENSITY_BOUND`).
    """
    bound = RATIO_BOUNDS[matmul_precision(getattr(policy, "dtype", jnp.float32), platform_of(mesh))]
    bound = max(bound, LENGTHS_BOUND) if getattr(policy, "widths", ()) else bound
    return max(bound, DENSITY_BOUND) if density else bound
