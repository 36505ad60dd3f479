"""Completion by the scripts of `llmrl completion`, as bash computes it."""

from __future__ import annotations

import subprocess

import pytest

import envs_jax
from llmrl_jax.cli import main as cli
from llmrl_jax.cli.commands.completion import script


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "llmrl.bash"
    path.write_text(script("bash"))
    subprocess.run(["bash", "-n", path], check=True)

    def complete(line: str) -> list[str]:
        """Words that TAB offers at the end of a line."""
        words = line.split(" ")
        code = f"source {path}; COMP_WORDS=({' '.join(repr(w) for w in words)}); COMP_CWORD={len(words) - 1}; _llmrl"
        code += '; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-uc", code], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout.split()

    complete.script = path.read_text()
    return complete


def test_groups_and_commands(bash):
    assert set(cli.groups()) < set(bash("llmrl "))
    assert bash("llmrl gl") == ["glam"]
    assert bash("llmrl glam t") == ["train", "test"]
    assert bash("llmrl envs l") == ["list"]


def test_options_of_commands_and_of_groups_that_are_one(bash):
    assert bash("llmrl glam train --run.res") == ["--run.resume", "--run.resume-from"]
    assert bash("llmrl lm sft --steps 5 --sft.l") == ["--sft.learning-rate"]
    assert bash("llmrl serve --po") == ["--port"]
    assert bash("llmrl glam test runs/a --no-r") == ["--no-random", "--no-reuse"]
    assert bash("llmrl lm sft --num-env") == []


def test_values(bash):
    assert bash("llmrl glam train --agent ") == ["llm", "symbolic", "drrn", "random", "bot"]
    assert bash("llmrl completion z") == ["zsh"]
    assert bash("llmrl envs play ") == envs_jax.ids()
    assert bash("llmrl rl train --env Hopp") == ["Hopper-v5"]
    assert bash("llmrl glam train --run.resume runs/") == []  # so that bash offers file names


def test_zsh_reads_the_same_script(bash):
    lines = script("zsh").splitlines()
    assert lines[1] == "autoload -U +X bashcompinit && bashcompinit"
    assert [lines[0].replace("zsh", "bash"), *lines[2:]] == bash.script.splitlines()


def test_an_unknown_shell_is_refused(capsys):
    assert cli.main(["completion", "powershell"]) == 2
