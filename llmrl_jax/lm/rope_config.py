"""`RopeConfig`: the frequencies of rotary positions, and its conversion to and from `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from llmrl_jax.core.checks import nearest
from llmrl_jax.lm.fields import booleans, integers, numbers


RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn"]
ROPE_TYPES: tuple[str, ...] = RopeType.__args__  # type: ignore[attr-defined]

_ROPE_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    "dynamic": (frozenset({"factor"}), frozenset()),
    "llama3": (
        frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
        frozenset({"original_max_position_embeddings"}),
    ),
    "yarn": (
        frozenset({"factor"}),
        frozenset(
            {
                "original_max_position_embeddings",
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "truncate",
            }
        ),
    ),
}


_WITHOUT_EFFECT = ("finetuned", "original_max_position_embeddings")
"""Fields that published folders have also with types that do not read them."""


def _check_type(kind: str) -> None:
    if kind not in ROPE_TYPES:
        close = nearest(str(kind), list(ROPE_TYPES))
        raise ValueError(f"rope_type {kind!r} is not supported{close} (supported: {', '.join(ROPE_TYPES)})")


_POSITIVE = ("theta", "factor", "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position frequencies: the base, and the scaling to a longer context."""

    theta: float = 10_000.0
    """The base of the geometric series of wavelengths."""
    type: RopeType = "default"
    factor: float = 1.0
    """Extension factor of the context (every type except `default`)."""
    low_freq_factor: float = 1.0
    """`llama3`: wavelengths above `original_max_position_embeddings / low_freq_factor` are fully scaled."""
    high_freq_factor: float = 4.0
    """`llama3`: wavelengths below `original_max_position_embeddings / high_freq_factor` are not scaled."""
    original_max_position_embeddings: int | None = None
    """`llama3`, `yarn`: the context before the extension; None means the model's `max_position_embeddings`."""
    attention_factor: float | None = None
    """`yarn`: multiplies cosines and sines; None means the paper's `0.1 ln(factor) + 1`."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    """`yarn`: whether the bounds of the ramp are rounded to whole dimensions."""

    def __post_init__(self):
        _check_type(self.type)
        values = {f"rope_parameters.{name}": value for name, value in vars(self).items()}
        integers(values, "rope_parameters.original_max_position_embeddings")
        booleans(values, "rope_parameters.truncate")
        numbers(values, *(f"rope_parameters.{name}" for name in _POSITIVE), above=0.0)
        numbers(values, "rope_parameters.mscale", "rope_parameters.mscale_all_dim")

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> RopeConfig:
        """Read `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (transformers 4)."""
        raw = config.get("rope_scaling") or config.get("rope_parameters") or {}  # transformers' order
        if not isinstance(raw, Mapping):
            raise ValueError(f"rope_parameters (or rope_scaling) is {raw!r}; an object is needed")
        if any(isinstance(value, Mapping) for value in raw.values()):
            raise ValueError("rope_parameters differ between kinds of layers, which a Llama does not have")
        fields = dict(raw)
        kind: Any = fields.pop("rope_type", None) or fields.pop("type", None) or "default"
        fields.pop("type", None)
        theta = fields.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0
        partial = fields.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
        if partial != 1.0:
            raise ValueError(f"partial_rotary_factor is {partial}; only whole heads are rotated here (1.0)")
        _check_type(kind)
        required, optional = _ROPE_FIELDS[kind]
        for name in sorted(required):
            if fields.get(name) is None:
                raise ValueError(f"rope_type {kind!r} needs {name!r} in rope_parameters (or rope_scaling)")
        unknown = sorted(set(fields) - required - optional)
        # transformers ignores all of these with a warning; a misspelled field must not be ignored.
        unknown = [name for name in unknown if fields[name] is not None and name not in _WITHOUT_EFFECT]
        if unknown and kind != "default":
            close = nearest(unknown[0], [*required, *optional])
            raise ValueError(f"rope_type {kind!r} has no field {unknown[0]!r}{close}")
        kept = {k: v for k, v in fields.items() if v is not None and k in required | optional}
        numbers({"rope_theta": theta}, "rope_theta", above=0.0)
        return RopeConfig(theta=float(theta), type=kind, **kept)

    def to_hf(self, max_position_embeddings: int) -> dict[str, Any]:
        """The `rope_parameters` of transformers 5."""
        required, optional = _ROPE_FIELDS[self.type]
        fields = {name: getattr(self, name) for name in sorted(required | optional)}
        if "original_max_position_embeddings" in fields:
            fields["original_max_position_embeddings"] = self.original(max_position_embeddings)
        kept = {name: value for name, value in fields.items() if value is not None}
        return {"rope_type": self.type, "rope_theta": self.theta, **kept}

    def original(self, max_position_embeddings: int) -> int:
        """The context length before the extension."""
        return self.original_max_position_embeddings or max_position_embeddings
