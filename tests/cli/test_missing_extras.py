"""Extras that are not installed: every command that will need one says so before it works or writes anything."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from safetensors.numpy import load_file

from llmrl_jax import lm
from llmrl_jax.cli.main import main
from tests.gguf_files import metadata, write
from tests.lm_random import random_variables


SERVER = ("--chat.model", "gpt-4o", "--chat.base-url", "https://api.openai.com/v1")
GOALS = ("--suggester", "chat", *SERVER)

DATA = ("data", "pyarrow")
API = ("api", "openai", "tenacity")
COMMANDS = {
    "bkrl collect": DATA,
    "ellm collect": DATA,
    "kalm collect": DATA,
    "glam clone": DATA,
    "envs demos BabyAI-GoToLocal-v0 --out {out}/demos.parquet": DATA,
    f"props run {' '.join(SERVER)}": API,
    f"ellm pretrain {' '.join(GOALS)}": API,
    f"ellm accuracy {' '.join(SERVER)}": API,
    f"bkrl code --data {{out}} {' '.join(SERVER)}": API,
    f"bkrl prefer --data {{out}} {' '.join(SERVER)}": API,
    f"bkrl goals --data {{out}} {' '.join(SERVER)}": API,
    "props run --method cma_es": ("evolution", "evosax"),
    "props table --methods cma_es --tasks nim": ("evolution", "evosax"),
    "props run --tasks nim swimmer": ("control", "gymnasium"),
    "props table --methods ars --tasks nim swimmer": ("control", "gymnasium"),
    "props finetune --model {out} --tasks nim swimmer": ("control", "gymnasium"),
    "kalm collect --world clevr": ("clevr", "mujoco"),
    "serve --model {out}": ("serve", "starlette", "uvicorn"),
}


def hide(monkeypatch, names):
    """As if packages were not installed: they can be neither imported nor located."""
    real = importlib.util.find_spec
    for module in [module for module in sys.modules if module.partition(".")[0] in names]:
        monkeypatch.setitem(sys.modules, module, None)
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name.partition(".")[0] in names else real(name, *a)
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_extra_is_named_first(command, monkeypatch, tmp_path, capsys):
    extra, *modules = COMMANDS[command]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    hide(monkeypatch, modules)
    assert main(command.format(out=tmp_path).split()) == 2
    error = capsys.readouterr().err
    assert f"of the extra `{extra}`: pip install" in error and any(name in error for name in modules)
    assert error.count("\n") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("command", ["glam train --steps 64", "agent train"])
def test_the_decoder_of_a_file_is_named_before_its_model_is_made(command, monkeypatch, tmp_path, capsys):
    """Weights are read when a learner begins; the file says earlier that they are quantised."""
    config = lm.LlamaConfig(64, 32, 32, 1, 2, 1, max_position_embeddings=256)
    folder = lm.save_hf(tmp_path / "hf", config, random_variables(lm.Llama(config))["params"])
    weights = load_file(folder / "model.safetensors")
    write(tmp_path / "model.gguf", weights, metadata(config, "llama"), kind="Q8_0", heads=(2, 1))
    hide(monkeypatch, ["gguf"])
    assert main([*command.split(), "--model", str(tmp_path / "model.gguf"), "--run.out", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert "of the extra `gguf`: pip install" in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["props run", "ellm pretrain --suggester chat", "bkrl code --data nothing"])
def test_a_missing_key_is_named_first(command, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main([*command.split(), *SERVER]) == 2
    assert "OPENAI_API_KEY is empty" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_a_method_that_asks_no_model_needs_no_server(monkeypatch, tmp_path):
    hide(monkeypatch, ["openai"])
    small = "--method ars --tasks nim --iterations 2 --episodes 2 --final-episodes 2".split()
    assert main(["props", "run", *small, *SERVER, "--run.out", str(tmp_path)]) == 0
