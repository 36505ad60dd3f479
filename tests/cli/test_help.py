"""`--help` and `--help-all` of every group and command: made without jax, with every option, within the width of the
terminal, and as the real packages make it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.paths import ROOT


HELP = """
import contextlib, importlib, io, json, os, sys
SHORT = ("glam train", "lm sft", "rl train")
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
        yield from ([name, command, "--help-all"] for command in commands)
    yield from ([*words.split(), "--help"] for words in SHORT)

def texts():
    found = {}
    for line in lines():
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = cli.main(line)
        assert code == 0, (line, code, out.getvalue())
        found[" ".join(line if line[-1] == "--help" and len(line) == 3 else line[:-1])] = out.getvalue()
    return found
"""
"""Every help text, by the words before --help."""

WITHOUT_JAX = """
cli._run = fail
with standins() as end:  # one import of every module serves all texts
    for group in cli.groups().values():
        importlib.import_module(group.module)
    end()
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

options, frequent = {}, {}
for name, group in cli.groups().items():
    for command, function in getattr(importlib.import_module(group.module), "COMMANDS", {}).items():
        if hasattr(function, "prepare"):
            line = inspect.signature(function.prepare([])).parameters
            made = typing.get_args(line["settings"].annotation)[0]
            own = list(line)[: len(line) - 1]
            options[f"{name} {command}"] = [*(f"--{one}".replace("_", "-") for one in own), *flags(made)]
            if function.frequent:
                frequent[f"{name} {command}"] = [f"--{one}" for one in function.frequent]
        else:
            hints = typing.get_type_hints(function, include_extras=True)
            named = [p for p in inspect.signature(function).parameters if not hasattr(hints[p], "__metadata__")]
            options[f"{name} {command}"] = [option for p in named for option in shown(p, hints[p])]
from llmrl_jax.workflows.rl_training import settings_class
options["dqn"] = [x for algo in ("dqn", "iql") for x in flags(settings_class(algo))]
print(json.dumps({"texts": texts(), "options": options, "frequent": frequent}))
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


@pytest.mark.slow
def test_every_help_is_that_of_the_real_packages(without_jax, with_jax):
    for name, text in with_jax["texts"].items():
        assert without_jax["texts"][name] == text, name


@pytest.mark.slow
def test_every_help_names_every_option(without_jax, with_jax):
    for name in set(with_jax["options"]) - {"dqn"}:
        options = with_jax["options"][name]
        text = without_jax["texts"][name].lower()
        missing = [option for option in options if option not in text]
        assert not missing, (name, missing)
    assert "--ppo.clip-eps" in with_jax["options"]["glam train"]
    assert "--run.seed" in with_jax["options"]["glam demo"] and "--seed" in with_jax["options"]["glam eval"]


@pytest.mark.slow
def test_help_describes_the_frequent_options_and_names_the_others(without_jax, with_jax):
    texts = without_jax["texts"]
    short, whole = texts["glam train --help"], texts["glam train"]
    assert short.count("\n") < 100 < whole.count("\n")
    first, _, others = short.partition("other options")
    for name in ("preset", "env", "model", "steps", "ppo.learning-rate", "run.resume"):
        assert f"\n  --{name} " in first and f"\n  --{name} " in whole
    described = {line.split()[0] for line in first.splitlines() if line.startswith("  --")}
    assert first.index("--preset") < first.index("--env") < first.index("--run.name")
    for option in with_jax["options"]["glam train"]:
        prefix, _, name = option.removeprefix("--").rpartition(".")
        assert option in described or (f".{name}" if prefix else option) in others.split(), option
        assert not prefix or f"--{prefix}." in short
    assert "--ppo.gamma FLOAT" in whole and "--ppo.gamma FLOAT" not in short
    assert "--algo" in texts["rl train --help"] and "--dqn.gamma" not in texts["rl train"]


def test_every_summary_of_a_group_and_of_a_command_is_a_sentence(without_jax):
    summaries = {}
    for name, text in without_jax["texts"].items():
        _, title, rows = text.partition("\ncommands:\n" if name else "\ngroups:\n")
        if not title or len(name.split()) > 1:
            continue
        for line in rows.partition("\n\n")[0].splitlines():
            first = re.match(r"  (\S+)\s+(.*)", line) if line[2] != " " else None
            if first:
                label = f"{name} {first[1]}".strip()
            summaries[label] = first[2] if first else f"{summaries[label]} {line.strip()}"
    assert {"glam", "glam demo", "props table", "ellm answers", "runs rm"} <= set(summaries)
    assert not {name: summary for name, summary in summaries.items() if not summary.endswith(".")}
    assert summaries["glam demo"].endswith("and report the gain from RL.")  # a line of the source ends at "Downloads"


def test_help_keeps_to_the_width_and_breaks_lines_only_there(without_jax):
    for name, text in without_jax["texts"].items():
        long = [line for line in text.splitlines() if len(line) > 120 and not line.lstrip().startswith("--")]
        assert not long, (name, long)
    lines = without_jax["texts"]["glam train"].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  --preset"))
    said = " ".join(line[30:] for line in lines[start : start + 3])
    assert "`demo`; the ablations `aflan`, `npae`" in said  # a line of the source ends before "ablations"
    assert all(len(line) > 90 for line in lines[start : start + 2])


@pytest.mark.slow
def test_every_frequent_option_exists(with_jax):
    assert "glam train" in with_jax["frequent"]
    for name, frequent in with_jax["frequent"].items():
        known = with_jax["options"][name] + (with_jax["options"]["dqn"] if name == "rl train" else [])
        assert set(frequent) <= set(known) and len(set(frequent)) == len(frequent), name


def test_the_help_of_a_command_imports_no_jax_in_a_process_of_its_own():
    code = "import sys; from llmrl_jax.cli.main import main; code = main(['props', 'run', '--help'])"
    code += "; assert not {'jax', 'flax', 'optax', 'orbax', 'transformers'} & set(sys.modules); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "--run.resume" in done.stdout, done.stderr
