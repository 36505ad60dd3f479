"""Advice if a program does not fit: options that save memory, each compiled and compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llmrl_jax.parallel import MeshSpec
from llmrl_jax.workflows.memory.config import FitConfig
from llmrl_jax.workflows.memory.fit import Fit, compiled_fit, find_devices, read_shape
from llmrl_jax.workflows.memory.sizes import size


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
    if config.workload in ("sft", "grpo") and part // ways > 1 and rows % ways == 0:
        parts = rows // ways  # leaves one row per device
        yield f"--microbatches {parts}", replace(config, microbatches=parts)
    elif config.batch_size // ways > 1 and config.batch_size % (2 * ways) == 0 and rows // 2 % config.microbatches == 0:
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
    """Lines of advice if a program does not fit: every option of `knobs` alone; then, if none suffices, those that save
    memory combined, one after another until it fits."""
    shape = read_shape(found.config.model)
    devices = find_devices(found.config)

    def changed(config: FitConfig) -> Fit | None:
        try:
            return compiled_fit(config, shape, devices)
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
        # its value may depend on the options before it
        flag, config = next(((f, c) for f, c in knobs(best.config) if f.split()[0] == name), ("", best.config))
        other = changed(config) if flag else None
        if other is None or other.total >= best.total:
            continue
        best = other
        used.append(flag)
        if best.fits:
            break
    return [*lines, f"  {' '.join(used)}: {size(best.total)}{', fits' if best.fits else ', still too much'}"]
