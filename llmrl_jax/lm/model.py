"""`Llama`: the language model, a flax module around a scan over stacked layers; `ValueHead`, a critic on its states."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import unfreeze
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from envs_jax import tracing
from llmrl_jax.core.draw import draw
from llmrl_jax.kernels.attention import SAVE_PRODUCTS, Attention, KeyValues, Mask, attend, check_attention, in_window
from llmrl_jax.kernels.lora_matmul import rounded_matmul, rounded_matmul_transposed
from llmrl_jax.lm import declare
from llmrl_jax.lm.cache import UNROLLED, Cache, DecodeState, Prefix, Reading, Slots, decodes_per_layer
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.layers import AnyArray, Block, Layer, join_layer, layer_slice, place_residual, rms_norm
from llmrl_jax.lm.lora import LoRAConfig, rescale
from llmrl_jax.lm.quantize import Quantized, any_quantized, check_shapes, logical_axes as quantized_axes, matmul
from llmrl_jax.lm.rope import rotations
from llmrl_jax.parallel.partition import constrain, gathered, mesh_of, shardings


@struct.dataclass
class LMOutput:
    """Output of a forward pass, for `N` of `S` tokens (`N = S` without `at`)."""

    logits: Float[Array, "B N V"] | None
    """float32; None if not requested."""
    hidden: Float[Array, "B N D"]
    """Hidden states after the last norm."""
    cache: Cache | None = None


class Llama(nn.Module):
    """Llama with optional adapters.

    Collections: `params`, the base; `lora`, adapters in float32, made by `init` if `lora` is set. In `apply` the
    adapters are off unless their collection is given, so base and adapted policy share one set of weights.

    The layers are stacked, each leaf `[L, ...]`, and run in a `jax.lax.scan`, or unrolled if there are few. (A plain
    scan over a declared tree, not `nn.scan`, so that the last layer can compute only the requested positions.)

    Called on `tokens`, int32 `[B, S]`, it returns an `LMOutput`: `logits`, float32 `[B, S, V]`, and the last layer's
    `hidden`, `[B, S, D]`. Initial weights are normal, with the deviation `config.initializer_range`.

    **Example:**

    ```pycon
    >>> import jax, jax.numpy as jnp, llmrl_jax as lr
    >>> config = lr.LlamaConfig(16, 32, 48, 2, 4, max_position_embeddings=64)
    >>> model = lr.Llama(config, lora=lr.LoRAConfig(rank=4))
    >>> variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    >>> sorted(variables), jax.jit(model.apply)(variables, jnp.ones((2, 5), jnp.int32)).logits.shape
    (['lora', 'params'], (2, 5, 16))
    ```
    """

    config: LlamaConfig
    lora: LoRAConfig | None = None
    dtype: Any = jnp.float32
    """Dtype of the computation; norms, softmax, rotations and logits are always float32."""
    matmul_dtype: Any = None
    """Dtype to which activations and weights are rounded for the products of the two, whose sums are float32. None:
    `dtype`. Attention's products are in `dtype`."""
    param_dtype: Any = jnp.float32
    remat: bool = False
    """Recompute each layer's activations in the backward pass: less memory, a third more time."""
    unroll: int | None = None
    """Layers per step of the scan. The number of layers or more unrolls it fully; None does so for up to 4 layers."""
    attention: Attention = "auto"
    """Implementation of attention: see `llmrl_jax.kernels.attention`."""

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
            check_shapes(self._adapters, declare.declare_lora(self.config, self.lora)["layers"], "lora/layers")
            self._adapters = rescale(self._adapters, self.lora)

    def declared(self) -> dict[str, declare.Tree]:
        """Declaration of every parameter, by collection."""
        trees = {"params": declare.declare(self.config)}
        if self.lora is not None:
            trees["lora"] = declare.declare_lora(self.config, self.lora)
        return trees

    def logical_axes(self) -> dict[str, declare.Tree]:
        """Logical axes of every parameter, by collection, for `llmrl_jax.parallel.shardings`."""
        return {name: declare.axes(tree) for name, tree in self.declared().items()}

    def abstract(self) -> dict[str, declare.Tree]:
        """Shape and dtype of every parameter, by collection, without allocating any."""
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
        longest: int | None = None,
        cache: Cache | int | None = None,
        prefix: Prefix | None = None,
        at: Int[AnyArray, "B N"] | None = None,
        logits: bool = True,
        embeddings: Float[AnyArray, "B S D"] | None = None,
    ) -> LMOutput:
        """One forward pass. Padding is defined by `lengths` or `positions`, never by a token's id.

        **Arguments:** `tokens`; `lengths`, of right-padded rows; or `positions`, for any padding, with -1 at pads;
        neither means full rows from position 0 (or after the tokens in the `cache`); `segments`, with `positions`:
        tokens attend only to those of their own segment, so that a row may hold several texts, whose positions rise;
        `longest`, the most tokens of a segment, a promise by which short texts in long rows cost less; `cache`, to
        read and extend, or an `int`, the number of slots of a new one, where rows are full or have `lengths`; `prefix`,
        with a cache: tokens before all rows, which positions do not count; `at`, indices in
        `[0, S)` of the tokens whose hidden states and logits are returned; `logits`, whether to compute them;
        `embeddings`, read by the first layer in place of `embed(tokens)`, so that a position can hold something else
        than a token.
        **Returns:** `LMOutput`. States of padded tokens are undefined.
        **Raises:** `ValueError` for arguments that exclude each other, and what `Cache.append` raises.
        """
        if lengths is not None and positions is not None:
            raise ValueError("give lengths or positions, not both")
        if segments is not None and (positions is None or cache is not None):
            raise ValueError("segments need positions, which restart in every segment, and no cache")
        if prefix is not None and cache is None:
            raise ValueError("a prefix needs a cache; cache=T makes a new one of T slots")
        steps = jnp.arange(tokens.shape[1])
        extended = None
        key_positions: Any = positions
        if isinstance(cache, int):
            if positions is not None:
                raise ValueError("rows of a new cache are padded on the right: give lengths, not positions")
            real = steps < (tokens.shape[1] if lengths is None else jnp.asarray(lengths)[:, None])
            placed = jnp.broadcast_to(jnp.where(real, steps, -1), tokens.shape)
            extended = Cache.create(self.config, len(tokens), cache, self.dtype).append(placed)
        elif cache is not None:
            if positions is None:
                positions = cache.lengths()[:, None] + steps
                positions = positions if lengths is None else jnp.where(steps < lengths[:, None], positions, -1)
            extended = cache.append(positions)
            key_positions = extended.positions
        query_positions: Any = steps[None] if positions is None else positions
        if positions is None:
            # Padding is on the right, so a causal mask hides it from every token.
            mask = self._mask(None, query_positions, query_positions, tokens.shape[1])
            mask = mask if mask.in_window is None else mask._replace(visible=steps[:, None] >= steps)
        else:
            visible = (key_positions[:, None] >= 0) & (key_positions[:, None] <= positions[:, :, None])
            if segments is not None:
                visible &= jnp.asarray(segments)[:, None] == jnp.asarray(segments)[:, :, None]
            mask = self._mask(visible, query_positions, key_positions)
        causal = positions is None or segments is not None
        if segments is not None and mask.in_window is None:
            segments = jnp.where(jnp.asarray(positions) >= 0, jnp.asarray(segments), -1)
        else:
            segments = longest = None  # fused kernels and blocks know no window
        prefix_size = 0 if prefix is None else prefix.size
        rotated = query_positions
        if self.config.rope.type == "dynamic" and positions is None and lengths is not None:
            rotated = jnp.where(steps < jnp.asarray(lengths)[:, None], steps, -1)  # a row's own length counts
        angles = rotations(self.config, prefix_size + rotated)
        prefix_mask = self._mask(None, prefix_size + query_positions, jnp.arange(prefix_size)[None])
        block = self._block

        def body(x, _, layer, select):
            key, value = block.key_value(x, layer, angles)
            kv = None
            if isinstance(cache, Cache):
                kv = key, value = cache.write(layer.kv[:2], key, value)
            elif cache is not None:
                kv = tuple(jnp.pad(a, ((0, 0), (0, cache - a.shape[1]), (0, 0), (0, 0))) for a in (key, value))
            key, value = key.astype(self.dtype), value.astype(self.dtype)
            layer_mask = mask.of_layer(layer.has_window)
            sources = [KeyValues(key, value, layer_mask, causal=causal, segments=segments, longest=longest)]
            if prefix is not None:
                shared = layer.kv[-2:]
                sources.append(KeyValues(shared[0], shared[1], prefix_mask.of_layer(layer.has_window), "kth"))
            return block(x, layer, angles, sources, select), None, kv

        kv: Any = (cache.keys, cache.values) if isinstance(cache, Cache) else ()
        if prefix is not None:
            kv = (*kv, prefix.keys, prefix.values)
        x = self.embed(tokens) if embeddings is None else place_residual(jnp.asarray(embeddings, self.dtype))
        x, kv = self._run_layers(body, x, None, kv, None if at is None else lambda a: _take(a, at))
        if extended is not None:
            extended = dataclasses.replace(extended, keys=kv[0], values=kv[1])
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
        """Forward pass over prompts and a tree of `M` continuations, the same tree for every row.

        **Arguments:** `tokens`, right-padded prompts; `lengths`, at least 1; `nodes`, the token of each node of the
        tree; `depths`, from 0; `ancestors`, bool `[M, M]`, whether node i sees node j (itself included); `prefix`,
        tokens before every prompt: computed once, at batch 1; every row reads a copy of its keys and values.
        **Returns:** hidden states of each row's last prompt token and of the nodes.
        """
        (batch, prompt), count, prefix_size = tokens.shape, len(nodes), len(prefix)
        steps, prefix_positions = jnp.arange(prompt), jnp.arange(prefix_size)[None]
        node_positions = prefix_size + lengths[:, None] + jnp.asarray(np.asarray(depths, np.int32))
        angles: Any = tuple(
            jnp.concatenate([jnp.broadcast_to(p, (n.shape[0], *p.shape)), n], axis=1) if count else p[None]
            for p, n in zip(
                rotations(self.config, prefix_size + steps), rotations(self.config, node_positions), strict=True
            )
        )
        visible = jnp.concatenate([steps[:, None] >= steps, jnp.ones((count, prompt), bool)], axis=0)
        node_mask = jnp.asarray(np.vstack([np.zeros((prompt, count), bool), ancestors]))
        visible = jnp.concatenate([visible, node_mask], axis=1)
        valid = jnp.concatenate([steps < lengths[:, None], jnp.ones((batch, count), bool)], axis=1)
        visible = visible & valid[:, None, :]
        x = self.embed(tokens)
        if count:
            branch = self.embed(jnp.asarray(np.asarray(nodes, np.int32)))
            x = jnp.concatenate([x, jnp.broadcast_to(branch, (batch, *branch.shape))], axis=1)
        head = self.embed(jnp.asarray(np.asarray([prefix], np.int32))) if prefix_size else None
        head_angles = rotations(self.config, prefix_positions)
        causal = prefix_positions[0][:, None] >= prefix_positions[0]
        positions = jnp.concatenate([jnp.broadcast_to(prefix_size + steps, (batch, prompt)), node_positions], axis=1)
        longest, block = prefix_size + prompt + count, self._block
        mask = self._mask(visible, positions, positions, longest)
        head_mask = self._mask(causal, prefix_positions, prefix_positions, longest)
        prefix_mask = self._mask(jnp.ones((1, 1, prefix_size), bool), positions, prefix_positions, longest)

        def select(a):
            if a.shape[0] == 1:
                a = jnp.broadcast_to(a, (batch, *a.shape[1:]))
            return jnp.concatenate([_take(a, lengths[:, None] - 1), a[:, prompt:]], axis=1)

        def body(x, head, layer, select):
            source: Any = (*block.key_value(x, layer, angles), mask.of_layer(layer.has_window))
            if head is not None:
                key, value = block.key_value(head, layer, head_angles)
                if select is None:
                    head_source = KeyValues(key, value, head_mask.of_layer(layer.has_window))
                    head = block(head, layer, head_angles, [head_source])
                # one source, although every row then has the prefix: one softmax, and fewer and larger products
                shared: Any = (key, value, prefix_mask.of_layer(layer.has_window))
                source = tuple(
                    jnp.concatenate([jnp.broadcast_to(s, (*y.shape[:i], prefix_size, *y.shape[i + 1 :])), y], axis=i)
                    for s, y, i in zip(shared, source, (1, 1, 2), strict=True)
                )
            return block(x, layer, angles, [KeyValues(*source)], select), head, None

        x, _ = self._run_layers(body, x, head, None, select)
        return rms_norm(x, self._norm["scale"], self.config.rms_norm_eps)

    def unstacked_weights(self) -> tuple[Any, ...] | None:
        """Weights and adapters of each layer, for `decode` and `extend` in a loop; None where these read the stack.

        Off CPUs, matrices that read the same input become one, unless they are quantised or their columns are split
        over devices: a token takes fewer and larger products.
        """
        count = self.config.num_hidden_layers
        if not decodes_per_layer(count):
            return None
        mesh = mesh_of(jax.tree.leaves(self._layers)[0])
        split = mesh is not None and mesh.shape["tensor"] > 1
        layers = [layer_slice((self._layers, self._adapters), i) for i in range(count)]
        if tracing.platform() == "cpu" or split or any_quantized(self._layers):
            return tuple(layers)
        return tuple(join_layer(*layer) for layer in layers)

    @tracing.default_types
    def decode(
        self,
        tokens: Int[AnyArray, "B n"],
        state: DecodeState,
        embeddings: Float[AnyArray, "B n D"] | None = None,
        layers: tuple[Any, ...] | None = None,
    ) -> tuple[Float[Array, "B n D"], DecodeState]:
        """Forward pass over one more token of every continuation of every prompt.

        The continuations of a prompt are queries of one attention over its keys, which are read once for all of them.
        The layers are scanned independently of `unroll`, with the cache in the carry: a step writes one slot in place.
        (Unrolled, XLA on a CPU copies each layer's weights out of the stack at every step: half the speed.) If the
        state has an array for each layer (`decodes_per_layer`), they are unrolled; `layers` spares them the copies.

        **Arguments:** `embeddings`, read by the first layer in place of `embed(tokens)`; `layers`, the
        result of `unstacked_weights`, computed outside of the loop over tokens.
        **Returns:** the tokens' hidden states after the last norm, and the state with them.
        """
        index, prefix, block = state.index, state.prefix, self._block
        prompt, generated = map(jnp.arange, state.capacities)
        prefix_size = 0 if prefix is None else prefix.size
        start = prefix_size + state.lengths[:, None]
        in_prompt, in_continuation = prefix_size + prompt < start, generated <= index
        angles = rotations(self.config, jnp.broadcast_to(start + index, tokens.shape))
        # All continuations are at the same position: the masks have one query for all of them.
        longest = prefix_size + prompt.size + generated.size
        masks = [
            self._mask(visible, start + index, key_positions, longest)
            for visible, key_positions in (
                (in_prompt[:, None], prefix_size + prompt[None]),
                (in_continuation[None, None], start + generated),
                (None, jnp.arange(prefix_size)[None]),
            )
        ]
        few_tokens = self._is_few(tokens.size)

        def run(x, layer, pair, *number):
            """A layer, whose `kv` are those of prompts and prefix; `pair` as in `DecodeState.write`."""
            query, key, value = block.query_key_value(x, layer, angles)
            if few_tokens:
                key, value = (constrain(a, "batch", None, "kv_heads", None) for a in (key, value))
            pair = state.write(pair, key, value, *number)
            read = [jax.lax.dynamic_index_in_dim(a, *number, keepdims=False) for a in pair] if number else pair
            sources = state.key_values(layer.kv, read, [mask.of_layer(layer.has_window) for mask in masks])
            return block(x, layer, angles, sources, query=query, few_tokens=few_tokens), pair

        shared = () if prefix is None else (prefix.keys, prefix.values)
        x = self.embed(tokens) if embeddings is None else jnp.asarray(embeddings, self.dtype)
        x = place_residual(x, few_tokens)
        kv = (state.prompt_keys, state.prompt_values, *shared)
        x, (keys, values) = self._cached_layers(run, x, (state.keys, state.values), layers, kv)
        hidden = rms_norm(x, self._norm["scale"], self.config.rms_norm_eps)
        return hidden, dataclasses.replace(state, keys=keys, values=values, index=index + 1)

    @tracing.default_types
    def extend(
        self,
        tokens: Int[AnyArray, "R M"],
        slots: Slots,
        position: Int[AnyArray, "R G"],
        read: Reading,
        layers: tuple[Any, ...] | None = None,
    ) -> tuple[Float[Array, "R M D"], Slots]:
        """Forward pass over one more token of every row, and more of some rows of each group: one product with each
        matrix for all of them.

        **Arguments:** `tokens`, those of `R` groups of `G` successive rows of `slots`, and then those of the rows that
        `read` names, padded at the end; `position`, of the rows' own tokens. What is written later at a position is
        what is seen there: where a row has no token, one may be given that is written over. `layers`, as of `decode`.
        **Returns:** the tokens' hidden states after the last norm, and the slots with them.
        """
        (groups, size), block = position.shape, self._block
        position, read = jnp.asarray(position), Reading(*map(jnp.asarray, read))
        reader, index = read.order(tokens.shape[1] - size)
        many = jnp.take_along_axis(read.start, reader, axis=1) + index
        positions = jnp.concatenate([position, many], axis=1)
        angles = rotations(self.config, positions)
        places, slots = slots.places(position, read)
        of_rows = [self._mask(mask, position.reshape(-1, 1), at, slots.capacity) for mask, at in slots.visible(places)]
        # a token sees the slots of its own row, of the slots of all rows that read, one after the other
        in_slots, first = jnp.arange(read.row.shape[1] * slots.capacity), (reader * slots.capacity)[..., None]
        visible = (in_slots >= first) & (in_slots <= first + many[..., None])
        of_readers = self._mask(visible, many, (in_slots % slots.capacity)[None], slots.capacity)
        few_tokens = self._is_few(tokens.size)

        def run(x, layer, arrays, *number):
            query, *new = block.query_key_value(x, layer, angles)
            if few_tokens:
                new = [constrain(a, "batch", None, "kv_heads", None) for a in new]
            arrays = slots.write(arrays, *new, places, *number)
            single = slots.of_rows(arrays, [mask.of_layer(layer.has_window) for mask in of_rows], *number)
            heads = new[0].shape[2]
            several = slots.of_readers(arrays, of_readers.of_layer(layer.has_window), read, heads, *number)

            def attended(query):
                outputs = attend(query[:, :size].reshape(-1, 1, *query.shape[2:]), single)
                return jnp.concatenate(
                    [outputs.reshape(groups, size, *query.shape[2:]), attend(query[:, size:], several)], axis=1
                )

            return block(x, layer, angles, attended, query=query, few_tokens=few_tokens), arrays

        x = place_residual(self.embed(tokens), few_tokens)
        x, arrays = self._cached_layers(run, x, slots.arrays, layers)
        hidden = rms_norm(x, self._norm["scale"], self.config.rms_norm_eps)
        return hidden, slots.replace(keys=arrays[0], values=arrays[1], recent=tuple(arrays[2:]))

    def _cached_layers(
        self, run: Callable, x: jax.Array, arrays: Sequence[Any], layers: tuple[Any, ...] | None, kv: Sequence = ()
    ) -> tuple[jax.Array, Sequence[Any]]:
        """`run(x, layer, arrays, *number) -> (x, arrays)` over the layers, each with its keys and values: unrolled if
        these are arrays of each layer, else a scan with all of them in its carry, so that a step writes in place.

        **Arguments:** `layers`, the result of `unstacked_weights`; `kv`, further arrays of each layer, for `Layer.kv`.
        """
        if isinstance(arrays[0], tuple):
            written, weights = [], layers or self.unstacked_weights()
            assert weights is not None
            for i, of_layer in enumerate(zip(*arrays, strict=True)):
                (params, lora), has_window = weights[i], layer_slice(self._has_window, i)
                x, of_layer = run(x, Layer(params, lora, tuple(a[i] for a in kv), has_window), of_layer)
                written.append(of_layer)
            return x, [*zip(*written, strict=True)]

        def step(carry, scanned):
            (x, *arrays), (number, layer) = carry, scanned
            x, arrays = run(x, layer, arrays, number)
            return (x, *arrays), None

        stacked = Layer(self._layers, self._adapters, tuple(kv), self._has_window)
        (x, *arrays), _ = tracing.scan(step, (x, *arrays), (jnp.arange(self.config.num_hidden_layers), stacked))
        return x, arrays

    @tracing.default_types
    def head(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b V"]:
        """Logits of hidden states, float32."""
        tied = self.config.tie_word_embeddings
        kernel = self._embed_tokens["embedding"] if tied else self._lm_head["kernel"]
        if isinstance(kernel, Quantized):
            return matmul(hidden.astype(self.precision), kernel, jnp.float32)
        if self.matmul_dtype is not None and self.matmul_dtype != self.dtype:
            product = rounded_matmul_transposed if tied else rounded_matmul
            return product(self.matmul_dtype, hidden, jnp.asarray(kernel))
        kernel = kernel.astype(self.dtype)
        if tied:
            return jnp.einsum("...d,vd->...v", hidden, kernel, preferred_element_type=jnp.float32)
        return jnp.einsum("...d,dv->...v", hidden, kernel, preferred_element_type=jnp.float32)

    @tracing.default_types
    def embed(self, tokens: Int[AnyArray, "*b"]) -> Float[Array, "*b D"]:
        """Embeddings of tokens."""
        return place_residual(jnp.asarray(self._embed_tokens["embedding"])[tokens].astype(self.dtype))

    @property
    def precision(self) -> Any:
        """Dtype of the factors of products with weights."""
        return self.matmul_dtype or self.dtype

    @property
    def _block(self) -> Block:
        scale = self.lora.scale if self.lora is not None else 0.0
        return Block(self.config, scale, self.matmul_dtype, self.attention)

    def _is_few(self, tokens: int) -> bool:
        """Return whether so many tokens, the activations of a step, are smaller than the weights that `fsdp` splits."""
        return 2 * tokens < self.config.hidden_size

    def _mask(self, visible: Any, queries: AnyArray, keys: AnyArray, longest: int | None = None) -> Mask:
        """The mask of queries and keys at positions `[b, q]` and `[c, t]`. Nothing is outside of the window if there is
        none, or if `longest` tokens fit into it."""
        window = self.config.sliding_window
        if window is None or (longest is not None and longest <= window):
            return Mask(visible)
        return Mask(visible, in_window(window, queries, keys))

    @property
    def _has_window(self) -> np.ndarray | None:
        """Return whether the window applies to each layer; None if it applies to all or there is none."""
        return None if self.config.sliding_layers is None else np.array(self.config.sliding_layers)

    @property
    def _layer_axes(self) -> Any:
        """The logical axes of the weights and adapters of one layer."""
        axes = {name: tree["layers"] for name, tree in self.logical_axes().items()}
        weight_axes = quantized_axes(axes["params"], unfreeze(self._layers))
        stacked = [weight_axes, None if self._adapters is None else axes["lora"]]
        return jax.tree.map(lambda names: names[1:], stacked, is_leaf=lambda x: isinstance(x, tuple))

    def _run_layers(
        self, body: Callable, x: jax.Array, prefix: jax.Array | None, kv: Any, select: Callable | None
    ) -> tuple[jax.Array, Any]:
        """Run `body(x, prefix, layer, select) -> (x, prefix, kv)` over the layers.

        If the layers are unrolled, the last one gets `select` and computes only the selected tokens; a scan, whose
        steps have the same shape, computes all and selects afterwards (slicing off the last layer would copy the
        weights).

        **Arguments:** `x`, and `prefix`, tokens before it, the residual streams; `kv`, stacked, the layers' `Layer.kv`;
        `select`, see `Block`.
        **Returns:** `x` after the last layer, and what the layers return as `kv`, stacked.
        """
        count = self.config.num_hidden_layers
        stacked = Layer(self._layers, self._adapters, kv, self._has_window)
        unrolled = self.unroll >= count if self.unroll is not None else count <= UNROLLED

        def run(carry, layer, select):
            x, prefix = carry
            if not self._is_few(math.prod(x.shape[:-1])):
                layer = Layer(*gathered(layer[:2], self._layer_axes), *layer[2:])
            x, prefix, kv = body(x, prefix, layer, select)
            return (x, prefix), kv

        def step(select=None):
            function = partial(run, select=select)
            if self.remat:
                return jax.checkpoint(function, prevent_cse=unrolled)
            return jax.checkpoint(function, prevent_cse=False, policy=SAVE_PRODUCTS)

        carry = (x, prefix)
        if not unrolled:
            (x, _), kv = tracing.scan(step(), carry, stacked, unroll=self.unroll or 1)
            return (x if select is None else select(x)), kv
        outputs = []
        for i in range(count):
            carry, output = step(select if i == count - 1 else None)(carry, layer_slice(stacked, i))
            outputs.append(output)
        return carry[0], (None if kv is None else jax.tree.map(lambda *a: jnp.stack(a), *outputs))


def _take(x: jax.Array, indices: Int[AnyArray, "B N"]) -> jax.Array:
    """The tokens at indices of each row, along axis 1; `x` may have one row for all."""
    if x.shape[0] == 1:
        x = jnp.broadcast_to(x, (indices.shape[0], *x.shape[1:]))
    return jnp.take_along_axis(x, indices.reshape(indices.shape + (1,) * (x.ndim - 2)), axis=1)


def random_params(model: Llama, mesh: Mesh | None, key: jax.Array, collection: str = "params") -> Any:
    """Randomly initialised parameters or adapters (`collection` lora) of a model, sharded over the mesh."""
    out = None
    if mesh is not None:
        out = shardings(model.abstract()[collection], model.logical_axes()[collection], mesh)
    return draw(model, key, jnp.zeros((1, 1), jnp.int32), collection=collection, out_shardings=out)


def hidden_layers(x: jax.Array, width: int, activation: str, param_dtype: Any = jnp.float32) -> jax.Array:
    """Two hidden layers in float32, `hidden_1` and `hidden_2` of the module that is called."""
    x = x.astype(jnp.float32)
    for name in ("hidden_1", "hidden_2"):
        x = getattr(nn, activation)(nn.Dense(width, name=name, param_dtype=param_dtype)(x))
    return x


class ValueHead(nn.Module):
    """MLP of two hidden layers and a scalar output; with sigmoids, GLAM's critic (2302.02662).

    Computed in float32 for any input dtype; weights have flax's default initialisation (LeCun normal), biases are zero.
    Two sigmoid layers reduce variation a hundredfold, so that such a critic learns slowly; `relu` does not.

    **Returns:** from `hidden`, `[*b, D]`, the values, float32 `[*b]`.

    **Example:**

    ```pycon
    >>> import jax, jax.numpy as jnp, llmrl_jax as lr
    >>> head = lr.ValueHead(width=16, activation="relu")
    >>> value, _ = head.init_with_output(jax.random.key(0), jnp.ones((3, 32)))
    >>> value.shape
    (3,)
    ```
    """

    width: int = 1024
    """Units of each of the two layers."""
    activation: Literal["sigmoid", "relu", "tanh"] = "sigmoid"
    """Activation of the hidden layers."""
    starts_at_zero: bool = False
    """Whether the first values are 0. Differences of random ones are advantages that mean nothing, of every token."""
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b"]:
        """The value of each state."""
        x = hidden_layers(hidden, self.width, self.activation, self.param_dtype)
        init = nn.initializers.zeros if self.starts_at_zero else nn.linear.default_kernel_init
        return nn.Dense(1, name="value", kernel_init=init, param_dtype=self.param_dtype)(x)[..., 0]
