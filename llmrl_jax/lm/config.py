"""`LlamaConfig`, the architecture of a Llama, Mistral or Qwen, and `RopeConfig`, the frequencies of its rotary
positions, with their conversion to and from `config.json`. The dtypes that a model computes in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

import jax.numpy as jnp

from llmrl_jax.core.checks import nearest


ComputeDtype = Literal["float32", "bfloat16", "mixed"]
"""The precision of a model: one dtype throughout; or `mixed`, float32 but for the factors of products with weights."""


def dtype_options(name: str) -> dict[str, Any]:
    """The arguments `dtype` and `matmul_dtype` of `llmrl_jax.lm.Llama` for a value of `ComputeDtype`."""
    if name == "mixed":
        return {"dtype": jnp.dtype(jnp.float32), "matmul_dtype": jnp.dtype(jnp.bfloat16)}
    return {"dtype": jnp.dtype(name), "matmul_dtype": None}


# --- the kinds and ranges of the fields of a config.json --------------------------------------------------------------


def integers(values: Mapping[str, Any], *names: str, minimum: int = 1, maximum: int = 1 << 24) -> None:
    """**Raises** `ValueError` for a named value that is neither None nor an integer from `minimum` to `maximum`."""
    for name in names:
        value = values.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError(f"{name} is {value!r}; an integer is needed")
        if int(value) < minimum:
            raise ValueError(f"{name} is {value}; at least {minimum} is needed")
        if int(value) > maximum:
            raise ValueError(f"{name} is {value}; at most {maximum} is supported")


def numbers(values: Mapping[str, Any], *names: str, lower: float = -math.inf, inclusive: bool = False) -> None:
    """**Raises** `ValueError` for a named value that is neither None nor a finite number above `lower`, or equal to it
    if `inclusive`."""
    for name in names:
        value = values.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} is {value!r}; a number is needed")
        if not (lower < value < math.inf or inclusive and value == lower):  # type: ignore[operator]
            bound = f"of at least {lower:g}" if inclusive else f"above {lower:g}"
            raise ValueError(f"{name} is {value}; a finite number {bound} is needed")


def booleans(values: Mapping[str, Any], *names: str) -> None:
    """**Raises** `ValueError` for a named value that is neither None nor a boolean."""
    for name in names:
        if not isinstance(values.get(name), bool | None):
            raise ValueError(f"{name} is {values[name]!r}; true or false is needed")


# --- rotary positions -------------------------------------------------------------------------------------------------

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn"]
_ROPE_TYPES: tuple[str, ...] = RopeType.__args__  # type: ignore[attr-defined]

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
    if kind not in _ROPE_TYPES:
        close = nearest(str(kind), list(_ROPE_TYPES))
        raise ValueError(f"rope_type {kind!r} is not supported{close} (supported: {', '.join(_ROPE_TYPES)})")


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
        numbers(values, *(f"rope_parameters.{name}" for name in _POSITIVE), lower=0.0)
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
        original = "original_max_position_embeddings"
        if original in optional and config.get(original) is not None:  # as in transformers, before the nested one
            fields[original] = config[original]
        for name in sorted(required):
            if fields.get(name) is None:
                raise ValueError(f"rope_type {kind!r} needs {name!r} in rope_parameters (or rope_scaling)")
        unknown = sorted(set(fields) - required - optional)
        # transformers ignores all of these with a warning; a misspelled field must not be ignored.
        unknown = [name for name in unknown if fields[name] is not None and name not in _WITHOUT_EFFECT]
        if unknown and kind != "default":
            close = nearest(unknown[0], [*required, *optional])
            raise ValueError(f"rope_type {kind!r} has no field {unknown[0]!r}{close}")
        present = {k: v for k, v in fields.items() if v is not None and k in required | optional}
        numbers({"rope_theta": theta}, "rope_theta", lower=0.0)
        return RopeConfig(theta=float(theta), type=kind, **present)

    def to_hf(self, max_position_embeddings: int) -> dict[str, Any]:
        """`rope_parameters` of transformers 5."""
        required, optional = _ROPE_FIELDS[self.type]
        fields = {name: getattr(self, name) for name in sorted(required | optional)}
        if "original_max_position_embeddings" in fields:
            fields["original_max_position_embeddings"] = self.original(max_position_embeddings)
        present = {name: value for name, value in fields.items() if value is not None}
        return {"rope_type": self.type, "rope_theta": self.theta, **present}

    def original(self, max_position_embeddings: int) -> int:
        """Context length before the extension."""
        return self.original_max_position_embeddings or max_position_embeddings


# --- the architecture -------------------------------------------------------------------------------------------------

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
FAMILIES: tuple[str, ...] = Family.__args__  # type: ignore[attr-defined]


def _check_family(kind: Any) -> None:
    if kind not in FAMILIES:  # no nearest name: the names of other architectures are near, and no typing errors
        raise ValueError(f"model_type {kind!r} is not supported (supported: {', '.join(FAMILIES)})")


WINDOWED, FULL = "sliding_attention", "full_attention"

# Fields of config.json that affect the computation, with their only implemented values besides null. Those of other
# architectures are here if they change neither a name nor a shape of a tensor: weights that a renamed model_type makes
# readable would give wrong values. Lists have a value per layer. All other fields are ignored, as in transformers.
_SILU, _FALSE = ("silu", "swish"), (False,)
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": _SILU,
    "hidden_activation": _SILU,
    "activation_function": _SILU,
    "attention_bias": _FALSE,
    "mlp_bias": _FALSE,
    "quantization_config": (),
    "per_layer_config": ({},),
    "pruned_heads": ({},),
    # positions
    "no_rope_layers": (1,),
    "use_rope": (True,),
    "use_mrope": _FALSE,
    "rope_interleave": _FALSE,
    "rope_interleaved": _FALSE,
    "rotary_pct": (1,),
    "rope_local_base_freq": (),
    "position_embedding_type": ("rope", "rotary", "absolute"),
    "alibi": _FALSE,
    "use_alibi": _FALSE,
    # attention
    "attention_chunk_size": (),
    "attn_temperature_tuning": _FALSE,
    "attn_logit_softcapping": (0,),
    "clip_qkv": (),
    "is_causal": (True,),
    "use_bidirectional_attention": _FALSE,
    "is_encoder_decoder": _FALSE,
    "add_cross_attention": _FALSE,
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": _FALSE,
    "use_qk_norm": _FALSE,
    "qk_norm": _FALSE,
    # the residual stream and the head
    "parallel_attn": _FALSE,
    "parallel_residual": _FALSE,
    "use_parallel_residual": _FALSE,
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "scale_emb": (1,),
    "scale_depth": (),
    "final_logit_softcapping": (0,),
}
_ANY_NORM = ("use_qk_norm", "qk_norm")
"""Fields that a Qwen3 may have, which always normalises queries and keys."""
# transformers' defaults of missing fields per family, if they differ from the defaults here.
_ABSENT: dict[str, dict[str, Any]] = {
    "llama": {"bos_token_id": 1, "eos_token_id": 2},
    "mistral": {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
    "qwen2": {"num_key_value_heads": 32, "max_position_embeddings": 32_768, "sliding_window": 4096},
    "qwen3": {
        "num_key_value_heads": 32,
        "max_position_embeddings": 32_768,
        "sliding_window": 4096,
        "head_dim": 128,
    },
}
_DTYPES = ("float32", "bfloat16", "float16")
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
          "max_position_embeddings")  # fmt: skip
_MAX_LAYERS = 4096
"""Beyond any published model: more are an error in config.json, found before anything grows with their number."""


def _check_values(values: Mapping[str, Any]) -> None:
    """**Raises** `ValueError` for a field of the wrong kind, or out of range."""
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        if values.get(name) is None:
            raise ValueError(f"config field {name} is missing")
    integers(values, *_SIZES)
    integers(values, "num_hidden_layers", maximum=_MAX_LAYERS)
    integers(values, "bos_token_id", "pad_token_id", minimum=-(1 << 31), maximum=1 << 31)
    numbers(values, "rms_norm_eps", lower=0.0)
    numbers(values, "initializer_range", lower=0.0, inclusive=True)
    booleans(values, "tie_word_embeddings")
    ids = values.get("eos_token_id")
    for token in ids if isinstance(ids, list | tuple) else [ids]:
        integers({"eos_token_id": token}, "eos_token_id", minimum=0)
        if token is not None and token >= values["vocab_size"]:
            raise ValueError(
                f"eos_token_id is {token}, which cannot occur: the vocabulary is 0 to {values['vocab_size'] - 1}"
            )


@dataclass(frozen=True)
class LlamaConfig:
    """Architecture of a Llama (Touvron et al. 2023), a Mistral, a Qwen2 or a Qwen3.

    Sizes only: precision is a property of the module. The families differ in three things: Qwen2's queries, keys and
    values have biases; Qwen3 normalises each head's queries and keys; Mistral, and optionally the Qwens, attend only to
    a window of the last tokens.

    **Raises:** `ValueError` for sizes that do not fit together.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> config = lr.LlamaConfig(
    ...     vocab_size=32000, hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8
    ... )
    >>> config.size, config.kv_heads  # of a head; keys and values have as many heads as queries
    (64, 8)
    ```
    """

    vocab_size: int
    hidden_size: int
    """Width of the residual stream, `D`."""
    intermediate_size: int
    """Width of the gated MLP, `F`."""
    num_hidden_layers: int
    num_attention_heads: int
    """Query heads, `H`."""
    num_key_value_heads: int | None = None
    """Key and value heads, `K`; each serves `H / K` query heads. None means `H`."""
    head_dim: int | None = None
    """None means `D / H`."""
    max_position_embeddings: int = 2048
    """Longest sequence, in tokens."""
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    """Whether the head is the transpose of the embedding."""
    rope: RopeConfig = RopeConfig()
    initializer_range: float = 0.02
    """Standard deviation of initial weights."""
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    dtype: str = "float32"
    """Dtype of the stored weights: float32, bfloat16 or float16."""
    model_type: Family = "llama"
    """Hugging Face's name of the family."""
    sliding_window: int | None = None
    """A token sees itself and the `sliding_window - 1` tokens before it; None: all before it."""
    sliding_layers: tuple[bool, ...] | None = None
    """The layers that the window applies to (the Qwens); None: all."""

    def __post_init__(self):
        _check_values(vars(self))
        if self.num_key_value_heads is None:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        if self.head_dim is None:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                    f"{self.num_attention_heads}; give head_dim"
                )
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.num_attention_heads % self.kv_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.kv_heads}"
            )
        if self.size % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rotary positions need an even one")
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not supported (supported: {', '.join(_DTYPES)})")
        _check_family(self.model_type)
        self._check_window()

    def _check_window(self) -> None:
        if self.sliding_window is None:
            if self.sliding_layers is not None:
                raise ValueError("sliding_layers is given without sliding_window")
            return
        if self.model_type == "llama":
            raise ValueError(
                f"sliding_window is {self.sliding_window}, which a 'llama' does not have (a 'mistral' does)"
            )
        if self.sliding_window < 1:
            raise ValueError(f"sliding_window is {self.sliding_window}; at least 1 is needed (None: no window)")
        if self.sliding_layers is None:
            return
        if len(self.sliding_layers) != self.num_hidden_layers:
            raise ValueError(f"sliding_layers says {len(self.sliding_layers)} layers of {self.num_hidden_layers}")
        if self.model_type == "mistral" and not all(self.sliding_layers):
            raise ValueError("a 'mistral' has its window in every layer; sliding_layers says otherwise")
        if not any(self.sliding_layers):
            object.__setattr__(self, "sliding_window", None)
        if len(set(self.sliding_layers)) == 1:
            object.__setattr__(self, "sliding_layers", None)

    @property
    def qkv_bias(self) -> bool:
        """Return whether queries, keys and values have biases."""
        return self.model_type == "qwen2"

    @property
    def qk_norm(self) -> bool:
        """Return whether each head's queries and keys are normalised before they are rotated."""
        return self.model_type == "qwen3"

    @property
    def kv_heads(self) -> int:
        """`num_key_value_heads`, never None."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def size(self) -> int:
        """`head_dim`, never None."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> LlamaConfig:
        """Read a `config.json` of transformers 4 or 5.

        **Raises:** `ValueError` for another architecture, or for a field whose value is not implemented, by name.
        """
        kind: Any = config.get("model_type")
        _check_family(kind)
        for name in _list_field(config, "architectures"):
            if not str(name).endswith("ForCausalLM"):
                raise ValueError(f"architecture {name!r} is not supported; save the model as a {kind} ...ForCausalLM")
        _check_effects(config)
        eos = [] if config.get("eos_token_id") is None else config["eos_token_id"]
        # Some checkpoints list several end tokens; the first one ends a text. A negative one is none.
        ends = [t for t in (eos if isinstance(eos, list | tuple) else [eos]) if not (isinstance(t, int) and t < 0)]
        config = {**_ABSENT[kind], **config, **({"eos_token_id": ends} if "eos_token_id" in config else {})}
        derived = {"rope", "dtype", "eos_token_id", "sliding_window", "sliding_layers"}
        fields = {f.name for f in dataclasses.fields(LlamaConfig)} - derived
        _check_values(config)
        present = {name: config[name] for name in sorted(fields) if config.get(name) is not None}
        eos = config.get("eos_token_id")
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
        return LlamaConfig(
            **present,
            rope=RopeConfig.from_hf(config),
            eos_token_id=next(iter(eos), None) if isinstance(eos, list | tuple) else eos,
            dtype=dtype,
            **_window(config),
        )

    def to_hf(self) -> dict[str, Any]:
        """`config.json` of transformers 5 and 4, which `from_hf` reads back unchanged."""
        fields, rope = dataclasses.asdict(self), self.rope.to_hf(self.max_position_embeddings)
        for name in ("rope", "sliding_window", "sliding_layers"):
            fields.pop(name)
        return {
            "architectures": [f"{self.model_type.capitalize()}ForCausalLM"],
            **fields,
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "rope_parameters": rope,
            # transformers 4 reads these two, and takes the defaults of its own without a word if they are missing
            "rope_theta": self.rope.theta,
            "rope_scaling": None if self.rope.type == "default" else rope,
            **self._family_fields(),
        }

    def _family_fields(self) -> dict[str, Any]:
        if self.model_type == "llama":
            return {"attention_bias": False, "mlp_bias": False}
        if self.model_type == "mistral":
            return {"sliding_window": self.sliding_window}
        slides = self.sliding_layers or (self.sliding_window is not None,) * self.num_hidden_layers
        return {
            **({"attention_bias": False} if self.model_type == "qwen3" else {}),
            "use_sliding_window": self.sliding_window is not None,
            "sliding_window": self.sliding_window,
            "max_window_layers": slides.index(True) if True in slides else self.num_hidden_layers,
            "layer_types": [WINDOWED if s else FULL for s in slides],
        }

    @staticmethod
    def preset(name: str, vocab_size: int, **changes: Any) -> LlamaConfig:
        """Named size, with `changes` to its fields. **Raises** `KeyError`, with the nearest name."""
        if name not in PRESETS:
            raise KeyError(f"no preset {name!r}{nearest(name, list(PRESETS))} (there are {', '.join(PRESETS)})")
        return LlamaConfig(vocab_size=vocab_size, **{**PRESETS[name], **changes})

    @property
    def matmul_params(self) -> int:
        """Weights that multiply every token: all matrices and the head, without the embedding table."""
        d, h = self.hidden_size, self.size
        attention = 2 * d * self.num_attention_heads * h + 2 * d * self.kv_heads * h
        return self.num_hidden_layers * (attention + 3 * d * self.intermediate_size) + d * self.vocab_size

    def flops_per_token(self, context: int, *, logits: bool = True) -> float:
        """Forward floating-point operations per token, averaged over a causal context of `context` tokens.

        `2 N + 2 L T H h`, where `N` is the size of the matrices (including the head if `logits`) and the second term is
        the causal half of scores and values. Training costs 3 times this for all
        weights, 2 times with frozen weights and LoRA.
        """
        n = self.matmul_params - (0 if logits else self.hidden_size * self.vocab_size)
        return 2.0 * n + 2.0 * self.num_hidden_layers * context * self.num_attention_heads * self.size


def _check_effects(config: Mapping[str, Any]) -> None:
    """**Raises** `ValueError` for a field that changes the computation to one that is not implemented, by name."""
    for name, supported in _SUPPORTED.items():
        value = config.get(name)
        if value is None or config["model_type"] == "qwen3" and name in _ANY_NORM:
            continue
        if any(x not in supported for x in (value if isinstance(value, list) else [value])):
            allowed = " or ".join(map(repr, supported or (None,)))
            raise ValueError(f"config field {name} is {value!r}; only {allowed} is implemented")
    heads: Any = config.get("num_attention_heads")
    width: Any = config.get("hidden_size")
    sizes = (heads, width, config.get("head_dim") or 1)
    if not all(isinstance(x, int) and x > 0 for x in sizes):
        return  # reported by `_check_values`
    size: float = config.get("head_dim") or width / heads
    equal: dict[str, float] = {
        "attention_multiplier": size**-0.5, "query_pre_attn_scalar": size, "dim_model_base": width,
        "no_rope_layer_interval": 0,
    }  # fmt: skip
    for name, number in equal.items():
        value = config.get(name)
        if value is None or name == "no_rope_layer_interval" and config.get("no_rope_layers"):
            continue
        if not isinstance(value, int | float) or not math.isclose(value, number, rel_tol=1e-6):
            raise ValueError(f"config field {name} is {value!r}; only {number:g} is implemented")


def _list_field(config: Mapping[str, Any], name: str) -> list[Any]:
    """A field that is a list, or missing."""
    value = config.get(name)
    if not isinstance(value, list | tuple | None):
        raise ValueError(f"config field {name} is {value!r}; a list is needed")
    return list(value or ())


def _window(config: Mapping[str, Any]) -> dict[str, Any]:
    """`sliding_window` and `sliding_layers` of a config.json; a Qwen's window needs `use_sliding_window`."""
    integers(config, "sliding_window", "max_window_layers", minimum=0)
    booleans(config, "use_sliding_window")
    kind, window, count = config["model_type"], config.get("sliding_window"), config["num_hidden_layers"]
    qwen, types = kind in ("qwen2", "qwen3"), _list_field(config, "layer_types")
    if qwen and not config.get("use_sliding_window"):
        window = None
    first = config.get("max_window_layers") if qwen else 0
    if first is None:
        first = 28  # transformers' default
    slides = [window is not None and i >= first for i in range(count)]
    if types:
        for name in types:
            if name not in (WINDOWED, FULL):
                raise ValueError(f"layer_types holds {name!r}; only {WINDOWED!r} and {FULL!r} are implemented")
        named = [name == WINDOWED for name in types]
        if any(named) and window is None:
            raise ValueError(f"layer_types holds {WINDOWED!r}, but the configuration uses no sliding_window")
        if not qwen and named != slides:
            raise ValueError(f"layer_types does not fit a {kind!r}, whose layers are all of one kind; remove it")
        slides = named
    return {"sliding_window": window, "sliding_layers": tuple(slides) if window is not None else None}


PRESETS: dict[str, dict[str, Any]] = {
    # The policy of the demo, for two cores.
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    },
    # The model of the scoring benchmark: 27 million weights with a vocabulary of 4,096.
    "small": {
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
    },
}
