"""One world and one policy with memory, played by everything that plays: each against a plain loop."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.spaces import Box, Discrete
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents import evaluate
from llmrl_jax.agents.agent import SimpleAgent, play_episodes, reset_key
from llmrl_jax.agents.evaluate import make_evaluator, play_random
from llmrl_jax.agents.play import Actor, actor_of, advance, begin, key_pairs, make_player, make_recorder, record_episode
from llmrl_jax.agents.population import episode_keys, make_population_evaluator
from llmrl_jax.core import activity
from llmrl_jax.core.activity import Activity
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.policy import Policy


class Walk(envs_jax.Environment):
    """A goal some places ahead; action 1 goes there, every step pays by chance, and the tenth is the last."""

    id = "Walk"
    default_params = None
    task_names = ("near", "far")

    def reset(self, key, params):
        goal = jax.random.randint(key, (), 1, 7)
        return jnp.stack([goal, 0]).astype(jnp.float32), (goal, jnp.int32(0), jnp.int32(0))

    def step(self, key, state, action, params):
        goal, place, t = state
        place, t = place + action, t + 1
        reached = place >= goal
        obs = jnp.stack([goal, place]).astype(jnp.float32)
        info = {"success": reached, "task": (goal > 3).astype(jnp.int32)}
        return obs, (goal, place, t), jax.random.uniform(key), reached, t >= 10, info

    def observation_space(self, params):
        return Box(0.0, 10.0, (2,))

    def action_space(self, params):
        return Discrete(2)

    def describe(self, obs):
        return {"text": f"goal {obs[0]:.0f}, place {obs[1]:.0f}"}

    def render(self, state):
        return np.full((1, 1, 3), int(state[1]), np.uint8)


class Patient(Policy):
    """Goes with a probability that grows with the steps since the episode began, which only its memory knows."""

    def initial_carry(self, rows):
        return jnp.zeros(rows)

    def step(self, params, frozen, obs, carry, first):
        waited = jnp.where(first, 0.0, carry)
        logits = jnp.stack([jnp.zeros_like(waited), params * waited - 1], axis=-1)
        return Categorical(logits), 10 * waited, waited + 1

    def estimate(self, params, frozen, obs):
        return 1 / obs[:, 0]


ENV, PARAMS, POLICY = Walk(), jnp.float32(0.7), Patient()
SEEN = EpisodeStatistics(ENV)
KEY = jax.random.key(5)


@functools.cache
def programs():
    return jax.jit(ENV.reset), jax.jit(ENV.step), jax.jit(POLICY.step)


def by_hand(reset_key, step_key, greedy):
    """Observations, actions, rewards and the last `info` of one episode."""
    reset, step, act = programs()
    obs, state = reset(reset_key, None)
    seen, actions, rewards, carry, over = [obs], [], [], jnp.zeros(1), False
    while not over:
        act_key, world_key = jax.random.split(jax.random.fold_in(step_key, len(actions)))
        distribution, _, carry = act(PARAMS, (), obs[None], carry, jnp.array([not actions]))
        action = distribution.mode() if greedy else distribution.sample(act_key)
        obs, state, reward, terminated, truncated, info = step(world_key, state, action[0], None)
        seen, actions, rewards = [*seen, obs], [*actions, int(action[0])], [*rewards, float(reward)]
        over = bool(terminated | truncated)
    return np.stack(seen), actions, rewards, info


@pytest.mark.parametrize("greedy", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_evaluator_beside_a_plain_loop(greedy, monkeypatch):
    """Nine episodes in four lanes that are refilled, and in nine."""
    few, all_ = (make_evaluator(SEEN, None, POLICY, episodes=9, lanes=lanes) for lanes in (4, 20))
    played = few(PARAMS, (), KEY, greedy=greedy)
    for i in range(9):
        seen, actions, rewards, info = by_hand(*jax.random.split(jax.random.fold_in(KEY, i)), greedy)
        assert (played.episode_length[i], played.success[i]) == (len(actions), info["success"])
        assert played.episode_return[i] == pytest.approx(sum(rewards), abs=1e-5)
        assert (played.task[i], played.estimate[i]) == (seen[0][0] > 3, np.float32(1 / seen[0][0]))
    jax.tree.map(np.testing.assert_array_equal, played, all_(PARAMS, (), KEY, greedy=greedy))
    assert len(set(played.episode_length.tolist())) > 3
    # one step between two looks of the host: the same episodes, and a count of those that have ended
    counts = []

    class Counted(Activity):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "done":
                counts.append(value)

    with monkeypatch.context() as patched:
        patched.setattr(evaluate, "FIRST_STEPS", 1)
        patched.setattr(evaluate, "CHUNK_SECONDS", 0.0)
        patched.setattr(activity, "Activity", Counted)
        jax.tree.map(np.testing.assert_array_equal, played, few(PARAMS, (), KEY, greedy=greedy))
    looks = counts[counts.index(0) + 1 :]
    assert looks == sorted(looks) and 0 < looks[0] + 1 < looks[-1] == 9
    assert len(looks) >= played.episode_length.sum() / 4  # four lanes


def test_an_evaluation_is_compiled_once(caplog):
    """Weights of a checkpoint lie on a device by request, new ones by default, and seeds by default."""
    run = make_evaluator(SEEN, None, POLICY, episodes=9, lanes=4)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        run(jax.device_put(PARAMS, jax.devices()[0]), (), KEY, greedy=True)
        run(jax.device_put(PARAMS, jax.devices()[0]), (), KEY, greedy=False)
    said = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("Compiling jit(play) ") for line in said) == 1
    assert sum(line.startswith("Compiling jit(start) ") for line in said) == 1


def test_demonstrations_beside_a_plain_loop():
    """Seven episodes on two rows, five steps between two looks of the host."""
    agent = SimpleAgent(None, ENV, None, POLICY, None)
    see = lambda state: {"place": state[1]}  # noqa: E731
    played = play_episodes(agent, PARAMS, (), seed=4, episodes=7, record=see, batch_size=2, chunk=5)
    _, step_key = jax.random.split(jax.random.key(4))
    for i, episode in enumerate(played):
        seen, actions, rewards, info = by_hand(reset_key(4, i), jax.random.fold_in(step_key, i), greedy=False)
        assert (episode.number, episode.success) == (i, info["success"])
        assert episode.action.tolist() == actions and episode.observed["place"].tolist() == seen[:-1, 1].tolist()
        np.testing.assert_allclose(episode.reward, rewards, rtol=1e-6)
        ends = [False] * (len(actions) - 1) + [True]
        assert (episode.terminated | episode.truncated).tolist() == ends
    assert i == 6


def test_the_player_beside_a_plain_loop(caplog):
    """Seven episodes in two lanes that are refilled, and in seven; other weights run the same program."""
    play = make_player(ENV, None, actor_of(POLICY), lambda obs, state: obs, lambda step: step.aux[1], chunk=3)
    keys = key_pairs(KEY, 9)
    np.testing.assert_array_equal(jax.random.key_data(keys[2:]), jax.random.key_data(key_pairs(KEY, 7, 2)))
    few = list(play((PARAMS, ()), keys[:7], lanes=2))
    for i, episode in enumerate(few):
        seen, actions, rewards, _ = by_hand(*jax.random.split(jax.random.fold_in(KEY, i)), greedy=False)
        steps = episode.transitions(goal=episode.extra)
        assert episode.number == i and steps.action.tolist() == actions
        np.testing.assert_array_equal(steps.obs, seen[:-1])
        np.testing.assert_array_equal(steps.next_obs, seen[1:])
        np.testing.assert_array_equal(episode.view_at(len(episode)), seen[-1])
        np.testing.assert_allclose(steps.reward, rewards, rtol=1e-6)
        assert steps.goal.tolist() == [10 * t for t in range(len(actions))]  # the critic's values
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for one, other in zip(few, play((PARAMS, ()), keys[:7]), strict=True):
            jax.tree.map(np.testing.assert_array_equal, one.transitions(), other.transitions())
        list(play((2 * PARAMS, ()), keys[2:]))
    assert sum(record.getMessage().startswith("Compiling jit(continue_) ") for record in caplog.records) == 1


class Paid(Walk):
    """Environment whose parameter multiplies rewards."""

    def step(self, key, state, action, params):
        obs, state, reward, *rest = super().step(key, state, action, params)
        return obs, state, reward * params, *rest


def test_an_episode_that_a_limit_ends_is_cut_off():
    env = Walk()
    play = make_player(
        env, None, lambda _: Actor(lambda obs, carry, first, keys: (first * 0, carry, ())), lambda o, s: o, max_steps=3
    )
    (episode,) = play((), key_pairs(jax.random.key(0), 1))
    assert len(episode) == 3
    assert episode.terminated.tolist() == [False] * 3 and episode.truncated.tolist() == [False, False, True]


def test_an_evaluator_with_outcomes_and_parameters_of_its_own():
    run = make_evaluator(
        Paid(), jnp.float32(1), POLICY, episodes=5, lanes=2, outcomes=lambda step: {"last": step.reward}
    )
    usual, double = (run(PARAMS, (), KEY, greedy=False, env_params=given) for given in (None, jnp.float32(2)))
    last = [by_hand(*jax.random.split(jax.random.fold_in(KEY, i)), greedy=False)[2][-1] for i in range(5)]
    np.testing.assert_allclose(usual["last"], last, rtol=1e-6)
    np.testing.assert_allclose(double["last"], 2 * np.array(last), rtol=1e-6)


def test_a_policy_without_an_estimate_gives_none():
    class Silent(Patient):
        estimate = None

    assert make_evaluator(SEEN, None, Silent(), episodes=2)(PARAMS, (), KEY, greedy=True).estimate is None


def test_an_environment_that_reports_no_success_has_none():
    class Paid(Walk):
        def step(self, key, state, action, params):
            *step, info = super().step(key, state, action, params)
            return *step, {"task": info["task"]}

    assert play_random(EpisodeStatistics(Paid()), None, KEY, episodes=2).success is None


def test_random_actions_beside_a_plain_loop():
    """The starts of the evaluator; the actions of the agent alone; and an end after three steps."""
    for actions, most in ((None, None), (1, 3)):
        played = play_random(SEEN, None, KEY, episodes=9, num_actions=actions, max_steps=most)
        count = actions or SEEN.action_space(None).n
        for i in range(9):
            reset_key, step_key = jax.random.split(jax.random.fold_in(KEY, i))
            reset, step, _ = programs()
            obs, state = reset(reset_key, None)
            total, length, over = 0.0, 0, False
            while not over:
                act_key, world_key = jax.random.split(jax.random.fold_in(step_key, length))
                action = Categorical(jnp.zeros((1, count))).sample(act_key)[0]
                obs, state, reward, terminated, truncated, info = step(world_key, state, action, None)
                total, length = total + float(reward), length + 1
                over = bool(terminated | truncated) or length == most
            assert (played.episode_length[i], played.episode_return[i]) == (length, pytest.approx(total, abs=1e-5))
    assert set(played.episode_length.tolist()) == {3}  # action 0 alone goes nowhere


def test_evaluation_needs_an_episode():
    with pytest.raises(ValueError, match="episodes.*0.*1"):
        make_evaluator(SEEN, None, POLICY, episodes=0)
    with pytest.raises(ValueError, match="lanes.*0.*1"):
        make_evaluator(SEEN, None, POLICY, episodes=1, lanes=0)


@pytest.mark.parametrize("greedy", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_recorded_episode_beside_a_plain_loop(greedy):
    seen, actions, rewards, info = by_hand(*jax.random.split(KEY), greedy)
    frames, success = record_episode(ENV, None, POLICY, PARAMS, (), KEY, greedy=greedy)
    assert success == info["success"] and len(frames) == len(actions) + 1
    assert [frame.action for frame in frames] == [*actions, -1]
    np.testing.assert_allclose([frame.reward for frame in frames], [0.0, *rewards], rtol=1e-6)
    assert [frame.text for frame in frames] == [ENV.describe(obs) for obs in seen]
    assert [frame.picture[0, 0, 0] for frame in frames] == [obs[1] for obs in seen]
    assert [frame.value for frame in frames] == [*(10.0 * t for t in range(len(actions))), 0.0]
    odds = np.exp([0.7 * t - 1 for t in range(len(actions))])
    np.testing.assert_allclose([frame.probabilities[1] for frame in frames[:-1]], odds / (1 + odds), rtol=1e-5)
    assert frames[-1].probabilities.shape == (0,)


class Steady:
    """Goes where its one parameter is above 0."""

    kind, num_params = "steady", 1

    def act(self, params, obs):
        return (params[0] > 0).astype(jnp.int32)


def steady(params):
    return Actor(lambda obs, carry, first, keys: ((params > 0).astype(jnp.int32), carry, ()), draws=False)


def test_a_recording_is_the_episode_that_a_population_evaluator_plays():
    """Without draws the world has the whole key of each step; chunks of the host and a limit change nothing else."""
    keys = episode_keys(KEY, 3)
    played = make_population_evaluator(ENV, None, Steady(), max_steps=4)(jnp.array([[1.0], [-1.0]]), keys)
    record = make_recorder(ENV, None, steady, max_steps=4, chunk=3)
    for row, value in enumerate((1.0, -1.0)):
        for i, key in enumerate(keys):
            recording = record(jnp.array([value]), key)
            assert len(recording) == played.lengths[row, i] <= 4
            assert recording.reward.sum() == pytest.approx(float(played.returns[row, i]), rel=1e-6)
            reset_key, step_key = jax.random.split(key)
            drawn = [jax.random.uniform(jax.random.fold_in(step_key, t)) for t in range(len(recording))]
            np.testing.assert_array_equal(recording.reward, np.asarray(drawn))
            assert recording.view_at(len(recording))["state"][2] == len(recording)
            assert recording.view_at(0)["obs"][0] == ENV.reset(reset_key, None)[0][0]
    assert played.lengths[1].tolist() == [4, 4, 4] and min(played.lengths[0].tolist()) < 4


def test_rows_that_are_over_stand_still():
    actor = steady(jnp.array([1.0, -1.0]))
    keys = jax.vmap(jax.random.split)(jax.random.split(KEY, 2))
    rows = begin(ENV, None, actor, keys[:, 0], keys[:, 1])
    go_on = jax.jit(lambda rows: advance(ENV, None, actor, rows))
    ends = []
    for _ in range(12):
        rows, step = go_on(rows)
        ends.append(step.ended.tolist())
    goal = int(rows.state[0][0])
    assert np.asarray(rows.t).tolist() == [goal, 10] and rows.done.all()
    assert np.asarray(rows.state[1]).tolist() == [goal, 0] == np.asarray(rows.obs)[:, 1].tolist()
    assert [t for t, end in enumerate(ends, 1) if end[0]] == [goal], "an episode ends once"
