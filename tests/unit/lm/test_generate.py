"""Generating: against repeated whole passes, and independent of everything that must not matter."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from envs_jax.tracing import tracing_for
from llmrl_jax.lm import Llama, LlamaConfig, LoRAConfig, WordTokenizer
from llmrl_jax.lm.cache import UNROLLED, Cache, DecodeState
from llmrl_jax.lm.generate import Finish, generate, stream
from llmrl_jax.lm.sampling import SamplingConfig, process
from llmrl_jax.lm.stops import StopStrings
from tests.lm_random import random_variables


module = importlib.import_module("llmrl_jax.lm.generate")
CONFIG = LlamaConfig(40, 16, 24, 2, 4, 2, 6, max_position_embeddings=64)
# Scanned layers: there is less to compile.
MODEL = Llama(CONFIG, lora=LoRAConfig(rank=2), unroll=1)
TOKENS = np.random.default_rng(1).integers(0, 40, (3, 9)).astype(np.int32)
LENGTHS = np.array([9, 1, 5], np.int32)
KEY = jax.random.key(0)
SAMPLED = SamplingConfig(8, temperature=0.8, samples=4)
GREEDY = SamplingConfig(10, temperature=0.0)


@pytest.fixture(scope="module")
def variables():
    return random_variables(MODEL)


@pytest.fixture(scope="module")
def sampled(variables):
    return generate(MODEL, variables, TOKENS, LENGTHS, KEY, SAMPLED)


@functools.partial(jax.jit, static_argnums=0)
def forward(model, variables, tokens, lengths, at):
    return model.apply(variables, tokens, lengths=lengths, at=at).logits


def whole_passes(model, variables, out):
    """Logits `[B, n, T, V]` of what stands before each token of a generation, by plain passes over all of it."""
    batch, count, width = out.tokens.shape
    place = LENGTHS[:, None] + np.arange(width)
    rows = np.arange(batch)[:, None]
    each = []
    for j in range(count):
        tokens = np.pad(TOKENS, ((0, 0), (0, width)))
        tokens[rows, place] = out.tokens[:, j]
        each.append(forward(model, variables, tokens, LENGTHS + width, place - 1))
    return np.stack(each, axis=1)


def chi_square(drawn, probs) -> float:
    """The probability of counts at least as far from what `probs` says."""
    want = np.asarray(probs, float) * drawn.size
    got = np.bincount(drawn.ravel(), minlength=want.size)
    common = want >= 5
    assert common.sum() > 4
    want, got = (np.array([*x[common], x[~common].sum()]) for x in (want, got))
    used = want > 0
    assert not got[~used].any()
    return stats.chi2.sf((((got - want) ** 2)[used] / want[used]).sum(), used.sum() - 1)


def real(out):
    return np.arange(out.tokens.shape[2]) < np.asarray(out.lengths)[..., None]


def test_greedy_is_the_argmax_of_whole_passes(variables):
    out = generate(MODEL, variables, TOKENS, LENGTHS, KEY, GREEDY)
    np.testing.assert_array_equal(out.tokens, whole_passes(MODEL, variables, out).argmax(-1))
    assert len(np.unique(out.tokens)) > 5
    np.testing.assert_array_equal(out.lengths, 10)
    np.testing.assert_array_equal(out.finish, Finish.LENGTH)
    np.testing.assert_array_equal(out.sampled_log_probs, 0)
    off = generate(MODEL, {"params": variables["params"]}, TOKENS, LENGTHS, KEY, GREEDY)
    assert (np.asarray(off.tokens) != out.tokens).any(), "the adapters do not act"


def test_windows_bind_the_layers_that_have_them(variables):
    config = dataclasses.replace(CONFIG, model_type="qwen2", sliding_window=4, sliding_layers=(True, False))
    model = Llama(config, lora=MODEL.lora, unroll=1)
    variables = random_variables(model)
    out = generate(model, variables, TOKENS, LENGTHS, KEY, GREEDY)
    np.testing.assert_array_equal(out.tokens, whole_passes(model, variables, out).argmax(-1))


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, pytest.param(7, marks=pytest.mark.slow)])
def test_a_shared_prefix_gives_what_whole_prompts_give(variables, window):
    """Read once for all rows, and attended to without a copy per row; also where windows end within it."""
    model = MODEL
    if window is not None:
        config = dataclasses.replace(CONFIG, model_type="qwen2", sliding_window=window)
        model = Llama(config, lora=MODEL.lora, unroll=1)
        variables = random_variables(model)
    head = np.arange(3, 9, dtype=np.int32)
    whole = np.concatenate([np.tile(head, (len(TOKENS), 1)), TOKENS], axis=1)
    how = SamplingConfig(8, temperature=np.float32(0.8), samples=2, repetition_penalty=np.float32(1.3))
    want = generate(model, variables, whole, LENGTHS + len(head), KEY, how)

    fixed, traced = how.split()
    fixed = dataclasses.replace(fixed, stop_tokens=())
    keys = jax.vmap(jax.random.fold_in, (None, 0))(KEY, np.arange(len(TOKENS)))
    prefix = jax.jit(module.read_prefix, static_argnums=0)(model, variables, head)
    read = jax.jit(module.read_prompts, static_argnums=0)(model, variables, TOKENS, LENGTHS, prefix)
    start = jax.jit(module.start, static_argnums=(0, 1))
    state = start(model, fixed, traced, None, TOKENS, LENGTHS, keys, *read, prefix)
    advance = jax.jit(module.advance, static_argnums=(0, 1))
    state = advance(model, fixed, variables, traced, None, state, 3)
    rest = advance(model, fixed, variables, traced, None, state.rows(np.array([2, 0])), 8).output
    np.testing.assert_array_equal(rest.tokens, np.asarray(want.tokens)[[2, 0]])
    np.testing.assert_allclose(rest.log_probs, np.asarray(want.log_probs)[[2, 0]], atol=5e-5)
    other = advance(model, fixed, variables, traced, None, state.rows(np.array([1, 1])), 8).output
    np.testing.assert_array_equal(other.tokens, np.asarray(want.tokens)[[1, 1]])


def test_log_probs_are_those_of_a_forward_pass(variables, sampled):
    logits = whole_passes(MODEL, variables, sampled)
    chosen = sampled.tokens[..., None]
    want = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), chosen, axis=-1)[..., 0]
    np.testing.assert_allclose(sampled.log_probs, want, atol=1e-5)
    drawn = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits / 0.8)), chosen, axis=-1)[..., 0]
    np.testing.assert_allclose(sampled.sampled_log_probs, drawn, atol=1e-5)
    assert np.abs(drawn - want).max() > 0.1


def test_every_option_at_once_gives_the_distribution_it_says(variables):
    config = SamplingConfig(6, temperature=1.3, top_k=12, top_p=0.9, min_p=0.01, repetition_penalty=1.4, samples=2)
    out = generate(MODEL, variables, TOKENS, LENGTHS, KEY, config)
    logits, tokens = np.asarray(whole_passes(MODEL, variables, out)), np.asarray(out.tokens)
    expected = jax.jit(lambda logits, seen: jax.nn.log_softmax(process(logits, seen, config)))
    for b, n, t in np.ndindex(tokens.shape):
        seen = np.zeros(40, bool)
        seen[[*TOKENS[b, : LENGTHS[b]], *tokens[b, n, :t]]] = True
        want = np.asarray(expected(logits[b, n, t][None, None], seen[None, None]))[0, 0, tokens[b, n, t]]
        np.testing.assert_allclose(np.asarray(out.sampled_log_probs)[b, n, t], want, atol=5e-5)


def test_draws_follow_the_distribution(variables):
    """Chi-square over 4,000 first tokens of one prompt, expected counts below 5 pooled."""
    config = SamplingConfig(1, temperature=1.5, samples=4000)
    out = generate(MODEL, variables, TOKENS[:1], LENGTHS[:1], jax.random.key(3), config)
    logits = MODEL.apply(variables, TOKENS[:1]).logits[0, -1]
    assert chi_square(np.asarray(out.tokens), jax.nn.softmax(logits / 1.5)) > 1e-3
    assert chi_square(np.asarray(out.tokens), jax.nn.softmax(logits)) < 1e-6


def test_a_row_does_not_depend_on_its_batch_padding_place_or_siblings(variables, sampled):
    order, numbers = np.array([2, 0, 1, 0]), np.array([2, 0, 1, 7])
    filled = np.where(np.arange(12) < LENGTHS[:, None], np.pad(TOKENS, ((0, 0), (0, 3))), 39)[order]
    config = dataclasses.replace(SAMPLED, samples=6)
    moved = generate(MODEL, variables, filled, LENGTHS[order], KEY, config, rows=numbers)
    np.testing.assert_array_equal(moved.tokens[:3, :4], sampled.tokens[order[:3]])
    np.testing.assert_allclose(moved.log_probs[:3, :4], sampled.log_probs[order[:3]], atol=1e-5)
    assert (moved.tokens[3, :4] != sampled.tokens[0]).any()
    keys = jax.vmap(jax.random.fold_in, (None, 0))(KEY, numbers)
    by_key = generate(MODEL, variables, filled, LENGTHS[order], keys, config)
    np.testing.assert_array_equal(by_key.tokens, moved.tokens)


def test_samples_differ_and_share_the_reading_of_the_prompt(variables, sampled):
    for row in np.asarray(sampled.tokens):
        assert len(np.unique(row, axis=0)) == 4
    tokens, lengths, config = np.zeros((2, 50), np.int32), np.array([50, 40]), SamplingConfig(4, samples=5)
    text = str(jax.make_jaxpr(lambda v: generate(MODEL, v, tokens, lengths, KEY, config))(variables))
    assert "f32[2,50,16]" in text, "prompts are read"
    assert not re.search(r"f32\[(10|2,5|5,2),50,", text), "prompts are repeated"


def test_stop_tokens_end_a_row_and_the_loop(variables, sampled):
    before = np.asarray(sampled.tokens)
    stops = tuple({*before[..., 4].ravel().tolist(), int(before[0, 0, 2])})
    config = dataclasses.replace(SAMPLED, stop_tokens=stops)
    out = generate(MODEL, variables, TOKENS, LENGTHS, KEY, config)
    for b, n in np.ndindex(3, 4):
        want = np.flatnonzero(np.isin(before[b, n], stops))[0] + 1
        assert out.lengths[b, n] == want and out.finish[b, n] == Finish.STOP_TOKEN
        np.testing.assert_array_equal(out.tokens[b, n, :want], before[b, n, :want])
        for rest in (out.tokens, out.log_probs, out.sampled_log_probs):
            np.testing.assert_array_equal(rest[b, n, want:], 0)
    assert out.lengths[0, 0] <= 3
    pieces = list(stream(MODEL, variables, TOKENS, LENGTHS, KEY, config, every=2))
    longest = int(out.lengths.max())
    assert [int(p.lengths.max()) for p in pieces] == [*range(2, longest, 2), longest]
    for piece in pieces:
        np.testing.assert_array_equal(piece.tokens, np.where(real(piece), out.tokens, 0))
        np.testing.assert_array_equal(piece.finish, np.where(piece.lengths < out.lengths, 0, out.finish))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), pieces[-1], out)


def test_stop_tokens_are_the_models_end_unless_named():
    model = Llama(dataclasses.replace(CONFIG, eos_token_id=7))
    stops = lambda how: module._prepare(model, TOKENS, LENGTHS, KEY, how, None, None)[0].stop_tokens  # noqa: E731
    assert stops(SamplingConfig(8)) == (7,)
    assert stops(SamplingConfig(8, stop_tokens=())) == ()
    assert stops(SamplingConfig(8, stop_tokens=[3, 4])) == (3, 4)


def test_stop_strings_end_where_the_text_first_holds_one(variables, sampled):
    tokenizer = WordTokenizer.from_texts([f"w{i}" for i in range(38)])
    texts = [[" " + tokenizer.decode(t) for t in row] for row in np.asarray(sampled.tokens)]
    # The end of a word, a space, and the beginning of the next; and a single word's beginning.
    third, fourth = texts[0][0].split()[2:4]
    stops = StopStrings.build(tokenizer, [f"{third[-1]} {fourth[:2]}", "w9"], 40)
    out = generate(MODEL, variables, TOKENS, LENGTHS, KEY, SAMPLED, stops=stops)
    cut = out.texts(tokenizer, stops)
    for b, n in np.ndindex(3, 4):
        so_far = [" " + tokenizer.decode(sampled.tokens[b, n, : i + 1]) for i in range(8)]
        ends = [i + 1 for i, text in enumerate(so_far) if any(s in text for s in stops.strings)]
        assert out.lengths[b, n] == (ends[0] if ends else 8)
        assert out.finish[b, n] == (Finish.STOP_STRING if ends else Finish.LENGTH)
        np.testing.assert_array_equal(out.tokens[b, n], np.where(real(out)[b, n], sampled.tokens[b, n], 0))
        assert not any(s in cut[b][n] for s in stops.strings)
    assert out.lengths[0, 0] <= 4 and (out.finish == Finish.LENGTH).any()


def test_one_compilation_serves_every_call_of_a_shape(variables, sampled):
    before = module._generate._cache_size()
    for seed in range(3):
        out = generate(MODEL, variables, (TOKENS + seed) % 40, np.roll(LENGTHS, seed), jax.random.key(seed), SAMPLED)
    assert module._generate._cache_size() == before
    assert (out.tokens != sampled.tokens).any()


def test_traced_options_are_those_compiled_in_row_by_row(variables, sampled):
    greedy = generate(MODEL, variables, TOKENS, LENGTHS, KEY, GREEDY)
    before = module._generate._cache_size()
    for warm in ([0.0, 0.8, 0.8], [0.8, 0.0, 0.0]):
        traced = dataclasses.replace(SAMPLED, temperature=jnp.array(warm), top_p=jnp.float32(1.0))
        out = generate(MODEL, variables, TOKENS, LENGTHS, KEY, traced)
        for row in range(3):
            want = sampled.tokens[row] if warm[row] else np.tile(greedy.tokens[row, :, :8], (4, 1))
            np.testing.assert_array_equal(out.tokens[row], want)
            drawn = sampled.sampled_log_probs[row] if warm[row] else 0.0
            np.testing.assert_allclose(out.sampled_log_probs[row], drawn, atol=1e-5)
    assert module._generate._cache_size() == before + 1


@pytest.mark.parametrize(("layers", "samples"), [(10, 5), (3, 5), pytest.param(3, 1, marks=pytest.mark.slow)])
def test_the_cache_is_written_in_place(layers, samples):
    """No instruction of the loop makes another of it, and beside it there is little: stacked, and apart."""
    model = Llama(dataclasses.replace(CONFIG, num_hidden_layers=layers, max_position_embeddings=4096), unroll=1)
    config = SamplingConfig(2000, temperature=0.0, samples=samples)
    lowered = jax.jit(lambda v: generate(model, v, TOKENS, LENGTHS, KEY, config)).lower(model.abstract())
    compiled = lowered.compile()
    loops, _, entry = compiled.as_text().partition("\nENTRY ")
    rows, stack = 3 * samples, "10," if layers > UNROLLED else ""
    made = set(re.findall(rf"= f32\[{stack}{rows},2,(?:2000,6|6,2000)\]\S* ([\w-]+)\(", loops))
    assert "dynamic-update-slice" in made and entry
    assert made <= {"dynamic-update-slice", "parameter", "get-tuple-element", "fusion", "broadcast", "bitcast"}, made
    keys_and_values = 2 * 4 * (layers * rows * 2 * 2000 * 6)
    assert compiled.memory_analysis().temp_size_in_bytes < 1.2 * keys_and_values


def test_bfloat16_is_kept_in_the_cache_and_float32_in_what_comes_out():
    low = Llama(CONFIG, dtype=jnp.bfloat16, unroll=1)
    fixed, traced, keys = module._prepare(low, TOKENS, LENGTHS, KEY, SAMPLED, None, None)
    begin = functools.partial(module._begin, low, fixed)
    state = jax.eval_shape(begin, low.abstract(), traced, None, TOKENS, LENGTHS, keys)
    for x in jax.tree.leaves((state.cache.keys, state.cache.prompt_values)):
        assert x.dtype == jnp.bfloat16
    state = jax.eval_shape(functools.partial(module.advance, low, fixed), low.abstract(), traced, None, state, 8)
    assert state.output.log_probs.dtype == state.output.sampled_log_probs.dtype == jnp.float32


def test_texts_leave_the_stop_out():
    tokenizer = WordTokenizer.from_texts(["a b c d"])
    a, b, c, d = tokenizer.encode("a b c d")
    eos = tokenizer.eos_id
    zeros = np.zeros((1, 3, 4), np.float32)
    out = module.Generation(
        np.array([[[a, b, eos, 0], [a, b, c, 0], [a, b, c, d]]]), np.array([[3, 3, 4]]), zeros, zeros,
        np.array([[Finish.STOP_TOKEN, Finish.STOP_STRING, Finish.LENGTH]]),
    )  # fmt: skip
    stops = StopStrings.build(tokenizer, ["b c"], 6)
    assert out.texts(tokenizer) == [[" a b", " a b c", " a b c d"]]
    assert out.texts(tokenizer, stops) == [[" a b", " a ", " a "]]
    assert out.texts(tokenizer, start=True) == [["a b", "a b c", "a b c d"]]
    assert out.texts(tokenizer, stops, start=True) == [["a b", "a ", "a "]]
    assert out.texts(tokenizer, StopStrings.build(tokenizer, [" a"], 6)) == [[""] * 3]
    assert out.texts(tokenizer, StopStrings.build(tokenizer, [" a"], 6), start=True) == [[""] * 3]


def test_a_prompt_and_its_continuation_are_one_text(bpe, sentencepiece):
    words = WordTokenizer.from_texts(["go to the red ball"])
    for tokenizer in (bpe, sentencepiece, words):
        tokens = tokenizer.encode("go to the red ball")
        for cut in range(1, len(tokens)):
            joined = tokenizer.decode(tokens[:cut]) + tokenizer.decode_continuation(tokens[cut:])
            assert joined == tokenizer.decode(tokens) == "go to the red ball"
    assert sentencepiece.decode_continuation([]) == words.decode_continuation([]) == ""


def test_what_cannot_be_done_is_refused_before_compiling(variables):
    def run(tokens=TOKENS, lengths=LENGTHS, key=KEY, how=SAMPLED, **changes):
        return generate(MODEL, None, tokens, lengths, key, how, **changes)

    with pytest.raises(ValueError, match="65 positions.*64.*55 new"):
        run(how=SamplingConfig(56))
    with pytest.raises(ValueError, match="stop token 40"):
        run(how=SamplingConfig(1, stop_tokens=(3, 40)))
    with pytest.raises(ValueError, match=r"\[0 1 2\].*1.*9"):
        run(lengths=np.arange(3))
    with pytest.raises(ValueError, match="1.*padded 9"):
        run(lengths=np.array([1, 10, 2]))
    wrong = np.array(TOKENS)
    wrong[1, 0], wrong[0, -1] = 40, -7
    with pytest.raises(ValueError, match="1.*40.*0.*vocabulary.*0.*39"):
        run(wrong, lengths=np.minimum(LENGTHS, 8))  # the -7 is padding
    with pytest.raises(ValueError, match=r"uint32.*jax\.random\.key"):
        run(key=jax.random.PRNGKey(0))
    with pytest.raises(ValueError, match=r"key.*\(2,\).*3 rows"):
        run(key=jax.random.split(KEY, 2))
    with pytest.raises(ValueError, match="rows.*key"):
        run(key=jax.random.split(KEY, 3), rows=np.arange(3))
    with pytest.raises(ValueError, match="41 tokens.*40"):
        run(stops=StopStrings.build(WordTokenizer.from_texts(["a"]), ["a"], 41))
    with pytest.raises(ValueError, match=r"temperature.*\(2,\)"):
        run(how=dataclasses.replace(SAMPLED, temperature=jnp.ones(2)))
    with pytest.raises(ValueError, match="every.*0.*1"):
        stream(MODEL, None, TOKENS, LENGTHS, KEY, SAMPLED, every=0)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_decoding_from_joined_matrices_gives_the_same_continuations(family):
    """As on a GPU: matrices of each layer's own, and one for all that read the same input."""
    config = dataclasses.replace(CONFIG, num_hidden_layers=6, model_type=family)
    model = Llama(config, lora=LoRAConfig(rank=2, targets=("q_proj", "v_proj", "up_proj", "down_proj")))
    variables = random_variables(model)
    how = SamplingConfig(12, samples=2)
    expected = generate(model, variables, TOKENS, LENGTHS, KEY, how)
    with tracing_for("gpu"):
        layers = model.apply(variables, method=Llama.unstacked_weights)
        kernel = layers[0][0]["self_attn"]["q_proj+k_proj+v_proj"]["kernel"]
        assert len(layers) == 6 and kernel.shape == (16, 4 * 6 + 2 * 2 * 6)
        found = generate(model, variables, TOKENS, LENGTHS, KEY, how)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 3])
def test_decoding_from_heads_side_by_side_gives_the_same_continuations(samples):
    """As on a TPU: keys and values have a row a token, in the order of their axes in memory."""
    model = Llama(dataclasses.replace(CONFIG, num_hidden_layers=6))
    variables = random_variables(model)
    how = SamplingConfig(12, samples=samples)
    expected = generate(model, variables, TOKENS, LENGTHS, KEY, how)
    with tracing_for("tpu"):
        branches = DecodeState.create(Cache.create(model.config, 3, 9), LENGTHS, samples, 12)
        assert branches.merged and branches.keys.shape == (6, 3 * samples, 12, 2 * 6)
        found = generate(model, variables, TOKENS, LENGTHS, KEY, how)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=5e-5)
