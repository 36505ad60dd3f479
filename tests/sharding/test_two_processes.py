"""A run of two processes is told to stop, and goes on in one process with another mesh: as if it had never stopped."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest


UPDATES = 40
PROGRAM = f"""
import sys
process, processes, port, mesh, out, *more = sys.argv[1:]
from llmrl_jax.parallel import initialize, make_mesh, shardings
if int(processes) > 1:
    initialize(f"localhost:{{port}}", int(processes), int(process))
import jax, jax.numpy as jnp, numpy as np
from llmrl_jax import lm
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import train
from llmrl_jax.tuning import Example, SFTConfig, make_sft, pack

mesh = make_mesh(mesh)
model = lm.Llama(lm.LlamaConfig(32, 32, 64, 2, 4, 2, max_position_embeddings=32), lora=lm.LoRAConfig(rank=4))
places = shardings(model.abstract()["params"], model.logical_axes()["params"], mesh)
draw = jax.jit(lambda key: model.init(key, jnp.zeros((1, 1), jnp.int32))["params"], out_shardings=places)
rng = np.random.default_rng(0)
rows = [Example(rng.integers(1, 32, 12).tolist(), [False] * 4 + [True] * 8) for _ in range(24)]
options = SFTConfig(batch_size=8, learning_rate=3e-3)
learner = make_sft(options, model, {{"params": draw(jax.random.key(1))}}, pack(rows, 16), {UPDATES}, mesh)
run = RunConfig("run", out, checkpoint_every=2, resume="resume" in more, progress="off")
result = train(learner, run, num_updates={UPDATES})
kernel = learner.init(jax.random.key(0)).frozen["base"]["params"]["layers"]["mlp"]["up_proj"]["kernel"]
part = kernel.addressable_shards[0].data.size / kernel.size
how = result.stopped or "whole"
print(f"ended: {{result.update}} of {UPDATES}, {{how}}, {{jax.process_count()}} processes, {{part}}")
"""


def start(devices: int, *args: str) -> subprocess.Popen:
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=Path(__file__).parents[2],
    )


def ended(process: subprocess.Popen) -> str:
    """The last line that a process printed (gloo prints before it)."""
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err[-3000:]
    return next(line for line in out.splitlines() if line.startswith("ended: "))


def lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_two_processes_stop_and_one_goes_on(tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    both = [start(2, str(i), "2", port, "data=2,fsdp=2", str(cut)) for i in range(2)]
    limit = time.monotonic() + 150
    while not (cut / "run" / "checkpoints" / "4").exists():
        assert time.monotonic() < limit and all(p.poll() is None for p in both), [p.communicate() for p in both]
        time.sleep(0.02)
    both[1].send_signal(signal.SIGTERM)  # one hears it, both stop after the same update
    said = [ended(process) for process in both]
    update = int(said[0].split()[1])
    assert 4 <= update < UPDATES
    assert said[0] == f"ended: {update} of {UPDATES}, a signal to another process, 2 processes, 0.5"
    assert said[1] == f"ended: {update} of {UPDATES}, SIGTERM, 2 processes, 0.5"
    assert len(lines(cut)) == update

    assert ended(start(4, "0", "1", "", "fsdp=4", str(cut), "resume")).endswith("whole, 1 processes, 0.25")
    assert ended(start(4, "0", "1", "", "data=2,fsdp=2", str(whole))).endswith("whole, 1 processes, 0.5")
    found, expected = lines(cut), lines(whole)
    assert [line["update"] for line in found] == list(range(1, UPDATES + 1))
    for line, other in zip(found, expected, strict=True):
        for name in ("loss", "entropy", "grad_norm", "learning_rate", "epoch", "taught_tokens", "steps"):
            assert math.isclose(line[name], other[name], rel_tol=1e-4), (line["update"], name, line[name], other[name])
    assert expected[-1]["loss"] < 0.99 * expected[0]["loss"]
