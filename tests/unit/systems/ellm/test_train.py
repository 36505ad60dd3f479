"""Settings beside a pretrained run, which a single task or the run itself decides."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from llmrl_jax.options.settings import draft
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.ellm import collect, housekeep, train
from llmrl_jax.systems.ellm.build import Ellm
from llmrl_jax.systems.ellm.closed_goals import ClosedGoalSpec
from llmrl_jax.systems.ellm.config import HOUSEKEEP_MACRO, ChatGoals, CollectRun, EllmConfig, ExploreRun, FinetuneRun
from llmrl_jax.workflows.chat_model import ChatConfig
from tests.ellm_world import Yard


CHAT = EllmConfig(env="Yard-v0", encoder="hashed", suggester="chat", goals=ChatGoals(max_states=32))
PPO = replace(CHAT, learner="ppo")
SPEC = Yard().goal_spec()


@pytest.fixture
def after(monkeypatch):
    """The settings that a run uses beside a pretrained one with the settings `before`."""

    def use(given, before=CHAT, task="table", spec=None, kind=ExploreRun, **options):
        loaded = draft(Ellm, {"config": before, "env": SimpleNamespace(spec=spec or SPEC)})
        monkeypatch.setattr(train, "load_run", lambda *_: (None, loaded, "state", 0))
        monkeypatch.setattr(train, "make_env", lambda _: loaded.env)
        monkeypatch.setattr(train, "goal_spec_for", lambda env: env.spec)
        return train._after(kind(from_run="runs/a", task=task, ellm=given, **options))[0]

    return use


def test_settings_of_a_single_task(after):
    """They may be given as the pretrained run has them, or as the task decides them: a resumed run has these."""
    config = after(CHAT)
    assert (config.ellm.suggester, config.ellm.fixed, config.ellm.once) == ("fixed", ("place table",), False)
    assert config.ellm.env == "Yard-v0?task=table" and config.ellm.goals == ChatGoals()
    assert after(config.ellm, run=RunConfig(name="b", resume=True)).ellm == config.ellm
    assert after(replace(CHAT, threshold=0.5)).ellm.threshold == 0.5
    with_task = replace(CHAT, env="Yard-v0?task=wood")
    assert after(with_task, with_task).ellm.env == "Yard-v0?task=table"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"suggester": "novelty", "goals": ChatGoals()}, "--suggester.*novelty"),
        ({"once": False, "intrinsic": 0.5}, "--intrinsic.*0.5"),  # `once` is what the task decides
        ({"extrinsic": 2.0}, "--extrinsic.*2.0"),
        ({"suggester": "oracle", "goals": ChatGoals(), "bonus": "rnd"}, "--suggester.*oracle, --bonus.*rnd"),
        ({"goals": ChatGoals(max_states=64)}, "--goals.max-states.*64"),
        ({"env": "Yard-v0?task=wood"}, "env.*Yard-v0[?]task=wood.*'table'"),
    ],
)
def test_settings_that_the_task_decides_are_refused(after, changes, said):
    with pytest.raises(ValueError, match=said):
        after(replace(CHAT, **changes))


def test_finetuned_weights_keep_their_encoder(after, monkeypatch):
    """Names are compared as they are resolved; a guide brings its own encoder."""
    monkeypatch.setattr(train, "resolved", lambda name: "hashed" if name == "auto" else name)
    other, auto = replace(CHAT, encoder="minilm"), replace(CHAT, encoder="auto")
    with pytest.raises(ValueError, match="encoder.*minilm.*runs/a.*hashed"):
        after(other, kind=FinetuneRun)
    for given, before in ((auto, CHAT), (CHAT, auto), (auto, auto)):
        assert after(given, before, kind=FinetuneRun).ellm.encoder == "hashed"
    assert after(other).ellm.encoder == "minilm"


def test_a_wrong_task_is_found_before_the_agent_is_loaded(monkeypatch):
    monkeypatch.setattr(train, "load_run", lambda *_: pytest.fail("the agent was loaded"))
    monkeypatch.setattr(train, "make_env", lambda _: Yard())
    with pytest.raises(ValueError, match="task is 'tabel'.*table"):
        train._after(ExploreRun(from_run="runs/a", task="tabel", ellm=CHAT))


def test_subgoals_need_several_steps(after):
    assert after(CHAT, subgoals=True).ellm.fixed == ("chop tree", "place table")
    with pytest.raises(ValueError, match="'wood'.*'chop tree'.*--subgoals"):
        after(CHAT, task="wood", subgoals=True)
    spec = replace(SPEC, tasks={"grove": ("chop tree", "chop tree")})
    with pytest.raises(ValueError, match="'grove'.*'chop tree'"):
        after(CHAT, task="grove", spec=spec, subgoals=True)


def test_a_chat_model_is_refused(after):
    chat = ChatConfig(model="m", base_url="http://127.0.0.1:1/v1", temperature=0.1, max_tokens=200)
    with pytest.raises(ValueError, match=r"^--chat\.model.*m, --chat\.base-url.*single task"):
        after(CHAT, chat=chat)
    assert after(CHAT, chat=chat, run=RunConfig(name="b", resume=True)).chat == chat, "a resumed run keeps its settings"


def test_another_task_of_housekeep_is_refused(after):
    before = replace(HOUSEKEEP_MACRO, goal_conditioned=True)
    spec = draft(ClosedGoalSpec, {"tasks": {f"task{i}": () for i in range(1, 5)}, "task_id": housekeep.task_id})
    use = partial(after, before=before, task="task3", spec=spec)
    for env in (before.env, "Housekeep-Macro-v0", "Housekeep-Macro-Task3-v0"):
        assert use(replace(before, env=env)).ellm.env == "Housekeep-Macro-Task3-v0"
    with pytest.raises(ValueError, match="env.*Housekeep-Macro-Task2-v0.*task.*'task3'"):
        use(replace(before, env="Housekeep-Macro-Task2-v0"))


def test_the_learner_is_named(after):
    with pytest.raises(ValueError, match="runs/a.*ppo.*--from"):
        after(PPO, PPO)
    with pytest.raises(ValueError, match="learner.*ppo.*--learner"):
        after(PPO)


def test_options_of_recording_that_nothing_reads(monkeypatch):
    with pytest.raises(ValueError, match="--epsilon.*0.5.*--from"):
        collect._player(CollectRun(epsilon=0.5))
    loaded = draft(Ellm, {"config": PPO, "policy": None})
    monkeypatch.setattr(collect, "load_run", lambda *_: (None, loaded, None, 0))
    with pytest.raises(ValueError, match="--epsilon.*0.5.*runs/a.*ppo"):
        collect._player(CollectRun(ellm=PPO, from_run="runs/a", epsilon=0.5))
