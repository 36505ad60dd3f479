"""The forms of attention agree, in values and gradients, and say what they cannot compute."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.tracing import tracing_for
from llmrl_jax import lm
from llmrl_jax.kernels import attention
from llmrl_jax.kernels.attention import KeyValues, Mask, attend, attention_reference


CONFIG = lm.LlamaConfig(40, 16, 24, 2, 4, 2, 6, max_position_embeddings=64)
B, T, N, K, H = 2, 128, 4, 2, 8


def arrays(seed: int = 0, dtype=jnp.float32, tokens: int = T):
    keys = jax.random.split(jax.random.key(seed), 4)
    query, change = (jax.random.normal(k, (B, tokens, N, H), dtype) for k in keys[:2])
    key, value = (jax.random.normal(k, (B, tokens, K, H), dtype) for k in keys[2:])
    return query, key, value, change


def sources(key, value) -> dict[str, KeyValues]:
    """Everything that one source can be."""
    steps, tokens = jnp.arange(key.shape[1]), key.shape[1]
    causal = steps[:, None] >= steps
    numbers = jnp.stack([steps // 50, jnp.where(steps < tokens - 30, 0, -1)])
    parts = causal & (numbers[:, None] == numbers[:, :, None])
    lengths = jnp.array([tokens, 60])[:, None, None]
    return {
        "all": KeyValues(key, value, None),
        "causal": KeyValues(key, value, None, causal=True),
        "segments": KeyValues(key, value, parts, causal=True, segments=numbers),
        "padded keys": KeyValues(key, value, steps[None, None] < lengths),
        "one mask": KeyValues(key, value, causal),
    }


@pytest.mark.parametrize("kind", ["all", "causal", "segments", "padded keys", "one mask"])
def test_forms_that_write_scores_agree_with_the_definition_and_with_each_other(kind):
    query, key, value, change = arrays()

    def out(form, query, key, value):
        return attend(query, [sources(key, value)[kind]], form)

    expected = attention_reference(query, sources(key, value)[kind])
    grads = {}
    for form in ("saved", "recomputed"):
        found, pull = jax.vjp(partial(out, form), query, key, value)
        np.testing.assert_allclose(found, expected, atol=2e-6)
        grads[form] = pull(change)
    for saved, recomputed in zip(grads["saved"], grads["recomputed"], strict=True):
        np.testing.assert_allclose(recomputed, saved, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("queries", [1, 3])
def test_heads_side_by_side_give_what_heads_apart_give(queries):
    """Decoding on TPUs: keys and values `[rows, tokens, heads size]`, of prompts and of each row of single queries."""
    query, key, value, _ = arrays(tokens=8)
    own_key, own_value = (x.reshape(-1, 5, K, H)[: B * queries] for x in arrays(1, tokens=20)[1:3])
    masks = jnp.arange(8)[None, None] < jnp.array([8, 3])[:, None, None], jnp.arange(5)[None] <= 2

    def out(orders, change):
        pairs = [(change(k), change(v)) for k, v in ((key, value), (own_key, own_value))]
        return attend(query[:, :queries], [KeyValues(*p, m, *o) for p, m, o in zip(pairs, masks, orders, strict=True)])

    apart = out([("btkh", "btkh"), ("rtkh", "rtkh")], lambda x: x)
    merged = out([("btc", "btc"), ("rtc", "rtc")], lambda x: x.reshape(*x.shape[:2], K * H))
    np.testing.assert_allclose(merged, apart, atol=1e-6)
    # the other heads' zeros are not what makes it so
    assert np.abs(np.asarray(merged - attend(query[:, :queries], [KeyValues(key, value, masks[0])]))).max() > 0.01


@pytest.mark.parametrize("kind", ["causal", "segments"])
def test_the_fused_kernel_of_tpus_agrees_with_the_definition(kind, monkeypatch):
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    make = splash.make_splash_mqa_single_device
    monkeypatch.setattr(splash, "make_splash_mqa_single_device", partial(make, interpret=True))
    query, key, value, change = arrays()

    def out(form, query, key, value):
        return attend(query, [sources(key, value)[kind]], form)

    found, pull = jax.vjp(partial(out, "splash"), query, key, value)
    np.testing.assert_allclose(found, attention_reference(query, sources(key, value)[kind]), atol=2e-6)
    _, reference = jax.vjp(partial(out, "saved"), query, key, value)
    for a, b in zip(pull(change), reference(change), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("masks", [(5, 7), (2, 5, 7), (1, 5, 7), (2, 1, 7), None])
def test_attention_over_one_source_has_the_value_and_the_gradient_of_its_halves(dtype, masks):
    """Of one source the gradient is written out, of several it is derived; also where a query sees no key."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), dtype)

    query, key, value, weight = drawn(2, 5, 6, 4), drawn(2, 7, 3, 4), drawn(2, 7, 3, 4), drawn(2, 5, 6, 4)
    mask = None if masks is None else rng.random(masks) < 0.7
    if mask is not None:
        mask[..., -1, :] = False

    def source(key, value, part):
        part_mask = None if mask is None else jnp.asarray(mask[..., part])
        return KeyValues(key[:, part], value[:, part], part_mask)

    def one(query, key, value):
        return jnp.sum(weight * attend(query, [source(key, value, slice(None))]))

    def halves(query, key, value):
        parts = [source(key, value, part) for part in (slice(None, 4), slice(4, None))]
        return jnp.sum(weight * attend(query, parts))

    one_source, two_sources = (jax.value_and_grad(f, argnums=(0, 1, 2))(query, key, value) for f in (one, halves))
    for x, y in zip(jax.tree.leaves(one_source), jax.tree.leaves(two_sources), strict=True):
        assert x.dtype == y.dtype == dtype
        np.testing.assert_allclose(np.float32(x), np.float32(y), atol=2e-6 if dtype == jnp.float32 else 0.06)


def test_selected_queries_keep_their_masks():
    """`attend` for some of the queries is the same rows of `attend` for all."""
    query, key, value, _ = arrays()
    for kind, source in sources(key, value).items():
        some = attend(query[:, 5:9], [source.select(lambda mask: mask[:, 5:9] if mask.shape[1] > 1 else mask)])
        np.testing.assert_allclose(some, attend(query, [source])[:, 5:9], atol=2e-6, err_msg=kind)


def test_a_mask_has_the_window_in_layers_with_one():
    visible, near = jnp.array([[True, True, False]]), jnp.array([[[False, True, True]]])
    assert Mask(visible).of_layer(True) is visible
    np.testing.assert_array_equal(Mask(None, near).of_layer(), near)
    np.testing.assert_array_equal(Mask(visible, near).of_layer(jnp.bool(True))[0], [[False, True, False]])
    np.testing.assert_array_equal(Mask(visible, near).of_layer(jnp.bool(False))[0], visible)


def gpu(capability="9.0", version="cuda 13000"):
    """A device as `jax.local_devices` gives it; without the facts that are None."""
    space = lambda **values: SimpleNamespace(**{n: v for n, v in values.items() if v is not None})  # noqa: E731
    return space(compute_capability=capability, client=space(platform_version=version))


@pytest.mark.parametrize(
    ("device", "form"),
    [
        (gpu(), "cudnn"),
        (gpu("8.0"), "cudnn"),
        (gpu("12.0", "PJRT C API\ncuda 12080"), "cudnn"),
        (gpu("7.5"), "recomputed"),
        (gpu(version="rocm 60300"), "recomputed"),
        (gpu("gfx942", "rocm 60300"), "recomputed"),
        (gpu(None), "recomputed"),
        (gpu(version=None), "recomputed"),
    ],
)
def test_gpus_without_cudnns_attention_have_another_form(monkeypatch, device, form):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    query, key, value, _ = arrays(dtype=jnp.bfloat16)
    assert attention.form_of("auto", query, sources(key, value)["causal"]) == form


@pytest.mark.parametrize(
    ("platform", "dtype", "tokens", "kind", "form"),
    [
        ("cpu", "bfloat16", T, "causal", "saved"),
        ("gpu", "bfloat16", T, "causal", "cudnn"),
        ("gpu", "float16", T, "all", "cudnn"),
        ("gpu", "float32", T, "causal", "recomputed"),
        ("tpu", "float32", T, "causal", "splash"),
        ("tpu", "bfloat16", T, "segments", "splash"),
        ("tpu", "bfloat16", T, "padded keys", "recomputed"),
        ("tpu", "bfloat16", 100, "causal", "recomputed"),
    ],
)
def test_each_device_has_its_form(monkeypatch, platform, dtype, tokens, kind, form):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu()])
    query, key, value, _ = arrays(dtype=jnp.dtype(dtype), tokens=tokens)
    assert attention.form_of("auto", query, sources(key, value)[kind]) == form
    assert attention.form_of("saved", query, sources(key, value)[kind]) == "saved"


def test_what_a_kernel_cannot_compute_is_refused_by_name(monkeypatch):
    query, key, value, _ = arrays()
    with tracing_for("gpu"):
        assert attention.form_of("auto", query.astype(jnp.bfloat16), sources(key, value)["causal"]) == "recomputed"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu()])
    with pytest.raises(ValueError, match="float32.*recomputed"):
        attend(query, [sources(key, value)["causal"]], "cudnn")
    with pytest.raises(ValueError, match="causal.*recomputed"):
        attend(query, [sources(key, value)["padded keys"]], "splash")
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 1))
    narrow = arrays(dtype=jnp.bfloat16)
    assert "0.11.2" in attention.cannot_cudnn(narrow[0], sources(*narrow[1:3])["segments"])
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 2))
    assert not attention.cannot_cudnn(narrow[0], sources(*narrow[1:3])["segments"])
    with pytest.raises(ValueError, match="'save'.*'saved'"):
        lm.Llama(CONFIG, attention="save").init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))  # type: ignore[arg-type]


def segmented():
    """Rows of segments of up to 9 tokens and padding, and a function for the output and its gradients."""
    query, key, value, change = arrays(tokens=50)
    sizes = np.array([[9, 1, 7, 9, 9, 5, 10], [3, 9, 2, 9, 4, 9, 14]])  # the last one of each row is padding
    numbers = jnp.stack([jnp.repeat(jnp.array([1, 2, 3, 4, 5, 6, -1]), n, total_repeat_length=50) for n in sizes])
    steps = jnp.arange(50)
    mask = (steps[:, None] >= steps) & (numbers[:, None] == numbers[:, :, None])
    whole = KeyValues(key, value, mask, causal=True, segments=numbers)
    real = numbers[..., None, None] > 0

    def gradients(source, attend):
        def loss(query, key, value):
            out = attend(query, source._replace(key=key, value=value))
            return jnp.sum(jnp.where(real, out * change, 0.0)), out

        grads, out = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(query, key, value)
        return [np.where(real, x, 0.0) for x in (out, *grads)]

    return query, whole, gradients


@pytest.mark.slow
@pytest.mark.parametrize("form", ["saved", "recomputed"])
def test_short_segments_are_computed_in_blocks(form):
    """Blocks do not divide the row."""
    query, whole, gradients = segmented()
    blocks = whole._replace(longest=9)
    program = str(jax.make_jaxpr(lambda q: attend(q, [blocks], form))(query))
    assert "50,50" not in program
    for got, want in zip(
        gradients(blocks, lambda q, s: attend(q, [s], form)), gradients(whole, attention_reference), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["segments", "no longer ones", "one text"])
def test_keys_that_no_query_sees_are_left_out(name, monkeypatch):
    """Strips of 12 queries, which do not divide the row; segments of up to 20 tokens reach two strips back."""
    monkeypatch.setattr(attention, "STRIP", 12)
    query, whole, gradients = segmented()
    plain = KeyValues(whole.key, whole.value, None, causal=True)
    source = {"segments": whole, "no longer ones": whole._replace(longest=20), "one text": plain}[name]
    steps = jnp.arange(50)
    reference = source._replace(mask=steps[:, None] >= steps) if name == "one text" else whole
    program = str(jax.make_jaxpr(lambda q: attend(q, [source], "saved"))(query))
    assert "24,36]" in program and ("24,48]" in program) == (name != "no longer ones")  # queries x heads of a group
    strips = gradients(source, lambda q, s: attend(q, [s], "saved"))
    for got, want in zip(strips, gradients(reference, attention_reference), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
