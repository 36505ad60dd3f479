"""Prices and budgets, with sums worked out by hand."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from llmrl_jax.chat import (
    Budget,
    Budgeted,
    BudgetExceeded,
    Cached,
    CacheError,
    ChatError,
    ChatReply,
    ChatRequest,
    Choice,
    Message,
    Price,
    Recorder,
    ServerError,
    Spent,
    Usage,
    cost,
    load_prices,
)
from llmrl_jax.chat.budget import prompt_bound
from llmrl_jax.chat.protocol import settle


PRICES = {"m": Price(input=2.0, output=8.0, cached_input=0.5)}


def ask(text="four", **fields):
    return ChatRequest((Message("user", text),), **{"max_tokens": 30, **fields})


class Model:
    """Takes 5 tokens for every prompt and 3 for every sample, unless told otherwise."""

    name = "m"

    def __init__(self, outcome=None):
        self.asked: list[ChatRequest] = []
        self.outcome = outcome

    def complete(self, requests):
        self.asked += requests
        outcomes = [self.outcome or ChatReply((Choice("x"),) * r.n, "m-dated", Usage(5, 3 * r.n)) for r in requests]
        return settle(outcomes)


def test_costs_by_hand():
    # 600 fresh prompt tokens at 2, 400 cached ones at 0.5, 100 of completion at 8, per million
    assert cost(Usage(1000, 100, 400), "m", PRICES) == pytest.approx((1200 + 200 + 800) / 1e6)
    assert cost(Usage(1000, 100, 400), "m", {"m": Price(2.0, 8.0)}) == pytest.approx(2800 / 1e6)
    assert cost(Usage(1000, 100), "m", {"m": Price(0, 0)}) == 0


def test_what_is_not_known_costs_none_and_not_nothing():
    assert cost(Usage(1, 1), "m-dated", PRICES) is None
    assert cost(None, "m", PRICES) is None


def test_the_table_is_extended_by_a_file(tmp_path):
    assert load_prices()["gpt-4o-mini"] == Price(0.15, 0.6, 0.075)
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"prices": {"local": {"input": 0, "output": 0}, "gpt-4o": {"input": 9, "output": 9}}}))
    prices = load_prices(mine)
    assert prices["local"] == Price(0, 0) and prices["gpt-4o"] == Price(9, 9) and "o3" in prices
    for text, match in (
        ('{"prices": {"x": {"input": 1}}}', "price of 'x'"),
        ('{"prices": {"x": {"input": -1, "output": 1}}}', "-1 USD"),
        ('{"prices": {"x": 3}}', "price of 'x'"),
        ('{"x": {"input": 1, "output": 1}}', r"mine\.json.*prices"),
        ("[1]", r"mine\.json.*prices"),
        ("{", "mine.json.*JSON"),
    ):
        mine.write_text(text)
        with pytest.raises(ValueError, match=match):
            load_prices(mine)


def test_the_bound_of_a_prompt_counts_bytes():
    assert prompt_bound(ask("Grüße")) == 7 + 16 + 64
    assert prompt_bound(ask("Grüße").with_messages(Message("assistant", "ja"))) == 7 + 2 + 2 * 16 + 64


def test_the_bound_of_a_prompt_leaves_room_for_the_message_that_a_template_adds():
    """SmolLM2's puts a system message of 21 tokens before a conversation without one: "hi" has 31 tokens."""
    assert prompt_bound(ask("hi")) >= 31


def test_calls_are_counted_and_stop():
    model, budget = Model(), Budget(calls=2)
    budgeted = Budgeted(model, budget)
    budgeted.complete([ask()])
    with pytest.raises(BudgetExceeded, match="2.*2 calls.*1") as caught:
        budgeted.complete([ask("a"), ask("b"), ask("c")])
    kept = caught.value.outcomes
    assert kept[0].text == "x" and all(isinstance(k, BudgetExceeded) for k in kept[1:])
    assert len(model.asked) == 2 and budget.spent == Spent(2, 16, None)


def test_tokens_are_set_aside_before_and_counted_after():
    """A request can take 4 + 16 + 64 of prompt and 30: 114. It takes 8. So 122 tokens allow two, and 121 allow one."""
    for limit, allowed in ((113, 0), (114, 1), (121, 1), (122, 2), (129, 2), (130, 3)):
        model, budget = Model(), Budget(tokens=limit)
        with pytest.raises(BudgetExceeded, match=f"{limit} tokens"):
            Budgeted(model, budget).complete([ask() for _ in range(4)])
        assert len(model.asked) == allowed and budget.spent.tokens == 8 * allowed <= limit


def test_a_tighter_count_allows_more():
    budget = Budget(tokens=35, count=lambda request: 5)
    assert Budgeted(Model(), budget).complete([ask()])[0].text == "x"


def test_dollars_by_hand():
    """At most 84 x 2 + 30 x 8 = 408 millionths; 5 x 2 + 3 x 8 = 34 are taken."""
    model, budget = Model(), Budget(usd=450e-6, prices=PRICES)
    with pytest.raises(BudgetExceeded, match="6.8e-05.*0.00045.*0.000408"):
        Budgeted(model, budget).complete([ask() for _ in range(4)])
    assert len(model.asked) == 2 and budget.report() == {"calls": 2, "tokens": 16, "usd": pytest.approx(68e-6)}


def test_dollars_need_a_price():
    with pytest.raises(ValueError, match="'m'.*price"):
        Budgeted(Model(), Budget(usd=1.0))
    budget = Budget(tokens=1000)
    Budgeted(Model(), budget).complete([ask()])
    assert budget.spent.usd is None
    with pytest.raises(ValueError, match="calls.*-1"):
        Budget(calls=-1)


@pytest.mark.parametrize(
    ("outcome", "tokens"),
    [
        (ChatReply((Choice("x"),), "m"), 114),  # no usage: the most it can have been
        (ChatReply((Choice("x"),), "m", Usage(5, 3), lost=2), 8 + 2 * 114),
        (ServerError("no", status=500), 0),
        (ServerError("cut", lost=1), 114),
    ],
)
def test_what_a_server_does_not_tell_counts_in_full(outcome, tokens):
    budget = Budget(tokens=1000)
    try:
        Budgeted(Model(outcome), budget).complete([ask()])
    except ServerError:
        pass
    assert (budget.spent.calls, budget.spent.tokens) == (1, tokens)


def test_an_interrupted_request_counts_in_full(tmp_path):
    class Interrupted(Model):
        def complete(self, requests):
            raise KeyboardInterrupt

    budget, again = Budget(tokens=1000), Budget(tokens=1000)
    with pytest.raises(KeyboardInterrupt):
        Recorder(Budgeted(Interrupted(), budget), tmp_path / "chat.jsonl").complete([ask(), ask()])
    assert (budget.spent.calls, budget.spent.tokens) == (2, 228)
    again.recall(tmp_path / "chat.jsonl")
    assert again.spent == budget.spent


def test_requests_that_an_interrupt_kept_from_being_sent_cost_nothing(tmp_path):
    class Second(Model):
        def complete(self, requests):
            if self.asked:
                raise KeyboardInterrupt
            return super().complete(requests)

    budget, again = Budget(tokens=250), Budget(tokens=250)  # 114 tokens at most each, so two at once
    with pytest.raises(KeyboardInterrupt):
        Recorder(Budgeted(Second(), budget), tmp_path / "chat.jsonl").complete([ask()] * 5)
    assert 2 < budget.spent.calls < 5
    again.recall(tmp_path / "chat.jsonl")
    assert again.spent == budget.spent


class Single(Model):
    """Asked for one sample at a time: three samples of 5 + 3 tokens are three calls; one attempt was lost."""

    splits = True

    def complete(self, requests):
        self.asked += requests
        replies = [ChatReply.join([Model().complete([ask()])[0]] * r.n) for r in requests]
        return [replace(reply, lost=1) for reply in replies]


def test_samples_that_are_asked_for_one_by_one_are_calls(tmp_path):
    """Of 8 calls, 3 and 3 are made, and 3 more do not fit; a lost attempt of one sample is 84 + 30 tokens at most."""
    path = tmp_path / "chat.jsonl"
    model, budget, again = Single(), Budget(calls=8), Budget(calls=8)
    with pytest.raises(BudgetExceeded, match="6 of 8 calls.*3"):
        Recorder(Budgeted(model, budget), path).complete([ask(n=3)] * 3)
    assert len(model.asked) == 2 and budget.spent == Spent(6, 2 * (3 * 8 + 114), None)
    again.recall(path)
    assert again.spent == budget.spent


@pytest.mark.parametrize(
    ("outcome", "tokens"),
    [
        (ChatReply((Choice("x"),) * 3, "m", calls=3), 3 * 114),
        (ServerError("no", status=500), 0),
        (ServerError("cut", lost=2), 2 * 114),
    ],
)
def test_calls_for_single_samples_that_fail_are_counted(tmp_path, outcome, tokens):
    path = tmp_path / "chat.jsonl"
    if isinstance(outcome, ServerError):
        outcome.calls = 3
    budget, again = Budget(), Budget()  # a model that does not say that it splits is counted afterwards
    try:
        Recorder(Budgeted(Model(outcome), budget), path).complete([ask(n=3)])
    except ServerError:
        pass
    again.recall(path)
    assert (budget.spent.calls, budget.spent.tokens) == (3, tokens) and again.spent == budget.spent


def test_an_interrupted_request_for_single_samples_counts_in_full(tmp_path):
    class Interrupted(Single):
        def complete(self, requests):
            raise KeyboardInterrupt

    budget, again = Budget(), Budget()
    with pytest.raises(KeyboardInterrupt):
        Recorder(Budgeted(Interrupted(), budget), tmp_path / "chat.jsonl").complete([ask(n=3)])
    assert (budget.spent.calls, budget.spent.tokens) == (3, 342)
    again.recall(tmp_path / "chat.jsonl")
    assert again.spent == budget.spent


def test_calls_of_samples_that_a_cache_holds_in_part(tmp_path):
    """Five samples in five calls, then three more: three calls."""
    cached, budget = Cached(Single(), tmp_path / "c"), Budget()
    Budgeted(cached, budget).complete([ask(n=5)])
    assert budget.spent.calls == 5
    Budgeted(cached, budget).complete([ask(n=8)])
    assert budget.spent.calls == 8


def test_what_a_cache_holds_is_free(tmp_path):
    budget = Budget(calls=1)
    cached = Cached(Budgeted(Model(), budget), tmp_path / "c")
    cached.complete([ask()])
    cached.complete([ask()])
    outside = Budget(calls=5)
    Budgeted(cached, outside).complete([ask()])
    assert budget.spent.calls == 1 and outside.spent == Spent()


def test_a_resumed_run_goes_on_counting():
    first = Budget(calls=3)
    Budgeted(Model(), first).complete([ask(), ask()])
    second = Budget(calls=3, spent=first.spent)
    with pytest.raises(BudgetExceeded):
        Budgeted(Model(), second).complete([ask(), ask()])
    assert second.spent.calls == 3


def test_a_recording_says_what_was_spent(tmp_path):
    path = tmp_path / "chat.jsonl"
    budget = Budget(calls=5, prices=PRICES)
    outcomes = [
        None,
        ChatReply((Choice("x"),), "m"),
        ChatReply((Choice("x"),), "m", Usage(5, 3), lost=2),
        ServerError("no", status=500),
        ServerError("cut", lost=1),
        None,  # the sixth: beyond the budget, so not sent
    ]
    for outcome in outcomes:
        try:
            Recorder(Budgeted(Model(outcome), budget), path).complete([ask()])
        except ChatError:
            pass
    again = Budget(calls=5, prices=PRICES)
    again.recall(path)
    assert again.spent.calls == budget.spent.calls == 5 and again.spent.tokens == budget.spent.tokens
    assert again.spent.usd == pytest.approx(budget.spent.usd) and again.spent.usd > 0
    with pytest.raises(BudgetExceeded):
        Budgeted(Model(), again).complete([ask()])
    path.write_text('{"model": "m"}\n')
    with pytest.raises(CacheError, match=r"line 1.*chat\.jsonl.*KeyError: 'request'"):
        again.recall(path)


def test_threads_never_pass_the_limit_together():
    """Each request can take 114 of 464 and takes 8, so 44 go through, however they interleave: 112 are then left."""
    budget, peak, lock = Budget(tokens=464), [0, 0], threading.Lock()

    class Watching(Model):
        def complete(self, requests):
            with lock:
                peak[0] += len(requests)
                peak[1] = max(peak)
            try:
                return super().complete(requests)
            finally:
                with lock:
                    peak[0] -= len(requests)

    model = Watching()

    def run():
        for _ in range(20):
            try:
                Budgeted(model, budget).complete([ask()])
            except BudgetExceeded:
                return

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(model.asked) == 44 and budget.spent.tokens == 352 and peak[1] <= 4
