"""Open-ended goals: prompts and replies, the scripted adviser, exchanges with a chat model by hand, the table of
suggestions against a dict, strings of goals."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.chat import Budget, Budgeted, ChatReply, Choice
from llmrl_jax.chat.protocol import BudgetExceeded
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.lm.encoder import HashedEncoder
from llmrl_jax.systems.ellm import open_goals as g, prompts
from llmrl_jax.systems.ellm.config import ChatGoals, EllmConfig
from llmrl_jax.systems.ellm.goals import RewardRules
from llmrl_jax.systems.ellm.open_goals import Asker, UnansweredKeys, exchange
from llmrl_jax.systems.ellm.scripted import ScriptedSuggester
from tests.ellm_world import CHOP, DRINK, NAMES, Yard


SPEC = Yard().goal_spec()
WOOD_HERE, EMPTY_END = 8 | 0, 4
"""Keys: at the tree with wood, at the water without."""


class Says:
    """A chat model with fixed replies, in turn."""

    name = "says"

    def __init__(self, *replies):
        self.replies, self.asked = list(replies), []

    def complete(self, requests):
        self.asked += [request.messages[-1].content for request in requests]
        return [ChatReply((Choice(self.replies.pop(0)),), model=self.name) for _ in requests]


# --- text -------------------------------------------------------------------------------------------------------------


def test_the_prompt_has_the_published_form():
    text = prompts.open_ended("you see cow, and tree. you are targeting cow.", ("sleep", "eat"))
    parts = text.split("\n\n")
    assert len(parts) == 4 and parts[0].startswith("Valid actions: sleep, eat\n")
    assert parts[1].endswith("What do you do?\n- Eat plant\n- Chop tree\n- Attack skeleton")
    assert parts[3] == "You see cow, and tree. You are targeting cow. What do you do?\n"
    request = prompts.request("you see cow.", ("eat",), {"temperature": 0.1, "max_tokens": 200})
    assert (request.temperature, request.max_tokens, request.stop) == (0.1, 200, ("\n\n",))


@pytest.mark.parametrize(
    ("reply", "lines", "paper"),
    [
        ("- Chop tree\n- Eat cow.\n", ["chop tree", "eat cow"], ["chop tree", "eat cow"]),
        ("- Chop tree\n- chop tree\n```", ["chop tree"], ["chop tree"]),
        ("Sure:\n1. Chop  tree\n* Eat cow", ["chop tree", "eat cow"], None),
        ("- **Chop tree**\n- __Eat cow__.\n- *", ["chop tree", "eat cow"], ["**chop tree**", "__eat cow__", "*"]),
        ("* *Chop tree*\n* **Eat cow.**", ["chop tree", "eat cow"], None),
        ("So:\n- **Chop** the `tree`\n-mine\n---\n- place_table", ["chop the tree", "mine", "place_table"], None),
        ("- Make well-made sword", ["make well-made sword"], ["make well", "made sword"]),
        ("chop the tree", None, None),
        ("", None, None),
    ],
)
def test_replies(reply, lines, paper):
    assert prompts.read_goals(reply) == lines
    assert prompts.read_goals(reply, "paper") == paper


def test_the_scripted_adviser_reads_the_prompt():
    ask = lambda key: prompts.request(SPEC.describe(key), SPEC.verbs, {})  # noqa: E731
    replies = ScriptedSuggester(SPEC).complete([ask(WOOD_HERE), ask(EMPTY_END), ask(2)])
    assert [prompts.read_goals(r.text) for r in replies] == [
        ["chop tree", "place table"],
        ["drink water"],
        ["do nothing"],
    ]


def test_states_that_are_asked_about_are_not_chosen_by_their_inventories():
    """The upper bits of Crafter's keys are the inventory."""
    keys = jnp.concatenate([jnp.arange(8), jnp.arange(8) + (1 << 28), jnp.arange(4), jnp.full(4, g.NO_KEY)])
    chosen, left = g.distinct(keys.astype(jnp.uint32), 8)
    assert len(set(chosen.tolist())) == 8 and left == 8 and set(chosen.tolist()) < set(keys.tolist())
    assert 2 <= sum(key >= 1 << 28 for key in chosen.tolist()) <= 6 and g.NO_KEY not in chosen.tolist()
    few, left = g.distinct(jnp.array([7, g.NO_KEY, 7, 3], jnp.uint32), 4)
    assert sorted(few.tolist()) == [3, 7, g.NO_KEY, g.NO_KEY] and left == 0


# --- the host's part --------------------------------------------------------------------------------------------------


def asker(model, per_state=2):
    return Asker(SPEC, HashedEncoder(), model, {}, per_state)


def asked(*keys, size=4, most=12):
    start = g.start_goals(NAMES, (), HashedEncoder(), most)
    row = np.array([*keys, *[g.NO_KEY] * (size - len(keys))], np.uint32)
    return {"keys": row, "names": np.asarray(start.names), "count": np.asarray(start.count)}


def counts_of(answer):
    return dict(zip(g.COUNTS, answer["counts"].tolist(), strict=True))


def test_an_answer_by_hand():
    model = Says("- Chop tree\n- Cut tree\n- Drink water", "no bullets", "- Cut tree\n- Fly\n- " + "x" * 70)
    answer = asker(model).answer(asked(0, 1, 2))
    new = len(NAMES)
    assert answer["goals"].tolist() == [[CHOP, new], [-1, -1], [new, new + 1], [-1, -1]]
    assert counts_of(answer) == {
        "asked": 3, "malformed": 2, "no_place_for_goals": 1, "no_place_for_states": 0, "not_collected": 0,
    }  # fmt: skip
    assert int(answer["count"]) == new + 2
    assert g.read_names(answer["names"][new:], 2) == ["cut tree", "fly"]
    vectors = HashedEncoder().encode_texts([*NAMES, "cut tree"])
    np.testing.assert_allclose(answer["similarity"][:, new], vectors[:-1] @ vectors[-1], atol=1e-6)
    assert not answer["similarity"][:, :new].any() and not answer["similarity"][:, new + 2 :].any()
    assert len(model.asked) == 3 and "You see cell 1." in model.asked[1]


def test_goals_beyond_the_capacity_are_counted():
    answer = asker(Says("- one\n- two\n- three\n- four"), per_state=8).answer(asked(0, most=len(NAMES) + 3))
    assert counts_of(answer)["no_place_for_goals"] == 1 and int(answer["count"]) == len(NAMES) + 3


@pytest.mark.parametrize("garbage", ["drink water\0", "fly\ud800", "fly\x1b[2J"])
def test_goals_that_are_no_text_are_counted(garbage):
    """A zero would read back as the goal without it; a half of a surrogate pair has no UTF-8."""
    answer = asker(Says(f"- {garbage}\n- swim")).answer(asked(0))
    assert answer["goals"][0].tolist() == [len(NAMES), -1] and int(answer["count"]) == len(NAMES) + 1
    assert counts_of(answer)["malformed"] == 1


def test_the_answer_depends_on_the_request_only():
    """A new process that is asked the same gives goals the same ids."""
    request = asked(0, 1)
    first = asker(Says("- fly", "- swim")).answer(request)
    again = asker(Says("- fly", "- swim")).answer(request)
    for name, x in first.items():
        np.testing.assert_array_equal(again[name], x)
    nothing = asker(Says()).answer(asked())
    assert counts_of(nothing)["asked"] == 0 and (nothing["goals"] == -1).all()


def test_an_exhausted_budget_is_an_error():
    model = Budgeted(Says("- fly", "- swim"), Budget(calls=1))
    with pytest.raises(BudgetExceeded, match="1 of 1 calls"):
        asker(model).answer(asked(0, 1))


# --- the device's part ------------------------------------------------------------------------------------------------


def learner_state(at_once=4):
    start = g.start_goals(NAMES, (), HashedEncoder(), 12)
    params = SimpleNamespace(goals=start, answers=g.start_answers(8, 2, at_once))
    obs = {"key": jnp.array([5, 6], jnp.uint32), "known": jnp.array([False, True])}
    return params, UnansweredKeys(at_once).init(jax.random.key(0), obs)


def test_collected_keys():
    bonus = UnansweredKeys(4)
    _, state = learner_state()
    assert np.asarray(state.whole["keys"]).tolist() == [5, *[g.NO_KEY] * 3]
    keys = jnp.array([[3, 5], [2, 9], [9, 8]], jnp.uint32)
    known = jnp.array([[False, False], [True, False], [False, False]])
    reward = jnp.arange(6.0).reshape(3, 2)
    steps = Transitions({"key": keys, "known": known}, (), reward, (), reward > 9, reward > 9)
    after, same, metrics = bonus.reward(state, steps, 0.9)
    assert sorted(after.whole["keys"].tolist()) == [3, 5, 8, 9] and int(after.whole["lost"]) == 0
    np.testing.assert_array_equal(same, reward)
    assert float(metrics["states_to_ask"]) == 4
    more = steps.replace(obs={"key": keys + 100, "known": jnp.zeros(keys.shape, bool)})
    assert int(bonus.reward(after, more, 0.9)[0].whole["lost"]) == 5  # 102, 103, 105, 108, 109


def test_a_state_that_is_being_asked_about_is_not_collected_again():
    """It would take the place of another one, and `ask_next` would then drop it."""
    config = EllmConfig(suggester="chat", goals=ChatGoals(at_once=2, max_states=4))
    params, env = SPEC.params(config, HashedEncoder()), Yard()
    obs = env.reset(jax.random.key(0), env.default_params)[0]
    start, key = SPEC.start((), params), jax.random.key(0)
    suggest = jax.jit(lambda params: SPEC.suggest(RewardRules("chat"), obs, start, params, key))
    pending = params.replace(answers=params.answers.replace(pending=jnp.array([obs["key"], g.NO_KEY], jnp.uint32)))
    (_, _, before), (state, goals, after) = suggest(params), suggest(pending)
    assert (bool(before), bool(after)) == (False, True)
    assert int(state.unknown) == 1 and not bool(goals.any())


def test_the_first_state_of_every_episode_is_collected():
    """The agent acts in it, but not in the state that ends an episode. The second episode begins at 4, with an update;
    the third at 7, within one."""
    seen = lambda *keys: {"key": jnp.array(keys, jnp.uint32)[:, None], "known": jnp.zeros((len(keys), 1), bool)}  # noqa: E731
    bonus = UnansweredKeys(8)
    state = bonus.init(jax.random.key(0), jax.tree.map(lambda x: x[0], seen(1)))
    zeros = jnp.zeros((2, 1))
    for obs, reached, ended in ((seen(1, 2), seen(2, 3), (0, 1)), (seen(4, 7), seen(5, 8), (1, 0))):
        done = jnp.array(ended, bool)[:, None]
        state = bonus.reward(state, Transitions(obs, zeros, zeros, reached, done, done & False), 0.9)[0]
    assert sorted(state.whole["keys"].tolist())[:5] == [1, 2, 4, 7, g.NO_KEY]


def test_exchanges_fill_the_table():
    """What is collected before one exchange is answered at the next, and asked once."""
    from flax import struct

    @struct.dataclass
    class Params:
        goals: object
        answers: object

    @struct.dataclass
    class Runner:
        env_params: object

    @struct.dataclass
    class State:
        runner: object
        bonus: object

    params, bonus = learner_state()
    state = State(Runner(Params(params.goals, params.answers)), bonus)
    model = Says("- Drink water\n- Cut tree")
    swap = exchange(asker(model), 2)
    request, take = jax.jit(swap.request), jax.jit(swap.take)

    def one(state):
        return take(state, swap.answer({name: np.asarray(x) for name, x in request(state).items()}))

    state = one(state)
    assert model.asked == [] and np.asarray(state.runner.env_params.answers.pending)[0] == 5
    assert not np.any(np.asarray(state.bonus.whole["keys"]) != g.NO_KEY)
    state = state.replace(bonus=bonus)  # the same key is met again while it is being answered
    state = one(state)
    after = state.runner.env_params
    place, known = g.find(after.answers, jnp.uint32(5))
    assert bool(known) and after.answers.goals[place].tolist() == [DRINK, len(NAMES)]
    assert int(after.goals.count) == len(NAMES) + 1 and int(after.goals.nearest[len(NAMES)]) == CHOP
    assert np.all(np.asarray(after.answers.pending) == g.NO_KEY) and len(model.asked) == 1
    state = one(state)
    assert int(state.runner.env_params.answers.counts[0]) == 1 and len(model.asked) == 1


# --- the table of suggestions -----------------------------------------------------------------------------------------


def keys(*numbers, size):
    return jnp.asarray(np.array([*numbers, *[g.NO_KEY] * (size - len(numbers))], np.uint32))


def test_the_table_is_a_dict():
    """Random insertions in small groups, looked up after each."""
    rng = np.random.default_rng(0)
    table, known = g.start_answers(24, 2, 4), {}
    insert, find, ask_next = jax.jit(g.insert), jax.jit(g.find), jax.jit(g.ask_next)
    universe = rng.integers(0, 2**32 - 1, 40, dtype=np.uint32)
    for _ in range(12):
        met = rng.choice(universe, 4, replace=False)
        table = ask_next(table, jnp.sort(jnp.asarray(met)))
        asked = [int(k) for k in np.asarray(table.pending) if k != g.NO_KEY]
        room = 24 - len(known)
        wanted = sorted(int(k) for k in met if int(k) not in known)
        assert sorted(asked) == wanted[:room]
        answers = np.array([[int(k) % 7, -1] for k in np.asarray(table.pending)], np.int32)
        table = insert(table, table.pending, jnp.asarray(answers))
        known |= {k: k % 7 for k in asked}
        place, found = find(table, jnp.asarray(universe))
        np.testing.assert_array_equal(np.asarray(found), [int(k) in known for k in universe])
        for k, at, there in zip(universe, np.asarray(place), np.asarray(found)):
            assert not there or int(table.goals[at, 0]) == known[int(k)]
    assert len(known) == 24  # it is full, and what had no place is counted
    lost = int(table.counts[g.COUNTS.index("no_place_for_states")])
    assert lost > 0
    assert not bool(find(table, jnp.uint32(g.NO_KEY))[1])


def test_distinct_keys_by_hand():
    found, lost = jax.jit(g.distinct, static_argnums=1)(keys(7, 3, 7, 9, 3, 1, size=8), 3)
    assert len(set(found.tolist()) & {1, 3, 7, 9}) == 3 and int(lost) == 1
    found, lost = jax.jit(g.distinct, static_argnums=1)(keys(5, 5, size=3), 6)
    assert np.asarray(found).tolist() == [5, *[g.NO_KEY] * 5] and int(lost) == 0


def test_goals_begin_with_captions():
    captions = ("chop tree", "eat cow", "attack cow")
    made = g.start_goals(captions, (("attack cow", "eat cow"), ("no", "such")), HashedEncoder(), 5)
    assert g.read_names(made.names, int(made.count)) == list(captions)
    np.testing.assert_allclose(np.diag(made.similarity[:, :3]), 1.0, atol=1e-6)
    vectors = HashedEncoder().encode_texts(captions)
    np.testing.assert_allclose(made.similarity[1, 2], vectors[1] @ vectors[2], atol=1e-6)
    assert np.asarray(made.twin).tolist() == [-1, 2, 1, -1, -1]
    assert np.asarray(made.nearest[:3]).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="max_goals.*2"):
        g.start_goals(captions, (), HashedEncoder(), 2)


def test_names_survive_as_bytes():
    names = ["chop tree", "trouver l'épée"]
    rows = np.stack([g.name_bytes(name) for name in names])
    assert g.read_names(rows, 2) == names
    with pytest.raises(ValueError, match="65 bytes.*64"):
        g.name_bytes("x" * 65)
