"""Metrics of rollouts beside loops in Python, and the watch on sound runs and on three injected collapses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.lm import WordTokenizer
from llmrl_jax.multiturn import health
from llmrl_jax.multiturn.health import ALARMS, WATCHED, Watch, WatchState
from llmrl_jax.multiturn.record import REPLY, WORLD, Record
from llmrl_jax.multiturn.replies import ReplyAutomaton


PROMPTS, REPLIES, LENGTH, UPDATES = 8, 8, 40, 160
COLLAPSE, FALL = 90, 130
"""Updates at which a collapse begins, and at which the reward falls."""


@pytest.mark.parametrize("n", [1, 3])
def test_repeated_grams(n):
    rng = np.random.default_rng(n)
    tokens, written = rng.integers(0, 3, (30, 17)), rng.random((30, 17)) < 0.8
    want = []
    for row, mask in zip(tokens, written):
        grams = [tuple(row[i : i + n]) for i in range(17 - n + 1) if mask[i : i + n].all()]
        want += [1 - len(set(grams)) / len(grams)] if grams else []
    assert np.isclose(health.repeated(tokens, written, n), np.mean(want), rtol=1e-5)
    assert np.isnan(health.repeated(tokens, written & False, n)) and np.isnan(health.repeated(tokens, written, 18))


def information(tokens, thought, prompt) -> float:
    """`prompt_information` from its definition, reply by reply."""
    rows = [Counter(row[mask].tolist()) for row, mask in zip(tokens, thought)]
    length = [row.total() for row in rows]
    smoothing = sum(length) / sum(n > 0 for n in length)
    gain = count = 0.0
    for i, row in enumerate(rows):
        near = sum((rows[j] for j in range(len(rows)) if j != i and prompt[j] == prompt[i]), Counter())
        far = sum((rows[j] for j in range(len(rows)) if prompt[j] != prompt[i]), Counter())
        if not (row and near and far):
            continue
        count += length[i]
        for token, times in row.items():
            common = smoothing * (near[token] + far[token]) / (near.total() + far.total())
            if common:
                gain += times * math.log((near[token] + common) / (near.total() + smoothing))
                gain -= times * math.log((far[token] + common) / (far.total() + smoothing))
    return gain / count


def test_information_on_the_prompt():
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 5, 24)
    shared, thought = rng.integers(0, 30, (24, 20)), rng.random((24, 20)) < 0.7
    thought[3] = False
    informed = np.where(rng.random((24, 20)) < 0.5, 100 + prompt[:, None], shared)
    for tokens in (shared, informed):
        got = health.prompt_information(tokens, thought, prompt)
        assert np.isclose(got, information(tokens, thought, prompt), rtol=1e-3, atol=1e-4)
    assert health.prompt_information(informed, thought, prompt) > 0.3
    assert health.prompt_information(shared, thought, prompt) <= 0
    assert np.isnan(health.prompt_information(shared, thought, prompt * 0))
    assert np.isnan(health.prompt_information(shared, thought, np.arange(24)))


def conversation(*rows: list[tuple[str, str]]) -> tuple[Record, ReplyAutomaton]:
    """Rows of turns, of what the world and the policy say, words between blanks, and the format's tables."""
    tokenizer = WordTokenizer.from_texts(["THINK a b c d e ACTION: go stop look left right"])
    replies = ReplyAutomaton.build(tokenizer, "plain", ["go", "stop"], tokenizer.vocab_size, [tokenizer.eos_id])
    length = max(sum(len(f"{a} {b}".split()) for a, b in row) for row in rows) + 2
    record = {name: np.array(x) for name, x in Record.empty(len(rows), length).__dict__.items()}
    for row, turns in enumerate(rows):
        place = 0
        record["begins"][row, 0] = True
        for heard, said in turns:
            for role, text in ((WORLD, heard), (REPLY, said)):
                state = replies.start
                for token in tokenizer.encode(text):
                    record["token"][row, place], record["role"][row, place] = token, role
                    record["state"][row, place] = state
                    state = int(replies.step(jnp.int32(state), jnp.int32(token))) if role == REPLY else state
                    place += 1
                record["decides" if role == WORLD else "acts"][row, place - 1] = True
    return Record(**jax.tree.map(jnp.asarray, record)), replies


def test_texts_of_a_record_by_hand():
    record, replies = conversation(
        [("look left", "THINK a a a a ACTION: go"), ("look right", "THINK b b ACTION: stop")],
        [("look left", "THINK a a c ACTION: go"), ("look right", "THINK b d b ACTION: stop")],
        [("look", "go")],
    )
    everything = jnp.ones(record.token.shape, bool)
    found = {name: float(x) for name, x in health.text_metrics(record, everything, replies, 12).items()}
    # up to the tag, `ACTION:` included: 6, 4, 5, 5 tokens and, in a reply that never gets there, 1
    assert found["thought_length"] == pytest.approx((6 + 4 + 5 + 5 + 1) / 5)
    # 3-grams: 5 of the first with `a a a` twice; none of the others is repeated, and the last has none
    assert found["repetition"] == pytest.approx((1 / 5 + 0 + 0 + 0) / 4)
    said = ["THINK a a a a ACTION:", "THINK a a c ACTION:", "THINK b b ACTION:", "THINK b d b ACTION:", "go"]
    rows = [text.split() for text in said]
    words = sorted({word for row in rows for word in row})
    tokens = np.array([[words.index(word) for word in row] + [0] * (6 - len(row)) for row in rows])
    thought = np.arange(6) < np.array([[len(row)] for row in rows])
    want = information(tokens, thought, np.array([0, 0, 1, 1, 2]))
    assert found["information"] == pytest.approx(want, rel=1e-4) and want > 0
    # of the second turns alone
    later = jnp.arange(record.token.shape[1]) >= 9
    second = health.text_metrics(record, everything & later, replies, 12)
    assert float(second["repetition"]) == 0 and np.isnan(second["information"])


def test_agreement():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 50)).astype(np.float32)
    chosen = rng.random(50) < 0.6
    want = np.corrcoef(a[chosen], (a + b)[chosen])[0, 1]
    assert np.isclose(health.correlation(a, a + b, chosen), want, rtol=1e-4)
    assert np.isnan(health.correlation(a, np.ones(50, np.float32), chosen))


# ----------------------------------------------------------------------------------------------- synthetic runs

Curve = Callable[[np.ndarray], np.ndarray]
PROMPT = np.repeat(np.arange(PROMPTS), REPLIES)
DEFAULTS: dict[str, Curve] = {
    "success": lambda t: np.full(len(t), 0.6),
    "length": lambda t: np.full(len(t), 15.0),
    "informed": lambda t: np.full(len(t), 0.4),  # share of words that depend on the prompt
    "pattern": lambda t: np.full(len(t), 0.05),  # share of words that belong to a repeated pair
    "equal": lambda t: np.zeros(len(t)),  # probability that a group has one outcome
    "valid": lambda t: np.full(len(t), 0.95),
    "entropy": lambda t: np.full(len(t), 1.5),
}


def ramp(begin: float, end: float, start: float, updates: float) -> Curve:
    return lambda t: begin + (end - begin) * np.clip((t - start) / updates, 0, 1)


def rollouts(seed: int, **curves: Curve) -> dict[str, np.ndarray]:
    """The arguments of `metrics_of` for each update of a run."""
    rng, t = np.random.default_rng(seed), np.arange(UPDATES)
    now = {name: curve(t)[:, None] for name, curve in {**DEFAULTS, **curves}.items()}
    shape = (UPDATES, len(PROMPT))

    def draw(*more):
        return rng.random((*shape, *more))

    length = rng.normal(now["length"], 3.0, shape).astype(int)
    written = np.arange(LENGTH) < np.maximum(length, 4)[..., None]
    shared = (100 * draw(LENGTH) ** 2).astype(int)
    tokens = np.where(draw(LENGTH) < now["informed"][..., None], 100 + 12 * PROMPT[:, None] + shared % 12, shared)
    pair = rng.integers(0, 100, (*shape, 2)).repeat(LENGTH // 2, axis=-1).reshape(*shape, 2, -1).swapaxes(-1, -2)
    tokens = np.where(draw(LENGTH) < now["pattern"][..., None], pair.reshape(*shape, LENGTH), tokens)
    logit = np.log(now["success"] / (1 - now["success"])) + rng.normal(0, 0.7, (UPDATES, PROMPTS)).repeat(REPLIES, 1)
    luck = np.where(draw() < now["equal"], rng.random((UPDATES, PROMPTS)).repeat(REPLIES, 1), draw())
    success = (luck < 1 / (1 + np.exp(-logit))).astype(np.float32)
    valid = draw() < now["valid"]
    entropy = now["entropy"][..., None] * rng.uniform(0.5, 1.5, (*shape, LENGTH))
    return {
        "tokens": tokens.astype(np.int32),
        "written": written,
        "thought": written & (np.arange(LENGTH) < LENGTH - 3),
        "entropy": entropy.astype(np.float32),
        "valid": valid,
        "truncated": length > LENGTH,
        "reward": success + 0.1 * valid.astype(np.float32),
        "success": success,
    }


def metrics_of(tokens, written, thought, entropy, valid, truncated, reward, success) -> dict[str, jax.Array]:
    """What the watch reads, of replies in groups on one prompt each."""
    length = jnp.sum(written, axis=1)
    return {
        "reply_length": jnp.mean(length),
        "thought_length": jnp.mean(jnp.sum(thought, axis=1)),
        "truncated": jnp.mean(truncated),
        "valid": jnp.mean(valid),
        "reward_std": jnp.mean(jnp.std(reward.reshape(PROMPTS, REPLIES), axis=1)),
        "repetition": health.repeated(tokens, written, 3),
        "entropy": jnp.sum(jnp.where(written, entropy, 0.0)) / jnp.sum(length),
        "information": health.prompt_information(tokens, thought, PROMPT),
        "success": jnp.mean(success),
    }


@jax.jit
def watched(watch_state: WatchState, arrays) -> tuple[WatchState, jax.Array]:
    """The state after a run, and the alarm after each update."""

    def step(state, batch):
        state = Watch().update(state, metrics_of(**batch))
        return state, state.alarm

    return jax.lax.scan(step, watch_state, arrays)


def reason(state: WatchState) -> str:
    """The name of the collapse that was found; empty: none."""
    return "".join(name for name, x in zip(ALARMS, Watch().metrics(state).values(), strict=True) if x > 0)


COLLAPSES = {
    "length_jump": {"length": ramp(15, 34, COLLAPSE, 10), "valid": ramp(0.95, 0.7, COLLAPSE, 20)},
    "echo": {
        "equal": ramp(0, 1, COLLAPSE, 15),
        "pattern": ramp(0.05, 0.8, COLLAPSE, 15),
        "entropy": ramp(1.5, 0.5, COLLAPSE + 10, 30),
    },
    "template": {"informed": ramp(0.4, 0, COLLAPSE, 15)},
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", COLLAPSES)
def test_a_collapse_is_found_before_the_reward_falls(name, seed):
    arrays = rollouts(seed, **COLLAPSES[name], success=ramp(0.6, 0.1, FALL, 20))
    state, alarms = watched(Watch().init(), arrays)
    first = int((np.asarray(alarms) >= 0).argmax())
    assert COLLAPSE < first < FALL, first
    values = Watch().metrics(state)
    assert values.keys() == Watch().alarms.keys() and {name for name, x in values.items() if x > 0} == {f"alarm/{name}"}


def test_sound_runs_raise_no_alarm():
    """They learn at several paces, to several levels; replies become shorter or longer, thoughts vanish or stay."""
    rng = np.random.default_rng(0)
    for seed in range(10):
        start, pace = rng.uniform(5, 60), rng.uniform(40, 120)
        curves = {
            "success": ramp(rng.uniform(0.1, 0.4), rng.uniform(0.6, 0.98), start, pace),
            "length": ramp(15, rng.uniform(6, 28), start, pace),
            "informed": ramp(rng.uniform(0.2, 0.5), rng.uniform(0.2, 0.5), start, pace),
            "pattern": ramp(0.05, rng.uniform(0.0, 0.2), start, pace),
            "valid": ramp(rng.uniform(0.6, 0.9), rng.uniform(0.95, 1.0), start, pace),
            "entropy": ramp(rng.uniform(1, 2), rng.uniform(0.2, 1), start, pace),
        }
        state, _ = watched(Watch().init(), rollouts(100 + seed, **curves))
        assert reason(state) == "", seed


# ----------------------------------------------------------------------------------------------- the watch alone


def test_values_that_are_not_defined_are_passed_over():
    watch, metrics = Watch(), {name: jnp.float32(1) for name in WATCHED}
    state = watch.update(watch.update(watch.init(), metrics), {**metrics, "information": jnp.float32(jnp.nan)})
    assert state.updates == 2 and all(state.usual[name] == 1 for name in WATCHED)
    nothing = watch.update(watch.init(), {name: jnp.float32(jnp.nan) for name in WATCHED})
    assert reason(nothing) == "" and all(np.isnan(nothing.usual[name]) for name in WATCHED)


def test_an_alarm_stays_and_the_first_counts():
    state = Watch().init().replace(alarm=jnp.int32(1))
    state, alarms = watched(state, rollouts(0, **COLLAPSES["template"]))
    assert (alarms == 1).all() and reason(state) == "echo"


@pytest.mark.parametrize(
    "options",
    [{"warmup": 0}, {"patience": 0}, {"usual": 5.0}, {"longer": 1.0}, {"equal": -0.1}, {"steady": 2.0}],
    ids=str,
)
def test_bad_options_are_named(options):
    (name,) = options
    with pytest.raises(ValueError, match=name):
        Watch(**options)
