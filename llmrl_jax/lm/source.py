"""Location of a model, and its configuration, which is read before its weights.

A model is a folder of Hugging Face's layout, a GGUF file, a name of `llmrl_jax.core.packaged`, or a hub id.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmrl_jax.core.checks import nearest
from llmrl_jax.core.config import a_run
from llmrl_jax.core.files import expanded
from llmrl_jax.core.packaged import LANGUAGE_MODELS, Packaged
from llmrl_jax.lm import gguf, tokens
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.tensors import read_json
from llmrl_jax.lm.tokens import Tokenizer


CONFIG, GENERATION = "config.json", "generation_config.json"
TEMPLATE = "chat_template.jinja"


def locate(model: str | Path, *, revision: str | None = None) -> Path:
    """Files of a language model: a local folder; a GGUF file; the file of an installed package by its name
    (`smollm2-135m`); or a hub id's snapshot, from the local cache or else downloaded.

    **Raises:** `FileNotFoundError` if there is none of them, with the attempts made; `ModuleNotFoundError`, with the
    command, for a packaged model that is not installed; `ValueError` for an empty name, or a file that is no model.
    """
    path = expanded(model)
    if str(model).strip() and path.is_file():
        if path.suffix != gguf.SUFFIX and not gguf.is_gguf(path):
            raise FileNotFoundError(
                f"{model} is a file, and not a GGUF file{gguf.part_of_bytes(path)}; give a folder, a GGUF file, a "
                f"Hugging Face hub id, or a name ({', '.join(LANGUAGE_MODELS)})"
            )
        return gguf.read_header(path).path
    return locate_folder(model, revision=revision, names=LANGUAGE_MODELS)


def locate_folder(
    name: str | Path, *, revision: str | None = None, names: Mapping[str, Packaged] | None = None
) -> Path:
    """A local folder, a packaged model of `names`, or a hub id's snapshot; for adapters and encoders.

    **Raises:** as `locate`."""
    text = str(name)
    packages = names or {}
    listed = f", or a name ({', '.join(packages)})" if packages else ""
    if not text.strip():
        raise ValueError(f"the model's name is empty; give a folder, or a Hugging Face hub id{listed}")
    path = expanded(name)
    if path.is_dir():
        return path
    if path.is_file():
        raise FileNotFoundError(f"{text} is a file; give the folder of the model, or a Hugging Face hub id{listed}")
    if text.lower() in packages:
        return packages[text.lower()].locate()
    if text.startswith((".", "/", "~")) or text.count("/") != 1:
        close = nearest(text.lower(), list(packages)) if packages else ""
        raise FileNotFoundError(f"no model folder {text!r}{close} (a hub id is spelled OWNER/NAME{listed})")
    return _snapshot(text, revision)


def _snapshot(name: str, revision: str | None) -> Path:
    """A hub id's files, from the local cache or, if they are not all there, downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "tokenizer.model", "vocab.txt", TEMPLATE]
    try:
        cached = Path(snapshot_download(name, revision=revision, allow_patterns=patterns, local_files_only=True))
        if _is_whole(cached):
            return cached
    except LocalEntryNotFoundError:
        pass
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise FileNotFoundError(
            f"{name!r} is no local folder, is not in the hub's local cache, and could not be downloaded "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}); "
            f"download it where there is a network and give its folder"
        ) from None


OTHER_FILES = (tokens.CONFIG_FILE, tokens.TOKENIZER_FILE, "vocab.txt", "tokenizer.model", "adapter_config.json")
"""Of which a model's or an adapter's folder has one beside the weights."""


def _is_whole(folder: Path) -> bool:
    """Return whether a snapshot has weights, all files that they list, and a tokenizer or an adapter's settings: others
    may have cached a part, as the tokenizer alone, or a download may have been interrupted."""
    single = (folder / "model.safetensors").is_file()  # which is read before an index
    indices = () if single else folder.glob("*.safetensors.index.json")
    listed = {name for index in indices for name in (read_json(index).get("weight_map") or {}).values()}
    weights = all((folder / name).is_file() for name in listed) if listed else any(folder.rglob("*.safetensors"))
    return weights and any((folder / name).is_file() for name in OTHER_FILES)


def read_config(model: str | Path) -> LlamaConfig:
    """Architecture of a model. **Arguments:** `model`, as in `locate`.

    **Raises:** `FileNotFoundError`, or `ValueError` for an unsupported field."""
    path = locate(model)
    if path.is_file():
        try:
            return LlamaConfig.from_hf(gguf.hf_config(path))
        except ValueError as error:
            raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from None
    file = path / CONFIG
    if not file.is_file():
        gguf_files = sorted(p.name for p in path.glob(f"*{gguf.SUFFIX}"))
        if gguf_files:
            raise FileNotFoundError(f"{path} holds no {CONFIG}, but {gguf_files[0]}: give that file")
        if (path / "adapter_config.json").is_file():
            raise FileNotFoundError(
                f"{path} is an adapter, not a model: fold it into the one that it adapts, with llmrl lm convert --model"
                f" MODEL --adapter {path} --out FOLDER"
            )
        raise FileNotFoundError(f"{path} holds no {CONFIG}: it is not a model folder of Hugging Face's layout")
    values = read_json(file)
    if isinstance(values.get("kind"), str) and "model_type" not in values:
        raise ValueError(f"{path} is {a_run(values['kind'])}, not a model: {_written_by(path)}")
    try:
        return LlamaConfig.from_hf(values)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _written_by(run: Path) -> str:
    """The end of an error: the folder to give instead of a run's."""
    convert = f"llmrl lm convert --model {run} --out FOLDER"
    if (run / "model" / CONFIG).is_file():
        return f"give the model that it wrote, {run / 'model'}"
    if (run / "prior" / CONFIG).is_file():
        return f"give the prior that it wrote, {run / 'prior'}, or write the model of its policy: {convert}"
    if (run / "adapter").is_dir():
        return f"give the model that it adapted, and {run / 'adapter'} as adapter, or fold that in: {convert}"
    return f"if its policy is one, write that: {convert}"


def check_weights(model: str | Path) -> None:
    """Check that the weights of a model can be read, before anything is compiled. **Arguments:** `model`, as in
    `locate`. **Raises:** `ModuleNotFoundError`, with the remedy, if they need an extra that is not installed."""
    path = locate(model)
    if path.is_file():
        gguf.check_decoder(gguf.read_header(path))


def tokenizer_config(model: str | Path) -> dict[str, Any]:
    """The special tokens by name, and the chat template, of a folder (`llmrl_jax.lm.tokens.tokenizer_config`) or a GGUF
    file; empty if there is none."""
    path = Path(model)
    return gguf.tokenizer_config(path) if path.is_file() else tokens.tokenizer_config(path)


def chat_template(model: str | Path) -> str:
    """Source of the chat template of a folder, in `chat_template.jinja` or `tokenizer_config.json` (of several, the one
    named default), or of a GGUF file; empty if there is none.

    **Raises:** `ValueError`, naming the file, for one that cannot be read, or that is no text."""
    path = Path(model)
    if (path / TEMPLATE).is_file():
        return read_template(path / TEMPLATE)
    source: Any = tokenizer_config(path).get("chat_template")
    if isinstance(source, list):  # several, by name
        named = [x for x in source if isinstance(x, Mapping) and x.get("name") == "default"]
        source = named[0].get("template") if named else None
    if not isinstance(source, str | None):
        file = path if path.is_file() else path / tokens.CONFIG_FILE
        raise ValueError(f"the chat_template of {file} is {type(source).__name__}; a text is needed")
    return source or ""


def read_template(file: Path) -> str:
    """Text of a file with a chat template. **Raises:** `ValueError`, naming the file, if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 (byte {error.start}): write it again in UTF-8") from None
    except OSError as error:
        raise ValueError(f"the chat template {file} cannot be read: {error.strerror}") from error


def end_tokens(model: str | Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that end a text or a turn for a model, ascending: those of `config.json`, `generation_config.json` (or
    of a GGUF file's metadata) and the tokenizer. Chat models often have one for a text and another for a turn;
    `LlamaConfig.eos_token_id` is only the first.

    **Raises:** as `read_config`.
    """
    path = locate(model)
    config = read_config(path)
    ids = {config.eos_token_id, tokenizer.eos_id}
    if path.is_file():
        ids |= gguf.end_tokens(path)
    for name in (CONFIG, GENERATION) if path.is_dir() else ():
        if (path / name).is_file():
            named = read_json(path / name).get("eos_token_id")
            ids |= {t for t in (named if isinstance(named, list) else [named]) if isinstance(t, int)}
    return tuple(sorted(t for t in ids if t is not None and 0 <= t < config.vocab_size))
