"""The ablations of GLAM's policy: action heads against a forward pass by hand, and what the base begins with."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.systems.glam.build import build
from llmrl_jax.systems.glam.config import GLAM, PRESETS
from llmrl_jax.workflows.curriculum import save_prior
from tests.glam import FULL, TINY, observations, program, weights


SCORING = replace(TINY, value_activation="sigmoid")
HEADS = replace(SCORING, policy="heads")
FIRST = jnp.zeros(6, bool)


@pytest.fixture(scope="module")
def heads():
    return program(HEADS)


@pytest.fixture(scope="module")
def batch():
    return observations()


@pytest.fixture(scope="module")
def drawn():
    return weights(HEADS)


def mlp_by_hand(params, last, x):
    for name in ("hidden_1", "hidden_2"):
        x = 1 / (1 + np.exp(-(x @ np.asarray(params[name]["kernel"]) + params[name]["bias"])))
    return x @ np.asarray(params[last]["kernel"]) + params[last]["bias"]


def test_the_heads_by_hand(heads, batch, drawn):
    """A pass over the unpadded prompt of each row; both heads read the last token's hidden state."""
    params, frozen = drawn
    found, value, carry = jax.jit(heads.policy.step)(params, frozen, batch, (), FIRST)
    tokens, lengths = map(np.asarray, jax.jit(heads.policy.prompts)(batch))
    assert carry == () and found.logits.shape == (6, 6)
    forward = jax.jit(lambda tokens: heads.policy.model.apply(frozen, tokens, logits=False).hidden[0, -1])
    for row in (0, 5):
        hidden = np.asarray(forward(tokens[row : row + 1, : int(lengths[row])]))
        np.testing.assert_allclose(found.logits[row], mlp_by_hand(params["action"], "logits", hidden), atol=1e-5)
        np.testing.assert_allclose(value[row], mlp_by_hand(params["value"], "value", hidden)[0], atol=1e-5)


def test_the_published_sizes_of_a_head(batch):
    """Carta et al. (2302.02662): the critic's trunk of two layers of 1024, then a logit for each action."""
    glam = build(replace(HEADS, value_width=1024))
    shapes = jax.eval_shape(lambda key: glam.policy.init(key, batch)[0]["action"], jax.random.key(0))
    sizes = {name: sum(x.size for x in jax.tree.leaves(part)) for name, part in shapes.items()}
    assert sizes == {"hidden_1": 16 * 1024 + 1024, "hidden_2": 1024 * 1024 + 1024, "logits": 1024 * 6 + 6}


@pytest.mark.slow
def test_only_the_choice_differs_from_scoring(heads, batch, drawn):
    """The same key draws the same adapters and critic, so that the ablation changes one thing."""
    scoring = program(SCORING)
    params, frozen = weights(SCORING)
    ours, base = drawn
    assert set(ours) == {*params, "action"}
    jax.tree.map(np.testing.assert_array_equal, {name: ours[name] for name in params}, params)
    jax.tree.map(np.testing.assert_array_equal, base, frozen)
    _, value, _ = jax.jit(scoring.policy.step)(params, frozen, batch, (), FIRST)
    _, same, _ = jax.jit(heads.policy.step)(ours, base, batch, (), FIRST)
    np.testing.assert_allclose(value, same, atol=1e-5)


def test_step_and_unroll_agree(heads, batch, drawn):
    params, frozen = drawn
    step, value, _ = jax.jit(heads.policy.step)(params, frozen, batch, (), FIRST)
    two = jax.tree.map(lambda x: jnp.stack([x, x[::-1]]), batch)
    unrolled, values = jax.jit(heads.policy.unroll)(params, frozen, two, (), jnp.zeros((2, 6), bool))
    np.testing.assert_allclose(unrolled.logits, jnp.stack([step.logits, step.logits[::-1]]), atol=1e-6)
    np.testing.assert_allclose(values[1], value[::-1], atol=1e-6)


@pytest.mark.slow
def test_groups_and_paddings_change_no_logit(heads, batch, drawn):
    params, frozen = drawn
    grouped = build(replace(HEADS, score_rows=2, score_widths=2)).policy
    assert grouped.rows == 2 and len(grouped.widths) == 1
    found, value, _ = jax.jit(grouped.step)(params, frozen, batch, (), FIRST)
    expected, other, _ = jax.jit(heads.policy.step)(params, frozen, batch, (), FIRST)
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-5)
    np.testing.assert_allclose(value, other, atol=1e-5)


@pytest.mark.slow
def test_ppo_trains_the_head_and_its_first_ratio_is_one(heads):
    learner = heads.learner()
    state = learner.init(jax.random.key(0))
    after, metrics = jax.jit(learner.update)(state)
    assert float(metrics["first_ratio_error"]) <= 1e-5 and float(metrics["nonfinite"]) == 0
    for part in ("action", "value", "lora"):
        moved = [
            float(jnp.abs(a - b).max())
            for a, b in zip(jax.tree.leaves(after.params[part]), jax.tree.leaves(state.params[part]))
        ]
        assert max(moved) > 0, part


# --- what the base begins with ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    glam = program(FULL)
    params, _ = weights(FULL)
    return save_prior(tmp_path_factory.mktemp("models") / "prior", glam, params["params"]), params["params"]


def base_of(folder, init, key=0):
    return build(replace(HEADS, model=str(folder), init=init)).policy.base(jax.random.key(key))


def test_pretrained_weights_are_the_folders_whatever_the_key(folder):
    path, saved = folder
    for key in (0, 1):
        jax.tree.map(np.testing.assert_array_equal, base_of(path, "pretrained", key), saved)


def test_random_weights_have_the_folders_shapes_and_none_of_its_numbers(folder):
    path, saved = folder
    found, other = base_of(path, "random"), base_of(path, "random", 1)
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, saved)
    kernel = found["layers"]["mlp"]["up_proj"]["kernel"]
    assert np.all(kernel != saved["layers"]["mlp"]["up_proj"]["kernel"])
    assert np.all(kernel != other["layers"]["mlp"]["up_proj"]["kernel"])
    assert np.all(found["embed_tokens"]["embedding"] != saved["embed_tokens"]["embedding"])


def test_embeddings_alone_can_be_kept(folder):
    path, saved = folder
    found, random = base_of(path, "embeddings"), base_of(path, "random")
    np.testing.assert_array_equal(found["embed_tokens"]["embedding"], saved["embed_tokens"]["embedding"])
    rest = {name: part for name, part in random.items() if name != "embed_tokens"}
    jax.tree.map(np.testing.assert_array_equal, {name: found[name] for name in rest}, rest)
    assert np.all(found["lm_head"]["kernel"] != saved["lm_head"]["kernel"])


def test_the_published_ablations():
    """Carta et al., 2302.02662."""
    rows = {name: (PRESETS[name].init, PRESETS[name].policy) for name in ("glam", "aflan", "npae", "npa", "npe")}
    assert rows == {
        "glam": ("pretrained", "scoring"),
        "aflan": ("pretrained", "heads"),
        "npae": ("embeddings", "heads"),
        "npa": ("random", "heads"),
        "npe": ("embeddings", "scoring"),
    }
    for name in ("aflan", "npae", "npa", "npe"):
        assert replace(PRESETS[name], init="pretrained", policy="scoring") == GLAM


def test_bad_input():
    with pytest.raises(ValueError, match="init.*embeddings.*--model"):
        build(replace(HEADS, init="embeddings"))
    with pytest.raises(ValueError, match="^scoring.*mean.*heads"):
        build(replace(HEADS, scoring="mean"))
