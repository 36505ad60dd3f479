"""Will it fit? A step compiled ahead of time from shapes alone, and what it holds on each device.

Nothing is allocated and no weight is read: a model's config.json gives every shape, `llmrl_jax.parallel` where each
part of it lies, and the compiler how much room the program takes beside it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from llmrl_jax import lm
from llmrl_jax.lm.quantize import quantize, quantized_shardings
from llmrl_jax.lm.tensors import read_json
from llmrl_jax.parallel import MeshSpec, batch_sharding, make_mesh, shardings
from llmrl_jax.run.loop import make_chunk
from llmrl_jax.tuning import GRPOConfig, Packed, Prompts, SFTConfig, make_grpo, make_sft


@dataclass(frozen=True)
class FitConfig:
    """What is to be run, and on what."""

    model: str
    """A model folder, its config.json, or a Hugging Face hub id. No weights are read."""
    workload: Literal["sft", "grpo", "score", "generate"] = "sft"
    """A step of fine-tuning or of GRPO as `llmrl lm` runs it; `score`: the gradient of a batch of scored prompts, as
    in PPO's minibatches (without the critic); `generate`: sampling."""
    batch_size: int = 16
    """Rows in a step: texts (sft), prompts (grpo, score, generate)."""
    length: int = 512
    """Tokens in a row of text, or in the longest prompt."""
    new_tokens: int = 128
    """grpo, generate: tokens in a continuation, at most."""
    samples: int = 1
    """grpo (where it is the group, at least 2), generate: continuations of each prompt."""
    candidates: int = 6
    """score: candidates to choose from, of `candidate_tokens` tokens each."""
    candidate_tokens: int = 4
    """score: tokens in a candidate."""
    rows: int = 0
    """sft, grpo: rows of data, which every device holds; 0: as many as a step takes."""
    microbatches: int = 1
    """sft, grpo: parts in which a step's gradient is computed."""
    head_chunk: int = 0
    """sft: positions whose logits exist at once; 0: all."""
    tune: Literal["lora", "full"] = "lora"
    """Train adapters over a frozen base, or every weight."""
    lora: lm.LoRAConfig = field(default_factory=lm.LoRAConfig)
    """The adapters, where `tune` is `lora`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the model computes in."""
    param_dtype: Literal["same", "float32", "bfloat16"] = "same"
    """What its weights are kept in; `same`: as `dtype`."""
    quantize: Literal["none", "int8", "nf4"] = "none"
    """What the matrices of a frozen base are kept in, in place of `param_dtype`."""
    remat: bool = False
    """Recompute activations in the backward pass."""
    mesh: str = ""
    """Devices by axis, as in `data=4,fsdp=2`. Empty: one device."""
    devices: int = 0
    """Compile for so many simulated CPU devices in place of those that are present; 0: those that are."""
    memory: str = ""
    """Memory of a device, as 16GiB or 80GB. Empty: what the devices say they have (CPUs say nothing)."""
    advise: bool = True
    """Where it does not fit: compile again with each knob turned, and say what helps."""

    def __post_init__(self):
        for name in ("batch_size", "length", "new_tokens", "samples", "candidates", "candidate_tokens", "microbatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 1 is needed")
        for name in ("rows", "devices", "head_chunk"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 0 is needed")
        if self.quantize != "none" and self.trains and self.tune == "full":
            raise ValueError(f"quantize {self.quantize} needs a frozen base: choose --tune lora")
        if self.memory:
            parse_bytes(self.memory)

    @property
    def trains(self) -> bool:
        """Whether there is a gradient and an optimiser."""
        return self.workload != "generate"


@dataclass(frozen=True)
class Fit:
    """What a program holds on each device."""

    config: FitConfig
    parts: Mapping[str, tuple[int, int | None]]
    """What -> bytes on a device (the fullest), and bytes of one whole copy (None where that means nothing)."""
    parameters: int
    """Numbers in the model."""
    trained: int
    """Numbers that the optimiser moves."""
    devices: str
    memory: int | None
    """Of a device, in bytes; None where it is not known."""
    seconds: float
    """What tracing and compiling took."""

    @property
    def total(self) -> int:
        """Bytes on a device."""
        return sum(part for part, _ in self.parts.values())

    @property
    def fits(self) -> bool | None:
        """Whether the total is at most the memory; None where that is not known."""
        return None if self.memory is None else self.total <= self.memory

    def table(self) -> str:
        """The parts, their sum, and the verdict."""
        width = max(map(len, (*self.parts, "device memory")))
        lines = [_title(self), "", f"{'':<{width}}  {'per device':>10}  {'one copy':>10}"]
        for name, (part, whole) in self.parts.items():
            lines.append(f"{name:<{width}}  {size(part):>10}  {size(whole) if whole is not None else '':>10}".rstrip())
        lines.append(f"{'total':<{width}}  {size(self.total):>10}")
        if self.memory is None:
            lines += ["", "The device does not say how much memory it has: give --memory, as in --memory 16GiB."]
            return "\n".join(lines)
        lines.append(f"{'device memory':<{width}}  {size(self.memory):>10}")
        share = self.total / self.memory
        verdict = "It does not fit" if not self.fits else "It fits" if share <= 0.9 else "It fits, barely"
        return "\n".join([*lines, "", f"{verdict}: {share:.0%} of the memory."])


def _title(fit: Fit) -> str:
    c = fit.config
    trained = f", {count(fit.trained)} trained" if c.trains else ""
    what = {
        "sft": f"a step on {c.batch_size} rows of {c.length} tokens",
        "grpo": f"a step on {c.batch_size} prompts of {c.length} tokens, {max(2, c.samples)} x {c.new_tokens} new",
        "score": f"the gradient of {c.batch_size} prompts of {c.length} tokens, {c.candidates} candidates each",
        "generate": f"{c.batch_size} prompts of {c.length} tokens, {c.samples} x {c.new_tokens} new",
    }[c.workload]
    return f"{count(fit.parameters)} parameters{trained}; {c.workload}: {what}; on {fit.devices}"


def count(n: int) -> str:
    """A number with three digits and a unit: 1.10B, 27.3M."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if n >= unit:
            return f"{n / unit:.3g}{name}"
    return str(n)


def size(n: int) -> str:
    """Bytes with a unit: 512 B, 1.5 MiB, 13.3 GiB."""
    value, unit = float(n), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"


def parse_bytes(text: str) -> int:
    """`16GiB`, `80GB`, `512 MiB` or a plain number of bytes. **Raises:** `ValueError` for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B)?\s*", text, re.IGNORECASE)
    if not found:
        raise ValueError(f"the memory is {text!r}; a size is needed, as 16GiB or 80GB")
    power = "KMGT".index(found[2].upper()) + 1 if found[2] else 0
    n = int(float(found[1]) * (1024 if found[3] else 1000) ** power)
    if not n:
        raise ValueError(f"the memory is {text!r}; a device has some")
    return n


def read_shape(model: str) -> lm.LlamaConfig:
    """A model's architecture, from a folder, a config.json or a hub id, of which nothing else is fetched."""
    path = Path(model).expanduser()
    if path.is_dir():
        return lm.read_config(path)
    if not path.is_file():
        if path.suffix == ".json" or model.count("/") != 1 or model.startswith((".", "/", "~")):
            raise FileNotFoundError(f"no model folder and no config.json at {model!r} (a hub id is spelled OWNER/NAME)")
        path = _fetch(model)
    try:
        return lm.LlamaConfig.from_hf(read_json(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _fetch(model: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, "config.json"))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileNotFoundError(f"{model!r} is no local folder, and its config.json could not be had: {said}") from None


def find_devices(config: FitConfig) -> list[jax.Device]:
    """The devices to compile for; simulated ones are made if nothing has touched a device yet.

    **Raises:** `ValueError` where there are too few, saying what makes more.
    """
    if config.devices:
        try:
            jax.config.update("jax_num_cpu_devices", config.devices)
            jax.config.update("jax_platforms", "cpu")
        except RuntimeError:  # the devices are there already, and stay what they are
            pass
        found = jax.devices()
        if len(found) < config.devices:
            raise ValueError(
                f"{config.devices} devices are asked for, but this process has {len(found)} already; start it with "
                f"JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count={config.devices}"
            )
        return found[: config.devices]
    found, needed = jax.devices(), MeshSpec.parse(config.mesh).size
    if needed > len(found):
        raise ValueError(
            f"the mesh {config.mesh} needs {needed} devices, {len(found)} are present; --devices {needed} simulates "
            "them"
        )
    return found


def device_memory(devices: list[jax.Device]) -> int | None:
    """What the smallest of the devices lets a program allocate; None where they do not say."""
    found = [(d.memory_stats() or {}).get("bytes_limit") for d in devices]
    return min(found) if found and all(found) else None  # type: ignore[type-var]


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
    """The sharding of every leaf of a tree (an optimiser's state): that of the parameter whose path ends its own and
    whose shape it has, as `zeros_like` of that parameter lies; else `elsewhere`."""
    known = {
        _names(path): (tuple(leaf.shape), place)
        for (path, leaf), place in zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(places))
    }

    def place(path: Any, leaf: Any) -> Sharding:
        names = _names(path)
        for start in range(len(names)):
            shape, found = known.get(names[start:], ((), None))
            if found is not None and shape == tuple(leaf.shape):
                return found
        return elsewhere

    return jax.tree_util.tree_map_with_path(place, tree)


def _placed(shapes: Any, places: Any) -> Any:
    return jax.tree.map(lambda x, p: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=p), shapes, places)


def _itemsize(x: Any) -> int:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), x.dtype))
        return math.prod(x.shape) * x.dtype.itemsize
    return jnp.dtype(x.dtype).itemsize


def held(tree: Any) -> tuple[int, int]:
    """Bytes of a tree of placed shapes on one device, and of one whole copy."""
    leaves = jax.tree.leaves(tree)
    part = sum(math.prod(x.sharding.shard_shape(x.shape)) * _itemsize(x) for x in leaves)
    return part, sum(math.prod(x.shape) * _itemsize(x) for x in leaves)


@dataclass(frozen=True)
class _Setting:
    """A model in shapes, where its parts lie, and the mesh."""

    config: FitConfig
    model: lm.Llama
    mesh: Mesh | None
    variables: Any
    """`params`, and `lora` where adapters are trained, each leaf with its place."""
    whole: Sharding
    """A copy on every device."""

    @property
    def trained(self) -> str:
        return "params" if self.model.lora is None else "lora"

    def rows(self, shape: tuple[int, ...], dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        """An argument whose rows are split over data and fsdp."""
        place = self.whole if self.mesh is None else batch_sharding(self.mesh, size=shape[0])
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)


def setting(config: FitConfig, shape: lm.LlamaConfig, devices: list[jax.Device]) -> _Setting:
    """The model of a configuration, without values."""
    needed = config.length
    if config.workload in ("grpo", "generate"):
        needed += config.new_tokens
    elif config.workload == "score":
        needed += config.candidate_tokens
    if needed > shape.max_position_embeddings:
        raise ValueError(
            f"{config.workload} with these lengths needs {needed} positions; the model has "
            f"{shape.max_position_embeddings} (max_position_embeddings): lower length or new_tokens"
        )
    mesh = make_mesh(config.mesh, devices) if config.mesh else None
    dtype = jnp.dtype(config.dtype)
    kept = dtype if config.param_dtype == "same" else jnp.dtype(config.param_dtype)
    adapted = config.lora if config.tune == "lora" and config.trains else None
    model = lm.Llama(shape, lora=adapted, dtype=dtype, param_dtype=kept, remat=config.remat)
    shapes, axes = model.abstract(), model.logical_axes()
    if config.quantize != "none":
        coded = jax.eval_shape(partial(quantize, kind=config.quantize), shapes["params"])
        shapes = {**shapes, "params": coded}
    whole: Sharding = SingleDeviceSharding(devices[0])
    if mesh is None:
        places = jax.tree.map(lambda _: whole, shapes)
    else:
        whole = NamedSharding(mesh, PartitionSpec())
        places = {name: shardings(shapes[name], axes[name], mesh) for name in shapes if name != "params"}
        if config.quantize != "none":
            places["params"] = quantized_shardings(shapes["params"], axes["params"], mesh)
        else:
            places["params"] = shardings(shapes["params"], axes["params"], mesh)
        places = {name: places[name] for name in shapes}
    return _Setting(config, model, mesh, _placed(shapes, places), whole)


# --- the programs -----------------------------------------------------------------------------------------------------


def _learner_state(s: _Setting, make: Callable[[Any, Any], Any], data: Any) -> Any:
    """The first state of a learner, in shapes that lie where its arrays would.

    **Arguments:** `make(variables, data)`, the learner off any mesh; `data`, its shapes.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    bare = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), s.variables)
    state = jax.eval_shape(lambda v, d, k: make(v, d).init(k), bare, data, key)
    params = jax.tree.map(lambda x: x.sharding, s.variables[s.trained])
    whole = jax.tree.map(lambda _: s.whole, state)
    frozen = whole.frozen
    if "params" in state.frozen["base"]:
        base = jax.tree.map(lambda x: x.sharding, s.variables["params"])
        frozen = {**frozen, "base": {"params": base}}
    opt_state = place_like(state.opt_state, s.variables[s.trained], params, s.whole)
    return _placed(state, whole.replace(params=params, frozen=frozen, opt_state=opt_state))


def _compile_learner(learner: Any, state: Any) -> tuple[Any, dict[str, Any]]:
    """The chunk of updates that a run compiles, and what is kept between chunks."""
    rest, frozen = state.replace(frozen=()), state.frozen
    places = jax.tree.map(lambda x: x.sharding, rest)
    jitted = jax.jit(make_chunk(learner, 1), donate_argnums=0, out_shardings=(places, None))
    compiled = jitted.lower(rest, frozen, np.int32(1)).compile()
    data = {name: value for name, value in frozen.items() if name != "base"}
    kept = {
        "base": frozen["base"],
        "trained": state.params,
        "optimiser": state.opt_state,
        "data": (data, state.replace(params=(), opt_state=(), frozen=())),
    }
    return compiled, kept


def _sft(s: _Setting) -> tuple[Any, dict[str, Any]]:
    c = s.config
    options = SFTConfig(batch_size=c.batch_size, microbatches=c.microbatches, head_chunk=c.head_chunk)
    shape = (max(c.rows, c.batch_size), c.length)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
    data: Any = Packed(tokens, tokens, tokens, jax.ShapeDtypeStruct(shape, bool))  # type: ignore[arg-type]
    state = _learner_state(s, lambda v, d: make_sft(options, s.model, v, d, 1000), data)
    return _compile_learner(make_sft(options, s.model, s.variables, data, 1000, s.mesh), state)


def _grpo(s: _Setting) -> tuple[Any, dict[str, Any]]:
    c = s.config
    options = GRPOConfig(
        prompts=c.batch_size, group=max(2, c.samples), max_new_tokens=c.new_tokens, microbatches=c.microbatches
    )
    rows = max(c.rows, c.batch_size)
    data = jax.eval_shape(lambda: Prompts(jnp.zeros((rows, c.length), jnp.int32), jnp.ones(rows, jnp.int32)))

    def reward(found: Any, places: Any) -> Any:
        return found.lengths.astype(jnp.float32)

    state = _learner_state(s, lambda v, d: make_grpo(options, s.model, v, d, reward), data)
    learner = make_grpo(options, s.model, s.variables, data, reward, mesh=s.mesh)
    compiled, kept = _compile_learner(learner, state)
    return compiled, kept | {"cache": _cache(s, options.group)}


def _score(s: _Setting) -> tuple[Any, dict[str, Any]]:
    c = s.config
    vocab = s.model.config.vocab_size
    table = [[(i * c.candidate_tokens + j) % vocab for j in range(c.candidate_tokens)] for i in range(c.candidates)]
    candidates = lm.Candidates(table)
    optimizer = optax.adam(1e-6)
    params = s.variables[s.trained]
    base = {name: value for name, value in s.variables.items() if name != s.trained}
    opt_shapes = jax.eval_shape(optimizer.init, params)
    places = jax.tree.map(lambda x: x.sharding, params)
    opt_state = _placed(opt_shapes, place_like(opt_shapes, params, places, s.whole))

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


def _generate(s: _Setting) -> tuple[Any, dict[str, Any]]:
    c = s.config
    how = lm.SamplingConfig(c.new_tokens, samples=c.samples)
    key = jax.eval_shape(lambda: jax.random.key(0))
    prompts = [s.rows((c.batch_size, c.length)), s.rows((c.batch_size,))]
    jitted = jax.jit(lambda v, tokens, lengths, key: lm.generate(s.model, v, tokens, lengths, key, how))
    arguments = [*prompts, _placed(key, s.whole)]
    compiled = jitted.lower(s.variables, *arguments).compile()
    return compiled, {"base": s.variables, "data": arguments, "cache": _cache(s, c.samples)}


def _cache(s: _Setting, samples: int) -> Any:
    """Keys and values of prompts and continuations, where the compiler puts them once a token is written."""
    c = s.config

    def create(variables, tokens, lengths):
        empty = lm.Cache.create(s.model.config, c.batch_size, c.length, s.model.dtype)
        read: Any = s.model.apply(variables, tokens, lengths=lengths, cache=empty, at=lengths[:, None] - 1)
        branches = lm.Branches.create(read.cache, lengths, samples, c.new_tokens)
        first = jnp.broadcast_to(jnp.argmax(read.logits, -1), (c.batch_size, samples))
        return s.model.apply(variables, first, branches, method=lm.Llama.decode)[1]

    arguments = (s.variables, s.rows((c.batch_size, c.length)), s.rows((c.batch_size,)))
    lowered = jax.jit(create).lower(*arguments)
    return _placed(lowered.out_info, lowered.compile().output_shardings)


_PROGRAMS = {"sft": _sft, "grpo": _grpo, "score": _score, "generate": _generate}


def fit(config: FitConfig) -> Fit:
    """Compile a workload, and add up what it holds on a device.

    **Raises:** `ValueError` for a mesh that does not divide a leaf or the batch, or lengths that exceed the model's.
    """
    devices = find_devices(config)
    return _fit(config, read_shape(config.model), devices)


def _fit(config: FitConfig, shape: lm.LlamaConfig, devices: list[jax.Device]) -> Fit:
    started = time.monotonic()
    s = setting(config, shape, devices)
    compiled, kept = _PROGRAMS[config.workload](s)
    stats = compiled.memory_analysis()
    seconds = time.monotonic() - started
    cache = held(kept["cache"]) if "cache" in kept else (0, 0)
    parts: dict[str, tuple[int, int | None]] = {}
    if jax.tree.leaves(kept["base"]):
        parts["frozen parameters" if config.trains else "parameters"] = held(kept["base"])
    if "trained" in kept:
        parts["adapters" if config.tune == "lora" else "parameters"] = held(kept["trained"])
        parts["optimiser"] = held(kept["optimiser"])
    parts["data and counters"] = held(kept["data"])
    if cache[0]:
        parts["cache"] = cache
    # the cache is one of the program's temporaries
    parts["activations and gradients" if config.trains else "activations"] = (
        max(0, stats.temp_size_in_bytes - cache[0]),
        None,
    )
    results = max(0, stats.output_size_in_bytes - stats.alias_size_in_bytes)
    if results:
        parts["results"] = (results, None)
    used = devices if s.mesh is None else list(s.mesh.devices.flat)
    one = devices[0]
    place = f"{len(used) if s.mesh is not None else 1} x {one.device_kind} ({one.platform})"
    numbers = declared_size(s.model)
    return Fit(
        config=config,
        parts=parts,
        parameters=numbers["params"],
        trained=numbers.get("lora", numbers["params"]) if config.trains else 0,
        devices=f"{place}, {MeshSpec.parse(config.mesh)}" if config.mesh else place,
        memory=parse_bytes(config.memory) if config.memory else device_memory(used),
        seconds=seconds,
    )


def declared_size(model: lm.Llama) -> dict[str, int]:
    """Numbers in each collection of a model."""
    return {n: sum(math.prod(x.shape) for x in jax.tree.leaves(tree)) for n, tree in model.abstract().items()}


# --- advice -----------------------------------------------------------------------------------------------------------


def knobs(config: FitConfig) -> Iterator[tuple[str, FitConfig]]:
    """Changes that may save memory, as flags, the cheapest in speed or quality first."""
    spec = MeshSpec.parse(config.mesh)
    if config.trains and not config.remat:
        yield "--remat", replace(config, remat=True)
    if config.workload == "sft" and not config.head_chunk:
        chunk = next((n for n in (128, 64, 32, 16) if n < config.length and config.length % n == 0), 0)
        if chunk:
            yield f"--head-chunk {chunk}", replace(config, head_chunk=chunk)
    rows = config.batch_size * (max(2, config.samples) if config.workload == "grpo" else 1)
    part, ways = rows // config.microbatches, spec.data * spec.fsdp
    if config.workload in ("sft", "grpo") and part // ways > 1:
        parts = rows // ways  # as many as leave each device a row
        yield f"--microbatches {parts}", replace(config, microbatches=parts)
    elif config.batch_size // ways > 1 and config.batch_size % (2 * ways) == 0:
        yield f"--batch-size {config.batch_size // 2}", replace(config, batch_size=config.batch_size // 2)
    if spec.data > 1:
        mesh = f"fsdp={spec.data * spec.fsdp}" + (f",tensor={spec.tensor}" if spec.tensor > 1 else "")
        yield f"--mesh {mesh}", replace(config, mesh=mesh)
    if config.dtype == "float32":
        yield "--dtype bfloat16", replace(config, dtype="bfloat16")
    if config.trains and config.tune == "full":
        yield "--tune lora", replace(config, tune="lora")
    elif config.quantize == "none":
        yield "--quantize int8", replace(config, quantize="int8")


def advice(found: Fit) -> list[str]:
    """What helps where a program does not fit: each knob compiled by itself; then, where none is enough, those that
    save anything one after another until it fits."""
    shape = read_shape(found.config.model)
    devices = find_devices(found.config)

    def changed(config: FitConfig) -> Fit | None:
        try:
            return _fit(config, shape, devices)
        except ValueError:  # this mesh or number does not divide the model
            return None

    lines, helpful, enough = [], [], False
    for flag, config in knobs(found.config):
        other = changed(config)
        if other is not None and other.total < found.total:
            helpful.append(flag.split()[0])
            enough |= bool(other.fits)
            lines.append(f"  {flag:<24} {size(other.total):>10}{'  fits' if other.fits else ''}")
    if enough or len(helpful) < 2:
        return lines
    best, used = found, []
    for name in helpful:
        # its number may depend on the knobs before it
        flag, config = next(((f, c) for f, c in knobs(best.config) if f.split()[0] == name), ("", best.config))
        other = changed(config) if flag else None
        if other is None or other.total >= best.total:
            continue
        best = other
        used.append(flag)
        if best.fits:
            break
    return [*lines, f"  {' '.join(used)}: {size(best.total)}{', fits' if best.fits else ', still too much'}"]
