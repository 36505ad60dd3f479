"""Will it fit? A step compiled ahead of time from shapes alone, and what it holds on each device.

Nothing is allocated and no weight is read: a model's config.json gives every shape, `llmrl_jax.parallel` where each
part of it lies, and the compiler how much room the program takes beside it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import jax

from llmrl_jax import lm
from llmrl_jax.lm.tensors import read_json
from llmrl_jax.parallel import MeshSpec
from llmrl_jax.run.memory.programs import PROGRAMS, declared_size, held, setting


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
    """sft, grpo: positions whose logits exist at once; 0: all."""
    tune: Literal["lora", "full"] = "lora"
    """Train adapters over a frozen base, or every weight."""
    lora: lm.LoRAConfig = field(default_factory=lm.LoRAConfig)
    """The adapters, where `tune` is `lora`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the model computes in."""
    param_dtype: Literal["same", "float32", "bfloat16"] = "same"
    """What its weights are kept in; `same`: as the commands keep them, which is float32 where every weight is trained
    and else as `dtype`."""
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


def fit(config: FitConfig) -> Fit:
    """Compile a workload, and add up what it holds on a device.

    **Raises:** `ValueError` for a mesh that does not divide a leaf or the batch, or lengths that exceed the model's.
    """
    devices = find_devices(config)
    return _fit(config, read_shape(config.model), devices)


def _fit(config: FitConfig, shape: lm.LlamaConfig, devices: list[jax.Device]) -> Fit:
    started = time.monotonic()
    s = setting(config, shape, devices)
    compiled, kept = PROGRAMS[config.workload](s)
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


# --- advice -----------------------------------------------------------------------------------------------------------


def knobs(config: FitConfig) -> Iterator[tuple[str, FitConfig]]:
    """Changes that may save memory, as flags, the cheapest in speed or quality first."""
    spec = MeshSpec.parse(config.mesh)
    if config.trains and not config.remat:
        yield "--remat", replace(config, remat=True)
    if config.workload in ("sft", "grpo") and not config.head_chunk:
        length = config.length if config.workload == "sft" else config.new_tokens
        chunk = next((n for n in (128, 64, 32, 16) if n < length and length % n == 0), 0)
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
