"""The language model of a run, as a folder that other programs read: `llmrl lm convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from llmrl_jax import lm
from llmrl_jax.core.activity import doing
from llmrl_jax.core.config import read_json
from llmrl_jax.core.files import replacing
from llmrl_jax.lm.peft import CONFIG, load_adapter
from llmrl_jax.lm.source import TEMPLATE, chat_template
from llmrl_jax.lm.tokens import load_tokenizer
from llmrl_jax.lm.weights import stored_dtype
from llmrl_jax.parallel.hosts import gather
from llmrl_jax.workflows.experiment import kind_of_run
from llmrl_jax.workflows.loading import load


FROM_CHECKPOINTS = ("agent train",)
"""Runs whose policy is in their checkpoints, also where they hold the model from which it began."""


def write_model(
    source: str | Path, output: str | Path, *, adapter: str = "", checkpoint: int = -1, dtype: str = ""
) -> Path:
    """Write a language model as a Hugging Face folder, with its tokenizer and chat template; adapters are folded in.

    **Arguments:** `source`, a model, as for `llmrl_jax.lm.load`, or the folder of a run: then the model that its policy
    is, or that it wrote; `output`, a folder that does not exist yet; `adapter`, a peft adapter of the model;
    `checkpoint`, of a run with a policy, by update number (-1: the newest); `dtype`, of the weights: float32, bfloat16
    or float16; empty: as they are.
    **Returns:** `output`.
    **Raises:** `FileExistsError` if `output` exists; `FileNotFoundError` for a missing checkpoint; `ValueError` for a
    run without a language model, an adapter or a checkpoint that is not read, and files that are no model.
    """
    output = Path(output)
    if output.exists():
        raise FileExistsError(f"{output} exists: give a folder that does not")
    run = Path(source).expanduser()
    if kind := _kind(run):
        if adapter:
            raise ValueError(f"adapter is {adapter}, but {run} is a run of llmrl {kind}: leave it out")
        if kind not in FROM_CHECKPOINTS and (run / "model").is_dir():
            source = run / "model"
        elif (run / "adapter").is_dir():
            adapter = str(run / "adapter")
            source = read_json(run / "adapter" / CONFIG)["base_model_name_or_path"]
        else:
            return _write_policy(run, output, checkpoint, dtype)
    if checkpoint >= 0:
        raise ValueError(f"checkpoint is {checkpoint}, but {run} holds a model as it was written: leave it out")
    if not adapter:
        return lm.convert(source, output, dtype=dtype)
    base = lm.locate(source)
    model, variables = load_adapter(adapter, *lm.load(base, dtype=jnp.float32))
    return _write(output, model, variables, load_tokenizer(base), base, dtype or stored_dtype(base))


def _kind(folder: Path) -> str:
    """The command that made a run; empty for a folder that is none."""
    try:
        return kind_of_run(folder)
    except (FileNotFoundError, ValueError):
        return ""


def _write_policy(run: Path, output: Path, checkpoint: int, dtype: str) -> Path:
    loaded = load(run, checkpoint)
    x, language = loaded.experiment, loaded.experiment.language
    if language is None:
        raise ValueError(f"{run} is a run of llmrl {kind_of_run(run)}, whose policy is no language model")
    params, frozen, _ = x.variables(x, loaded.state)
    variables = {name: part for name, part in {**frozen, **params}.items() if name in ("params", "lora")}
    base = lm.locate(language.base) if language.base else None
    return _write(output, language.model, variables, language.tokenizer, base, dtype)


def _write(output: Path, model: lm.Llama, variables: Any, tokenizer: Any, base: Path | None, dtype: str) -> Path:
    """Write weights, with adapters if there are any. **Arguments:** `base`, the folder that they began as."""
    params = lm.dequantize(variables["params"])
    if "lora" in variables:
        assert model.lora is not None
        params = lm.merge(params, variables["lora"], model.lora)
    if dtype:
        params = jax.tree.map(lambda x: x.astype(dtype), params)
    ends = lm.end_tokens(base, tokenizer) if base is not None else ()
    template = chat_template(base) if base is not None else ""
    with doing(f"writing {output}"), replacing(output) as draft:
        tokenizer.save(lm.save_hf(draft, model.config, gather(params), end_tokens=ends))
        if template:
            (draft / TEMPLATE).write_text(template, encoding="utf-8")
    return output
