"""The changes that `llmrl lm fit` advises can all be made."""

from __future__ import annotations

import itertools

import pytest

from llmrl_jax.workflows.memory.config import FitConfig
from llmrl_jax.workflows.memory.fit import knobs


@pytest.mark.parametrize("workload", ["sft", "grpo", "score", "generate"])
def test_every_advice_is_a_valid_command(workload):
    """Each is built, and so checked; also with the others before it, as `advice` combines them."""
    for batch, parts, mesh in itertools.product((1, 2, 6, 8, 16), (1, 2, 4, 8, 16), ("", "data=2", "data=2,fsdp=2")):
        try:
            config = FitConfig("m", workload, batch, microbatches=parts, mesh=mesh)
        except ValueError:  # no command that was asked
            continue
        for _ in range(3):
            found = dict(knobs(config))
            for flag, changed in found.items():
                name, value = (*flag.split(), "True")[:2]
                assert str(getattr(changed, name.removeprefix("--").replace("-", "_"))) == value
            config = list(found.values())[-1] if found else config


def test_half_a_batch_that_the_microbatches_do_not_divide_is_not_advised():
    assert "--batch-size 4" in dict(knobs(FitConfig("m", batch_size=8, mesh="data=2", microbatches=4)))
    for parts in (8, 16):
        names = [flag.split()[0] for flag, _ in knobs(FitConfig("m", batch_size=parts, microbatches=parts))]
        assert "--batch-size" not in names and "--remat" in names
