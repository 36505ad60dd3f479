"""An admitted program: StableHLO with a description. It holds the source as text only, which is never executed."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from llmrl_jax.advice.sandbox.spec import DEFAULT, Limits, SandboxError, Spec
from llmrl_jax.advice.sandbox.stablehlo import verified
from llmrl_jax.core.files import expanded, write_whole


FORMAT = "llmrl_jax program 1"
_LARGEST = 32 << 20


class Program:
    """Potential over windows, which runs inside jit, vmap, scan and shard_map, on CPUs and accelerators.

    Made by `admit` or `Program.load`, never from text.

    **Arguments:** `module`, StableHLO over a batch of windows of any size; `version`, of its calling convention;
    `source`, its text; `spec`, its inputs; `components`, their names; `bound`, to which values are clipped; `report`,
    findings of the admission: protections that were active, seconds, numbers of operations and windows, and the lowest
    and highest potential; `limits`, of sizes, with which the module is compared.
    **Raises:** `SandboxError` for a module that differs from its description, or not in the whitelist.
    """

    def __init__(
        self,
        module: bytes,
        version: int,
        source: str,
        spec: Spec,
        components: tuple[str, ...],
        bound: float,
        report: dict[str, Any],
        limits: Limits = DEFAULT,
    ):
        self.module, self.version, self.source, self.spec = bytes(module), version, source, spec
        self.components, self.bound, self.report = tuple(components), float(bound), dict(report)
        if not 0 < self.bound <= 1e9:
            raise SandboxError(f"its bound is {self.bound}; a number above 0, at most 1e9, is needed")
        self._call = _vectorised(verified(self.module, version, spec, len(self.components), limits))

    @property
    def window(self) -> int:
        """Earlier observations and actions that it sees, K."""
        return self.spec.window

    def raw(self, obs: Any, past_obs: Any, past_actions: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Compute `__call__` without the guarantee that values are finite and bounded."""
        flat = [jnp.asarray(x)[None] for x in self.spec.flat(obs, past_obs, past_actions)]
        potential, *components = (x[0] for x in self._call(*flat))
        return potential, dict(zip(self.components, components))

    def __call__(self, obs: Any, past_obs: Any, past_actions: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The potential of one window; `jax.vmap` makes it that of many.

        **Arguments:** `obs`, the observation now, as the environment gives it; `past_obs`, the earlier ones with a
        leading K, the last of which is the previous; `past_actions`, integers `[K]`.
        **Returns:** the potential and its components by name, float32 scalars. NaN is replaced by 0, and values are
        clipped to `bound`, also on windows unlike those of the admission.
        **Raises:** `ValueError` for an observation or window of other shapes.
        """
        potential, components = self.raw(obs, past_obs, past_actions)

        def safe(x: jax.Array) -> jax.Array:
            return jnp.clip(jnp.nan_to_num(x, nan=0.0, posinf=self.bound, neginf=-self.bound), -self.bound, self.bound)

        return safe(potential), {name: safe(x) for name, x in components.items()}

    def save(self, path: str | Path) -> None:
        """Write a JSON file, atomically; its folder must exist."""
        body = {
            "format": FORMAT,
            "source": self.source,
            "spec": self.spec.to_json(),
            "components": list(self.components),
            "bound": self.bound,
            "version": self.version,
            "module": base64.b64encode(self.module).decode(),
            "report": self.report,
        }
        digest = hashlib.sha256(_canonical(body)).hexdigest()
        write_whole(expanded(path), json.dumps({"sha256": digest, **body}, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path, limits: Limits = DEFAULT) -> Program:
        """Read a file of `save`. Its checksum is verified, and the module is compared with the whitelist again.

        **Arguments:** `limits`, of sizes. They are not in the file, which must not raise its own: a program that was
        admitted with raised limits is read with these.
        **Raises:** `FileNotFoundError`; `SandboxError` naming a file that is cut or edited, of another kind or version.
        """
        path = expanded(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no program {path}")
        if path.stat().st_size > _LARGEST:
            raise SandboxError(
                f"{path} is no program: it has {path.stat().st_size:,} bytes; at most {_LARGEST:,} are read"
            )
        try:
            body = json.loads(path.read_bytes())
            digest, kind = body.pop("sha256"), body["format"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise SandboxError(f"{path} is no program, or is cut: restore it, or admit its source again") from None
        if kind != FORMAT:
            raise SandboxError(
                f"{path} has the format {str(kind)[:60]!r}; {FORMAT!r} is needed: admit its source again"
            )
        if digest != hashlib.sha256(_canonical(body)).hexdigest():
            raise SandboxError(
                f"{path} was edited or damaged: its checksum does not fit; restore it, or admit its source again"
            )
        try:
            return cls(
                base64.b64decode(body["module"], validate=True),
                int(body["version"]),
                str(body["source"]),
                Spec.from_json(body["spec"]),
                tuple(str(name) for name in body["components"]),
                float(body["bound"]),
                dict(body["report"]),
                limits,
            )
        except (SandboxError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise SandboxError(f"{path} cannot be used: {error}") from None


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _vectorised(exported: Any) -> Any:
    """A function of flat inputs with one leading dimension, which vmap turns into one call on a larger batch."""

    @jax.custom_batching.custom_vmap
    def call(*inputs: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(exported.call(*inputs))

    @call.def_vmap
    def batched(size: int, mapped: Any, *inputs: jax.Array) -> Any:
        batch = [x if is_mapped else jnp.broadcast_to(x, (size, *x.shape)) for x, is_mapped in zip(inputs, mapped)]
        n = batch[0].shape[1]
        outputs = call(*(x.reshape(size * n, *x.shape[2:]) for x in batch))
        return tuple(x.reshape(size, n) for x in outputs), (True,) * len(outputs)

    return call
