"""How far probabilities of play and of sampling are from those of the first gradient step, by dtype, on a CPU.

    python -m experiments.agreement

Two tables, in `<out>/agreement.json`: `programs`, the pairs of programs of `benchmarks/accelerator/agreement.py` with
random weights, 30 narrow layers and adapters that are not zero; and `glam`, the first minibatch of GLAM's update with
SmolLM2-135M, without and with groups of prompts that are padded to several lengths. Each has the rows without and with
XLA's excess precision. On one core it takes 20 minutes.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp

from benchmarks.accelerator import agreement
from llmrl_jax.core.files import write_whole
from llmrl_jax.lm import LlamaConfig
from llmrl_jax.lm.config import ComputeDtype
from llmrl_jax.options.command import parse
from llmrl_jax.parallel import Placement
from llmrl_jax.rl.ppo import PPO
from llmrl_jax.run import info
from llmrl_jax.systems.glam.build import build
from llmrl_jax.systems.glam.config import DEMO


@dataclass(frozen=True)
class Experiment:
    """Agreement of play and learning."""

    layers: int = 30
    """Layers of the random model, which is 192 wide."""
    model: str = "smollm2-135m"
    """The model of GLAM's update; empty: leave it out."""
    out: str = "runs/agreement"
    """Folder of the results."""


COMPUTED = (
    ("bfloat16", False),
    ("bfloat16", True),
    ("float16", False),
    ("mixed", False),
    ("float32", False),
    ("float16", True),
    ("mixed", True),
    ("float32", True),
)
"""Dtypes, and whether XLA may leave roundings out, those first that differ most."""

METRICS = {"first_ratio_error": "ratio_error", "sampling_kl": "sampling_kl", "sampling_near_one": "sampling_near_one"}
"""Metrics of an update, and their names in the table of programs."""


def of_programs(layers: int, dtype: str, excess: bool) -> dict[str, dict[str, float]]:
    """The metrics of 64 actions in each kind of learning, and of 256 tokens."""
    config = LlamaConfig(512, 192, 512, layers, 6, 2, max_position_embeddings=512)
    rows = {
        kind: agreement.scored(config, dtype, excess, 64, 48, 8, **more).facts
        for kind, more in agreement.LEARNED.items()
    }
    return rows | {"tokens": agreement.sampled(config, dtype, excess, 16, 32, 16).facts}


def of_glam(model: str, dtype: str, excess: bool, widths: int) -> dict[str, float]:
    """The metrics of the first minibatch of 16 prompts, played in groups of 4 and learned in groups of 4."""
    ppo = replace(DEMO.ppo, num_envs=8, num_steps=2, minibatches=1, microbatches=4, epochs=1, pool_size=8)
    built_dtype = dtype if dtype in get_args(ComputeDtype) else "float32"
    glam = build(replace(DEMO, model=model, ppo=ppo, dtype=built_dtype, score_rows=4, score_widths=widths))
    policy, drawn = glam.policy, glam.policy.base
    if built_dtype != dtype:  # a dtype that no command trains in
        kind = jnp.dtype(dtype)
        narrow = policy.model.clone(dtype=kind, param_dtype=kind)
        policy = replace(policy, model=narrow, base=lambda key: jax.tree.map(lambda x: x.astype(kind), drawn(key)))
    learner = PPO(glam.ppo, glam.env, glam.env_params, policy, Placement(None), None, None)
    _, metrics = jax.jit(learner.update, **agreement.options_of(excess))(learner.init(jax.random.key(0)))
    return {ours: float(metrics[name]) for name, ours in METRICS.items()}


def main() -> None:
    x = parse(Experiment, description=__doc__)
    results: dict[str, Any] = {"command": shlex.join(["python", "-m", "experiments.agreement", *sys.argv[1:]])}
    results |= {"machine": info.stamp("experiments")}
    for dtype, excess in COMPUTED:
        which = dtype + ", excess precision" * excess
        rows = results.setdefault("programs", {})[which] = of_programs(x.layers, dtype, excess)
        if x.model:
            lengths = {f"lengths {n}": of_glam(x.model, dtype, excess, n) for n in (1, 4)}
            results.setdefault("glam", {})[which] = lengths
            rows = rows | lengths
        for kind, metrics in rows.items():
            print(
                f"{which:28} {kind:36}", ", ".join(f"{name} {value:.3g}" for name, value in metrics.items()), flush=True
            )
        write_whole(Path(x.out) / "agreement.json", json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
