"""Does it fit into memory? A step compiled ahead of time from shapes only, and its memory on each device.

Nothing is allocated and no weight is read: a model's config.json gives every shape, `llmrl_jax.parallel` the devices
of each part, and the compiler the memory of the program itself.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import jax

from llmrl_jax import lm
from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import byte_text, expanded
from llmrl_jax.core.packaged import LANGUAGE_MODELS
from llmrl_jax.lm.tensors import read_json
from llmrl_jax.parallel import MeshSpec
from llmrl_jax.parallel.absent import Target
from llmrl_jax.workflows.memory.config import FitConfig, count, parse_bytes
from llmrl_jax.workflows.memory.programs import PROGRAMS, declared_size, held, setting
from llmrl_jax.workflows.memory.roofline import Prediction


@dataclass(frozen=True)
class Fit:
    """The memory of a program on each device."""

    config: FitConfig
    parts: Mapping[str, tuple[int, int | None]]
    """Part -> bytes on the fullest device, and bytes of one full copy (None if not applicable)."""
    parameters: int
    """Number of parameters of the model."""
    trained: int
    """Number of trained parameters."""
    devices: str
    memory: int | None
    """Memory of a device, in bytes; None if unknown."""
    seconds: float
    """Seconds for tracing and compiling."""
    prediction: Prediction | None = None
    """The time of a step; None without a target, or if the compiler refuses the program."""
    program: jax.stages.Compiled | None = field(default=None, repr=False)
    """The compiled program; None if the compiler refuses it."""

    @property
    def total(self) -> int:
        """Bytes on the fullest device."""
        return sum(part for part, _ in self.parts.values())

    @property
    def fits(self) -> bool | None:
        """Return whether the total is at most the memory; None if that is unknown."""
        return None if self.memory is None else self.total <= self.memory

    def facts(self) -> dict[str, Any]:
        """The numbers of the table, in bytes, as JSON values."""
        parts = {name: {"per_device": part, "one_copy": total} for name, (part, total) in self.parts.items()}
        names = ("parameters", "trained", "devices", "total", "memory", "fits", "seconds", "prediction")
        settings = {f.name: getattr(self.config, f.name) for f in fields(self.config) if f.name not in NO_SETTINGS}
        return {name: getattr(self, name) for name in names} | {"parts": parts, "settings": settings}

    def table(self) -> str:
        """The parts, their sum, and the verdict."""
        width = max(map(len, (*self.parts, "device memory")))
        lines = [_title(self), "", f"{'':<{width}}  {'per device':>10}  {'one copy':>10}"]
        for name, (part, copy_) in self.parts.items():
            lines.append(
                f"{name:<{width}}  {byte_text(part):>10}  {byte_text(copy_) if copy_ is not None else '':>10}".rstrip()
            )
        lines.append(f"{'total':<{width}}  {byte_text(self.total):>10}")
        if self.memory is None:
            lines += ["", "The device does not say how much memory it has: give --memory, as in --memory 16GiB."]
            return "\n".join(lines)
        lines.append(f"{'device memory':<{width}}  {byte_text(self.memory):>10}")
        share = self.total / self.memory
        verdict = "It does not fit" if not self.fits else "It fits" if share <= 0.9 else "It fits, barely"
        lines += ["", f"{verdict}: {share:.0%} of the memory."]
        return "\n".join([*lines, "", *self.prediction.lines()] if self.prediction else lines)


NO_SETTINGS = ("json", "compare", "advise", "memory")


def _title(fit: Fit) -> str:
    c = fit.config
    trained = f", {count(fit.trained)} trained" if c.trains else ""
    return f"{count(fit.parameters)} parameters{trained}; {c.workload}: {c.described()}; on {fit.devices}"


def read_shape(model: str) -> lm.LlamaConfig:
    """A model's architecture, from a folder, a GGUF file, a config.json, a packaged model's name or a hub id (only
    config.json is fetched)."""
    if not model:
        raise ValueError("no model is given: --model takes a folder, a config.json, a GGUF file or a hub id")
    path = expanded(model)
    if path.is_dir() or path.is_file() and path.suffix != ".json" or model.lower() in LANGUAGE_MODELS:
        return lm.read_config(model)
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
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileNotFoundError(
            f"{model!r} is no local folder, and its config.json could not be had: {message}"
        ) from None


def find_devices(config: FitConfig) -> list[jax.Device]:
    """The devices to compile for; simulated ones are created if jax has not initialized its devices yet.

    **Raises:** `ValueError` if there are too few, with the remedy; for a target, see `Target.devices`.
    """
    needed = MeshSpec.parse(config.mesh).size
    if config.target:
        target = Target.parse(config.target)
        if config.mesh and needed != target.size:
            raise ValueError(
                f"the mesh {config.mesh} has {needed} devices, the target {target} {target.size}: match them"
            )
        return target.devices()
    if config.devices:
        try:
            jax.config.update("jax_num_cpu_devices", config.devices)
            jax.config.update("jax_platforms", "cpu")
        except RuntimeError:  # the devices are initialized already and cannot change
            pass
        present = jax.devices()
        if len(present) < config.devices:
            raise ValueError(
                f"{config.devices} devices are asked for, but this process has {len(present)} already; start it with "
                f"JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count={config.devices}"
            )
        return present[: config.devices]
    present = jax.devices()
    if needed > len(present):
        raise ValueError(
            f"the mesh {config.mesh} needs {needed} devices, {len(present)} are present; --devices {needed} simulates "
            "them"
        )
    return present


def device_memory(devices: list[jax.Device]) -> int | None:
    """The memory that a program can allocate on the smallest device; None if the devices do not report it."""
    limits = [(d.memory_stats() or {}).get("bytes_limit") for d in devices]
    return min(limits) if limits and all(limits) else None  # type: ignore[type-var]


def fit(config: FitConfig) -> Fit:
    """Compile a workload, and sum its memory on a device.

    **Raises:** `ValueError` for a mesh that does not divide a leaf or the batch, or lengths that exceed the model's.
    """
    return compiled_fit(config, read_shape(config.model), find_devices(config))


def compiled_fit(config: FitConfig, shape: lm.LlamaConfig, devices: list[jax.Device]) -> Fit:
    """`fit` of a model with a known architecture, on given devices."""

    def build() -> Built:
        s = setting(config, shape, devices)
        numbers = declared_size(s.model)
        trained = numbers.get("lora", numbers["params"]) if config.trains else 0
        return Built(numbers["params"], trained, lambda: PROGRAMS[config.workload](s))

    return measured(config, devices, build)


@dataclass(frozen=True)
class Built:
    """A program that is to be compiled."""

    parameters: int
    trained: int
    compile: Callable[[], tuple[Any, dict[str, Any]]]
    """Returns the program, and the arrays that a device keeps, by part."""


def measured(config: FitConfig, devices: Sequence[jax.Device], build: Callable[[], Built]) -> Fit:
    """The memory of a program on given devices, and for a target its predicted time.

    **Arguments:** `build`, checks the workload and returns its program; it is called in the target's context.
    """
    started = time.monotonic()
    target = Target.parse(config.target) if config.target else None
    used = list(devices)[: MeshSpec.parse(config.mesh).size if config.mesh else 1]
    device_names = f"{len(used)} x {used[0].device_kind} ({used[0].platform})"
    prediction = program = None
    with target.context() if target else contextlib.nullcontext():
        built = build()
        try:
            with doing(f"compiling {config.workload}"):
                program, arguments_by_part = built.compile()
        except jax.errors.JaxRuntimeError as error:
            parts = refused_parts(error)
        else:
            parts = _parts(config, arguments_by_part, program.memory_analysis())
            if target:
                prediction = Prediction.of(program.as_text(), target.facts, once=int(config.repeats))
    memory = target.facts.memory if target else device_memory(used)
    return Fit(
        config=config,
        parts=parts,
        parameters=built.parameters,
        trained=built.trained,
        devices=f"{device_names}, {MeshSpec.parse(config.mesh)}" if config.mesh else device_names,
        memory=parse_bytes(config.memory) if config.memory else memory,
        seconds=time.monotonic() - started,
        prediction=prediction,
        program=program,
    )


def refused_parts(error: Exception) -> dict[str, tuple[int, int | None]]:
    """`Fit.parts` of a program that a compiler refuses, since it does not fit: the sum, which is all that it says.

    **Raises:** any other error of a compiler."""
    needs = re.search(r"(?:[Uu]sed|required[^()]*\() ?([\d.]+)([KMGT])", str(error))
    if "RESOURCE_EXHAUSTED" not in str(error) or needs is None:
        raise error
    return {"needed, as the compiler says": (parse_bytes(f"{needs[1]}{needs[2]}iB"), None)}


def _parts(config: FitConfig, arguments: Mapping[str, Any], stats: Any) -> dict[str, tuple[int, int | None]]:
    """`Fit.parts`, from the arrays kept between steps and the compiler's statistics of the program's memory."""
    parts: dict[str, tuple[int, int | None]] = {}
    if jax.tree.leaves(arguments["base"]):
        parts["frozen parameters" if config.trains else "parameters"] = held(arguments["base"])
    if "trained" in arguments:
        parts["adapters" if config.adapts else "parameters"] = held(arguments["trained"])
        parts["optimiser"] = held(arguments["optimiser"])
    parts["data and counters"] = held(arguments["data"])
    temporary = stats.temp_size_in_bytes
    if "cache" in arguments:  # it is one of the program's temporaries
        parts["cache"] = held(arguments["cache"])
        temporary -= parts["cache"][0]
    parts["activations and gradients" if config.trains else "activations"] = (max(0, temporary), None)
    results = max(0, stats.output_size_in_bytes - stats.alias_size_in_bytes)
    if results:
        parts["results"] = (results, None)
    return parts


# --- options that save memory, each compiled and compared -----------------------------------------------------------


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
    part, shards = rows // config.microbatches, spec.data * spec.fsdp
    if config.workload in ("sft", "grpo") and part // shards > 1 and rows % shards == 0:
        parts = rows // shards  # leaves one row per device
        yield f"--microbatches {parts}", replace(config, microbatches=parts)
    elif (
        config.batch_size // shards > 1
        and config.batch_size % (2 * shards) == 0
        and rows // 2 % config.microbatches == 0
    ):
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


def advice(fit_: Fit) -> list[str]:
    """Lines of advice if a program does not fit: every option of `knobs` alone; then, if none suffices, those that save
    memory combined, one after another until it fits."""
    shape = read_shape(fit_.config.model)
    devices = find_devices(fit_.config)

    def changed(config: FitConfig) -> Fit | None:
        try:
            return compiled_fit(config, shape, devices)
        except ValueError:  # this mesh or number does not divide the model
            return None

    lines, helpful, enough = [], [], False
    for flag, config in knobs(fit_.config):
        candidate = changed(config)
        if candidate is not None and candidate.total < fit_.total:
            helpful.append(flag.split()[0])
            enough |= bool(candidate.fits)
            lines.append(f"  {flag:<24} {byte_text(candidate.total):>10}{'  fits' if candidate.fits else ''}")
    if enough or len(helpful) < 2:
        return lines
    best, used = fit_, []
    for name in helpful:
        # its value may depend on the options before it
        flag, config = next(((f, c) for f, c in knobs(best.config) if f.split()[0] == name), ("", best.config))
        candidate = changed(config) if flag else None
        if candidate is None or candidate.total >= best.total:
            continue
        best = candidate
        used.append(flag)
        if best.fits:
            break
    return [*lines, f"  {' '.join(used)}: {byte_text(best.total)}{', fits' if best.fits else ', still too much'}"]
