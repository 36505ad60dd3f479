"""Environments of Python under our interface: functions of seeds and actions, whose failures are named."""

from __future__ import annotations

import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.bridges.host import HostEnvironment, HostError, HostParams, HostVector, HostWorld
from envs_jax.bridges.textarena import TextArenaEnv
from envs_jax.testing import check_contract


class Letters:
    """An encoder of characters."""

    names, lengths, vocab_size = ("text",), (40,), 128

    def __call__(self, mission, text):
        ids = [ord(c) for c in f"{mission}|{text}"]
        if len(ids) > 40:
            raise ValueError(f"{len(ids)} characters")
        return [np.int32(ids + [-1] * (40 - len(ids)))], 0, 0


class Sums:
    """A number that is drawn at the reset, and grows by the action and by a draw of its own."""

    log: list[tuple] = []

    def reset(self, *, seed=None):
        self.rng = np.random.default_rng(seed)
        self.number = int(self.rng.integers(100))
        self.log.append(("reset", seed))
        return {"mission": "grow", "text": str(self.number)}, {}

    def step(self, action):
        self.number += action + int(self.rng.integers(5))
        self.log.append(("step", action))
        return {"text": str(self.number)}, float(action), self.number > 100, False, {"success": action == 2}


WORLD = HostWorld(Sums, ("none", "one", "two"), max_turns=6)


def made(kind=Sums, **options):
    return HostEnvironment(replace(WORLD, make=kind, **options), Letters())


def text_of(obs, row=0):
    return "".join(chr(i) for i in np.asarray(obs["text"])[row] if i >= 0)


def begun(env, rows=3):
    batch = HostVector(env, rows)
    return batch, *jax.jit(batch.reset)(jax.random.key(0), env.default_params)


def test_it_is_a_world_like_others():
    env = made()
    check_contract(env, env.default_params, policies=("always", "pool", "none"))
    assert env.action_names == ("none", "one", "two")


def test_steps_are_those_of_the_environment_by_hand():
    env = made()
    batch, obs, state = begun(env)
    step = jax.jit(batch.step)
    by_hand = [Sums() for _ in range(3)]
    for row, one in enumerate(by_hand):
        seed = int(state.env.seed[row])
        assert text_of(obs, row) == f"grow|{one.reset(seed=seed)[0]['text']}"
    turns, ends = [0] * 3, 0
    for t in range(8):
        action = np.array([t % 3, 1, 2])
        obs, state, reward, terminated, truncated, info = step(jax.random.key(t), state, action, env.default_params)
        for row, one in enumerate(by_hand):
            said, given, ended, _, about = one.step(int(action[row]))
            turns[row] += 1
            assert text_of(info["final_observation"], row) == f"grow|{said['text']}"
            assert (float(reward[row]), bool(terminated[row])) == (given, ended)
            assert bool(truncated[row]) == (turns[row] == 6) and bool(info["success"][row]) == about["success"]
            if ended or turns[row] == 6:
                said, _ = one.reset(seed=int(state.env.seed[row]))
                turns[row], ends = 0, ends + 1
            assert text_of(obs, row) == f"grow|{said['text']}"
    assert ends > 3


def test_only_rows_that_act_are_stepped_and_only_ended_ones_begin_again():
    env = made(max_turns=2)
    batch, _, state = begun(env)
    step = jax.jit(batch.step_rows)
    rows, actions = jnp.array([True, False, True]), jnp.array([0, 1, 2])
    del Sums.log[:]
    obs, state, *_ = step(jax.random.key(1), state, actions, env.default_params, rows)
    assert Sums.log == [("step", 0), ("step", 2)]
    del Sums.log[:]
    *_, truncated, _ = step(jax.random.key(2), state, actions, env.default_params, jnp.array([True, False, False]))
    assert [kind for kind, _ in Sums.log] == ["step", "reset"] and truncated.tolist() == [True, False, False]


def test_a_state_goes_on_wherever_it_is():
    """After the host has forgotten its episodes, from a copy, and again from the same state."""
    env = made()
    batch, _, state = begun(env)
    step = jax.jit(batch.step)
    for t in range(2):
        _, state, *_ = step(jax.random.key(t), state, jnp.array([0, 1, 2]), env.default_params)
    results = []
    for kind in ("lived", "again", "forgotten"):
        if kind == "forgotten":
            env.forget()
        results.append(jax.device_get(step(jax.random.key(5), state, jnp.array([1, 1, 0]), env.default_params)))
    for other in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, results[0], other)


def test_few_objects_suffice():
    many, few = made(), made(objects=1)
    played = []
    for env in (many, few):
        batch, _, state = begun(env)
        for t in range(3):
            obs, state, *_ = jax.jit(batch.step)(jax.random.key(t), state, jnp.array([0, 1, 2]), env.default_params)
        played.append(obs["text"])
    np.testing.assert_array_equal(*played)


def test_an_episode_that_ended_is_not_stepped():
    env = made(max_turns=1)
    _, state = env.reset(jax.random.key(0), env.default_params)
    for _ in range(2):
        del Sums.log[:]
        _, state, _, terminated, truncated, _ = env.step(jax.random.key(1), state, jnp.int32(1), env.default_params)
        assert truncated and not terminated
    assert Sums.log == []


class Faulty(Sums):
    """A fault in the second step of one row: the one that takes action 2."""

    fault = "raise"

    def step(self, action):
        result = super().step(action)
        if action != 2:
            return result
        return {
            "raise": lambda: 1 / 0,
            "hang": lambda: time.sleep(20),
            "mute": lambda: ({"text": None}, *result[1:]),
            "blank": lambda: (" ", 0.0, False, False, {}),
            "four": lambda: result[:4],
            "nan": lambda: (result[0], float("nan"), *result[2:]),
            "long": lambda: ("x" * 60, *result[1:]),
        }[self.fault]()


@pytest.mark.parametrize(
    "fault, named",
    {
        "raise": "ZeroDivisionError",
        "hang": "0.2 s",
        "mute": "None",
        "blank": "' '",
        "four": "truncated",
        "nan": "nan",
        "long": "65 characters",
    }.items(),
)
def test_faults_are_named_or_counted(fault, named):
    kind = type(fault, (Faulty,), {"fault": fault})
    env = made(kind, timeout=0.2 if fault == "hang" else None)
    batch, _, state = begun(env)
    step = jax.jit(batch.step)
    actions = jnp.array([0, 2, 1])
    with pytest.raises(HostError, match=rf"row 1, seed {int(state.env.seed[1])}, step 1.*{named}"), env.named():
        jax.block_until_ready(step(jax.random.key(1), state, actions, env.default_params))
    assert env.failure is not None
    # what was is not lost: the same state goes on
    obs, *_ = step(jax.random.key(1), state, jnp.array([0, 1, 1]), env.default_params)
    assert text_of(obs, 1).startswith("grow|")

    counted = made(kind, timeout=0.2 if fault == "hang" else None, failure="end")
    batch, _, state = begun(counted)
    *_, terminated, truncated, info = jax.jit(batch.step)(jax.random.key(1), state, actions, counted.default_params)
    assert info["episode_failed"].tolist() == truncated.tolist() == [False, True, False] and not terminated.any()


class Unseeded(Sums):
    def reset(self, *, seed=None):
        return super().reset(seed=None)


def test_what_does_not_follow_from_the_seed_is_found():
    env = made(Unseeded)
    with pytest.raises(HostError, match="seed"):
        env.check_starts()
    made().check_starts()
    # two rows of one seed
    keys = jnp.stack([jax.random.key(3)] * 8)
    with pytest.raises(HostError, match="rows 0 and"), env.named():
        jax.block_until_ready(jax.vmap(env.reset, (0, None))(keys, HostParams()))
    # an episode that is played again
    batch, _, state = begun(env)
    env.forget()
    with pytest.raises(HostError, match="again"), env.named():
        jax.block_until_ready(jax.jit(batch.step)(jax.random.key(1), state, jnp.zeros(3, int), env.default_params))


def test_mistakes_are_found_before_anything_is_compiled():
    class Old(Sums):
        def reset(self, *, seed=None):
            return "text"

    with pytest.raises(HostError, match="obs, info"):
        made(Old)
    for options, error in (
        ({"actions": ()}, ValueError),
        ({"actions": ("a", "a")}, ValueError),
        ({"max_turns": 0}, ValueError),
        ({"long": "keep"}, ValueError),
        ({"failure": "x"}, ValueError),
        ({"timeout": 0.0}, ValueError),
        ({"make": 3}, TypeError),
    ):
        with pytest.raises(error, match=next(iter(options))):
            replace(WORLD, **options)


def test_actions_may_stand_for_values():
    class Says(Sums):
        def step(self, action):
            return f"{action} said", 0.0, False, False, {}

    env = made(Says, actions={"up": "[up]", "down": "[down]"})
    _, state = env.reset(jax.random.key(0), env.default_params)
    obs, *_ = env.step(jax.random.key(0), state, jnp.int32(1), env.default_params)
    assert text_of({"text": obs["text"][None]}) == "grow|[down] said"


def test_games_of_textarena():
    pytest.importorskip("textarena")
    a, b = TextArenaEnv("GuessTheNumber-v0"), TextArenaEnv("GuessTheNumber-v0")
    for game in (a, b):
        obs, _ = game.reset(seed=3)
        assert obs["text"] == obs["mission"]
    told = [[game.step(f"[{guess}]") for game in (a, b)] for guess in (1, 20)]
    assert all(x == y for x, y in told) and "higher" in told[0][0][0]["text"] and "lower" in told[1][0][0]["text"]
    low, high, ended = 1, 20, False
    while not ended:
        guess = (low + high) // 2
        obs, reward, ended, _, _ = a.step(f"[{guess}]")
        low, high = (guess + 1, high) if "higher" in obs["text"] else (low, guess - 1)
    assert reward == 1

    def first(text):
        return next(f"[{i}]" for i in range(9) if f"{i}" in text.split("Available Moves:")[-1])

    game = TextArenaEnv("TicTacToe-v0", first, num_players=2)
    obs, _ = game.reset(seed=1)
    ended = False
    while not ended:
        obs, reward, ended, *_ = game.step(first(obs["text"]))
    assert reward in (-1, 0, 1)
    with pytest.raises(ValueError, match="num_players"):
        TextArenaEnv("TicTacToe-v0", num_players=2)
