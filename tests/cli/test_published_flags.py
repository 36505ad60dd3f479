"""Options of the five published programs on our commands: `llmrl_jax.options.published` and the systems' tables."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from llmrl_jax.cli.help import describe
from llmrl_jax.cli.main import groups, main
from llmrl_jax.options.published import Choice, Instead, Same, Table, switch


SYSTEMS = ("bkrl", "ellm", "glam", "kalm", "props")
FUNCTIONS = {
    f"{system} {name}": command
    for system in SYSTEMS
    for name, command in importlib.import_module(groups()[system].module).COMMANDS.items()
}
COMMANDS = {name: f.published for name, f in FUNCTIONS.items() if getattr(f, "published", Table()).options}
MESH_AXES = {"data", "fsdp", "tensor"}


def flags(command: str) -> set[str]:
    """The flags of a command, for all algorithms of KALM."""
    lines = [[], ["--agent", "cql"], ["--agent", "discrete_cql"]] if command == "kalm train" else [[]]
    function = FUNCTIONS[command]
    described = [describe(function.prepare(line) if hasattr(function, "prepare") else function) for line in lines]
    return {name for one in described for option in one.options for name in option.names}


def test_every_system_with_programs_of_its_own_has_tables():
    assert {command.split()[0] for command in COMMANDS} == set(SYSTEMS) - {"props"}
    assert len(COMMANDS) == 15


@pytest.mark.parametrize("command", COMMANDS)
def test_tables_name_our_flags_and_hide_none(command):
    ours, table = flags(command), COMMANDS[command]
    for name, meaning in table.options.items():
        if isinstance(meaning, str | Same):
            flag = meaning if isinstance(meaning, str) else meaning.flag
            assert flag == "" or f"--{flag}" in ours, name
        elif isinstance(meaning, Choice):
            given = {arg for args in meaning.values.values() for arg in args if arg.startswith("--")}
            assert given <= ours, name
            assert meaning.bare in ("", *meaning.values)
        plain = f"--{name.replace('_', '-')}"
        if plain in ours:  # our own flag keeps its own values
            assert isinstance(meaning, str | Same), name
            assert (meaning if isinstance(meaning, str) else meaning.flag) in (plain[2:], "run.seed")
            assert isinstance(meaning, str) or meaning.convert("Crafter-Text-Reward") == "Crafter-Text-Reward"
    assert not table.hydra or not MESH_AXES & set(table.options)


TABLE = Table(
    "the program",
    {
        "data_path": "data",
        "model": Same(""),
        "env": Same("env", str.upper),
        "part.lr": "ppo.learning-rate",
        "wide": switch("ppo.wide"),
        "always": Choice({"true": ()}, "it is always so", bare="true"),
        "device": Instead("give --mesh"),
        "more": Choice({"true": ("--ppo.more", "2")}, "give --ppo.more", last=True),
        "some": Choice({"a": ("--ppo.more", "1")}, "give --ppo.more"),
    },
    hydra=True,
)


@pytest.mark.parametrize(
    "args, ours",
    [
        ("--data_path x --data-path=y", "--data=x --data=y"),
        ("--steps 3 --model runs/a --env abc", "runs/a --steps 3 --env=ABC"),
        ("part.lr=1e-4 +part.lr=2 --part.lr 3", "--ppo.learning-rate=1e-4 --ppo.learning-rate=2 --ppo.learning-rate=3"),
        ("wide=True --wide False --always --other x", "--ppo.wide --ppo.no-wide --other x"),
        ("--data_path", "--data"),
        ("more=true some=a x", "--ppo.more 1 x --ppo.more 2"),
        ("--mesh data=4 device", "--mesh data=4 device"),
    ],
)
def test_translation(args, ours):
    assert TABLE.translated(args.split()) == ours.split()


@pytest.mark.parametrize("args, named", [("--device cuda:0", "--mesh"), ("+wide=no", "--ppo.wide")])
def test_options_without_an_equivalent_are_refused_by_name(args, named):
    with pytest.raises(ValueError) as error:
        TABLE.translated(args.split())
    assert named in str(error.value) and "the program" in str(error.value)


def test_keys_of_a_configuration_are_read_where_a_table_says_so():
    assert Table("p", {"lr": "ppo.learning-rate"}).translated(["lr=1"]) == ["lr=1"]


PRINTED = [
    (
        "kalm train --agent_name bc --dataset_path d --ds_type baseline --seed 3",
        {"agent": "bc", "data": "d", "seed": "3"},
    ),
    ("kalm ground --pretrained_path embedded --dataset_path d --pattern_num 0,3", {"data": "d"}),
    ("kalm imagine --model_path g --prompt_path d --level easy_level", {"grounded": "g", "data": "d", "level": "easy"}),
    (
        "bkrl collect --precollect --num_eval_episodes 7 --total_timesteps 5000 --num_envs 4 --ext_coef 3",
        {"episodes": "7", "steps": "5000", "num_envs": "4", "extrinsic_coef": "3.0"},
    ),
    (
        "bkrl train --alg bk-code --pretrain_path p --ext_coef 10 --seed 5 --anneal_lr False",
        {"potential": "p", "seed": "5"},
    ),
    ("bkrl prefer --env crafter --dataset_path d --n_layers 1", {"env": "Crafter-Text-Reward", "data": "d"}),
    (
        "ellm pretrain env_spec.use_sbert=True use_goal=True use_language_state=sbert lr=1e-4 "
        "env_spec.lm_spec.lm_class=SimpleOracle env_spec.threshold=.9 num_train_frames=2e6",
        {"suggester": "oracle", "threshold": "0.9", "steps": "2000000", "observe": "pixels+text"},
    ),
    (
        "ellm finetune single_goal_eval=True train_after_reward=True env_spec.single_task=place_table "
        "finetune_snapshot=True snapshot_path=runs/none agent.train_eps_max=.4",
        {"task": "place_table", "from_run": "runs/none", "epsilon_start": "0.4", "learn_after_reward": "true"},
    ),
    (
        "glam train rl_script_args.name_environment=BabyAI-GoToLocal-v0 rl_script_args.number_envs=8 "
        "lamorel_args.llm_args.model_path=gpt2 rl_script_args.nbr_obs=2",
        {"env": "BabyAI-Text/GoToLocal-v0", "num_envs": "8", "model": "gpt2", "history": "2"},
    ),
    (
        "glam train --agent symbolic --procs 16 --frames 4000 --hrl vanilla --save-interval 15",
        {"num_envs": "16", "steps": "4000", "checkpoint_every": "15"},
    ),
]


@pytest.mark.parametrize("line, values", PRINTED, ids=lambda x: x[:16] if isinstance(x, str) else "")
def test_published_command_lines_give_our_settings(line, values, capsys):
    assert main([*line.split(), "--print-config"]) == 0
    printed = capsys.readouterr().out
    for name, value in values.items():
        assert re.search(rf"^ *{name}: '?{re.escape(value)}'?$", printed, re.M), (name, value)


REFUSED = [
    ("kalm train --ds_type easy_level", "--imagined"),
    ("kalm train --device cuda:0", "JAX_PLATFORMS"),
    ("kalm imagine --output_path x.npy", "--run.name"),
    ("kalm test --model_path m --agent_name cql", "leave it out"),
    ("bkrl train --eval_freq 20000", "--run.eval-every"),
    ("ellm pretrain env_spec.housekeep_ep_num=2", "--env"),
    ("ellm pretrain env_spec.lm_spec.openai_key=sk-1234", "--chat.key-variable"),
    ("glam train rl_script_args.batch_size=16", "--ppo.minibatches"),
    ("glam test rl_script_args.language=french", "--tests"),
    ("glam clone --per_device_batch_size 8", "--sft.batch-size"),
]


@pytest.mark.parametrize("line, named", REFUSED, ids=lambda x: x[:24])
def test_published_options_without_an_equivalent_name_ours(line, named, capsys):
    assert main(line.split()) == 2
    message = capsys.readouterr().err
    assert named in message and "sk-1234" not in message


def test_the_page_has_every_option():
    page = (Path(__file__).parents[2] / "docs" / "published-options.md").read_text()
    from tools.published_options import page as written

    assert page == written()
