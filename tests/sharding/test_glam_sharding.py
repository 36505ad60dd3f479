"""The whole of GLAM on eight simulated devices: the same trajectories, bit for bit, and the same update."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import jax
import numpy as np
import pytest

from llmrl_jax.rl.precision import LENGTHS_BOUND
from llmrl_jax.systems.glam.build import build
from llmrl_jax.systems.glam.config import DEMO, EmbeddedConfig


CONFIG = replace(
    DEMO,
    env="BabyAI-Text/GoToObjS4-v0",
    embedded=EmbeddedConfig(hidden_size=32, layers=2, heads=4, intermediate_size=32),
    value_width=8,
    score_rows=0,
    ppo=replace(DEMO.ppo, num_envs=16, num_steps=8, minibatches=2, microbatches=1, epochs=1, pool_size=16),
)


def run(mesh: str):
    glam = build(replace(CONFIG, mesh=mesh))
    learner = glam.learner()
    state = learner.init(jax.random.key(7))
    frozen = state.frozen
    update = jax.jit(learner.update)
    state, found = update(state)
    return state, frozen, jax.device_get(found)


@pytest.fixture(scope="module")
def alone():
    return run("")


@pytest.mark.slow
def test_a_mesh_changes_nothing_but_the_speed(alone):
    state, frozen, metrics = run("data=2,fsdp=2,tensor=2")
    one, _, expected = alone
    # the first rollout acts by the same weights: bit-equal worlds, captions and actions
    for name in ("success", "episode_return", "episode_length", "episodes"):
        assert np.array_equal(metrics[name], expected[name], equal_nan=True), name
    assert metrics["first_ratio_error"] <= 1e-5
    for a, b in zip(jax.tree.leaves(state.runner.env_state), jax.tree.leaves(one.runner.env_state), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b))
    # the update agrees within float tolerance
    for name in ("policy_loss", "value_loss", "entropy", "grad_norm"):
        assert metrics[name] == pytest.approx(expected[name], abs=2e-5), name
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(one.params), strict=True):
        assert np.allclose(np.asarray(a), np.asarray(b), atol=2e-4)
    # weights really are split
    kernel = frozen["params"]["layers"]["mlp"]["up_proj"]["kernel"]
    assert kernel.addressable_shards[0].data.size < kernel.size
    rows = state.runner.obs["text"]
    assert rows.addressable_shards[0].data.shape[0] < rows.shape[0]


SORTED = replace(CONFIG, score_rows=8, score_widths=4, ppo=replace(CONFIG.ppo, microbatches=8))
"""Groups of one prompt for each of eight devices: two in play, eight in a minibatch."""


@pytest.mark.slow
def test_lengths_by_group_on_eight_devices_change_nothing_but_the_speed(alone):
    """The same play and update as with one length on one device, in one program, and every row stays on its device."""
    one, _, expected = alone
    glam = build(replace(SORTED, mesh="data=8"))
    learner = glam.learner()
    state = learner.init(jax.random.key(7))
    step = jax.jit(glam.policy.scores)
    program = step.lower(state.params, state.frozen, state.runner.obs).compile()
    moved = re.findall(r"= (\S+) (all-gather|all-to-all|collective-permute|all-reduce)\(", program.as_text())
    assert moved == [("s32[2]{0}", "all-reduce")], "the longest prompt of each group, and nothing else"
    sizes = np.asarray(glam.policy.lengths(state.runner.obs))
    assert len(set(np.searchsorted(glam.policy.widths, sizes))) > 1, "several lengths are in use"
    assert len(glam.policy.buckets(8)) == 4, "learning chooses lengths too"
    kept = jax.tree.map(lambda x: x.sharding, state)
    update = jax.jit(learner.update, out_shardings=(kept, None)).lower(state).compile()
    text = update.as_text()
    assert set(re.findall(r"= (f\S+) all-gather\(", text)) == {"f32[16,8]{1,0}"}, "numbers of steps, no activations"
    assert not re.search(r"all-to-all\(|collective-permute\(|reduce-scatter\(", text)
    summed = re.findall(r"= (\S+|\(.*?\)) all-reduce\(", text)
    sizes = [
        math.prod(map(int, size.split(",") if size else ())) for x in summed for size in re.findall(r"\[([\d,]*)\]", x)
    ]
    trained = sum(x.size for x in jax.tree.leaves(state.params))
    assert 4 * trained <= sum(sizes) <= 4 * trained + 100, "the gradients, in the program of each length"
    after, metrics = update(state)
    assert metrics["first_ratio_error"] <= learner.bounds["first_ratio_error"] == LENGTHS_BOUND
    for name in ("success", "episode_return", "episode_length", "episodes"):
        assert np.array_equal(metrics[name], expected[name], equal_nan=True), name
    for name in ("policy_loss", "value_loss", "entropy", "grad_norm"):
        assert metrics[name] == pytest.approx(expected[name], abs=2e-5), name
    for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(one.params), strict=True):
        assert np.allclose(np.asarray(a), np.asarray(b), atol=2e-4)
    update(after)  # a compiled program: nothing is compiled again, whatever the lengths


def test_a_mesh_that_does_not_divide_the_environments_is_refused():
    with pytest.raises(ValueError, match="num_envs 12"):
        build(replace(CONFIG, mesh="data=8", ppo=replace(CONFIG.ppo, num_envs=12))).learner()
