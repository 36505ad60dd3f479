"""Models of 135M, 1B and 7B on TPUs and GPUs that are absent: memory, predicted time and exchanges, by their compilers.

    python experiments/absent_devices.py
    python experiments/absent_devices.py --shapes 1B --targets v5e:2x4 --workloads sft

Each case is a process of its own: `llmrl lm fit --target ... --json` (extras `aot-tpu`, `aot-cuda`). Its result is
`<out>/SHAPE-WORKLOAD-TARGET.json`, without what differs from machine to machine; a case that has one is not compiled
again, unless it failed. In the end all results in the folder are printed as a table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from benchmarks.accelerator.shapes import SHAPES
from llmrl_jax.core.files import write_whole
from llmrl_jax.options.command import parse
from llmrl_jax.parallel.absent import Target
from llmrl_jax.run import info
from llmrl_jax.workflows.memory.config import size
from llmrl_jax.workflows.memory.roofline import milliseconds


ROWS = {"135M": 8, "1B": 2, "7B": 2}
"""Rows of 1,024 tokens on each device."""
ALONE = {"135M": 32, "1B": 8, "7B": 4}
"""On one device, in four microbatches, as on the GPU that was measured (docs/scaling.md)."""
SPLIT = 16
"""The most devices over which weights of 7B are split."""


@dataclass(frozen=True)
class Experiment:
    """Models on absent devices."""

    shapes: tuple[str, ...] = ("135M", "1B", "7B")
    """Models."""
    targets: tuple[str, ...] = ("v5e:2x4", "v5p:4x4x4", "h100:1", "h100:8")
    """Devices."""
    workloads: tuple[str, ...] = ("sft", "generate")
    """What is compiled: `sft`, a LoRA step on rows of 1,024 tokens; `generate`, 128 tokens after 256 for 64 rows, or 8
    on each of several devices; `glam`, 32 environments, or 4 on each of several devices, by 8 steps; `agent`, 64 rows,
    or 16 on each of several devices, by 128 tokens of episodes of 512, with one epoch of turn PPO."""
    remat: bool = False
    """Recompute activations of sft."""
    limit_s: int = 1800
    """Seconds after which a case is given up."""
    out: str = "runs/absent_devices"
    """Folder of the results."""


def mesh_of(shape: str, devices: int) -> str:
    """Copies of the weights where they fit, as the page advises: only those of 7B are split."""
    if devices == 1:
        return ""
    if shape != "7B":
        return f"data={devices}"
    split = min(devices, SPLIT)
    return f"fsdp={split}" if split == devices else f"data={devices // split},fsdp={split}"


def options_of(x: Experiment, shape: str, workload: str, target: str) -> list[str]:
    """The options of `llmrl lm fit` for a case."""
    devices = Target.parse(target).size
    mesh = mesh_of(shape, devices)
    rows = {
        "sft": ALONE[shape] if devices == 1 else ROWS[shape] * devices,
        "generate": 64 if devices == 1 else 8 * devices,
        "glam": 32 if devices == 1 else 4 * devices,
        "agent": 64 if devices == 1 else 16 * devices,
    }[workload]
    more = {
        "sft": [
            "--length",
            "1024",
            *(["--remat"] if x.remat else []),
            *(["--microbatches", "4"] if devices == 1 else []),
        ],
        "generate": ["--length", "256", "--new-tokens", "128"],
        "glam": ["--steps", "8", "--remat"],
        "agent": ["--algo", "turn_ppo", "--steps", "128", "--length", "512", "--remat"],
    }[workload]
    options = ["--workload", workload, "--target", target, "--dtype", "bfloat16", "--batch-size", str(rows), *more]
    return options + (["--mesh", mesh] if mesh else [])


def compiled(x: Experiment, shape: str, workload: str, target: str, config: Path) -> dict[str, Any]:
    """The result of a case; if there is none, the error."""
    options = options_of(x, shape, workload, target)
    command = [
        sys.executable,
        "-m",
        "llmrl_jax",
        "lm",
        "fit",
        "--model",
        str(config),
        *options,
        "--no-advise",
        "--json",
    ]
    case = {"shape": shape, "command": " ".join(["llmrl lm fit --model", f"{shape}.json", *options])}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=x.limit_s)
    except subprocess.TimeoutExpired:
        return case | {"error": f"not compiled in {x.limit_s} s"}
    if done.returncode not in (0, 1) or not done.stdout.lstrip().startswith("{"):
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        return case | {"error": lines[-1]}
    result = json.loads(done.stdout)
    result["settings"].pop("model")  # a path
    return case | {"machine": info.stamp("experiments")} | result


def table(results: list[dict[str, Any]]) -> str:
    """The results as a table of a page."""
    lines = [
        "| model | workload | target, mesh | memory a device | time | share of peak | moved | kernels | exchanges |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        if "error" in r:
            lines.append(f"| {r['shape']} | `{r['command']}` | {r['error']} | | | | | | |")
            continue
        c, p = r["settings"], r["prediction"]
        where = ", ".join(filter(None, (c["target"], c["mesh"])))
        case = f"{c['workload']}, {c['batch_size']} rows"
        start = f"| {r['shape']} | {case} | {where} | {size(r['total'])}"
        if not p:
            lines.append(f"{start}: does not fit | | | | | |")
            continue
        exchanges = ", ".join(f"{k['count']:,.0f} {op}, {size(int(k['bytes']))}" for op, k in p["collectives"].items())
        numbers = f"{milliseconds(p['seconds'])} | {p['share']:.0%} | {p['bytes'] / 1e9:.3g} GB | {p['kernels']:,}"
        if c["workload"] == "agent":  # its play takes as many steps as the texts need
            time, others = numbers.split(" | ", 1)
            step = milliseconds(max(p["uncounted"].values(), default=0.0))
            numbers = f"{time} with one step of play, each further one {step} | {others}"
        fits = "" if r["fits"] else ": does not fit"
        lines.append(f"{start}{fits} | {numbers} | {exchanges or '-'} |")
    return "\n".join(lines)


def main() -> None:
    x = parse(Experiment, description=__doc__)
    jax.config.update("jax_platforms", "cpu")  # with the compilers installed JAX would look for their devices
    out = Path(x.out)
    for shape in x.shapes:
        config = out / "shapes" / f"{shape}.json"
        config.parent.mkdir(parents=True, exist_ok=True)
        write_whole(config, json.dumps(SHAPES[shape].to_hf()) + "\n")
        for target in x.targets:
            for workload in x.workloads:
                path = out / f"{shape}-{workload}{'-remat' if x.remat else ''}-{target.replace(':', '-')}.json"
                if path.is_file() and "error" not in json.loads(path.read_text()):
                    continue
                print(f"{shape}, {workload}, {target}", file=sys.stderr, flush=True)
                write_whole(path, json.dumps(compiled(x, shape, workload, target, config), indent=1) + "\n")
    print(table([json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]))


if __name__ == "__main__":
    main()
