"""Grounding and imagination: rows, hand-computed errors, and that a cache, padding and time change nothing."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.data.transitions import DataError, Trajectories
from llmrl_jax.lm import Llama, LlamaConfig
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.systems.kalm import prompts
from llmrl_jax.systems.kalm.config import Weights
from llmrl_jax.systems.kalm.ground import make_grounding
from llmrl_jax.systems.kalm.imagine import PIECE, imagine, in_pieces, piece_of
from llmrl_jax.systems.kalm.prompts import ACTION, STATE, Episodes, Row, Rows
from llmrl_jax.systems.kalm.world_model import Normalizer, Slots, WorldModel, count_targets
from llmrl_jax.tuning.sft import SFTConfig


TEXTS = ["go right", "go left", "stay where you are"]
STEPS = np.array([1.0, -1.0, 0.0], np.float32)


def walks(count=12, longest=4, seed=0):
    """Episodes of a point on a line: action i moves it by STEPS[i], and instruction i asks for nothing but i."""
    rng = np.random.default_rng(seed)
    chosen, lengths = rng.integers(0, 3, count), rng.integers(2, longest + 1, count)
    first = rng.normal(size=(count, 2)).astype(np.float32)
    moves = STEPS[chosen][:, None, None] * np.array([1.0, 0.5], np.float32)
    obs = first[:, None] + np.arange(longest)[:, None] * moves
    flat = np.zeros((count, longest))
    data = Trajectories(
        obs={"state": jnp.asarray(obs, jnp.float32)},
        action=jnp.asarray(np.repeat(chosen[:, None], longest, 1), jnp.int32),
        reward=jnp.asarray(flat, jnp.float32),
        next_obs={"state": jnp.asarray(obs + moves, jnp.float32)},
        terminated=jnp.asarray(flat, bool),
        truncated=jnp.asarray(flat, bool),
        length=jnp.asarray(lengths, jnp.int32),
    )
    return data, chosen


def drawn(tree, key, size):
    """Normal numbers in the shapes of `tree`: what slots have learned is far from their first weights."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return structure.unflatten([size * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves)])


@pytest.fixture(scope="module")
def world():
    data, chosen = walks()
    episodes = Episodes.from_trajectories(data, "state")
    tokenizer = WordTokenizer.from_texts(
        [
            *TEXTS,
            prompts.ROLLOUT,
            *prompts.DYNAMICS,
            *prompts.CONSEQUENCE,
            *prompts.EXPLANATION,
        ]
    )
    size = -(-tokenizer.vocab_size // 8) * 8
    config = LlamaConfig(size, 32, 48, 2, 4, 2, max_position_embeddings=128, eos_token_id=tokenizer.eos_id)
    llama = Llama(config)
    model = WorldModel.around(llama, episodes, 3)
    variables = dict(llama.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    variables["slots"] = drawn(model.init_slots(jax.random.key(1), variables), jax.random.key(2), 0.4)
    return data, chosen, episodes, tokenizer, model, variables, Normalizer.from_episodes(episodes)


def arrays(episodes):
    return jnp.asarray(episodes.states), jnp.asarray(episodes.actions)


def test_tables_have_one_state_more_than_actions(world):
    data, _, episodes, *_ = world
    for e, length in enumerate(np.asarray(data.length)):
        s, a = episodes.first_state[e], episodes.first_action[e]
        np.testing.assert_array_equal(episodes.states[s : s + length], data.obs["state"][e, :length])
        np.testing.assert_array_equal(episodes.states[s + length], data.next_obs["state"][e, length - 1])
        np.testing.assert_array_equal(episodes.actions[a : a + length], data.action[e, :length])
    assert len(episodes.states) == int(data.length.sum()) + len(data) and episodes.discrete
    with pytest.raises(DataError, match=r"int32\[12, 4\]; float32 \[episodes, steps, d\]"):
        Episodes.from_trajectories(data.replace(obs=data.action, next_obs=data.action))


def test_a_rollout_learns_everything_but_its_first_state(world):
    _, chosen, episodes, tokenizer, *_ = world
    row = prompts.rollout(Row(tokenizer), episodes, 1, TEXTS[chosen[1]])
    text = tokenizer.encode(prompts.ROLLOUT.format(TEXTS[chosen[1]]))
    length, s, a = int(episodes.lengths[1]), int(episodes.first_state[1]), int(episodes.first_action[1])
    assert row.tokens[: len(text)] == text and not any(row.learn[: len(text) + 1])
    slots = list(zip(row.kind, row.index, row.before, row.learn))[len(text) :]
    assert slots[0] == (STATE, s, 0, False)
    expected = []
    for t in range(length):
        expected += [(ACTION, a + t, 0, True), (STATE, s + t + 1, s + t, True)]
    assert slots[1:] == expected
    said = prompts.explanation(Row(tokenizer), episodes, 1, TEXTS[chosen[1]])
    learned = [token for token, learn in zip(said.tokens, said.learn) if learn]
    assert learned == [*tokenizer.encode(" " + TEXTS[chosen[1]]), tokenizer.eos_id]


@pytest.mark.parametrize(("size", "discrete"), [(0.02, True), (0.3, False)])
def test_first_slots_enter_as_large_as_words_and_predict_nothing(world, size, discrete):
    _, _, _, _, model, variables, units = world
    table = size * jax.random.normal(jax.random.key(0), variables["params"]["embed_tokens"]["embedding"].shape)
    given = {**variables, "params": {**variables["params"], "embed_tokens": {"embedding": table}}}
    model = WorldModel(model.llama, Slots(32, 2, 64, discrete))
    given["slots"] = model.init_slots(jax.random.key(3), given)
    states = jax.random.normal(jax.random.key(4), (500, 2)) * units.std + units.mean
    done = jnp.arange(64) if discrete else jax.random.normal(jax.random.key(5), (500, 64))
    for found in (model.enter_state(given, units, states), model.enter_action(given, done)):
        assert jnp.sqrt(jnp.mean(found**2)) == pytest.approx(size, rel=0.25)
    hidden = 30 * jax.random.normal(jax.random.key(6), (5, 32))
    np.testing.assert_array_equal(model.actions(given, hidden), jnp.zeros((5, 64)))
    np.testing.assert_array_equal(model.next_state(given, units, hidden, states[:5]), states[:5])


def rows_of(world, length=64, **options):
    _, chosen, episodes, tokenizer, *_ = world
    texts = [[TEXTS[i]] for i in chosen]
    return prompts.pack(prompts.write(episodes, texts, tokenizer, np.random.default_rng(0), **options), length)


def test_errors_are_those_of_each_example_alone(world):
    """Packed rows against one example at a time, with numbers computed by NumPy from the heads' outputs."""
    _, chosen, episodes, tokenizer, model, variables, units = world
    rows = rows_of(world)
    assert (rows.segments.max(1) > 1).any()  # several examples in a row
    found = jax.jit(model.losses)(variables, units, rows, arrays(episodes), count_targets(rows))
    sums, counts = {"state": 0.0, "action": 0.0, "text": 0.0}, {"state": 0, "action": 0, "text": 0}
    texts = [[TEXTS[i]] for i in chosen]
    hidden_of = jax.jit(model.hidden)
    for row in prompts.write(episodes, texts, tokenizer, np.random.default_rng(0)):
        alone = prompts.pack([row], 64)
        hidden = hidden_of(variables, units, alone, arrays(episodes))[0]
        slots = jax.tree.map(np.asarray, variables["slots"])
        kernel = np.asarray(variables["params"]["lm_head"]["kernel"])
        for p in range(len(row.tokens) - 1):
            if not row.learn[p + 1]:
                continue
            h = np.asarray(hidden[p])
            if row.kind[p + 1] == STATE:
                out = h @ slots["state_out"]["kernel"] + slots["state_out"]["bias"]
                change = episodes.states[row.index[p + 1]] - episodes.states[row.before[p + 1]]
                one = row.index[p + 1] == row.before[p + 1] + 1  # else a consequence, as large as states
                sums["state"] += np.mean((out - change / np.asarray(units.change if one else units.std)) ** 2)
                counts["state"] += 1
            else:
                action = row.kind[p + 1] == ACTION
                out = h @ slots["action_out"]["kernel"] + slots["action_out"]["bias"] if action else h @ kernel
                name = "action" if action else "text"
                right = episodes.actions[row.index[p + 1]] if action else row.tokens[p + 1]
                sums[name] -= out[right] - np.log(np.exp(out - out.max()).sum()) - out.max()
                counts[name] += 1
    assert {name: int(n) for name, n in count_targets(rows).items()} == counts
    for name in sums:
        np.testing.assert_allclose(found[name], sums[name] / counts[name], rtol=2e-4)


def label(goal, states, actions):
    """Success once the point has passed the goal."""
    return jnp.diff(states[..., 0]), states[..., 1:, 0] > goal[..., None]


@pytest.mark.slow
def test_imagination_is_the_full_pass_and_padding_changes_nothing(world):
    _, _, episodes, tokenizer, model, variables, units = world
    first = episodes.states[:3]
    goals = jnp.array([1e9, 1e9, first[2, 0] - 1e3])
    tokens, lengths = prompts.rollout_prompts(TEXTS, tokenizer)
    run = jax.jit(lambda t, n, s, g: imagine(model, variables, units, t, n, s, g, label, 5))
    found = run(tokens, lengths, first, goals)
    wide = np.full((3, tokens.shape[1] + 7), 5, np.int32)  # other padding, of real tokens
    wide[:, : tokens.shape[1]] = np.where(np.arange(tokens.shape[1]) < lengths[:, None], tokens, 6)
    padded = run(wide, lengths, first, goals)
    np.testing.assert_allclose(padded.states, found.states, atol=1e-4)
    np.testing.assert_array_equal(padded.actions, found.actions)
    alone = run(tokens[1:2, : lengths[1]], lengths[1:2], first[1:2], goals[1:2])
    np.testing.assert_allclose(alone.states[0], found.states[1], atol=1e-4)
    pieces = in_pieces(run, jax.tree.map(np.asarray, (tokens, lengths, first, goals)), 2)  # the last one is filled up
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), pieces, jax.device_get(found))
    assert list(found.lengths) == [5, 5, 1] and list(found.success) == [False, False, True]
    np.testing.assert_allclose(found.rewards[0], np.diff(found.states[0, :, 0]), atol=1e-5)
    for i in range(3):  # the whole text with its slots in one pass gives the same actions and states
        made = Episodes(np.asarray(found.states[i]), np.asarray(found.actions[i]), *np.array([[0], [0], [5]]))
        row = prompts.rollout(Row(tokenizer), made, 0, TEXTS[i])
        rows = prompts.pack([row], len(row.tokens))
        hidden = model.hidden(variables, units, rows, arrays(made))[0, int(lengths[i]) :]
        np.testing.assert_array_equal(model.act(variables, hidden[:-1:2]), found.actions[i])
        after = model.next_state(variables, units, hidden[1::2], found.states[i, :-1])
        np.testing.assert_allclose(after, found.states[i, 1:], atol=1e-4)


def test_a_small_model_imagines_in_pieces_on_a_cpu(world, monkeypatch):
    *_, model, _, _ = world
    deep = dataclasses.replace(model, llama=Llama(dataclasses.replace(model.llama.config, num_hidden_layers=5)))
    assert [piece_of(model, 64), piece_of(model, 3), piece_of(deep, 64)] == [PIECE, 3, 64]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert piece_of(model, 64) == 64


def test_an_action_belongs_to_the_state_of_its_time(world):
    """A passed step back (the published generator) would leave the action as it is when only its state changes."""
    _, _, episodes, tokenizer, model, variables, units = world
    tokens, lengths = prompts.rollout_prompts(TEXTS[:1], tokenizer)
    cache = model.start(variables, tokens, lengths, 4)
    logits = []
    for shift in (0.0, 3.0):
        state = jnp.asarray(episodes.states[:1]) + shift
        hidden, _ = model.advance(variables, cache, model.enter_state(variables, units, state))
        logits.append(model.actions(variables, hidden))
    assert float(jnp.abs(logits[0] - logits[1]).max()) > 1e-3


@pytest.mark.parametrize("states", ["changes", "absolute"])
def test_heads_start_where_they_say(world, states):
    """With heads of zeros nothing changes, or the state is the mean."""
    _, _, episodes, _, model, variables, units = world
    model = WorldModel(model.llama, model.slots, states)
    nothing = {**variables, "slots": jax.tree.map(jnp.zeros_like, variables["slots"])}
    before = jnp.asarray(episodes.states[:4])
    after = model.next_state(nothing, units, jnp.ones((4, 32)), before)
    np.testing.assert_allclose(
        after, before if states == "changes" else jnp.broadcast_to(units.mean, (4, 2)), atol=1e-6
    )


@pytest.mark.slow
def test_it_learns_to_carry_out_instructions():
    """A line world whose instruction says which way: imagined episodes obey it, and move as the world does."""
    data, chosen = walks(96, seed=1)
    episodes = Episodes.from_trajectories(data, "state")
    tokenizer = WordTokenizer.from_texts(
        [*TEXTS, prompts.ROLLOUT, *prompts.DYNAMICS, *prompts.CONSEQUENCE, *prompts.EXPLANATION]
    )
    config = LlamaConfig(-(-tokenizer.vocab_size // 8) * 8, 32, 48, 1, 4, 2, max_position_embeddings=128)
    llama = Llama(config)
    model = WorldModel.around(llama, episodes, 3)
    variables = llama.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    texts = [[TEXTS[i]] for i in chosen]
    rows = prompts.pack(prompts.write(episodes, texts, tokenizer, np.random.default_rng(0)), 64)
    options = SFTConfig(batch_size=16, learning_rate=1e-2, microbatches=2)
    learner = make_grounding(options, Weights(), model, variables, rows, episodes, 120)
    state = learner.init(jax.random.key(0))
    update = jax.jit(learner.update, donate_argnums=0)
    first = None
    for _ in range(120):
        state, metrics = update(state)
        first = metrics if first is None else first
    assert float(metrics["action"]) < 0.1 < float(first["action"])
    assert float(metrics["state"]) < 0.1 * float(first["state"]) and float(metrics["text"]) < 0.5
    tokens, lengths = prompts.rollout_prompts(TEXTS, tokenizer)
    start = jnp.zeros((3, 2), jnp.float32)
    trained = {**state.frozen["base"], **state.params}
    found = imagine(model, trained, state.frozen["units"], tokens, lengths, start, jnp.full(3, 1e9), label, 3)
    np.testing.assert_array_equal(found.actions, np.repeat(np.arange(3)[:, None], 3, 1))
    np.testing.assert_allclose(found.states[:, 3, 0], 3 * STEPS, atol=0.5)


def test_data_that_do_not_fit_are_named(world):
    _, _, episodes, tokenizer, *_ = world
    with pytest.raises(DataError, match=r"2\d places.*16.*--length"):
        rows_of(world, length=16)
    with pytest.raises(DataError, match="no row"):
        prompts.pack([], 16)
    with pytest.raises(DataError, match="1. places.*8"):
        prompts.rollout_prompts(TEXTS, tokenizer, 8)
    assert isinstance(rows_of(world, patterns=("dynamics",)), Rows)


def test_what_never_moves_in_the_data_is_not_measured_in_thousandths():
    data, _ = walks()
    still = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, 1)), constant_values=0.3), (data.obs, data.next_obs))
    units = Normalizer.from_episodes(Episodes.from_trajectories(data.replace(obs=still[0], next_obs=still[1]), "state"))
    std = np.asarray(units.std)
    assert std[2] == std[:2].max() and units.mean[2] == pytest.approx(0.3)
    assert units.change[2] == pytest.approx(1e-3 * float(units.change.max()))
