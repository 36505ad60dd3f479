"""Callbacks on one core."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


PROGRAM = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import PACKAGE
import jax, jax.numpy as jnp, numpy as np

slow = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, x: jnp.sin(x) + i, x))
host = jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
x = jnp.zeros((256, 2000))
for _ in range(3):
    x = host(slow(x))
print(x[0, 0] >= 0)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
@pytest.mark.parametrize("package", ["envs_jax", "llmrl_jax.tuning.rewards"])
def test_a_callback_whose_input_is_not_ready_does_not_wait_for_itself(package):
    """With NumPy in the place of the package this program never ends (jax 0.10.2)."""
    environment = {name: value for name, value in os.environ.items() if name != "NPROC"}
    program = [sys.executable, "-c", PROGRAM.replace("PACKAGE", package)]
    found = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=100, check=True)
    assert found.stdout == "True\n"
