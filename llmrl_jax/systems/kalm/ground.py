"""Grounding: a language model and its slots learn to carry out, predict and explain recorded episodes.

The parts are the model before and after (its files are in `grounded/` of a run), the learner, the accuracy of the
model's explanations, and `ground`, the implementation of `llmrl kalm ground` (Pang et al., 2404.09248).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh
from safetensors.numpy import load_file, save_file

from envs_jax import tracing
from llmrl_jax import lm
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import at_least
from llmrl_jax.core.files import replacing
from llmrl_jax.core.learner import Learner
from llmrl_jax.data.transitions import DataError, Trajectories
from llmrl_jax.kernels.permutations import permutations
from llmrl_jax.lm.config import dtype_options
from llmrl_jax.lm.small import EMBEDDED
from llmrl_jax.lm.tokens import FastTokenizer, WordTokenizer, load_tokenizer
from llmrl_jax.parallel import Placement, make_mesh, shardings
from llmrl_jax.parallel.hosts import gather
from llmrl_jax.rl.gradient import accumulate, apply_gradients, in_parts
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.kalm import prompts
from llmrl_jax.systems.kalm.collect import read_episodes
from llmrl_jax.systems.kalm.config import GroundRun, Weights
from llmrl_jax.systems.kalm.prompts import Episodes, Row, Rows
from llmrl_jax.systems.kalm.world_model import Normalizer, Slots, WorldModel, count_targets
from llmrl_jax.systems.kalm.worlds import INSTRUCTION, STATE, World, world_of
from llmrl_jax.tuning.sft import SFTConfig, SFTState, adamw, first_params, learning_rates
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment


# --- the model, before and after --------------------------------------------------------------------------------------

FOLDER = "grounded"
METADATA, SLOTS = "kalm.json", "slots.safetensors"
FORMAT = 2
NORMALIZER = ("mean", "std", "change")
FRAMES = (prompts.ROLLOUT, *prompts.DYNAMICS, *prompts.CONSEQUENCE, *prompts.EXPLANATION)


@dataclass(frozen=True)
class GroundedModel:
    """A grounded model, with what it was grounded in."""

    world: World
    model: WorldModel
    variables: Any
    normalizer: Normalizer
    tokenizer: FastTokenizer
    returns: float | None = None
    """States carry the return that is still to come, and this is the one to ask for; None: they do not."""


def language_model(
    config: GroundRun, world: World, seed: int, mesh: Mesh | None = None
) -> tuple[lm.Llama, dict[str, Any], FastTokenizer]:
    """The language model before grounding: the module, its variables and its tokenizer.

    **Arguments:** `mesh`, over which the weights are split; None: they are on the first device.
    **Raises:** what `lm.load` raises; `ValueError` if a row is longer than the model's positions.
    """
    dtypes = dtype_options(config.dtype)
    if config.model == EMBEDDED:
        words = WordTokenizer.from_texts([*FRAMES, *world.instructions.texts])
        model = lm.Llama(config.embedded.llama(words, config.length), **dtypes)
        return model, _initialized(model, seed, mesh), words
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
        model = lm.Llama(shape, lora=adapters, **dtypes)
        return model, _initialized(model.clone(lora=None), seed, mesh), tokenizer
    model, variables = lm.load(folder, mesh, lora=adapters)
    return model.clone(**dtypes), variables, tokenizer


def _initialized(model: lm.Llama, seed: int, mesh: Mesh | None) -> dict[str, Any]:
    out_shardings = None if mesh is None else shardings(model.abstract(), model.logical_axes(), mesh)
    return dict(jax.jit(model.init, out_shardings=out_shardings)(jax.random.key(seed), jnp.zeros((1, 1), jnp.int32)))


def save_model(
    folder: Path,
    config: GroundRun,
    world: World,
    model: WorldModel,
    state: Any,
    tokenizer: FastTokenizer,
    returns: float | None,
) -> Path:
    """Write a grounded model to `grounded/` in a run's folder, atomically: `model/` in Hugging Face's layout, with
    adapters merged, the slots, and what they are for. **Arguments:** `returns`, see `GroundedModel`."""
    base, params = state.frozen["base"], state.params
    prefix = list(tokenizer.prefix_ids)
    # A run that was begun by a version without prefixes has learned from rows without them.
    first = np.asarray(gather(state.frozen["rows"].tokens))[0, : len(prefix)].tolist()
    llama, weights = model.llama, params.get("params")
    if llama.lora is not None:
        weights = lm.merge(base["params"], params["lora"], llama.lora)
    with replacing(folder / FOLDER) as draft:
        draft.mkdir(parents=True, exist_ok=True)
        lm.save_hf(draft / "model", llama.config, weights)
        tokenizer.save(draft / "model")
        slots = {"/".join(name): np.asarray(x) for name, x in flatten_dict(params["slots"]).items()}
        normalizer = {f"units/{name}": np.asarray(getattr(state.frozen["units"], name)) for name in NORMALIZER}
        save_file({**slots, **normalizer}, draft / SLOTS)
        metadata = {
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
        (draft / METADATA).write_text(json.dumps(metadata, indent=1) + "\n")
    return folder / FOLDER


SENTENCES = 256
"""Sentences that are read at once."""


def has_model(folder: str | Path) -> bool:
    """Return whether a folder is a run with a grounded model."""
    return (Path(folder) / FOLDER / METADATA).is_file()


def sentence_vectors(grounded: GroundedModel, texts: Sequence[str]) -> np.ndarray:
    """Vectors of sentences, float32 `[N, D]`: the mean of the last hidden states over the words, as the model reads
    them before it acts, each component with mean 0 and standard deviation 1 over the sentences."""
    tokens, lengths = prompts.rollout_prompts(texts, grounded.tokenizer)
    variables = {name: x for name, x in grounded.variables.items() if name != "slots"}

    @jax.jit
    def mean_hidden(variables: Any, tokens: Any, lengths: Any) -> jax.Array:
        output: Any = grounded.model.llama.apply(variables, tokens, lengths=lengths, logits=False)
        valid = (jnp.arange(tokens.shape[1]) < lengths[:, None])[..., None]
        return jnp.sum(jnp.where(valid, output.hidden.astype(jnp.float32), 0.0), axis=1) / lengths[:, None]

    parts = []
    with doing("reading sentences with the grounded model", len(texts), "sentences") as activity:
        for start in range(0, len(texts), SENTENCES):
            rows = np.arange(start, start + SENTENCES) % len(texts)  # one shape, and one program
            parts.append(np.asarray(mean_hidden(variables, tokens[rows], lengths[rows])))
            activity.done = min(start + SENTENCES, len(texts))
    vectors = np.concatenate(parts)[: len(texts)]
    return (vectors - vectors.mean(0)) / np.maximum(vectors.std(0), 1e-6)


def load_model(run: str | Path) -> GroundedModel:
    """The grounded model of a run.

    **Raises:** `FileNotFoundError`, `DataError` for files of another version.
    """
    folder = Path(run) / FOLDER
    if not (folder / METADATA).is_file():
        raise FileNotFoundError(f"{run} has no {FOLDER}/{METADATA}: give a finished run of `llmrl kalm ground`")
    metadata = configs.read_json(folder / METADATA)
    if metadata.get("format") != FORMAT:
        raise DataError(f"{folder / METADATA} has the format {metadata.get('format')}; this version reads {FORMAT}")
    llama, variables = lm.load(folder / "model")
    llama = llama.clone(**dtype_options(metadata.get("dtype", "float32")))
    world = world_of(metadata["world"])
    tokenizer = load_tokenizer(folder / "model")
    if metadata["words"]:
        tokenizer = WordTokenizer(tokenizer.backend)
    # earlier versions: none, whatever the tokenizer puts there
    tokenizer.prefix_ids = tuple(metadata.get("prefix", ()))
    flat = load_file(folder / SLOTS)
    normalizer = Normalizer(*(jnp.asarray(flat.pop(f"units/{name}")) for name in NORMALIZER))
    slots = unflatten_dict({tuple(name.split("/")): jnp.asarray(x) for name, x in flat.items()})
    layers = Slots(llama.config.hidden_size, metadata["state"], metadata["action"], metadata["discrete"])
    model = WorldModel(llama, layers, metadata["states"])
    return GroundedModel(world, model, {**variables, "slots": slots}, normalizer, tokenizer, metadata.get("returns"))


# --- the learner ------------------------------------------------------------------------------------------------------


def make_grounding(
    config: SFTConfig,
    weights: Weights,
    model: WorldModel,
    variables: Any,
    rows: Rows,
    episodes: Episodes,
    updates: int,
    mesh: Mesh | None = None,
) -> Learner:
    """Build grounding as a `Learner`.

    **Arguments:** `model`, whose language model selects adapters or every weight for training; the slots are always
    trained; `variables`, the language model's; `rows`, at least `config.batch_size`; `updates`, for the schedule.
    **Returns:** the learner. Each epoch takes the rows in a new order. Its metrics are `loss`, `state`, `action`,
    `text` (see `WorldModel.losses`), `grad_norm`, `learning_rate`, `epoch`.
    **Raises:** `ValueError` for fewer rows than a batch.
    """
    at_least("updates", updates, 1)
    count, length = rows.tokens.shape
    size = config.batch_size
    if count < size:
        raise ValueError(
            f"the data make {count} rows, fewer than the {size} of one batch: lower sft.batch_size, or add data"
        )
    placement, per_epoch, learning_rate = Placement(mesh), count // size, learning_rates(config, updates)
    normalizer = Normalizer.from_episodes(episodes)
    trained = "params" if model.llama.lora is None else "lora"

    def init(key: jax.Array) -> SFTState:
        adapter_key, slot_key, run_key = jax.random.split(key, 3)
        llama = first_params(model.llama, variables, adapter_key, mesh)
        params = {trained: llama, "slots": model.init_slots(slot_key, variables)}
        frozen = {
            "base": {} if trained == "params" else {"params": variables["params"]},
            "rows": jax.tree.map(jnp.asarray, rows),
            "episodes": (jnp.asarray(episodes.states), jnp.asarray(episodes.actions)),
            "units": normalizer,
        }
        return placement.device_put(SFTState(params, frozen, adamw(config, params).init(params), run_key, jnp.int32(0)))

    def update(state: SFTState) -> tuple[SFTState, dict[str, jax.Array]]:
        epoch, batch_index = state.update // per_epoch, state.update % per_epoch
        order = permutations(jax.random.fold_in(state.key, epoch), 1, count)[0]
        index = jax.lax.dynamic_slice(order, (batch_index * size,), (size,))
        loss, parts, grads = gradient(
            state.params, state.frozen, jax.tree.map(lambda x: x[index], state.frozen["rows"])
        )
        rate = learning_rate(state.update)
        params, opt_state, norm = apply_gradients(
            adamw(config, state.params), state.params, grads, state.opt_state, rate
        )
        epochs = (state.update + 1) / per_epoch
        metrics = {"loss": loss, **parts, "grad_norm": norm, "learning_rate": rate, "epoch": epochs}
        state = state.replace(params=params, opt_state=opt_state, update=state.update + 1)
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    def gradient(params: Any, frozen: Any, batch: Rows) -> tuple[jax.Array, dict[str, jax.Array], Any]:
        counts = count_targets(batch)

        def loss(params: Any, rows: Rows) -> tuple[jax.Array, dict[str, jax.Array]]:
            merged = {**frozen["base"], **params}
            parts = model.losses(merged, frozen["units"], placement.shard_batch(rows), frozen["episodes"], counts)
            return sum(getattr(weights, name) * x for name, x in parts.items()), parts  # type: ignore[return-value]

        def part(rows: Rows) -> tuple[Any, None]:
            (value, parts), grads = jax.value_and_grad(loss, has_aux=True)(params, rows)
            return (value, parts, grads), None

        zeros = {name: jnp.float32(0) for name in counts}
        start = (jnp.float32(0), zeros, jax.tree.map(jnp.zeros_like, params))
        return accumulate(part, start, in_parts(batch, config.microbatches))[0]

    return Learner(init, update, size * length, unit="places")


# --- explanation accuracy ---------------------------------------------------------------------------------------------

EXPLAINED = 32
"""Episodes that are explained at once."""


def explain(grounded: GroundedModel, episodes: Episodes, indices: Sequence[int], max_tokens: int) -> list[str]:
    """The model's explanations of episodes: its most likely words, up to the end token or `max_tokens` tokens."""
    tokenizer, model = grounded.tokenizer, grounded.model
    questions = [prompts.question(Row(tokenizer), episodes, int(e)) for e in indices]
    rows, lengths = prompts.pack(questions), np.array([len(row.tokens) for row in questions], np.int32)
    tables = (jnp.asarray(episodes.states), jnp.asarray(episodes.actions))

    @jax.jit
    def answer(variables: Any, rows: Rows, lengths: Any) -> jax.Array:
        text = {name: x for name, x in variables.items() if name != "slots"}
        output: Any = model.llama.apply(
            text,
            rows.tokens,
            lengths=lengths,
            cache=rows.tokens.shape[1] + max_tokens,
            at=lengths[:, None] - 1,
            embeddings=model.embed(variables, grounded.normalizer, rows, tables),
        )

        def step(carry: Any, _: None) -> Any:
            token, cache = carry
            output: Any = model.llama.apply(text, token[:, None], cache=cache)
            return (jnp.argmax(output.logits[:, -1], axis=-1).astype(jnp.int32), output.cache), token

        first = jnp.argmax(output.logits[:, -1], axis=-1).astype(jnp.int32)
        return tracing.scan(step, (first, output.cache), length=max_tokens)[1].T

    answers: list[str] = []
    batch_size, end = min(EXPLAINED, len(lengths)), tokenizer.eos_id
    for start in range(0, len(lengths), batch_size):
        batch = np.arange(start, start + batch_size) % len(lengths)
        tokens = np.asarray(answer(grounded.variables, jax.tree.map(lambda x, i=batch: x[i], rows), lengths[batch]))
        for row in tokens[: len(lengths) - start].tolist():
            answers.append(tokenizer.decode(row[: row.index(end)] if end in row else row).strip())
    return answers


def explanation_accuracy(
    grounded: GroundedModel, episodes: Episodes, texts: Sequence[Sequence[str]], indices: Sequence[int]
) -> dict[str, float]:
    """The accuracy of a grounded model that says which instruction an episode carried out.

    The paper asks for the goal's keywords, and does not say which words count.

    **Arguments:** `texts`, for every episode the wordings of its goal; `indices`, the episodes to explain.
    **Returns:** `explained`, the fraction of answers that are a sentence for the goal, word by word; in an environment
    with keywords also `keywords`, the fraction of answers that have all of the goal's, and `keyword`, the mean fraction
    that an answer has.
    """
    longest = max(len(grounded.tokenizer.encode(text)) for e in indices for text in texts[e])
    answers = explain(grounded, episodes, indices, longest + 1)
    rates = {"explained": float(np.mean([answer in texts[e] for answer, e in zip(answers, indices)]))}
    keywords = grounded.world.keywords
    if keywords is not None:
        named = np.array(
            [[a == b for a, b in zip(keywords(answer), keywords(texts[e][0]))] for answer, e in zip(answers, indices)]
        )
        rates |= {"keywords": float(named.all(axis=1).mean()), "keyword": float(named.mean())}
    return rates


# --- the run ----------------------------------------------------------------------------------------------------------

TEST_ROWS = 256
"""Most rows of a test."""
TARGET_QUANTILE = 0.9
"""The quantile of the data's returns that a decision transformer is asked for."""


def wordings(world: World, level: str, data: Trajectories) -> list[list[str]]:
    """For each episode all sentences for its goal. **Raises:** `DataError` for an instruction of another level."""
    texts: dict[int, list[str]] = {}
    numbers = np.asarray(data.obs[INSTRUCTION])[:, 0].tolist()
    for number in set(numbers):
        if number not in world.instructions.sentence_ids(level):
            raise DataError(f"an episode has the instruction {number}, which is none of level {level}")
        texts[number] = world.instructions.wordings(level, int(world.instructions.configuration[number]))
    return [texts[number] for number in numbers]


def held_out_losses(
    model: WorldModel, rows: Rows, episodes: Episodes, batch_size: int
) -> Callable[[Any, Any], dict[str, float]]:
    """`evaluate(state, key)`: the three errors on held-out episodes."""
    count = min(len(rows.tokens), max(TEST_ROWS, batch_size)) // batch_size * batch_size
    rows = jax.tree.map(lambda x: x[:count], rows)
    batches = jax.tree.map(lambda x: jnp.asarray(x).reshape(-1, batch_size, *x.shape[1:]), rows)
    counts = {name: float(x) for name, x in count_targets(rows).items()}
    tables = jnp.asarray(episodes.states), jnp.asarray(episodes.actions)

    @jax.jit
    def total(variables: Any, normalizer: Any) -> dict[str, jax.Array]:
        batch_losses = jax.lax.map(lambda batch: model.losses(variables, normalizer, batch, tables, counts), batches)
        return jax.tree.map(jnp.sum, batch_losses)

    def evaluate(state: Any, key: jax.Array) -> dict[str, float]:
        losses = total({**state.frozen["base"], **state.params}, state.frozen["units"])
        return {f"held_out/{name}": float(x) for name, x in losses.items()}

    return evaluate


def ground(config: GroundRun) -> RunResult:
    """Ground a language model, and write the run to its folder, with `grounded/`.

    **Returns:** how it ended. **Raises:** `ValueError`, `DataError` and `FileNotFoundError` for data or a model that
    cannot be used.
    """
    if not config.data:
        raise ValueError("data is empty: give the --data folder of `llmrl kalm collect`")
    world, level, data = read_episodes(config.data)
    episodes, texts = Episodes.from_trajectories(data, STATE, returns=config.returns), wordings(world, level, data)
    target = float(np.quantile(np.asarray(data.reward).sum(1), TARGET_QUANTILE)) if config.returns else None
    mesh = make_mesh(config.mesh) if config.mesh else None
    llama, variables, tokenizer = language_model(config, world, config.run.seed, mesh)
    env = world.make(level)
    num_actions = getattr(env.action_space(env.default_params), "n", 0)
    model = WorldModel.around(llama, episodes, num_actions, config.states)

    def rows_of(indices: np.ndarray) -> Rows:
        rng = np.random.default_rng((config.run.seed, len(indices)))
        written = prompts.write(
            episodes.take(indices),
            [texts[i] for i in indices],
            tokenizer,
            rng,
            patterns=config.patterns,
            copies=config.copies,
        )
        return prompts.pack(written, config.length)

    order = np.random.default_rng(config.run.seed).permutation(len(data))
    held_out, train = np.split(order, [round(config.held_out * len(data))])
    with doing("writing rows"):
        rows = rows_of(train)
        test = rows_of(held_out) if len(held_out) else None
    full = (rows.segments > 0).mean()
    print(f"{len(data)} episodes in {len(rows.tokens)} rows of {config.length} places, {full:.0%} full")
    size = config.sft.batch_size
    updates = max(1, round(config.epochs * (len(rows.tokens) // size)))
    learner = make_grounding(config.sft, config.weights, model, variables, rows, episodes, updates, mesh)
    evaluate = held_out_losses(model, test, episodes, size) if test is not None and len(test.tokens) >= size else None
    x = Experiment(
        config,
        learner,
        during=evaluate if config.run.eval_every else None,
        updates=updates,
        shown={"loss": "loss", "state": "state", "action": "action", "text": "text"},
        unit="places",
    )
    with opened(config.run, "kalm-ground") as folder:

        def facts(result: RunResult) -> dict[str, Any]:
            values: dict[str, Any] = {"rows": len(rows.tokens), "updates": result.update}
            if result.stopped:
                return values
            if evaluate is not None:
                values |= evaluate(result.state, jax.random.key(0))
            save_model(folder, config, world, model, result.state, tokenizer, target)
            if "explanation" in config.patterns and len(held_out):
                rates = explanation_accuracy(load_model(folder), episodes, texts, held_out[:TEST_ROWS].tolist())
                values |= {f"held_out/{name}": rate for name, rate in rates.items()}
            tested = ", ".join(f"{name[9:]} {values[name]:.3f}" for name in sorted(values) if "held_out/" in name)
            print(f"{result.update} updates" + (f"; held-out episodes: {tested}" if tested else ""))
            return values

        return experiments.train(x, folder, facts=facts)
