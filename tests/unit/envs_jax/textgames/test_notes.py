"""Games of notes: what a policy with and without notes earns, and that actions cannot serve as notes."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax


COUNT = 4096


def returns(env, params, policy, memory):
    """Returns of `COUNT` episodes of a policy `(memory, phrase) -> (memory, action)`, and how each ended."""

    def play(key):
        def step(carry, _):
            obs, state, note, over, total = carry
            note, action = policy(note, obs["text"][0].astype(jnp.int32))
            obs, state, reward, terminated, _, info = env.step(key, state, action.astype(jnp.int32), params)
            return (obs, state, note, over | terminated, total + jnp.where(over, 0, reward)), info["success"] & ~over

        obs, state = env.reset(key, params)
        carry, success = jax.lax.scan(step, (obs, state, memory, jnp.bool(False), jnp.float32(0)), None, env.turns + 1)
        return carry[4], carry[3], jnp.any(success)

    totals, over, success = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), COUNT))
    assert over.all() and (success == (totals == 1)).all()
    return np.asarray(totals)


def copied(words):
    def policy(note, phrase):
        note = jnp.where(phrase < words, phrase, note)
        return note, jnp.where(phrase == words + 1, 1 + note, 0)

    return policy


def counted(note, phrase):
    note = note + (phrase == 1)
    return note, jnp.where(phrase == 2, 1 + note, 0)


@pytest.mark.parametrize(
    ("id", "policy", "guess", "optimum"),
    [
        pytest.param("Notes-Recall-v0", copied(4), 3, 1 / 4, marks=pytest.mark.slow),
        ("Notes-Recall-v0?words=2&turns=7", copied(2), 1, 1 / 2),
        pytest.param("Notes-Count-v0", counted, 4, 20 / 64, marks=pytest.mark.slow),  # three of six, the likeliest
        ("Notes-Count-v0?turns=3", counted, 2, 3 / 8),
    ],
)
def test_notes_earn_one_and_guesses_the_probability_of_the_likeliest_answer(id, policy, guess, optimum):
    env, params = envs_jax.make(id)
    assert env.reactive_optimum == optimum
    assert returns(env, params, policy, jnp.int32(0)).mean() == 1
    question = len(env.book) - 1
    guesses = returns(env, params, lambda m, p: (m, jnp.where(p == question, guess, 0)), jnp.int32(0))
    assert abs(guesses.mean() - optimum) < 4 * np.sqrt(optimum * (1 - optimum) / COUNT)


@pytest.mark.parametrize("id", ["Notes-Recall-v0?words=2&turns=2", "Notes-Count-v0?turns=2"])
def test_no_policy_without_notes_earns_more(id):
    """Of all tables from phrases to actions, so actions are no notes."""
    env, params = envs_jax.make(id)
    tables = jnp.array(list(itertools.product(range(len(env.action_names)), repeat=len(env.book))))

    def play(key, table):
        obs, state = env.reset(key, params)
        total, over = jnp.float32(0), jnp.bool(False)
        for _ in range(env.turns + 1):
            obs, state, reward, terminated, *_ = env.step(key, state, table[obs["text"][0]], params)
            total, over = total + jnp.where(over, 0, reward), over | terminated
        return total

    totals = jax.jit(jax.vmap(jax.vmap(play, (0, None)), (None, 0)))(jax.random.split(jax.random.key(1), 1024), tables)
    assert abs(totals.mean(1).max() - env.reactive_optimum) < 0.07


def test_what_is_shown():
    env, params = envs_jax.make("Notes-Count-v0?turns=3")
    step, texts = jax.jit(env.step), []
    obs, state = env.reset(jax.random.key(3), params)
    for _ in range(4):
        texts.append(env.describe(obs)["text"])
        obs, state, *_ = step(jax.random.key(0), state, jnp.int32(0), params)
    assert texts[3] == "How many apples did you see?" and set(texts[:3]) <= {"You see a pear.", "You see an apple."}
    assert int(state.answer) == 1 + texts.count("You see an apple.")
    assert env.ascii(state.replace(time=1)).splitlines()[1] == f"> {texts[1]}"
    # fewer turns, within the same compiled program
    few, shorter = params.replace(turns=1), []
    obs, state = env.reset(jax.random.key(3), few)
    for _ in range(2):
        shorter.append(env.describe(obs)["text"])
        obs, state, _, terminated, *_ = step(jax.random.key(0), state, state.answer * (len(shorter) == 2), few)
    assert shorter == [texts[0], texts[3]] and terminated and int(state.answer) == 1 + (texts[0] == "You see an apple.")
    assert env.render(state).shape == (32, 128, 3)


def test_an_answer_before_the_question_ends_the_episode():
    env, params = envs_jax.make("Notes-Recall-v0")
    obs, state = env.reset(jax.random.key(0), params)
    assert env.describe(obs)["text"] == f"The password is {env.answers[int(state.answer) - 1]}."
    _, _, reward, terminated, truncated, info = env.step(jax.random.key(0), state, state.answer, params)
    assert terminated and not truncated and reward == 0 and not info["success"]


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("Notes-Recall-v0", {"words": 9}, "words.*9.*2.*8"),
        ("Notes-Recall-v0", {"turns": 0}, "turns.*0"),
        ("Notes-Count-v0", {"turns": 1}, "turns.*1.*2"),
    ],
)
def test_refusals(id, options, message):
    with pytest.raises(ValueError, match=message):
        envs_jax.make(id, **options)
