"""The language model as the optimizer: what is asked, what becomes of replies, what is recorded, and resuming."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.chat import ContextExceeded, ScriptedAdviser, ServerError
from llmrl_jax.systems.props.build import Polished
from llmrl_jax.systems.props.llm import EvoLLM, LanguageModelOptimizer
from llmrl_jax.systems.props.optimizers import CEM, make_numeric
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import Format, HistoryView, ProposalPrompt, Transition
from llmrl_jax.systems.props.proposals import Grammar, NoProposal, QuerySettings
from tests.props_says import Says, run


TWO = Policy("linear_nobias", 2, 1, False)
KEY = jax.random.key(0)


ONCE_MORE = QuerySettings(retries=1)


def optimizer(*replies, proposals=1, query=ONCE_MORE, warmup=2, **options):
    prompt = ProposalPrompt(TWO, 9, proposals=proposals)
    return LanguageModelOptimizer(Says(*replies), prompt, query=query, warmup=warmup, **options)


def warm(opt, values=(1.0, 2.0), **told):
    params, state = opt.ask(opt.init(KEY))
    return params, opt.tell(state, params, jnp.array(values), **told)


def test_an_iteration():
    opt = optimizer("params[0]: 1.5; params[1]: -2\nA guess.")
    first, state = warm(opt)
    assert np.array_equal(first, TWO.sample(jax.random.fold_in(KEY, 0), 2)) and state.rounds == 1
    params, state = opt.ask(state)
    assert params.tolist() == [[1.5, -2.0]] and params.dtype == jnp.float32
    (request,) = opt.model.asked
    prompt = request.messages[0].content
    assert [message.role for message in request.messages] == ["user"] and request.max_tokens == 2048
    for row, value in zip(first.tolist(), (1.0, 2.0)):
        assert f"{Format().params(row)}; f(params): {value:.2f}" in prompt
    assert "Iteration 1 of 9." in prompt
    record = state.record
    assert record == json.loads(json.dumps(record))
    assert (record["optimizer"], record["iteration"], record["model"]) == ("props", 1, "says")
    assert record["outcome"] == "proposed" and record["proposals"] == [[1.5, -2.0]]
    assert record["prompt"] == [{"role": "user", "content": prompt}] and record["explanation"] == "A guess."
    (attempt,) = record["attempts"]
    assert attempt["usage"]["prompt_tokens"] == 100 and attempt["seconds"] == 0.5 and attempt["problems"] == []
    state = opt.tell(state, params, jnp.array([9.0]))
    assert [row.value for row in state.rows] == [1.0, 2.0, 9.0] and state.record is None


def test_reasons_are_fed_back_and_recorded():
    opt = optimizer("params[0]: 7; params[1]: 0", "params[0]: 6; params[1]: 0")
    _, state = warm(opt)
    params, state = opt.ask(state)
    assert params.tolist() == [[6.0, 0.0]]
    said = opt.model.asked[1].messages
    assert [message.role for message in said] == ["user", "assistant", "user"]
    assert "could not be read: params[0] is 7, outside of [-6, 6]" in said[2].content
    problems = [[p["reason"] for p in attempt["problems"]] for attempt in state.record["attempts"]]
    assert problems == [["range"], []]


def test_a_model_that_repeats_itself_is_told():
    opt = optimizer(*["params[0]: 1; params[1]: 1"] * 3)
    _, state = warm(opt)
    params, state = opt.ask(state)
    state = opt.tell(state, params, jnp.array([3.0]))
    params, state = opt.ask(state)
    assert params.shape == (0, 2) and state.record["outcome"] == "skipped"
    assert {a["problems"][0]["reason"] for a in state.record["attempts"]} == {"repeated"}


def test_several_proposals_and_what_is_left_of_them():
    good = "params[0]: 1; params[1]: 1\nparams[0]: 2; params[1]: 2"
    opt = optimizer(good, proposals=2)
    _, state = warm(opt)
    assert opt.ask(state)[0].tolist() == [[1, 1], [2, 2]]
    opt = optimizer("params[0]: 1; params[1]: 1", "no", proposals=2)
    _, state = warm(opt)
    params, state = opt.ask(state)
    assert params.tolist() == [[1, 1]] and state.record["outcome"] == "partial"


def test_failing_has_a_named_end():
    def fail(on_failure, failures=10):
        opt = optimizer(*["no"] * 8, query=QuerySettings(retries=1, on_failure=on_failure, failures=failures))
        return opt, warm(opt)

    opt, (first, state) = fail("skip", failures=1)
    params, state = opt.ask(state)
    assert params.shape == (0, 2) and state.record["outcome"] == "skipped" and len(opt.model.asked) == 2
    state = opt.tell(state, params, jnp.zeros(0))
    assert state.rounds == 2 and len(state.rows) == 2 and state.failures == 1
    with pytest.raises(NoProposal, match="says.*iteration 2.*1 retries.*1 failed"):
        opt.ask(state)

    opt, (first, state) = fail("repeat")
    params, state = opt.ask(state)
    assert np.array_equal(params[0], first[1]) and state.record["outcome"] == "repeated"  # the best
    state = opt.tell(state, params, jnp.array([2.5]))
    assert state.failures == 1 and len(state.rows) == 3

    opt, (_, state) = fail("stop")
    with pytest.raises(NoProposal, match=r"iteration 1\b") as caught:
        opt.ask(state)
    assert caught.value.record["outcome"] == "stopped" and len(caught.value.record["attempts"]) == 2


def test_retries_end_where_they_do_not_fit_any_more():
    class Small(Says):
        """Answers one prompt, and has no room for what comes behind it."""

        def complete(self, requests):
            (request,) = requests
            if len(request.messages) > 1:
                raise ContextExceeded("400 tokens, and the context is 320")
            return super().complete(requests)

    query = QuerySettings(retries=4, failures=1)
    opt = LanguageModelOptimizer(Small("no", "no", "params[0]: 1; params[1]: 1"), ProposalPrompt(TWO), query=query)
    _, state = warm(opt, values=(1.0,) * opt.warmup)
    params, state = opt.ask(state)
    assert params.shape == (0, 2) and state.record["outcome"] == "skipped" and len(state.record["attempts"]) == 1
    assert state.record["retries_ended"] == "400 tokens, and the context is 320"
    state = opt.tell(state, params, jnp.zeros(0))
    with pytest.raises(NoProposal):
        opt.ask(state)

    class Smaller(Small):
        def complete(self, requests):
            raise ContextExceeded("never")

    opt = LanguageModelOptimizer(Smaller(), ProposalPrompt(TWO), warmup=0)
    with pytest.raises(ContextExceeded, match="never"):
        opt.ask(opt.init(KEY))


def test_a_server_s_error_passes_through():
    class Down:
        name = "down"

        def complete(self, requests):
            raise ServerError("down")

    opt = LanguageModelOptimizer(Down(), ProposalPrompt(TWO), warmup=0)
    with pytest.raises(ServerError):
        opt.ask(opt.init(KEY))


def test_other_keys_are_other_draws():
    opt = optimizer(*["params[0]: 1; params[1]: 1"] * 3, warmup=0)
    for key in (KEY, KEY, jax.random.key(1)):
        opt.ask(opt.init(key))
    seeds = [request.seed for request in opt.model.asked]
    assert seeds[0] == seeds[1] != seeds[2]


def test_episodes_are_shown_where_the_view_says_so():
    episodes = [(Transition((0.5, 1.0), (2.0,), -1.0),), None]
    opt = optimizer("params[0]: 1; params[1]: 1", view=HistoryView(trajectory_steps=5))
    _, state = warm(opt, trajectories=episodes)
    opt.ask(state)
    text = opt.model.asked[0].messages[0].content
    assert "state | action | reward\n0.5, 1 | 2 | -1\n" in text and "under it an episode" in text


def test_what_is_told_is_checked():
    opt = optimizer()
    params, state = opt.ask(opt.init(KEY))
    with pytest.raises(ValueError, match=r"\(2, 3\).*\[P, 2\]"):
        opt.tell(state, jnp.zeros((2, 3)), jnp.zeros(2))
    with pytest.raises(ValueError, match="not finite"):
        opt.tell(state, params, jnp.array([1.0, jnp.nan]))
    with pytest.raises(ValueError, match="1 trajectories.*2"):
        opt.tell(state, params, jnp.zeros(2), trajectories=[None])
    opt, (_, state) = (opt := optimizer()), warm(opt)
    for _ in range(9):
        state = opt.tell(state, jnp.zeros((0, 2)), jnp.zeros(0))
    with pytest.raises(ValueError, match="iteration 10.*9"):
        opt.ask(state)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"grammar": Grammar(3, -6, 6, 1)}, "1 proposals.*2 parameters.*1.*3"),
        ({"query": QuerySettings(max_tokens=5)}, "max_tokens.*5"),
        ({"warmup": -1}, "warmup.*-1"),
    ],
)
def test_settings_that_contradict_each_other(options, match):
    with pytest.raises(ValueError, match=match):
        optimizer(**options)


class Drifts(ScriptedAdviser):
    """Draws integers or numbers in the prompt's form; seldom nonsense."""

    def advise(self, messages, rng):
        if rng.random() < 0.2:
            return "I cannot."
        top = 500 if "[0, 500]" in messages[0].content else 6
        return "; ".join(f"params[{i}]: {rng.randint(0, top)}" for i in range(2))


CMA = {"population": 4}


TABLE = Policy("table", 2, 8, True, 0.0, 7.0, 0, "box")


@pytest.mark.parametrize(
    "opt",
    [
        LanguageModelOptimizer(
            Drifts(), ProposalPrompt(TWO), warmup=3, query=QuerySettings(retries=0, on_failure="repeat")
        ),
        pytest.param(
            EvoLLM(Drifts(), TWO, resolution=500, warmup=3, block=0, query=QuerySettings(retries=0)),
            marks=pytest.mark.slow,
        ),
        EvoLLM(Drifts(), TABLE, warmup=3, query=QuerySettings(retries=0)),
        Polished(LanguageModelOptimizer(Drifts(), ProposalPrompt(TWO), warmup=3), make_numeric("cem", TWO), rounds=2),
    ],
    ids=["props", "evollm", "evollm-table", "polished"],
)
def test_a_run_resumes_from_its_log(opt):
    whole, log = [], []
    run(opt, opt.init(KEY), 7, whole)
    run(opt, opt.init(KEY), 4, log)
    state = opt.init(KEY)
    for params, values, record in log:
        params = jnp.asarray(params, jnp.float32).reshape(-1, 2)
        state = opt.replay(state, params, jnp.asarray(values, jnp.float32), record)
    run(opt, state, 3, log)
    assert log == whole


def test_evollm_by_hand():
    model = Says("params[0]: 100; params[1]: 50", "params[0]: 0")
    policy = Policy("linear_nobias", 3, 1, False, low=-1.0, high=1.0, decimals=2)
    opt = EvoLLM(model, policy, population=4, std=0.1, resolution=100, block=2, warmup=3)
    params, state = opt.ask(opt.init(KEY))
    params = jnp.array([[1.0, 0.0, -1.0], [0.5, 0.5, 0.5], [-1.0, -1.0, 0.0]])
    state = opt.tell(state, params, jnp.array([5.0, 1.0, 2.0]))
    found, state = opt.ask(state)
    first, second = (request.messages[0].content for request in model.asked)
    lines = [line for line in first.splitlines() if "f(params): " in line and line.startswith("params")]
    assert lines == [
        "params[0]: 75; params[1]: 75; f(params): 1.00",
        "params[0]: 0; params[1]: 0; f(params): 2.00",
        "params[0]: 100; params[1]: 50; f(params): 5.00",
    ]
    assert "params[0]: 75; f(params): 1.00" in second and "block 2 of 2" in second
    assert "should be 8.00 or more" in first  # 5 + (5 - 2)
    assert found.shape == (4, 3) and found[0].tolist() == [1.0, 0.0, -1.0]
    assert state.record["mean"] == [1.0, 0.0, -1.0] and len(state.record["blocks"]) == 2
    assert float(jnp.abs(found).max()) <= 1.0 and np.allclose(found, np.round(found, 2))
    assert len({tuple(row) for row in found.tolist()}) == 4


def test_evollm_on_a_table():
    table = Policy("table", 3, 4, True, 0.0, 3.0, 0, "box")
    opt = EvoLLM(Says("params[0]: 3; params[1]: 0; params[2]: 1"), table, std=0.2, warmup=2)
    params, state = opt.ask(opt.init(KEY))
    found, _ = opt.ask(opt.tell(state, params, jnp.zeros(2)))
    assert "[0, 3]" in opt.model.asked[0].messages[0].content
    assert found[0].tolist() == [3.0, 0.0, 1.0] and set(found.ravel().tolist()) <= {0.0, 1.0, 2.0, 3.0}


@pytest.mark.slow
def test_a_generation_on_a_table_differs_from_its_mean():
    table = Policy("table", 8, 4, True, 1.0, 3.0, 0, "box")  # a box that is narrower than the actions
    reply = "; ".join(f"params[{i}]: {i % 3}" for i in range(8))  # integers of the grid, 0 for action 1
    opt = EvoLLM(Says(*[reply] * 40), table, warmup=2)
    params, state = opt.ask(opt.init(KEY))
    state = opt.tell(state, params, jnp.zeros(2))
    generations, same = [], opt.ask(state)[0]
    for _ in range(30):
        found, asked = opt.ask(state)
        generations.append(np.asarray(found))
        state = opt.tell(asked, found, jnp.zeros(5))
    assert np.array_equal(generations[0], same)  # the key's
    drawn = np.stack(generations)
    assert (drawn[:, 0] == 1 + np.arange(8) % 3).all() and set(np.unique(drawn)) == {1.0, 2.0, 3.0}
    changed = (drawn[:, 1:] != drawn[:, :1]).sum(axis=2)
    assert changed.min() == 1 and 1.1 < changed.mean() < 1.7  # 1 + 7 * 0.05
    assert all(len(np.unique(found, axis=0)) == 5 for found in drawn)
    alone = EvoLLM(Says(reply), table, population=1, warmup=2)
    assert alone.ask(opt.tell(alone.ask(alone.init(KEY))[1], params, jnp.zeros(2)))[0].shape == (1, 8)
    crowd = EvoLLM(Says(reply), table, population=30, warmup=2)  # more members than entries
    found = np.asarray(crowd.ask(opt.tell(crowd.ask(crowd.init(KEY))[1], params, jnp.zeros(2)))[0])
    assert (found[1:] != found[0]).any(axis=1).all()


def test_evollm_needs_a_return():
    opt = EvoLLM(Says(), TWO, warmup=3)
    _, state = opt.ask(opt.init(KEY))
    state = opt.tell(state, jnp.zeros((0, 2)), jnp.zeros(0))  # those that were not finite are not told
    with pytest.raises(ValueError, match="3 policies"):
        opt.ask(state)


def test_polishing_starts_at_the_best_proposal_and_reports_back():
    proposer = optimizer("params[0]: 1; params[1]: 1\nparams[0]: 2; params[1]: 2", proposals=2, warmup=0)
    opt = Polished(proposer, CEM(TWO, population=3, elite=1, std=0.001, extra_std=1e-6), rounds=2)
    params, state = opt.ask(opt.init(KEY))
    state = opt.tell(state, params, jnp.array([1.0, 5.0]))
    for round_, values in enumerate(([1.0, 2.0, 6.0], [3.0, 2.0, 1.0])):
        near, state = opt.ask(state)
        assert float(jnp.abs(near - 2.0).max()) < 0.05 and state.record["outcome"] == "polish"
        best = near[2] if round_ == 0 else best
        state = opt.tell(state, near, jnp.array(values))
    assert [row.value for row in state.proposer.rows] == [1.0, 5.0, 6.0]
    assert state.proposer.rows[-1].params == tuple(best.tolist()) and state.left == 0 and state.cycle == 1
    assert opt.name == "props, then cem"
