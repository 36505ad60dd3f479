"""Print what is installed and usable here: devices, versions, extras, models, caches, free disk, known traps, hints."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from envs_jax.extras import inside, install, requirements
from envs_jax.threads import cores
from llmrl_jax.core.files import byte_text, expanded


PROBE = """
import json, jax
print(json.dumps([
    {"platform": d.platform, "kind": d.device_kind, "memory": (d.memory_stats() or {}).get("bytes_limit")}
    for d in jax.local_devices()
]))
"""
"""Run in a process of its own: the start of a backend may abort the process, or hang."""
PATIENCE = 120.0
"""Seconds after which the probe is given up."""
PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "chex", "numpy", "tyro", "transformers", "tokenizers"),
    *("safetensors", "mujoco", "numba", "brax", "gymnax", "gymnasium", "minigrid", "crafter", "craftax", "torch"),
)
"""Packages whose versions matter."""
OLDEST_JAX, NEWEST_JAX = (0, 10, 2), (0, 12)
"""The supported versions of jax."""
LITTLE_DISK = 2 * 2**30
"""Free bytes below which a run with checkpoints may fill the disk."""
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
"""Linux's setting of large pages: for all programs, those that ask, or none."""
PROCESSOR = Path("/proc/cpuinfo")
"""Linux's list of the processor's features."""
DRIVER, PCI = Path("/proc/driver/nvidia/version"), Path("/sys/bus/pci/devices")
"""Linux's files with NVIDIA's driver, and the devices on the bus."""
DRIVERS = {"jax-cuda13-plugin": 580, "jax-cuda12-plugin": 525}
"""The oldest driver of each of jax's plugins for NVIDIA GPUs, by jax's own documentation."""
PLUGINS = (*DRIVERS, "libtpu")
TPUS = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
"""PCI numbers of TPUs from v3 on, those that jax looks for."""
FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""The fraction of a GPU's memory that jax takes at its start; the second is the older name."""
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
PRECISION = "JAX_DEFAULT_MATMUL_PRECISION"
SETTINGS = (*FRACTIONS, PREALLOCATE, "XLA_PYTHON_CLIENT_ALLOCATOR", PRECISION, "JAX_PLATFORMS", "XLA_FLAGS")
"""Environment variables of jax and XLA that matter."""


def doctor(json: bool = False) -> None:
    """Print what is installed and usable here: devices, versions, extras, models, caches, free disk, known traps.

    The exit code is 0 whatever is missing.

    Args:
        json: Print the same facts as JSON.
    """
    facts = examine()
    print(_json(facts) if json else report(facts))


def examine() -> dict[str, Any]:
    """The facts. What cannot be found out is `{"error": reason}`."""
    facts: dict[str, Any] = {}
    for name, look in LOOKS.items():
        try:
            facts[name] = look()
        except Exception as error:  # a diagnosis must not fail at what it diagnoses
            facts[name] = {"error": f"{type(error).__name__}: {error}"}
    for name, derive in (("traps", traps), ("hints", hints)):
        try:
            facts[name] = derive(facts)
        except Exception as error:
            facts[name] = {"error": f"{type(error).__name__}: {error}"}
    return facts


def machine() -> dict[str, Any]:
    """Version of this library, Python, system, processor."""
    from llmrl_jax import __version__

    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {
        "llmrl_jax": __version__,
        "folder": str(Path(__file__).parents[2]),
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "memory": pages,
    }


def devices() -> list[dict[str, Any]]:
    """The devices that jax finds, asked in another process. **Raises:** `RuntimeError` with jax's last words."""
    from llmrl_jax.core.activity import doing

    with doing("asking jax for its devices"):
        try:
            process = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"jax found no device within {PATIENCE:.0f} s") from None
    if process.returncode:
        words = [line for line in process.stderr.splitlines() if line.strip() and not line.startswith(" ")]
        raise RuntimeError(words[-1] if words else f"the process ended with {process.returncode}")
    return json.loads(process.stdout.splitlines()[-1])


def accelerator() -> dict[str, Any]:
    """NVIDIA's driver, TPUs on the bus, jax's plugins for them, and what the environment sets."""
    return {
        "driver": driver(),
        "tpus": tpus(),
        "plugins": {name: version for name in PLUGINS if (version := version_of(name))},
        "settings": {name: os.environ[name] for name in SETTINGS if os.environ.get(name)},
    }


def driver() -> str | None:
    """The version of NVIDIA's driver; None without one, or where it is not shown."""
    try:
        match = re.search(r"Kernel Module\D*(?:x86_64|aarch64)?\s+(\d+\.[\d.]+)", DRIVER.read_text())
    except OSError:
        return None
    return match[1] if match else None


def tpus() -> int:
    """The number of TPUs on the bus."""
    ids = [[(path / name).read_text().strip() for name in ("vendor", "device")] for path in PCI.glob("*")]
    return sum(vendor == "0x1ae0" and device in TPUS for vendor, device in ids)


def versions() -> dict[str, str]:
    """The versions of installed packages that matter."""
    packages = {name: version_of(name) for name in PACKAGES}
    return {name: version for name, version in packages.items() if version}


def version_of(name: str) -> str:
    """The version of an installed package; empty if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def extras() -> dict[str, list[str]]:
    """The extras of this library but for `all`, which is made of others, with their requirements that are not met."""
    return {
        extra: [
            f"{needed.name}{needed.specifier}"
            for needed in [part for requirement in listed for part in (requirement, *inside(requirement))]
            if not (version := version_of(needed.name)) or not needed.specifier.contains(version, prereleases=True)
        ]
        for extra, listed in requirements().items()
        if extra != "all"
    }


def models() -> dict[str, Any]:
    """Packaged models, those in Hugging Face's local cache, and sentence encoders."""
    from llmrl_jax.core.packaged import ENCODERS, LANGUAGE_MODELS

    home = os.environ.get("HF_HOME", os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface"))
    hub = expanded(os.environ.get("HF_HUB_CACHE", os.path.join(home, "hub")))
    names = sorted(p.name.removeprefix("models--").replace("--", "/") for p in hub.glob("models--*") if p.is_dir())
    packaged, encoders = (
        {name: "" if model.folder() else model.install for name, model in registry.items()}
        for registry in (LANGUAGE_MODELS, ENCODERS)
    )
    return {"packaged": packaged, "hub_cache": str(hub), "hub": names, "encoders": {"hashed n-grams": "", **encoders}}


def cache() -> dict[str, Any]:
    """The persistent compilation cache that commands use, and its size."""
    set_by = ("JAX_COMPILATION_CACHE_DIR", "LLMRL_COMPILATION_CACHE")
    chosen = next((os.environ[name] for name in set_by if os.environ.get(name)), "~/.cache/llmrl_jax")
    if chosen == "off":
        return {"folder": None, "bytes": 0, "programs": 0, "writable": False}
    folder = expanded(chosen)
    files = [p for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return {
        "folder": str(folder),
        "bytes": sum(p.stat().st_size for p in files),
        "programs": sum(not p.name.endswith("-atime") for p in files),
        "writable": existing.is_dir() and os.access(existing, os.W_OK),
    }


MASKS = (0, 11, 2)
"""The first jax whose cuDNN attention takes a mask without writing its gradient (`kernels.attention.cannot_cudnn`)."""


def disk() -> dict[str, int]:
    """Free bytes where runs are written, in the temporary folder and at home."""
    paths = {"here": Path.cwd(), "temporary": Path(os.environ.get("TMPDIR", "/tmp")), "home": Path.home()}
    return {name: shutil.disk_usage(path).free for name, path in paths.items() if path.is_dir()}


LOOKS: Mapping[str, Callable[[], Any]] = {
    "machine": machine,
    "devices": devices,
    "accelerator": accelerator,
    "versions": versions,
    "extras": extras,
    "models": models,
    "cache": cache,
    "disk": disk,
}


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 10, 2) for 0.10.2.dev1."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def traps(facts: Mapping[str, Any]) -> list[str]:
    """Known causes of failure that the facts show, each with its remedy."""
    packages = facts["versions"]
    jax, jaxlib, mujoco = (numbers(packages.get(name, "")) for name in ("jax", "jaxlib", "mujoco"))
    flags = os.environ.get("XLA_FLAGS", "")
    listed = []
    if not jax:
        listed.append("jax is not installed: pip install jax")
    elif jax < OLDEST_JAX or jax[:2] > NEWEST_JAX:
        listed.append(f"jax {packages['jax']} is not among the supported versions, 0.10.2 to 0.12")
    if jax and jaxlib and jax[:3] < jaxlib[:3]:
        listed.append(
            f"jaxlib {packages['jaxlib']} is newer than jax {packages['jax']}: install both with pip install -U jax"
        )
    if jaxlib >= (0, 11) and "xla_cpu_use_fusion_emitters" in flags:
        listed.append("XLA_FLAGS has --xla_cpu_use_fusion_emitters, at which jaxlib aborts from 0.11 on: take it out")
    if isinstance(facts["devices"], dict):
        variables = ", ".join(
            f"{name}={os.environ[name]}" for name in ("JAX_PLATFORMS", "XLA_FLAGS") if os.environ.get(name)
        )
        listed.append(f"jax finds no device{f' (with {variables})' if variables else ''}: see devices above")
    if isinstance(accelerators := facts["accelerator"], dict) and "error" not in accelerators:
        listed += of_accelerators(accelerators, facts["devices"], packages.get("jaxlib", ""))
    if packages.get("gymnax") and not version_of("six"):
        listed.append("gymnax imports six, which is not installed: pip install six")
    if version_of("metaworld") and mujoco >= (3, 17):
        listed.append(f"metaworld does not work with mujoco {packages['mujoco']}: pip install 'mujoco<3.17'")
    if version_of("craftax") and version_of("minigrid"):
        listed.append("craftax and minigrid install different packages named pygame over each other: keep one of them")
    if isinstance(facts["cache"], dict) and not facts["cache"].get("writable"):
        listed.append("no compilation cache is written: every process compiles again (see LLMRL_COMPILATION_CACHE)")
    free = facts["disk"].get("here") if isinstance(facts["disk"], dict) else None
    if isinstance(free, int) and free < LITTLE_DISK:
        listed.append(f"{byte_text(free)} of disk are free here: checkpoints may fill it (--run.out, --run.keep)")
    return listed


def of_accelerators(accelerators: Mapping[str, Any], devices: Any, jaxlib: str) -> list[str]:
    """Known causes for which jax does not see a GPU or TPU, or fails there, each with its remedy."""
    listed, settings, plugins = [], accelerators["settings"], accelerators["plugins"]
    if all(name in settings for name in FRACTIONS):
        listed.append(f"{' and '.join(FRACTIONS)} are both set, which jax refuses: take the second out")
    for name, version in plugins.items():
        # libtpu has versions of its own
        if name in DRIVERS and jaxlib and numbers(version)[:3] != numbers(jaxlib)[:3]:
            listed.append(f"{name} {version} is not of jaxlib {jaxlib}: {install(name[4:10])}")
    blind = isinstance(devices, list) and all(device["platform"] == "cpu" for device in devices)
    if not blind:
        return listed
    gpu = bool(accelerators["driver"]) or Path("/dev/nvidia0").exists()
    hardware = (
        "an NVIDIA GPU is here" if gpu else f"{accelerators['tpus']} TPUs are here" if accelerators["tpus"] else ""
    )
    if not hardware:
        return listed
    if settings.get("JAX_PLATFORMS") == "cpu":
        return [*listed, f"{hardware}, which JAX_PLATFORMS=cpu hides: take it out"]
    remedy = for_gpu(accelerators) if gpu else "" if "libtpu" in plugins else install("tpu")
    return [*listed, f"{hardware}, but jax sees only the CPU: {remedy or 'another process may hold it'}"]


def for_gpu(accelerators: Mapping[str, Any]) -> str:
    """The remedy with which jax sees an NVIDIA GPU."""
    oldest, driver = min(DRIVERS.values()), accelerators["driver"]
    series = numbers(driver)[0] if driver else max(DRIVERS.values())
    if series < oldest:
        return f"its driver {driver} is older than {oldest}: update it"
    plugin = next(name for name, needed in DRIVERS.items() if series >= needed)
    installed = [name for name in DRIVERS if name in accelerators["plugins"]]
    if not any(series >= DRIVERS[name] for name in installed):
        older = (
            f"{installed[0]} needs a driver from {DRIVERS[installed[0]]} on, this is {driver}: " if installed else ""
        )
        return older + install(plugin[4:10])
    if os.environ.get("LD_LIBRARY_PATH"):
        return "LD_LIBRARY_PATH may put other CUDA libraries before those of jax's packages: unset it"
    return f"{installed[0]} did not start; JAX_PLATFORMS=cuda shows why"


def for_accelerators(facts: Mapping[str, Any]) -> list[str]:
    """The recommended settings of GPUs and TPUs."""
    devices = facts["devices"]
    kind, variables = devices[0]["platform"], facts["accelerator"].get("settings", {})
    listed = []
    if PRECISION not in variables:
        short = {"gpu": "TF32", "tpu": "bfloat16"}.get(kind, "fewer bits")
        listed.append(
            f"--dtype bfloat16 for language models; products of float32 are rounded to {short} here unless "
            f"{PRECISION}=highest"
        )
    if kind == "gpu" and not variables.keys() & {*FRACTIONS, PREALLOCATE}:
        listed.append(
            f"jax takes three quarters of a GPU's memory: {FRACTIONS[0]}=0.9 for one large model, "
            f"{PREALLOCATE}=false for several processes on one GPU"
        )
    if kind == "gpu":
        masked = numbers(facts["versions"].get("jax", "")) >= MASKS
        listed.append(
            "--attention auto is cuDNN's kernel, in bfloat16 and float16"
            + ("" if masked else ", for rows without padding; with a mask it needs jax 0.11.2, and recomputes scores")
        )
    elif kind == "tpu":
        listed.append("--attention auto is splash attention, for rows of 128, 256, ... tokens; others recompute scores")
    if len(devices) > 1:
        listed.append(f"--mesh data={len(devices)} trains on all {len(devices)} devices; `llmrl lm fit` says what fits")
    return listed


def hints(facts: Mapping[str, Any]) -> list[str]:
    """Packages and settings that make programs faster, with their measured speed-ups; on GPUs and TPUs, the
    recommended settings."""
    if any(device["platform"] != "cpu" for device in facts["devices"]):
        return for_accelerators(facts)
    listed = []
    library, version = platform.libc_ver()
    # this tunable came with glibc 2.35
    asks = library == "glibc" and numbers(version) >= (2, 35) and LARGE_PAGES.exists()
    if asks and "[madvise]" in LARGE_PAGES.read_text():
        if "glibc.malloc.hugetlb" not in os.environ.get("GLIBC_TUNABLES", ""):
            listed.append(
                "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 before a command gives it large pages of memory: 14% faster "
                "training of a small Llama on long texts, nothing with short prompts"
            )
    if PROCESSOR.exists() and re.search(r"^flags.*\bamx_bf16\b", PROCESSOR.read_text(), re.M):
        listed.append(
            "this processor has matrix units for bfloat16: with --dtype mixed a step of LoRA with SmolLM2's shape "
            "takes 0.55 of its time in float32"
        )
    if facts["versions"].get("mujoco") and not facts["versions"].get("numba"):
        listed.append("pip install numba: CLEVR-Robot's steps are 4.6 times as fast on a CPU as by C MuJoCo")
    return listed


def report(facts: Mapping[str, Any]) -> str:
    """The facts on one screen."""
    from llmrl_jax.cli.help import row

    lines = []
    for name, value in facts.items():
        if isinstance(value, dict) and "error" in value:
            lines.append(row(name, f"not known: {value['error']}", 12))
        elif name == "traps":
            lines += [row("trap", text, 12) for text in value] or [row("traps", "none of the known ones", 12)]
        elif name == "hints":
            lines += [row("hint", text, 12) for text in value]
        else:
            lines.append(row(name, LINES[name](value), 12))
    return "\n".join(lines)


def _machine(f: Mapping[str, Any]) -> str:
    memory = f", {byte_text(f['memory'])} of memory" if f["memory"] else ""
    return (
        f"llmrl_jax {f['llmrl_jax']} in {f['folder']}; Python {f['python']} ({f['executable']}); {f['system']}, "
        f"{f['cores']} cores{memory}"
    )


def _devices(devices: list[dict[str, Any]]) -> str:
    kinds: dict[tuple[Any, ...], int] = {}
    for d in devices:
        kinds[d["kind"], d["platform"], d["memory"]] = kinds.get((d["kind"], d["platform"], d["memory"]), 0) + 1
    return ", ".join(
        f"{n} x {kind} ({platform}{f', {byte_text(memory)} each' if memory else ''})"
        for (kind, platform, memory), n in kinds.items()
    )


def _accelerator(f: Mapping[str, Any]) -> str:
    driver = [f"NVIDIA's driver {f['driver']}"] if f["driver"] else []
    chips = [f"{f['tpus']} TPUs"] if f["tpus"] else []
    plugins = [f"{name} {version}" for name, version in f["plugins"].items()]
    settings = [f"{name}={value}" for name, value in f["settings"].items()]
    return ", ".join([*driver, *chips, *plugins, *settings]) or "no driver, plugin or setting"


def _extras(missing: Mapping[str, list[str]]) -> str:
    complete = [name for name, lacking in missing.items() if not lacking]
    # all that is lacking does not fit on one screen; --json has it
    parts = [
        f"{name} (lacks {lacking[0]}{f' and {len(lacking) - 1} more' if len(lacking) > 1 else ''})"
        for name, lacking in missing.items()
        if lacking
    ]
    return f"complete: {', '.join(complete) or 'none'}" + (f"; incomplete: {', '.join(parts)}" if parts else "")


def _models(f: Mapping[str, Any]) -> str:
    names = f["hub"][:8]
    suffix = f" and {len(f['hub']) - len(names)} more" if len(f["hub"]) > len(names) else ""
    return (
        f"{_installed(f['packaged'])}; in {f['hub_cache']}: {', '.join(names) or 'none'}{suffix}; sentence encoders: "
        f"{_installed(f['encoders'])}"
    )


def _installed(packages: Mapping[str, str]) -> str:
    """Names, each with the command that installs it if it is missing."""
    return ", ".join(f"{name} ({command})" if command else name for name, command in packages.items())


def _cache(f: Mapping[str, Any]) -> str:
    if f["folder"] is None:
        return "off"
    unwritable = "" if f["writable"] else ", which cannot be written"
    return f"{f['folder']}{unwritable}: {f['programs']} compiled programs, {byte_text(f['bytes'])}"


LINES: Mapping[str, Callable[[Any], str]] = {
    "machine": _machine,
    "devices": _devices,
    "accelerator": _accelerator,
    "versions": lambda packages: ", ".join(f"{name} {version}" for name, version in packages.items()),
    "extras": _extras,
    "models": _models,
    "cache": _cache,
    "disk": lambda free: "free: " + ", ".join(f"{byte_text(n)} {name}" for name, n in free.items()),
}


def _json(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=2)


COMMAND = doctor
