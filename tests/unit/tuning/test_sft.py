"""Supervised fine-tuning: its loss by hand, packing and microbatches that change nothing, and what it learns."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from llmrl_jax.lm import Llama, LlamaConfig, LoRAConfig, declare
from llmrl_jax.tuning import Example, SFTConfig, make_evaluation, make_sft, pack, token_log_probs
from llmrl_jax.tuning.sft import learning_rates, sft_loss, targets


CONFIG = LlamaConfig(20, 16, 24, 2, 4, 2, max_position_embeddings=32)
FULL, LORA = Llama(CONFIG), Llama(CONFIG, lora=LoRAConfig(rank=4, targets=tuple(declare.projections(CONFIG))))
RANDOM = np.random.default_rng(0)
APPLY = jax.jit(lambda params, tokens, lengths: FULL.apply(params, tokens, lengths=lengths))
EXAMPLES = [
    Example(RANDOM.integers(1, 20, n).tolist(), [i >= n // 2 for i in range(n)]) for n in (4, 6, 2, 9, 5, 3, 7, 8)
]


@pytest.fixture(scope="module")
def params():
    """A base whose head speaks up, so that adapters beneath it can change what it says."""
    drawn = jax.jit(FULL.init)(jax.random.key(1), jnp.zeros((1, 1), jnp.int32))["params"]
    return {"params": drawn | {"lm_head": {"kernel": 25 * drawn["lm_head"]["kernel"]}}}


def by_hand(params, examples):
    """The sum over examples, each alone in its row, of what is taught, and how many tokens that is."""
    total, count = 0.0, 0
    for example in examples:
        row = np.pad(example.tokens, (0, 16 - len(example.tokens)))[None]
        logits = APPLY(params, row, np.array([len(example.tokens)])).logits[0]
        log_probs = np.asarray(jax.nn.log_softmax(logits, axis=-1))
        for i in range(1, len(example.tokens)):
            if example.learn[i]:
                total -= log_probs[i - 1, example.tokens[i]]
                count += 1
    return total, count


@pytest.mark.parametrize("several", [True, False])
def test_the_loss_of_packed_rows_is_that_of_each_example_alone(params, several):
    packed = pack(EXAMPLES, 16, several=several)
    assert (packed.tokens.shape[0] < len(EXAMPLES)) == several
    expected, count = by_hand(params, EXAMPLES)
    assert int(targets(packed)[1].sum()) == count
    loss, metrics = jax.jit(lambda p: sft_loss(FULL, p, packed, count))(params)
    assert float(loss) == pytest.approx(expected / count, abs=1e-5)
    assert 0 < float(metrics["entropy"]) <= np.log(20) + 1e-5


@pytest.mark.slow
def test_chunks_of_the_head_change_memory_only(params):
    packed = pack(EXAMPLES, 16)

    def run(chunk):
        return jax.jit(jax.value_and_grad(lambda p: sft_loss(FULL, p, packed, 1.0, chunk)[0]))(params)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), run(0), run(4))
    hidden = jnp.zeros((1, 16, 16))
    text = str(jax.make_jaxpr(lambda h: token_log_probs(FULL, params, h, jnp.asarray(packed.tokens[:1]), 4))(hidden))
    assert "f32[1,4,20]" in text and "f32[1,16,20]" not in text
    with pytest.raises(ValueError, match="5 positions.*divide 16"):
        token_log_probs(FULL, params, hidden, jnp.asarray(packed.tokens[:1]), 5)


@pytest.mark.slow
def test_parts_of_different_weight_add_up_to_the_whole(params):
    """Microbatches hold different numbers of taught tokens; the gradient is that of the whole batch's mean."""
    packed = pack(EXAMPLES, 16, several=False)
    whole = SFTConfig(batch_size=8, schedule="constant", warmup=0.0)
    results = []
    for config in (whole, replace(whole, microbatches=4)):
        learner = make_sft(config, FULL, params, packed, 1)
        results.append(jax.jit(learner.update)(learner.init(jax.random.key(0))))
    (one, metrics), (parts, also) = results
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), one.params, parts.params)
    for name in metrics:
        assert float(metrics[name]) == pytest.approx(float(also[name]), rel=1e-4), name
    expected, count = by_hand(params, EXAMPLES)
    assert float(metrics["loss"]) == pytest.approx(expected / count, rel=1e-5)
    assert float(metrics["taught_tokens"]) == count


@pytest.mark.slow
def test_a_step_is_adamws(params):
    """One update against optax.adamw on the whole loss."""
    packed = pack(EXAMPLES, 16, several=False)
    config = SFTConfig(batch_size=8, schedule="constant", warmup=0.0, weight_decay=0.1, learning_rate=1e-2)
    learner = make_sft(config, FULL, params, packed, 1)
    after, _ = jax.jit(learner.update)(learner.init(jax.random.key(0)))
    count = targets(packed)[1].sum()
    grads = jax.jit(jax.grad(lambda p: sft_loss(FULL, {"params": p}, packed, count)[0]))(params["params"])

    def matrix(path, x):
        return "norm" not in jax.tree_util.keystr(path)

    mask = jax.tree_util.tree_map_with_path(matrix, params["params"])
    adamw = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, weight_decay=0.1, mask=mask))
    steps, _ = adamw.update(grads, adamw.init(params["params"]), params["params"])
    expected = optax.apply_updates(params["params"], steps)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), after.params, expected)


def test_weights_may_be_taken_in_place_of_a_copy(params):
    packed, config = pack(EXAMPLES, 16, several=False), SFTConfig(batch_size=8)
    own = jax.tree.map(jnp.copy, params)
    learner = make_sft(config, FULL, own, packed, 1, take=True)
    state = learner.init(jax.random.key(0))
    assert "params" not in own, "no other reference is left"
    jax.tree.map(np.testing.assert_array_equal, state.params, params["params"])
    with pytest.raises(RuntimeError, match="weights.*earlier"):
        learner.init(jax.random.key(0))
    learner = make_sft(config, LORA, params, packed, 1, take=True)  # a base stays where it is
    assert learner.init(jax.random.key(0)).frozen["base"]["params"] is params["params"]


def test_learning_rates_by_hand():
    config = SFTConfig(learning_rate=1.0, warmup=0.2, final_fraction=0.5, schedule="linear")
    rate = learning_rates(config, 10)  # of updates 0 to 9: two of them rise, and the last has the final fraction
    np.testing.assert_allclose([rate(i) for i in range(4)], [1 / 3, 2 / 3, 1.0, 1 - 0.5 / 7], rtol=1e-6)
    np.testing.assert_allclose([rate(8), rate(9), rate(10)], [0.5 + 0.5 / 7, 0.5, 0.5], rtol=1e-6)
    cosine = learning_rates(replace(config, schedule="cosine", warmup=0.0), 11)
    np.testing.assert_allclose([cosine(0), cosine(5), cosine(10)], [1.0, 0.75, 0.5], rtol=1e-6)
    assert float(learning_rates(SFTConfig(learning_rate=1.0, warmup=0.2, schedule="constant"), 10)(9)) == 1.0
    with pytest.raises(ValueError, match="sft.final_fraction is 0.5, but sft.schedule constant"):
        replace(config, schedule="constant")
    for updates in (1, 2):  # with nothing to fall over, the step size is the peak
        one = learning_rates(replace(config, warmup=0.5 * (updates - 1)), updates)
        assert float(one(updates - 1)) == 1.0


@pytest.mark.parametrize("model", [LORA, pytest.param(FULL, marks=pytest.mark.slow)], ids=["lora", "full"])
def test_it_learns_and_leaves_the_base_alone(params, model):
    """Eight sequences by heart: the loss of a held-out copy falls to a fraction."""
    packed = pack(EXAMPLES, 16)
    config = SFTConfig(batch_size=2, learning_rate=3e-2)
    learner = make_sft(config, model, params, packed, 60)
    state = learner.init(jax.random.key(0))
    evaluate = make_evaluation(model, packed, 3)
    before = evaluate(state, None)
    state, metrics = jax.jit(lambda s: jax.lax.scan(lambda s, _: learner.update(s), s, None, length=60))(state)
    after = evaluate(state, None)
    expected, count = by_hand(params, EXAMPLES)
    assert before["loss"] == pytest.approx(expected / count, rel=1e-4)
    assert before["taught_tokens"] == count
    assert after["loss"] < (0.7 if model is LORA else 0.3) * before["loss"]
    assert after["perplexity"] == pytest.approx(np.exp(after["loss"]))
    assert np.isfinite(metrics["grad_norm"]).all() and float(metrics["epoch"][-1]) == pytest.approx(
        60 / (len(packed.tokens) // 2)
    )
    if model is LORA:
        jax.tree.map(np.testing.assert_array_equal, state.frozen["base"], params)


def test_every_epoch_sees_every_row_once(params):
    packed = pack([Example([i, i + 1], [False, True]) for i in range(1, 9)], 2, several=False)
    config = SFTConfig(batch_size=2, learning_rate=0.0)
    learner = make_sft(config, LORA, params, packed, 8)
    seen = []
    state = learner.init(jax.random.key(3))
    update = jax.jit(learner.update)
    for _ in range(8):
        state, metrics = update(state)
        seen.append(float(metrics["loss"]))
    assert sum(seen[:4]) == pytest.approx(sum(seen[4:]), rel=1e-5)  # the same rows in all, in another order
    assert seen[:4] != seen[4:]


@pytest.mark.parametrize(
    ("config", "updates", "message"),
    [
        ({"batch_size": 50}, 1, r"rows.*\b50\b"),
        ({"batch_size": 0}, 1, "sft.batch_size.*0.*1"),
        ({"batch_size": 3, "microbatches": 2}, 1, "batch_size 3.*sft.microbatches 2"),
        ({"batch_size": 2, "warmup": 1.5}, 1, "warmup.*1.5"),
        ({"batch_size": 2, "learning_rate": math.nan}, 1, "sft.learning_rate.*nan"),
        ({"batch_size": 2, "head_chunk": 5}, 1, "sft.head_chunk.*5.*16"),
        ({"batch_size": 2}, 0, "updates.*0"),
    ],
)
def test_bad_configurations(params, config, updates, message):
    with pytest.raises(ValueError, match=message):
        make_sft(SFTConfig(**config), LORA, params, pack(EXAMPLES, 16), updates)


def test_tokens_that_the_model_does_not_have_are_named(params):
    packed = pack([*EXAMPLES, Example([3, 20], [False, True])], 16, several=False)
    with pytest.raises(ValueError, match="8.*20.*1.*vocabulary.*0.*19"):
        make_sft(SFTConfig(batch_size=2), LORA, params, packed, 1)
    with pytest.raises(ValueError, match="row 8.*token 20"):
        make_evaluation(LORA, packed, 2)


def test_weights_that_updates_cannot_change_are_refused(params):
    packed = pack(EXAMPLES, 16, several=False)
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    adapters = {"lora": jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float16), LORA.abstract()["lora"])}
    for model, variables, name in ((FULL, narrow, "bfloat16"), (LORA, narrow | adapters, "float16")):
        with pytest.raises(ValueError, match=f"{name}.*float32"):
            make_sft(SFTConfig(batch_size=2), model, variables, packed, 1)
    make_sft(SFTConfig(batch_size=2), LORA, narrow, packed, 1)  # a frozen base is not updated
    make_sft(SFTConfig(batch_size=2), FULL.clone(dtype=jnp.bfloat16), params, packed, 1)


def test_segments_need_positions(params):
    with pytest.raises(ValueError, match="segments.*positions"):
        FULL.apply(params, np.zeros((1, 4), np.int32), segments=np.ones((1, 4), np.int32))
