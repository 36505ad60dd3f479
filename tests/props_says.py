"""For the tests of optimizers: a chat model with given replies, and the loops of runs."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp

from llmrl_jax.chat import ChatReply, Choice, Usage
from llmrl_jax.systems.props.search import evaluate_centers, iterations_of, judge, make_search


class Says:
    """Chat model that gives the replies it was made with, and records the requests."""

    name = "says"

    def __init__(self, *replies):
        self.replies, self.asked = list(replies), []

    def complete(self, requests):
        self.asked += requests
        texts = [self.replies.pop(0) for _ in requests]
        return [ChatReply((Choice(text),), "says-1", Usage(100, 7), seconds=0.5) for text in texts]


def run(opt, state, rounds, log):
    """The loop of a run on f(x) = -|x|^2, which writes a log."""
    for _ in range(rounds):
        params, state = opt.ask(state)
        values = -jnp.sum(params**2, axis=1)
        log.append(json.loads(json.dumps([params.tolist(), values.tolist(), state.record])))
        state = opt.tell(state, params, values)
    return state


def search(optimizer, evaluate, key, *, budget, seeds=1, episodes=20, final_episodes=100):
    """A whole search by a numeric optimizer: its last state, its metrics `[I]`, and the returns of the best of each
    seed in fresh episodes `[S, F]`."""
    iterations = iterations_of(optimizer, budget, episodes)
    learner = make_search(optimizer, evaluate, seeds=seeds, episodes=episodes)
    state, metrics = jax.lax.scan(lambda state, _: learner.update(state), learner.init(key), length=iterations)
    state = evaluate_centers(optimizer, evaluate, state, episodes)
    return state, metrics, judge(evaluate, state, final_episodes)
