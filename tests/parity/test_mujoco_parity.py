"""MuJoCo tasks against Gymnasium's v5, from imported states: whole episodes, to the bit on C MuJoCo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.mujoco import import_state


gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

IDS = [id for id in envs_jax.ids() if envs_jax.spec(id).entry_point.startswith("envs_jax.mujoco.")]
STARTS = ("InvertedDoublePendulum-v5", "Reacher-v5", "HalfCheetah-v5")
"""Between them they draw in every way there is."""
APART = {"Reacher-v5": 2e-2, "Hopper-v5": 1e-2, "Walker2d-v5": 1e-2, "HalfCheetah-v5": 1e-2}
"""How far MJX may be after `STEPS` of random actions where joints or feet hit something; 2e-3 elsewhere."""
STEPS = {"HalfCheetah-v5": 12}
"""30 elsewhere; with its many contacts, a difference in float32's last bits has grown to 2e-2 after 16."""
GOLDEN = np.array([0.4, 6.0, 0.6, 2.5], np.float32)
"""Weights that keep the inverted pendulum upright (`make_videos.py` of ProPS)."""
SEEDS = 2


@dataclass
class Episodes:
    """Recorded episodes of Gymnasium: lists over episodes, arrays over steps."""

    starts: list[Any]
    """`(obs, state)`, taken over after each reset."""
    actions: list[np.ndarray]
    results: list[list[tuple]]
    """The five values of `step`."""
    ends: list[np.ndarray]
    """The numbers of the last state."""


def play(theirs, env, params, seeds: int, controller=None) -> Episodes:
    """Episodes to their end; every other one under `controller`, if there is one, the rest under random actions."""
    found = Episodes([], [], [], [])
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        obs, _ = theirs.reset(seed=seed)
        found.starts.append(import_state(theirs, env, params))
        actions, results, done = [], [], False
        while not done:
            action = rng.uniform(-1.1, 1.1, theirs.action_space.shape) * theirs.action_space.high
            if controller is not None and seed % 2 == 0:
                action = controller(obs)
            actions.append(np.float32(action))
            obs, *rest = theirs.step(actions[-1])
            results.append((obs, *rest))
            done = rest[1] or rest[2]
        found.actions.append(np.stack(actions))
        found.results.append(results)
        found.ends.append(env.physics.decode(import_state(theirs, env, params)[1].physics))
    return found


def replay(env, params, episodes: Episodes):
    """All episodes in one batch, without another look at Gymnasium: the last states, and leaves `[T, E, ...]`."""
    longest = max(map(len, episodes.actions))
    actions = np.zeros((longest, len(episodes.actions), *episodes.actions[0].shape[1:]), np.float32)
    for i, taken in enumerate(episodes.actions):
        actions[: len(taken), i] = taken
    _, states = jax.tree.map(lambda *x: jnp.stack(x), *episodes.starts)

    @jax.jit
    def run(states, actions):
        def body(states, action):
            step = jax.vmap(env.step, in_axes=(None, 0, 0, None))
            obs, states, *rest = step(jax.random.key(0), states, action, params)
            return states, (obs, *rest)

        return jax.lax.scan(body, states, actions)

    last, played = run(states, actions)
    return jax.device_get(last), jax.device_get(played)


def compare(episodes: Episodes, played, *, atol: float, exact: bool):
    """Every value of every step; observations also in every bit, where `exact`."""
    for i, results in enumerate(episodes.results):
        obs, reward, terminated, truncated, infos = zip(*results)
        length = len(results)
        mine = jax.tree.map(lambda x, i=i, length=length: x[:length, i], played)
        if exact:
            np.testing.assert_array_equal(mine[0], np.float32(obs), err_msg=f"episode {i}")
        np.testing.assert_allclose(mine[0], obs, rtol=atol, atol=atol, err_msg=f"episode {i}")
        np.testing.assert_allclose(mine[1], reward, rtol=atol, atol=atol, err_msg=f"episode {i}, reward")
        np.testing.assert_array_equal(mine[2], terminated)
        np.testing.assert_array_equal(mine[3], truncated)
        assert set(mine[4]) == set(infos[0])
        for name, values in mine[4].items():
            expected = [info[name] for info in infos]
            np.testing.assert_allclose(values, expected, rtol=atol, atol=atol, err_msg=f"episode {i}, {name}")


@pytest.mark.parametrize("id", IDS)
def test_whole_episodes_to_the_bit(id):
    """Observations and states are equal in every bit, over up to 1,000 steps with contacts; rewards and info, which
    also take float32 weights, within 1e-6."""
    theirs = gymnasium.make(id)
    env, params = envs_jax.make(id, physics="c")
    episodes = play(theirs, env, params, SEEDS, (lambda obs: obs @ GOLDEN[:, None]) if id == IDS[0] else None)
    last, played = replay(env, params, episodes)
    compare(episodes, played, atol=1e-6, exact=True)
    np.testing.assert_array_equal(env.physics.decode(last.physics), np.stack(episodes.ends))
    np.testing.assert_array_equal(last.time, [len(results) for results in episodes.results])
    ended = [results[-1][2:4] for results in episodes.results]
    if id == IDS[0]:
        assert ended == [(False, True), (True, False)]  # the golden policy stands, random actions fall


@pytest.mark.parametrize(
    ("id", "kwargs"),
    [
        ("Swimmer-v5", {"forward_reward_weight": 2.0, "ctrl_cost_weight": 0.5}),
        ("HalfCheetah-v5", {"frame_skip": 3}),
        ("Walker2d-v5", {"healthy_reward": 3.0, "healthy_z_range": (0.9, 1.4)}),
        ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_angle_range": (-0.1, 0.05)}),
    ],
)
def test_options(id, kwargs):
    """Gymnasium's options: weights and ranges are parameters here, shapes and `frame_skip` options."""
    theirs = gymnasium.make(id, max_episode_steps=40, exclude_current_positions_from_observation=False, **kwargs)
    ours = {name: kwargs[name] for name in ("frame_skip",) if name in kwargs}
    env, params = envs_jax.make(id, physics="c", exclude_current_positions_from_observation=False, **ours)
    weights = {name: value for name, value in kwargs.items() if name not in ours}
    params = params.replace(max_steps=40, **weights)
    episodes = play(theirs, env, params, 2)
    compare(episodes, replay(env, params, episodes)[1], atol=1e-6, exact=True)


@pytest.mark.parametrize("id", ["InvertedDoublePendulum-v5", "Reacher-v5", "Walker2d-v5"])
def test_taken_over_in_the_middle(id):
    theirs = gymnasium.make(id)
    env, params = envs_jax.make(id, physics="c")
    theirs.reset(seed=3)
    for action in np.random.default_rng(0).uniform(-1, 1, (3, *theirs.action_space.shape)):
        seen, *_ = theirs.step(np.float32(action))
        obs, state = import_state(theirs, env, params)
        np.testing.assert_array_equal(obs, np.float32(seen))
        np.testing.assert_array_equal(state.obs, obs)
        expected = theirs.step(np.float32(action))
        found = env.step(jax.random.key(0), state, jnp.float32(action), params)
        np.testing.assert_array_equal(found[0], np.float32(expected[0]))
        assert int(found[1].time) == theirs.get_wrapper_attr("_elapsed_steps")


@pytest.mark.parametrize("id", [id if id in STARTS else pytest.param(id, marks=pytest.mark.slow) for id in IDS])
def test_spaces_and_starts(id):
    """Our own resets: the same spaces, and first observations of the same mean and spread as Gymnasium's."""
    theirs = gymnasium.make(id)
    env, params = envs_jax.make(id, physics="c")
    assert env.observation_space(params).shape == theirs.observation_space.shape
    np.testing.assert_array_equal(env.action_space(params).low, theirs.action_space.low)
    np.testing.assert_array_equal(env.action_space(params).high, theirs.action_space.high)
    assert params.max_steps == theirs.spec.max_episode_steps
    obs, _ = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(jax.random.key(0), 1000), params)
    reference = np.stack([theirs.reset(seed=seed)[0] for seed in range(200)])
    # of 200 draws a mean has a standard error of 0.07 standard deviations, and a standard deviation one of 5%
    spread = reference.std(axis=0)
    assert np.all(np.abs(np.mean(obs, axis=0) - reference.mean(axis=0)) <= 0.3 * spread + 1e-6)
    np.testing.assert_allclose(np.std(obs, axis=0), spread, rtol=0.2, atol=1e-6)


def test_import_refuses():
    walker = gymnasium.make("Walker2d-v5", xml_file="walker2d.xml")  # the sizes of walker2d_v5.xml, another friction
    walker.reset(seed=0)
    with pytest.raises(ValueError, match="geom_friction.*xml_file"):
        import_state(walker, *envs_jax.make("Walker2d-v5", physics="c"))
    env, params = envs_jax.make("Hopper-v5", physics="c")
    with pytest.raises(ValueError, match="reset"):
        import_state(gymnasium.make("Hopper-v5"), env, params)
    with pytest.raises(TypeError, match="Walker2dEnv.*Hopper"):
        import_state(gymnasium.make("Walker2d-v5"), env, params)
    for options, message in (
        ({"frame_skip": 2, "exclude_current_positions_from_observation": True}, "frame_skip"),
        ({"exclude_current_positions_from_observation": False}, "exclude_current_positions_from_observation"),
    ):
        theirs = gymnasium.make("Hopper-v5", **options)
        theirs.reset(seed=0)
        with pytest.raises(ValueError, match=message):
            import_state(theirs, env, params)


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS)
def test_mjx_stays_close(id):
    """MJX from imported states. It is float32, and reads a fingertip where a step ends, not at the integrator's last
    stage (which makes Reacher's the largest difference)."""
    pytest.importorskip("mujoco.mjx")
    steps = STEPS.get(id, 30)
    theirs = gymnasium.make(id, max_episode_steps=steps)
    env, params = envs_jax.make(id, physics="mjx")
    params = params.replace(max_steps=steps)
    episodes = play(theirs, env, params, 3)
    try:
        played = replay(env, params, episodes)[1]
    except RuntimeError as error:
        assert id == "Swimmer-v5", error
        pytest.skip(str(error))  # mujoco-mjx 3.3.0's fluid forces call a function that newer versions of jax lack
    compare(episodes, played, atol=APART.get(id, 2e-3), exact=False)
