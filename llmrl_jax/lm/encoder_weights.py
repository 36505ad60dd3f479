"""Loading of sentence encoders: BERT folders of Hugging Face and of sentence-transformers, and the packaged MiniLM."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from llmrl_jax.core.packaged import ENCODERS, MINILM
from llmrl_jax.lm import declare
from llmrl_jax.lm.encoder import (
    Bert,
    BertConfig,
    HashedEncoder,
    Pooling,
    SentenceEncoder,
    TextEncoder,
    check_options,
    declare_bert,
)
from llmrl_jax.lm.source import CONFIG, locate_folder
from llmrl_jax.lm.tensors import TensorFile, empty, pickles, read_json
from llmrl_jax.lm.tokens import TOKENIZER_FILE, FastTokenizer, load_tokenizer
from llmrl_jax.lm.weights import SINGLE
from llmrl_jax.parallel.partition import replicated


_LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The former fields of sentence-transformers for poolings, and the values of the present single field."""


def _read_list(file: Path) -> list[dict[str, Any]]:
    """A JSON list of objects. **Raises:** `ValueError`, naming the file, for anything else."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError(f"{file} is not a JSON list of objects")
    return value


def _modules(folder: Path) -> tuple[Path, Pooling, bool]:
    """The folder of the transformer, its pooling, and whether the vector is normalised, from `modules.json`; without
    it the mean, not normalised, as sentence-transformers loads a bare model."""
    file = folder / "modules.json"
    if not file.is_file():
        return folder, "mean", False
    listed = _read_list(file)
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in listed]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(
            f"{file} chains the modules {', '.join(kinds)}; supported: Transformer, Pooling and then perhaps Normalize"
        )
    settings = folder / "config_sentence_transformers.json"
    if settings.is_file() and (prompt := read_json(settings).get("default_prompt_name")) is not None:
        raise ValueError(f"{settings} puts the prompt {prompt!r} before every text, which is not supported")
    return folder / str(listed[0].get("path", "")), _pooling(folder / str(listed[1].get("path", ""))), len(kinds) == 3


def _pooling(folder: Path) -> Pooling:
    file = folder / CONFIG
    if not file.is_file():
        raise FileNotFoundError(f"modules.json lists a Pooling, but there is no {file}: copy or download it again")
    config = read_json(file)
    pooling = config.get("pooling_mode", [mode for name, mode in _LEGACY_MODES.items() if config.get(name)] or "mean")
    modes = [pooling] if isinstance(pooling, str) else list(pooling)
    if modes not in (["mean"], ["cls"]):
        raise ValueError(f"{file} pools by {', '.join(map(str, modes))}; supported there: mean, or cls")
    return modes[0]


def _tokenizer(folder: Path) -> tuple[FastTokenizer, int, int]:
    """The tokenizer of a BERT folder and the ids of its [CLS] and [SEP]."""
    file = folder / "tokenizer_config.json"
    config = read_json(file) if file.is_file() else {}
    if (folder / TOKENIZER_FILE).is_file():
        tokenizer = load_tokenizer(folder)
    elif (folder / "vocab.txt").is_file():
        from tokenizers import BertWordPieceTokenizer

        wordpiece = BertWordPieceTokenizer(
            str(folder / "vocab.txt"),
            lowercase=config.get("do_lower_case", True),
            strip_accents=config.get("strip_accents"),
            handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        )
        tokenizer = FastTokenizer(wordpiece._tokenizer, pad_token="[PAD]")
    else:
        raise FileNotFoundError(f"{folder} holds no tokenizer, neither {TOKENIZER_FILE} nor vocab.txt")
    ids = []
    for name, default in (("cls_token", "[CLS]"), ("sep_token", "[SEP]")):
        token = config.get(name, default)
        token = token["content"] if isinstance(token, dict) else token
        token_id = tokenizer.backend.token_to_id(token)
        if token_id is None:
            raise ValueError(f"the {name} {token!r} is not in the vocabulary of the tokenizer in {folder}")
        ids.append(token_id)
    tokenizer.prefix_ids = ()  # the encoder puts [CLS] there itself
    return tokenizer, ids[0], ids[1]


def _names(file: TensorFile, leaves: list[declare.ParamSpec]) -> dict[str, str]:
    """The name in the file of each declared tensor, checked from the header only.

    A file may prefix every name with `bert.`, contain heads for other tasks, and name a norm's weights gamma and beta.
    """
    file_names = {}
    prefix = "bert." if any(name.startswith("bert.") for name in file.specs) else ""
    for name in file.specs:
        if name.startswith(prefix):
            plain = name.removeprefix(prefix)
            plain = plain.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            file_names[plain] = name
    shapes = {
        (leaf.hf or "").format(i): leaf.hf_shape for leaf in leaves for i in range(leaf.shape[0] if leaf.stacked else 1)
    }
    missing = [name for name in shapes if name not in file_names]
    if missing:
        remaining = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        hint = "; choose pooling 'mean' or 'cls'" if missing[0].startswith("pooler.") else ""
        raise ValueError(f"{file.path} lacks the tensor {prefix}{missing[0]}{remaining}{hint}")
    for name, shape in shapes.items():
        file.check(file_names[name], shape, CONFIG)
    unread = [name for name in file_names if name not in shapes and name.startswith(("embeddings.", "encoder."))]
    unread = [name for name in unread if name != "embeddings.position_ids"]
    if unread:
        remaining = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
        raise ValueError(
            f"{file.path} holds the tensor {file_names[unread[0]]}{remaining}, which its {CONFIG} has no place for"
        )
    return {name: file_names[name] for name in shapes}


def _read(file: TensorFile, leaf: declare.ParamSpec, names: dict[str, str], dtype: Any) -> np.ndarray:
    """A leaf in this package's layout, filled through a view in the file's layout."""
    array = empty(leaf.shape, dtype)
    for i, part in enumerate(array if leaf.stacked else [array]):
        view = part.reshape(leaf.hf_shape[::-1]).T if leaf.fan_in else part.reshape(leaf.hf_shape)
        file.fill(names[(leaf.hf or "").format(i)], view)
    return array


def load_encoder(
    path_or_id: str | Path,
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
    mesh: Mesh | None = None,
    dtype: Any = jnp.float32,
    revision: str | None = None,
) -> SentenceEncoder:
    """Load a BERT: a folder of Hugging Face's or of sentence-transformers' layout, a packaged encoder by its name
    (`all-minilm-l6-v2`), or a hub id (`OWNER/NAME`).

    Names, shapes, dtypes and the tokenizer are checked before a tensor is allocated.

    **Arguments:** `pooling`, `normalize`, `max_length`: None uses the folder's settings (`modules.json`,
    `1_Pooling/config.json`, `sentence_bert_config.json`), or, for a bare model, the mean, not normalised, and as many
    tokens as tokenizer and positions allow; `mesh`, over which the weights are replicated (None: on the first
    device); `dtype`, of weights and computation; `revision`, of a hub id.
    **Raises:** `FileNotFoundError` for a missing file; `ValueError`, with the name, for an unsupported architecture,
    module or field, or a missing, extra or misshapen tensor.
    """
    folder = locate_folder(path_or_id, revision=revision, names=ENCODERS)
    inner, its_pooling, its_normalize = _modules(folder)
    if not (inner / CONFIG).is_file():
        raise FileNotFoundError(f"{inner} holds no {CONFIG}: it is not a model folder of Hugging Face's layout")
    try:
        config = BertConfig.from_hf(read_json(inner / CONFIG))
    except ValueError as error:
        raise ValueError(f"{inner / CONFIG}: {error}") from None
    tokenizer, cls_id, sep_id = _tokenizer(inner)
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"the tokenizer in {inner} has {tokenizer.vocab_size} tokens, the model's table {config.vocab_size} "
            "(vocab_size): they do not belong together"
        )
    limits, lowercase = _limits(inner)
    length = min([config.max_position_embeddings, *limits]) if max_length is None else max_length
    pooling = its_pooling if pooling is None else pooling
    model = Bert(config, pooler=pooling == "pooler", dtype=dtype, param_dtype=dtype)
    check_options(model, pooling, length)
    if not (inner / SINGLE).is_file():
        raise FileNotFoundError(f"{inner} holds no {SINGLE}{pickles(inner)}")
    structure: Any
    leaves, structure = jax.tree.flatten(declare_bert(config, model.pooler), is_leaf=declare.is_leaf)
    device = jax.devices()[0] if mesh is None else replicated(mesh)
    with closing(TensorFile(inner / SINGLE)) as file:
        names = _names(file, leaves)
        arrays = [jax.device_put(_read(file, leaf, names, dtype), device) for leaf in leaves]
    return SentenceEncoder(
        model,
        {"params": jax.tree.unflatten(structure, arrays)},
        tokenizer,
        name=Path(path_or_id).name,
        pooling=pooling,
        normalize=its_normalize if normalize is None else normalize,
        max_length=length,
        cls_id=cls_id,
        sep_id=sep_id,
        lowercase=lowercase,
    )


def _limits(folder: Path) -> tuple[list[int], bool]:
    """The maximum lengths set by sentence-transformers, or else by the tokenizer; and whether texts are lower-cased."""
    ours, theirs = folder / "sentence_bert_config.json", folder / "tokenizer_config.json"
    config = read_json(ours) if ours.is_file() else {}
    length = config.get("max_seq_length")
    if length is None and theirs.is_file():
        length = read_json(theirs).get("model_max_length")
    return [] if length is None else [int(length)], bool(config.get("do_lower_case", False))


HASHED, AUTO = "hashed", "auto"


def resolved(name: str) -> str:
    """The encoder that `auto` stands for on this machine; other names unchanged."""
    if name != AUTO:
        return name
    return HASHED if MINILM.folder() is None else MINILM.name


def make_encoder(name: str) -> TextEncoder:
    """The encoder of a name: `auto`, `hashed`, or one that `load_encoder` knows. **Raises:** what that raises."""
    name = resolved(name)
    return HashedEncoder() if name == HASHED else load_encoder(name)
