"""Loading streams: what a process needs beside the weights is the largest tensor and a tenth of the model, at most."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.lm import declare


CONFIG = lm.LlamaConfig(12_000, 512, 1536, 24, 8, 4, dtype="bfloat16")
SHARDS = 4

# What the process holds before, at the peak, and the bytes that the devices hold after. Compiling needs memory of its
# own, so the same programs are compiled before the first reading, and what that left is given back to the system; the
# peak is set back by writing 5 to clear_refs.
SCRIPT = """
import ctypes, gc, json, sys, jax
from llmrl_jax import lm

def status(name):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(name + ":"))

folder, dtype = sys.argv[1:]
lm.load(folder, dtype=dtype)
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
model, variables = lm.load(folder, dtype=dtype)
held = sum(x.nbytes for x in jax.tree.leaves(variables))
print(json.dumps({"before": before, "peak": status("VmHWM"), "held": held}))
"""


def sparse(folder: Path, config: lm.LlamaConfig) -> int:
    """A model folder of zeros that takes no room on the disk, in several shards; returns its largest tensor's bytes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config.to_hf()))
    leaves = jax.tree.leaves(declare.declare(config), is_leaf=declare.is_leaf)
    tensors = {leaf.hf.format(i): leaf.hf_shape for leaf in leaves for i in range(leaf.shape[0] if leaf.stacked else 1)}
    weight_map, largest = {}, 0
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        end, header = 0, {}
        for tensor in sorted(tensors)[shard::SHARDS]:
            size = 2 * int(np.prod(tensors[tensor]))
            header[tensor] = {"dtype": "BF16", "shape": tensors[tensor], "data_offsets": [end, end + size]}
            end, largest = end + size, max(largest, size)
            weight_map[tensor] = name
        text = json.dumps(header).encode()
        with open(folder / name, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return largest


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak is read from /proc (Linux)")
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_the_peak_of_loading(dtype, tmp_path):
    """Files in bfloat16, read as float32 (every tensor is cast) or as they are."""
    largest = sparse(tmp_path / "model", CONFIG) * (2 if dtype == "float32" else 1)
    env = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "LLMRL_TYPECHECK": "0"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "model"), dtype]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["held"] > 150e6
    beside = told["peak"] - told["before"] - told["held"]
    print(f"{dtype}: held {told['held'] / 1e6:.0f} MB, beside it {beside / 1e6:.0f} MB, largest {largest / 1e6:.0f} MB")
    assert beside <= largest + 0.1 * told["held"]
