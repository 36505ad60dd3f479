"""Attention over keys and values of one or several sources, in the form that suits the device.

One interface, four forms of the same sum. `saved` keeps the weights of the softmax for the backward pass: fastest on a
CPU. `recomputed` keeps two numbers a row and computes the weights once more: on an accelerator, moving scores is most
of a step. `cudnn` and `splash` are kernels of NVIDIA GPUs and of TPUs that never write a score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from envs_jax.checks import nearest
from envs_jax.tracing import cotangents, platform
from llmrl_jax.parallel.partition import on_each_device


Attention = Literal["auto", "saved", "recomputed", "cudnn", "splash"]
"""`auto` is `saved` on a CPU; on a GPU `cudnn`, on a TPU `splash`, where they can do it, else `recomputed`."""


SAVED = "products"
"""The name of what the gradient of a layer keeps from the forward pass; see `saved_product`."""


def saved_product(x: jax.Array) -> jax.Array:
    """Mark a product that took many multiplications, to be kept for the backward pass. Norms, rotations and activations
    are computed once more there (selective recomputation, Korthikanti et al. 2022): cheaper than to write and to read
    them."""
    return checkpoint_name(x, SAVED)


SAVE_PRODUCTS = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.save_only_these_names(SAVED),
    lambda primitive, *_, **__: primitive.name.startswith("dot_product_attention_fwd"),
)
"""The policy of `jax.checkpoint` for a layer: it keeps each `saved_product`, and what cuDNN's backward pass reads."""


class KeyValues(NamedTuple):
    """Keys and values that queries attend to. Without a batch axis they are shared by all rows, without repetition."""

    key: Float[Array, "*b t k h"]
    value: Float[Array, "*b t k h"]
    mask: Bool[Array, "*b q t"] | None
    """The keys that each query sees; None means all, or, if `causal`, those up to its own place."""
    axes: str | None = None
    """The order of the axes: b rows, r rows of single queries (each with its own keys), t tokens, k heads, h; c is k
    and h in one. None: as above."""
    key_axes: str | None = None
    """The order of the axes of the keys. None: the same."""
    causal: bool = False
    """Queries and keys are the same tokens, and no query sees a later one: a promise, which `mask` keeps too."""
    segments: Int[Array, "b t"] | None = None
    """If causal: the mask is that of equal numbers, for kernels that take numbers and no mask."""
    longest: int | None = None
    """With segments: the most tokens of one, a promise; None: not known. Short segments in long rows cost less."""

    @property
    def order(self) -> str:
        """`axes`, never None."""
        return self.axes or ("btkh" if self.key.ndim == 4 else "tkh")

    @property
    def key_order(self) -> str:
        """`key_axes`, never None."""
        return self.key_axes or self.order

    @property
    def visible(self) -> Bool[Array, "*b q t"] | None:
        """The mask with what `causal` adds to it; None: all keys."""
        if self.mask is not None or not self.causal:
            return self.mask
        steps = jnp.arange(self.key.shape[self.key_order.index("t")])
        return steps[:, None] >= steps

    def select(self, select: Callable[[jax.Array], jax.Array]) -> KeyValues:
        """The same for some of the queries, which `select` takes along axis 1 of the mask."""
        mask = self.visible
        mask = mask if mask is None or mask.ndim == 3 else mask[None]
        return self._replace(mask=None if mask is None else select(mask), causal=False, segments=None, longest=None)


class Mask(NamedTuple):
    """The keys that queries see in a layer without a sliding window, and in one with it."""

    visible: Bool[Array, "*b q t"] | None
    """None: all, or those that `KeyValues.causal` says."""
    in_window: Bool[Array, "d q t"] | None = None
    """The keys in the window; None: there is no window, or all keys are in it."""

    def of_layer(self, has_window: Any = None) -> jax.Array | None:
        """The mask of a layer with a window, if `has_window` (bool `[]`; None: as all layers)."""
        mask, window_mask = self
        if window_mask is None:
            return mask
        window_mask = window_mask if has_window is None else window_mask | ~jnp.asarray(has_window)
        return window_mask if mask is None else mask & window_mask


def in_window(
    window: int, queries: Int[Array | np.ndarray, "b q"], keys: Int[Array | np.ndarray, "c t"]
) -> Bool[Array, "d q t"]:
    """Return whether a key is among the last `window` positions up to and including the query's; `d` is `b` or `c`."""
    return jnp.asarray(keys)[:, None, :] > jnp.asarray(queries)[:, :, None] - window


def check_attention(form: str) -> None:
    """**Raises** `ValueError` for an unknown form of attention, with the nearest."""
    forms = list(get_args(Attention))
    if form not in forms:
        raise ValueError(f"there is no attention {form!r}{nearest(form, forms)} (known: {', '.join(forms)})")


def form_of(form: Attention, query: Float[Array, "b q n h"], source: KeyValues) -> str:
    """The form that attention over one source takes: `form`, or the best of the device for `auto`."""
    if form != "auto":
        return form
    device = platform()
    if device == "cpu":
        return "saved"
    if device == "gpu" and not cannot_cudnn(query, source):
        return "cudnn"
    if device == "tpu" and not cannot_splash(query, source):
        return "splash"
    return "recomputed"


def cannot_cudnn(query: Float[Array, "b q n h"], source: KeyValues) -> str:
    """Reason why cuDNN's attention cannot compute this; empty if it can.

    It needs a GPU of NVIDIA from Ampere on. Its heads have up to 128 numbers, a multiple of 8, of 16 bits. With a mask,
    jax before 0.11.2 also writes the mask's gradient, as large as all scores. It is compiled on the GPU, so not for one
    that is absent.
    """
    if jax.default_backend() != "gpu":
        return "it is compiled where there is a GPU"
    device = jax.local_devices()[0]
    if "cuda" not in (version := getattr(device.client, "platform_version", "")):
        return f"it is CUDA's, not of {version or 'an unknown platform'}"
    if int((capability := getattr(device, "compute_capability", "0")).partition(".")[0]) < 8:
        return f"it needs a GPU of compute capability 8.0, not {capability}"
    size, dtype = query.shape[-1], query.dtype
    if dtype not in (jnp.bfloat16, jnp.float16):
        return f"it computes in bfloat16 or float16, not in {dtype.name}"
    if size % 8 or size > 128:
        return f"its heads have a multiple of 8 and at most 128 numbers, not {size}"
    masked = source.mask is not None or (not source.causal and source.key.shape[1] % 2)
    if masked and jax.__version_info__ < (0, 11, 2):
        return f"a mask needs jax 0.11.2, this is {jax.__version__}"
    return ""


def cannot_splash(query: Float[Array, "b q n h"], source: KeyValues) -> str:
    """Reason why splash attention cannot compute this; empty if it can: causal, a multiple of 128 tokens."""
    if not source.causal or (source.mask is not None and source.segments is None):
        return "its mask is causal, by segments at most"
    if query.shape[1] % 128:
        return f"its rows have a multiple of 128 tokens, not {query.shape[1]}"
    return ""


def attention_reference(query: Float[Array, "b q n h"], source: KeyValues) -> Float[Array, "b q n h"]:
    """`attend` by its definition, over one source in the first order of axes."""
    group = query.shape[2] // source.key.shape[2]
    key, value = (jnp.repeat(x, group, axis=2) for x in (source.key, source.value))
    scores = jnp.einsum("bqnh,btnh->bnqt", query, key) * query.shape[-1] ** -0.5
    if (mask := source.visible) is not None:
        scores = jnp.where(mask[:, None] if mask.ndim == 3 else mask, scores, jnp.finfo(jnp.float32).min)
    return jnp.einsum("bnqt,btnh->bqnh", jax.nn.softmax(scores), value)


STRIP = 128
"""Queries that see the same keys, where those that none of them sees are left out."""


def attend(
    query: Float[Array, "b q n h"], sources: Sequence[KeyValues], form: Attention = "auto"
) -> Float[Array, "b q n h"]:
    """Softmax attention over the union of several sources; scores and sums are float32.

    Heads are grouped: query head `n` reads key head `n // (N / K)` through one product, so keys and values are not
    repeated over a group's heads or, for a source without a batch axis, over rows.

    **Arguments:** `form`, how it is computed if there is one source, in the first order of axes; several are always
    computed by products whose weights the backward pass keeps.
    """
    b, q, n, h = query.shape
    source = sources[0]
    kv = source.value.shape[-1] // h if "c" in source.order else source.value.shape[source.order.index("k")]
    grouped = (query * h**-0.5).reshape(b, q, kv, n // kv, h)
    if len(sources) > 1 or not source.order == source.key_order == "btkh":
        return _over_sources(query, grouped, sources)
    chosen = form_of(form, query, source)
    if chosen in FUSED:
        return FUSED[chosen](query, source).astype(query.dtype)
    if source.longest is not None and 3 * source.longest <= q:
        return _in_blocks(query, source, chosen)
    if chosen == "saved" and source.causal and q >= 2 * STRIP and (source.segments is not None or source.mask is None):
        return _in_strips(query, source, chosen)
    key, value, mask = source.key, source.value, source.visible
    mask = jnp.ones((1, 1, key.shape[1]), bool) if mask is None else mask
    rows = jnp.moveaxis(grouped, 2, 1).reshape(b, kv, q * (n // kv), h)
    key, value = jnp.moveaxis(key, 2, 1), jnp.moveaxis(value, 2, 1)
    output: Any = _attended(chosen == "recomputed", rows, key, value, mask if mask.ndim == 3 else mask[None])
    return jnp.moveaxis(output.reshape(b, kv, q, n // kv, h), 1, 2).reshape(b, q, n, h).astype(query.dtype)


def _in_blocks(query: Float[Array, "b q n h"], source: KeyValues, form: Any) -> Float[Array, "b q n h"]:
    """`attend` where segments are short: a block of as many queries as a segment has tokens at most sees the keys of
    its own block and of the one before, in place of all."""
    (b, q, n, h), size = query.shape, source.longest
    assert source.causal and source.segments is not None and size is not None
    count = -(-q // size)

    def blocks(x: jax.Array, fill: int = 0) -> jax.Array:
        x = jnp.pad(x, ((0, 0), (0, count * size - q), *((0, 0),) * (x.ndim - 2)), constant_values=fill)
        return x.reshape(b, count, size, *x.shape[2:])

    def with_earlier(x: jax.Array, fill: int = 0) -> jax.Array:
        earlier = jnp.pad(x[:, :-1], ((0, 0), (1, 0), *((0, 0),) * (x.ndim - 2)), constant_values=fill)
        return jnp.concatenate([earlier, x], axis=2).reshape(b * count, 2 * size, *x.shape[3:])

    number = blocks(source.segments, -2)
    keys, values = with_earlier(blocks(source.key)), with_earlier(blocks(source.value))
    own = number.reshape(b * count, size)
    places = jnp.arange(2 * size)
    mask = (own[:, :, None] == with_earlier(number, -3)[:, None]) & (places[:size, None] + size >= places)
    output = attend(blocks(query).reshape(b * count, size, n, h), [KeyValues(keys, values, mask)], form)
    return output.reshape(b, count * size, n, h)[:, :q]


def _in_strips(query: Float[Array, "b q n h"], source: KeyValues, form: Any) -> Float[Array, "b q n h"]:
    """`attend` in strips of `STRIP` queries, each over the keys that one of them may see: half of all scores, and less
    where segments are shorter than a row."""
    size, reach = query.shape[1], query.shape[1] if source.longest is None else source.longest - 1
    numbers, outputs = source.segments, []
    for begin in range(0, size, STRIP):
        end, first = min(begin + STRIP, size), max(begin - reach, 0) // STRIP * STRIP
        mask: Any = jnp.arange(begin, end)[:, None] >= jnp.arange(first, end)
        if numbers is not None:
            mask = mask & (numbers[:, begin:end, None] == numbers[:, None, first:end])
        part = KeyValues(source.key[:, first:end], source.value[:, first:end], mask)
        outputs.append(attend(query[:, begin:end], [part], form))
    return jnp.concatenate(outputs, axis=1)


def _over_sources(query: Any, grouped: Any, sources: Sequence[KeyValues]) -> Any:
    """`attend` over any sources, of queries `[b, q, k, g, h]` grouped by the head that they read."""
    (b, q, n, h), kv = query.shape, grouped.shape[2]
    scores = []
    for source in sources:
        # the order of axes in which the product leaves them: another would move all scores once more
        if "c" in source.order:
            s = _merged_scores(grouped, source)
        elif "r" in source.order:
            s = _product_of(f"rkgh,{source.key_order}->rkgt", grouped.reshape(b * q, *grouped.shape[2:]), source.key)
            s = jnp.moveaxis(s.reshape(b, q, *s.shape[1:]), 1, 2)
        else:
            s = _product_of(f"bqkgh,{source.key_order}->bkqgt", grouped, source.key)
        if (mask := source.visible) is not None:
            mask = mask[None] if mask.ndim == 2 else mask
            s = jnp.where(mask[:, None, :, None], s, jnp.finfo(jnp.float32).min)
        scores.append(s)
    top = jax.lax.stop_gradient(jnp.max(jnp.stack([s.max(-1) for s in scores]), axis=0))[..., None]
    weights = [saved_product(jnp.exp(s - top)) for s in scores]
    total: Any = sum(w.sum(-1) for w in weights)
    output: Any = 0.0
    merged: dict[bool, Any] = {}  # sums over the columns of all heads, by whether each query has a row of its own
    for weight, source in zip(weights, sources, strict=True):
        weight = weight.astype(query.dtype)
        if "c" in source.order:
            per_query = "r" in source.order and q > 1
            merged[per_query] = merged.get(per_query, 0.0) + _merged_sums(weight, source, per_query)
        elif "r" in source.order:
            weight = jnp.moveaxis(weight, 2, 1).reshape(b * q, kv, n // kv, -1)
            part = _product_of(f"rkgt,{source.order}->rkgh", weight, source.value)
            output = output + jnp.moveaxis(part.reshape(b, q, *part.shape[1:]), 1, 2)
        else:
            output = output + _product_of(f"bkqgt,{source.order}->bkqgh", weight, source.value)
    for per_query, wide in merged.items():
        output = output + _of_own_head(wide, (b, kv, q, n // kv, h), per_query)
    output = saved_product(output) / total[..., None]
    return jnp.moveaxis(output, 1, 2).reshape(b, q, n, h).astype(query.dtype)


def _heads_of(rows: int, heads: int, size: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """For `rows` queries, those of each head in succession, against columns of all heads: which columns are those of a
    row's head, `[rows, heads size]`, and copies of its numbers for every head, `[size, heads size]`."""
    head_mask = jnp.repeat(jnp.repeat(jnp.eye(heads, dtype=dtype), rows // heads, axis=0), size, axis=1)
    return head_mask, jnp.tile(jnp.eye(size, dtype=dtype), heads)


def _merged_scores(grouped: Any, source: KeyValues) -> Any:
    """The scores `[b, k, q, g, t]` of queries `[b, q, k, g, h]` over keys whose heads lie side by side.

    Each query is filled up with zeros for the other heads: one product for all of them, of rows as wide as a tile, in
    place of one for each head. The zeros change no sum.
    """
    b, q, k, g, h = grouped.shape
    per_query = "r" in source.order
    rows = grouped.reshape(b * q, 1, k, g, h) if per_query else grouped
    rows = jnp.moveaxis(rows, 1, 2).reshape(rows.shape[0], -1, h)
    head_mask, copies = _heads_of(rows.shape[1], k, h, rows.dtype)
    wide = jnp.einsum("bxh,hc->bxc", rows, copies, precision=jax.lax.Precision.HIGHEST) * head_mask
    s = _product_of("bxc,btc->bxt", wide, source.key)
    return jnp.moveaxis(s.reshape(b, q, k, g, -1), 1, 2) if per_query else s.reshape(b, k, q, g, -1)


def _merged_sums(weight: Any, source: KeyValues, per_query: bool) -> Any:
    """Sums of values whose heads lie side by side, for all heads, by weights `[b, k, q, g, t]`: `[b, (k q g), (k h)]`;
    if each query has a row of its own, `[(b q), (k g), (k h)]`."""
    b, k, q, g, t = weight.shape
    rows = jnp.moveaxis(weight, 2, 1).reshape(b * q, k * g, t) if per_query else weight.reshape(b, k * q * g, t)
    return _product_of("bxt,btc->bxc", rows, source.value)


def _of_own_head(wide: Any, sizes: tuple[int, ...], per_query: bool) -> Any:
    """Of `_merged_sums` those of each query's own head: `[b, k, q, g, h]`, which are `sizes`."""
    b, k, q, g, h = sizes
    head_mask, copies = _heads_of(wide.shape[1], k, h, wide.dtype)
    part = jnp.einsum("bxc,hc->bxh", wide * head_mask, copies, precision=jax.lax.Precision.HIGHEST)
    return jnp.moveaxis(part.reshape(b, q, k, g, h), 1, 2) if per_query else part.reshape(sizes)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attended(
    recompute: bool,
    query: Float[Array, "b k r h"],
    key: Float[Array, "b k t h"],
    value: Float[Array, "b k t h"],
    mask: Bool[Array, "m p t"],
) -> Float[Array, "b k r h"]:
    """Attention over one source, whose rows `r` are the queries and, within each, the heads of a group.

    Its gradient is written out: two passes over the scores, where that of the operations has about ten. Axes are such
    that a product has one that it sums over: XLA would move the scores of several on a CPU.

    **Arguments:** `recompute`, whether the backward pass gets the maximum and the total of each row, and computes the
    weights of the softmax again from them; else it gets the weights.
    """
    return _attended_forward(recompute, query, key, value, mask)[0]


def _attended_forward(recompute: bool, query: Any, key: Any, value: Any, mask: Any) -> tuple[Any, Any]:
    save_row, save_weight = (saved_product, _unmarked) if recompute else (_unmarked, saved_product)
    s = _masked_scores(recompute, query, key, mask)
    top = save_row(jnp.max(s, axis=-1, keepdims=True))
    weight = save_weight(jnp.exp(s - top))
    total = save_row(jnp.sum(weight, axis=-1, keepdims=True))
    output = saved_product(_product_of("bkrt,bkth->bkrh", weight.astype(query.dtype), value)) / total
    return output, (query, key, value, mask, top if recompute else weight, total, output)


def _attended_backward(recompute: bool, saved: Any, d_out: jax.Array) -> tuple[Any, ...]:
    query, key, value, mask, weight, total, output = saved
    if recompute:
        weight = jnp.exp(_masked_scores(recompute, query, key, mask) - weight)
    narrow = (d_out / total).astype(value.dtype)
    row = jnp.sum(narrow * output, axis=-1, keepdims=True)
    d_score = weight * (_product_of("bkrh,bkth->bkrt", narrow, value) - row)
    # a row that sees no key has weights, and no gradient
    d_score = _apply_mask(recompute, mask, d_score, 0.0).astype(query.dtype)
    d_query = _product_of("bkrt,bkth->bkrh", d_score, key).astype(query.dtype)
    d_key = _product_of("bkrt,bkrh->bkth", d_score, query).astype(key.dtype)
    d_value = _product_of("bkrt,bkrh->bkth", weight.astype(value.dtype), narrow).astype(value.dtype)
    return *cotangents((d_query, d_key, d_value), (query, key, value)), None


_attended.defvjp(_attended_forward, _attended_backward)


def _unmarked(x: jax.Array) -> jax.Array:
    return x


def _masked_scores(recompute: bool, query: Any, key: Any, mask: Any) -> Any:
    return _apply_mask(recompute, mask, _product_of("bkrh,bkth->bkrt", query, key), jnp.finfo(jnp.float32).min)


def _apply_mask(repeat: bool, mask: Any, scores: Any, fill: Any) -> Any:
    """The scores where the mask, which is one for all queries or has one for each, is true.

    **Arguments:** `repeat`, whether the mask is repeated for the heads of a group, or else has an axis of its own for
    them, which makes a TPU write the mask for all heads.
    """
    rows, queries = scores.shape[2], mask.shape[1]
    if repeat:
        mask = jnp.repeat(mask, rows // queries if queries > 1 else 1, axis=1)[:, None]
        return jnp.where(mask, scores, fill)
    by_query = scores.reshape(*scores.shape[:2], queries, rows // max(queries, 1), scores.shape[3])
    return jnp.where(mask[:, None, :, None], by_query, fill).reshape(scores.shape)


def _cudnn(query: Float[Array, "b q n h"], source: KeyValues) -> Float[Array, "b q n h"]:
    """cuDNN's fused attention. **Raises:** `ValueError` if it cannot compute this, saying why."""
    if reason := cannot_cudnn(query, source):
        raise ValueError(f"attention cudnn cannot compute this: {reason}; choose auto or recomputed")
    key, value, mask = source.key, source.value, source.mask
    queries, keys = query.shape[1], key.shape[1]
    padding = (queries % 2, keys % 2)  # both counts have to be even
    if keys % 2 and mask is None and not source.causal:
        mask = jnp.ones((1, 1, keys), bool)
    if mask is not None:
        mask = mask if mask.ndim == 3 else mask[None]
        mask = jnp.broadcast_to(mask, (mask.shape[0], queries, keys))
        mask = jnp.pad(mask, ((0, 0), (0, padding[0]), (0, padding[1])))[:, None]
    query = jnp.pad(query, ((0, 0), (0, padding[0]), (0, 0), (0, 0)))
    key, value = (jnp.pad(x, ((0, 0), (0, padding[1]), (0, 0), (0, 0))) for x in (key, value))
    output = jax.nn.dot_product_attention(query, key, value, mask=mask, is_causal=source.causal, implementation="cudnn")
    return saved_product(output[:, :queries])


def _splash(query: Float[Array, "b q n h"], source: KeyValues) -> Float[Array, "b q n h"]:
    """The fused attention of jax for TPUs. **Raises:** `ValueError` if it cannot compute this, saying why."""
    if reason := cannot_splash(query, source):
        raise ValueError(f"attention splash cannot compute this: {reason}; choose auto or recomputed")
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as splash,
        splash_attention_mask as masks,
    )

    (b, q, n, h), kv = query.shape, source.key.shape[2]
    group, block = n // kv, next(size for size in (512, 256, 128) if q % size == 0)
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    kernel = splash.make_splash_mqa_single_device(
        masks.MultiHeadMask([masks.CausalMask((q, q))] * group), block_sizes=sizes, residual_checkpoint_name=SAVED
    )
    numbers = jnp.zeros((b, q), jnp.int32) if source.segments is None else source.segments.astype(jnp.int32)

    def row(query, key, value, numbers):
        return jax.vmap(kernel, (0, 0, 0, None))(query, key, value, splash.SegmentIds(numbers, numbers))

    def rows(query, key, value, numbers):
        """Queries `[b, k, g, q, h]`, keys and values `[b, k, q, h]`."""
        return jax.vmap(row)(query, key, value, numbers)

    grouped = jnp.moveaxis((query * h**-0.5).reshape(b, q, kv, group, h), 1, 3)
    keys, values = (jnp.moveaxis(x, 1, 2) for x in (source.key, source.value))
    heads, tokens = ("batch", "kv_heads"), ("batch", None)
    output = saved_product(on_each_device(rows, (heads, heads, heads, tokens), heads)(grouped, keys, values, numbers))
    return jnp.moveaxis(output, 3, 1).reshape(b, q, n, h)


FUSED = {"cudnn": _cudnn, "splash": _splash}
"""Form -> the function of a kernel that writes no scores."""


def _product_of(axes: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(axes, a, b, preferred_element_type=jnp.float32)
