"""The ladder of shapes: every request fits one of its programs, and these are compiled before the port opens."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random

import numpy as np
import pytest

from llmrl_jax.lm.sampling import NEUTRAL
from llmrl_jax.serve import Ask, Sampler, Sampling, Scorer
from llmrl_jax.serve.programs import PIECE, Ladder, Programs, per_row


pytest_plugins = ("tests.serving",)

COMPILER = "jax._src.interpreters.pxla"


def test_the_ladder_by_hand():
    ladder = Ladder(256, 4)
    assert ladder.lengths == [64, 128, 256]
    # several answers to a prompt have a length of their own: 64, 256, 1,024 ...
    rooms = {64: [64], 128: [64, 128], 256: [64, 256]}
    assert ladder.answers() == [
        (b, n, c, room)
        for c in (64, 128, 256)
        for b, n in ((1, 1), (4, 1), (1, 4))
        for room in (rooms[c] if n > 1 else [c])
    ]
    assert [Ladder(8192, 16).room(k, 16, 8192) for k in (16, 65, 257, 4096, 4097)] == [64, 256, 1024, 4096, 8192]
    assert Ladder(8192, 16).room(16, 1, 8192) == 8192
    assert Ladder(64, 16).fewer(16) == [1, 4] and Ladder(64, 6).fewer(6) == [1, 4] and Ladder(64, 16).fewer(4, 4) == [1]
    assert ladder.reads() == [(b, p) for p in (64, 128, 256) for b in (1, 4)]
    # at most 1,024 tokens of candidates in a piece, and of prompts
    each = [(1, 1, 8), (1, 4, 8), (4, 4, 8), (1, 1, 64), (1, 4, 64), (4, 4, 64)]
    assert ladder.scores() == [(rows, p, count, w) for p in (64, 128, 256) for rows, count, w in each]
    assert Ladder(300, 6).lengths == [64, 128, 256, 300] and Ladder(40, 1).lengths == [40]
    assert Ladder(40, 6).answers() == [(b, n, 40, 40) for b, n in ((1, 1), (4, 1), (6, 1), (1, 4), (1, 6))]
    counts = [len(Ladder(8192, 16).reads()), len(Ladder(8192, 16).answers()), len(Ladder(8192, 16).scores())]
    assert counts == [26, 96, 68]


class Recorder(Programs):
    """Notes shapes, and computes nothing."""

    def __init__(self, served, max_batch):
        super().__init__(served, max_batch)
        self.seen = {"read": set(), "answer": set(), "score": set()}

    def read(self, tokens, lengths, prefix=None):
        self.seen["read"].add(tokens.shape)
        self.shape = tokens.shape
        return np.zeros(1), None

    def start(self, tokens, lengths, keys, options, samples, room, logits, cache, prefix=None):
        self.seen["answer"].add((len(tokens), samples, tokens.shape[1], room))
        raise StopIteration

    def score(self, logits, cache, owners, candidates, counts):
        self.seen["score"].add((*self.shape, *candidates.shape))
        return np.zeros(candidates.shape)


@pytest.mark.parametrize(("context", "max_batch"), [(256, 4), (250, 6), (200, 16), (40, 1)])
def test_every_request_has_a_shape_of_the_ladder(served, context, max_batch):
    served = dataclasses.replace(served, context=context)
    programs = Recorder(served, max_batch)
    sampler, scorer = Sampler(served, max_batch, programs), Scorer(served, max_batch, programs)
    draw = random.Random(0)
    for _ in range(60):
        n, prompt = draw.randint(1, max_batch), draw.randint(1, context - 1)
        ask = Ask((1,) * prompt, Sampling(draw.randint(1, context - prompt), n=n))
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(sampler.run([ask] * draw.randint(1, sampler.capacity(ask))))
        prompts = [(1,) * draw.randint(1, context - 64) for _ in range(3)] if context > 64 else [(1,)]
        pairs = [
            scorer.pair(p, (k,) * draw.randint(1, min(64, context - len(p))))
            for p in prompts
            for k in range(draw.randint(1, 20))
        ]
        parts = list(scorer.run(pairs))
        assert [len(values) for part in parts for values in part] == [len(pair.candidate) for pair in pairs]
    ladder = programs.ladder
    assert programs.seen["read"] <= set(ladder.reads())
    assert programs.seen["answer"] <= set(ladder.answers())
    assert programs.seen["score"] <= set(ladder.scores())
    assert all(count * width <= max(PIECE, width) for _, _, count, width in programs.seen["score"])


@pytest.mark.slow
def test_several_answers_take_memory_for_their_own_length(served):
    """As for a prompt of 8,192 tokens with 16 answers of 16: room for 64 tokens each, not for 8,192."""
    programs = Programs(dataclasses.replace(served, context=128), 4)
    sampler = Sampler(served, 4, programs)
    shapes = []
    programs.advance = lambda state, *given: (
        shapes.append(state.cache.values[0].shape) or Programs.advance(programs, state, *given)
    )
    ask = Ask(tuple(range(3, 70)), Sampling(9, n=3, seed=4))
    found = list(sampler.run([ask]))[-1]
    assert len(found[0]) == 3 and all(sample.finish and 1 <= sample.count <= 9 for sample in found[0])
    assert shapes[0] == (4, 1, 64, 8)  # answers, heads, room, width, of the first layer
    alone = list(sampler.run([dataclasses.replace(ask, sampling=Sampling(9, seed=4))]))[-1]
    assert shapes[-1] == (1, 1, 128, 8) and alone[0][0] == found[0][0]


def test_prompts_are_computed_once_for_the_pieces_that_share_them(served):
    programs = Recorder(served, 4)
    reads = []
    programs.read = lambda tokens, lengths: reads.append(len(tokens)) or Recorder.read(programs, tokens, lengths)
    scorer = Scorer(served, 4, programs)
    parts = list(scorer.run([scorer.pair((1, 2), (k,)) for k in range(30)]))
    assert [len(part) for part in parts] == [4] * 7 + [2] and reads == [1]


def test_a_warm_server_compiles_nothing(served, caplog):
    served = dataclasses.replace(served, context=64)
    programs, lines = Programs(served, 1), []
    with caplog.at_level(logging.DEBUG, logger=COMPILER):
        assert programs.warm_up(lines.append) == len(lines) == 5
        names = [line.split("so far): ")[1] for line in lines]
        assert names == [
            "1 x prompts of 64 tokens",
            "1 x 1 answers of 64 tokens: the first token",
            "1 x 1 answers of 64 tokens",
            "1 candidates of 8 tokens after 1 x prompts of 64",
            "1 candidates of 64 tokens after 1 x prompts of 64",
        ]
        assert lines[2].startswith("compiling 3 of 5 (")
        sampler, scorer = Sampler(served, 1, programs), Scorer(served, 1, programs)
        caplog.clear()
        hows = [Sampling(9, seed=1), Sampling(30, temperature=0.0, top_k=5, stop=("x",)), Sampling(9, min_p=0.1)]
        for how in hows:
            assert list(sampler.run([Ask((3, 4), how)]))[-1][0][0].finish
        assert len(list(scorer.run([scorer.pair((3,), (4,) * n) for n in (1, 9, 40)]))) == 3
        compiled = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling")]
        assert not any(name in text for text in compiled for name in ("read_prompts", "start", "advance", "_score"))
    assert programs.count == 4


def test_options_of_rows_that_are_not_asked_for_are_greedy():
    options = per_row([NEUTRAL | {"top_k": 7, "temperature": 0.5}], 4)
    assert options["top_k"].tolist() == [7, 0, 0, 0] and options["top_k"].dtype == np.int32
    assert options["temperature"].tolist() == [0.5, 0, 0, 0]
    kinds = {name: value.dtype for name, value in options.items() if name != "top_k"}
    assert set(itertools.chain(kinds, ["top_k"])) == set(NEUTRAL) and set(kinds.values()) == {np.dtype(np.float32)}
