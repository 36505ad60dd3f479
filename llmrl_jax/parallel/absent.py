"""Devices that are absent: the compilers for TPUs and for GPUs compile a program for them on any machine.

`Target.parse("v5e:2x4").devices()` are devices to which a mesh and shapes can be assigned, so that `jit(f).lower(...)`
and `.compile()` work. Nothing can be allocated on them or run. The compilers are packages, of the extras `aot-tpu`
(libtpu) and `aot-cuda` (JAX's plugin for CUDA, without NVIDIA's libraries).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

import jax

from envs_jax import tracing
from envs_jax.extras import install, missing
from llmrl_jax.core.checks import nearest


@dataclass(frozen=True)
class Kind:
    """A kind of device, and what it can do at most."""

    platform: str
    """`tpu` or `gpu`."""
    name: str
    flops: float
    """Operations/s in bfloat16, dense."""
    bandwidth: float
    """Bytes/s of main memory."""
    memory: int
    """Bytes of main memory that a program may use."""
    clock: float = 0.0
    """TPUs: cycles/s, by the peak and the size of the matrix units."""
    reached: float = 0.0
    """GPUs: bytes/s that programs reach."""
    launch: float = 0.0
    """GPUs: seconds that a kernel takes besides."""
    axes: int = 1
    """Numbers in a topology: 2 for `2x4`."""


KINDS = {
    "v5e": Kind("tpu", "TPU v5e", 197e12, 819e9, int(15.75 * 2**30), 1.5e9, axes=2),
    "v5p": Kind("tpu", "TPU v5p", 459e12, 2765e9, int(95.74 * 2**30), 1.75e9, axes=3),
    "v6e": Kind("tpu", "TPU v6e", 918e12, 1640e9, int(31.25 * 2**30), 1.75e9, axes=2),
    "h100": Kind("gpu", "NVIDIA H100 80GB HBM3", 989e12, 3.35e12, 85 * 10**9, reached=2.5e12, launch=1.4e-6),
    "h200": Kind("gpu", "NVIDIA H200", 989e12, 4.8e12, 150 * 10**9, reached=3.6e12, launch=1.4e-6),
}
"""Name in a target -> kind.

The memory of TPUs is the compiler's limit. Peaks of TPUs are those of Google's pages (Cloud TPU, system architecture),
of GPUs those of NVIDIA's data sheets (H100 SXM, H200). `reached` and `launch` of the H200 are fitted to seven
measurements on one (docs/scaling.md): they explain six within 10% and one within 19%. An H100 is assumed to reach the
same share of its bandwidth, three quarters.
"""

LIMIT = 4096
"""The most devices of a target."""


@dataclass(frozen=True)
class Target:
    """Absent devices: a kind, and how many of them are joined."""

    kind: str
    shape: tuple[int, ...]

    @staticmethod
    def parse(text: str) -> Target:
        """Read `v5e:2x4`, `v5p:4x4x4` or `h100:8`. **Raises:** `ValueError` for an unknown kind or another topology."""
        name, _, topology = text.strip().lower().partition(":")
        if name not in KINDS:
            raise ValueError(f"no target {name!r}{nearest(name, list(KINDS))} (there are {', '.join(KINDS)})")
        kind = KINDS[name]
        example = f"{name}:{'8' if kind.platform == 'gpu' else 'x'.join('44' if kind.axes == 2 else '444')}"
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", topology) or topology.count("x") != kind.axes - 1:
            raise ValueError(f"the target is {text!r}; {kind.name} has the form {example}")
        shape = tuple(map(int, topology.split("x")))
        if math.prod(shape) > LIMIT:
            raise ValueError(f"the target {text} has {math.prod(shape)} devices; at most {LIMIT} are possible")
        if kind.platform == "gpu" and shape[0] > 8 and shape[0] % 8:
            raise ValueError(
                f"the target is {text!r}; more than 8 GPUs are machines of 8 each: {name}:{-(-shape[0] // 8) * 8}"
            )
        return Target(name, shape)

    def __str__(self) -> str:
        return f"{self.kind}:{'x'.join(map(str, self.shape))}"

    @property
    def facts(self) -> Kind:
        """Capabilities of one of the devices."""
        return KINDS[self.kind]

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    def devices(self) -> list[jax.Device]:
        """The devices, in the order of the topology.

        **Raises:** `ModuleNotFoundError` without the compiler; `ValueError` if it does not fit JAX, or knows no such
        topology. Both state the remedy.
        """
        from jax.experimental.topologies import get_topology_desc

        _prepare(self.facts.platform)
        try:
            if self.facts.platform == "tpu":
                return list(get_topology_desc(platform="tpu", topology_name=str(self)).devices)
            machines = f"1x{max(1, self.size // 8)}x{min(8, self.size)}"
            options = {"target_config": self._description(), "topology": machines}
            return list(get_topology_desc(platform="cuda", topology_name="", **options).devices)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            message = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(f"the compiler has no target {self}: {message[0]}") from None

    def _description(self) -> str:
        text = Path(__file__).with_name("hopper.txtpb").read_text(encoding="utf-8")
        kind = self.facts
        return Template(text).substitute(bandwidth=int(kind.bandwidth), memory=kind.memory, name=kind.name)

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """The context in which programs are traced and compiled for the target."""
        with tracing.tracing_for(self.facts.platform), _gpu_is_cuda(), _uncached():
            yield


# --- the compilers ----------------------------------------------------------------------------------------------------


ENVIRONMENT = {
    # no question to the metadata server of a cloud machine, and no lock: several processes may compile
    "tpu": {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    },
    # tiles are chosen by rules: measuring them needs a device
    "gpu": {"XLA_FLAGS": "--xla_gpu_autotune_level=0", "TF_CPP_MIN_LOG_LEVEL": "3"},
}


def _prepare(platform: str) -> None:
    """Check a platform's compiler, and set the variables that it reads when it is loaded."""
    extra, module = {"tpu": ("aot-tpu", "libtpu"), "gpu": ("aot-cuda", "jax_plugins.xla_cuda13")}[platform]
    package = {"tpu": "libtpu", "gpu": "jax-cuda13-plugin"}[platform]
    try:
        present = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        present = False
    if not present:
        raise missing(f"compiling for an absent {platform.upper()}", extra, package)
    _check_version(package, extra)
    for name, value in ENVIRONMENT[platform].items():
        if name == "XLA_FLAGS":
            flags = os.environ.get(name, "")
            if "xla_gpu_autotune_level" not in flags:
                os.environ[name] = f"{flags} {value}".strip()
        else:
            os.environ.setdefault(name, value)
    jax.config.update("jax_platforms", "cpu")  # if JAX has no devices yet: it is not to look for the absent ones


def _check_version(package: str, extra: str) -> None:
    """**Raises:** `ValueError` if a compiler's version is not one that this JAX names."""
    from packaging.requirements import Requirement

    named = {"libtpu": "tpu", "jax-cuda13-plugin": "cuda13-local"}[package]
    version = importlib.metadata.version(package)
    for needed in map(Requirement, importlib.metadata.requires("jax") or []):
        applies = needed.marker is not None and needed.marker.evaluate({"extra": named})
        if needed.name == package and applies and not needed.specifier.contains(version, prereleases=True):
            fits = f"jax {jax.__version__}, which needs {needed.specifier}"
            raise ValueError(f"{package} {version} does not fit {fits}: {install(extra)}")


@contextlib.contextmanager
def _gpu_is_cuda() -> Iterator[None]:
    """Lowering asks what `gpu` means; without a GPU JAX has no answer (its issue 23971)."""
    from jax._src import xla_bridge

    original = xla_bridge.canonicalize_platform

    def canonicalize(platform: str) -> str:
        try:
            return original(platform)
        except RuntimeError:
            return "cuda" if platform == "gpu" else original(platform)

    xla_bridge.canonicalize_platform = canonicalize
    try:
        yield
    finally:
        xla_bridge.canonicalize_platform = original


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """Without the cache of compiled programs on disk: no device here could load them."""
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX asks once whether there is a cache
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()
