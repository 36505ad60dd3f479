"""Demonstrations: episodes as they are played, as parquet, and the bot behind the face of an agent."""

from __future__ import annotations

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.babyai import bot_action, initial_memory
from llmrl_jax.agents.agent import Episode, play_episodes, reset_key
from llmrl_jax.agents.babyai import COLUMNS, DemosError, babyai_steps, read_demos, text_id, write_demos
from llmrl_jax.cli.main import main
from llmrl_jax.systems.glam.build import make_agent
from llmrl_jax.systems.glam.config import GlamConfig


WORLD = "BabyAI-Text/GoToObjS4-v0"
PLAIN = GlamConfig(agent="random", env=WORLD, num_actions=3, reward_scale=1.0)


def play(config, episodes, batch_size, chunk):
    see = babyai_steps(envs_jax.make(config.env)[0])
    options = {"seed": 3, "episodes": episodes, "record": see, "batch_size": batch_size, "chunk": chunk}
    return list(play_episodes(make_agent(config), (), (), **options))


def follow(episode, env, params, reset, step):
    """The same actions in the world by itself: what it says and pays at every step."""
    obs, state = reset(reset_key(3, episode.number), params)
    seen = episode.observed
    for t, action in enumerate(episode.action):
        assert env.describe(obs) == {
            "mission": env.books.missions.render(seen["mission"][t]),
            "text": env.books.view.render(seen["text"][t]),
        }
        assert state.direction == seen["direction"][t] and np.array_equal(state.position, seen["position"][t])
        obs, state, reward, terminated, truncated, info = step(jax.random.key(0), state, action, params)
        assert (reward, terminated, truncated) == (episode.reward[t], episode.terminated[t], episode.truncated[t])
    assert (terminated or truncated) and info["success"] == episode.success and state.max_steps == seen["max_steps"][0]


def same(a, b):
    return jax.tree.all(jax.tree.map(np.array_equal, vars(a), vars(b)))


def test_episodes_are_what_the_world_says():
    few = play(PLAIN, 7, 2, 3)
    assert [episode.number for episode in few] == list(range(7))
    assert {episode.success for episode in few} == {True, False}, "else half of this test is empty"
    assert len({len(episode.action) for episode in few}) > 2 and max(len(e.action) for e in few) == 16
    env, params = envs_jax.make(WORLD)
    programs = jax.jit(env.reset), jax.jit(env.step)
    for episode in few:
        follow(episode, env, params, *programs)


@pytest.mark.slow
def test_episodes_depend_neither_on_those_beside_them_nor_on_the_host():
    few = play(PLAIN, 7, 2, 3)
    assert all(map(same, few, play(PLAIN, 7, 7, 16)))


@pytest.mark.slow
def test_the_bot_as_an_agent_is_the_bot():
    """Beside the bot called by hand, in a maze of episodes much longer than a look of the host."""
    id = "BabyAI-Text/GoToObjMazeS4R2-v0"
    env, params = envs_jax.make(id)
    played = play(replace(PLAIN, agent="bot", env=id, num_actions=7), 5, 2, 4)
    act, reset, step = jax.jit(bot_action), jax.jit(env.reset), jax.jit(env.step)
    for episode in played:
        follow(episode, env, params, reset, step)
        _, state = reset(reset_key(3, episode.number), params)
        memory = initial_memory(env)
        for action in episode.action:
            own, memory = act(state, memory)
            assert own == action
            state = step(jax.random.key(0), state, action, params)[1]
    assert all(episode.success for episode in played)


@pytest.mark.slow
def test_the_bot_keeps_to_the_actions_that_it_has():
    bot = make_agent(replace(PLAIN, agent="bot"))
    _, state = jax.jit(jax.vmap(bot.env.unwrapped.reset, in_axes=(0, None)))(
        jax.random.split(jax.random.key(0), 4), bot.env_params
    )
    memory = bot.policy.initial_carry(4).replace(seen=jnp.full((4, 4), 15, jnp.uint32))
    distribution, value, after = jax.jit(bot.policy.step)((), (), state, memory, jnp.array([True, True, False, False]))
    np.testing.assert_array_equal(np.sort(distribution.probs, axis=-1), np.tile([0, 0, 1], (4, 1)))
    assert np.array_equal(distribution.sample(jax.random.key(1)), distribution.mode()) and not value.any()
    # an episode that begins has seen what is in view; one that goes on, what it had seen as well
    assert (after.seen[:2] != 15).any() and (after.seen[2:] == 15).all()


def test_what_the_bot_cannot_do_is_refused():
    with pytest.raises(ValueError, match="agent bot"):
        make_agent(replace(PLAIN, agent="bot")).learner()
    with pytest.raises(ValueError, match="num_actions.*3"):
        make_agent(replace(PLAIN, agent="bot", env=f"{WORLD}?done_actions=true"))
    with pytest.raises(TypeError, match="bot.*BabyAI.*'CartPole-v1'"):
        make_agent(replace(PLAIN, agent="bot", env="CartPole-v1"))


def test_the_text_world_of_a_level():
    assert text_id("BabyAI-GoTo-v0?describe=faithful") == "BabyAI-Text/GoTo-v0?describe=faithful"
    assert text_id(WORLD) == WORLD
    with pytest.raises(ValueError, match="'CartPole-v1'.*none"):
        text_id("CartPole-v1")
    with pytest.raises(ValueError, match="episodes.*0"):
        play_episodes(make_agent(PLAIN), (), (), seed=0, episodes=0)


SAID = [["You see a wall 2 steps forward", "You see a red ball 1 step left"], ["You carry a red ball"], []]


def episode(world, number, success, steps=3):
    """Episodes made by hand: one sentence less at every step."""
    books = world.books
    last = np.arange(steps) == steps - 1
    phrases = [[books.view.phrases[i] for i in range(n)] for n in range(steps)]
    said = SAID if world.language == "english" and not world.faithful and steps == 3 else phrases
    mission = np.array([0, 8], np.int16)
    if world.language == "english":
        mission = np.concatenate([books.missions.caption(["go to", "the red ball"], 2), np.full(17, -1, np.int16)])
    return Episode(
        number=number,
        success=success,
        observed={
            "mission": np.tile(mission, (steps, 1)),
            "text": np.stack([books.view.caption(phrases, world.max_sentences) for phrases in said]),
            "direction": np.arange(steps, dtype=np.int32),
            "position": np.arange(2 * steps, dtype=np.int32).reshape(steps, 2),
            "max_steps": np.full(steps, 16, np.int32),
        },
        action=np.arange(steps, dtype=np.int32) % 7,
        reward=np.where(last & success, np.float32(0.5), np.float32(0)),
        terminated=last & success,
        truncated=last & (not success),
    )


@pytest.fixture(scope="module")
def world():
    return envs_jax.make(WORLD)[0]


def test_a_file_says_what_was_done_and_is_read_back(world, tmp_path):
    from pyarrow import parquet

    played = [episode(world, i, success) for i, success in enumerate((True, False, True))]
    found = write_demos(tmp_path / "a.parquet", played, world, seed=5, facts={"player": "hand"})
    assert (found.played, found.succeeded, found.saved, found.steps) == (3, 2, 2, 6)
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert rows[1] == {
        "episode": 0,
        "step": 1,
        "seed": 5,
        "level": WORLD,
        "mission": "go to the red ball",
        "text": "You carry a red ball",
        "action": 1,
        "action_name": "turn right",
        "reward": 0.0,
        "terminated": False,
        "truncated": False,
        "success": True,
        "direction": 1,
        "position": [2, 3],
    }
    assert [row["text"] for row in rows[:3]] == [", ".join(said) for said in SAID]
    assert [row["episode"] for row in rows] == [0, 0, 0, 2, 2, 2] and rows[5]["terminated"] and rows[5]["reward"] == 0.5
    told, episodes = read_demos(tmp_path / "a.parquet")
    assert (told["level"], told["max_steps"], told["player"], told["episodes_played"]) == (WORLD, [16, 16], "hand", 3)
    for demo, was in zip(episodes, (played[0], played[2]), strict=True):
        assert (demo.number, demo.success, demo.mission) == (was.number, True, "go to the red ball")
        assert demo.text == tuple(", ".join(said) for said in SAID)
        np.testing.assert_array_equal(demo.action, was.action)
        np.testing.assert_array_equal(demo.reward, was.reward)


def test_which_episodes_are_kept_and_when_writing_stops(world, tmp_path):
    played = [episode(world, i, i % 2 == 0) for i in range(6)]
    for keep, numbers in {"successes": [0, 2, 4], "failures": [1, 3, 5], "all": [0, 1, 2, 3, 4, 5]}.items():
        path = tmp_path / f"{keep}.parquet"
        write_demos(path, played, world, seed=0, facts={}, keep=keep)
        assert [demo.number for demo in read_demos(path)[1]] == numbers
    found = write_demos(tmp_path / "few.parquet", played, world, seed=0, facts={}, pairs=4)
    assert (found.played, found.saved, found.steps) == (3, 2, 6), "the episode that reaches the fourth step is whole"


def test_rows_come_in_groups(world, tmp_path, monkeypatch):
    from pyarrow import parquet

    monkeypatch.setattr("llmrl_jax.agents.babyai.GROUP", 5)
    played = [episode(world, i, True) for i in range(5)]
    write_demos(tmp_path / "a.parquet", played, world, seed=0, facts={})
    with parquet.ParquetFile(tmp_path / "a.parquet") as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert sizes == [6, 6, 3]
    assert [demo.number for demo in read_demos(tmp_path / "a.parquet")[1]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("option", ["language=french", "describe=faithful"])
def test_the_words_are_those_of_the_world(option, tmp_path):
    other = envs_jax.make(f"{WORLD}?{option}")[0]
    write_demos(tmp_path / "a.parquet", [episode(other, 0, True)], other, seed=0, facts={})
    told, (demo,) = read_demos(tmp_path / "a.parquet")
    assert told["level"] == f"{WORLD}?{option}"
    said = "Tu portes une" if "french" in option else "You carry a"
    assert demo.text[0] == "" and demo.text[2].split(", ")[0].startswith(said)


def test_a_file_appears_whole_or_not_at_all(world, tmp_path):
    def broken():
        yield episode(world, 0, True)
        raise RuntimeError("the machine is gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_demos(tmp_path / "a.parquet", broken(), world, seed=0, facts={})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"end in \.parquet"):
        write_demos(tmp_path / "a.csv", [], world, seed=0, facts={})
    write_demos(tmp_path / "a.parquet", [episode(world, 0, True)], world, seed=0, facts={})
    with pytest.raises(FileExistsError, match=r"a\.parquet"):
        write_demos(tmp_path / "a.parquet", [], world, seed=0, facts={})


def test_a_file_that_is_none_of_ours_is_named(world, tmp_path, monkeypatch):
    import pyarrow as pa
    from pyarrow import parquet

    whole = tmp_path / "whole.parquet"
    write_demos(whole, [episode(world, 0, True)], world, seed=0, facts={})
    told = {k: v for k, v in parquet.read_metadata(whole).metadata.items() if k.startswith(b"llmrl")}

    def other(table, name="other.parquet"):
        parquet.write_table(table.replace_schema_metadata(told), tmp_path / name)
        return tmp_path / name

    table = parquet.read_table(whole)
    with pytest.raises(FileNotFoundError, match="'whole.parquet'"):
        read_demos(tmp_path / "hole.parquet")
    with pytest.raises(DemosError, match="'action'.*'action_name'"):
        read_demos(other(table.drop_columns(["action"])))
    with pytest.raises(DemosError, match="'reward'.*double.*float"):
        read_demos(other(table.set_column(8, "reward", table["reward"].cast(pa.float64()))))
    with pytest.raises(DemosError, match=r"0.*0 \.\. 1.*2 rows"):
        list(read_demos(other(table.slice(0, 2)))[1])
    parquet.write_table(table.replace_schema_metadata(None), tmp_path / "bare.parquet")
    with pytest.raises(DemosError, match=r"bare\.parquet.*`llmrl envs demos`"):
        read_demos(tmp_path / "bare.parquet")
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(DemosError, match=r"text\.parquet.*not parquet"):
        read_demos(tmp_path / "text.parquet")
    assert list(COLUMNS) == table.column_names
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match="pyarrow.*`data`"):
        read_demos(whole)


@pytest.mark.slow
def test_the_bot_demonstrates_and_is_tested_by_command(tmp_path, capsys):
    out = tmp_path / "demos.parquet"
    assert main(["envs", "demos", "BabyAI-GoToObjS4-v0", "--episodes", "12", "--out", str(out), "--seed", "2"]) == 0
    assert "12 of 12 episodes" in capsys.readouterr().out
    told, episodes = read_demos(out)
    kept = list(episodes)
    assert told["level"] == WORLD and told["player"] == "bot" and told["versions"]["jax"] and len(kept) == 12
    assert all(demo.reward[-1] > 0 and demo.mission.startswith("go to") for demo in kept)
    again = ["envs", "demos", "BabyAI-GoToObjS4-v0", "--episodes", "12", "--out", str(tmp_path / "b.parquet")]
    assert main([*again, "--seed", "2", "--batch", "5", "--keep", "all"]) == 0
    for a, b in zip(kept, read_demos(tmp_path / "b.parquet")[1], strict=True):
        assert a.text == b.text and a.mission == b.mission and np.array_equal(a.action, b.action)
    test = ["glam", "test", "--bot", "--env", WORLD, "--tests", "no_modification_test", "no_meaning_words"]
    assert main([*test, "--episodes", "16", "--out", str(tmp_path / "tests")]) == 0
    said = capsys.readouterr().out
    assert said.count("sampled 1.000, greedy 1.000") == 2 and "paper (Bot)" in said


def test_the_command_line_says_what_is_wrong(tmp_path, capsys):
    assert main(["envs", "demos", "CartPole-v1", "--out", str(tmp_path / "a.parquet")]) == 2
    assert "'CartPole-v1' is none" in capsys.readouterr().err
    assert main(["envs", "demos", "BabyAI-GoTu-v0", "--out", str(tmp_path / "a.parquet")]) == 2
    assert "you mean" in capsys.readouterr().err
    assert main(["envs", "demos", "BabyAI-GoToObjS4-v0", "--out", str(tmp_path / "a.txt")]) == 2
    assert ".parquet" in capsys.readouterr().err
