"""Scoring candidates: against whole passes, and independent of everything that must not matter."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.lm import Candidates, Llama, LlamaConfig, LoRAConfig, WordTokenizer, score, score_naive
from llmrl_jax.lm.score import MASKED, choose_form, costs
from tests.lm_random import random_variables


CONFIG = LlamaConfig(30, 16, 24, 2, 4, 2, max_position_embeddings=32)
MODEL = Llama(CONFIG, lora=LoRAConfig(rank=2), unroll=1)  # scanned layers: there is less to compile
CANDIDATES = Candidates([[3, 4], [3, 5], [6], [3, 4, 7, 8], [9, 0], [3]])
TOKENS = np.random.default_rng(1).integers(0, 30, (4, 9)).astype(np.int32)
LENGTHS = np.array([9, 1, 5, 7], np.int32)
PREFIX = (11, 12, 3)


@pytest.fixture(scope="module")
def variables():
    return random_variables(MODEL)


@pytest.fixture(scope="module")
def scores(variables):
    return jax.jit(lambda v, t, n: score(MODEL, v, t, n, CANDIDATES))(variables, TOKENS, LENGTHS)


def test_the_tree_merges_prefixes_and_reads_no_last_token():
    trie = Candidates([[3, 4], [3, 5], [6], [3, 4, 7]]).trie
    assert trie.tokens == (3, 4) and trie.depths == (0, 1)
    np.testing.assert_array_equal(trie.ancestors, [[True, False], [True, True]])
    np.testing.assert_array_equal(trie.source, [[0, 1, 0], [0, 1, 0], [0, 0, 0], [0, 1, 2]])


def test_empty_candidates_are_refused():
    with pytest.raises(ValueError, match="candidate 1.*empty"):
        Candidates([[1], []])
    with pytest.raises(ValueError, match="no candidates"):
        Candidates([])


def test_candidates_that_are_no_distinct_tokens_are_refused():
    with pytest.raises(ValueError, match=r"1.*3.*\[3, 4\]"):
        Candidates([[3], [3, 4], [4], [3, 4]])
    words = WordTokenizer.from_texts(["go left"], spare=1)
    with pytest.raises(ValueError, match="candidates 0.*2"):
        Candidates.encode(words, ["sing", "go", "dance"])  # both words hash to the only spare token
    with pytest.raises(ValueError, match="'go left'"):
        Candidates.encode(words, "go left")


@pytest.mark.parametrize("function", [score, score_naive])
@pytest.mark.parametrize("lengths", [[9, 0, 5, 7], [9, -1, 5, 7], [10, 1, 5, 7]], ids=str)
def test_lengths_that_no_prompt_has_are_refused(variables, function, lengths):
    with pytest.raises(ValueError, match="lengths"):
        function(MODEL, variables, TOKENS, np.array(lengths, np.int32), CANDIDATES)


def test_one_row_by_the_definition(variables, scores):
    """log p of [3, 4, 7, 8] after row 2, from plain logits."""
    sequence = np.concatenate([TOKENS[2, :5], [3, 4, 7, 8]])[None]
    out = jax.jit(MODEL.apply)(variables, sequence)
    out, scores = jax.device_get((out, scores))
    log_probs = (out.logits - np.logaddexp.reduce(out.logits, axis=-1, keepdims=True))[0]
    want = [log_probs[4 + w, token] for w, token in enumerate([3, 4, 7, 8])]
    np.testing.assert_allclose(scores.log_probs[2, 3], want, atol=2e-5)
    np.testing.assert_allclose(scores.sum[2, 3], sum(want), atol=5e-5)
    np.testing.assert_allclose(scores.mean[2, 3], sum(want) / 4, atol=2e-5)
    raw = [out.logits[0, 4 + w, token] for w, token in enumerate([3, 4, 7, 8])]
    np.testing.assert_allclose(scores.raw_sum[2, 3], sum(raw), atol=5e-5)
    np.testing.assert_allclose(scores.hidden[2], out.hidden[0, 4], atol=2e-5)
    np.testing.assert_array_equal(scores.log_probs[:, 2, 1:], 0)


@functools.cache
def whole_passes(prefix):
    return outcome(score_naive, MODEL, prefix)


def outcome(function, model, prefix):
    def loss(v):
        s = function(model, v, TOKENS, LENGTHS, CANDIDATES, prefix)
        return (s.sum * jnp.arange(1.0, 7.0)).mean() + s.hidden.sum(), s

    return jax.jit(jax.grad(loss, has_aux=True))(random_variables(MODEL))


@pytest.mark.parametrize("prefix", [pytest.param((), marks=pytest.mark.slow), PREFIX], ids=["bare", "prefix"])
def test_branches_give_what_whole_passes_give(prefix):
    grad, got = outcome(functools.partial(score, form="branches"), MODEL, prefix)
    naive_grad, want = whole_passes(prefix)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), got, want)
    scale = max(float(np.abs(g).max()) for g in jax.tree.leaves(naive_grad))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * scale), grad, naive_grad)


def test_single_tokens_need_no_branch(variables):
    one = Candidates([[3], [5]])
    run = jax.jit(functools.partial(score, MODEL), static_argnums=3, static_argnames="form")
    want = run(variables, TOKENS, LENGTHS, one, form="tree")
    for form in ("branches", "naive"):
        got = run(variables, TOKENS, LENGTHS, one, form=form)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), got, want)


def test_the_form_is_the_one_that_costs_least():
    """By hand: 2 layers of D 16, 4 heads of 4 (2 for keys), MLP 24; 3 prompt tokens; [3, 4] and [3, 5]."""
    two = Candidates([[3, 4], [3, 5]])
    matrices = 16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24
    found = costs(CONFIG, 3, two)
    # one node: 4 tokens, each seeing 4; two predictions
    assert found["tree"] == 2 * (4 * matrices + 4 * 4 * 32) + 2 * 16 * 30
    # 3 tokens seeing 3, then 2 tokens seeing 3 + 2; three predictions
    assert found["branches"] == 2 * (5 * matrices + (9 + 10) * 32) + 3 * 16 * 30
    assert found["naive"] == 2 * (2 * (5 * matrices + 25 * 32) + 2 * 16 * 30)
    many = Candidates([[i % 30, i // 30 % 30, i // 900] for i in range(3000)])
    assert choose_form(CONFIG, 3, two) == "tree"
    assert choose_form(CONFIG, 3, many) == "branches", "three thousand candidates must not attend to one another"
    # nothing shared: branches multiplies a little less, but each of its multiplications takes longer
    apart = Candidates(np.random.default_rng(0).integers(0, 30, (2, 6)).tolist())
    counted = costs(CONFIG, 3, apart)
    assert counted["tree"] > counted["branches"] and choose_form(CONFIG, 3, apart) == "tree"


def test_a_mask_rules_candidates_out_row_by_row(variables, scores):
    mask = np.ones((4, 6), bool)
    mask[1, :5] = False
    mask[2, 3] = False

    def entropy(v):
        found = score(MODEL, v, TOKENS, LENGTHS, CANDIDATES, mask=mask)
        log_p = jax.nn.log_softmax(found.sum)
        return -jnp.sum(jnp.exp(log_p) * log_p), (found, log_p)

    grads, (got, log_p) = jax.jit(jax.grad(entropy, has_aux=True))(variables)
    np.testing.assert_allclose(np.asarray(got.sum)[mask], np.asarray(scores.sum)[mask], atol=2e-5)
    assert (np.asarray(got.sum)[~mask] == MASKED).all() and (np.asarray(got.mean)[~mask] == MASKED).all()
    assert np.exp(log_p)[1].tolist() == [0, 0, 0, 0, 0, 1] and np.isfinite(log_p).all()
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))
    with pytest.raises(ValueError, match=r"mask.*\(4, 5\).*4.*6"):
        score(MODEL, variables, TOKENS, LENGTHS, CANDIDATES, mask=mask[:, :5])


def test_scores_per_word(variables, scores):
    assert scores.per_word is None
    known = Candidates(CANDIDATES.sequences, words=[2, 1, 1, 2, 1, 1])
    found = jax.jit(lambda v: score(MODEL, v, TOKENS, LENGTHS, known))(variables)
    np.testing.assert_allclose(found.per_word, scores.sum / np.array([2, 1, 1, 2, 1, 1]), atol=2e-5)
    with pytest.raises(ValueError, match=r"words.*\(1, 2\).*6"):
        Candidates(CANDIDATES.sequences, words=[1, 2])


def test_an_unknown_form_is_named(variables):
    with pytest.raises(ValueError, match="form 'trie'.*tree"):
        score(MODEL, variables, TOKENS, LENGTHS, CANDIDATES, form="trie")


@pytest.mark.parametrize(
    "prefix, unroll",
    [
        pytest.param((), 1, id="bare-scanned", marks=pytest.mark.slow),
        pytest.param(PREFIX, None, id="prefix-written"),
        pytest.param((), None, id="bare-written", marks=pytest.mark.slow),
        pytest.param(PREFIX, 1, id="prefix-scanned", marks=pytest.mark.slow),
    ],
)
def test_scores_and_gradients_are_those_of_whole_passes(prefix, unroll):
    grad, got = outcome(score, Llama(CONFIG, lora=MODEL.lora, unroll=unroll), prefix)
    naive_grad, want = whole_passes(prefix)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), got, want)
    scale = max(float(np.abs(g).max()) for g in jax.tree.leaves(naive_grad))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * scale), grad, naive_grad)


def test_scores_do_not_depend_on_batch_padding_or_order(variables, scores):
    run = jax.jit(score, static_argnums=(0, 4))
    alone = run(MODEL, variables, TOKENS[2:3, :5], LENGTHS[2:3], CANDIDATES)
    np.testing.assert_allclose(alone.sum[0], scores.sum[2], atol=2e-5)
    filled = np.where(np.arange(14) < LENGTHS[:, None], np.pad(TOKENS, ((0, 0), (0, 5))), 29)
    np.testing.assert_allclose(run(MODEL, variables, filled, LENGTHS, CANDIDATES).sum, scores.sum, atol=2e-5)
    scores, order = jax.device_get(scores), [4, 2, 0, 5, 3, 1]
    shuffled = Candidates([CANDIDATES.sequences[i] for i in order])
    got = run(MODEL, variables, TOKENS, LENGTHS, shuffled).sum
    np.testing.assert_allclose(got, scores.sum[:, np.array(order)], atol=2e-5)


def test_token_zero_is_a_token(scores):
    """[9, 0] must count the probability of its 0; a pad told by its id would not."""
    assert (scores.log_probs[:, 4, 1] < 0).all()


def test_rows_at_a_time(variables, scores):
    grouped = jax.jit(lambda v: score(MODEL, v, TOKENS, LENGTHS, CANDIDATES, rows=2))(variables)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), grouped, scores)
    written = Llama(CONFIG, lora=MODEL.lora)  # its layers are not scanned, so that the only loop is that of the rows
    text = str(jax.make_jaxpr(lambda v: score(written, v, TOKENS, LENGTHS, CANDIDATES, rows=2))(variables))
    assert "scan" in text
    with pytest.raises(ValueError, match="rows.*3.*4"):
        score(MODEL, variables, TOKENS, LENGTHS, CANDIDATES, rows=3)


@pytest.mark.slow
def test_widths_follow_the_lengths(variables):
    """Sorted groups at their own padding: the same scores and gradients, and only as many widths as asked for."""
    tokens = np.random.default_rng(2).integers(0, 30, (8, 9)).astype(np.int32)
    lengths = np.array([9, 1, 5, 3, 2, 8, 4, 1], np.int32)

    def run(variables, **how):
        found = score(MODEL, variables, tokens, lengths, CANDIDATES, **how)
        return jnp.mean(found.sum * jnp.arange(6)) + jnp.mean(found.hidden), found

    plain, sorted_ = (
        jax.jit(jax.value_and_grad(functools.partial(run, **how), has_aux=True)).trace(variables)
        for how in ({}, {"rows": 2, "widths": (1, 4)})
    )
    found = [traced.lower().compile()(variables) for traced in (plain, sorted_)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), *found)
    apart = jax.jit(lambda v: run(v, rows=4, widths=(1, 4), shards=2)[1])(variables)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), apart, found[0][0][1])
    text = str(sorted_.jaxpr)
    assert "cond" in text and "i32[2,4]" in text and "i32[2,4]" not in str(plain.jaxpr)
    with pytest.raises(ValueError, match=r"widths.*\(0, 4\).*1.*9"):
        run(variables, rows=2, widths=(0, 4))
    with pytest.raises(ValueError, match="shards.*4.*2"):
        run(variables, rows=2, widths=(4,), shards=4)


def test_a_prompt_that_does_not_fit_is_refused(variables):
    long = np.zeros((1, 28), np.int32)
    with pytest.raises(ValueError, match="35 positions.*32"):
        score(MODEL, variables, long, np.array([28]), CANDIDATES, PREFIX)
    with pytest.raises(ValueError, match="token 30"):
        score(MODEL, variables, TOKENS, LENGTHS, Candidates([[30]]))
    wrong = np.array(TOKENS)
    wrong[2, 0] = 30
    with pytest.raises(ValueError, match="2.*30.*0.*vocabulary.*0.*29"):
        score(MODEL, variables, wrong, LENGTHS, CANDIDATES)
    with pytest.raises(ValueError, match="token -1"):
        score(MODEL, variables, TOKENS, LENGTHS, CANDIDATES, (3, -1))
