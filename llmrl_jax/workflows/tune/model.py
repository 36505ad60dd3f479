"""Loading the model of a fine-tuning run, and writing it to the run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from llmrl_jax import lm
from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import replacing
from llmrl_jax.lm.narrow import computed
from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.parallel import make_mesh
from llmrl_jax.parallel.hosts import gather
from llmrl_jax.run.folder import write_summary
from llmrl_jax.run.loop import RunResult
from llmrl_jax.tuning import ChatTemplate, GRPOConfig
from llmrl_jax.workflows.tune.settings import Tuned


C = TypeVar("C", bound=Tuned)


def load_base(config: Tuned, folder: Path) -> tuple[lm.Llama, dict[str, Any], Mesh | None]:
    """The model to tune, its weights on the mesh, and the mesh.

    **Arguments:** `folder`, the local folder of `config.model` (`lm.locate`).
    """
    mesh = make_mesh(config.mesh) if config.mesh else None
    how = computed(config.dtype)
    adapters = config.lora if config.tune == "lora" else None
    kind = None if config.quantize == "none" else config.quantize
    # updates of 1e-5 would be rounded away in bfloat16
    kept = jnp.dtype(jnp.float32) if config.tune == "full" else how["dtype"]
    model, variables = lm.load(folder, mesh=mesh, dtype=kept, lora=adapters, quantize=kind)
    return model.clone(remat=config.remat, attention=config.attention, **how), variables, mesh


def with_template(config: C, folder: Path) -> tuple[C, ChatTemplate | None]:
    """The chat template of a model folder, and the configuration with the date that the template writes, if it writes
    one: a run that is resumed on another day reads the same text."""
    template = ChatTemplate.load(folder)
    if template is None or "strftime_now" not in template.source:
        return config, template
    if not config.date and not config.run.resume:
        config = replace(config, date=date.today().isoformat())
    return config, ChatTemplate.load(folder, date=datetime.fromisoformat(config.date) if config.date else None)


def with_end_tokens(config: GRPOConfig, folder: Path, tokenizer: FastTokenizer) -> GRPOConfig:
    """The configuration with every token that ends a text or a turn of the model, unless it names stop tokens."""
    return config if config.stop_tokens is not None else replace(config, stop_tokens=lm.end_tokens(folder, tokenizer))


def write_results(
    result: RunResult,
    values: Mapping[str, Any],
    unit: str,
    base: str,
    model: lm.Llama,
    tokenizer: FastTokenizer,
    template: ChatTemplate | None,
) -> None:
    """Write the tuned model, unless the run was stopped, and the summary, and say where they are.

    **Arguments:** `values`, of the summary, beside the speed, the times and the reason of the end; `unit`, the name of
    the learner's steps; the others as those of `write_tuned`.
    """
    values = {**values, "updates": result.update, **result.facts(unit)}
    if not result.stopped:
        ends = lm.end_tokens(lm.locate(base), tokenizer)
        values["written"] = write_tuned(result.folder, base, model, result.state, tokenizer, template, ends)
    write_summary(result.folder, values)
    print(f"{result.update} updates at {result.steps_per_second:.4g} {unit}/s; everything is in {result.folder}")


def write_tuned(
    folder: Path,
    base: str,
    model: lm.Llama,
    state: Any,
    tokenizer: FastTokenizer,
    template: ChatTemplate | None,
    ends: Sequence[int] = (),
) -> str:
    """Write the adapters in peft's format, or the model in transformers' format; replace those of an earlier part of
    the run.

    **Arguments:** `base`, the folder or hub id of the base model; `state`, the learner's last; `ends`, all tokens that
    end a text or a turn of the base (`lm.end_tokens`), if there are more than the one in config.json.
    **Returns:** the name of the folder written inside `folder`.
    """
    name = "model" if model.lora is None else "adapter"
    trained = gather(state.params)
    if jax.process_index():
        return name
    with doing(f"writing {folder / name}"), replacing(folder / name) as draft:
        if model.lora is not None:
            variables = {**state.frozen["base"], "lora": trained}
            lm.save_adapter(draft, model, variables, base=base)
        else:
            lm.save_hf(draft, model.config, trained, end_tokens=ends)
            tokenizer.save(draft)
            if template is not None:
                (draft / "chat_template.jinja").write_text(template.source, encoding="utf-8")
    return name
