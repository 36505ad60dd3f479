"""FrozenLake as text: RAGEN's format, random maps, and the same process as without text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from benchmarks.python_rules import lake_text
from envs_jax.text import Literal, Prompt, Slot
from envs_jax.toytext import optimal_values, policy_value, random_map
from envs_jax.toytext.tables import ToyTextState
from llmrl_jax.lm.tokens import WordTokenizer


def test_the_text_of_every_cell_of_every_map():
    env, params = envs_jax.make("FrozenLakeText-v1?random_maps=20")
    captions = jax.vmap(env._observe)(jnp.arange(20 * 16))
    for index in range(20 * 16):
        desc = np.array([list(row) for row in random_map(index // 16, 4)], "S1")
        text = env.describe({"text": captions["text"][index]})["text"]
        assert text == lake_text(desc, index % 16) == env.ascii(ToyTextState(jnp.int32(index), jnp.int32(0)))
    assert captions["cell"].tolist() == list(range(16)) * 20
    one, _ = envs_jax.make("FrozenLakeText-v1?random_maps=0")
    assert one.describe(one._observe(jnp.int32(5)))["text"] == "____\n_X_O\n___O\nO__G"
    assert one.describe(one._observe(jnp.int32(15)))["text"] == "____\n_O_O\n___O\nO__√"
    tabs, _ = envs_jax.make("FrozenLakeText-v1?random_maps=0&text=tabs")
    whole = "".join("".join(f" {symbol} \t" for symbol in row) + "\n" for row in ("P___", "_O_O", "___O", "O__G"))
    assert tabs.describe(tabs._observe(jnp.int32(0)))["text"] == whole.strip()


def test_steps_are_those_without_text():
    plain, params = envs_jax.make("FrozenLake-v1")
    text, _ = envs_jax.make("FrozenLakeText-v1?random_maps=0")
    np.testing.assert_array_equal(plain.table.prob, text.table.prob)
    np.testing.assert_array_equal(plain.table.successor, text.table.successor)
    assert optimal_values(text, params)[-1, 0] == optimal_values(plain, params)[-1, 0]
    assert policy_value(text, params, np.full(16, 2)) == policy_value(plain, params, np.full(16, 2))
    assert text.action_names == ("Left", "Down", "Right", "Up") and text.keys["down"] == plain.keys["down"] == 1


def test_maps_are_drawn_and_never_left():
    env, params = envs_jax.make("FrozenLakeText-v1?random_maps=20")
    _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(jax.random.key(0), 500), params)
    maps, counts = np.unique(np.asarray(state.index) // 16, return_counts=True)
    assert maps.tolist() == list(range(20)) and counts.min() > 8 and (np.asarray(state.index) % 16 == 0).all()
    assert (env.table.successor // 16 == (np.arange(320) // 16)[:, None, None]).all()
    assert (env.render(ToyTextState(jnp.int32(16), jnp.int32(0))) != env.render(ToyTextState(jnp.int32(0), None))).any()
    with pytest.raises(ValueError, match="random_maps.*-1"):
        envs_jax.make("FrozenLakeText-v1?random_maps=-1")
    with pytest.raises(ValueError, match="random_maps.*square"):
        envs_jax.make("FrozenLakeText-v1", desc=("SFG", "FFF"))


def test_the_text_becomes_tokens_on_the_device():
    env, params = envs_jax.make("FrozenLakeText-v1?random_maps=20")
    prompt = Prompt(Literal("State:\n"), Slot("text", env.captions["text"], 4, suffix="\n"), Literal("Move:"))
    compiled = prompt.compile(WordTokenizer.from_prompt(prompt, env.action_names), heal=False)
    assert compiled.verify(jax.vmap(env._observe)(jnp.arange(40))) == 40
