"""The two published YAML schemas: read unchanged, and every wrong key named."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import yaml

from llmrl_jax.systems.props.build import make_optimizer
from llmrl_jax.systems.props.compat import published
from llmrl_jax.systems.props.compat.published import read_published
from llmrl_jax.systems.props.config import PropsConfig, ReplyConfig
from llmrl_jax.systems.props.tasks import get
from tests.props_says import Says


# The keys and the kinds of values of the two published schemas; names and numbers are this test's own.
RELEASE = """
task: cont_space_llm_num_optim
num_episodes: 40
gym_env_name: CartPole-v1
render_mode: null
logdir: logs/cartpole_props
dim_actions: 2
dim_states: 4
max_traj_count: 1000
max_traj_length: 1000
template_dir: agent/policy/templates
llm_si_template_name: num_optim.j2
llm_output_conversion_template_name: num_optim.j2
llm_model_name: gpt-4o
num_evaluation_episodes: 20
warmup_episodes: 20
warmup_dir: null
bias: true
optimum: 500
search_step_size: 1.0
"""
RELEASE_PLUS = """
task: dist_state_llm_num_optim_semantics
num_episodes: 100
gym_env_name: FrozenLake-v1
render_mode: null
logdir: logs/frozenlake_propsp
dim_actions: [[0, 1, 2, 3]]
dim_states: [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]
max_traj_count: 1000
max_traj_length: 50
template_dir: agent/policy/templates
llm_si_template_name: num_optim_candidates_semantics.j2
llm_model_name: ollama:some-model:7b
ollama_num_ctx: 4096
llm_output_conversion_template_name: num_optim_candidates_semantics.j2
num_evaluation_episodes: 20
warmup_episodes: 0
warmup_dir: null
optimum: 1.0
env_kwargs:
  is_slippery: true
env_desc_file: env_descriptions/frozenlake.j2
"""
SEED = """
task: cartpole
num_episodes: 100
gym_env_name: CartPole-v1
render_mode: None
continuous: True
num_position_bins: 0
num_theta_bins: 0
logdir: logs/cartpole_v1
actions: 2
states: 4
max_traj_count: 20
max_traj_length: 300
template_dir: agent/policy/templates
llm_si_template_name: cont_cartpole_si.j2
llm_ui_template_name: cont_cartpole_episode.j2
llm_output_conversion_template_name: cont_cartpole_llm_output_conversion.j2
llm_model_name: gpt-4o
num_evaluation_episodes: 20
record_video: True
use_replay_buffer: True
reset_llm_conversation: False
"""
FINETUNED = """
task: mc_continuous
experiments: 3
num_episodes: 100
gym_env_name: MountainCarContinuous-v0
render_mode: None
logdir: logs/evaluation/numeric
actions: 1
states: 2
max_traj_count: 20
max_traj_length: 75
template_dir: agent/policy/templates
llm_si_template_name: numeric_optimization_3_params.j2
llm_ui_template_name: non_standard/mountaincar_cont_episode.j2
llm_output_conversion_template_name: output_conversion_3_params.j2
env_desc_file: None
llm_model_name: adapters/final
model_type: OFFLINE
base_model: some/base
num_evaluation_episodes: 20
warmup_episodes: 20
step_size: 0.5
reset_llm_conversation: False
print_episode: 20
max_limit: 100
title: A title
"""


@pytest.mark.parametrize(("number", "read"), [("1234567", "1234567"), ("4223.517", "4223.517"), ("-100", "-100")])
def test_an_optimum_keeps_its_digits(number, read):
    text = RELEASE.replace("optimum: 500", f"optimum: {number}")
    assert read_published(yaml.safe_load(text)).config.optimum == read


def test_the_release_s_schema():
    found = read_published(yaml.safe_load(RELEASE))
    assert (found.schema, found.task, found.config.method, found.model) == ("release", "cartpole", "props", "gpt-4o")
    config = found.config
    assert (config.iterations, config.episodes, config.warmup, config.warmup_episodes) == (40, 20, 20, 1)
    assert (config.optimum, config.step_size, config.history.last, config.max_steps) == ("500", 1.0, 1000, 500)
    assert config.templates.template_dir == "" and "no folder agent/policy/templates" in found.notes[0]


def test_the_release_s_schema_of_props_plus():
    found = read_published(yaml.safe_load(RELEASE_PLUS))
    assert (found.task, found.config.method) == ("frozen_lake", "props+")
    assert found.config.max_steps == 50 and found.config.history.trajectory_steps == 200
    assert found.model == "some-model:7b" and any("--chat.base-url" in note for note in found.notes)


def test_the_seed_s_schema_is_the_dialogue():
    found = read_published(yaml.safe_load(SEED))
    config = found.config
    assert (found.schema, config.method, found.record_video) == ("finetune", "legacy", True)
    assert config.use_replay_buffer and not config.reset_llm_conversation
    assert (config.reply.retries, config.reply.on_failure) == (3, "repeat")
    assert config.policy.init == "uniform_3.5"
    assert (config.buffer_episodes, config.buffer_steps, config.buffer_rows) == (20, 300, 100)
    notes = "\n".join(found.notes)
    assert "holds the last 20 episodes" in notes and "holds the last 300 steps of an episode" in notes


def test_the_dialogue_of_some_worlds_shows_as_many_rows_as_an_episode_may_have():
    hopper = {"task": "hopper", "gym_env_name": "Hopper-v5", "actions": 3, "states": 11}
    config = read_published(yaml.safe_load(SEED) | hopper).config
    assert (config.buffer_rows, config.buffer_steps) == (300, 0)
    blind = read_published(yaml.safe_load(SEED) | {"use_replay_buffer": False}).config
    assert (blind.buffer_episodes, blind.buffer_steps) == (0, 0) and not blind.use_replay_buffer


def test_the_dialogue_before_it_had_options():
    data = yaml.safe_load(SEED)
    for key in ("use_replay_buffer", "reset_llm_conversation", "llm_ui_template_name"):
        del data[key]
    found = read_published(data)
    assert found.config.method == "legacy"
    assert found.config.use_replay_buffer and found.config.reset_llm_conversation
    assert sum("before there was such an option" in note for note in found.notes) == 2


def test_the_fine_tuning_repository_s_schema():
    found = read_published(yaml.safe_load(FINETUNED))
    assert (found.config.method, found.seeds, found.print_every) == ("props", 3, 20)
    assert (found.model, found.adapter) == ("local:some/base", "adapters/final")
    assert found.config.step_size == 0.5 and found.config.history.last == 75
    assert found.config.warmup_episodes == 0
    reply = found.config.reply
    assert (reply.retries, reply.on_failure, reply.repeat) == (3, "repeat", "last")
    assert read_published(yaml.safe_load(RELEASE)).config.reply == ReplyConfig(retries=4, on_failure="stop")


@pytest.mark.parametrize(
    ("text", "change", "steps", "noted"),
    [
        (RELEASE, {}, 500, True),  # Gymnasium's own limit
        (RELEASE, {"max_traj_length": 300}, 300, False),
        (RELEASE_PLUS, {"gym_env_name": "maze-sample-3x3-v0", "max_traj_length": 200}, 200, False),  # the task has 20
        (RELEASE_PLUS, {"gym_env_name": "CliffWalking-v0", "max_traj_length": 200}, 200, False),  # the task has 100
        (FINETUNED, {}, 0, False),
    ],
)
def test_an_episode_is_as_long_as_the_file_says(text, change, steps, noted):
    data = yaml.safe_load(text) | change
    if "gym_env_name" in change:
        data |= {"dim_states": None, "env_kwargs": {}}
    found = read_published(data)
    assert found.config.max_steps == steps
    assert any("the world itself ends an episode after 500 steps" in note for note in found.notes) == noted


def test_a_step_size_of_a_table_is_read_by_a_template_of_its_own_alone(tmp_path):
    data = yaml.safe_load(RELEASE_PLUS) | {"search_step_size": 3.0}
    published = read_published(data, folder=tmp_path)
    assert published.config.step_size == 0 and any("search_step_size" in note for note in published.notes)
    templates(tmp_path, num_optim_candidates_semantics="{{ step_size }}")
    assert optimizer(read_published(data, folder=tmp_path)).prompt.render("", 1) == "3.0"


def test_trajectories_are_shown_as_the_file_says():
    for text, usual in ((RELEASE, 0), (RELEASE_PLUS, 200)):
        data = yaml.safe_load(text)
        for given, shown in (({}, usual), ({"include_trajectories": False}, 0), ({"include_trajectories": True}, 200)):
            assert read_published(data | given).config.history.trajectory_steps == shown


@pytest.mark.parametrize(
    ("text", "change", "init"),
    [
        (RELEASE, {}, "normal_unbounded"),
        (RELEASE, {"bias": False}, "uniform_3"),
        (RELEASE, {"param_min": -2, "param_max": 2}, None),
        (RELEASE_PLUS, {}, None),
        (FINETUNED, {}, "uniform_3.5"),
        (FINETUNED, {"bias": False}, "uniform_3"),
    ],
)
def test_first_policies_are_drawn_as_published(text, change, init):
    config = read_published(yaml.safe_load(text) | change).config
    assert config.policy.init == init
    if init:
        assert get("cartpole").make(**config.policy.chosen)[2].init == init


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (RELEASE, ("logdir", "template_dir")),
        (RELEASE_PLUS, ("env_desc_file", "ollama_num_ctx")),
        (SEED, ("max_traj_count", "max_traj_length", "logdir")),
        (FINETUNED, ("max_traj_count", "title", "max_limit", "reset_llm_conversation")),
    ],
    ids=["release", "release+", "seed", "finetuned"],
)
def test_what_means_nothing_here_is_said(text, keys):
    notes = "\n".join(read_published(yaml.safe_load(text)).notes)
    for key in keys:
        assert key in notes or {"template_dir": "no folder"}.get(key, key) in notes, (key, notes)


def test_no_key_is_dropped_in_silence():
    """Every key of either schema, in a file that gives it: it changes what is read, or a note names it."""
    values = {
        "env_kwargs": {}, "warmup_dir": "d", "bias": True, "rank": 10, "optimum": 500, "include_trajectories": True,
        "feedback_interval": 5, "param_min": -5, "param_max": 5, "buffer_top_k": 3, "buffer_recent_j": 2,
        "ollama_num_ctx": 9, "continuous": False, "num_position_bins": 3, "num_theta_bins": 3, "max_limit": 7,
        "title": "T", "env_desc_file": "x.j2", "model_type": "HF", "render_mode": "human", "step_size": 0.5,
    }  # fmt: skip
    for text, known in ((RELEASE, published.RELEASE), (SEED, published.FINETUNE)):
        plain = yaml.safe_load(text)
        for key in sorted(known - set(plain) | {"render_mode"}):
            if key in ("experiments", "base_model", "grid_size", "print_episode", "llm_ui_template_name"):
                continue
            value = values.get(key, 4)
            with_it, without = read_published(plain | {key: value}), read_published(plain)
            said = any(key in note for note in with_it.notes)
            assert said or with_it != without or key in ("env_kwargs", "bias", "rank"), key  # these say what is so
    with pytest.raises(ValueError, match="rank.*5.*10"):
        read_published(yaml.safe_load(RELEASE) | {"rank": 5})


def test_templates_are_the_user_s_where_they_are(tmp_path):
    folder = tmp_path / "agent" / "policy" / "templates"
    folder.mkdir(parents=True)
    (folder / "num_optim.j2").write_text("{{ rank }} {{ step_number }}")
    found = read_published(yaml.safe_load(RELEASE), folder=tmp_path)
    assert found.config.templates.template_dir == str(folder)
    (folder / "num_optim.j2").rename(folder / "num_optima.j2")
    with pytest.raises(ValueError, match="'num_optim.j2'.*'num_optima.j2'"):
        read_published(yaml.safe_load(RELEASE), folder=tmp_path)


def templates(folder, **texts):
    """A folder with templates; the names' `__` are slashes."""
    for name, text in texts.items():
        path = folder / "agent" / "policy" / "templates" / f"{name.replace('__', '/')}.j2"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def optimizer(found, text="no"):
    task = get(found.task)
    model = Says(*[text] * 20)
    return make_optimizer(found.config, task, *task.make(**found.config.policy.chosen), model, {})


def test_a_published_template_of_props_plus_renders(tmp_path):
    templates(
        tmp_path,
        semantic="# Environment:\n{% include env_description %}\n\n{{ rank }} from {{ actions[0] }}, {{ step_number }}",
        env_descriptions__frozenlake="A pond of {{ rank }} cells.\n",
    )
    data = yaml.safe_load(RELEASE_PLUS) | {"llm_si_template_name": "semantic.j2"}
    found = read_published(data, folder=tmp_path)
    prompt = optimizer(found).prompt
    assert prompt.render("", 3) == "# Environment:\nA pond of 16 cells.\n\n16 from [0, 1, 2, 3], 3"
    assert prompt.evaluation_episodes == 20
    with pytest.raises(ValueError, match="'env_descriptions/pond.j2'"):
        optimizer(read_published(data | {"env_desc_file": "env_descriptions/pond.j2"}, folder=tmp_path))


def test_a_published_template_may_name_another_box(tmp_path):
    """As the numeric one of the fine-tuning repository, which names [-10, 10]."""
    wide = "params[0]: 10; params[1]: -9.5; params[2]: 0"
    bare = read_published(yaml.safe_load(FINETUNED), folder=tmp_path)
    assert optimizer(bare).reads.beyond == "reject"
    templates(tmp_path, numeric_optimization_3_params="{{ rank }} in the range of [-10.0, 10.0] {{ step_size }}")
    found = read_published(yaml.safe_load(FINETUNED), folder=tmp_path)
    assert any("numeric_optimization_3_params.j2 may name a box of its own" in note for note in found.notes)
    opt = optimizer(found, wide)
    params, state = opt.ask(opt.init(jax.random.key(0)))
    params, state = opt.ask(opt.tell(state, params, jnp.zeros(len(params))))
    assert params.tolist() == [[10.0, -9.5, 0.0]] and len(opt.model.asked) == 1
    templates(tmp_path, numeric_optimization_3_params="{{ rank }} in [{{ low }}, {{ high }}]")
    assert optimizer(found).reads.beyond == "reject"
    table = read_published(yaml.safe_load(RELEASE_PLUS), folder=tmp_path / "elsewhere")
    assert optimizer(table).reads.beyond == "reject"


def test_the_last_policy_is_repeated_where_that_is_published():
    for repeat in ("best", "last"):
        config = PropsConfig(reply=ReplyConfig(retries=0, on_failure="repeat", repeat=repeat), warmup=3)
        task = get("cartpole")
        opt = make_optimizer(config, task, *task.make(), Says("no"), {})
        first, state = opt.ask(opt.init(jax.random.key(0)))
        params, state = opt.ask(opt.tell(state, first, jnp.array([1.0, 9.0, 4.0])))
        assert params[0].tolist() == first[1 if repeat == "best" else 2].tolist()
        assert state.record["outcome"] == "repeated"
    with pytest.raises(ValueError, match="reply.repeat.*last.*reply.on_failure"):
        ReplyConfig(repeat="last")
    with pytest.raises(ValueError, match=r"reply\.repeat.*last.*evollm"):
        PropsConfig("evollm", reply=ReplyConfig(on_failure="repeat", repeat="last"))


def test_no_template_is_dropped_in_silence(tmp_path):
    data = yaml.safe_load(SEED)
    si, ui, conversion = (data[f"llm_{name}_template_name"] for name in ("si", "ui", "output_conversion"))
    for missing in ({"template_dir": None}, {"template_dir": "nowhere"}):
        found = read_published(data | missing)
        notes = "\n".join(found.notes)
        assert found.config.templates.template_dir == "" and all(name in notes for name in (si, ui, conversion))
    notes = "\n".join(read_published(yaml.safe_load(RELEASE) | {"template_dir": None}).notes)
    assert "there is no template_dir, so the prompt is ours of the kind props in place of num_optim.j2" in notes
    notes = "\n".join(read_published(yaml.safe_load(FINETUNED)).notes)
    assert "mountaincar_cont_episode.j2 is not filled" in notes and "output_conversion_3_params.j2 is not" in notes

    templates(tmp_path, **{name.removesuffix(".j2"): "{{ shape }}" for name in (si, ui, conversion)})
    kept = read_published(data | {"llm_si_template_name": "None"}, folder=tmp_path).config.templates
    assert (kept.llm_si_template_name, kept.llm_ui_template_name) == ("", ui)
    assert kept.llm_output_conversion_template_name == conversion
    alone = optimizer(read_published(data | {"llm_ui_template_name": "None"}, folder=tmp_path))
    assert not alone.has_system and alone.buffer_steps == 300


def test_a_lake_that_is_not_slippery():
    data = yaml.safe_load(RELEASE_PLUS) | {"env_kwargs": {"is_slippery": False}}
    assert read_published(data).task == "frozen_lake?is_slippery=false"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_episode": 3}, "'num_episode'.*'num_episodes'"),
        ({"task": "cont_space_llm_num_optimm"}, "'cont_space_llm_num_optim'"),
        ({"gym_env_name": "CartPol-v1"}, "gym_env_name 'CartPol-v1'.*'CartPole-v1'"),
        ({"dim_states": 5}, "dim_states.*5.*CartPole-v1.*4"),
        (
            {"gym_env_name": "Hopper-v5", "dim_states": None, "dim_actions": 2},
            "dim_actions.*2.*Hopper-v5.*3",
        ),
        ({"llm_model_name": None}, "llm_model_name.*missing"),
        ({"env_kwargs": {"gravity": 3}}, "env_kwargs.*'gravity'"),
        ({"env_kwargs": "slippery"}, "env_kwargs.*'slippery'"),
        ({"llm_si_template_name": 5}, "llm_si_template_name.*5"),
        ({"template_dir": ["a"]}, r"template_dir.*\['a'\]"),
        ({"env_desc_file": True}, "env_desc_file.*True"),
        ({"warmup_episodes": "many"}, "warmup_episodes.*'many'"),
        ({"optimum": [1]}, r"optimum.*\[1\]"),
        (yaml.safe_load(RELEASE_PLUS) | {"bias": False}, "bias.*False.*FrozenLake-v1"),
        (yaml.safe_load(RELEASE_PLUS) | {"task": "cont_space_llm_num_optim_rndm_proj"}, "rndm_proj.*FrozenLake-v1"),
    ],
)
def test_what_cannot_be_right_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        read_published(yaml.safe_load(RELEASE) | change, "a.yaml")
