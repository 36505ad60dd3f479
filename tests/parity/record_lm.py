"""Record what transformers computes for the seeded Llamas into tests/data: `python tests/parity/record_lm.py`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np


sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.parity.lm_cases import covering, torch_logits  # noqa: E402


DATA = Path(__file__).parents[1] / "data"


def main() -> None:
    import torch
    import transformers

    DATA.mkdir(exist_ok=True)
    recorded = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in covering():
            recorded[str(case)] = torch_logits(case, case.write(Path(folder) / str(case)))
            print(case, np.abs(recorded[str(case)]).max())
    np.savez_compressed(DATA / "lm_logits.npz", **recorded)
    # The same model as transformers 4 spelt it, and as transformers 5 writes it.
    old = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0",
        "use_cache": True,
        "vocab_size": 128256,
    }
    new = json.loads(transformers.LlamaConfig(**json.loads(json.dumps(old))).to_json_string(use_diff=False))
    kept = {name: value for name, value in new.items() if name in old or name in ("rope_parameters", "dtype")}
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    (DATA / "lm_configs.json").write_text(json.dumps({"versions": versions, "v4": old, "v5": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
