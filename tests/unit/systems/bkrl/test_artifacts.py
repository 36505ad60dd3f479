"""Programs, answers and goals that were made elsewhere, read for `llmrl bkrl code`, `prefer` and `goals`."""

from __future__ import annotations

import ast
import json

import numpy as np
import pytest

from llmrl_jax.advice.sandbox import admit
from llmrl_jax.data.transitions import DataError
from llmrl_jax.systems.bkrl.artifacts import program_source, read_answers, read_goals
from llmrl_jax.systems.bkrl.potentials import load_manifest
from llmrl_jax.systems.bkrl.prompts import TEXT, caption, world_of
from tests.bkrl_world import played, world


PUBLISHED = '''\
"""A potential."""
import os
import numpy as np
from minigrid.core.constants import OBJECT_TO_IDX
from minigrid.core.actions import Actions

def seen(obs, kind):
    return np.any(obs[0] == kind)

def compute_reward(obs: np.ndarray, past_obs: np.ndarray, past_actions: np.ndarray):
    """Likes balls and steps."""
    ball = np.where(seen(obs, OBJECT_TO_IDX["ball"]), 1.0, 0.0)
    ahead = np.mean(np.where(past_actions == Actions.forward, 1.0, 0.0)) + 0.5 * (obs[0, 3, 5] == OBJECT_TO_IDX["ball"])
    turned = np.where(past_actions[-1] == Actions.left.value, 0.25, 0.0)
    return ball + ahead + turned, {"ball": ball, "ahead": ahead}
'''


def test_a_published_program_is_converted_as_text(tmp_path):
    path = tmp_path / "code-final.py"
    path.write_text(PUBLISHED)
    source = program_source(path, world_of(world()))
    names = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    assert not {"np", "os", "Actions", "OBJECT_TO_IDX"} & names
    obs = {"image": np.zeros((7, 7, 3), np.int32), "direction": np.int32(0)}
    program = admit(source, obs, window=2, actions=7, parts=("direction", "image"))
    image = np.zeros((7, 7, 3), np.int32)
    image[3, 5, 0] = 6
    past = {"image": np.zeros((2, 7, 7, 3), np.int32), "direction": np.zeros(2, np.int32)}
    value, components = program({"image": image, "direction": np.int32(0)}, past, np.array([2, 0], np.int32))
    assert float(value) == pytest.approx(1 + (0.5 + 0.5) + 0.25)
    assert float(components["ahead"]) == pytest.approx(1.0)


def test_published_folders_are_no_potentials_yet(tmp_path):
    options = {"code-final.py": "--program", "goal_index.json": "--library", "best_model.pt": "--labels"}
    for name, option in options.items():
        (tmp_path / name).touch()
        for path in (tmp_path, tmp_path / name):
            with pytest.raises(FileNotFoundError, match=f"{name}.*{option}"):
                load_manifest(path)
        (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"mine\.py.*--program"):
        load_manifest(tmp_path / "mine.py")


def test_our_programs_are_read_as_they_stand(tmp_path):
    text = "import os\n\ndef compute_potential(obs, past_obs, past_actions):\n    return os.getpid(), {}\n"
    (tmp_path / "own.py").write_text(text)
    assert program_source(tmp_path / "own.py", world_of(world())) == text  # which the sandbox refuses


@pytest.mark.parametrize("text", ["def f(:", "x = 1", "(" * 5000, "x = '\0'", "#" * (1 << 17)], ids=lambda t: t[:6])
def test_files_without_a_program_are_refused(text, tmp_path):
    (tmp_path / "wrong.py").write_text(text)
    with pytest.raises(ValueError, match=r"wrong\.py"):
        program_source(tmp_path / "wrong.py", world_of(world()))
    with pytest.raises(FileNotFoundError, match=r"wrong\.py"):
        program_source(tmp_path / "wrng.py", world_of(world()))


def test_answers_are_read_by_line(tmp_path):
    path = tmp_path / "labels.jsonl"
    rows = [
        {"windows": [[0, 0], [1, 1]], "second": 1},
        {"windows": [[2, 0], [0, 1]], "forward": 0, "backward": None, "margin": -0.5},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    starts, answers = read_answers(path, played(), 2)
    assert starts.tolist() == [[0, 1, 2, 0], [0, 1, 0, 1]]
    assert answers == [(1, 0, None), (0, None, -0.5)]


@pytest.mark.parametrize(
    "row",
    [
        {"windows": [[0, 0]], "second": 1},
        {"windows": [[0, 0], [1, 0]], "second": 2},
        {"windows": [[0, 0], [99, 0]], "second": 1},
        {"windows": [[0, 0], [1, 13]], "second": 1},
        {"windows": [[0, 0], [1, 0]]},
        {"windows": [[0, 0], [1, 0.5]], "second": 1},
    ],
    ids=["one window", "answer", "episode", "step", "no answer", "half a step"],
)
def test_lines_that_are_no_answers_are_refused(row, tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="line 1"):
        read_answers(path, played(), 2)


def published_goals(folder, texts):
    folder.mkdir()
    (folder / "trajectory_text.json").write_text(json.dumps(texts))
    (folder / "goal_library.json").write_text(json.dumps({str(i): [i % 2] for i in range(len(texts))}))
    (folder / "goal_index.json").write_text(json.dumps({"go to the ball": 0, "open the door": 1}))
    return folder


@pytest.mark.slow
def test_situations_are_read_back_from_their_words(tmp_path):
    env, data = world(), played()
    book, described = env.captions[TEXT], world_of(world())
    windows = data.sample(np.random.default_rng(0), 3, 3)
    phrases = [[book.phrases_of(row) for row in rows] for rows in windows.obs[TEXT]]
    texts = [
        caption([book.render(row) for row in rows], actions, described.verbs)
        for rows, actions in zip(windows.obs[TEXT], windows.action.tolist())
    ]
    single = caption([book.render(row) for row in windows.obs[TEXT][0][:2]], [2], described.verbs)
    situations, goals = read_goals(published_goals(tmp_path / "goals", [*texts, single]), env, described)
    assert [observations for observations, _ in situations] == [*phrases, phrases[0][:2]]
    verbs = [[described.verbs[a] for a in row] for row in windows.action]
    assert [actions for _, actions in situations] == [*verbs, [described.verbs[2]]]
    assert goals == [["go to the ball"], ["open the door"], ["go to the ball"], ["open the door"]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("goal_library.json", [[[1]]]),
        ("goal_library.json", {"k": [0]}),
        ("goal_index.json", {"go to the ball": [0]}),
    ],
)
def test_goals_of_another_form_are_refused(name, value, tmp_path):
    folder = published_goals(tmp_path / "goals", ["x"])
    (folder / name).write_text(json.dumps(value))
    with pytest.raises(DataError, match=r"goal_(library|index)\.json"):
        read_goals(folder, world(), world_of(world()))


@pytest.mark.parametrize(
    "text", ["nothing", "You see a unicorn. You choose the action: forward. Current observation: x"]
)
def test_situations_in_other_words_are_refused(text, tmp_path):
    with pytest.raises(DataError, match="situation 0"):
        read_goals(published_goals(tmp_path / "goals", [text]), world(), world_of(world()))
    with pytest.raises(FileNotFoundError, match="goal_index"):
        read_goals(tmp_path, world(), world_of(world()))
