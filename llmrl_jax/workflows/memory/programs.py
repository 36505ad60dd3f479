"""The programs that `workflows.memory.fit` measures: arguments as shapes with shardings, compiled as in a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from llmrl_jax import lm
from llmrl_jax.lm.quantize import quantize, quantized_shardings
from llmrl_jax.parallel import batch_sharding, make_mesh, shardings
from llmrl_jax.run.chunk import jit_chunk
from llmrl_jax.tuning import GRPOConfig, Packed, Prompts, SFTConfig, make_grpo, make_sft
from llmrl_jax.workflows.memory.config import FitConfig


# --- shapes and places ------------------------------------------------------------------------------------------------


def _names(path: Any) -> tuple[Any, ...]:
    """The dict keys and attribute names at the end of a path, down to its leaf."""
    names: list[Any] = []
    for entry in reversed(path):
        name = getattr(entry, "key", getattr(entry, "name", None))
        if not isinstance(name, str):
            break
        names.append(name)
    return tuple(reversed(names))


def place_like(tree: Any, params: Any, places: Any, elsewhere: Sharding) -> Any:
    """The sharding of every leaf of a tree (an optimiser's state): that of the parameter with the same shape whose path
    is a suffix of the leaf's path, as `zeros_like` places it; else `elsewhere`."""
    by_name = {
        _names(path): (tuple(leaf.shape), place)
        for (path, leaf), place in zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(places))
    }

    def place_leaf(path: Any, leaf: Any) -> Sharding:
        names = _names(path)
        for start in range(len(names)):
            shape, sharding = by_name.get(names[start:], ((), None))
            if sharding is not None and shape == tuple(leaf.shape):
                return sharding
        return elsewhere

    return jax.tree_util.tree_map_with_path(place_leaf, tree)


def placed(shapes: Any, places: Any) -> Any:
    """A tree of shapes with a tree of shardings."""
    return jax.tree.map(lambda x, p: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=p), shapes, places)


def _itemsize(x: Any) -> int:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), x.dtype))
        return math.prod(x.shape) * x.dtype.itemsize
    return jnp.dtype(x.dtype).itemsize


def held(tree: Any) -> tuple[int, int]:
    """Bytes of a tree of shapes with shardings on one device, and of one full copy."""
    leaves = jax.tree.leaves(tree)
    part = sum(math.prod(x.sharding.shard_shape(x.shape)) * _itemsize(x) for x in leaves)
    return part, sum(math.prod(x.shape) * _itemsize(x) for x in leaves)


@dataclass(frozen=True)
class Setting:
    """A model as shapes, with the shardings of its parts, and the mesh."""

    config: FitConfig
    model: lm.Llama
    mesh: Mesh | None
    variables: Any
    """`params`, and `lora` if adapters are trained, each leaf with its sharding."""
    whole: Sharding
    """Replicated on every device."""

    @property
    def trained(self) -> str:
        """The collection that the optimiser updates."""
        return "params" if self.model.lora is None else "lora"

    def rows(self, shape: tuple[int, ...], dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        """An argument whose rows are split over data and fsdp."""
        row_sharding = self.whole if self.mesh is None else batch_sharding(self.mesh, size=shape[0])
        return jax.ShapeDtypeStruct(shape, dtype, sharding=row_sharding)


def setting(config: FitConfig, shape: lm.LlamaConfig, devices: list[jax.Device]) -> Setting:
    """The model of a configuration, without values.

    **Raises:** `ValueError` for lengths that exceed the model's, or a mesh that does not divide a leaf."""
    _check_length(config, shape)
    mesh = make_mesh(config.mesh, devices) if config.mesh else None
    whole: Sharding = SingleDeviceSharding(devices[0]) if mesh is None else NamedSharding(mesh, PartitionSpec())
    model = _model(config, shape)
    return Setting(config, model, mesh, _variables(config, model, mesh, whole), whole)


def _check_length(config: FitConfig, shape: lm.LlamaConfig) -> None:
    generated = {"grpo": config.new_tokens, "generate": config.new_tokens, "score": config.candidate_tokens}
    needed = config.length + generated.get(config.workload, 0)
    if needed > shape.max_position_embeddings:
        raise ValueError(
            f"{config.workload} with these lengths needs {needed} positions; the model has "
            f"{shape.max_position_embeddings} (max_position_embeddings): lower length or new_tokens"
        )


def _model(config: FitConfig, shape: lm.LlamaConfig) -> lm.Llama:
    dtype = jnp.dtype(config.dtype)
    stored = jnp.dtype(jnp.float32) if config.trains and config.tune == "full" else dtype
    if config.param_dtype != "same":
        stored = jnp.dtype(config.param_dtype)
    adapted = config.lora if config.tune == "lora" and config.trains else None
    return lm.Llama(
        shape, lora=adapted, dtype=dtype, param_dtype=stored, remat=config.remat, attention=config.attention
    )


def _variables(config: FitConfig, model: lm.Llama, mesh: Mesh | None, whole: Sharding) -> Any:
    """The model's collections as shapes with shardings; the base quantised if `config.quantize` says so."""
    shapes, axes = model.abstract(), model.logical_axes()
    quantised = config.quantize != "none"
    if quantised:
        shapes = {**shapes, "params": jax.eval_shape(partial(quantize, kind=config.quantize), shapes["params"])}
    if mesh is None:
        return placed(shapes, jax.tree.map(lambda _: whole, shapes))
    sharding_of = {name: quantized_shardings if quantised and name == "params" else shardings for name in shapes}
    return placed(shapes, {name: sharding_of[name](shapes[name], axes[name], mesh) for name in shapes})


# --- the programs -----------------------------------------------------------------------------------------------------


def _learner_state(s: Setting, make: Callable[[Any, Any], Any], data: Any) -> Any:
    """The initial state of a learner, as shapes with the shardings of its arrays.

    **Arguments:** `make(variables, data)`, creates the learner without a mesh; `data`, its shapes.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    bare = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), s.variables)
    state = jax.eval_shape(lambda v, d, k: make(v, d).init(k), bare, data, key)
    params = jax.tree.map(lambda x: x.sharding, s.variables[s.trained])
    replicated = jax.tree.map(lambda _: s.whole, state)
    frozen = replicated.frozen
    if "params" in state.frozen["base"]:
        base = jax.tree.map(lambda x: x.sharding, s.variables["params"])
        frozen = {**frozen, "base": {"params": base}}
    opt_state = place_like(state.opt_state, s.variables[s.trained], params, s.whole)
    return placed(state, replicated.replace(params=params, frozen=frozen, opt_state=opt_state))


def _compile_learner(learner: Any, state: Any) -> tuple[Any, dict[str, Any]]:
    """The compiled chunk of updates of a run, and the arrays kept between chunks."""
    trained, frozen = state.replace(frozen=()), state.frozen
    compiled = (
        jit_chunk(learner, jax.tree.map(lambda x: x.sharding, trained), 1).lower(trained, frozen, np.int32(1)).compile()
    )
    data = {name: value for name, value in frozen.items() if name != "base"}
    parts = {
        "base": frozen["base"],
        "trained": state.params,
        "optimiser": state.opt_state,
        "data": (data, state.replace(params=(), opt_state=(), frozen=())),
    }
    return compiled, parts


def _sft(s: Setting) -> tuple[Any, dict[str, Any]]:
    c = s.config
    options = SFTConfig(batch_size=c.batch_size, microbatches=c.microbatches, head_chunk=c.head_chunk)
    shape = (max(c.rows, c.batch_size), c.length)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
    data: Any = Packed(tokens, tokens, tokens, jax.ShapeDtypeStruct(shape, bool))  # type: ignore[arg-type]
    state = _learner_state(s, lambda v, d: make_sft(options, s.model, v, d, 1000), data)
    return _compile_learner(make_sft(options, s.model, s.variables, data, 1000, s.mesh), state)


def _grpo(s: Setting) -> tuple[Any, dict[str, Any]]:
    c = s.config
    options = GRPOConfig(
        prompts=c.batch_size,
        group=max(2, c.samples),
        max_new_tokens=c.new_tokens,
        microbatches=c.microbatches,
        head_chunk=c.head_chunk,
    )
    rows = max(c.rows, c.batch_size)
    data = jax.eval_shape(lambda: Prompts(jnp.zeros((rows, c.length), jnp.int32), jnp.ones(rows, jnp.int32)))

    def reward(completions: Any, places: Any) -> Any:
        return completions.lengths.astype(jnp.float32)

    state = _learner_state(s, lambda v, d: make_grpo(options, s.model, v, d, reward), data)
    learner = make_grpo(options, s.model, s.variables, data, reward, mesh=s.mesh)
    compiled, parts = _compile_learner(learner, state)
    return compiled, parts | {"cache": _cache(s, options.group)}


def _score(s: Setting) -> tuple[Any, dict[str, Any]]:
    c = s.config
    vocab = s.model.config.vocab_size
    # distinct, and without common prefixes as long as there are first tokens
    table = [[i // vocab**j % vocab for j in range(c.candidate_tokens)] for i in range(c.candidates)]
    candidates = lm.Candidates(table)
    optimizer = optax.adam(1e-6)
    params = s.variables[s.trained]
    base = {name: value for name, value in s.variables.items() if name != s.trained}
    opt_shapes = jax.eval_shape(optimizer.init, params)
    places = jax.tree.map(lambda x: x.sharding, params)
    opt_state = placed(opt_shapes, place_like(opt_shapes, params, places, s.whole))

    def step(params, opt_state, base, tokens, lengths, chosen, advantage):
        def loss(params):
            scores = lm.score(s.model, {**base, s.trained: params}, tokens, lengths, candidates)
            log_probs = jax.nn.log_softmax(scores.sum)
            return -jnp.mean(advantage * jnp.take_along_axis(log_probs, chosen[:, None], 1)[:, 0])

        grads = jax.grad(loss)(params)
        steps, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, steps), opt_state

    batch = [s.rows((c.batch_size, c.length)), s.rows((c.batch_size,)), s.rows((c.batch_size,))]
    batch.append(s.rows((c.batch_size,), jnp.float32))
    kept_places = (places, jax.tree.map(lambda x: x.sharding, opt_state))
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=kept_places)
    compiled = jitted.lower(params, opt_state, base, *batch).compile()
    return compiled, {"base": base, "trained": params, "optimiser": opt_state, "data": batch}


def _generate(s: Setting) -> tuple[Any, dict[str, Any]]:
    c = s.config
    sampling = lm.SamplingConfig(c.new_tokens, samples=c.samples)
    key = jax.eval_shape(lambda: jax.random.key(0))
    prompts = [s.rows((c.batch_size, c.length)), s.rows((c.batch_size,))]
    jitted = jax.jit(lambda v, tokens, lengths, key: lm.generate(s.model, v, tokens, lengths, key, sampling))
    arguments = [*prompts, placed(key, s.whole)]
    compiled = jitted.lower(s.variables, *arguments).compile()
    return compiled, {"base": s.variables, "data": arguments, "cache": _cache(s, c.samples)}


def _cache(s: Setting, samples: int) -> Any:
    """Keys and values of prompts and continuations, with the shardings that the compiler chooses after one token."""
    c = s.config

    def create(variables, tokens, lengths):
        read: Any = s.model.apply(variables, tokens, lengths=lengths, cache=c.length, at=lengths[:, None] - 1)
        branches = lm.DecodeState.create(read.cache, lengths, samples, c.new_tokens)
        first = jnp.broadcast_to(jnp.argmax(read.logits, -1), (c.batch_size, samples))
        return s.model.apply(variables, first, branches, method=lm.Llama.decode)[1]

    arguments = (s.variables, s.rows((c.batch_size, c.length)), s.rows((c.batch_size,)))
    lowered = jax.jit(create).lower(*arguments)
    return placed(lowered.out_info, lowered.compile().output_shardings)


def declared_size(model: lm.Llama) -> dict[str, int]:
    """Number of parameters in each collection of a model."""
    return {n: sum(math.prod(x.shape) for x in jax.tree.leaves(tree)) for n, tree in model.abstract().items()}


PROGRAMS = {"sft": _sft, "grpo": _grpo, "score": _score, "generate": _generate}
"""Workload -> function that compiles it; returns the program, and the arrays that a device keeps, by part."""
