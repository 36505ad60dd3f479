"""`--help` of every group and command: made without jax, with every option, and as the real packages make it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.paths import ROOT


HELP = """
import contextlib, importlib, io, json, os, sys
os.environ["COLUMNS"] = "120"
from llmrl_jax.cli import main as cli
from llmrl_jax.cli.standins import HEAVY, standins

def fail(*args):
    raise AssertionError("the help was not made with stand-ins")

def lines():
    yield ["--help"]
    for name, group in cli.groups().items():
        yield [name, "--help"]
        with standins():
            commands = list(getattr(importlib.import_module(group.module), "COMMANDS", ()))
        yield from ([name, command, "--help"] for command in commands)

def texts():
    found = {}
    for line in lines():
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = cli.main(line)
        assert code == 0, (line, code, out.getvalue())
        found[" ".join(line[:-1])] = out.getvalue()
    return found
"""
"""Every help text, by the words before --help."""

WITHOUT_JAX = """
cli._run = fail
found = texts()
print(json.dumps({"texts": found, "heavy": [name for name in HEAVY if name in sys.modules]}))
"""

WITH_JAX = """
import dataclasses, inspect, typing
for name in HEAVY:
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(name)

def flags(kind, prefix=""):
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, name = hints[field.name], field.name
        if typing.get_origin(hint) is typing.Annotated:
            given = [m.name for m in hint.__metadata__ if getattr(m, "name", None) is not None]
            hint, name = typing.get_args(hint)[0], (given or [name])[0]
        place = f"{prefix}{name}".replace("_", "-")
        if dataclasses.is_dataclass(hint):
            yield from flags(hint, f"{place}." if name else prefix)
        else:
            yield f"--{place}"

def shown(name, hint):
    name = name.replace("_", "-")
    return flags(hint, f"{name}.") if dataclasses.is_dataclass(hint) else [f"--{name}"]

options = {}
for name, group in cli.groups().items():
    for command, function in getattr(importlib.import_module(group.module), "COMMANDS", {}).items():
        if hasattr(function, "prepare"):
            line = inspect.signature(function.prepare([])).parameters
            made = typing.get_args(line["settings"].annotation)[0]
            options[f"{name} {command}"] = ["--config", "--print-config", *flags(made)]
        else:
            hints = typing.get_type_hints(function, include_extras=True)
            named = [p for p in inspect.signature(function).parameters if not hasattr(hints[p], "__metadata__")]
            options[f"{name} {command}"] = [option for p in named for option in shown(p, hints[p])]
print(json.dumps({"texts": texts(), "options": options}))
"""


def run(code: str) -> dict:
    done = subprocess.run([sys.executable, "-c", HELP + code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def without_jax() -> dict:
    return run(WITHOUT_JAX)


@pytest.fixture(scope="module")
def with_jax() -> dict:
    return run(WITH_JAX)


def test_every_help_is_made_without_jax(without_jax):
    assert without_jax["heavy"] == []
    assert {"", "glam", "glam train", "props run", "lm sft", "serve", "envs list"} <= set(without_jax["texts"])


def test_every_help_is_that_of_the_real_packages(without_jax, with_jax):
    for name, text in with_jax["texts"].items():
        assert without_jax["texts"][name] == text, name


def test_every_help_names_every_option(without_jax, with_jax):
    for name, options in with_jax["options"].items():
        text = without_jax["texts"][name].lower()
        missing = [option for option in options if option not in text]
        assert not missing, (name, missing)
    assert "--ppo.clip-eps" in with_jax["options"]["glam train"]
    assert "--run.seed" in with_jax["options"]["glam demo"] and "--seed" in with_jax["options"]["glam eval"]


def test_the_help_of_a_command_imports_no_jax_in_a_process_of_its_own():
    code = "import sys; from llmrl_jax.cli.main import main; code = main(['props', 'run', '--help'])"
    code += "; assert not {'jax', 'flax', 'optax', 'orbax', 'transformers'} & set(sys.modules); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "--run.resume" in done.stdout, done.stderr
