"""Environments of Python under the policy and the learners of written replies."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from benchmarks import agent_host
from benchmarks.harness import OURS
from envs_jax.bridges.host import HostError, HostWorld
from envs_jax.text.template import PromptError
from envs_jax.toytext.frozen_lake import FrozenLake
from envs_jax.toytext.tables import ToyTextState
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.multiturn.evaluate import Evaluator
from llmrl_jax.multiturn.group import make_group_learner
from llmrl_jax.multiturn.ppo import make_turn_ppo
from llmrl_jax.multiturn.text import CHATML, FreeText, TurnText, TurnWording
from llmrl_jax.systems.agent.build import build
from llmrl_jax.systems.agent.config import AgentConfig
from tests.unit.multiturn.conversations import GROUP, PPO, SIZES


LAKE = FrozenLake(desc=["SFH", "FFF", "HFG"], is_slippery=False, text="grid", max_steps=4)
LAKE.id = "Lake"
CONFIG = replace(PPO, num_envs=4, num_steps=60, minibatches=1, epochs=1, episode_tokens=80)


class HostLake:
    """The lake, stepped in NumPy."""

    table = LAKE.table

    def text(self):
        return ", ".join(LAKE.ascii(ToyTextState(self.index, self.time)).split("\n")) + ","

    def reset(self, *, seed=None):
        self.index, self.time = int(LAKE.starts[0]), 0
        return self.text(), {}

    def step(self, action):
        reward, ended = (getattr(self.table, name)[self.index, action, 0] for name in ("reward", "terminated"))
        self.index, self.time = int(self.table.successor[self.index, action, 0]), self.time + 1
        return self.text(), float(reward), bool(ended), self.time >= 4, {}


@cache
def lake_agent(host: bool = True):
    """The same policy, on the device's lake or on the host's."""
    rows = [f" {row}," for row in LAKE.book.phrases]
    config = AgentConfig(
        env="Lake", tune="full", embedded=SIZES, decoding="constrained", reply_tokens=5, value_width=16
    )
    world = HostWorld(HostLake, LAKE.names, turn_tokens=5, head_tokens=1, vocabulary=rows)
    agent = build(config, world=world)
    if host:
        return agent.policy, agent.env
    text = TurnText(LAKE, agent.tokenizer)
    assert text.sizes == (0, 5)
    return replace(agent.policy, text=text), EpisodeStatistics(LAKE)


@cache
def lake_runs(host: bool):
    """Two updates."""
    policy, env = lake_agent(host)
    learner = make_turn_ppo(CONFIG, policy, env, env.default_params)
    update, states, metrics = jax.jit(learner.update), [learner.init(jax.random.key(0))], []
    for _ in range(2):
        state, values = update(states[-1])
        states.append(state)
        metrics.append(values)
    return learner, update, states, metrics


@pytest.mark.slow
def test_the_lake_is_the_same_through_this_door():
    (_, _, host, ours), (_, _, device, theirs) = lake_runs(True), lake_runs(False)
    for a, b in zip(host, device):
        np.testing.assert_array_equal(a.rows.record.token, b.rows.record.token)
        np.testing.assert_array_equal(a.rows.token, b.rows.token)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a.params, b.params)
    for a, b in zip(ours, theirs):
        for name in ("turns", "episodes", "episode_return", "valid", "reply_length"):
            assert float(a[name]) == float(b[name]), name
        assert float(a["episode_failed"]) == float(a["episode_cut_tokens"]) == 0 and float(a["episodes"]) > 0
        assert float(a["first_ratio_error"]) <= 1e-5


@pytest.mark.slow
def test_a_run_goes_on_in_the_middle_of_an_episode():
    _, update, states, _ = lake_runs(True)
    _, env = lake_agent(True)
    assert (np.asarray(states[1].rows.env_state.env.env.turn) > 0).any()
    env.unwrapped.forget()
    after, _ = update(states[1])
    for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(states[2].params), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(after.rows.record.token, states[2].rows.record.token)


def test_groups_begin_in_one_state():
    policy, env = lake_agent(True)
    config = replace(GROUP, num_envs=4, group=2, minibatches=1, epochs=1, episode_tokens=48, anchor_coef=1.0)
    config = replace(config, replay_groups=0.5, starts=3)
    with pytest.raises(ValueError, match="at_once.*2"):
        make_group_learner(replace(config, at_once=2), policy, env, env.default_params)
    learner = make_group_learner(config, policy, env, env.default_params)
    state = learner.init(jax.random.key(0))
    state = state.replace(starts=state.starts.replace(success=jnp.full(3, 0.5)))  # its copies are played again
    after, metrics = jax.jit(learner.update)(state)
    fresh, again = float(metrics["success_fresh"]), 0.25 + 0.5 * float(metrics["success_stored"])
    again = fresh if fresh * (1 - fresh) > again * (1 - again) else again
    assert sorted(after.starts.success.tolist()) == sorted([0.5, 0.5, again])
    assert float(metrics["finished"]) == 1 and float(metrics["episodes"]) == 4
    assert float(metrics["first_ratio_error"]) <= 1e-5

    class Unseeded(HostLake):
        count = 0

        def reset(self, *, seed=None):
            Unseeded.count += 1
            return str(Unseeded.count), {}

    world = replace(env.unwrapped.world, make=Unseeded, vocabulary=["1 2"])
    other = build(AgentConfig(env="Lake", tune="full", embedded=SIZES, reply_tokens=5), world=world)
    with pytest.raises(HostError, match="seed"):
        make_group_learner(config, other.policy, other.env, other.env_params)


def test_episodes_are_evaluated_on_the_host():
    policy, env = lake_agent(True)
    params, frozen = policy.init(jax.random.key(1))
    played = Evaluator(policy, env, env.default_params, 3, 80, chunk=32)(params, frozen, jax.random.key(2))
    assert (played.turns >= 1).all() and (played.turns <= 4).all() and (played.valid == played.turns).all()
    np.testing.assert_array_equal(played.success, played.returns > 0)


WORDS = WordTokenizer.from_texts(
    ["<|im_start|>user You act in a world, one action a turn. Actions: up, down. <|im_end|> <|im_start|>assistant"]
    + ["Goal: Observation: Reply: one two three four five win Observation:<|im_end|> two<|im_end|> <|im_start|>user"]
)


@pytest.mark.parametrize("wording", [TurnWording(), CHATML], ids=["plain", "chatml"])
def test_free_text_is_the_tokens_of_its_text(wording):
    text = FreeText(WORDS, ("up", "down"), wording, turn_tokens=12, head_tokens=24)
    arrays, *cut = text("win", "one two")
    obs = {name: jnp.asarray(ids)[None] for name, ids in zip(text.names, arrays)}
    head = wording.instruction.format(actions="up, down") + f"{wording.goal} win"
    turn = f"{wording.observation} one two{wording.reply}"
    assert cut == [0, 0] and text.sizes == (24, 12)
    for pieces, want in (
        (text.heads(obs), head),
        (text.turns(obs, opening=True), turn),
        (text.turns(obs), wording.end + wording.between + turn),
    ):
        (tokens,), (length,) = np.asarray(pieces[0]), np.asarray(pieces[1])
        assert tokens[:length].tolist() == WORDS.encode(want) and not tokens[length:].any()
    assert text.render({name: ids[0] for name, ids in obs.items()}) == WORDS.decode(
        WORDS.encode(head) + WORDS.encode(turn)
    )


def test_a_world_without_a_goal_has_no_empty_line(bpe):
    """Tokenizers of chat models join two line breaks, across the border between head and turn."""
    env, params = envs_jax.make("Notes-Recall-v0")
    text, (obs, _) = TurnText(env, bpe, CHATML), env.reset(jax.random.key(0), params)
    message = text.render(obs)
    assert "\nObservation:" in message and "\n\n" not in message and "Goal" not in message
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), obs)
    (head, lengths), (turn, ends) = text.heads(batch), text.turns(batch, opening=True)
    rows = [[*head[i, : lengths[i]].tolist(), *turn[i, : ends[i]].tolist()] for i in range(2)]
    assert rows == [[*bpe.prefix_ids, *bpe.encode(message)]] * 2 and message.endswith("assistant\n")


def test_long_texts_are_refused_or_cut_and_counted():
    options = {"turn_tokens": 5, "head_tokens": 2}
    with pytest.raises(ValueError, match=r"7 tokens.*5"):
        FreeText(WORDS, ("up",), **options)("win", "one two three four five")
    with pytest.raises(ValueError, match="head.*3 tokens"):
        FreeText(WORDS, ("up",), **options)("win win", "one")
    arrays, *cut = FreeText(WORDS, ("up",), **options, long="cut")("win win win", "one two three four five")
    assert cut == [2, 2]
    shown = [WORDS.decode([i for i in ids if i >= 0]) for ids in arrays]
    assert shown == ["Goal: win", *["Observation: one two three Reply:"] * 2]
    with pytest.raises(PromptError, match="head.*head_tokens"):
        FreeText(WORDS, ("up", "down"), CHATML, head_tokens=3)
    with pytest.raises(PromptError, match=r"opening.*reply"):
        FreeText(WORDS, ("up",), TurnWording(observation="", reply=""))


def test_a_world_is_named_by_its_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from envs_jax.bridges.host import HostWorld\n"
        "class Game:\n"
        "    def reset(self, *, seed=None):\n        return 'one two', {}\n"
        "    def step(self, action):\n        return 'two', 1.0, action == 1, False, {}\n"
        "def world():\n    return HostWorld(Game, ('up', 'down'), turn_tokens=8, head_tokens=4, vocabulary=['one'])\n"
        "def other():\n    return Game()\n"
    )
    options = {"embedded": SIZES, "tune": "full", "reply_tokens": 6}
    agent = build(AgentConfig(env=f"{file}:world", **options))
    assert agent.env.action_names == ("up", "down") and isinstance(agent.policy.text, FreeText)
    assert agent.tokenizer.encode("one")[0] not in agent.tokenizer.spare_ids
    assert agent.tokenizer.encode("two")[0] in agent.tokenizer.spare_ids
    with pytest.raises(TypeError, match="HostWorld"):
        build(AgentConfig(env=f"{file}:other", **options))
    with pytest.raises(ValueError, match="world"):
        build(AgentConfig(env=f"{file}:wrld", **options))
    with pytest.raises(ValueError, match="num_actions"):
        build(AgentConfig(env=f"{file}:world", num_actions=1, **options))


@pytest.mark.slow
def test_its_speed_is_measured_where_the_tokens_are_equal():
    """At tiny sizes; what `run` itself asserts, equal tokens, is the test."""
    ours, theirs = agent_host.run(quick=True).rows
    assert ours.who == OURS != theirs.who and min(*ours.samples, *theirs.samples) > 0
