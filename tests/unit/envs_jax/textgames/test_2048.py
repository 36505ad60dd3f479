"""2048: every step against the rules in NumPy, moves by hand, the exact optimum of a board of 2 x 2, texts."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from benchmarks.python_rules import Rules2048
from envs_jax.text import Literal, Prompt, Slot
from envs_jax.textgames import import_state
from envs_jax.textgames.game2048 import valid_actions
from llmrl_jax.lm.tokens import WordTokenizer


make = functools.cache(envs_jax.make)


def tiles(board) -> list[list[int]]:
    return np.where(np.asarray(board) > 0, 2 ** np.asarray(board, int), 0).tolist()


def test_every_step_equals_the_rules_in_python():
    env, params = make("2048Text-v0", actions="valid")
    count, steps = 8, 150
    rng = np.random.default_rng(0)
    uniforms = rng.random((steps, count, 2)).astype(np.float32)
    actions = rng.integers(0, 4, (steps, count))
    obs, state = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(jax.random.key(0), count), params)

    def step(state, drawn):
        obs, state, *rest = jax.vmap(env.advance, in_axes=(0, 0, 0, None))(*drawn[:1], state, drawn[1], params)
        return state, (obs, state.score, *rest)

    played = jax.jit(lambda s, d: jax.lax.scan(step, s, d)[1])(state, (uniforms, jnp.asarray(actions, jnp.int32)))
    seen, scores, rewards, terminated, _, info = jax.tree.map(np.asarray, played)
    ends, stuck = 0, 0
    for i in range(count):
        game = Rules2048()
        game.grid = np.array(tiles(obs["board"][i]))
        for t in range(steps):
            before = game.grid.copy()
            gained, over = game.step(int(actions[t, i]), *uniforms[t, i])
            assert tiles(seen["board"][t, i]) == game.grid.tolist()
            assert (rewards[t, i], scores[t, i], terminated[t, i]) == (gained, game.score, over)
            assert info["moved"][t, i] == (before != game.grid).any()
            assert np.flatnonzero(seen["action_mask"][t, i]).tolist() == (game.valid() or [0, 1, 2, 3])
            assert env.describe({"text": seen["text"][t, i]})["text"] == game.text()
            ends, stuck = ends + over, stuck + (before == game.grid).all()
    assert ends > 2 and stuck > 30


@pytest.mark.parametrize(
    ("line", "after", "gained"),
    [
        ([2, 2, 2, 2], [4, 4, 0, 0], 8),
        ([2, 2, 4, 0], [4, 4, 0, 0], 4),  # a merged tile does not merge again
        ([2, 0, 0, 2], [4, 0, 0, 0], 4),
        ([4, 2, 2, 2], [4, 4, 2, 0], 4),  # the first pair merges
        ([0, 2, 4, 2], [2, 4, 2, 0], 0),
        ([2, 4, 2, 4], [2, 4, 2, 4], 0),
    ],
)
def test_moves_by_hand(line, after, gained):
    env, params = make("2048-v0")
    state = env.state_of([line, *[[0] * 4] * 3])
    _, now, reward, _, _, info = env.advance(jnp.array([0.999, 0.0]), state, jnp.int32(3), params)
    assert tiles(now.board)[0] == after and reward == gained and now.score == gained
    assert info["moved"] == (line != after)
    assert np.count_nonzero(now.board[1:]) == info["moved"]  # the new tile is in the last empty cell
    assert not info["moved"] or tiles(now.board)[3][3] == 2


def test_new_tiles_and_the_end():
    env, params = make("2048-v0")
    board = jnp.zeros((4, 4), jnp.int8).at[0, 0].set(3)
    for where, value, cell, tile in ((0.0, 0.89, (0, 1), 2), (0.0, 0.91, (0, 1), 4), (0.5, 0.0, (2, 0), 2)):
        assert tiles(env.add_tile(jnp.array([where, value]), board))[cell[0]][cell[1]] == tile
    full = env.state_of([[4, 2, 4, 2], [2, 4, 2, 4], [4, 2, 4, 2], [8, 16, 1024, 1024]])
    assert valid_actions(full.board).tolist() == [False, True, False, True]
    _, now, reward, terminated, truncated, info = env.advance(jnp.zeros(2), full, jnp.int32(1), params)
    assert reward == 2048 and info["success"] and not truncated and tiles(now.board)[3] == [2, 8, 16, 2048]
    assert terminated
    boards = np.asarray(
        jax.vmap(lambda key: env.reset(key, params)[0]["board"])(jax.random.split(jax.random.key(0), 2000))
    )
    assert (np.count_nonzero(boards, axis=(1, 2)) == 2).all()
    assert abs((boards == 1).sum() / 4000 - 0.9) < 0.02
    assert abs((boards > 0).mean(0) - 1 / 8).max() < 0.03  # every cell is as likely


def test_the_logarithm_of_the_score_is_a_reward():
    env, params = make("2048-v0?reward=log")
    state = env.state_of([[2, 2, 8, 8], *[[0] * 4] * 3])
    _, now, reward, *_ = env.advance(jnp.zeros(2), state, jnp.int32(3), params)
    assert reward == pytest.approx(0.1 * np.log2(21)) and now.score == 20


@functools.cache
def best(grid: tuple[tuple[int, ...], ...]) -> tuple[float, int]:
    """The best expected score from a board on, by the rules in Python, and the action."""
    game, found = Rules2048(2), (0.0, 0)
    game.grid = np.array(grid)
    for action in game.valid():
        after, gained = game.moved(action)
        value, empty = float(gained), np.argwhere(after == 0)
        for cell in empty:
            for tile, share in ((2, 0.9), (4, 0.1)):
                then = after.copy()
                then[tuple(cell)] = tile
                value += share / len(empty) * best(tuple(map(tuple, then.tolist())))[0]
        found = max(found, (value, action))
    return found


def test_the_best_policy_of_a_small_board_earns_its_exact_value():
    env, params = make("2048-v0?size=2")
    table = np.zeros((6,) * 4, np.int32)
    start = 0.0
    for first in range(4):
        for second in range(4):
            for share, pair in ((0.81, (2, 2)), (0.09, (2, 4)), (0.09, (4, 2)), (0.01, (4, 4))):
                grid = [0] * 4
                grid[first], grid[second] = pair
                if first != second:
                    start += share / 12 * best(((grid[0], grid[1]), (grid[2], grid[3])))[0]
    for cells in np.ndindex(table.shape):
        values = [2**c if c else 0 for c in cells]
        table[cells] = best(((values[0], values[1]), (values[2], values[3])))[1]
    count = 4096

    def play(key):
        def step(carry, t):
            state, over = carry
            action = jnp.asarray(table)[tuple(state.board.reshape(-1).astype(jnp.int32))]
            _, after, _, terminated, *_ = env.step(jax.random.fold_in(key, t), state, action, params)
            state = jax.tree.map(lambda old, new: jnp.where(over, old, new), state, after)
            return (state, over | terminated), None

        state = env.reset(key, params)[1]
        (state, over), _ = jax.lax.scan(step, (state, ~jnp.any(valid_actions(state.board))), jnp.arange(60))
        return state.score, over

    scores, over = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), count))
    error = np.std(scores) / np.sqrt(count)
    assert over.all() and 0 < error and abs(np.mean(scores) - start) < 4 * error
    assert start == pytest.approx(EXACT, abs=0.01)


EXACT = 66.96
"""The best expected score of 2 x 2 cells, stated on the page."""


def test_the_text_becomes_tokens_on_the_device():
    env, params = make("2048Text-v0")
    size = env.observation_space(params).spaces["text"].shape[0]
    prompt = Prompt(Literal("State: "), Slot("text", env.captions["text"], size, suffix=" "), Literal("Move:"))
    compiled = prompt.compile(WordTokenizer.from_prompt(prompt, env.action_names), heal=False)
    obs, _ = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(jax.random.key(0), 8), params)
    assert compiled.verify(obs) == 8


def test_a_live_environment_is_imported():
    class TwentyFortyEightEnv:
        unwrapped = property(lambda self: self)

    env, params = make("2048-v0")
    theirs = TwentyFortyEightEnv()
    theirs.board, theirs.total_score = np.arange(16, dtype=np.uint8).reshape(4, 4), 84
    obs, state = import_state(theirs, env, params)
    assert state.score == 84 and state.time == 0 and obs["board"].tolist() == theirs.board.tolist()
    with pytest.raises(ValueError, match=r"\[4, 4\].*2048-v0\?size=2"):
        import_state(theirs, *make("2048-v0?size=2"))
    with pytest.raises(TypeError, match="SimpleNamespace.*2048-v0"):
        import_state(SimpleNamespace(unwrapped=SimpleNamespace()), env, params)


def test_letters_and_pictures():
    env, _ = make("2048-v0")
    state = env.state_of([[2, 0, 0, 2048], *[[0] * 4] * 3])
    assert env.ascii(state).splitlines()[:2] == ["   2    .    . 2048", "   .    .    .    ."]
    picture, same = env.render(state), env.render(env.state_of([[4, 0, 0, 2048], *[[0] * 4] * 3]))
    assert picture.shape == (256, 256, 3) and (picture[:64, :64] != same[:64, :64]).any()
    assert (picture[:, 64:] == same[:, 64:]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 5}, "size.*5.*2.*4"),
        ({"reward": "logs"}, "reward.*'logs'.*'log'"),
        ({"actions": "vald"}, "actions.*'vald'.*'valid'"),
        ({"max_steps": 0}, "max_steps.*0"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        envs_jax.make("2048-v0", **options)
    with pytest.raises(ValueError, match="board"):
        make("2048-v0")[0].state_of([[3, 0, 0, 0], *[[0] * 4] * 3])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_success_is_that_of_boards_with_room_for_it(size):
    env, params = envs_jax.make(f"2048-v0?size={size}")
    obs, state = env.reset(jax.random.key(0), params)
    info = jax.eval_shape(env.step, jax.random.key(0), state, jnp.int32(0), params)[-1]
    assert ("success" in info) == (size == 4)
