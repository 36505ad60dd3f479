"""Fine-tuning the model as the optimizer: prompts from random policies, answers read, rewards by hand."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.agents.population import Evaluation, make_population_evaluator
from llmrl_jax.lm import Generation
from llmrl_jax.systems.props.config import PUBLISHED, FinetuneConfig, FinetuneRun, preset
from llmrl_jax.systems.props.finetune import (
    TAGGED,
    Question,
    Setting,
    encode_question,
    finetune,
    improvement,
    largest_return,
    make_questions,
    make_reward,
    make_settings,
    read_answer,
)
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import Format, ProposalPrompt, Row
from llmrl_jax.systems.props.tasks import get
from llmrl_jax.tuning import ChatTemplate


LINEAR = Policy("linear", 2, 1, False)
TABLE = Policy("table", 2, 3, True, 0.0, 2.0, 0, "box")
SHOWN = (Row((0.5, -6.0, 0.0), 10.0), Row((1.0, 1.0, 1.0), 20.0))
SMALL = FinetuneConfig(
    tasks=("nim",), held_out_tasks=("maze",), policies=23, history=2, episodes=4, judged_episodes=3, eval_prompts=1
)


def written(tokenizer, groups):
    """Completions as `Generation`."""
    rows = [[tokenizer.encode(text) for text in group] for group in groups]
    lengths = np.array([[len(row) for row in group] for group in rows], np.int32)
    tokens = np.zeros((*lengths.shape, lengths.max()), np.int32)
    for i, group in enumerate(rows):
        for j, row in enumerate(group):
            tokens[i, j, : len(row)] = row
    zeros = jnp.zeros(tokens.shape, jnp.float32)
    return Generation(jnp.asarray(tokens), jnp.asarray(lengths), zeros, zeros, jnp.ones(lengths.shape, jnp.int32))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("params[0]: 1.5; params[1]: -6; params[2]: 0.1\nbecause", (True, True, (1.5, -6.0, 0.1))),
        ("params[0]: 1.5; params[1]: -6.1; params[2]: 0.1", (True, False, ())),  # beyond the box
        ("params[0]: 0.5; params[1]: -6; params[2]: 0", (True, False, ())),  # stands in the history
        ("params[0]: 1.5; params[1]: -6", (False, False, ())),
        ("params[0]: 1.5; params[1]: -6; params[1]: 0.1", (False, False, ())),
        ("I cannot say.", (False, False, ())),
    ],
)
def test_the_strict_form_is_what_a_run_accepts(text, expected):
    assert read_answer(FinetuneConfig(), text, Question(0, "", SHOWN), LINEAR) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>so</think>\n<policy>\nparams[0]: 9, params[0]: -7.25, params[0]: 0\n</policy>", (9.0, -7.25, 0.0)),
        ("<think>so</think><policy>params[0]: 9; params[1]: 1</policy>", ()),
        (f"<think>so</think><policy>params[0]: {'9' * 60}; params[1]: 1; params[2]: 1</policy>", ()),
    ],
)
def test_the_published_form_is_tags_around_the_right_number(text, expected):
    assert read_answer(PUBLISHED, text, Question(0, "", SHOWN), LINEAR) == (True, bool(expected), expected)
    untagged = text.replace("<policy>", "")
    assert read_answer(PUBLISHED, untagged, Question(0, "", SHOWN), LINEAR) == (False, False, ())


def test_a_tables_answer_is_whole_actions():
    for text, hard in (("params[0]: 2; params[1]: 0", True), ("params[0]: 2; params[1]: 0.5", False)):
        found = read_answer(FinetuneConfig(), text, Question(0, "", (Row((0.0, 0.0), 0.0),)), TABLE)
        assert found == (True, hard, (2.0, 0.0) if hard else ())


def test_improvement_by_hand():
    """From -50 to 20 is 0.35 of the way from -100 to 100; the published formula has signs the other way round."""

    def gained(config, value, best):
        columns = (jnp.array([[x]]) for x in (best, -100.0, 100.0))
        return improvement(config, jnp.array([value]), *columns)[0]

    corrected = FinetuneConfig()
    np.testing.assert_allclose(gained(corrected, [20.0, -60.0, 60.0, 900.0], -50.0), [0.35, 0, 0.55, 0.75], rtol=1e-6)
    np.testing.assert_allclose(gained(corrected, [20.0, -110.0], -400.0), [0.6, 0], rtol=1e-6)
    np.testing.assert_allclose(gained(PUBLISHED, [20.0, 90.0, -49.0], -50.0), [0, 0, 0.98], rtol=1e-6)
    np.testing.assert_array_equal(gained(PUBLISHED, [-50.0, 60.0], 90.0), [1, 0])
    np.testing.assert_array_equal(gained(PUBLISHED, [2.25, 0.5], 2.0), [0.28125, 0])
    np.testing.assert_array_equal(gained(PUBLISHED, [0.25, -3.0], 0.0), [0.25, 0])


def setting_of(task, policy, evaluate, low, high):
    return Setting(get(task), policy, evaluate, ProposalPrompt(policy), low, high, SHOWN)


def test_rewards_by_hand(bpe):
    """Two tasks in a batch, one of them nowhere in the second batch: it is not played."""
    played = []

    def evaluator(name):
        def evaluate(params, keys):
            jax.debug.callback(lambda: played.append(name))
            noise = jax.vmap(jax.vmap(jax.random.uniform))(keys)
            return Evaluation(100 * params[:, :1] + noise, jnp.ones(keys.shape, jnp.int32))

        return evaluate

    settings = [
        setting_of("mountain_car_continuous", LINEAR, evaluator("a"), 0.0, 500.0),
        setting_of("nim", TABLE, evaluator("b"), -100.0, 100.0),
    ]
    questions = [Question(0, "", SHOWN), Question(1, "", (Row((0.0, 0.0), 50.0),))]
    reward = jax.jit(make_reward(replace(SMALL, judged_episodes=500), settings, questions, bpe, jax.random.key(0)))
    three = "params[0]: {}; params[1]: 0; params[2]: 1"
    groups = [
        [three.format(4), three.format(4).replace(": 1", ": 2"), three.format(7), "params[0]: 1"],
        ["params[0]: 1; params[1]: 1", "params[0]: 0; params[1]: 1", "params[0]: 0; params[1]: 0", "?"],
    ]
    found = reward(written(bpe, groups), jnp.array([0, 1]))
    jax.effects_barrier()
    assert sorted(played) == ["a", "b"]
    np.testing.assert_array_equal(found["soft_format"], [[1, 1, 1, 0], [1, 1, 1, 0]])
    np.testing.assert_array_equal(found["hard_format"], [[1, 1, 0, 0], [1, 1, 0, 0]])
    # 400 and half a point of noise on a scale to 500, from 20; above 100, and 0, on one from -100 to 100, from 50
    np.testing.assert_allclose(found["policy"], [[0.801, 0.801, 0, 0], [1, 0.5025, 0, 0]], atol=3e-4)
    np.testing.assert_allclose(found["improvement"], [[0.761, 0.761, 0, 0], [0.25, 0, 0, 0]], atol=6e-4)
    assert float(found["policy"][0, 0]) == float(found["policy"][0, 1])  # the same episodes
    played.clear()
    found = reward(written(bpe, [groups[0], ["?"] * 4]), jnp.array([0, 1]))
    jax.effects_barrier()
    assert played == ["a"] and not found["policy"][1].any()


def test_the_format_has_a_weight_and_a_return_that_is_no_number_is_worth_nothing(bpe):
    def evaluate(params, keys):
        return Evaluation(
            jnp.where(params[:, :1] > 0, jnp.nan, 5.0) + jnp.zeros(keys.shape), jnp.ones(keys.shape, jnp.int32)
        )

    settings = [setting_of("nim", TABLE, evaluate, 0.0, 10.0)]
    config = replace(SMALL, format_weight=0.25)
    reward = make_reward(config, settings, [Question(0, "", (Row((0.0, 0.0), 3.0),))], bpe, jax.random.key(0))
    replies = ["params[0]: 1; params[1]: 1", "params[0]: 0; params[1]: 1", "params[0]: 0; params[1]: 0"]
    found = reward(written(bpe, [replies]), jnp.array([0]))
    np.testing.assert_array_equal(found["soft_format"], [[0.25, 0.25, 0.25]])
    np.testing.assert_array_equal(found["hard_format"], [[0.25, 0.25, 0]])  # the last one is in the history
    np.testing.assert_allclose(found["policy"], [[0, 0.5, 0]])
    np.testing.assert_allclose(found["improvement"], [[0, 0.2, 0]], rtol=1e-6)


@pytest.fixture(scope="module")
def settings():
    return make_settings(SMALL, jax.random.key(3))


def test_random_policies_lie_in_the_box_and_set_the_scale(settings):
    nim, maze = settings
    assert (nim.task.name, maze.task.name, len(nim.rows)) == ("nim", "maze", 23)
    params = np.array([row.params for row in nim.rows])
    assert set(np.unique(params)) == {0.0, 1.0, 2.0} and len(np.unique(params, axis=0)) > 20
    assert nim.low == np.mean(sorted(row.value for row in nim.rows)[16:18]) and nim.high == 1.0  # three in four
    assert maze.high == largest_return(get("maze")) == pytest.approx(0.9667, abs=1e-4)
    assert all(-1 <= row.value <= 1 and row.value * 4 == round(row.value * 4) for row in nim.rows)  # of 4 games
    evaluate = make_population_evaluator(*get("maze").make())  # without chance, so that any episode tells the value
    again = evaluate(
        jnp.asarray([row.params for row in maze.rows], jnp.float32), jax.random.split(jax.random.key(9), 2)
    )
    np.testing.assert_allclose(again.mean, [row.value for row in maze.rows], rtol=1e-6)


def test_prompts_show_each_policy_once(settings):
    learnt, held_out = make_questions(SMALL, settings)
    assert [q.setting for q in learnt] == [0] * 9 and [q.setting for q in held_out] == [0, 1]  # 11 prompts, 2 aside
    shown = [row for q in learnt for row in q.rows]
    assert shown == list(settings[0].rows[:18]) and held_out[0].rows == settings[0].rows[18:20]
    assert all(Format().row(row) in q.text for q in learnt for row in q.rows) and "Iteration 1 of 400" in learnt[0].text
    assert learnt[0].best == max(row.value for row in settings[0].rows[:2])
    assert [q.text for q in make_questions(SMALL, make_settings(SMALL, jax.random.key(3)))[0]] == [
        q.text for q in learnt
    ]
    other = make_settings(replace(SMALL, held_out_tasks=()), jax.random.key(4))
    assert make_questions(replace(SMALL, held_out_tasks=()), other)[0][0].text != learnt[0].text


def test_prompts_go_into_the_models_own_template(bpe):
    question = Question(0, "propose", SHOWN)
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}>", {})

    def text(config, template):
        return bpe.decode(encode_question(config, question, bpe, template))

    assert text(SMALL, template) == "[user]propose>" and text(SMALL, None) == "<|begin_of_text|>propose"
    assert text(PUBLISHED, template) == f"[system]{TAGGED}[user]propose>"
    assert text(PUBLISHED, None) == f"<|begin_of_text|>{TAGGED}\n\npropose"


@pytest.mark.slow
def test_the_published_data_leave_the_box():
    setting = make_settings(replace(PUBLISHED, policies=200, episodes=2), jax.random.key(0))[0]
    params = np.array([row.params for row in setting.rows])
    assert params.min() < -9 and params.max() > 9 and (setting.low, setting.high) == (-200, 100)
    assert "explain" not in setting.prompt.render("", 1) and "about 100" in setting.prompt.render("", 1)


@pytest.mark.slow
def test_physics_on_the_host_is_played_beside_the_reading_of_answers(bpe):
    """Both reach the host from inside one program, in a loop."""
    config = FinetuneConfig(tasks=("inverted_pendulum",), policies=10, history=2, episodes=2, judged_episodes=2)
    settings = make_settings(config, jax.random.key(0))
    learnt, _ = make_questions(config, settings)
    reward = make_reward(config, settings, learnt, bpe, jax.random.key(1))
    form = "; ".join(f"params[{i}]: {v}" for i, v in enumerate((0.4, 6.0, 0.6, 2.5, 0)))
    answers = written(bpe, [[form, "params[0]: 1"]])

    @jax.jit
    def twice(places):
        return jax.lax.map(lambda place: reward(answers, place[None]), places)

    found = twice(jnp.arange(2))
    np.testing.assert_allclose(found["policy"], [[[1, 0]], [[1, 0]]])  # the published golden policy never falls


def test_presets_have_the_published_numbers():
    run = preset("published", "m")
    assert (run.lora.rank, run.lora.alpha, run.grpo.group, run.grpo.learning_rate) == (8, 32.0, 4, 1e-5)
    assert run.lora.targets == ("q_proj", "k_proj", "o_proj", "up_proj", "down_proj")
    per_epoch = run.data.prompts * 4 // 5 // run.grpo.prompts
    assert (run.data.prompts, run.data.history, run.data.judged_episodes) == (
        4000,
        1,
        1,
    ) and run.updates == 5 * per_epoch
    assert preset("corrected", "m") == FinetuneRun(model="m")
    with pytest.raises(ValueError, match="preset.*'paper'.*corrected, published"):
        preset("paper", "m")
    with pytest.raises(ValueError, match="missing.*--model"):
        finetune(preset("corrected"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tasks": ("cartpol",)}, KeyError, "'cartpol'"),
        ({"tasks": ()}, ValueError, "tasks.*empty"),
        ({"tasks": ("nim",), "held_out_tasks": ("Nim-v0",)}, ValueError, "'nim'.*twice"),
        ({"history": 1000}, ValueError, "4 prompts.*5"),
        ({"judged_episodes": 0}, ValueError, "judged_episodes.*0"),
        ({"format_weight": -0.1}, ValueError, "format_weight.*-0.1"),
        ({"method": "evollm"}, ValueError, "method.*'evollm'.*props, props"),
        ({"compat": "paper"}, ValueError, "published.*'cartpole'.*mountain_car_continuous"),
    ],
)
def test_bad_input_is_named(options, error, message):
    with pytest.raises(error, match=message):
        FinetuneConfig(**options)


def test_a_world_with_other_options_is_measured_by_what_prompts_tell():
    assert (largest_return(get("frozen_lake")), largest_return(get("frozen_lake?is_slippery=false"))) == (0.744, 1.0)


def test_a_task_without_an_optimum_is_refused():
    with pytest.raises(ValueError, match="'pendulum'"):
        make_settings(FinetuneConfig(tasks=("pendulum",)), jax.random.key(0))
