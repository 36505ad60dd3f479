"""Post-training tests: which they are, what an agent is given, and what `llmrl glam test` leaves."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
import tyro

import envs_jax
from llmrl_jax import lm
from llmrl_jax.agents.agent import untrained
from llmrl_jax.agents.evaluate import Episodes, make_evaluator
from llmrl_jax.cli.help import describe
from llmrl_jax.cli.main import main
from llmrl_jax.core import statistics as stats
from llmrl_jax.core.files import json_text
from llmrl_jax.systems.glam import results
from llmrl_jax.systems.glam.build import EXTRA_ACTIONS, make_agent
from llmrl_jax.systems.glam.commands import test as glam_test
from llmrl_jax.systems.glam.config import DRRN, SYMBOLIC, PostTestConfig
from llmrl_jax.systems.glam.posttest import (
    MIXED,
    PAPER,
    PARTS,
    TESTS,
    VARIANT_TESTS,
    NotTestable,
    Outcome,
    PostTest,
    language_of,
    paper_row,
    parse_test,
    prepare,
    run_random,
    run_tests,
    world_of,
)
from llmrl_jax.systems.glam.prompts import REWRITES, SYNONYMS, VARIANTS, find_rewrite, glam_prompt
from tests.glam import ROWS, TINY, WORLD, observations, program


LISTED = replace(TINY, list_actions=True)


@pytest.fixture(scope="module")
def model(bpe, tmp_path_factory):
    """A Llama of one layer with a byte-level tokenizer, as a folder."""
    config = lm.LlamaConfig(
        vocab_size=-(-bpe.vocab_size // 8) * 8,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=bpe.bos_id,
        eos_token_id=bpe.eos_id,
    )
    params = lm.Llama(config).init(jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
    folder = lm.save_hf(tmp_path_factory.mktemp("model") / "tiny", config, params)
    bpe.save(folder)
    return folder


@pytest.fixture(scope="module")
def glam(model):
    return program(replace(LISTED, model=str(model)))


@pytest.fixture(scope="module")
def weights(glam):
    return untrained(glam, jax.random.key(1))


def test_a_test_is_named_by_what_it_changes():
    assert parse_test("no_modification_test") == PostTest("no_modification_test")
    assert parse_test("go_to+french") == PostTest("go_to+french", env="BabyAI-Text/GoToLocal-v0", language="french")
    both = parse_test("no_meaning_words+synonym_actions+test_tasks")
    assert (both.rewrite, both.actions) == ("no_meaning_words", "synonym_actions")
    assert both.env == "BabyAI-Text/MixedTestLocal-v0"
    assert len({parse_test(name) for name in TESTS}) == 15
    for name in TESTS:
        envs_jax.make(parse_test(name).env or MIXED)
    with pytest.raises(KeyError, match="'composition'"):
        parse_test("compositon")
    with pytest.raises(ValueError, match="GoToLocal-v0.*PickUpSeqPickUpLocal-v0"):
        parse_test("go_to+composition")
    with pytest.raises(ValueError, match="French.*synonym_actions"):
        parse_test("french+synonym_actions")


def test_the_paper_stands_beside_its_own_setting_only():
    """The figure of Carta et al., 2302.02662."""
    assert PAPER["no_meaning_words"]["GFlan-T5"] == 0.77 and PAPER["synonym_actions"]["Flan-T5 0-shot"] == 0.01
    assert PAPER["composition"]["Random"] == 0.05 and set(PAPER) <= set(TESTS)
    go_to = "BabyAI-Text/GoToLocal-v0"
    words = parse_test("no_meaning_words")
    assert paper_row(words, MIXED, MIXED)["GFlan-T5"] == 0.77
    assert paper_row(words, MIXED.replace("-Text/", "-"), MIXED)["DRRN"] == 0.16, "with or without text"
    assert paper_row(words, MIXED)["Random"] == 0.15, "an agent that was never trained"
    assert paper_row(words, go_to, MIXED) == {} and paper_row(words, go_to, go_to) == {}
    assert paper_row(parse_test("composition"), go_to, go_to) == {}
    assert paper_row(parse_test("go_to+french"), go_to, go_to)["GFlan-T5"] == 0.01
    assert paper_row(parse_test("adj_synonym"), MIXED, MIXED) == {}


@pytest.mark.slow
def test_other_words_reach_the_model_and_the_weights_stay(glam, weights, bpe):
    """Tokens of the rewritten prompt, candidates of the new words, French: each against the tokenizer's own."""
    obs = observations(LISTED)
    own = prepare(glam, parse_test("no_modification_test"))
    for name, start in {
        "no_modification_test": "Possible action of the agent: turn left,",
        "no_meaning_words+second_synonym_actions": "Possible action of the agent: shift left,",
        "extra_actions": "Possible action of the agent: turn left,",
        "french+change_intro_first_personne_agent": "Actions possibles pour l'agent: tourner à gauche,",
    }.items():
        test = parse_test(name)
        trial = prepare(glam, test)
        tokens, lengths = map(np.asarray, jax.jit(trial.policy.prompts)(obs))
        for i in range(ROWS):
            said = bpe.decode(tokens[i, 1 : lengths[i]])
            assert said.startswith(start)
            if language_of(test, WORLD) == "english" and not test.actions:
                one = jax.tree.map(lambda x, i=i: np.asarray(x)[i], obs)
                assert said == find_rewrite(test.rewrite)(glam.prompt.render(one)).rstrip()
        said = trial.actions[:2] if test.language != "french" else ("tourner à gauche", "tourner à droite")
        assert trial.policy.candidates.sequences[:2] == tuple(tuple(bpe.encode(f" {name}")) for name in said)
    assert own.policy.candidates == glam.policy.candidates and own.policy.model is glam.policy.model
    whole = (jax.jit(policy.prompts)(obs) for policy in (own.policy, glam.policy))
    jax.tree.map(np.testing.assert_array_equal, *whole)
    nine = prepare(glam, parse_test("extra_actions"))
    assert nine.actions[6:] == EXTRA_ACTIONS and nine.env.action_space(nine.env_params).n == 9
    assert jax.eval_shape(nine.policy.scores, *weights, obs).sum.shape == (ROWS, 9)


@pytest.mark.slow
def test_the_unmodified_test_is_the_evaluation(glam, weights):
    tests = [parse_test("no_modification_test")]
    (found,) = run_tests(glam, *weights, tests, jax.random.key(3), 6)
    assert (found.env, found.skipped, found.tasks) == (WORLD, "", glam.env.unwrapped.task_names)
    own = make_evaluator(glam.env, glam.env_params, glam.policy, episodes=6)
    for way, greedy in (("sampled", False), ("greedy", True)):
        expected = own(*weights, jax.random.key(3), greedy=greedy)
        jax.tree.map(np.testing.assert_array_equal, found.episodes[way], expected)


def test_a_closed_vocabulary_is_told_and_not_filled_in():
    glam = program(LISTED)
    with pytest.raises(NotTestable, match="afze, dax, xolo"):
        prepare(glam, parse_test("no_meaning_nouns"))
    outcomes = list(run_tests(glam, (), (), [parse_test("adj_synonym"), parse_test("go_to")], jax.random.key(0), 2))
    assert "vermilion" in outcomes[0].skipped and outcomes[0].episodes == {}
    assert "the longest prompt takes" in outcomes[1].skipped, "more objects than the small model has positions for"


@pytest.mark.slow
def test_spare_words_make_every_test_playable():
    """No prompt is refused or too long, what a test's words refer to stays apart, and one word is one token."""
    sizes = replace(LISTED.embedded, spare_words=128)
    glam = program(replace(LISTED, env="BabyAI-Text/MixedTrainLocal-v0", embedded=sizes))
    tokenizer = glam.tokenizer
    for name in ("second_synonym_actions", "go_to+french", "prose"):
        trial = prepare(glam, parse_test(name))
        assert len(set(trial.policy.candidates.sequences)) == len(trial.actions), name
    for language, known in REWRITES.items():
        for rewrite in known.values():
            new = [word for old, word in rewrite.changes if " " not in old]
            assert len({*map(tuple, map(tokenizer.encode, new))}) == len(new), (language, rewrite.name)
    reset = envs_jax.VectorEnv(glam.env, 4, policy="none").reset
    obs, _ = jax.jit(reset)(jax.random.key(0), glam.env_params)
    test = parse_test("no_meaning_words")
    tokens, lengths = map(np.asarray, jax.jit(prepare(glam, test).policy.prompts)(obs))
    for i in range(4):
        one = jax.tree.map(lambda x, i=i: np.asarray(x)[i], obs)
        said = find_rewrite(test.rewrite)(glam.prompt.render(one))
        assert tokens[i, : lengths[i]].tolist() == tokenizer.encode(said)
        assert set(tokens[i, : lengths[i]]) & set(tokenizer.spare_ids)


def test_agents_without_words_take_other_worlds_only():
    for preset in (DRRN, SYMBOLIC):
        agent = make_agent(replace(preset, env=WORLD))
        trial = prepare(agent, parse_test("go_to"))
        assert trial.env.id == "BabyAI-Text/GoToLocal-v0" and len(trial.actions) == 6
        with pytest.raises(NotTestable, match=f"agent {preset.agent}"):
            prepare(agent, parse_test("go_to+adj_synonym"))


@pytest.mark.slow
def test_an_action_head_cannot_take_more_actions(model):
    glam = program(replace(LISTED, model=str(model), policy="heads"))
    assert prepare(glam, parse_test("synonym_actions")).policy.action_head is glam.policy.action_head
    with pytest.raises(NotTestable, match="6 logits.*test 9"):
        prepare(glam, parse_test("extra_actions"))


@pytest.mark.slow
def test_chance_shares_its_episodes_and_slows_with_idle_actions():
    names = ("no_modification_test", "adj_synonym", "synonym_actions", "extra_actions")
    six, words, synonyms, nine = run_random(LISTED, [parse_test(name) for name in names], jax.random.key(0), 200)
    assert words.episodes["sampled"] is six.episodes["sampled"] is synonyms.episodes["sampled"]
    assert synonyms.actions == SYNONYMS["synonym_actions"] and len(nine.actions) == 9
    assert list(nine.episodes) == ["sampled"]
    assert nine.episodes["sampled"].episode_length.mean() > six.episodes["sampled"].episode_length.mean()


@pytest.mark.slow
def test_a_test_keeps_to_the_world_of_training(model, bpe):
    """Its language, how it describes itself, and what is done there."""
    options = "language=french&describe=faithful&done_actions=true"
    glam = program(replace(LISTED, env=f"{WORLD}?{options}", model=str(model), num_actions=7))
    go_to = prepare(glam, parse_test("go_to"))
    assert world_of(parse_test("go_to"), glam.config.env) == f"BabyAI-Text/GoToLocal-v0?{options}"
    world = go_to.env.unwrapped
    assert (world.language, world.faithful, world.done_actions) == ("french", True, True)
    obs = jax.jit(envs_jax.VectorEnv(go_to.env, 1, policy="none").reset)(jax.random.key(2), go_to.env_params)[0]
    tokens, lengths = map(np.asarray, jax.jit(go_to.policy.prompts)(obs))
    assert bpe.decode(tokens[0, 1 : lengths[0]]).startswith("Actions possibles pour l'agent: tourner à gauche,")
    for name in ("synonym_actions", "second_synonym_actions"):
        with pytest.raises(NotTestable, match=f"{name}.*french"):
            prepare(glam, parse_test(name))


def test_tests_of_other_actions_are_for_six_of_them(model):
    seven = replace(LISTED, num_actions=7)
    skipped = list(
        run_random(seven, [parse_test(n) for n in ("extra_actions", "synonym_actions")], jax.random.key(0), 2)
    )
    assert all("has words for six actions, and this agent has 7" in outcome.skipped for outcome in skipped)
    with pytest.raises(NotTestable, match="extra_actions.*7"):
        prepare(program(replace(seven, model=str(model))), parse_test("extra_actions"))


def episodes(success, task=None):
    success = np.asarray(success, bool)
    task = np.zeros(len(success), np.int32) if task is None else np.asarray(task, np.int32)
    return Episodes(success, np.where(success, 0.9, 0.0).astype(np.float32), np.full(len(success), 4, np.int32), task)


def test_returns_are_written_under_the_published_names(tmp_path):
    played = {"sampled": episodes([True, False]), "greedy": episodes([False])}
    six = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
    cases = {
        "no_meaning_words": (six, "BabyAI-MixedTrainLocal-v0", "no_meaning_words"),
        "synonym_actions": (
            SYNONYMS["synonym_actions"],
            "BabyAI-MixedTrainLocal-v0",
            "no_modification_test_rotate_left_rotate_right_move_ahead_take_release_switch",
        ),
        "go_to+french": (six, "BabyAI-GoToFrench-v0", "no_modification_test"),
    }
    for name, (actions, folder, stem) in cases.items():
        test = parse_test(name)
        outcome = Outcome(test, test.env or MIXED, actions, ("go_to",), played)
        place = tmp_path / "test" / folder / "return_per_episode"
        assert results.write_returns(tmp_path, outcome) == [place / f"{stem}.npy", place / f"{stem}_greedy.npy"]
        zero = results.write_returns(tmp_path, outcome, zero_shot=True)
        assert [path.name for path in zero] == [f"{stem}_zero_shot.npy", f"{stem}_zero_shot_greedy.npy"]
        sampled = np.load(place / f"{stem}.npy")
        assert sampled.dtype == np.float64 and sampled.shape == (2,) and (sampled > 0).tolist() == [True, False]


def exam(rates, **changes):
    """An agent that took one test of a hundred episodes for each rate, half of them of each of two tasks."""
    records = {}
    for name, rate in rates.items():
        won = episodes([i < round(100 * rate) for i in range(100)], [i % 2 for i in range(100)])
        test = parse_test(name)
        outcome = Outcome(test, test.env or MIXED, ("a", "b"), ("go_to", "open"), {"sampled": won})
        records[name] = results.record_of(outcome, paper_row(test, MIXED, MIXED))
    about = {"name": "r", "kind": "GFlan-T5", "folder": None, "facts": {}, "settings": {}, "env": MIXED, **changes}
    return results.Tested(**about, records=records)


def test_intervals_are_students_over_seeds_and_wilsons_alone():
    """Over seeds: the mean, and t deviations (n - 1) over the root of their number; t is 9.925 for three at 99%."""
    group = [exam({"composition": rate}) for rate in (0.5, 0.55, 0.6)]
    one = group[0]
    half = 9.924843200918287 * 0.05 / np.sqrt(3)
    interval = results.estimate(group, "composition", "sampled")
    assert interval == pytest.approx((0.55, 0.55 - half, 0.55 + half, 3))
    # for two it is 63.657: the interval is clipped to [0, 1]
    assert results.estimate(group[:2], "composition", "sampled") == pytest.approx((0.525, 0.0, 1.0, 2))
    alone = results.estimate([one], "composition", "sampled")
    assert alone == pytest.approx((0.5, 0.3753, 0.6247, 100), abs=1e-4)
    assert results.estimate([one], "composition", "sampled", "open") == stats.wilson(25, 50, results.Z99)
    assert results.estimate([one], "composition", "greedy") is None


def test_the_table_stands_beside_the_paper():
    group = [exam({"no_modification_test": 0.9, "adj_synonym": 0.8})]
    group[0].records["no_meaning_words"] = {"skipped": "the tokenizer has no token for dax"}
    lines = results.tests_table(group).splitlines()
    assert lines[0].split()[-2:] == ["paper", "(GFlan-T5)"]
    assert (
        lines[1].startswith("no_modification_test") and "0.900 [" in lines[1] and lines[1].split()[-2:] == ["-", "0.89"]
    )
    assert lines[2].split()[-1] == "-" and lines[3].split()[:3] == ["no_meaning_words", "not", "played"]
    assert lines[5].split() == ["sampled,", "by", "task", "go_to", "open"] and lines[6].count("0.900") == 2
    assert lines[-1] == "no_meaning_words was not played: the tokenizer has no token for dax"
    same = json.loads(json_text(results.outcomes(group)))["tests"]
    rate = same["no_modification_test"]["sampled"]
    assert f"{rate['mean']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]" in lines[1]
    assert (same["no_modification_test"]["greedy"], same["no_modification_test"]["paper"]) == (None, 0.89)
    assert same["no_modification_test"]["tasks"]["open"]["n"] == 50
    assert same["no_meaning_words"] == {"skipped": "the tokenizer has no token for dax"}


def test_the_spread_over_prompts_by_hand():
    played = {"no_modification_test": 0.9, "goal_first": 0.8, "bulleted": 0.3, "prose": 0.4}
    agent = exam(played)
    agent.records |= {name: {"skipped": "no token"} for name in ("no_action_list", "paraphrased", "tagged")}
    assert results.spread_of([agent]) == (
        "sampled: 0.900 with the prompt of training; with 3 others 0.500 in the mean, 0.300 at the least (bulleted)"
    )
    nothing = exam({"no_modification_test": 0.9})
    nothing.records |= {name: {"skipped": "no token"} for name in VARIANTS}
    assert results.spread_of([nothing]) == ""


def test_files_of_variants_have_names_of_their_own(tmp_path):
    played = {"sampled": episodes([True])}
    (path,) = results.write_returns(tmp_path, Outcome(parse_test("tagged+adj_synonym"), WORLD, ("a",), ("t",), played))
    assert path.name == "adj_synonym_tagged.npy"


def test_the_command_takes_variants_in_place_of_the_published_tests_or_beside(monkeypatch, tmp_path):
    asked = []

    def listened(agent, play, tests, reuse, *others):
        asked.append([test.name for test in tests])
        agent.records = exam(dict.fromkeys(asked[-1], 0.5)).records

    monkeypatch.setattr(results, "take", listened)
    monkeypatch.setattr(results, "draw_tests", lambda groups, path: path)
    results.post_test(PostTestConfig(random=True, variants=True, out=tmp_path))
    tests = ("composition", "prose")
    results.post_test(PostTestConfig(tests=tests, random=True, variants=True, out=tmp_path))
    rest = [name for name in VARIANT_TESTS if name != "prose"]
    assert asked == [list(VARIANT_TESTS), ["composition", "prose", *rest]]


def test_results_of_a_model_are_those_of_its_weights(tmp_path):
    assert results._digest("embedded") == ""
    digests = []
    for weights in (b"one", b"other", b"one"):
        (tmp_path / "model.safetensors").write_bytes(weights)
        digests.append(results._digest(str(tmp_path)))
    assert digests[0] == digests[2] != digests[1]


FLAGS = (
    "--preset demo --env BabyAI-Text/GoToObjS4-v0 --embedded.hidden-size 16 --embedded.layers 1 --embedded.heads 2"
    " --embedded.intermediate-size 16 --value-width 8 --ppo.num-envs 4 --ppo.num-steps 4 --ppo.minibatches 2"
    " --ppo.microbatches 1 --ppo.epochs 1 --ppo.pool-size 8 --run.progress off --steps 16"
).split()


@pytest.mark.slow
def test_the_command_from_two_seeds_to_the_picture(tmp_path, capsys, monkeypatch):
    for seed in ("0", "1"):
        name = ["--run.out", str(tmp_path), "--run.name", f"s{seed}", "--run.seed", seed]
        assert main(["glam", "train", *FLAGS, *name]) == 0
    asked = ["--tests", "no_modification_test", "no_meaning_nouns", "--episodes", "8", "--out", str(tmp_path / "out")]
    line = [str(tmp_path / "s0"), str(tmp_path / "s1"), "--model", "embedded", "--random", *asked]
    tyro.cli(glam_test, args=line)
    said = capsys.readouterr().out
    assert "s0 and 1 more seed, 8 episodes each" in said and "embedded_zero_shot, 8 episodes each" in said
    assert "afze, dax, xolo" in said
    assert (tmp_path / "out" / "tests.png").read_bytes()[:4] == b"\x89PNG"
    place = tmp_path / "s1" / "test" / "BabyAI-GoToObjS4-v0" / "return_per_episode"
    assert np.load(place / "no_modification_test.npy").shape == (8,)
    assert (tmp_path / "out" / "random" / "test" / "tests.json").exists()
    found = json.loads((tmp_path / "s1" / "test" / "tests.json").read_text())
    record = found["no_modification_test"]
    assert (record["update"], record["seed"], record["episodes"], record["paper"]) == (1, 0, 8, {})
    won = (np.load(place / "no_modification_test.npy") > 0).mean()
    assert record["sampled"]["success"] == won and record["sampled"]["success_low"] <= won

    def nothing(agent, params, frozen, tests, key, episodes):
        assert not tests, "a test was played again"
        return iter(())

    monkeypatch.setattr(results, "run_tests", nothing)
    tyro.cli(glam_test, args=[str(tmp_path / "s1"), *asked, "--reuse"])
    said = capsys.readouterr().out
    assert "1 more seed" not in said and "random, 8 episodes each" in said
    assert (tmp_path / "s1" / "test" / "tests.png").exists()
    assert (tmp_path / "s1" / "test" / "random" / "test" / "tests.json").exists()


def test_what_cannot_be_tested_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--model, --random.*--bot"):
        PostTestConfig()
    with pytest.raises(FileNotFoundError, match="config.json"):
        results.post_test(PostTestConfig((tmp_path,)))
    with pytest.raises(ValueError, match="preset.*demo"):
        PostTestConfig((tmp_path,), preset="demo")
    with pytest.raises(ValueError, match="episodes.*0"):
        PostTestConfig(random=True, episodes=0)
    with pytest.raises(KeyError, match="'adj_synonym'"):
        results.post_test(PostTestConfig(random=True, tests=("adj_synonyms",)))
    with pytest.raises(ValueError, match="prompts.*agent drrn"):
        results.post_test(PostTestConfig(model=str(tmp_path), preset="drrn"))


def test_help_names_every_test():
    described = describe(glam_test)
    (option,) = (o for o in described.options if o.names == ("--tests",))
    assert {name for name in PARTS if name not in VARIANTS} <= set(re.findall(r"`(\w+)`", option.text))


@pytest.mark.parametrize(
    "env, missing", [("CrafterText-v1", "mission"), ("Housekeep-Task1-v0", "text"), ("SokobanText-v0", "mission")]
)
def test_worlds_that_lack_a_part_of_the_prompt_are_refused_by_it(env, missing):
    with pytest.raises(TypeError, match=f"'{missing}'"):
        glam_prompt(envs_jax.make(env)[0])
