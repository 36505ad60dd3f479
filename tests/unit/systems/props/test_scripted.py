"""The scripted adviser: it reads the prompt alone, answers in its form, and searches well enough for demonstrations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.chat import ChatRequest, Message
from llmrl_jax.systems.props.compat.legacy import LegacyOptimizer
from llmrl_jax.systems.props.llm import EvoLLM, LanguageModelOptimizer
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import ProposalPrompt
from llmrl_jax.systems.props.proposals import QuerySettings
from llmrl_jax.systems.props.scripted import PolicyAdviser


ADVISER = PolicyAdviser()
CAR = Policy("linear", 2, 1, False)
TABLE = Policy("table", 16, 4, True, 0.0, 3.0, 0, "box")


def mountain_car(params, starts=20):
    """Mean returns of linear policies, by Gymnasium's equations in NumPy: float `[P, 3]` -> `[P]`."""
    w = np.asarray(params, np.float64)[:, :, None]
    position = np.tile(np.linspace(-0.6, -0.4, starts), (len(w), 1))
    velocity, total, over = np.zeros_like(position), np.zeros_like(position), np.zeros(position.shape, bool)
    for _ in range(999):
        action = w[:, 0] * position + w[:, 1] * velocity + w[:, 2]
        velocity += np.clip(action, -1, 1) * 0.0015 - 0.0025 * np.cos(3 * position)
        velocity = np.clip(velocity, -0.07, 0.07)
        position = np.clip(position + velocity, -1.2, 0.6)
        velocity = np.where((position == -1.2) & (velocity < 0), 0.0, velocity)
        goal = (position >= 0.45) & (velocity >= 0) & ~over
        total += np.where(over, 0.0, -0.1 * action**2 + 100 * goal)
        over |= goal
        if over.all():
            break
    return total.mean(1)


def hidden_table(params):
    """Number of 16 actions that are the right ones."""
    return (np.asarray(params) == np.arange(16) % 4).sum(1).astype(float)


def search(opt, f, rounds, seed=0, enough=np.inf):
    """The best value after a number of rounds, warm-up included; every reply is read at once."""
    state = opt.init(jax.random.key(seed))
    best = -np.inf
    for _ in range(rounds):
        params, state = opt.ask(state)
        if "attempts" in state.record:
            assert len(state.record["attempts"]) == 1 and state.record["outcome"] == "proposed", state.record
        values = f(params)
        best = max(best, values.max())
        if best >= enough:
            break
        state = opt.tell(state, params, jnp.asarray(values, jnp.float32))
    return best


def test_the_equations_of_the_car():
    """Gain 5.5 without bias earns 85.3 in the mean over starts."""
    assert mountain_car([[0.0, 5.5, 0.0]], 200)[0] == pytest.approx(85.3, abs=1.5)


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
def test_the_car_is_up_the_hill_within_sixty_questions(seed):
    opt = LanguageModelOptimizer(ADVISER, ProposalPrompt(CAR, 60, optimum=100.0, proposals=4), warmup=20)
    assert search(opt, mountain_car, 61, seed, enough=85) >= 85


def test_a_table_is_found():
    opt = LanguageModelOptimizer(ADVISER, ProposalPrompt(TABLE, 100, proposals=4), warmup=20)
    best = search(opt, hidden_table, 31)
    chance = hidden_table(np.random.default_rng(0).integers(0, 4, (100 * 140, 16))).reshape(100, 140).max(1)
    assert best >= 12 and best > chance.max()  # of a hundred random searches with as many tables


def test_sorted_integers_are_read():
    opt = EvoLLM(ADVISER, CAR, generations=30, warmup=20)
    assert search(opt, lambda x: -np.square(np.asarray(x) - [1.0, -2.0, 4.0]).sum(1), 31) > -2.0


@pytest.mark.parametrize("reset", [True, False])
def test_matrices_are_read(reset):
    opt = LegacyOptimizer(ADVISER, CAR, reset_llm_conversation=reset, query=QuerySettings(retries=0))
    best = search(opt, lambda x: -np.square(np.asarray(x)).sum(1), 30)
    assert np.isfinite(best) and (reset or best > -8.0)


def test_it_knows_the_prompt_alone():
    text = ProposalPrompt(Policy("linear", 1, 1, False, low=2.0, high=3.0, decimals=2), 10, step_size=0.1).render("", 1)
    request = ChatRequest((Message("user", text),), seed=3)
    (one,), (two,) = ADVISER.complete([request]), PolicyAdviser().complete([request])
    assert one == two and one.model == "scripted-adviser/PolicyAdviser"
    values = [float(part.split(": ")[1]) for part in one.text.splitlines()[0].split("; ")]
    assert len(values) == 2 and all(2.0 <= v <= 3.0 and round(v, 2) == v for v in values)
    assert "neither a history nor a matrix" in ADVISER.complete([ChatRequest((Message("user", "Hi."),))])[0].text
