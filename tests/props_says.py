"""For the tests of optimizers that ask: a chat model that says what it is told to, and the loop of a run."""

from __future__ import annotations

import json

import jax.numpy as jnp

from llmrl_jax.chat import ChatReply, Choice, Usage


class Says:
    """A chat model that says what it is told to, and remembers what it was asked."""

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
