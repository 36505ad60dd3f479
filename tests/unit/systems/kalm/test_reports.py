"""KALM's reports: statistics of imagined episodes, explanations, a grounded model's own play, and held-out episodes."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from envs_jax import spaces
from envs_jax.clevr.instructions import keywords
from envs_jax.env import Environment
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents.evaluate import make_evaluator
from llmrl_jax.data.transitions import Trajectories
from llmrl_jax.lm import Llama, LlamaConfig
from llmrl_jax.lm.small import SmallConfig
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.rl.actors import Fixed
from llmrl_jax.rl.policy import Policy
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.kalm import ground, prompts
from llmrl_jax.systems.kalm.config import GroundRun
from llmrl_jax.systems.kalm.eval import make_player
from llmrl_jax.systems.kalm.ground import FRAMES, GroundedModel
from llmrl_jax.systems.kalm.imagine import Imagined, statistics
from llmrl_jax.systems.kalm.prompts import Episodes, Row
from llmrl_jax.systems.kalm.world_model import Normalizer, Slots, WorldModel
from llmrl_jax.systems.kalm.worlds import Instructions, World, clevr
from llmrl_jax.tuning.sft import SFTConfig
from llmrl_jax.workflows import experiment


# --- imagined episodes ------------------------------------------------------------------------------------------------


def test_statistics_count_steps_and_episodes_up_to_their_ends():
    """Three episodes of 1, 3 and 4 steps on CLEVR's table; what follows an end is out of everything."""
    row = np.array([[-0.4, 0.0], [-0.2, 0.0], [0.0, 0.0], [0.2, 0.0], [0.4, 0.0]], np.float32)

    def moved(*balls):
        state = row.copy()
        for ball, x, y in balls:
            state[ball] = x, y
        return state

    still, away = row, np.full((5, 2), 9.0, np.float32)
    at_wall, beyond = moved((0, -0.55, 0.0)), moved((4, 0.7, 0.0))
    far, near = moved((0, -0.4, 0.5)), moved((0, -0.4, 0.5), (1, -0.05, 0.0))
    states = [
        [still, still, away, still, away],
        [still, still, at_wall, at_wall, away],
        [still, beyond, still, far, near],
    ]
    made = Imagined(
        states=np.array(states).reshape(3, 5, 10),
        actions=np.zeros((3, 4), np.int32),
        rewards=np.zeros((3, 4), np.float32),
        lengths=np.array([1, 3, 4], np.int32),
        success=np.array([True, False, True]),
    )
    assert statistics(clevr(), made) == {
        "success": 2 / 3,
        "mean_length": 8 / 3,
        "impossible/out_of_table": 1 / 8,
        "episodes_impossible/out_of_table": 1 / 3,
        "impossible/in_wall": 3 / 8,  # a ball beyond a wall is in it too
        "episodes_impossible/in_wall": 2 / 3,
        "impossible/dynamics": 1 / 8,
        "episodes_impossible/dynamics": 1 / 3,
        "impossible/overlap": 1 / 8,
        "episodes_impossible/overlap": 1 / 3,
    }


# --- a small world, and models for it ---------------------------------------------------------------------------------


TEXTS = ("go right", "go left", "stay where you are", "go far to the right", "turn", "walk to the left")
LEVEL = "easy"
"""Its sentences are the last four."""
HORIZON = 3


@struct.dataclass
class Place:
    x: jax.Array
    sentence: jax.Array
    steps: jax.Array
    """Drawn with the episode: 2 or 3."""
    t: jax.Array


class Plane(Environment):
    """A point that moves by its action and by chance. The return has the actions as digits, beside a little chance."""

    @property
    def default_params(self):
        return ()

    def action_space(self, params):
        return spaces.Discrete(3)

    def seen(self, state):
        return {"state": state.x, "instruction": state.sentence}

    def reset(self, key, params):
        place, sentence, steps = jax.random.split(key, 3)
        state = Place(
            x=jax.random.normal(place, (2,)),
            sentence=2 + jax.random.randint(sentence, (), 0, 4),
            steps=jax.random.randint(steps, (), 2, HORIZON + 1),
            t=jnp.int32(0),
        )
        return self.seen(state), state

    def step(self, key, state, action, params):
        move = jax.random.normal(key, (2,))
        after = state.replace(x=-state.x + jnp.array([action - 1.0, 0.5]) + move, t=state.t + 1)
        reward = (1.0 + action) * 4.0**state.t + 0.1 * move[0]
        done, success = after.t >= after.steps, action == 1
        return self.seen(after), after, reward, done & success, done & ~success, {"success": success}


class PlaneWorld(World):
    def make(self, level):
        assert level == LEVEL
        return Plane()


WORLD = PlaneWorld(
    **vars(clevr())
    | {
        "horizon": {LEVEL: HORIZON},
        "instructions": Instructions(
            TEXTS, np.zeros((6, 1), np.int32), np.arange(6), {"real": 0, LEVEL: 2}, {"real": 2, LEVEL: 4}
        ),
    }
)


SCALES = {"params": 12.0, "slots": 0.2}
"""Factors of the first weights, and of the numbers drawn for slots, with which what is read shows in what is said and
done."""


@functools.cache
def model_of(width=2, size=16, returns=None):
    """A small model with random weights. **Arguments:** `width`, numbers of a state."""
    tokenizer = WordTokenizer.from_texts([*TEXTS, *FRAMES])
    vocabulary = -(-tokenizer.vocab_size // 8) * 8
    config = LlamaConfig(vocabulary, size, 24, 1, 2, 2, max_position_embeddings=128, eos_token_id=tokenizer.eos_id)
    model = WorldModel(Llama(config), Slots(size, width, 3, discrete=True))
    variables = dict(jax.jit(model.llama.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    slots = jax.eval_shape(model.init_slots, jax.random.key(1), variables)
    leaves, structure = jax.tree.flatten(slots)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    numbers = [jax.random.normal(key, x.shape) for key, x in zip(keys, leaves)]
    variables["slots"] = structure.unflatten(numbers)
    variables = {name: jax.tree.map(lambda x, n=name: SCALES[n] * x, tree) for name, tree in variables.items()}
    returned = jnp.arange(width) > 1
    units = Normalizer(jnp.where(returned, 25.0, 0.25), jnp.where(returned, 4.0, 1.5), jnp.full(width, 0.5))
    return GroundedModel(WORLD, model, variables, units, tokenizer, returns)


# --- explanations -----------------------------------------------------------------------------------------------------


def recorded(lengths, width=2, seed=0):
    """Episodes of these lengths, of random states and actions."""
    rng, lengths = np.random.default_rng(seed), np.asarray(lengths)
    first, total = np.cumsum(lengths + 1) - (lengths + 1), int(lengths.sum())
    states = rng.normal(size=(total + len(lengths), width)).astype(np.float32)
    return Episodes(states, rng.integers(0, 3, total).astype(np.int32), first, np.cumsum(lengths) - lengths, lengths)


def parrot(says):
    """A model that answers every question with one sentence: its layers add nothing to the word it reads, and the word
    to come depends on that alone."""
    found = model_of(size=64)
    params = jax.tree.map(jnp.zeros_like, found.variables["params"])
    words = found.model.llama.config.vocab_size
    assert words <= 64
    params["embed_tokens"]["embedding"] = jnp.eye(words, 64)
    params["norm"]["scale"] = jnp.ones(64)
    spoken = [*found.tokenizer.encode("Instruction:")[-1:], *found.tokenizer.encode(says), found.tokenizer.eos_id]
    head = np.zeros((64, words), np.float32)
    head[spoken[:-1], spoken[1:]] = 1.0
    params["lm_head"]["kernel"] = jnp.asarray(head)
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (params, found.variables["params"])]
    assert shapes[0] == shapes[1]
    return replace(found, variables={**found.variables, "params": params})


def test_an_explanation_ends_at_its_end_token_and_accuracy_is_the_share_of_right_ones():
    found, episodes = parrot("walk to the left"), recorded([2, 1, 3, 2, 1])
    assert ground.explain(found, episodes, [4, 0, 1], 3) == ["walk to the"] * 3  # no more tokens are allowed
    left, right, walk = ["go left", "walk to the left"], ["go right", "go far to the right"], ["walk to the left"]
    texts = [left, right, walk, ["walk to the"], right]
    found = replace(found, world=replace(found.world, keywords=None))
    rates = ground.explanation_accuracy(found, episodes, texts, [0, 1, 2, 3, 4, 2])
    assert rates == {"explained": 3 / 6}


def test_keywords_are_ball_place_and_reference(monkeypatch):
    said = ["push red at the back of blue", "is blue left of green yet?", "scattered"]
    monkeypatch.setattr(ground, "explain", lambda found, episodes, chosen, most: [said[e] for e in chosen])
    assert [keywords(text) for text in said] == [(0, 0, 1), (1, 1, 2), (None, None, None)]
    texts = [["red behind blue"], ["green is left of blue"], ["red right of blue"]]
    found = replace(model_of(), tokenizer=WordTokenizer.from_texts([text for wordings in texts for text in wordings]))
    rates = ground.explanation_accuracy(found, recorded([1]), texts, [0, 1, 2, 0])
    assert rates == {"explained": 0.0, "keywords": 2 / 4, "keyword": pytest.approx((3 + 1 + 0 + 3) / 12)}


def test_explanations_are_those_of_one_whole_pass_per_word(monkeypatch):
    """Questions of unequal length, in parts of two of which the last is filled up."""
    monkeypatch.setattr(ground, "EXPLAINED", 2)
    found, episodes, most, room = model_of(), recorded([2, 5, 1, 3, 4], seed=1), 6, 64
    tables = jnp.asarray(episodes.states), jnp.asarray(episodes.actions)
    hidden = jax.jit(found.model.hidden)
    head = np.asarray(found.variables["params"]["lm_head"]["kernel"])

    def alone(e):
        row, said = prompts.question(Row(found.tokenizer), episodes, e), []
        for _ in range(most):
            rows = prompts.pack([row], room)
            logits = np.asarray(hidden(found.variables, found.normalizer, rows, tables)[0, len(row.tokens) - 1]) @ head
            token = int(logits.argmax())
            said.append(token)
            for name, value in zip(prompts.NAMES, (token, prompts.TOKEN, 0, 0, False)):
                getattr(row, name).append(value)
        if found.tokenizer.eos_id in said:
            said = said[: said.index(found.tokenizer.eos_id)]
        return found.tokenizer.decode(said).strip()

    chosen = [3, 0, 4, 1, 2]
    wanted = [alone(e) for e in chosen]
    assert len(set(wanted)) > 2, "what is said depends on the episode"
    assert ground.explain(found, episodes, chosen, most) == wanted


# --- episodes of a grounded model -------------------------------------------------------------------------------------


def test_a_player_plays_the_episodes_of_the_evaluator():
    """A model that always takes action 1, and a policy that does: the same starts, sentences, chance and ends."""
    found = model_of()
    slots = found.variables["slots"]
    still = {"kernel": jnp.zeros_like(slots["action_out"]["kernel"]), "bias": jnp.array([0.0, 1.0, 0.0])}
    found = replace(found, variables={**found.variables, "slots": {**slots, "action_out": still}})

    class Same(Policy):
        def step(self, params, frozen, obs, carry, first):
            rows = obs["state"].shape[0]
            return Fixed(jnp.ones(rows, jnp.int32)), jnp.zeros(rows), carry

    env, key = EpisodeStatistics(Plane()), jax.random.key(7)
    wanted = make_evaluator(env, (), Same(), episodes=7, lanes=3)((), (), key, greedy=True)
    played = make_player(found, LEVEL, 7, lanes=4)(key)
    np.testing.assert_array_equal(played.success, wanted.success)
    np.testing.assert_array_equal(played.episode_length, wanted.episode_length)
    np.testing.assert_allclose(played.episode_return, wanted.episode_return, atol=1e-5)
    assert set(played.episode_length) == {2, 3} and len(set(played.episode_return.tolist())) == 7


PLAYED = 5


@functools.cache
def compiled(model):
    world = Plane()
    return jax.jit(world.reset), jax.jit(world.step), jax.jit(model.hidden)


def by_hand(found, key, *, text=None, predicted=False, falls=True):
    """Episodes one after the other, with one whole pass over text, states and actions for each action.

    **Arguments:** `text`, an instruction instead of the episode's own; `predicted`, the model reads its predictions
    instead of the world's states; `falls`, whether the wanted return is reduced. **Returns:** success, return, length
    and actions of each.
    """
    model, texts = found.model, found.world.instructions.texts
    reset, step, hidden = compiled(model)
    outcomes = []
    for i in range(PLAYED):
        start_key, play_key = jax.random.split(jax.random.fold_in(key, i))
        obs, state = reset(start_key, ())
        said = prompts.ROLLOUT.format(text or texts[int(obs["instruction"])])
        wanted, total, states, actions = found.returns or 0.0, 0.0, [], []
        x = obs["state"]
        for t in range(HORIZON):
            states.append(np.append(x, wanted) if found.returns is not None else np.asarray(x))
            tables = jnp.zeros((HORIZON, len(states[0]))).at[: t + 1].set(np.array(states))
            done = jnp.zeros(HORIZON, jnp.int32).at[:t].set(np.array(actions, np.int32))

            def last(row, done):
                rows = prompts.pack([row], 32)
                return hidden(found.variables, found.normalizer, rows, (tables, done))[0, len(row.tokens) - 1]  # noqa: B023

            row = Row(found.tokenizer).text(said).state(0)
            for past in range(t):
                row.action(past).state(past + 1)
            action = int(model.act(found.variables, last(row, done)))
            actions.append(action)
            _, step_key = jax.random.split(jax.random.fold_in(play_key, t))
            obs, state, reward, terminated, truncated, info = step(step_key, state, action, ())
            total += float(reward)
            wanted -= float(reward) if falls else 0.0
            x = obs["state"]
            if predicted:
                after = last(row.action(t), done.at[t].set(action))
                x = model.next_state(found.variables, found.normalizer, after, tables[t])[:2]
            if terminated or truncated:
                break
        outcomes.append((bool(info["success"]), total, len(actions), actions))
    return outcomes


@pytest.mark.parametrize("returns", [pytest.param(None, marks=pytest.mark.slow), 30.0])
def test_a_player_reads_its_instruction_the_worlds_states_and_the_return_still_wanted(returns):
    found = model_of() if returns is None else model_of(3, returns=returns)
    key = jax.random.key(3)
    wanted = by_hand(found, key)
    played = make_player(found, LEVEL, PLAYED, lanes=2)(key)
    success, total, length, actions = zip(*wanted)
    np.testing.assert_array_equal(played.success, success)
    np.testing.assert_array_equal(played.episode_length, length)
    np.testing.assert_allclose(played.episode_return, total, atol=1e-3)
    assert set(length) == {2, HORIZON}
    others = [{"predicted": True}, {"text": TEXTS[-1]}, *([] if returns is None else [{"falls": False}])]
    for other in others:
        changed = list(zip(*by_hand(found, key, **other)))[3]
        assert changed != actions, f"what the model reads shows in its actions: {other}"


# --- grounding and its test -------------------------------------------------------------------------------------------


def clevr_episodes(count, seed=0):
    """Episodes with the form of CLEVR's: sentences of level real, and states and actions that mean nothing."""
    rng, steps = np.random.default_rng(seed), 3
    world = clevr()
    numbers = rng.choice(np.array(world.instructions.sentence_ids("real")), count).astype(np.int32)
    states = rng.normal(size=(count, steps + 1, 10)).astype(np.float32)
    same: dict[str, Any] = {"instruction": np.repeat(numbers[:, None], steps, 1)}
    flags = np.zeros((count, steps), bool)
    return Trajectories(
        obs={"state": states[:, :-1], **same},
        action=rng.integers(0, 40, (count, steps)).astype(np.int32),
        reward=rng.normal(size=(count, steps)).astype(np.float32),
        next_obs={"state": states[:, 1:], **same},
        terminated=flags,
        truncated=flags,
        length=rng.integers(1, steps + 1, count).astype(np.int32),
    )


def examples(rows, episodes, tokenizer):
    """The episode of every example in rows, and the instruction that it has, or an empty string."""
    for r, row in enumerate(rows.segments):
        for segment in range(1, row.max() + 1):
            at = row == segment
            kind, index, tokens = rows.kind[r, at], rows.index[r, at], rows.tokens[r, at]
            states = np.searchsorted(episodes.first_state, index[kind == prompts.STATE], side="right") - 1
            actions = np.searchsorted(episodes.first_action, index[kind == prompts.ACTION], side="right") - 1
            (number,) = {*states.tolist(), *actions.tolist()}
            words = tokens[(kind == prompts.TOKEN) & (tokens != tokenizer.eos_id)]
            said = tokenizer.decode(words.tolist()).partition("Instruction:")[2]
            yield number, said.partition("Trajectory:")[0].partition("First state:")[0].strip()


@pytest.mark.parametrize(("count", "share", "held"), [(20, 0.25, 5), (17, 0.3, 5), (9, 0.5, 4)])
def test_no_episode_is_both_learned_and_held_out(count, share, held, monkeypatch, tmp_path):
    """The rows of the learner and of the test, and the episodes that are explained, without any learning."""
    data, given = clevr_episodes(count), {}
    done = RunResult(state=None, update=1, steps=1, seconds=1.0, compile_seconds=1.0, stopped="", folder=tmp_path)

    def learner(config, weights, model, variables, rows, *rest):
        given["learned"] = rows

    def trained(*args, finish, **options):
        finish(done)
        return done

    def test(model, rows, episodes, size):
        given["tested"], given["episodes"] = rows, episodes
        return lambda state, key: {}

    def accuracy(found, episodes, texts, chosen):
        given["explained"] = chosen
        return {"explained": 0.5}

    for place, name, other in (
        (ground, "read_episodes", lambda folder: (clevr(), "real", data)),
        (ground, "make_grounding", learner),
        (ground, "held_out_losses", test),
        (experiment, "run_training", trained),
        (ground, "save_model", lambda *args: None),
        (ground, "load_model", lambda folder: None),
        (ground, "explanation_accuracy", accuracy),
    ):
        monkeypatch.setattr(place, name, other)
    small = SmallConfig(hidden_size=8, layers=1, heads=2, intermediate_size=8)
    sft, run = SFTConfig(batch_size=2, learning_rate=1e-3), RunConfig(out=str(tmp_path))
    ground.ground(GroundRun(data="any", embedded=small, held_out=share, sft=sft, copies=2, run=run))
    world, episodes = clevr(), given["episodes"]
    tokenizer = WordTokenizer.from_texts([*FRAMES, *world.instructions.texts])
    goal = world.instructions.configuration[data.obs["instruction"][:, 0]]
    numbers = {}
    for name in ("learned", "tested"):
        found = list(examples(given[name], episodes, tokenizer))
        numbers[name] = {e for e, _ in found}
        assert len(found) == 8 * len(numbers[name])  # four objectives, two copies
        assert all(said in world.instructions.wordings("real", int(goal[e])) for e, said in found if said)
        assert sum(bool(said) for _, said in found) == 6 * len(numbers[name])
    assert not numbers["learned"] & numbers["tested"]
    assert numbers["learned"] | numbers["tested"] == set(range(count)) and len(numbers["tested"]) == held
    assert set(given["explained"]) == numbers["tested"] and len(given["explained"]) == held
    assert numbers["tested"] != set(range(held)), "drawn, not the first"
