"""Reports of `llmrl lm fit --target`, as a process of its own: the compilers read the environment once, when loaded.

    python tests/absent_reports.py '[{"workload": "dqn", "target": "v5e:2x4"}]'

prints a JSON list with the report of each, and its program as text.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


ROOT = Path(__file__).parent.parent
SHAPE = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "tie_word_embeddings": True,
}  # fmt: skip
"""A tiny model."""


def reports(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reports of several options of `llmrl lm fit`."""
    left_out = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, __file__, json.dumps(cases)]
    done = subprocess.run(command, env=kept | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def report(case: dict[str, Any]) -> dict[str, Any]:
    from llmrl_jax.cli.workload_config import WorkloadConfig
    from llmrl_jax.cli.workloads import fit as fit_system
    from llmrl_jax.workflows.memory.config import LANGUAGE
    from llmrl_jax.workflows.memory.fit import fit

    config = WorkloadConfig(**case)
    found = (fit if config.workload in LANGUAGE else fit_system)(config)
    return found.facts() | {"program": found.program and found.program.as_text()}


if __name__ == "__main__":
    from llmrl_jax.core.files import json_values

    print(json.dumps([json_values(report(case)) for case in json.loads(sys.argv[1])]))
