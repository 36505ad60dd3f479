"""Language models of KALM: made or loaded for grounding, and grounded ones on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh
from safetensors.numpy import load_file, save_file

from llmrl_jax import lm
from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import replacing
from llmrl_jax.data.transitions import DataError
from llmrl_jax.lm.narrow import computed
from llmrl_jax.lm.tokens import FastTokenizer, WordTokenizer, load_tokenizer
from llmrl_jax.parallel import shardings
from llmrl_jax.parallel.hosts import gather
from llmrl_jax.systems.kalm import patterns
from llmrl_jax.systems.kalm.config import EMBEDDED, GroundRun
from llmrl_jax.systems.kalm.world_model import Slots, Units, WorldModel
from llmrl_jax.systems.kalm.worlds import World, world_of


FOLDER = "grounded"
ABOUT, SLOTS = "kalm.json", "slots.safetensors"
FORMAT = 2
UNITS = ("mean", "std", "change")
FRAMES = (patterns.ROLLOUT, *patterns.DYNAMICS, *patterns.CONSEQUENCE, *patterns.EXPLANATION)


@dataclass(frozen=True)
class Grounded:
    """A grounded model."""

    world: World
    model: WorldModel
    variables: Any
    units: Units
    tokenizer: FastTokenizer
    returns: float | None = None
    """States carry the return that is still to come, and this is the one to ask for; None: they do not."""


def language_model(
    config: GroundRun, world: World, seed: int, mesh: Mesh | None = None
) -> tuple[lm.Llama, dict[str, Any], FastTokenizer, Path | None]:
    """The language model before grounding: the module, its variables, its tokenizer, and its folder if it has one.

    **Arguments:** `mesh`, over which the weights are split; None: they are on the first device.
    **Raises:** what `lm.load` raises; `ValueError` if a row is longer than the model's positions.
    """
    how = computed(config.dtype)
    if config.model == EMBEDDED:
        words = WordTokenizer.from_texts([*FRAMES, *world.instructions.texts])
        model = lm.Llama(config.embedded.llama(words, config.length), **how)
        return model, _drawn(model, seed, mesh), words, None
    folder = lm.locate(config.model)
    shape = lm.read_config(folder)
    if config.length > shape.max_position_embeddings:
        raise ValueError(
            f"length is {config.length}, but {config.model} has {shape.max_position_embeddings} positions; take "
            "shorter rows"
        )
    adapters = config.lora if config.tune == "lora" else None
    tokenizer = load_tokenizer(folder)
    if config.init == "random":
        model = lm.Llama(shape, lora=adapters, **how)
        return model, _drawn(model.clone(lora=None), seed, mesh), tokenizer, folder
    model, variables = lm.load(folder, mesh, lora=adapters)
    return model.clone(**how), variables, tokenizer, folder


def _drawn(model: lm.Llama, seed: int, mesh: Mesh | None) -> dict[str, Any]:
    out = None if mesh is None else shardings(model.abstract(), model.logical_axes(), mesh)
    return dict(jax.jit(model.init, out_shardings=out)(jax.random.key(seed), jnp.zeros((1, 1), jnp.int32)))


def save(
    out: Path,
    config: GroundRun,
    world: World,
    model: WorldModel,
    state: Any,
    tokenizer: FastTokenizer,
    returns: float | None,
) -> Path:
    """Write a grounded model to `grounded/` in a run's folder, atomically: `model/` in Hugging Face's layout, with
    adapters merged, the slots, and what they are for. **Arguments:** `returns`, see `Grounded`."""
    base, params = state.frozen["base"], state.params
    prefix = list(tokenizer.prefix_ids)
    # A run that was begun by a version without prefixes has learned from rows without them.
    first = np.asarray(gather(state.frozen["rows"].tokens))[0, : len(prefix)].tolist()
    llama, weights = model.llama, params.get("params")
    if llama.lora is not None:
        weights = lm.merge(base["params"], params["lora"], llama.lora)
    with replacing(out / FOLDER) as draft:
        draft.mkdir(parents=True, exist_ok=True)
        lm.save_hf(draft / "model", llama.config, weights)
        tokenizer.save(draft / "model")
        slots = {"/".join(name): np.asarray(x) for name, x in flatten_dict(params["slots"]).items()}
        units = {f"units/{name}": np.asarray(getattr(state.frozen["units"], name)) for name in UNITS}
        save_file({**slots, **units}, draft / SLOTS)
        about = {
            "format": FORMAT,
            "world": world.name,
            "states": model.states,
            "state": model.slots.state,
            "action": model.slots.action,
            "discrete": model.slots.discrete,
            "words": config.model == EMBEDDED,
            "returns": returns,
            "dtype": config.dtype,
            "prefix": prefix if first == prefix else [],
        }
        (draft / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
    return out / FOLDER


def is_run(folder: str | Path) -> bool:
    """Whether a folder is a run with a grounded model."""
    return (Path(folder) / FOLDER / ABOUT).is_file()


TOGETHER = 256
"""Sentences that are read at once."""


def sentence_vectors(found: Grounded, texts: Sequence[str]) -> np.ndarray:
    """Vectors of sentences, float32 `[N, D]`: the mean of the last hidden states over the words, as the model reads
    them before it acts, each component with mean 0 and deviation 1 over the sentences."""
    tokens, lengths = patterns.prompts(texts, found.tokenizer)
    variables = {name: x for name, x in found.variables.items() if name != "slots"}

    @jax.jit
    def read(variables: Any, tokens: Any, lengths: Any) -> jax.Array:
        out: Any = found.model.llama.apply(variables, tokens, lengths=lengths, logits=False)
        valid = (jnp.arange(tokens.shape[1]) < lengths[:, None])[..., None]
        return jnp.sum(jnp.where(valid, out.hidden.astype(jnp.float32), 0.0), axis=1) / lengths[:, None]

    parts = []
    with doing("reading sentences with the grounded model", len(texts), "sentences") as activity:
        for start in range(0, len(texts), TOGETHER):
            rows = np.arange(start, start + TOGETHER) % len(texts)  # one shape, and one program
            parts.append(np.asarray(read(variables, tokens[rows], lengths[rows])))
            activity.done = min(start + TOGETHER, len(texts))
    vectors = np.concatenate(parts)[: len(texts)]
    return (vectors - vectors.mean(0)) / np.maximum(vectors.std(0), 1e-6)


def load(run: str | Path) -> Grounded:
    """The grounded model of a run.

    **Raises:** `FileNotFoundError`, `DataError` for files of another version.
    """
    folder = Path(run) / FOLDER
    if not (folder / ABOUT).is_file():
        raise FileNotFoundError(f"{run} has no {FOLDER}/{ABOUT}: give a finished run of `llmrl kalm ground`")
    about = json.loads((folder / ABOUT).read_text())
    if about.get("format") != FORMAT:
        raise DataError(f"{folder / ABOUT} has the format {about.get('format')}; this version reads {FORMAT}")
    llama, variables = lm.load(folder / "model")
    llama = llama.clone(**computed(about.get("dtype", "float32")))
    world = world_of(about["world"])
    tokenizer = load_tokenizer(folder / "model")
    if about["words"]:
        tokenizer = WordTokenizer(tokenizer.backend)
    tokenizer.prefix_ids = tuple(about.get("prefix", ()))  # earlier versions: none, whatever the tokenizer puts there
    flat = load_file(folder / SLOTS)
    units = Units(*(jnp.asarray(flat.pop(f"units/{name}")) for name in UNITS))
    slots = unflatten_dict({tuple(name.split("/")): jnp.asarray(x) for name, x in flat.items()})
    layers = Slots(llama.config.hidden_size, about["state"], about["action"], about["discrete"])
    model = WorldModel(llama, layers, about["states"])
    return Grounded(world, model, {**variables, "slots": slots}, units, tokenizer, about.get("returns"))
