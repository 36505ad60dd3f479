"""Prompts and descriptions: every slot is there, and what they say of a world is what the world says."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.spaces import Box, Discrete
from llmrl_jax.systems.props.config import PropsConfig
from llmrl_jax.systems.props.describe import ALIASES, DESCRIPTIONS, EnvDescription, describe
from llmrl_jax.systems.props.policies import Policy, make_policy
from llmrl_jax.systems.props.prompts import Format, HistoryView, MeanPrompt, ProposalPrompt, Row, improved
from llmrl_jax.systems.props.tasks import TASKS, get


LINEAR = Policy("linear", 2, 1, False)
TABLE = Policy("table", 9, 4, True, 0.0, 3.0, 0, "box")
HISTORY = Format().row(Row((0.5, -6.0, 0.0), 12.345))


def world(id, **options):
    env, params = envs_jax.make(id, **options)
    return env, params, make_policy(env, params)


def test_props_carries_every_slot():
    text = ProposalPrompt(LINEAR, 77, optimum=99.5, step_size=0.25).render(HISTORY, 8)
    for part in (
        "3 parameters, params[0] to params[2]",
        "[-6.0, 6.0] with at most 1 decimal.",
        "params[0]: ; params[1]: ; params[2]:",
        "largest f(params) is about 99.5",
        "step size of about 0.25",
        HISTORY,
        "Iteration 8 of 77.",
        "77 iterations in all",
        "explain in detail",
    ):
        assert part in text, part
    assert "# Environment" not in text and "reinforcement" not in text and "400" not in text
    assert text.index(HISTORY) < text.index("Iteration 8 of 77")  # the counter last, so that a prefix can be reused


def test_a_growing_history_keeps_the_prefix():
    prompt = ProposalPrompt(LINEAR)
    one, two = (prompt.render("\n".join([HISTORY] * n), n) for n in (1, 2))
    assert two.startswith(one[: one.index(HISTORY) + len(HISTORY)])


def test_discrete_props_asks_for_actions():
    text = ProposalPrompt(TABLE, proposals=4).render("", 1)
    assert "one of the integers 0, 1, 2, 3." in text and "Search all values" in text and "step size" not in text
    assert "with 4 lines, each of them another proposal" in text and "nor the same ones twice" in text
    assert "Nobody knows the largest" in text and "Nothing was tried yet." in text
    semantic = ProposalPrompt(TABLE, environment="A pond.", explain=True).render("", 1, trajectories=True)
    assert "the action in state i." in semantic and "step by step" in semantic and "under it an episode" in semantic
    assert "\nA pond.\n" in semantic
    assert "explain" not in ProposalPrompt(TABLE, environment="A pond.", explain=False).render("", 1)


def test_the_optimum_is_a_choice():
    def stated(optimum: str, task: str = "swimmer") -> float | None:
        return PropsConfig(optimum=optimum).task_settings(TASKS[task]).optimum

    assert stated("true") == 250.0 and stated("hidden") is None and stated("-3") == -3.0
    assert stated("true", "pendulum") is None and PropsConfig("ars").task_settings(TASKS["swimmer"]).optimum is None
    with pytest.raises(ValueError, match="optimum.*'None'"):
        stated("None")


def test_a_published_template_takes_our_slots(tmp_path):
    (tmp_path / "lake.txt").write_text("A pond, {{ rank }} cells.\n")
    (tmp_path / "mine.j2").write_text(
        "{% include env_description %}\n\n{{ actions[0] }} about {{ optimum }} step {{ step_size }}\n"
        "{{ episode_reward_buffer_string }}\n{{ step_number }}/{{ episodes }}\n"
    )
    prompt = ProposalPrompt(TABLE, 30, 1.0, template="mine.j2", template_dir=tmp_path, env_desc_file="lake.txt")
    assert prompt.render("rows", 3) == "A pond, 9 cells.\n\n[0, 1, 2, 3] about 1 step 1.0\nrows\n3/30"
    with pytest.raises(ValueError, match="env_desc_file.*empty"):
        ProposalPrompt(TABLE, template="mine.j2", template_dir=tmp_path)
    with pytest.raises(ValueError, match="'mine.j2'.*'sea.txt'"):
        ProposalPrompt(TABLE, template="mine.j2", template_dir=tmp_path, env_desc_file="sea.txt")
    (tmp_path / "bad.j2").write_text("{{ nobody }}")
    with pytest.raises(ValueError, match="'bad.j2'.*'nobody'"):
        ProposalPrompt(TABLE, template="bad.j2", template_dir=tmp_path)
    (tmp_path / "worse.j2").write_text("\n{% if %}")
    with pytest.raises(ValueError, match="'worse.j2'.*Jinja.*2"):
        ProposalPrompt(TABLE, template="worse.j2", template_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match="'gone.j2'.*bad.j2, mine.j2, worse.j2"):
        ProposalPrompt(TABLE, template="gone.j2", template_dir=tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "iterations"),
        ("{{ 'a' * 1000000000000 }}", "characters"),
        ("{{ rank / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + rank }}", "TypeError"),
        ("{{ 2.0 ** 99999 }}", "OverflowError"),
        ("{% include 'loop.txt' %}", "iterations"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "RecursionError"),
    ],
    ids=["access", "loop", "size", "zero", "type", "overflow", "included", "depth"],
)
def test_a_template_that_fails_or_does_not_end_is_an_error_at_once(text, reason, tmp_path, monkeypatch):
    monkeypatch.setattr("llmrl_jax.tuning.sandbox.STEPS", 200_000)
    (tmp_path / "evil.j2").write_text(text)
    (tmp_path / "loop.txt").write_text("{% for i in range(99999) %}{% for j in range(9) %}{% endfor %}{% endfor %}")
    with pytest.raises(ValueError, match=rf"'evil\.j2'.*{reason}"):
        ProposalPrompt(TABLE, template="evil.j2", template_dir=tmp_path)


def test_templates_are_looked_for_below_their_folder(tmp_path):
    for name, text in (("sub/mine.j2", "{% include env_description %}!"), ("env/x.j2", "{{ rank }} in all")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    prompt = ProposalPrompt(TABLE, template="sub/mine.j2", template_dir=tmp_path, env_desc_file="env/x.j2")
    assert prompt.render("", 1) == "9 in all!"
    with pytest.raises(FileNotFoundError, match="'mine.j2'.*env/x.j2, sub/mine.j2"):
        ProposalPrompt(TABLE, template="mine.j2", template_dir=tmp_path)


def test_a_fork_s_template_takes_our_slots(tmp_path):
    (tmp_path / "fork.j2").write_text(
        "{{ num_episodes }} of {{ num_evaluation_episodes }}, {{ buffer_top_k }} and {{ buffer_recent_j }} shown"
        "{% if attempt_idx > 0 %} again{% endif %}"
    )
    prompt = ProposalPrompt(TABLE, 30, evaluation_episodes=7, template="fork.j2", template_dir=tmp_path)
    assert prompt.render("", 1) == "30 of 7, 0 and all shown"
    assert prompt.render("", 1, view=HistoryView(top=15, last=5)) == "30 of 7, 15 and 5 shown"
    assert prompt.render("", 1, view=HistoryView(top=15)) == "30 of 7, 15 and 0 shown"
    (tmp_path / "boxed.j2").write_text("{{ low }} {% if decimals %}{{ high }}{% endif %}")
    assert not prompt.names_box and ProposalPrompt(LINEAR).names_box
    assert ProposalPrompt(LINEAR, template="boxed.j2", template_dir=tmp_path).names_box


@pytest.mark.parametrize(("optimum", "told"), [(10000.0, "10000"), (1234567, "1234567"), (4223.517, "4223.517")])
def test_the_optimum_in_prompt_keeps_its_digits(optimum, told):
    assert f"is about {told}.**" in ProposalPrompt(LINEAR, optimum=optimum).render("", 1)


def test_bounds_that_replies_are_held_to_are_stated_whole():
    box = Policy("linear", 1, 1, False, low=-0.5, high=0.55)
    text = ProposalPrompt(box, 10).render("", 1)
    assert "-0.5" in text and "0.55" in text and "0.6" not in text


def test_the_step_size_is_a_part_of_the_box():
    task = get("hopper")  # 0.1 of -6 to 6
    steps = [
        task.step_in(Policy("linear", 1, 1, False, low=low, high=high)) for low, high in ((-6, 6), (-3, 3), (0, 1))
    ]
    assert steps == [0.1, 0.05, 0.0083]
    assert get("cartpole").step_in(Policy("q_table", 2, 2, True, low=0.0, high=1.0, init="box")) == 0.083


def test_evollm_asks_for_an_improved_mean():
    rows = [Row((float(i),), value) for i, value in enumerate([1.0, 4.0, 2.0])]
    assert improved(rows) == 6.0  # 4 + (4 - 2)
    history = HistoryView(order="ascending").render(rows)
    text = MeanPrompt(1000, 50).render(history, 7, size=1, target="6.00", block=2, blocks=3)
    assert "[0, 1000]" in text and "6.00 or more" in text and "block 2 of 3" in text and "Generation 7 of 50" in text
    assert text.index("f(params): 1.00") < text.index("f(params): 2.00") < text.index("f(params): 4.00")


@pytest.mark.parametrize("make", [lambda: ProposalPrompt(LINEAR, 0), lambda: ProposalPrompt(LINEAR, step_size=None)])
def test_a_prompt_that_cannot_be_is_refused(make):
    with pytest.raises(ValueError, match="iterations.*0|step_size.*0"):
        make()


def test_every_task_has_texts():
    assert {ALIASES.get(task.env, task.env) for task in TASKS.values()} <= set(DESCRIPTIONS)
    assert set(ALIASES.values()) <= set(DESCRIPTIONS)


@pytest.mark.parametrize("id", [*DESCRIPTIONS, *ALIASES])
def test_descriptions_say_what_the_world_says(id):
    if id.endswith("-v5"):
        pytest.importorskip("mujoco")
    env, params, policy = world(id)
    texts = [describe(env, params, policy, hints=level) for level in (0, 1, 2)]
    assert texts[1].startswith(texts[0]) and texts[2].startswith(texts[1]) and texts[0] != texts[1]
    observations, actions = env.observation_space(params), env.action_space(params)
    if isinstance(observations, Box):
        named = re.findall(r"^- state\[(\d+)\]: .+, (in \[.*\]|unbounded|at .*)$", texts[0], re.MULTILINE)
        assert [int(i) for i, _ in named] == list(range(int(np.prod(observations.shape))))
        spans = re.findall(r"^- params\[(\d+)\](?: to params\[(\d+)\])?: the", texts[0], re.MULTILINE)
        covered = [i for first, last in spans for i in range(int(first), int(last or first) + 1)]
        assert covered == list(range(policy.num_params))
    else:
        assert f"an integer from 0 to {observations.n - 1}." in texts[0]
    if isinstance(actions, Discrete):
        ids = re.findall(r"^- (\d+): (.+)$", texts[0], re.MULTILINE)
        assert ids == [(str(i), name) for i, name in enumerate(env.action_names)]
        for index, name in re.findall(r"(\d+) \(([^)]+)\)", "".join(texts[2].split("Hint:")[1:])):
            if name in env.action_names:
                assert env.action_names[int(index)] == name
        assert ("argmax" in texts[0]) is False and ("largest score" in texts[0]) == isinstance(observations, Box)
    else:
        assert len(re.findall(r"^- action\[\d+\]: ", texts[0], re.MULTILINE)) == int(np.prod(actions.shape))
        assert "largest score" not in texts[0]
    hidden = describe(env, params, policy, hide=True)
    texts = DESCRIPTIONS[ALIASES.get(id, id)]
    secrets = [*texts.observations, *texts.actions, *(env.action_names if isinstance(actions, Discrete) else ())]
    assert (
        not [secret for secret in secrets if secret in hidden.replace("action in state", "")] and "Reward" not in hidden
    )


@pytest.mark.parametrize("kind", ["linear", "linear_nobias", "sigmoid"])
def test_the_layout_is_the_policy_s(kind):
    """Moving the parameter that the description names moves the component that it names, by the entry that it names."""
    env, params = envs_jax.make("MountainCarContinuous-v0")
    policy = make_policy(env, params, kind)
    text = describe(env, params, policy)
    (index,) = re.findall(r"params\[(\d+)\]: the weight of state\[1\] \(velocity\) for action\[0\]", text)
    policy_params = jnp.zeros(policy.num_params).at[int(index)].set(2.0)
    assert float(policy.act(policy_params, jnp.array([0.0, 0.5]))[0]) == pytest.approx(
        1.0 if kind != "sigmoid" else 1 / (1 + np.exp(-1.0))
    )
    assert ("bias" in text) == (kind != "linear_nobias") and ("sigmoid" in text) == (kind == "sigmoid")


def test_other_policies_are_described():
    env, params = envs_jax.make("MountainCar-v0")
    text = describe(env, params, make_policy(env, params, "projection", rank=2), hints=2)
    assert "9 numbers, are a fixed linear function" in text and "the weights of" not in text
    assert text.count("Hint:") == 1  # the second speaks of weights
    env, params = envs_jax.make("FrozenLake-v1")
    assert "largest params[4 * s + a]" in describe(env, params, make_policy(env, params, "q_table"))


def test_numbers_come_from_the_world():
    env, params, policy = world("FrozenLake-v1", is_slippery=False, desc=("SFF", "HFG"))
    text = describe(env, params.replace(max_steps=20), policy, hints=2)
    assert "2 rows and 3 columns" in text and "\nSFF\nHFG" in text and "after 20 steps" in text
    assert "to one side" not in text and "to one side" in describe(*world("FrozenLake-v1"))
    env, params, policy = world("CliffWalking-v1")
    assert "There is no time limit." in describe(env, params, policy)
    assert "after 100 steps" in describe(env, params, policy, max_steps=100)
    env, params, policy = world("Nim-v0", actions="0-2")
    assert "- 0: remove 0\n" in describe(env, params, policy)
    env, params, policy = world("NavigationTrack-v0")
    assert "-7 for a collision" in describe(env, params.replace(collision_reward=-7.0), policy)
    maze = describe(*world("maze-sample-3x3-v0"), hints=2)
    assert "\nfrom state 0 by 1 (south) to state 3\n" in maze and "from state 0 by 0" not in maze


def test_descriptions_that_would_be_wrong_are_refused(monkeypatch):
    env, params, policy = world("CartPole-v1")
    with pytest.raises(ValueError, match="hints.*3"):
        describe(env, params, policy, hints=3)
    with pytest.raises(ValueError, match="hints.*1.*hide.*true"):
        describe(env, params, policy, hints=1, hide=True)
    with pytest.raises(ValueError, match="2.*1.*CartPole-v1.*4.*2"):
        describe(env, params, LINEAR)
    with pytest.raises(KeyError, match="'Debug-Aim-v0'"):
        env, params = envs_jax.make("Debug-Aim-v0")
        describe(env, params, make_policy(env, params))
    env, params, policy = world("CartPole-v1")
    four = ("position", "speed", "angle", "turn")
    for texts, message in (
        (EnvDescription("goal", ("one",)), "4 observation.*1"),
        (EnvDescription("{{ act('jump') }}", four), "'jump'.*0"),
    ):
        monkeypatch.setitem(DESCRIPTIONS, "CartPole-v1", texts)
        with pytest.raises(ValueError, match=message):
            describe(env, params, policy)
