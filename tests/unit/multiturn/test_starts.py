"""Starts that are played again: the draw and the replacement beside NumPy, and what groups gain by them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.toytext.frozen_lake import FrozenLake
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.multiturn.credit import largest_groups
from llmrl_jax.multiturn.group import GroupConfig, GroupLearner
from llmrl_jax.multiturn.starts import Draw, Starts
from llmrl_jax.run import RunConfig, train
from llmrl_jax.systems.agent import build as building
from llmrl_jax.systems.agent.config import AgentConfig
from tests.unit.multiturn.conversations import SIZES


LEVELS = ("GGGGGGG", "GSGSGSG", "GGGGGGG", "HHHHHHH", "SSSSSSS", "HHHHHHH", "FFFFFFF", "FGSGFFS")
"""Three starts from which every move leads to the goal, eight from which none does, one from which two of four do."""

PLAY = GroupConfig(num_envs=64, group=8, minibatches=1, epochs=1, episode_tokens=64)
STORED = {"replay_groups": 0.5, "starts": 16}


@cache
def learner_of(mesh: str = "", stored: bool = True) -> GroupLearner:
    """A learner with the levels, and a policy that chooses nearly at random."""
    lake = FrozenLake(desc=LEVELS, is_slippery=False, text="grid", max_steps=1)
    lake.id = "Levels"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "make_world", lambda config: (EpisodeStatistics(lake), lake.default_params))
        settings = {"tune": "full", "decoding": "constrained", "format": "action", "reply_tokens": 2}
        sizes = replace(SIZES, layers=1, hidden_size=16, intermediate_size=16)
        program = building.build(AgentConfig(env="Levels", embedded=sizes, temperature=3.0, mesh=mesh, **settings))
    config = replace(PLAY, **STORED) if stored else PLAY
    return GroupLearner(config, program.policy, program.env, program.env_params, program.mesh)


@cache
def program_of(mesh: str = ""):
    """An update without gradients, compiled once."""
    learner, traces = learner_of(mesh), []

    @jax.jit
    def update(state):
        traces.append(state)
        begin_key, play_key = jax.random.split(jax.random.fold_in(state.key, state.update))
        begun = learner.begin(state, begin_key)
        _, record, steps = learner.conversation.play(state.params, state.frozen, begun, play_key, learner.steps)
        _, report = learner.credit(record, steps, state.hparams)
        starts, counted = learner.keep_starts(state, begin_key, begun, record, steps)
        state = state.replace(starts=starts, update=state.update + 1)
        return state, report | counted, begun.env_state.env.env.index

    def checked(state):
        result = update(state)
        assert len(traces) == 1
        return result

    return checked


@cache
def played(mesh: str = "", share: float = 0.5):
    """Updates: the states, the metrics, and the cells `[updates, groups, rows]` in which episodes begin."""
    states, metrics, cells = [learner_of(mesh).init(jax.random.key(0))], [], []
    states[0].hparams["replay_groups"] *= 2 * share
    for _ in range(20):
        state, values, cell = program_of(mesh)(states[-1])
        states.append(state)
        metrics.append({name: float(x) for name, x in values.items()})
        cells.append(np.asarray(cell))
    return states, metrics, np.stack(cells).reshape(20, 8, 8)


def drawn(starts, draw, noise, count):
    """The draw as a loop: the largest of `log p (1 - p)` and Gumbel noise first."""
    weights = starts * (1 - starts)
    left, chosen = [i for i in range(len(starts)) if weights[i] > 0], []
    while left and len(chosen) < count:
        chosen.append(max(left, key=lambda i: np.log(weights[i]) + noise[i]))
        left.remove(chosen[-1])
    assert draw.index[draw.stored].tolist() == chosen and draw.stored.tolist() == [
        i < len(chosen) for i in range(len(draw.stored))
    ]
    assert len(set(draw.index.tolist())) == len(draw.index)


@pytest.mark.parametrize("useful", [0, 2, 9])
def test_starts_are_drawn_as_in_numpy(useful):
    rng = np.random.default_rng(useful)
    success = np.zeros(12, np.float32)
    success[:useful] = rng.uniform(0.05, 0.95, useful)
    success[-2:] = 1
    starts = Starts(np.arange(12), np.arange(12), jnp.asarray(rng.permutation(success)))
    for seed in range(20):
        key = jax.random.key(seed)
        draw = jax.device_get(starts.draw(key, 6, jnp.float32(0.7)))
        drawn(np.asarray(starts.success, np.float64), draw, np.asarray(jax.random.gumbel(key, (12,))), 4)


def test_starts_are_drawn_by_the_variance_of_success():
    success = jnp.array([0.5, 0.1, 0.0, 0.9, 0.25, 1.0])
    starts = Starts(jnp.arange(6), jnp.arange(6), success)
    draws = jax.vmap(lambda key: starts.draw(key, 2, jnp.float32(0.5)))(jax.random.split(jax.random.key(0), 40_000))
    share = np.bincount(np.asarray(draws.index[:, 0]), minlength=6) / 40_000
    weights = np.asarray(success * (1 - success))
    np.testing.assert_allclose(share, weights / weights.sum(), atol=0.01)
    assert draws.stored[:, 0].all() and not draws.stored[:, 1].any()


def test_starts_are_replaced_as_in_numpy():
    """The fresh start of most weight takes the place of the stored one of least, while it has more."""
    rng = np.random.default_rng(0)
    update = jax.jit(Starts.updated)
    for _ in range(50):
        size, groups = 7, 4
        values = lambda n: rng.integers(0, 9, n) / np.float32(8)  # noqa: E731
        success, mean = values(size), values(groups)
        draw = Draw(jnp.asarray(rng.permutation(size)[:groups]), jnp.asarray(rng.random(groups) < 0.5))
        begun = jnp.where(draw.stored, draw.index, 100 + jnp.arange(groups))
        starts = Starts(jnp.arange(size), {"x": jnp.arange(size)[:, None]}, jnp.asarray(success))
        ours = update(starts, draw, begun, {"x": begun[:, None]}, jnp.asarray(mean), 0.25)
        names, expected = np.arange(size), success.copy()
        for i in range(groups):
            if draw.stored[i]:
                expected[draw.index[i]] = 0.25 * expected[draw.index[i]] + 0.75 * mean[i]
        weights = expected * (1 - expected)
        fresh = sorted((i for i in range(groups) if not draw.stored[i]), key=lambda i: -mean[i] * (1 - mean[i]))
        for i, least in zip(fresh, np.argsort(weights, kind="stable")):
            if mean[i] * (1 - mean[i]) > weights[least]:
                names[least], expected[least] = 100 + i, mean[i]
        np.testing.assert_array_equal(ours.obs, names)
        np.testing.assert_array_equal(ours.env["x"][:, 0], names)
        np.testing.assert_allclose(ours.success, expected, rtol=1e-6)


def test_groups_are_seldom_idle_where_starts_are_played_again():
    """Of twelve levels eleven are too easy or impossible for a policy that does not learn."""
    states, metrics, cells = played()
    _, fresh, others = played(share=0.0)
    idle, usual = (np.mean([x["idle_groups"] for x in values[5:]]) for values in (metrics, fresh))
    assert usual > 0.75 and idle < usual - 0.25
    assert all(np.isnan(x["success_stored"]) for x in (metrics[0], *fresh))
    assert 0.3 < np.mean([x["success_stored"] for x in metrics[5:]]) < 0.8
    # groups begin in one state, and stored ones are of the one level of use
    useful = np.asarray(states[-1].starts.success)
    useful = (useful > 0) & (useful < 1)
    assert 0 < useful.sum() == metrics[-1]["useful_starts"]
    level = set(np.asarray(states[-1].starts.env.env.index)[useful].tolist())
    assert (cells == cells[:, :, :1]).all() and level == {7 * 7 + 2} <= set(cells[-1, :4, 0].tolist())
    np.testing.assert_array_equal(cells[:, 4:], others[:, 4:])


def test_a_state_that_is_read_goes_on_bit_for_bit():
    states, *_ = played()
    middle = jax.device_get(states[10].starts)
    assert (middle.success > 0).any()
    state = states[10].replace(starts=jax.tree.map(jnp.asarray, middle))
    for expected in states[11:14]:
        state, *_ = program_of()(state)
        jax.tree.map(np.testing.assert_array_equal, state.starts, expected.starts)


@pytest.mark.slow
def test_starts_are_the_same_over_a_mesh():
    (states, metrics, cells), (expected, values, others) = played("data=8"), played()
    np.testing.assert_array_equal(cells, others)
    jax.tree.map(np.testing.assert_array_equal, states[-1].starts, expected[-1].starts)
    assert [x["idle_groups"] for x in metrics] == [x["idle_groups"] for x in values]
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(states[-1].starts))


def test_nothing_of_them_is_in_a_program_without(monkeypatch):
    state, key = learner_of().init(jax.random.key(0)), jax.random.key(1)
    fresh = state.replace(hparams=state.hparams | {"replay_groups": jnp.float32(0)})
    begun = jax.jit(learner_of().begin)(fresh, key)
    for name in ("draw", "rows", "updated"):
        monkeypatch.setattr(Starts, name, None)
    learner = learner_of(stored=False)
    state = state.replace(starts=())
    assert learner.first_starts(key) == () == jax.eval_shape(learner.update, state)[0].starts
    without = jax.jit(learner.begin)(state, key)
    for a, b in zip(*(jax.tree.leaves((x.obs, x.env_state)) for x in (begun, without)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit(tmp_path):
    """Four updates at once, and the last two again from the files of the second."""
    learner = learner_of().learner()

    def run(**options):
        settings = RunConfig(name="run", out=str(tmp_path), progress="off", checkpoint_every=2, **options)
        return train(learner, settings, num_updates=4)

    first, second = run(), run(resume=True, resume_from=2)
    numbers = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    for a, b in zip(*(jax.tree.leaves(x.state) for x in (first, second)), strict=True):
        np.testing.assert_array_equal(numbers(a), numbers(b))
    assert (first.state.starts.success > 0).any()


def test_settings_are_checked():
    with pytest.raises(ValueError, match=r"replay_groups 0\.05 .*8 groups"):
        replace(PLAY, replay_groups=0.05)
    with pytest.raises(ValueError, match=r"replay_groups 0\.97 .*8 groups"):
        replace(PLAY, replay_groups=0.97)
    with pytest.raises(ValueError, match=r"starts.*7.*8"):
        replace(PLAY, replay_groups=0.5, starts=7)
    with pytest.raises(ValueError, match=r"starts.*7"):
        replace(PLAY, starts=7)


def test_top_p_keeps_the_fewest_groups_with_a_share_of_the_deviation():
    rng, largest = np.random.default_rng(0), jax.jit(largest_groups, static_argnums=1)
    for share in (0.1, 0.5, 0.9, 1.0):
        for _ in range(20):
            deviation = rng.integers(0, 4, 7) / np.float32(4)
            ours = np.asarray(largest(jnp.asarray(deviation), "top_p", jnp.float32(share)))
            total, expected = 0.0, np.zeros(7, bool)
            for i in np.argsort(-deviation, kind="stable"):
                if deviation[i] > 0 and total < np.float32(share) * deviation.sum():
                    expected[i], total = True, total + deviation[i]
            np.testing.assert_array_equal(ours, expected)
    assert not largest_groups(jnp.zeros(3), "top_p", 0.9).any()
    assert largest_groups(jnp.zeros(3), "share", 0.1).sum() == 1
