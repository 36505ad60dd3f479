"""Sokoban: every step against the rules in NumPy, rooms that can be solved, texts, and the shortest solution."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from benchmarks.python_rules import SokobanRules
from envs_jax.text import Literal, Prompt, Slot
from envs_jax.textgames import import_state, solve
from envs_jax.textgames.sokoban import COLORS, SYMBOLS, rows_of
from llmrl_jax.lm.tokens import WordTokenizer


make = functools.cache(envs_jax.make)

ROOM = ("######", "#_O__#", "#_XP_#", "#____#", "##__##", "######")


@functools.cache
def rooms(id: str, count: int):
    env, params = make(id)
    return jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(jax.random.key(7), count), params)


def row(tree, i):
    return jax.tree.map(lambda x: np.asarray(x[i]), tree)


@pytest.mark.parametrize(
    "id", [pytest.param("SokobanText-2boxes-v0", marks=pytest.mark.slow), "Sokoban-small-v0?height=5&width=6&boxes=1"]
)
def test_every_step_equals_the_rules_in_python(id):
    """Thousands of random steps; every room is played on after its end, too."""
    env, params = make(id)
    count, steps = 48, 60
    params = params.replace(max_steps=50)
    obs, state = rooms(id, count)
    actions = np.random.default_rng(0).integers(0, len(env.action_names), (steps, count))

    def step(state, action):
        obs, state, *rest = jax.vmap(env.step, in_axes=(None, 0, 0, None))(jax.random.key(0), state, action, params)
        return state, (obs, *rest)

    _, (seen, rewards, terminated, truncated, info) = jax.jit(lambda s, a: jax.lax.scan(step, s, a))(
        state, jnp.asarray(actions, jnp.int32)
    )
    seen, pushes, ends = jax.tree.map(np.asarray, seen), 0, 0
    for i in range(count):
        start = np.asarray(obs["board"][i])
        fixed = np.where(start > 2, 1, start)  # at the start no box and no player is on a target
        game = SokobanRules(fixed, start, 50)
        for t in range(steps):
            way, push = int(actions[t, i]), True
            if env.actions == "all":
                way, push = ((way - 1) % 4, way <= 4) if way else (-1, True)
            before = game.cells.copy()
            reward, over, late = game.step(way, push)
            assert rewards[t, i] == pytest.approx(reward, abs=1e-6)
            assert (terminated[t, i], truncated[t, i]) == (over, late) and info["success"][t, i] == over
            assert info["moved"][t, i] == (before != game.cells).any()
            pushed = (np.isin(before, (3, 4)) != np.isin(game.cells, (3, 4))).any()
            assert info["pushed"][t, i] == pushed
            shown = np.where((game.cells == 5) & (fixed == 2), 6, game.cells)
            assert seen["board"][t, i].tolist() == shown.tolist()
            if env.captions:
                assert env.describe({"text": seen["text"][t, i]})["text"] == game.text()
            pushes, ends = pushes + pushed, ends + over
    assert pushes > 40 and ends > 2


def test_rooms_can_be_solved_and_a_solution_earns_the_best_return():
    env, params = make("SokobanText-v0")
    obs, state = rooms("SokobanText-v0", 64)
    boards, step = np.asarray(obs["board"]), jax.jit(env.step)
    solutions = [solve(board) for board in boards]
    assert min(map(len, solutions)) >= 1 and max(map(len, solutions)) >= 6
    assert len({board.tobytes() for board in boards}) > 55
    for board in boards:
        assert (board[[0, -1]] == 0).all() and (board[:, [0, -1]] == 0).all()
        # no box on a target, and neither is the player
        assert np.bincount(board.reshape(-1), minlength=7)[2:].tolist() == [1, 0, 1, 1, 0]
    for i in np.argsort([len(moves) for moves in solutions])[[0, 32, -1]]:
        now, total = row(state, i), 0.0
        for move in solutions[i]:
            _, now, reward, terminated, *_ = step(jax.random.key(0), now, jnp.int32(move), params)
            total += float(reward)
        assert terminated and total == pytest.approx(11 - 0.1 * len(solutions[i]), abs=1e-4)


def test_the_room_of_a_row_does_not_depend_on_the_batch():
    env, params = make("SokobanText-v0")
    _, state = rooms("SokobanText-v0", 64)
    _, alone = jax.jit(env.reset)(jax.random.split(jax.random.key(7), 64)[5], params)
    assert jax.tree.all(jax.tree.map(np.array_equal, row(state, 5), alone))


@pytest.mark.parametrize(
    ("rows", "moves"),
    [
        (ROOM, 3),  # down, left, up: from below; one push
        (("######", "#_O__#", "#_X__#", "#_P__#", "##__##", "######"), 1),
        (("######", "#X___#", "#_P__#", "#__O_#", "##__##", "######"), None),  # in a corner
        (("######", "#____#", "#_S_X#", "#____#", "##__##", "######"), None),  # along a wall, the target is not
        (("######", "#___P#", "#_√__#", "#____#", "##__##", "######"), 0),
    ],
)
def test_shortest_solutions(rows, moves):
    env, _ = make("SokobanText-v0")
    state = env.state_of(rows)
    assert env.ascii(state) == "\n".join(rows) == env.describe(env.observe(state))["text"]
    solution = solve(env.board(state.room))
    assert solution is None if moves is None else len(solution) == moves


def test_text_with_spaces_and_the_phrases_of_rows():
    spaced, _ = make("SokobanText-v0?text=spaced")
    text = spaced.describe(spaced.observe(spaced.state_of(ROOM)))["text"]
    # RAGEN's code writes " # " for a wall; the spaces at both ends are the prompt's
    assert f" {text} " == "\n".join("".join(f" {symbol} " for symbol in row) for row in ROOM)
    tabs, _ = make("SokobanText-v0?text=tabs")  # VAGEN writes " # \t"
    text = tabs.describe(tabs.observe(tabs.state_of(ROOM)))["text"]
    assert text == "\n".join("".join(f" {symbol} \t" for symbol in row) for row in ROOM).strip()
    for cells in rows_of(6, 1):
        line = "".join(SYMBOLS[c] for c in cells)
        assert sum(map(line.count, "PS")) <= 1 and sum(map(line.count, "X√")) <= 1 and sum(map(line.count, "O√S")) <= 1
    assert len(rows_of(5, 1)) == len({*rows_of(5, 1)}) and (1, 1, 5) in rows_of(5, 1) and (5, 1, 5) not in rows_of(5, 1)


def test_the_text_becomes_tokens_on_the_device():
    env, params = make("SokobanText-v0")
    prompt = Prompt(Literal("State:\n"), Slot("text", env.captions["text"], env.height, suffix="\n"), Literal("Move:"))
    compiled = prompt.compile(WordTokenizer.from_prompt(prompt, env.action_names), heal=False)
    assert compiled.verify(jax.tree.map(lambda x: x[:16], rooms("SokobanText-v0", 64)[0])) == 16


def test_a_live_environment_is_imported():
    class SokobanEnv:
        unwrapped = property(lambda self: self)

    env, params = make("SokobanText-v0")
    state = env.state_of(ROOM)
    theirs, cells = SokobanEnv(), np.asarray(env.board(state.room)).astype(float)
    theirs.room_fixed, theirs.room_state = np.where(np.isin(cells, (4, 5)), 1, cells), cells
    theirs.num_env_steps = 3
    obs, imported = import_state(theirs, env, params)
    assert (
        env.ascii(imported) == "\n".join(ROOM) and imported.time == 3 and env.describe(obs)["text"] == "\n".join(ROOM)
    )
    theirs.room_state = np.where(cells == 4, 1, cells)
    with pytest.raises(ValueError, match="0 boxes"):
        import_state(theirs, env, params)
    with pytest.raises(TypeError, match="no environment.*SokobanText-v0"):
        import_state(SimpleNamespace(unwrapped=SimpleNamespace()), env, params)


def test_pictures():
    env, _ = make("SokobanText-v0")
    picture = env.render(env.state_of(ROOM))
    assert picture.shape == (192, 192, 3)
    for (r, c), symbol in (((0, 0), "#"), ((1, 2), "O"), ((2, 2), "X"), ((2, 3), "P")):
        assert tuple(picture[32 * r + 16, 32 * c + 16]) == COLORS[SYMBOLS.index(symbol)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"height": 4}, "height.*4.*5"),
        ({"boxes": 4}, "boxes.*4.*1.*3"),
        ({"height": 10, "width": 10, "text": None, "boxes": 7}, "boxes.*7.*1.*6"),
        ({"text": "gird"}, "text.*'gird'.*'grid'"),
        ({"actions": "pull"}, "actions.*'pull'"),
        ({"width": 9, "text": "grid"}, "text.*9.*5.*8"),
        ({"width": 8, "height": 8, "boxes": 3, "text": "grid"}, "3 boxes.*text.*8.*5.*7"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        envs_jax.make("SokobanText-v0", **options)


@pytest.mark.parametrize(
    "rows", [ROOM[:5], ("######", *ROOM[2:], "######"), ("_#####", *ROOM[1:]), tuple(r.replace("O", "Q") for r in ROOM)]
)
def test_rooms_that_are_none(rows):
    with pytest.raises(ValueError, match="the room"):
        make("SokobanText-v0")[0].state_of(rows)


@pytest.mark.parametrize("row", ["###", "#########", "hello"])
def test_a_row_of_another_width_is_refused(row):
    env, _ = make("SokobanText-v0")
    with pytest.raises(ValueError, match="rows of 6"):
        env.state_of([*ROOM[:3], row, *ROOM[3:]])
