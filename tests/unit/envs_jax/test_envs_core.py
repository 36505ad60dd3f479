"""The core of envs_jax: registry, spaces, reset policies, wrappers, and the debug worlds' rules."""

from __future__ import annotations

import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import registry, spaces
from envs_jax.control.debug import Aim, Catch, CatchState, DebugParams, DebugState, Match, Recall
from envs_jax.env import Environment
from envs_jax.rejection import first_accepted
from envs_jax.resets import VectorEnv, VectorState, hashed, select
from envs_jax.wrappers import EpisodeStatistics, ScaleReward


# --- registry ---------------------------------------------------------------------------------------------------------


def test_make_takes_options_in_the_id_and_by_keyword():
    env, params = envs_jax.make("Debug-Match-v0?n=7")
    assert env.n == 7 and env.id == "Debug-Match-v0?n=7" and params.length == 20
    with pytest.raises(ValueError, match=r"'Debug-Match-v0\?n'.*NAME=VALUE"):
        envs_jax.make("Debug-Match-v0?n")
    assert envs_jax.make("Debug-Match-v0?n=7", n=5)[0].n == 5
    assert envs_jax.make("BabyAI-GoToLocal-v0?max_steps=24")[1].max_steps == 24
    assert envs_jax.make("CartPole-v1?sutton_barto_reward=true")[0].sutton_barto_reward is True


@pytest.mark.parametrize(
    ("id", "error", "message"),
    [
        ("BabyAI-GoToLocal-v0?done_actions=no", TypeError, "done_actions.*'no'; true.*false"),
        ("BabyAI-GoToLocal-v0?language=1", TypeError, "'BabyAI-GoToLocal-v0': language.*1"),
        ("BabyAI-GoToLocal-v0?max_steps=-1", ValueError, "max_steps.*-1"),
        ("FrozenLake-v1?max_steps=1e2", TypeError, "max_steps.*100.0"),
        ("Pendulum-v1?g=true", TypeError, "g.*True"),
        ("CartPole-v1?sutton_barto_reward=2", TypeError, "sutton_barto_reward.*2; true.*false"),
        ("CartPol-v1", KeyError, "mean 'CartPole-v1'"),
        ("BabyAI-GoToLocl-v0", KeyError, "BabyAI-GoToLocal-v0"),
        ("CartPole-v1?sutton_barto=true", TypeError, "'sutton_barto_reward'"),
    ],
)
def test_wrong_names_get_the_nearest(id, error, message):
    with pytest.raises(error, match=message):
        envs_jax.make(id)


def test_an_id_is_taken_once():
    envs_jax.register("CartPole-v1", "envs_jax.control.cartpole:CartPole")  # the same again is harmless
    with pytest.raises(ValueError, match="envs_jax.control.cartpole:CartPole"):
        envs_jax.register("CartPole-v1", "elsewhere:CartPole")
    with pytest.raises(ValueError, match="'brax/ant'"):
        envs_jax.register("brax/ant", "elsewhere:Ant")


def test_an_id_of_a_folder_is_taken_before_the_folder_is_read():
    """In a process where nothing has asked for a world yet."""
    code = "import envs_jax, sys\ntry:\n envs_jax.register('FrozenLake8x8-v1', 'elsewhere:Lake')\n"
    code += "except ValueError as error:\n print(error, 'jax' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == (
        "the id 'FrozenLake8x8-v1' is registered already, as envs_jax.toytext.frozen_lake:FrozenLake (map_name='8x8', "
        "max_steps=200); choose another id for elsewhere:Lake False"
    )


def test_every_world_says_what_it_is():
    for id in envs_jax.ids():
        spec = envs_jax.spec(id)
        assert spec.family in registry.WORLDS and 8 < len(spec.about) < 120 and not spec.about.endswith("."), id
    assert registry.Spec("mine", "my.worlds:make").family == "my"


def test_worlds_that_cannot_be_imported_are_not_left_out_later(monkeypatch):
    monkeypatch.setattr(registry, "_registered", False)
    with monkeypatch.context() as broken, pytest.raises(ModuleNotFoundError, match="no_such_world"):
        broken.setattr(registry, "WORLDS", ["toytext", "no_such_world", "babyai"])
        envs_jax.ids()
    assert "CartPole-v1" in envs_jax.ids() and registry._registered


def test_ids_by_prefix():
    assert envs_jax.ids("CartPole") == ["CartPole-v1"]
    assert len(envs_jax.ids()) == len(set(envs_jax.ids()))


class Loud(ScaleReward):
    """A world that is a wrapped one, as `register` takes it too."""

    def __init__(self, scale: float = 2.0):
        super().__init__(EpisodeStatistics(envs_jax.make("CartPole-v1")[0]), scale)


def test_an_id_may_name_the_file_or_module_that_registers_it(tmp_path, monkeypatch):
    """Gymnasium's form, so that a new process, as a job of a sweep, knows an environment of one's own."""
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = "import envs_jax\nfrom envs_jax.control.debug import Aim\nenvs_jax.register('My-Aim', 'my_aim:Aim')\n"
    (tmp_path / "my_aim.py").write_text(code)
    for id in (f"{tmp_path / 'my_aim.py'}:My-Aim", "my_aim:My-Aim"):
        env, _ = envs_jax.make(id)
        assert (type(env).__name__, env.id) == ("Aim", id)
    with pytest.raises(FileNotFoundError, match="nowhere.py"):
        envs_jax.make("nowhere.py:My-Aim")
    (tmp_path / "json.py").write_text(code)
    with pytest.raises(ImportError, match="json.*rename"):
        envs_jax.make(f"{tmp_path / 'json.py'}:My-Aim")
    with pytest.raises(KeyError, match="My-Aims.*My-Aim"):
        envs_jax.make("my_aim:My-Aims")


def test_a_wrapped_world_is_registered_under_its_own_id(monkeypatch):
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    monkeypatch.setitem(sys.modules, "loud", types.SimpleNamespace(Loud=Loud))
    envs_jax.register("Loud-v0", "loud:Loud", scale=3.0)
    env, params = envs_jax.make("Loud-v0?scale=5")
    assert env.id == "Loud-v0?scale=5" and env.scale == 5 and params == env.default_params
    assert env.unwrapped.id == "CartPole-v1"  # which is what it is
    assert EpisodeStatistics(env).id == VectorEnv(env, 2).id == env.id
    _, state = env.reset(jax.random.key(0), params)
    assert float(env.step(jax.random.key(0), state, jnp.int32(0), params)[2]) == 5.0


# --- spaces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Box(-1.0, 2.0, (2, 3)),
        spaces.Box(np.array([-0.1, 0.7]), 1.3, (2,)),  # bounds in float64
        spaces.Box(0, 255, (4,), np.uint8),
        spaces.Box(False, True, (9,), np.bool_),
        spaces.Box(np.array([-np.inf, 0], np.float32), np.array([np.inf, 1], np.float32), (2,)),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (1,))}),
    ],
)
def test_samples_are_members_and_so_are_stacks(space):
    for i in range(20):
        assert space.contains(space.sample(jax.random.key(i)))
    stacked = spaces.stack(space, 3)
    member = stacked.sample(jax.random.key(0))
    assert stacked.contains(member)
    assert space.contains(jax.tree.map(lambda x: x[1], member))
    with jax.enable_x64(True):
        jax.tree.map(np.testing.assert_array_equal, stacked.sample(jax.random.key(0)), member)


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (0, 2**31 - 1, np.int32),
        (-(2**31), 2**31 - 1, np.int32),
        (0, 2**32 - 1, np.uint32),
        (2**31 + 5, 2**32 - 1, np.uint32),
    ],
)
def test_integers_are_drawn_up_to_the_largest_of_their_type(low, high, dtype):
    draws = np.asarray(spaces.Box(low, high, (4000,), dtype).sample(jax.random.key(0)))
    assert spaces.Box(low, high, (4000,), dtype).contains(draws)
    np.testing.assert_allclose(draws.mean(), (low + high) / 2, atol=(high - low) / 50)
    np.testing.assert_allclose(draws.std(), (high - low) / 12**0.5, rtol=0.05)


def test_membership_is_strict():
    assert not spaces.Discrete(3).contains(3)
    assert not spaces.Discrete(3).contains(np.float32(1))
    box = spaces.Box(0.0, 1.0, (2,))
    assert not box.contains(np.array([0, 1.5], np.float32))
    assert not box.contains(np.array([0, 1], np.float64))
    assert not box.contains(np.zeros(3, np.float32))
    assert not spaces.Dict({"a": box}).contains({"b": np.zeros(2, np.float32)})
    integers = np.asarray([spaces.Box(0, 3, (), np.uint8).sample(jax.random.key(i)) for i in range(100)])
    assert set(integers.tolist()) == {0, 1, 2, 3}  # both bounds are reached


# --- reset policies ---------------------------------------------------------------------------------------------------


class Counter(Environment):
    """The observation is (a number drawn at the reset, steps since); row `i` ends after `1 + i` steps if told so."""

    @property
    def default_params(self):
        return {"length": jnp.int32(3)}

    def reset(self, key, params):
        state = jnp.stack([jax.random.uniform(key), 0.0])
        return state, state

    def step(self, key, state, action, params):
        state = state.at[1].add(1)
        over = state[1] >= params["length"]
        return state, state, state[1], jnp.bool(False), over, {}

    def observation_space(self, params):
        return spaces.Box(0.0, 100.0, (2,))

    def action_space(self, params):
        return spaces.Discrete(1)


def played(policy, steps=4, **options):
    """Observations `[steps + 1, N, 2]` and the five other values `[steps, ...]`."""
    env = VectorEnv(Counter(), 4, policy=policy, **options)
    params = env.default_params
    obs, state = env.reset(jax.random.key(0), params)
    seen, rest, step = [obs], [], jax.jit(env.step)
    for t in range(steps):
        obs, state, *others = step(jax.random.key(t + 1), state, jnp.zeros(4, jnp.int32), params)
        seen.append(obs)
        rest.append(others)
    return np.stack(seen), jax.tree.map(lambda *x: np.stack(x), *rest), state


@pytest.mark.parametrize(
    "options", [{"policy": "pool", "pool_size": 8}, {"policy": "always"}, {"policy": "optimistic", "reset_ratio": 2}]
)
def test_resets_within_the_step(options):
    obs, (reward, _, truncated, info), _ = played(**options)
    np.testing.assert_array_equal(obs[:, 0, 1], [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(info["final_observation"][:, 0, 1], [1, 2, 3, 1])
    np.testing.assert_array_equal(truncated[:, 0], [False, False, True, False])
    np.testing.assert_array_equal(reward[:, 0], [1, 2, 3, 1])
    assert np.all(obs[3, :, 0] != obs[0, :, 0])  # a fresh episode in each row


def test_pool_gives_prepared_episodes_and_refresh_renews_them():
    env = VectorEnv(Counter(), 64, policy="pool", pool_size=3)
    params = {"length": jnp.int32(1)}
    _, state = env.reset(jax.random.key(0), params)
    obs = env.step(jax.random.key(1), state, jnp.zeros(64, jnp.int32), params)[0]
    assert set(np.asarray(obs[:, 0]).tolist()) == set(np.asarray(state.pool[0][:, 0]).tolist())
    fresh = env.refresh(jax.random.key(2), state, params)
    assert not set(np.asarray(fresh.pool[0][:, 0]).tolist()) & set(np.asarray(state.pool[0][:, 0]).tolist())
    np.testing.assert_array_equal(fresh.env, state.env)


def test_every_prepared_episode_is_chosen_equally_often():
    keys = jax.random.split(jax.random.key(0), 500)
    choices = np.asarray(jax.vmap(lambda k: hashed(k, 40) % 10)(keys)).astype(int)  # 20,000 of 10
    assert np.all(np.abs(np.bincount(choices.ravel()) - 2000) < 220)  # 5 standard deviations
    between = (choices[:, 1:] - choices[:, :-1]) % 10  # neighbours are independent of each other
    assert np.all(np.abs(np.bincount(between.ravel()) - 1950) < 220)


def test_drawing_again_gives_each_row_its_own_first_accepted_try():
    """A sixth of all draws is accepted; rows draw alike in a batch, in two axes of batch, and alone."""

    def attempt(number, seed):
        word = (seed ^ number.astype(jnp.uint32)) * jnp.uint32(0x85EBCA6B)
        drawn = (word ^ word >> 15) * jnp.uint32(0xC2B2AE35) >> 16
        return drawn % 6 == 0, {"number": number, "drawn": jnp.stack([drawn, seed])}

    seeds = jnp.arange(60, dtype=jnp.uint32) * 977
    accepted, values = jax.vmap(lambda seed: jax.vmap(lambda n: attempt(n, seed))(jnp.arange(1, 80)))(seeds)
    first = np.asarray(accepted).argmax(1)
    assert np.asarray(accepted).any(1).all() and first.min() == 0 and first.max() > 12
    expected = jax.tree.map(lambda x: np.asarray(x)[np.arange(60), first], values)
    draw = jax.vmap(lambda seed: first_accepted(attempt, seed))
    jax.tree.map(np.testing.assert_array_equal, jax.jit(draw)(seeds), expected)
    twice = jax.jit(jax.vmap(draw))(seeds.reshape(5, 12))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.reshape(b.shape), b), twice, expected)
    alone = jax.jit(lambda seed: first_accepted(attempt, seed))(seeds[7])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[7]), alone, expected)


def test_no_row_waits_for_the_unluckiest():
    made = []

    def attempt(number, needed, bonus):
        jax.debug.callback(made.append, number)
        return number >= needed, number + bonus

    needed = jnp.asarray([1, 1, 1, 1, 1, 2, 1, 100])
    found = jax.jit(jax.vmap(lambda n, bonus: first_accepted(attempt, n, bonus), (0, None)))(needed, jnp.int32(1000))
    jax.effects_barrier()
    np.testing.assert_array_equal(found, 1000 + needed)
    # all eight; then two rows with four places each; then tries 6 to 13, 14 to 21, ..., 94 to 101 of the last one
    assert len(made) == 8 * (1 + 1 + 12)
    assert sorted(set(map(int, made))) == list(range(1, 102))


def test_optimistic_rows_share_only_when_they_must():
    env = VectorEnv(Counter(), 4, policy="optimistic", reset_ratio=2)
    params = {"length": jnp.int32(2)}
    _, state = env.reset(jax.random.key(0), params)
    apart = state.replace(env=state.env.at[:, 1].set(jnp.array([1.0, 0.0, 1.0, 0.0])))  # rows 0 and 2 end now
    obs = env.step(jax.random.key(1), apart, jnp.zeros(4, jnp.int32), params)[0]
    assert obs[0, 0] != obs[2, 0]
    together = state.replace(env=state.env.at[:, 1].set(1.0))
    obs = env.step(jax.random.key(1), together, jnp.zeros(4, jnp.int32), params)[0]
    assert len(set(np.asarray(obs[:, 0]).tolist())) == 2


def test_next_step_pays_nothing_for_the_reset():
    """Gymnasium's own vector semantics."""
    obs, (reward, _, truncated, info), _ = played("next_step", steps=5)
    np.testing.assert_array_equal(obs[:, 0, 1], [0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(reward[:, 0], [1, 2, 3, 0, 1])
    np.testing.assert_array_equal(truncated[:, 0], [False, False, True, False, False])
    np.testing.assert_array_equal(info["final_observation"], obs[1:])


def test_none_resets_nothing():
    obs, (_, _, truncated, _), _ = played("none")
    np.testing.assert_array_equal(obs[:, 0, 1], [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(truncated[:, 0], [False, False, True, True])


def test_a_row_does_not_depend_on_the_number_of_rows():
    few, many = (VectorEnv(Match(), n, policy="pool", pool_size=4) for n in (2, 16))
    for env in (few, many):
        env.obs, state = jax.jit(env.reset)(jax.random.key(0), env.default_params)
        length = DebugParams(length=1)  # every step ends an episode, so the choice from the pool is seen too
        env.next = jax.jit(env.step)(jax.random.key(1), state, jnp.zeros(env.num_envs, jnp.int32), length)
    np.testing.assert_array_equal(few.obs, many.obs[:2])
    np.testing.assert_array_equal(few.next[0], many.next[0][:2])
    np.testing.assert_array_equal(few.next[5]["final_observation"], many.next[5]["final_observation"][:2])


def test_parameters_per_row():
    env = VectorEnv(Counter(), 3, policy="always", batched_params=True)
    params = {"length": jnp.array([1, 2, 3])}
    _, state = env.reset(jax.random.key(0), params)
    truncated = env.step(jax.random.key(1), state, jnp.zeros(3, jnp.int32), params)[4]
    assert truncated.tolist() == [True, False, False]


def test_spaces_of_parameters_per_row():
    n = 3
    for id, changed in (
        ("CartPole-v1", {"gravity": [9.0, 9.8, 11.0], "x_limit": [2.4, 2.4, 3.0]}),
        ("Pendulum-v1", {"max_torque": [1.0, 2.0, 4.0], "gravity": jnp.array([9.0, 10.0, 11.0])}),
    ):
        world, params = envs_jax.make(id)
        env = VectorEnv(world, n, policy="always", batched_params=True)
        rows = jax.tree.map(lambda x: np.full(n, x), params)
        rows = rows.replace(**{name: jnp.asarray(x) for name, x in changed.items()})
        assert env.observation_space(rows).shape == (n, *world.observation_space(params).shape)
        for space in (env.observation_space(rows), env.action_space(rows)):
            assert space.contains(space.sample(jax.random.key(0)))
        obs, state = env.reset(jax.random.key(0), rows)
        assert env.observation_space(rows).contains(obs)
        action = env.action_space(rows).sample(jax.random.key(1))
        obs = jax.jit(env.step)(jax.random.key(2), state, action, rows)[0]
        assert env.observation_space(rows).contains(obs)
        if id == "CartPole-v1":
            assert action.dtype == np.int32 and action.shape == (n,)
            np.testing.assert_allclose(env.observation_space(rows).high[:, 0], [4.8, 4.8, 6.0], rtol=1e-6)
        else:
            np.testing.assert_array_equal(env.action_space(rows).high, [[1.0], [2.0], [4.0]])
            np.testing.assert_array_equal(env.action_space(rows).low, [[-1.0], [-2.0], [-4.0]])
        with pytest.raises(ValueError, match=r"params\.gravity.*batched_params.*\(3, \.\.\.\)"):
            env.observation_space(rows.replace(gravity=9.8))


def test_spaces_of_traced_parameters_per_row():
    """As for one world, where the space does not depend on them."""
    env = VectorEnv(Counter(), 3, policy="always", batched_params=True)
    sample = jax.jit(lambda params, key: env.action_space(params).sample(key))
    assert sample({"length": jnp.array([1, 2, 3])}, jax.random.key(0)).tolist() == [0, 0, 0]


def test_joined_spaces():
    box = spaces.Box(0.0, np.array([1.0, 2.0]), (2,))
    joined = spaces.join([spaces.Dict({"a": spaces.Discrete(n), "b": box}) for n in (1, 4)])
    assert joined.contains({"a": np.int32([0, 3]), "b": np.float32([[1, 2], [1, 2]])})
    assert not joined.contains({"a": np.int32([1, 3]), "b": np.float32([[1, 2], [1, 2]])})
    for other in (spaces.Box(0.0, 1.0, (3,)), spaces.Box(0, 1, (2,), np.int32), spaces.Discrete(3), spaces.Dict({})):
        with pytest.raises(ValueError, match="bounds.*Box"):
            spaces.join([box, other])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "sometimes"}, "'sometimes'"),
        ({"num_envs": 0}, "num_envs.*0"),
        ({"pool_size": 0}, "pool_size.*0"),
        ({"policy": "optimistic", "reset_ratio": 3}, "4.*reset_ratio 3"),
        ({"batched_params": True}, "batched_params"),
    ],
)
def test_bad_batches(options, message):
    with pytest.raises(ValueError, match=message):
        VectorEnv(Counter(), **{"num_envs": 4, **options})


def test_select_picks_whole_rows():
    mask = jnp.array([True, False])
    picked = select(
        mask,
        {"a": jnp.ones((2, 3)), "k": jax.random.split(jax.random.key(0))},
        {"a": jnp.zeros((2, 3)), "k": jax.random.split(jax.random.key(1))},
    )
    np.testing.assert_array_equal(picked["a"], [[1, 1, 1], [0, 0, 0]])
    assert jnp.array_equal(
        jax.random.key_data(picked["k"][1]), jax.random.key_data(jax.random.split(jax.random.key(1))[1])
    )


# --- wrappers ---------------------------------------------------------------------------------------------------------


def test_statistics_are_of_the_worlds_own_reward():
    env = VectorEnv(ScaleReward(EpisodeStatistics(Counter()), 10.0), 2, policy="pool", pool_size=2)
    params = env.default_params
    _, state = env.reset(jax.random.key(0), params)
    returns, lengths, rewards = [], [], []
    for t in range(4):
        _, state, reward, _, _, info = env.step(jax.random.key(t), state, jnp.zeros(2, jnp.int32), params)
        returns.append(float(info["episode_return"][0]))
        lengths.append(int(info["episode_length"][0]))
        rewards.append(float(reward[0]))
    assert returns == [1, 3, 6, 1] and lengths == [1, 2, 3, 1] and rewards == [10, 20, 30, 10]


def test_wrappers_pass_the_rest_on():
    env = ScaleReward(EpisodeStatistics(envs_jax.make("CartPole-v1")[0]), 2.0)
    assert env.id == "CartPole-v1" and env.action_names == ("push left", "push right")
    assert type(env.unwrapped).__name__ == "CartPole"
    _, state = env.reset(jax.random.key(0), env.default_params)
    assert env.render(state).shape == (200, 480, 3)


def test_actions_that_are_none_are_refused_outside_jit():
    env = envs_jax.make("Debug-Match-v0")[0]
    state = DebugState(jnp.int32(2), jnp.int32(19))
    last = env.action_space(env.default_params).n - 1
    for wrong in (-1, last + 1, 1.0, [1], np.array([0, 1])):
        with pytest.raises(ValueError, match=f"Debug-Match-v0.*0.*{last}"):
            act(env, state, wrong)
        with pytest.raises(ValueError, match="Debug-Match-v0.*0.*3"):
            act(ScaleReward(env, 2.0), state, wrong)
    for right in (0, last, np.int64(last), np.uint8(last)):
        assert act(env, state, right)[4]
    batch = envs_jax.VectorEnv(env, 2, policy="none")
    states = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    with pytest.raises(ValueError, match=rf"\[2\].*0.*{last}"):
        batch.step(jax.random.key(0), VectorState(states), jnp.array([0, last + 1]), env.default_params)
    # an action of other values is no bound, and a traced one has no value yet
    aim = envs_jax.make("Debug-Aim-v0")[0]
    assert act(aim, DebugState(jnp.array([0.5]), jnp.int32(0)), [7.0])[2].shape == ()
    jax.eval_shape(lambda a: act(env, state, a), jax.ShapeDtypeStruct((), jnp.int32))


# --- the debug worlds -------------------------------------------------------------------------------------------------


def act(env, state, action, params=None):
    return env.step(jax.random.key(0), state, jnp.asarray(action), env.default_params if params is None else params)


def test_match_and_aim():
    state = DebugState(jnp.int32(2), jnp.int32(19))
    _, _, reward, terminated, truncated, _ = act(Match(), state, 2)
    assert (float(reward), bool(terminated), bool(truncated)) == (1, False, True)
    assert float(act(Match(), state, 1)[2]) == 0
    state = DebugState(jnp.array([0.5]), jnp.int32(0))
    result = act(Aim(), state, [-0.25])
    assert float(result[2]) == 0.25 and not result[4]


def test_recall():
    env = Recall()
    state = DebugState(jnp.int32(1), jnp.int32(0))
    obs, state, reward, terminated, _, _ = act(env, state, 1)
    np.testing.assert_array_equal(obs, [0, 0, 0])
    assert float(reward) == 0 and not terminated
    last = state.replace(time=jnp.int32(5))
    _, _, reward, terminated, _, info = act(env, last, 1)
    assert float(reward) == 1 and terminated and info["success"]
    assert float(act(env, last, 0)[2]) == -1
    first = [env.reset(jax.random.key(i), env.default_params)[0].tolist() for i in range(20)]
    assert [1, 0, 0] in first and [0, 1, 0] in first


def test_catch():
    env = Catch()
    state = CatchState(jnp.int32(3), jnp.int32(2), jnp.int32(4))
    obs, _, reward, terminated, _, info = act(env, state, 2)
    assert float(reward) == 1 and terminated and info["success"] and int(obs.sum()) == 1
    obs, _, reward, *_ = act(env, state, 0)
    assert float(reward) == -1 and obs[5, 3, 0] == 1 and obs[5, 1, 0] == 1
