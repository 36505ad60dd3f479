"""A small Llama is fine-tuned as the optimizer: form and proposals get better, and a stopped run goes on to the bit."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from experiments.props_finetune import PriorConfig, make_prior
from llmrl_jax import lm
from llmrl_jax.cli import main as cli
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.props.config import FinetuneConfig, FinetuneRun
from llmrl_jax.systems.props.finetune import finetune
from llmrl_jax.tuning import GRPOConfig, SFTConfig


pytestmark = pytest.mark.slow
DATA = FinetuneConfig(
    tasks=("mountain_car_continuous",),
    policies=400,
    history=2,
    episodes=5,
    judged_episodes=5,
    eval_prompts=40,
    explain=False,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("finetune")
    kept = RunConfig(name="small", out=str(out), progress="off", checkpoint_every=0)
    prior = PriorConfig(
        prompts=600, hidden_size=64, layers=2, updates=300, sft=SFTConfig(batch_size=16, learning_rate=5e-3)
    )
    return FinetuneRun(
        model=str(make_prior(DATA, prior, kept)),
        data=DATA,
        lora=lm.LoRAConfig(rank=8, alpha=32.0, targets=lm.lora.TARGETS),
        updates=40,
        grpo=GRPOConfig(prompts=8, group=8, max_new_tokens=40, learning_rate=3e-3),
        run=kept,
    )


def test_form_and_proposals_get_better(run):
    folder = finetune(run)
    found = json.loads((folder / "summary.json").read_text())
    before, after = found["before"], found["after"]
    assert before["reward/hard_format"] < 0.8 and after["reward/hard_format"] > 0.9, (before, after)
    for part in ("policy", "improvement"):
        assert after[f"reward/{part}"] > before[f"reward/{part}"] + 0.1, (part, before, after)
    model, variables = lm.load(run.model)
    adapted, more = lm.load_adapter(folder / "adapter", model, variables)
    assert adapted.lora.rank == 8 and any(np.abs(x).max() > 0 for x in jax.tree.leaves(more["lora"]))


def test_a_run_is_resumed_to_the_bit(run):
    short = replace(run, updates=3)
    whole = finetune(replace(short, run=replace(run.run, name="whole")))
    finetune(replace(short, run=replace(run.run, name="cut", max_seconds=1e-9)))
    cut = finetune(replace(short, run=replace(run.run, name="cut", resume=True)))
    files = [(folder / "adapter" / "adapter_model.safetensors").read_bytes() for folder in (whole, cut)]
    assert files[0] == files[1]


def test_the_command_takes_a_preset_and_a_run_to_resume(run, capsys):
    args = [
        "props",
        "finetune",
        "--model",
        run.model,
        "--tasks",
        "nim",
        "--policies",
        "40",
        "--history",
        "2",
        "--run.out",
        run.run.out,
    ]
    args += ["--run.name", "told", "--run.progress", "off", "--updates", "1", "--eval-prompts", "4", "--no-explain"]
    args += ["--grpo.max-new-tokens", "8", "--grpo.prompts", "4", "--grpo.group", "4"]
    assert cli.main([*args, "--grpo.microbatches", "1"]) == 0
    assert "Nim: 20 prompts; a return of" in capsys.readouterr().out
    again = ["props", "finetune", "--run.name", "told", "--run.out", run.run.out, "--run.resume", "--updates", "2"]
    assert cli.main(again) == 0
    assert "2 updates at" in capsys.readouterr().out
    assert cli.main([*args, "--preset", "published"]) == 2
    assert "'nim'" in " ".join(capsys.readouterr().err.split())
