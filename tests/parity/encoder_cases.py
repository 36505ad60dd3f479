"""Seeded sentence encoders as published folders spell them; to record: `python tests/parity/encoder_cases.py`."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


WIDTH, MLP, POSITIONS = 32, 48, 16
RECORDED = Path(__file__).parents[1] / "data" / "lm_encoder.npz"
WORDS = ["chop", "tree", "trees", "eat", "cow", "The", "the", "Paris", "paris", "a", "s", "##s", "##ing", ".", ",", "'"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TEXTS = ["chop tree", "Eat the cow.", "", "The trees, chopping Paris's cow", "eat " * 40, "unknown"]
LENGTHS = np.array([12, 1, 5, 8], np.int32)


@dataclass(frozen=True)
class EncoderCase:
    """A model as a hub would hold it, with the layers and heads of that release and small widths."""

    name: str
    layers: int
    heads: int
    prefix: str = ""
    """What stands before each tensor's name."""
    old: bool = False
    """Whether norms are spelt gamma and beta, and heads for pre-training stand beside the model."""
    config: dict[str, Any] = field(default_factory=lambda: {"model_type": "bert"})
    pooling: dict[str, Any] | None = None
    """`1_Pooling/config.json`; None: a bare model, without `modules.json`."""
    lower: bool = True
    fast: bool = True
    """Whether there is a `tokenizer.json`, or only `vocab.txt`."""

    def __str__(self) -> str:
        return self.name

    def hf_config(self) -> dict[str, Any]:
        """The config.json."""
        return {
            **self.config,
            "vocab_size": len(VOCABULARY),
            "hidden_size": WIDTH,
            "intermediate_size": MLP,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "max_position_embeddings": POSITIONS,
            "type_vocab_size": 2,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12,
            "hidden_dropout_prob": 0.1,
        }

    def tensors(self) -> dict[str, np.ndarray]:
        """The weights by the names that transformers gives them today."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        shapes: dict[str, tuple[int, ...]] = {
            "embeddings.word_embeddings.weight": (len(VOCABULARY), WIDTH),
            "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
            "embeddings.token_type_embeddings.weight": (2, WIDTH),
            "embeddings.LayerNorm.weight": (WIDTH,),
            "embeddings.LayerNorm.bias": (WIDTH,),
            "pooler.dense.weight": (WIDTH, WIDTH),
            "pooler.dense.bias": (WIDTH,),
        }
        for i in range(self.layers):
            at = f"encoder.layer.{i}"
            for name in ("self.query", "self.key", "self.value", "output.dense"):
                shapes[f"{at}.attention.{name}.weight"] = (WIDTH, WIDTH)
                shapes[f"{at}.attention.{name}.bias"] = (WIDTH,)
            shapes |= {f"{at}.intermediate.dense.weight": (MLP, WIDTH), f"{at}.intermediate.dense.bias": (MLP,)}
            shapes |= {f"{at}.output.dense.weight": (WIDTH, MLP), f"{at}.output.dense.bias": (WIDTH,)}
            for norm in (f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"):
                shapes |= {f"{norm}.weight": (WIDTH,), f"{norm}.bias": (WIDTH,)}
        means = {name: float(name.endswith("LayerNorm.weight")) for name in shapes}
        return {n: np.asarray(means[n] + 0.2 * rng.standard_normal(s), np.float32) for n, s in shapes.items()}

    def write(self, folder: Path) -> Path:
        """The whole folder, below `folder`."""
        folder = folder / self.name
        folder.mkdir(parents=True)
        tensors = {}
        for name, value in self.tensors().items():
            if self.old:
                name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[self.prefix + name] = value
        if self.old:
            tensors["cls.predictions.bias"] = np.zeros(len(VOCABULARY), np.float32)
            tensors["cls.predictions.transform.LayerNorm.gamma"] = np.zeros(WIDTH, np.float32)
        else:
            tensors[self.prefix + "embeddings.position_ids"] = np.arange(POSITIONS)[None]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        put = lambda name, value: (folder / name).write_text(json.dumps(value))  # noqa: E731
        put("config.json", self.hf_config())
        put("tokenizer_config.json", {"do_lower_case": self.lower, "model_max_length": 512, "cls_token": "[CLS]"})
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
        if self.fast:
            from tokenizers import BertWordPieceTokenizer

            tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=self.lower)
            # As the packaged MiniLM has them; both must be overridden.
            tokenizer.enable_truncation(3)
            tokenizer.enable_padding(length=14)
            tokenizer.save(str(folder / "tokenizer.json"))
        if self.pooling is not None:
            kinds = ("Transformer", "Pooling", "Normalize")
            paths = ("", "1_Pooling", "2_Normalize")
            put(
                "modules.json", [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in zip(kinds, paths)]
            )
            put("sentence_bert_config.json", {"max_seq_length": 10, "do_lower_case": False})
            (folder / "1_Pooling").mkdir()
            put("1_Pooling/config.json", self.pooling)
        return folder


CASES = [
    EncoderCase("all-MiniLM-L6-v2", 6, 8, pooling={"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}),
    EncoderCase("paraphrase-MiniLM-L3-v2", 3, 4, pooling={"pooling_mode": "mean", "embedding_dimension": WIDTH}),
    EncoderCase("bert-small", 4, 2, "bert.", config={}, fast=False),
    EncoderCase("bert-base-cased", 8, 4, "bert.", old=True, lower=False),
]
BY_NAME = {case.name: case for case in CASES}


def inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, lengths and token types: rows of different lengths, whose pads hold tokens and whose texts hold pads."""
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, len(VOCABULARY), (4, 12)).astype(np.int32)
    tokens[0, 3] = 0
    return tokens, LENGTHS, rng.integers(0, 2, (4, 12)).astype(np.int32)


def torch_model(case: EncoderCase) -> Any:
    """transformers' BertModel with the case's weights, in float32."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(**{k: v for k, v in case.hf_config().items() if k != "model_type"}, attn_implementation="eager")
    model = BertModel(config).eval()
    missing, extra = model.load_state_dict({k: torch.tensor(v) for k, v in case.tensors().items()}, strict=False)
    assert not [m for m in missing if "position_ids" not in m] and not extra
    return model


def torch_states(case: EncoderCase) -> tuple[np.ndarray, np.ndarray]:
    """transformers' last states, zero at pads, and pooler output, for `inputs`."""
    import torch

    tokens, lengths, types = inputs()
    real = np.arange(tokens.shape[1]) < lengths[:, None]
    ids, kinds, mask = (torch.tensor(np.asarray(x, np.int64)) for x in (tokens, types, real))
    with torch.no_grad():
        out = torch_model(case)(input_ids=ids, token_type_ids=kinds, attention_mask=mask)
    return out.last_hidden_state.numpy() * real[..., None], out.pooler_output.numpy()


def main() -> None:
    recorded = {}
    for case in CASES:
        recorded[case.name], recorded[f"{case.name}/pooled"] = torch_states(case)
    np.savez_compressed(RECORDED, **recorded)


if __name__ == "__main__":
    main()
