"""Seeded Llamas over the matrix of rope types, bases, groups, ties, head sizes and paddings, by Hugging Face's names.

The weights come from numpy seeds, so only a slice of the logits has to be recorded; the tests write the weights as a
safetensors folder and read it back with the library, so that loading is part of what is compared.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


LENGTH, VOCAB, WIDTH, LAYERS, HEADS = 2048, 64, 64, 2, 8
SHORT = 1500
"""Real tokens of the padded row."""

ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
}
THETAS = (1e4, 5e5, 1e6)
GROUPS = (1, 2, 8)


@dataclass(frozen=True)
class Case:
    """One model and one padding."""

    rope: str
    theta: float
    groups: int
    tied: bool
    head_dim: int
    """8 is width / heads; anything else is not."""
    left: bool

    def __str__(self) -> str:
        head = f"{'tied' if self.tied else 'untied'}-head{self.head_dim}"
        return f"{self.rope}-{self.theta:g}-gqa{self.groups}-{head}-{'left' if self.left else 'right'}"

    def config(self) -> dict[str, Any]:
        """The model's `config.json`, as transformers 5 spells it."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCAB,
            "hidden_size": WIDTH,
            "intermediate_size": 96,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS // self.groups,
            "head_dim": self.head_dim,
            # A dynamic rope only acts beyond the trained length.
            "max_position_embeddings": 512 if self.rope == "dynamic" else LENGTH,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": self.tied,
            "rope_parameters": {"rope_type": self.rope, "rope_theta": self.theta, **ROPES[self.rope]},
            "hidden_act": "silu",
            "dtype": "float32",
            "bos_token_id": 1,
            "eos_token_id": 2,
        }

    def weights(self) -> dict[str, np.ndarray]:
        """Every tensor by Hugging Face's name, large enough for attention to matter."""
        kv, size = HEADS // self.groups, self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (VOCAB, WIDTH),
            "model.norm.weight": (WIDTH,),
        }
        if not self.tied:
            shapes["lm_head.weight"] = (VOCAB, WIDTH)
        for i in range(LAYERS):
            layer = f"model.layers.{i}."
            shapes |= {
                layer + "self_attn.q_proj.weight": (HEADS * size, WIDTH),
                layer + "self_attn.k_proj.weight": (kv * size, WIDTH),
                layer + "self_attn.v_proj.weight": (kv * size, WIDTH),
                layer + "self_attn.o_proj.weight": (WIDTH, HEADS * size),
                layer + "mlp.gate_proj.weight": (96, WIDTH),
                layer + "mlp.up_proj.weight": (96, WIDTH),
                layer + "mlp.down_proj.weight": (WIDTH, 96),
                layer + "input_layernorm.weight": (WIDTH,),
                layer + "post_attention_layernorm.weight": (WIDTH,),
            }
        return {name: self._draw(name, shape) for name, shape in shapes.items()}

    def _draw(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([zlib.crc32(str(self).encode()), zlib.crc32(name.encode())])
        values = rng.standard_normal(shape, np.float32)
        # Queries and keys are drawn wider: attention that is nearly uniform would hide an error of rotation.
        scale = 0.3 if "q_proj" in name or "k_proj" in name else 0.1
        return np.float32(1) + np.float32(0.1) * values if len(shape) == 1 else np.float32(scale) * values

    def write(self, folder: Path) -> Path:
        """The model as a folder of Hugging Face's layout."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config()))
        save_file(self.weights(), folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`(tokens, positions, at)`: a whole row and a padded one, -1 at pads, and 16 places of each to compare."""
        rng = np.random.default_rng(7)
        tokens = rng.integers(0, VOCAB, (2, LENGTH)).astype(np.int32)
        positions = np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1))
        shift = LENGTH - SHORT if self.left else 0
        short = np.arange(LENGTH, dtype=np.int32) - shift
        positions[1] = np.where((short >= 0) & (short < SHORT), short, -1)
        at = np.stack([np.linspace(0, LENGTH - 1, 16), shift + np.linspace(0, SHORT - 1, 16)]).astype(np.int32)
        return tokens, positions, at


def covering() -> list[Case]:
    """Every rope type with every base; groups, ties, head sizes and paddings in turn. 15 cases."""
    return [
        Case(rope, theta, GROUPS[(i + j) % 3], bool((i + j) % 2), (8, 16)[(i // 2 + j) % 2], bool((i + j // 2) % 2))
        for i, rope in enumerate(ROPES)
        for j, theta in enumerate(THETAS)
    ]


def matrix() -> list[Case]:
    """Every rope type, base and number of groups, the rest in turn. 45 cases."""
    return [
        Case(rope, theta, groups, bool((i + j + k) % 2), (8, 16, 24)[(i + k) % 3], bool((j + k + i // 2) % 2))
        for i, rope in enumerate(ROPES)
        for j, theta in enumerate(THETAS)
        for k, groups in enumerate(GROUPS)
    ]


def torch_logits(case: Case, folder: Path) -> np.ndarray:
    """transformers' logits `[2, 16, V]` at the chosen places, each row alone, in float32 and with eager attention."""
    import torch
    import transformers

    tokens, positions, at = case.inputs()
    rows = []
    with torch.no_grad():
        for row in range(2):
            # A fresh model for each row: a dynamic rope there remembers the longest sequence it has met.
            model = transformers.LlamaForCausalLM.from_pretrained(
                folder, attn_implementation="eager", dtype=torch.float32
            )
            real = torch.tensor(positions[row : row + 1] >= 0)
            out = model.eval()(
                input_ids=torch.tensor(tokens[row : row + 1]).long(),
                attention_mask=real.long(),
                position_ids=torch.tensor(positions[row : row + 1]).long().clamp(min=0),
            )
            rows.append(out.logits[0, at[row]].numpy())
    return np.stack(rows)
