"""Seeded models of every family by Hugging Face's names, and the recorder: `python tests/parity/families.py`."""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


LENGTH, VOCAB, WIDTH, MLP, LAYERS, HEADS = 192, 64, 48, 64, 3, 4
SHORT = 150
"""Real tokens of the second row, which is padded on the left."""
DATA = Path(__file__).parents[1] / "data"
RECORDED = DATA / "lm_families.npz"
ADAPTER = DATA / "peft_adapter"
"""An adapter that peft wrote, for the family `ADAPTED`; its logits are recorded as "adapter"."""
ADAPTED = "qwen2-window"

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@dataclass(frozen=True)
class Family:
    """A model as a hub would hold it: the fields of its config.json beside the sizes, as that release spelt them."""

    name: str
    kind: str
    kv_heads: int
    fields: dict[str, Any] = field(default_factory=dict)
    tied: bool = False
    head_dim: int = WIDTH // HEADS
    buffers: bool = False
    """Whether the file holds the buffers `rotary_emb.inv_freq`, as the first ones did."""

    def __str__(self) -> str:
        return self.name

    def config(self) -> dict[str, Any]:
        """The config.json."""
        return {
            "architectures": [f"{self.kind.capitalize()}ForCausalLM"],
            "model_type": self.kind,
            "vocab_size": VOCAB,
            "hidden_size": WIDTH,
            "intermediate_size": MLP,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": LENGTH,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **({"head_dim": self.head_dim} if self.head_dim != WIDTH // HEADS else {}),
            **self.fields,
        }

    def weights(self) -> dict[str, np.ndarray]:
        """Every tensor, large enough for attention, biases and norms to matter."""
        heads, kv = HEADS * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (VOCAB, WIDTH),
            "model.norm.weight": (WIDTH,),
        }
        if not self.tied:
            shapes["lm_head.weight"] = (VOCAB, WIDTH)
        for i in range(LAYERS):
            layer = {
                "self_attn.q_proj.weight": (heads, WIDTH),
                "self_attn.k_proj.weight": (kv, WIDTH),
                "self_attn.v_proj.weight": (kv, WIDTH),
                "self_attn.o_proj.weight": (WIDTH, heads),
                "mlp.gate_proj.weight": (MLP, WIDTH),
                "mlp.up_proj.weight": (MLP, WIDTH),
                "mlp.down_proj.weight": (WIDTH, MLP),
                "input_layernorm.weight": (WIDTH,),
                "post_attention_layernorm.weight": (WIDTH,),
            }
            if self.kind == "qwen2":
                layer |= {f"self_attn.{n}_proj.bias": (heads if n == "q" else kv,) for n in "qkv"}
            if self.kind == "qwen3":
                layer |= {f"self_attn.{n}_norm.weight": (self.head_dim,) for n in "qk"}
            if self.buffers:
                layer["self_attn.rotary_emb.inv_freq"] = (self.head_dim // 2,)
            shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
        return {name: self._draw(name, shape) for name, shape in shapes.items()}

    def _draw(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([zlib.crc32(self.name.encode()), zlib.crc32(name.encode())])
        values = rng.standard_normal(shape, np.float32)
        if "norm" in name:
            return np.float32(1) + np.float32(0.2) * values
        return np.float32(0.3 if "q_proj" in name or "k_proj" in name else 0.12) * values

    def write(self, folder: Path) -> Path:
        """The model as a folder of Hugging Face's layout."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config()))
        save_file(self.weights(), folder / "model.safetensors", metadata={"format": "pt"})
        return folder


FAMILIES = (
    Family("llama1", "llama", 4, {"torch_dtype": "float16", "pad_token_id": 0}, buffers=True),
    Family("llama2", "llama", 2, {"rope_scaling": None, "pretraining_tp": 1, "torch_dtype": "float16"}),
    Family("llama3", "llama", 1, {"rope_theta": 500000.0, "eos_token_id": [2, 3]}),
    Family(
        "llama31", "llama", 2, {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, **_LLAMA3}}
    ),
    Family(
        "llama32",
        "llama",
        2,
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, **_LLAMA3}, "dtype": "bfloat16"},
        tied=True,
        head_dim=16,
    ),
    Family("tinyllama", "llama", 4, {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    Family("mistral-window", "mistral", 2, {"rope_theta": 10000.0, "sliding_window": 24}),
    Family("mistral-whole", "mistral", 2, {"rope_theta": 1e6, "sliding_window": None}, head_dim=16),
    Family(
        "qwen2",
        "qwen2",
        2,
        {"rope_theta": 1e6, "use_sliding_window": False, "sliding_window": 24, "max_window_layers": 1},
    ),
    Family("qwen2-window", "qwen2", 4, {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    Family(
        "qwen25",
        "qwen2",
        1,
        {
            "use_sliding_window": False,
            "use_mrope": False,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 48,
            },
        },
        tied=True,
    ),
    Family("qwen3", "qwen3", 2, {"rope_theta": 1e6, "attention_bias": False}, tied=True, head_dim=20),
    Family(
        "qwen3-window",
        "qwen3",
        2,
        {
            "use_sliding_window": True,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        head_dim=16,
    ),
)


def inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`(tokens, positions, at)`: a whole row and one padded on the left, -1 at pads, and 8 places of each."""
    tokens = np.random.default_rng(11).integers(0, VOCAB, (2, LENGTH)).astype(np.int32)
    steps = np.arange(LENGTH, dtype=np.int32)
    pads = LENGTH - SHORT
    positions = np.stack([steps, np.where(steps < pads, -1, steps - pads)])
    at = np.stack([np.linspace(0, LENGTH - 1, 8), pads + np.linspace(0, SHORT - 1, 8)]).astype(np.int32)
    return tokens, positions, at


def torch_model(folder: Path) -> Any:
    """A model folder in transformers, in float32 and with eager attention."""
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)


def torch_adapter(folder: Path, **fields: Any) -> Any:
    """A model folder in peft, with a fresh adapter whose matrices, and modules trained whole, are random."""
    import peft
    import torch

    torch.manual_seed(0)
    model = peft.get_peft_model(torch_model(folder), peft.LoraConfig(task_type="CAUSAL_LM", **fields))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                value += 0.1 * torch.randn(value.shape)
    return model


def torch_logits(model: Any) -> np.ndarray:
    """Its logits `[2, 8, V]` at the chosen places."""
    import torch

    tokens, positions, at = inputs()
    with torch.no_grad():
        out = model.eval()(
            input_ids=torch.tensor(tokens).long(),
            attention_mask=torch.tensor(positions >= 0).long(),
            position_ids=torch.tensor(positions).long().clamp(min=0),
        ).logits.numpy()
    return np.take_along_axis(out, at[..., None], axis=1)


def main() -> None:
    recorded = {}
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            recorded[family.name] = torch_logits(torch_model(family.write(Path(folder) / family.name)))
            print(family, np.abs(recorded[family.name]).max())
        adapted = torch_adapter(
            Path(folder) / ADAPTED,
            r=2,
            lora_alpha=3,
            use_rslora=True,
            target_modules=["q_proj", "v_proj", "o_proj", "down_proj"],
            layers_to_transform=[0, 2],
            rank_pattern={"model.layers.2.self_attn.q_proj": 3, "v_proj": 1},
            alpha_pattern={r"layers\.0\..*proj": 5},
            exclude_modules=["model.layers.2.self_attn.v_proj"],
            modules_to_save=["model.norm"],
        )
        recorded["adapter"] = torch_logits(adapted)
        adapted.save_pretrained(ADAPTER)
        (ADAPTER / "README.md").unlink(missing_ok=True)
        # The base's folder was a temporary one.
        text = json.loads((ADAPTER / "adapter_config.json").read_text())
        (ADAPTER / "adapter_config.json").write_text(
            json.dumps({**text, "base_model_name_or_path": None}, indent=1) + "\n"
        )
    np.savez_compressed(RECORDED, **recorded)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
