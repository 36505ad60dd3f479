"""`Llama`: the language model, a flax module around a scan over stacked layers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import unfreeze
from jaxtyping import Array, Float, Int

from envs_jax import tracing
from llmrl_jax.lm import declare, narrow
from llmrl_jax.lm.attention import KEEP, Attention, Source, attend, check_attention, windowed, within
from llmrl_jax.lm.cache import UNROLLED, Branches, Cache, Prefix, decodes_apart
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.layers import WIDE, as_it_is, gated_mlp, join, joined, layer_slice, project, projections, rms_norm
from llmrl_jax.lm.lora import LoRAConfig, rescale
from llmrl_jax.lm.quantize import Quantized, any_quantized, check_shapes, logical_axes as quantized_axes, matmul
from llmrl_jax.lm.rope import rotate, rotations
from llmrl_jax.parallel.partition import constrain, gathered, mesh_of, on_each_device


ATTENDING = ("q_proj", "k_proj", "v_proj")
"""The matrices of a block of attention that read its input."""

AnyArray = Array | np.ndarray
Angles = tuple[jax.Array, jax.Array]


@struct.dataclass
class LMOutput:
    """The output of a forward pass, for `N` of `S` tokens (`N = S` without `at`)."""

    logits: Float[Array, "B N V"] | None
    """float32; None if not requested."""
    hidden: Float[Array, "B N D"]
    """Hidden states after the last norm."""
    cache: Cache | None = None


class Llama(nn.Module):
    """A Llama with optional adapters.

    Collections: `params`, the base; `lora`, adapters in float32, made by `init` if `lora` is set. In `apply` the
    adapters are off unless their collection is given, so base and adapted policy share one set of weights.

    The layers are stacked, each leaf `[L, ...]`, and run in a `jax.lax.scan`, or unrolled if there are few. (A plain
    scan over a declared tree, not `nn.scan`, so that the last layer can compute only the requested positions.)
    """

    config: LlamaConfig
    lora: LoRAConfig | None = None
    dtype: Any = jnp.float32
    """Dtype of the computation; norms, softmax, rotations and logits are always float32."""
    factors: Any = None
    """Dtype to which activations and weights are rounded for the products of the two, whose sums are float32. None:
    `dtype`. Attention's products are in `dtype`."""
    param_dtype: Any = jnp.float32
    remat: bool = False
    """Recompute each layer's activations in the backward pass: less memory, a third more time."""
    unroll: int | None = None
    """Layers per step of the scan. The number of layers or more unrolls it fully; None does so for up to 4 layers."""
    attention: Attention = "auto"
    """How attention is computed: see `llmrl_jax.lm.attention`."""

    def setup(self):
        check_attention(self.attention)
        for name, tree in declare.declare(self.config).items():
            value: Any = self.get_variable("params", name)
            if any_quantized(value):  # flax would compare codes and scales with the floats that `init` makes
                check_shapes(value, tree, name)
            else:
                value = self.param(name, lambda key, t=tree: declare.make(t, key, self.param_dtype))
            setattr(self, f"_{name}", value)
        if self.is_initializing() and self.lora is not None:
            tree = declare.declare_lora(self.config, self.lora)["layers"]
            self.variable("lora", "layers", lambda: declare.make(tree, self.make_rng("params"), jnp.float32))
        self._adapters: Any = self.get_variable("lora", "layers")
        if self._adapters is not None and self.lora is None:
            raise ValueError("a lora collection was given to a model built without LoRAConfig: its scale is unknown")
        if self._adapters is not None and self.lora is not None:
            self._adapters = rescale(self._adapters, self.lora)

    def declared(self) -> dict[str, declare.Tree]:
        """The declaration of every parameter, by collection."""
        trees = {"params": declare.declare(self.config)}
        if self.lora is not None:
            trees["lora"] = declare.declare_lora(self.config, self.lora)
        return trees

    def logical_axes(self) -> dict[str, declare.Tree]:
        """The logical axes of every parameter, by collection, for `llmrl_jax.parallel.shardings`."""
        return {name: declare.axes(tree) for name, tree in self.declared().items()}

    def abstract(self) -> dict[str, declare.Tree]:
        """The shape and dtype of every parameter, by collection, without allocating any."""
        dtypes = {"params": self.param_dtype, "lora": jnp.float32}
        return {name: declare.abstract(tree, dtypes[name]) for name, tree in self.declared().items()}

    @tracing.default_types
    def __call__(
        self,
        tokens: Int[AnyArray, "B S"],
        *,
        lengths: Int[AnyArray, "B"] | None = None,
        positions: Int[AnyArray, "B S"] | None = None,
        segments: Int[AnyArray, "B S"] | None = None,
        cache: Cache | None = None,
        prefix: Prefix | None = None,
        at: Int[AnyArray, "B N"] | None = None,
        logits: bool = True,
        embeddings: Float[AnyArray, "B S D"] | None = None,
    ) -> LMOutput:
        """One forward pass. Padding is defined by `lengths` or `positions`, never by a token's id.

        **Arguments:** `tokens`; `lengths`, of right-padded rows; or `positions`, for any padding, with -1 at pads;
        neither means full rows from position 0 (or after the tokens in the `cache`); `segments`, with `positions`:
        tokens attend only to those of their own segment, so that a row may hold several texts, whose positions rise;
        `cache`, to read and extend; `prefix`, with a cache: tokens before all rows, which positions do not count; `at`,
        indices in `[0, S)` of the tokens whose hidden states and logits are returned; `logits`, whether to compute
        them; `embeddings`, what the first layer reads in place of `embed(tokens)`, so that a place can hold something
        else than a token.
        **Returns:** `LMOutput`. States of padded tokens are undefined.
        """
        if lengths is not None and positions is not None:
            raise ValueError("give lengths or positions, not both")
        if segments is not None and (positions is None or cache is not None):
            raise ValueError("segments need positions, which restart in every segment, and no cache")
        if prefix is not None and cache is None:
            raise ValueError("a prefix needs a cache, which may be empty")
        steps = jnp.arange(tokens.shape[1])
        extended = None
        key_positions: Any = positions
        where: Any = steps[None]
        if cache is not None:
            if positions is None:
                positions = cache.lengths()[:, None] + steps
                positions = positions if lengths is None else jnp.where(steps < lengths[:, None], positions, -1)
            extended = cache.append(positions)
            key_positions = extended.positions
        if positions is None:
            # Padding is on the right, so a causal mask hides it from every token.
            near = self._near(where, where, tokens.shape[1])
            mask = None if near is None else steps[:, None] >= steps
        else:
            mask = (key_positions[:, None] >= 0) & (key_positions[:, None] <= positions[:, :, None])
            if segments is not None:
                mask &= jnp.asarray(segments)[:, None] == jnp.asarray(segments)[:, :, None]
            where = positions
            near = self._near(where, key_positions)
        causal = cache is None and (positions is None or segments is not None)
        numbers = None
        if segments is not None and near is None:
            numbers = jnp.where(jnp.asarray(positions) >= 0, jnp.asarray(segments), -1)
        before = 0 if prefix is None else prefix.size
        angles = rotations(self.config, before + where)
        near_prefix = self._near(before + where, jnp.arange(before)[None])

        def body(x, layer, pick):
            params, lora, kv, slides = layer
            keys, values = self._keys_values(x, params, lora, angles)
            if cache is not None:
                at_slot = (0, cache.index, 0, 0)
                keys, values = (
                    jax.lax.dynamic_update_slice(old, new.astype(old.dtype), at_slot)
                    for old, new in zip(kv[:2], (keys, values), strict=True)
                )
            kept = None if cache is None else (keys, values)
            sources = (keys.astype(self.dtype), values.astype(self.dtype))
            seen = windowed(mask, near, slides)
            read = [Source(sources[0], sources[1], seen, causal=causal, segments=numbers)]
            if prefix is not None:
                read.append(Source(kv[2], kv[3], windowed(None, near_prefix, slides), "kth"))
            return self._finish(x, params, lora, angles, read, pick), kept

        pick = None if at is None else lambda a: self._take(a, at)
        kv: Any = None if cache is None else (cache.keys, cache.values)
        if prefix is not None:
            kv = (*kv, prefix.keys, prefix.values)
        x = self.embed(tokens) if embeddings is None else self._placed(jnp.asarray(embeddings, self.dtype))
        x, kept = self._layers_run(body, x, kv, pick)
        if extended is not None:
            extended = dataclasses.replace(extended, keys=kept[0], values=kept[1])
        hidden = rms_norm(x, self._norm["scale"], self.config.rms_norm_eps)
        return LMOutput(self.head(hidden) if logits else None, hidden, extended)

    @tracing.default_types
    def tree(
        self,
        tokens: Int[AnyArray, "B S"],
        lengths: Int[AnyArray, "B"],
        nodes: Sequence[int],
        depths: Sequence[int],
        ancestors: np.ndarray,
        prefix: Sequence[int] = (),
    ) -> Float[Array, "B N D"]:
        """One forward pass over prompts and a tree of `M` continuations, the same tree for every row.

        **Arguments:** `tokens`, right-padded prompts; `lengths`, at least 1; `nodes`, the token of each node of the
        tree; `depths`, from 0; `ancestors`, bool `[M, M]`, whether node i sees node j (itself included); `prefix`,
        tokens before every prompt: computed once, at batch 1; every row reads a copy of its keys and values.
        **Returns:** hidden states of each row's last prompt token and of the nodes.
        """
        prompt, count, before = tokens.shape[1], len(nodes), len(prefix)
        steps = jnp.arange(prompt)
        depth = jnp.asarray(np.asarray(depths, np.int32))
        static = rotations(self.config, before + steps)
        moving = rotations(self.config, before + lengths[:, None] + depth)
        angles: Any = tuple(
            jnp.concatenate([jnp.broadcast_to(s, (m.shape[0], *s.shape)), m], axis=1) if count else s[None]
            for s, m in zip(static, moving, strict=True)
        )
        sees = jnp.concatenate([steps[:, None] >= steps, jnp.ones((count, prompt), bool)], axis=0)
        sees = jnp.concatenate([sees, jnp.asarray(np.vstack([np.zeros((prompt, count), bool), ancestors]))], axis=1)
        real = jnp.concatenate([steps < lengths[:, None], jnp.ones((tokens.shape[0], count), bool)], axis=1)
        mask = sees & real[:, None, :]
        x = self.embed(tokens)
        if count:
            branch = self.embed(jnp.asarray(np.asarray(nodes, np.int32)))
            x = jnp.concatenate([x, jnp.broadcast_to(branch, (x.shape[0], *branch.shape))], axis=1)
        head = self.embed(jnp.asarray(np.asarray([prefix], np.int32))) if before else None
        head_angles = rotations(self.config, jnp.arange(before)[None])
        head_mask = jnp.arange(before)[:, None] >= jnp.arange(before)

        first = jnp.arange(before)[None]
        places = jnp.concatenate(
            [jnp.broadcast_to(before + steps, (tokens.shape[0], prompt)), before + lengths[:, None] + depth], axis=1
        )
        longest = before + prompt + count
        near, near_head = self._near(places, places, longest), self._near(first, first, longest)
        near_prefix = self._near(places, first, longest)

        def pick(a):
            if a.shape[0] == 1:
                a = jnp.broadcast_to(a, (tokens.shape[0], *a.shape[1:]))
            return jnp.concatenate([self._take(a, lengths[:, None] - 1), a[:, prompt:]], axis=1)

        def body(carry, layer, pick):
            x, head = carry
            params, lora, _, slides = layer
            read: Any = (*self._keys_values(x, params, lora, angles), windowed(mask, near, slides))
            if head is not None:
                own = self._keys_values(head, params, lora, head_angles)
                if pick is None:
                    seen = windowed(head_mask, near_head, slides)
                    head = self._finish(head, params, lora, head_angles, [Source(own[0], own[1], seen)], None)
                # one source, although every row then has the prefix: one softmax, and fewer and larger products
                all_see = windowed(jnp.ones((1, 1, before), bool), near_prefix, slides)
                read = tuple(
                    jnp.concatenate([jnp.broadcast_to(o, (*y.shape[:i], before, *y.shape[i + 1 :])), y], axis=i)
                    for o, y, i in zip((*own, all_see), read, (1, 1, 2), strict=True)
                )
            return (self._finish(x, params, lora, angles, [Source(*read)], pick), head), None

        (x, _), _ = self._layers_run(body, (x, head), None, pick, lambda carry: (pick(carry[0]), None))
        return rms_norm(x, self._norm["scale"], self.config.rms_norm_eps)

    def each_layer(self) -> tuple[Any, ...] | None:
        """The weights and adapters of each layer, for `decode` in a loop; None where it reads them from the stack.

        Off CPUs, matrices that read the same input become one, unless they are quantised or their columns are split
        over devices: a token takes fewer and larger products.
        """
        count = self.config.num_hidden_layers
        if not decodes_apart(count):
            return None
        mesh = mesh_of(jax.tree.leaves(self._layers)[0])
        split = mesh is not None and mesh.shape["tensor"] > 1
        layers = [layer_slice((self._layers, self._adapters), i) for i in range(count)]
        if tracing.platform() == "cpu" or split or any_quantized(self._layers):
            return tuple(layers)
        return tuple(self._joined(*layer) for layer in layers)

    @staticmethod
    def _joined(params: Any, lora: Any) -> tuple[Any, Any]:
        lora = lora or {}
        parts = {"self_attn": ATTENDING, "mlp": WIDE}
        pairs = {block: joined(names, params[block], lora.get(block)) for block, names in parts.items()}
        adapters = {block: own for block, (_, own) in pairs.items() if own}
        return {**params, **{block: own for block, (own, _) in pairs.items()}}, {**lora, **adapters} or None

    @tracing.default_types
    def decode(
        self,
        tokens: Int[AnyArray, "B n"],
        branches: Branches,
        embeddings: Float[AnyArray, "B n D"] | None = None,
        layers: tuple[Any, ...] | None = None,
    ) -> tuple[Float[Array, "B n D"], Branches]:
        """One more token of every continuation of every prompt.

        The continuations of a prompt are queries of one attention over its keys, which are read once for all of them.
        The layers are scanned independently of `unroll`, with the cache in the carry: a step writes one slot in place.
        (Unrolled, XLA on a CPU copies each layer's weights out of the stack at every step: half the speed.) If the
        cache has an array for each layer (`decodes_apart`), they are unrolled; `layers` spares them the copies.

        **Arguments:** `embeddings`, what the first layer reads in place of `embed(tokens)`; `layers`, what
        `each_layer` returns, computed outside of the loop over tokens.
        **Returns:** the tokens' hidden states after the last norm, and the branches with them.
        """
        index = branches.index
        prompt, own = map(jnp.arange, branches.capacities)
        prefix = branches.prefix
        first = 0 if prefix is None else prefix.size
        before = first + branches.lengths[:, None]
        angles = rotations(self.config, jnp.broadcast_to(before + index, tokens.shape))
        # All continuations are at the same position: the masks have one query for all of them.
        masks = ((first + prompt < before)[:, None], (own <= index)[None])
        longest = first + prompt.size + own.size
        places = (first + prompt[None], before + own, jnp.arange(first)[None])
        near = [self._near(before + index, keys, longest) for keys in places]
        few = self._few(tokens.size)

        def written(own, key, value, *layer):
            """The cache with a key and a value in it: that of one layer, or the stack, with the number of the layer."""
            if few:
                key, value = (constrain(x, "batch", None, "kv_heads", None) for x in (key, value))
            key, value = (x.reshape(-1, *x.shape[2:]) for x in (key, value))
            if branches.merged:
                new: Any = tuple(x.reshape(len(x), 1, -1) for x in (key, value))
                at: Any = [(*layer, 0, index, 0)] * 2
            else:
                new, at = (key[..., None], value[:, :, None]), ((*layer, 0, 0, 0, index), (*layer, 0, 0, index, 0))
            new = tuple(n[None] for n in new) if layer else new
            pair = [
                jax.lax.dynamic_update_slice(old, n.astype(old.dtype), start)
                for old, n, start in zip(own, new, at, strict=True)
            ]
            if not branches.merged:
                return pair
            # Else a TPU's compiler makes tokens the first axis, and transposes the cache for every product.
            return [on_each_device(as_it_is, [(None, "batch")], (None, "batch"))(x) for x in pair]

        def finish(x, params, lora, prompts, slides, keys, values, query=None):
            seen = [windowed(m, n, slides) for m, n in zip((*masks, None), near, strict=True)]
            orders = ("btc", "btc"), ("rtc", "rtc")
            orders = orders if branches.merged else (("bkth", "bkht"), ("rkth", "rkht"))
            sources = [Source(prompts[0], prompts[1], seen[0], *orders[0]), Source(keys, values, seen[1], *orders[1])]
            if prefix is not None:
                sources.append(Source(prompts[2], prompts[3], seen[2], "kth"))
            return self._finish(x, params, lora, angles, sources, None, query, few)

        def step(carry, layer):
            x, *own = carry
            i, params, lora, prompts, slides = layer
            own = written(own, *self._keys_values(x, params, lora, angles), i)
            keys, values = (jax.lax.dynamic_index_in_dim(o, i, keepdims=False) for o in own)
            return (finish(x, params, lora, prompts, slides, keys, values), *own), None

        shared = () if prefix is None else (prefix.keys, prefix.values)
        x = self.embed(tokens) if embeddings is None else jnp.asarray(embeddings, self.dtype)
        x = self._placed(x, few)
        keys, values = branches.keys, branches.values
        if branches.apart:
            pairs = []
            weights: Any = layers or self.each_layer()
            for i, pair in enumerate(zip(keys, values, strict=True)):
                (params, lora), behind, slides = weights[i], layer_slice(shared, i), layer_slice(self._slides, i)
                query, key, value = self._read(x, params, lora, angles)
                new = written(pair, key, value)
                pairs.append(new)
                prompts = (branches.prompt_keys[i], branches.prompt_values[i], *behind)
                x = finish(x, params, lora, prompts, slides, new[0], new[1], query)
            keys, values = map(tuple, zip(*pairs, strict=True))
        else:
            prompts = (branches.prompt_keys, branches.prompt_values, *shared)
            count = jnp.arange(self.config.num_hidden_layers)
            scanned = (count, self._layers, self._adapters, prompts, self._slides)
            (x, keys, values), _ = tracing.scan(step, (x, keys, values), scanned)
        hidden = rms_norm(x, self._norm["scale"], self.config.rms_norm_eps)
        return hidden, dataclasses.replace(branches, keys=keys, values=values, index=index + 1)

    @tracing.default_types
    def head(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b V"]:
        """Logits of hidden states, float32."""
        tied = self.config.tie_word_embeddings
        kernel = self._embed_tokens["embedding"] if tied else self._lm_head["kernel"]
        if isinstance(kernel, Quantized):
            return matmul(hidden.astype(self.precision), kernel, jnp.float32)
        if self.factors is not None and self.factors != self.dtype:
            product = narrow.with_rows if tied else narrow.with_columns
            return product(self.factors, hidden, jnp.asarray(kernel))
        kernel = kernel.astype(self.dtype)
        if tied:
            return jnp.einsum("...d,vd->...v", hidden, kernel, preferred_element_type=jnp.float32)
        return jnp.einsum("...d,dv->...v", hidden, kernel, preferred_element_type=jnp.float32)

    @tracing.default_types
    def embed(self, tokens: Int[AnyArray, "*b"]) -> Float[Array, "*b D"]:
        """The embeddings of tokens."""
        return self._placed(jnp.asarray(self._embed_tokens["embedding"])[tokens].astype(self.dtype))

    @staticmethod
    def _placed(x: jax.Array, few: bool = False) -> jax.Array:
        """The residual stream: rows over devices, or, for few rows, its numbers over those that split the weights."""
        if x.ndim != 3:
            return x
        return constrain(x, "few", None, "embed") if few else constrain(x, "batch", None, None)

    def _few(self, tokens: int) -> bool:
        """Whether so many tokens, the activations of a step, are smaller than the weights that `fsdp` splits."""
        return 2 * tokens < self.config.hidden_size

    @staticmethod
    def _take(x: jax.Array, at: Int[AnyArray, "B N"]) -> jax.Array:
        if x.shape[0] == 1:
            x = jnp.broadcast_to(x, (at.shape[0], *x.shape[1:]))
        return jnp.take_along_axis(x, at.reshape(at.shape + (1,) * (x.ndim - 2)), axis=1)

    def _near(self, queries: AnyArray, keys: AnyArray, longest: int | None = None) -> jax.Array | None:
        """The keys within the window; None if there is no window, or if `longest` tokens fit into it."""
        window = self.config.sliding_window
        if window is None or (longest is not None and longest <= window):
            return None
        return within(window, queries, keys)

    @property
    def _slides(self) -> np.ndarray | None:
        """Whether the window applies to each layer; None if it applies to all or there is none."""
        return None if self.config.sliding_layers is None else np.array(self.config.sliding_layers)

    @property
    def precision(self) -> Any:
        """The dtype of the factors of products with weights."""
        return self.factors or self.dtype

    @property
    def _scale(self) -> float:
        return self.lora.scale if self.lora is not None else 0.0

    def _keys_values(self, x, params, lora, angles: Angles):
        own = (lora or {}).get("self_attn")
        x = rms_norm(x, params["input_layernorm"]["scale"], self.config.rms_norm_eps)
        keys, values = projections(x, ("k_proj", "v_proj"), params["self_attn"], own, self._scale, factors=self.factors)
        return rotate(self._normed(keys, params, "k_norm"), *angles), values

    def _read(self, x, params, lora, angles: Angles):
        """The queries (None: `_finish` computes them), keys and values of a layer, whose matrices may be `joined`."""
        block, name = params["self_attn"], join(ATTENDING)
        if name not in block:
            return None, *self._keys_values(x, params, lora, angles)
        own, size = (lora or {}).get("self_attn"), self.config.size
        x = rms_norm(x, params["input_layernorm"]["scale"], self.config.rms_norm_eps)
        heads = project(x, name, block, own, self._scale, factors=self.factors)
        heads = heads.reshape(*heads.shape[:-1], -1, size)
        count, kv = self.config.num_attention_heads, self.config.kv_heads
        query, key, value = jnp.split(heads, (count, count + kv), -2)
        query, key = self._normed(query, params, "q_norm"), self._normed(key, params, "k_norm")
        return rotate(query, *angles), rotate(key, *angles), value

    def _normed(self, heads: jax.Array, params: Any, name: str) -> jax.Array:
        """Queries or keys after Qwen3's norm of each head; unchanged in other families."""
        if not self.config.qk_norm:
            return heads
        return rms_norm(heads, params["self_attn"][name]["scale"], self.config.rms_norm_eps)

    def _finish(
        self, x, params, lora, angles: Angles, sources: list[Source], pick: Callable | None, query=None, few=False
    ):
        """The rest of a layer, for all its tokens or for those that `pick` selects along axis 1."""
        if pick is not None:
            x, angles = pick(x), (pick(angles[0]), pick(angles[1]))
            sources = [s.dense() for s in sources]
            masks = [s.mask if s.mask is None or s.mask.ndim == 3 else s.mask[None] for s in sources]
            masks = [m if m is None else pick(m) for m in masks]
            sources = [s._replace(mask=m) for s, m in zip(sources, masks, strict=True)]
        own, eps = lora or {}, self.config.rms_norm_eps
        block, adapters = params["self_attn"], own.get("self_attn")
        if query is None:
            normed = rms_norm(x, params["input_layernorm"]["scale"], eps)
            query = project(normed, "q_proj", block, adapters, self._scale, factors=self.factors)
            query = rotate(self._normed(query, params, "q_norm"), *angles)
        if few:
            query = constrain(query, "batch", None, "heads", None)
        out = attend(query, sources, self.attention)
        if few:
            out = constrain(out, "few", None, "heads", None)
        x = x + project(out, "o_proj", block, adapters, self._scale, 2, self.factors)
        normed = rms_norm(x, params["post_attention_layernorm"]["scale"], eps)
        wide = gated_mlp(normed, params["mlp"], own.get("mlp"), self._scale, self.factors)
        return self._placed(x + wide, few)

    @property
    def _layer_axes(self) -> Any:
        """The logical axes of the weights and adapters of one layer."""
        axes = {name: tree["layers"] for name, tree in self.logical_axes().items()}
        of_weights = quantized_axes(axes["params"], unfreeze(self._layers))
        stacked = [of_weights, None if self._adapters is None else axes["lora"]]
        return jax.tree.map(lambda names: names[1:], stacked, is_leaf=lambda x: isinstance(x, tuple))

    def _layers_run(self, body, carry, kv, pick, pick_carry=None):
        """Run `body(carry, (params, lora, kv, slides), pick)` over the layers; `slides`, if layers differ in it, is
        whether the window applies to a layer.

        If the layers are unrolled, the last one gets `pick` and computes only the selected tokens; a scan, whose steps
        have the same shape, computes all and selects afterwards (slicing off the last layer would copy the weights).
        """
        count = self.config.num_hidden_layers
        stacked = (self._layers, self._adapters, kv, self._slides)
        written = self.unroll >= count if self.unroll is not None else count <= UNROLLED

        def layered(carry, layer, pick):
            tokens = math.prod(jax.tree.leaves(carry)[0].shape[:-1])
            if not self._few(tokens):
                layer = (*gathered(layer[:2], self._layer_axes), *layer[2:])
            return body(carry, layer, pick)

        def step(pick=None):
            run = partial(layered, pick=pick)
            if self.remat:
                return jax.checkpoint(run, prevent_cse=written)
            return jax.checkpoint(run, prevent_cse=False, policy=KEEP)

        if not written:
            carry, kept = tracing.scan(step(), carry, stacked, unroll=self.unroll or 1)
            return (carry if pick is None else (pick_carry or pick)(carry)), kept
        outs = []
        for i in range(count):
            carry, out = step(pick if i == count - 1 else None)(carry, layer_slice(stacked, i))
            outs.append(out)
        return carry, (None if kv is None else jax.tree.map(lambda *a: jnp.stack(a), *outs))
