"""Whole losses of each learner, and their gradients, beside loops over lists of tokens in NumPy."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.multiturn import loss as losses
from llmrl_jax.multiturn.group import GroupConfig, GroupLearner
from llmrl_jax.multiturn.loss import Batch, Scores, totals, turn_loss
from llmrl_jax.multiturn.policy import TurnPolicy
from llmrl_jax.multiturn.ppo import TurnPPO, TurnPPOConfig
from llmrl_jax.multiturn.record import REPLY, WORLD
from llmrl_jax.multiturn.rollout import Steps
from llmrl_jax.rl.gradient import traced_floats
from tests.unit.multiturn.conversations import drawn_record
from tests.unit.multiturn.test_credit import turns_of


ROWS, SHARED = 6, {"num_envs": 6, "minibatches": 1, "episode_tokens": 96, "gamma": 0.9, "entropy_coef": 0.03}
PPO = TurnPPOConfig(**SHARED, num_steps=40, pool_size=6, gae_lambda=0.8, value_clip=0.5)
GROUP = GroupConfig(**SHARED, group=3)
CASES = {
    "turn PPO": PPO,
    "turn PPO, GSPO's ratio, replies, asymmetric": replace(PPO, ratio="turn", aggregate="turn", clip_high=0.28),
    "turn PPO, CISPO, ECHO": replace(PPO, ratio="cispo", echo_coef=0.3, normalize_advantages=False),
    "token PPO": PPO,
    "token PPO, replies, KL": replace(PPO, aggregate="turn", kl_coef=0.2),
    "REINFORCE": replace(GROUP, aggregate="turn"),
    "GRPO, KL, ECHO": replace(GROUP, advantage="grpo", kl_coef=0.1, echo_coef=0.2, clip_low=0.1, clip_high=0.4),
    "GRPO, half of the groups": replace(GROUP, advantage="leave_one_out", keep_groups=0.5, ratio="turn"),
    "GRPO, top-p of the deviation": replace(GROUP, keep="top_p", keep_groups=0.4),
    "GiGPO": replace(GROUP, anchor_coef=0.7),
    "GiGPO, normalised, CISPO": replace(GROUP, anchor_coef=1.0, advantage="grpo", ratio="cispo", kl_coef=0.1),
}


class Given(TurnPolicy):
    """A policy whose scores are its parameters, without a model."""

    def __init__(self):
        pass

    def variables(self, params, frozen, adapted=True):
        return params if adapted else {"log_prob": frozen["log_prob"], "entropy": params["entropy"]}

    def value(self, params, hidden):
        return params["value"]


@pytest.fixture(autouse=True)
def scores(monkeypatch):
    def score_tokens(policy, variables, replies, record, chunk=0, world=False, at=None):
        return Scores(variables["log_prob"], variables["entropy"], jnp.zeros((*record.token.shape, 1)))

    monkeypatch.setattr(losses, "score_tokens", score_tokens)


@cache
def drawn():
    """A record, and what the parameters say of its tokens, and the base."""
    rng = np.random.default_rng(0)
    record, _ = drawn_record(rng, rows=ROWS, length=50)
    shape = record.token.shape
    record = record.replace(
        free=(record.role == REPLY) & jnp.asarray(rng.random(shape) < 0.8),
        log_prob=jnp.asarray(-2 * rng.random(shape), jnp.float32),
    )
    now = {
        "log_prob": np.asarray(record.log_prob) + 0.3 * rng.normal(size=shape),
        "entropy": 2 * rng.random(shape),
        "value": np.asarray(record.value) + rng.normal(size=shape),
    }
    base = now["log_prob"] + 0.5 * rng.normal(size=shape)
    new = np.arange(shape[1]) >= rng.integers(0, 20, (ROWS, 1))
    anchor = rng.integers(0, 3, (shape[1], ROWS)).astype(np.int32)
    params = {name: jnp.asarray(x, jnp.float32) for name, x in now.items()}
    return record, params, jnp.asarray(base, jnp.float32), jnp.asarray(new), jnp.asarray(anchor)


def ours(config, level):
    """The loss, its metrics and its gradients."""
    record, params, base, new, anchor = drawn()
    kind = TurnPPO if isinstance(config, TurnPPOConfig) else GroupLearner
    learner = kind.__new__(kind)  # whose credit needs no world
    learner.config, learner.level = config, level
    hparams = {name: jnp.asarray(x) for name, x in traced_floats(config).items()}
    no = jnp.zeros_like(anchor, bool)
    credit, _ = jax.jit(lambda record: learner.credit(record, Steps({}, no.T, no.T, anchor.T, jnp.int32(0)), hparams))(
        record
    )
    new = new & (record.role != 0)
    batch = learner.normalised(Batch(record, credit, credit.learn & new, new))

    @jax.jit
    def loss(params, batch, total):
        return turn_loss(Given(), params, {"log_prob": base, "replies": ()}, batch, total, config, hparams)

    (value, metrics), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, batch, totals(batch))
    halves = [jax.tree.map(lambda x, rows=rows: x[rows], (params, batch)) for rows in (slice(0, 2), slice(2, None))]
    if not config.kl_coef:  # whose base is not cut
        parts = [loss(*half, totals(batch))[0] for half in halves]
        np.testing.assert_allclose(sum(parts), value, rtol=1e-5, atol=1e-6)
    return float(value), {name: float(x) for name, x in metrics.items()}, gradient


# ----------------------------------------------------------------------------------------------- the reference


def replies_of(record, row):
    """The turns of a row as lists: the places of the reply's tokens, and the turn as `turns_of` has it."""
    out = []
    for decided, act, after in turns_of(record, row):
        places = [decided + 1]
        while places[-1] != act and places[-1] + 1 < record.token.shape[1]:
            places.append(places[-1] + 1)
        out.append((places, decided, act, after))
    return out


def of_turns(config, record, level):
    """Advantages by place, critic's targets by place, and turns that count, of PPO."""
    advantage, target, counted = {}, {}, []
    gamma, lam = config.gamma, config.gae_lambda
    for row in range(ROWS):
        later, carried = 0.0, 0.0
        for places, decided, act, after in reversed(replies_of(record, row)):
            value = float(record.value[row, decided])
            if after is None:
                later, carried = value, 0.0
                continue
            counted.append((row, decided))
            if after == "end":
                later, carried = 0.0, 0.0
            elif after[0] == "timeout":
                later, carried = float(record.value[row, after[1]]), 0.0
            reward = float(record.reward[row, act])
            if level == "turn":
                carried = reward + gamma * later - value + gamma * lam * carried
                target[row, decided] = carried + value
                for place in places:
                    advantage[row, place] = carried
            else:
                for place in reversed(places):
                    before, discount = float(record.value[row, place - 1]), gamma if place == act else 1.0
                    ahead = (reward if place == act else 0.0) + discount * later
                    if place > places[0] and not record.free[row, place]:  # a token without alternatives is no choice
                        later, carried = ahead, discount * carried
                        continue
                    carried = ahead - before + discount * lam * carried
                    later = before
                    advantage[row, place] = carried
                    target[row, place - 1] = carried + before
            later = value
    return advantage, target, counted


def compared(config, values):
    """Values beside each other, as `group.advantage` says; a list."""
    mean, n = sum(values) / len(values), len(values)
    if config.advantage == "leave_one_out":
        return [x - (sum(values) - x) / (n - 1) for x in values]
    spread = math.sqrt(sum((x - mean) ** 2 for x in values) / n) + 1e-4 if config.advantage == "grpo" else 1.0
    return [(x - mean) / spread for x in values]


def of_groups(config, record, anchor):
    """Advantages by place, and turns that count, of learners on groups."""
    advantage, counted, size = {}, [], config.group
    returns = [sum(float(record.reward[row, act]) for _, _, act, _ in replies_of(record, row)) for row in range(ROWS)]
    groups = [range(first, first + size) for first in range(0, ROWS, size)]
    spread = [np.std([returns[row] for row in rows]) for rows in groups]
    order = sorted(range(len(groups)), key=lambda i: -spread[i])
    chosen = order[: max(1, round(config.keep_groups * len(groups)))]
    if config.keep == "top_p":
        chosen = [
            i for j, i in enumerate(order) if sum(spread[k] for k in order[:j]) < config.keep_groups * sum(spread)
        ]
    for rows in (groups[i] for i in chosen):
        same = defaultdict(list)
        whole = dict(zip(rows, compared(config, [returns[row] for row in rows])))
        for row in rows:
            later = 0.0
            for places, decided, act, after in reversed(replies_of(record, row)):
                later = 0.0 if after == "end" or (after and after[0] == "timeout") else later
                later = float(record.reward[row, act]) + config.gamma * later
                same[int(anchor[decided, row])].append((row, places, later))
                counted.append((row, decided))
                for place in places:
                    advantage[row, place] = whole[row]
        for turns in same.values() if config.anchor_coef else ():
            for (row, places, _), step in zip(turns, compared(config, [later for *_, later in turns])):
                for place in places:
                    advantage[row, place] += config.anchor_coef * step
    return advantage, counted


def reference(config, level):
    """The loss, its metrics, and the gradient of each token's log-probability, entropy and value."""
    record, params, base, new, anchor = drawn()
    exact = lambda x: np.asarray(x, np.float64 if x.dtype == jnp.float32 else x.dtype)  # noqa: E731
    record, params = jax.tree.map(exact, (record, params))
    base, new = np.asarray(base, np.float64), np.asarray(new)
    ppo = isinstance(config, TurnPPOConfig)
    if ppo:
        advantage, target, counted = of_turns(config, record, level)
    else:
        advantage, counted = of_groups(config, record, np.asarray(anchor))
        target = {}
    learned = {place: a for place, a in advantage.items() if record.free[place]}
    if ppo and config.normalize_advantages:
        centre, spread = np.mean(list(learned.values())), np.std(list(learned.values()))
        learned = {place: (a - centre) / (spread + 1e-8) for place, a in learned.items()}
    gradient = {name: np.zeros(record.token.shape) for name in ("log_prob", "entropy", "value")}
    sums = defaultdict(float)
    low, high = 1 - config.clip_low, 1 + config.clip_high
    for row in range(ROWS):
        for places, decided, *_ in replies_of(record, row):
            tokens = [(row, place) for place in places if (row, place) in learned]
            if (row, decided) not in counted:
                continue
            log_ratios = [params["log_prob"][x] - record.log_prob[x] for x in tokens]
            for place, log_ratio in zip(tokens, log_ratios):
                count = len(learned) if config.aggregate == "token" else len(counted) * len(tokens)
                given, log_prob = learned[place], params["log_prob"][place]
                ratio = math.exp(np.mean(log_ratios) if config.ratio == "turn" else log_ratio)
                clipped = min(max(ratio, low), high)
                if config.ratio == "cispo":
                    gain, slope = clipped * given * log_prob, clipped * given
                else:
                    gain = min(ratio * given, clipped * given)
                    slope = ratio * given if ratio * given <= clipped * given else 0.0
                sums["policy_loss"] -= gain / count
                sums["bonus"] += params["entropy"][place] / count
                gradient["log_prob"][place] -= slope / count
                gradient["entropy"][place] -= config.entropy_coef / count
                difference = base[place] - log_prob
                kl = math.exp(difference) - difference - 1
                sums["kl"] += kl / count
                gradient["log_prob"][place] += config.kl_coef * (1 - math.exp(difference)) / count
                sums["kl_to_base"] += kl / len(learned)
                sums["entropy"] += params["entropy"][place] / len(learned)
                sums["approx_kl"] += (math.exp(log_ratio) - 1 - log_ratio) / len(learned)
                sums["clip_fraction"] += (clipped != ratio) / len(learned)
    world = [x for x in zip(*np.nonzero(new & (record.role == WORLD))) if not record.begins[x]]
    for place in world:
        sums["world_loss"] -= params["log_prob"][place] / len(world)
        if config.echo_coef:
            gradient["log_prob"][place] -= config.echo_coef / len(world)
    for place, wanted in target.items():
        value, old = params["value"][place], record.value[place]
        near = old + min(max(value - old, -config.value_clip), config.value_clip)
        sums["value_loss"] += max((value - wanted) ** 2, (near - wanted) ** 2) / len(target)
        if (value - wanted) ** 2 >= (near - wanted) ** 2:
            gradient["value"][place] += config.value_loss_coef * 2 * (value - wanted) / len(target)
    sums["loss"] = sums["policy_loss"] - config.entropy_coef * sums["bonus"]
    sums["loss"] += config.kl_coef * sums["kl"] + config.echo_coef * sums["world_loss"]
    if ppo:
        sums["loss"] += config.value_loss_coef * sums["value_loss"]
    return sums, gradient


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_loops_over_tokens(name):
    config, level = CASES[name], "token" if name.startswith("token") else "turn"
    value, metrics, gradient = ours(config, level)
    expected, slopes = reference(config, level)
    assert value == pytest.approx(expected["loss"], rel=2e-4, abs=1e-5)
    for key in {"policy_loss", "entropy", "approx_kl", "clip_fraction", *metrics} & set(expected):
        assert metrics[key] == pytest.approx(expected[key], rel=2e-4, abs=1e-5), key
    assert ("kl_to_base" in metrics) == bool(config.kl_coef) and ("world_loss" in metrics) == bool(config.echo_coef)
    assert 0.1 < metrics["clip_fraction"] < 0.9
    for key, slope in slopes.items():
        np.testing.assert_allclose(gradient[key], slope, rtol=3e-4, atol=2e-6, err_msg=key)
    assert np.count_nonzero(slopes["log_prob"]) > 20
