"""Sentence encoders on the device: BERT models (MiniLM) in flax, pooled to one vector per text.

`encoder_weights.load_encoder` loads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, Literal, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from envs_jax import tracing
from llmrl_jax.kernels.attention import KeyValues, attend
from llmrl_jax.lm import declare
from llmrl_jax.lm.layers import AnyArray, projections
from llmrl_jax.lm.tokens import FastTokenizer


Pooling = Literal["mean", "cls", "pooler"]
_POOLINGS: tuple[str, ...] = Pooling.__args__  # type: ignore[attr-defined]


class TextEncoder(Protocol):
    """Encoder of texts as vectors: a `SentenceEncoder`, or the substitute `HashedEncoder`."""

    name: str
    """Name for logs and caches."""
    dim: int

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings float32 `[N, dim]` of `N` texts, on the host."""
        ...


@dataclass(frozen=True)
class BertConfig:
    """Architecture: layer norms after each residual sum, exact GELU, learned absolute positions."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02

    def __post_init__(self):
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads}, which does not divide a hidden_size of "
                f"{self.hidden_size}"
            )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> BertConfig:
        """Architecture from a `config.json`. **Raises:** `ValueError` for a field that is missing or unsupported."""
        fixed = {
            # The first releases have no model_type.
            "model_type": ("bert", "bert"),
            "hidden_act": ("gelu", "gelu"),
            "position_embedding_type": ("absolute", "absolute"),
            "is_decoder": (False, False),
            "add_cross_attention": (False, False),
        }
        for name, (default, supported) in fixed.items():
            if (value := config.get(name, default)) != supported:
                raise ValueError(f"{name} is {value!r}; a sentence encoder here supports {supported!r} alone")
        values = {f.name: config[f.name] for f in fields(cls) if f.name in config}
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
            if name not in values:
                raise ValueError(f"it lacks the field {name}, which BERT needs")
        return cls(**values)


def declare_bert(config: BertConfig, pooler: bool) -> declare.Tree:
    """The `params` collection, layers stacked: `[L, ...]`; with BERT's pooler only if `pooler`."""
    d, layers, std = config.hidden_size, config.num_hidden_layers, config.initializer_range
    heads = (config.num_attention_heads, d // config.num_attention_heads)

    def leaf(
        shape: tuple[int, ...], init: Any, hf: str, hf_shape: tuple[int, ...], fan_in: int = 0
    ) -> declare.ParamSpec:
        shape = (layers, *shape) if "{}" in hf else shape
        return declare.ParamSpec(shape, (None,) * len(shape), init, scale=std, hf=hf, hf_shape=hf_shape, fan_in=fan_in)

    def table(rows: int, hf: str) -> declare.Tree:
        return {"embedding": leaf((rows, d), "normal", f"embeddings.{hf}_embeddings.weight", (rows, d))}

    def norm(hf: str) -> declare.Tree:
        return {
            "scale": leaf((d,), "ones", f"{hf}.LayerNorm.weight", (d,)),
            "bias": leaf((d,), "zeros", f"{hf}.LayerNorm.bias", (d,)),
        }

    def dense(ins: tuple[int, ...], outs: tuple[int, ...], hf: str) -> declare.Tree:
        flat = (int(np.prod(outs)), int(np.prod(ins)))
        return {
            "kernel": leaf((*ins, *outs), "normal", f"{hf}.weight", flat, fan_in=len(ins)),
            "bias": leaf(outs, "zeros", f"{hf}.bias", flat[:1]),
        }

    prefix = "encoder.layer.{}"
    tree = {
        "embeddings": {
            "word": table(config.vocab_size, "word"),
            "position": table(config.max_position_embeddings, "position"),
            "token_type": table(config.type_vocab_size, "token_type"),
            "norm": norm("embeddings"),
        },
        "layers": {
            "attention": {
                **{name: dense((d,), heads, f"{prefix}.attention.self.{name}") for name in ("query", "key", "value")},
                "output": dense(heads, (d,), f"{prefix}.attention.output.dense"),
                "norm": norm(f"{prefix}.attention.output"),
            },
            "mlp": {
                "up": dense((d,), (config.intermediate_size,), f"{prefix}.intermediate.dense"),
                "down": dense((config.intermediate_size,), (d,), f"{prefix}.output.dense"),
                "norm": norm(f"{prefix}.output"),
            },
        },
    }
    return {**tree, "pooler": {"dense": dense((d,), (d,), "pooler.dense")}} if pooler else tree


def layer_norm(x: jax.Array, params: Mapping, eps: float) -> jax.Array:
    """Layer norm with a bias, computed in float32, returned in the dtype of `x`."""
    wide = x.astype(jnp.float32)
    wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (wide * params["scale"].astype(jnp.float32) + params["bias"].astype(jnp.float32)).astype(x.dtype)


@struct.dataclass
class BertOutput:
    """The output of a forward pass over `[B, S]` tokens."""

    hidden: Float[Array, "B S D"]
    """The last layer's states; those of padded tokens are undefined."""
    pooled: Float[Array, "B D"] | None
    """tanh of a matrix times the first token's state; None for a model without a pooler."""


class Bert(nn.Module):
    """BERT (Devlin et al. 2019) for inference: no dropout. Differentiable."""

    config: BertConfig
    pooler: bool = False
    dtype: Any = jnp.float32
    """Dtype of the computation; norms and softmax are always float32."""
    param_dtype: Any = jnp.float32

    def setup(self):
        for name, tree in declare_bert(self.config, self.pooler).items():
            value = self.param(name, lambda key, t=tree: declare.make(t, key, self.param_dtype))
            setattr(self, f"_{name}", value)

    def abstract(self) -> dict[str, declare.Tree]:
        """Shape and dtype of every parameter, by collection, without allocating any."""
        return {"params": declare.abstract(declare_bert(self.config, self.pooler), self.param_dtype)}

    @tracing.default_types
    def __call__(
        self,
        tokens: Int[AnyArray, "B S"],
        lengths: Int[AnyArray, "B"],
        token_types: Int[AnyArray, "B S"] | None = None,
    ) -> BertOutput:
        """One forward pass over right-padded rows; `token_types` (None: all 0) marks the first and second text of a
        pair.

        Padding is defined by `lengths`, never by a token's id.
        **Raises:** `ValueError` if `S` exceeds the positions.
        """
        config, steps = self.config, tokens.shape[1]
        if steps > config.max_position_embeddings:
            raise ValueError(
                f"rows of {steps} tokens need {steps} positions; the encoder has {config.max_position_embeddings} "
                "(max_position_embeddings): cut them"
            )
        tables = self._embeddings
        x = tables["word"]["embedding"][tokens] + tables["position"]["embedding"][:steps]
        types = tables["token_type"]["embedding"]
        x = x + (types[0] if token_types is None else types[token_types])
        x = layer_norm(x.astype(self.dtype), tables["norm"], config.layer_norm_eps)
        valid = jnp.arange(steps) < jnp.asarray(lengths)[:, None]
        x, _ = tracing.scan(lambda x, params: (self._layer(x, valid[:, None, :], params), None), x, self._layers)
        return BertOutput(x, jnp.tanh(_project(x[:, 0], "dense", self._pooler)) if self.pooler else None)

    def _layer(self, x: jax.Array, mask: jax.Array, params: Mapping) -> jax.Array:
        attention, mlp, eps = params["attention"], params["mlp"], self.config.layer_norm_eps
        query, key, value = (_project(x, name, attention) for name in ("query", "key", "value"))
        attn_output = attend(query, [KeyValues(key, value, mask)])
        x = layer_norm(x + _project(attn_output, "output", attention, fan_in=2), attention["norm"], eps)
        wide = jax.nn.gelu(_project(x, "up", mlp), approximate=False)
        return layer_norm(x + _project(wide, "down", mlp), mlp["norm"], eps)


def check_options(model: Bert, pooling: str, max_length: int) -> None:
    """**Raises:** `ValueError` for an unknown pooling, one whose weights the model lacks, or an impossible length."""
    if pooling not in _POOLINGS:
        raise ValueError(f"pooling is {pooling!r}; supported: {', '.join(_POOLINGS)}")
    if pooling == "pooler" and not model.pooler:
        raise ValueError("pooling is 'pooler', but the model was built without one: Bert(config, pooler=True)")
    if not 2 < max_length <= model.config.max_position_embeddings:
        raise ValueError(
            f"max_length is {max_length}; it must leave room for a token between the two special ones and not "
            f"exceed the encoder's {model.config.max_position_embeddings} positions"
        )


class SentenceEncoder:
    """`Bert`, its weights, its tokenizer and its pooling: one vector `[D]` per text."""

    def __init__(
        self,
        model: Bert,
        variables: Any,
        tokenizer: FastTokenizer,
        *,
        name: str,
        pooling: Pooling,
        normalize: bool,
        max_length: int,
        cls_id: int,
        sep_id: int,
        lowercase: bool = False,
    ):
        """**Arguments:** `pooling`: `mean` of the states of non-padding tokens, `cls`, the first token's, or `pooler`,
        BERT's tanh layer over the first token's; `normalize`, whether to divide by the L2 norm; `max_length`, in
        tokens, including the two special ones: longer texts are truncated; `lowercase`, whether texts are lower-cased
        before tokenization. `name` is for logs and caches.

        **Raises:** as `check_options`.
        """
        check_options(model, pooling, max_length)
        self.model, self.variables, self.tokenizer, self.name = model, variables, tokenizer, name
        self.pooling, self.normalize, self.max_length = pooling, normalize, max_length
        self.cls_id, self.sep_id, self.lowercase = cls_id, sep_id, lowercase
        self.dim: int = model.config.hidden_size
        self._jitted = jax.jit(self.apply)

    def __repr__(self) -> str:
        pooling = f"{self.pooling}{', normalised' if self.normalize else ''}"
        return f"SentenceEncoder({self.name!r}, {self.dim} wide, {pooling}, at most {self.max_length} tokens)"

    @tracing.default_types
    def apply(
        self,
        variables: Any,
        tokens: Int[AnyArray, "B S"],
        lengths: Int[AnyArray, "B"],
        token_types: Int[AnyArray, "B S"] | None = None,
    ) -> Float[Array, "B D"]:
        """Embeddings of token rows with their special tokens (`tokenize`); pure, for jit and grad.

        **Returns:** float32 `[B, D]`; a row of length 0 gives zeros.
        """
        output: Any = self.model.apply(variables, tokens, lengths, token_types)
        length = jnp.asarray(lengths)[:, None]
        hidden = output.hidden.astype(jnp.float32)
        if self.pooling == "mean":
            valid = jnp.arange(tokens.shape[1]) < length
            vector = jnp.where(valid[..., None], hidden, 0.0).sum(1) / jnp.maximum(length, 1)
        else:
            vector = hidden[:, 0] if self.pooling == "cls" else output.pooled.astype(jnp.float32)
            vector = jnp.where(length > 0, vector, 0.0)
        if not self.normalize:
            return vector
        # The bound is inside the square root, so that the gradient of a zero row is zero, not NaN.
        return vector * jax.lax.rsqrt(jnp.maximum(jnp.square(vector).sum(-1, keepdims=True), 1e-24))

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, including special tokens, truncated to `max_length`."""
        if isinstance(texts, str):
            raise TypeError(f"texts must be a sequence of strings, not the one string {texts[:40]!r}: put it in a list")
        rows = self.tokenizer.encode_batch([text.lower() for text in texts] if self.lowercase else list(texts))
        return [[self.cls_id, *row[: self.max_length - 2], self.sep_id] for row in rows]

    def encode_texts(self, texts: Sequence[str], *, batch_size: int = 64) -> np.ndarray:
        """Embeddings float32 `[N, D]` of `N` texts, on the host.

        Texts are sorted by length, so that a batch has little padding; each padded shape is compiled once, and there
        are few of them (powers of two). The last bits of a row depend on the shape of its batch.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
        rows = self.tokenize(texts)
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        batches = [order[i : i + batch_size] for i in range(0, len(rows), batch_size)]
        # All batches are dispatched before the first is fetched.
        outputs = [self._jitted(self.variables, *self._pad([rows[i] for i in batch], batch_size)) for batch in batches]
        embeddings = np.zeros((len(rows), self.dim), np.float32)
        for batch, vectors in zip(batches, outputs):
            embeddings[batch] = np.asarray(vectors)[: len(batch)]
        return embeddings

    def _pad(self, rows: list[list[int]], batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows padded to one of few shapes: tokens `[B, S]` and lengths `[B]`, 0 for padding rows."""
        width = min(self.max_length, max(8, 1 << (max(map(len, rows)) - 1).bit_length()))
        tokens = np.zeros((min(batch_size, 1 << (len(rows) - 1).bit_length()), width), np.int32)
        lengths = np.zeros(len(tokens), np.int32)
        for i, row in enumerate(rows):
            tokens[i, : len(row)], lengths[i] = row, len(row)
        return tokens, lengths


@tracing.default_types
def _project(x: jax.Array, name: str, params: Any, fan_in: int = 1) -> jax.Array:
    return projections(x, (name,), params, None, 1.0, fan_in)[0]


def summed(table: Float[AnyArray, "P D"], caption: Int[AnyArray, "*B C"]) -> Float[Array, "*B D"]:
    """The sum of the embeddings of a caption's phrases; -1 is no phrase.

    Phrase by phrase: on a CPU a sum over gathered rows `[*B, C, D]`, and a product with the phrases' counts, take 3 to
    100 times as long.
    """
    rows = jnp.concatenate([jnp.zeros((1, table.shape[1]), jnp.asarray(table).dtype), jnp.asarray(table)])

    def add(total: jax.Array, index: jax.Array) -> tuple[jax.Array, None]:
        return total + rows.at[index.astype(jnp.int32) + 1].get(mode="promise_in_bounds"), None

    start = jnp.zeros((*caption.shape[:-1], table.shape[1]), rows.dtype)
    return tracing.scan(add, start, jnp.moveaxis(jnp.asarray(caption), -1, 0), unroll=4)[0]


_WORD = re.compile(r"\w+")


class HashedEncoder:
    """Substitute for a sentence encoder, without semantics.

    A vector holds the signed counts of a text's words and word n-grams, hashed into `dim` entries (Weinberger et al.
    2009) and divided by the L2 norm: texts that share words are similar, synonyms are as far apart as any two words.
    Identical on every machine and in every process. For tests, and to run a system without weights; results with it
    must never be reported as those of a language model.
    """

    def __init__(self, dim: int = 384, ngrams: int = 2):
        """**Arguments:** `dim`, the width, by default MiniLM's; `ngrams`, the longest n-gram of words: 1 ignores word
        order.

        **Raises:** `ValueError` if either is less than 1."""
        if dim < 1 or ngrams < 1:
            raise ValueError(f"dim is {dim} and ngrams {ngrams}; both must be at least 1")
        self.dim, self.ngrams = dim, ngrams
        self.name = f"hashed-{dim}-{ngrams}"

    def __repr__(self) -> str:
        return f"HashedEncoder(dim={self.dim}, ngrams={self.ngrams})"

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings float32 `[N, dim]` of `N` texts, of L2 norm 1; zeros for a text without a word.

        Case, punctuation and white space are ignored.
        """
        if isinstance(texts, str):
            raise TypeError(f"texts must be a sequence of strings, not the one string {texts[:40]!r}: put it in a list")
        counts = np.zeros((len(texts), self.dim))
        for row, text in zip(counts, texts):
            words = _WORD.findall(text.casefold())
            for n in range(1, self.ngrams + 1):
                for i in range(len(words) - n + 1):
                    # Words are joined by a space, which no word contains; the highest bit is the sign.
                    digest = blake2b(" ".join(words[i : i + n]).encode(), digest_size=8).digest()
                    number = int.from_bytes(digest, "little")
                    row[(number & (2**63 - 1)) % self.dim] += -1.0 if number >> 63 else 1.0
        norms = np.sqrt(np.square(counts).sum(1, keepdims=True))
        return (counts / np.where(norms > 0, norms, 1.0)).astype(np.float32)
