from __future__ import annotations

import io
import json
import os
import re
import runpy
import subprocess
import sys
import time
import types

import numpy as np
import pytest

import envs_jax
from llmrl_jax.cli import main as cli, play
from llmrl_jax.run.loop import RunStopped


GAME = "Debug-Catch-v0"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("LLMRL_COMPILATION_CACHE", "off")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")  # so that nothing changes this process's settings


def call(capsys, *args: str) -> tuple[int, str, str]:
    code = cli.main(list(args))
    return code, *capsys.readouterr()


def test_help_names_every_group_and_is_fast():
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "llmrl_jax.cli.main", "--help"], capture_output=True, text=True)
    took = time.monotonic() - started
    assert done.returncode == 0 and "envs" in done.stdout and "glam" in done.stdout
    assert took < 1.5


def test_help_of_a_group_and_of_each_command(capsys):
    code, out, _ = call(capsys, "envs", "--help")
    assert code == 0 and all(name in out for name in ("list", "show", "play"))
    code, out, _ = call(capsys, "envs", "play", "--help")
    assert code == 0 and "--max-steps INT" in out and "default: 0" in out


def test_what_is_missing_or_unknown(capsys):
    code, _, err = call(capsys)
    assert code == 2 and "group is missing" in err
    code, _, err = call(capsys, "env", "list")
    assert code == 2 and "'env'" in err
    code, _, err = call(capsys, "envs")
    assert code == 2 and "command is missing" in err
    code, _, err = call(capsys, "envs", "lst")
    assert code == 2 and "'lst'" in err
    code, _, err = call(capsys, "envs", "show", GAME, "--sed", "1")
    assert code == 2 and "--seed" in err


def test_version(capsys):
    from llmrl_jax import __version__

    assert call(capsys, "--version")[:2] == (0, __version__ + "\n")
    assert call(capsys, "glam", "--version")[:2] == (0, __version__ + "\n")
    assert call(capsys, "glam", "train", "--version")[:2] == (0, __version__ + "\n")
    assert call(capsys, "glm", "--version")[0] == 2
    assert runpy.run_module("llmrl_jax")["main"] is cli.main  # `python -m llmrl_jax`


def test_list(capsys):
    code, out, _ = call(capsys, "envs", "list", "--show", "ids")
    assert code == 0 and out.split() == envs_jax.ids()
    code, out, _ = call(capsys, "envs", "list", "debug-ca", "--show", "ids")
    assert out.split() == [GAME]
    code, out, _ = call(capsys, "envs", "list", "pper")
    first, second, *_ = out.splitlines()
    assert code == 0 and first == "mujoco (1): Gymnasium's MuJoCo tasks, v5, on C MuJoCo or MJX."
    assert second == "  Hopper-v5  hop forward on one leg"
    code, out, _ = call(capsys, "envs", "list")
    listed = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert [words[0] for words in listed] == envs_jax.ids() and all(len(words) > 1 for words in listed)
    families = [line for line in out.splitlines() if line[:1].isalpha()]
    assert len(families) == len({envs_jax.spec(id).family for id in envs_jax.ids()}) and all(
        map(re.compile(r"\w+ \(\d+\): \w").match, families)
    )
    rows = json.loads(call(capsys, "envs", "list", "hopper", "--json")[1])
    assert rows == [{"id": "Hopper-v5", "family": "mujoco", "about": "hop forward on one leg"}]
    assert [row["id"] for row in json.loads(call(capsys, "envs", "list", "--json")[1])] == envs_jax.ids()
    code, _, err = call(capsys, "envs", "list", "Debug-Cach")
    assert code == 2 and err.startswith("error: no id contains 'Debug-Cach'; did you mean")


def test_show(capsys):
    code, out, _ = call(capsys, "envs", "show", "CartPole-v1")
    assert code == 0 and "Box float32[4]" in out and "action space: Discrete(2)" in out and "push left" in out
    code, _, err = call(capsys, "envs", "show", "CartPol-v1")
    assert code == 2 and "did you mean 'CartPole-v1'" in err and "Traceback" not in err
    code, _, err = call(capsys, "envs", "show", "CartPol-v1", "--debug")
    assert code == 1 and "Traceback" in err


def test_play_is_scriptable(capsys, monkeypatch):
    env, _ = envs_jax.make(GAME)
    name = env.action_names[0]
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{name}\n1\nnonsense\n?\nr\n0\nq\n0\n0\n"))
    code, out, _ = call(capsys, "envs", "play", GAME, "--seed", "3")
    assert code == 0
    assert out.count("reward") == 3 and "no action 'nonsense'" in out and out.count("q: quit") == 2
    assert "--- episode 2 ---" in out  # r
    monkeypatch.setattr(sys, "stdin", io.StringIO("0\n" * 50))
    code, again, _ = call(capsys, "envs", "play", GAME, "--max-steps", "12")
    assert again.count("reward") == 12 and "terminated after" in again


def test_play_refuses_what_keys_cannot_play(capsys, monkeypatch):
    class Continuous:
        id = "Continuous-v0"

        def action_space(self, params):
            return envs_jax.spaces.Box(-1.0, 1.0, (2,))

    monkeypatch.setattr(envs_jax, "make", lambda id: (Continuous(), None))
    code, _, err = call(capsys, "envs", "play", "Continuous-v0")
    assert code == 2 and "played by keys" in err


def test_pictures_as_text():
    picture = np.zeros((16, 32, 3), np.uint8)
    picture[:, 16:] = 255
    assert play.shrink(picture, 8).shape == (4, 8, 3)
    assert play.ascii_text(picture, 8) == "    @@@@\n    @@@@"
    lines = play.colour_text(picture, 8).split("\n")
    assert len(lines) == 2 and lines[0].count("▀") == 8 and "38;2;255;255;255" in lines[0]


def test_keys_are_distinct():
    keys = play.keys_of(("turn left", "turn right", "go forward"))
    assert keys == {"0": 0, "1": 1, "2": 2, "t": 0, "u": 1, "g": 2}


def fake_group(monkeypatch, function):
    module = types.ModuleType("fake")
    module.COMMANDS = {"do": function}
    monkeypatch.setattr(cli, "groups", lambda: {"fake": cli.Group("fake", "A group.")})
    monkeypatch.setitem(sys.modules, "fake", module)


def test_exit_codes(capsys, monkeypatch):
    def returns() -> int:
        """Return a code."""
        return 7

    def stops() -> None:
        """Stop."""
        raise RunStopped("loss is nan at update 3")

    def bug() -> None:
        """Fail."""
        {}["missing"]

    def theirs() -> None:
        """Fail elsewhere."""
        int("x")

    for function, code, text in ((returns, 7, ""), (stops, 1, "loss is nan at update 3"), (bug, 1, "Traceback")):
        fake_group(monkeypatch, function)
        found, _, err = call(capsys, "fake", "do")
        assert found == code and text in err
        assert function is not stops or "Traceback" not in err
    fake_group(monkeypatch, theirs)
    assert "Traceback" in call(capsys, "fake", "do")[2]


def test_defaults_may_depend_on_the_arguments(capsys, monkeypatch):
    def prepare(args):
        def do(x: int = len(args)) -> int:
            """Do it."""
            return x

        return do

    def do() -> int:
        """Do it."""
        raise AssertionError

    do.prepare = prepare
    fake_group(monkeypatch, do)
    assert call(capsys, "fake", "do")[0] == 0
    assert call(capsys, "fake", "do", "--x", "5")[0] == 5


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({}, ".cache/llmrl_jax"),
        ({"LLMRL_COMPILATION_CACHE": "off"}, ""),
        pytest.param({"LLMRL_COMPILATION_CACHE": "{}/other"}, "other", marks=pytest.mark.slow),
        pytest.param({"JAX_COMPILATION_CACHE_DIR": "{}/theirs"}, "theirs", marks=pytest.mark.slow),
    ],
    ids=["default", "off", "ours", "theirs"],
)
def test_the_compilation_cache_is_on_by_default(tmp_path, given, folder):
    code = "import sys; from llmrl_jax.cli import main as cli; cli.main(['envs', 'list', 'CartPole']);"
    code += "assert not {'jax', 'numpy'} & set(sys.modules), 'envs list needs no jax';"
    code += f"cli.main(['runs', 'list', {str(tmp_path)!r}]);"
    code += "assert 'jax' not in sys.modules, 'nor does runs list'; cli.main(['envs', 'show', 'none']); import jax;"
    code += "print(jax.config.jax_compilation_cache_dir, jax.config.jax_enable_compilation_cache)"
    clean = {n: v for n, v in os.environ.items() if n not in ("JAX_COMPILATION_CACHE_DIR", "LLMRL_COMPILATION_CACHE")}

    env = {**clean, "HOME": str(tmp_path), **{name: value.format(tmp_path) for name, value in given.items()}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    where, on = done.stdout.split()[-2:]
    assert on == "False" if not folder else where == str(tmp_path / folder)
    if folder != "theirs":
        assert on == str(bool(folder))
