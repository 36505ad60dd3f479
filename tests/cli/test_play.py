"""Playing in the terminal: keys, scripts, pictures, and the moving picture of what was played."""

from __future__ import annotations

import io
import os
import pty
import sys

import jax
import numpy as np
import pytest
from PIL import Image

import envs_jax
from llmrl_jax.cli import main as cli, play


GAME = "Debug-Catch-v0"
GRID = "BabyAI-Text/GoToObjS4-v0"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")  # so that nothing changes this process's settings
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))


def call(capsys, *args: str) -> tuple[int, str, str]:
    code = cli.main(["envs", "play", *args])
    return code, *capsys.readouterr()


def test_a_script_is_played_without_a_terminal(capsys):
    code, out, _ = call(capsys, GAME, "--actions", "left, 1,stay,r, right,2,2,2,2,l", "--seed", "3")
    assert code == 0 and out.count(": reward ") == 9
    lines = out.splitlines()
    assert [line.split(":")[0] for line in lines if ": reward " in line] == ["left"] + ["stay"] * 2 + ["right"] * 5 + [
        "left"
    ]
    ended = next(line for line in lines if "terminated" in line)
    assert ended.startswith("episode 2 terminated after 5 steps, return ")
    assert ended.endswith(", success") == ("return 1" in ended)
    assert lines.index("--- episode 3 ---") == lines.index(ended) + 1  # the next action begins the next one
    assert (
        call(capsys, GAME, "--actions", "left", "--seed", "3")[1]
        == call(capsys, GAME, "--actions", "0", "--seed", "3")[1]
    )


def test_a_wrong_script_is_refused_before_anything_is_played(capsys):
    code, out, err = call(capsys, GAME, "--actions", "left,jump")
    assert code == 2 and "'jump'" in err and "episode" not in out


def test_without_a_terminal_and_without_actions_it_says_so(capsys):
    code, _, err = call(capsys, GAME)
    assert code == 2 and "not a terminal" in err and "--actions" in err


def test_mission_text_and_picture_are_shown(capsys):
    code, out, _ = call(capsys, GRID, "--actions", "turn left", "--picture", "ascii")
    env, params = envs_jax.make(GRID)
    obs, state = jax.jit(env.reset)(jax.random.fold_in(jax.random.key(0), 0), params)
    said = env.describe(obs)
    assert code == 0 and f"mission: {said['mission']}\ntext: {said['text']}\n" in out
    assert "WGWGWGWG\n" in out and "turn left: reward 0" in out
    assert env.ascii(state) in out


@pytest.mark.slow
def test_the_moving_picture_is_the_worlds_own_pictures(capsys, tmp_path):
    path = tmp_path / "new" / "folder" / "game.gif"  # created, as by every command that writes a file
    code, out, _ = call(capsys, GRID, "--actions", "turn left,turn left,turn right", "--gif", str(path))
    assert code == 0 and f"wrote {path}" in out
    env, params = envs_jax.make(GRID)
    obs, state = jax.jit(env.reset)(jax.random.fold_in(jax.random.key(0), 0), params)
    step = jax.jit(env.step)
    pictures = [env.render(jax.device_get(state))]
    for action in (0, 0, 1):
        state = step(jax.random.key(0), state, np.int32(action), params)[1]
        pictures.append(env.render(jax.device_get(state)))
    with Image.open(path) as image:
        assert image.n_frames == 4
        for i, picture in enumerate(pictures):
            image.seek(i)
            found = np.asarray(image.convert("RGB"))
            assert np.array_equal(found, picture), f"frame {i}: {np.abs(found.astype(int) - picture).max()}"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("Debug-Match-v0", "--gif", "a.gif"), "no picture"),
        ((GAME, "--picture", "colour"), "no picture"),
        (("CartPole-v1", "--gif", "new/a.png"), ".gif"),
        (("Debug-Aim-v0", "--actions", "1"), "played by keys"),
    ],
)
def test_what_cannot_be_played_or_drawn(capsys, args, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *args)
    assert code == 2 and message in err and "episode" not in out
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_is_redrawn_and_the_end_of_an_episode_stays(capsys):
    game = play.Game(GAME, seed=3, live=True)
    game.play(iter(["left"] * 5 + ["x", "bad", "q", "left"]))
    screens = capsys.readouterr().out.split(play.CLEAR)[1:]
    assert len(screens) == 7  # six states of the first episode, one of the second
    assert "left: 0, l" in screens[0] and "q: quit" in screens[0]
    assert screens[5].rstrip().endswith("any key begins the next episode, q quits")
    assert "--- episode 2 ---" in screens[6] and "no action 'bad'" in screens[6]


def test_arrows_and_space():
    names = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
    assert play.arrows_of(names) == {"left": 0, "right": 1, "up": 2, "space": 5}
    assert play.arrows_of(("left", "stay", "right")) == {"left": 0, "right": 2}
    assert play.arrows_of(("noop", "move_left", "move_right", "move_up", "move_down", "do")) == {
        "left": 1,
        "right": 2,
        "up": 3,
        "down": 4,
        "space": 5,
    }


def test_a_worlds_own_keys_come_first():
    game = play.Game(GRID)
    assert game.arrows == {"left": 0, "right": 1, "up": 2, "space": 5}
    assert [game.action(text) for text in ("t", "u", "g", "p", "d", "o", "6", "up")] == [0, 1, 2, 3, 4, 5, 6, 2]
    assert play.Game("Taxi-v3").arrows == {"down": 0, "up": 1, "right": 2, "left": 3, "space": 4}
    assert play.keys_of(("wait", "walk", "work"), {"x": 1, "w": 2}) == {
        "0": 0,
        "1": 1,
        "2": 2,
        "x": 1,
        "w": 2,
        "a": 0,
    }


def test_names_that_are_numbers_are_names():
    """An answer of `Notes-Count` is a number, which is not that of the action."""
    game = play.Game("Notes-Count-v0")
    assert game.names[game.action("3")] == "3" and game.names.index("3") != 3
    assert "3" not in play.keys_of(game.names)


def test_keys_of_a_terminal_come_one_at_a_time(monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        keys = play.typed()
        os.write(ours, b"l\x1b[D\x1bOA \x1b[3~2")
        assert [next(keys) for _ in range(5)] == ["l", "left", "up", "space", "2"]
        os.write(ours, b"\x04")
        assert next(keys, None) is None
    os.close(ours)


def test_pictures_keep_to_the_screen():
    picture = np.zeros((704, 704, 3), np.uint8)
    picture[32:64, 32:64] = 255
    small = play.shrink(picture, 100, 80)
    assert small.shape == (44, 44, 3)  # of 16 pixels: a tile is 2 x 2
    assert np.argwhere(small[..., 0]).tolist() == [[2, 2], [2, 3], [3, 2], [3, 3]] and small.max() == 255
    lines = play.colour_text(picture, 100, 40).split("\n")
    assert len(lines) == 22 and lines[0].count("▀") == 44


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_configuration_is_named(tmp_path, capsys, text):
    (tmp_path / "config.json").write_text(text)
    for command in ("eval", "play"):
        assert cli.main([command, str(tmp_path)]) == 2
        assert "config.json" in capsys.readouterr().err
