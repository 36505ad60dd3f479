from __future__ import annotations

import math

import numpy as np
import pytest

from llmrl_jax.core import statistics as stats


def test_results_of_runs_have_means_and_intervals_over_them():
    ends = {"unlocked_low/x": 0.0, "unlocked_high/x": 1.0}
    runs = [
        {"a": {"success": x, "success_low": 0.0, "success_high": 1.0}, "unlocked/x": x, **ends} for x in (0.9, 1.0, 1.0)
    ]
    found = stats.over_runs(runs)
    mean, low, _, _ = stats.mean_interval([0.9, 1.0, 1.0])
    assert found["a"] == {"success": mean, "success_low": low, "success_high": 1.0, "success_runs": [0.9, 1.0, 1.0]}
    assert (found["unlocked/x"], found["unlocked_low/x"], found["unlocked_high/x"]) == (mean, low, 1.0)
    assert set(stats.over_runs(runs, values=False)["a"]) == {"success", "success_low", "success_high"}


def test_wilson_agrees_with_the_published_table():
    # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3 (score without continuity correction).
    for r, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        found = stats.wilson(r, n)
        assert found.mean == r / n
        assert found.low == pytest.approx(low, abs=5e-5)
        assert found.high == pytest.approx(high, abs=5e-5)
    assert stats.wilson(29, 29)[1:3] == pytest.approx((0.8830, 1.0), abs=5e-5)


def test_wilson_of_nothing_and_of_the_impossible():
    assert math.isnan(stats.wilson(0, 0).mean) and stats.wilson(0, 0)[1:3] == (0.0, 1.0)
    with pytest.raises(ValueError, match="5 successes.*3"):
        stats.wilson(5, 3)


# Quantiles of Student's distribution by degrees of freedom and probability (the table of any textbook).
QUANTILES = {(1, 0.975): 12.706, (2, 0.975): 4.303, (9, 0.975): 2.262, (30, 0.975): 2.042, (2, 0.995): 9.925}


@pytest.mark.parametrize("freedom, probability", QUANTILES)
def test_mean_interval_has_students_quantile(freedom, probability):
    x = np.arange(freedom + 1.0)
    interval = stats.mean_interval(x, level=2 * probability - 1)
    half = QUANTILES[freedom, probability] * x.std(ddof=1) / math.sqrt(freedom + 1)
    assert interval == pytest.approx((x.mean(), x.mean() - half, x.mean() + half, freedom + 1), rel=2e-4)


def test_a_95_percent_interval_covers_95_percent_also_for_few_seeds():
    """The normal quantile, as before, covers 70% at two values and 81% at three."""
    rng = np.random.default_rng(0)
    for n in (2, 3):
        intervals = [stats.mean_interval(x) for x in rng.normal(size=(800, n))]
        assert np.mean([interval.low < 0 < interval.high for interval in intervals]) == pytest.approx(0.95, abs=0.02)


def test_mean_interval_by_hand():
    interval = stats.mean_interval([1.0, 2.0, 3.0, np.nan])
    half = 4.302652729749462 * 1.0 / math.sqrt(3)
    assert interval == pytest.approx((2.0, 2.0 - half, 2.0 + half, 3))
    half = 12.706204736174694 * 0.005  # two values 0.01 apart deviate by 0.01 / sqrt 2, their mean by 0.005
    assert stats.mean_rate([0.0, 0.01]) == pytest.approx((0.005, 0.0, 0.005 + half, 2))
    assert stats.mean_rate([1.0, 0.99])[2] == 1.0 and np.isnan(stats.mean_rate([]).low)
    assert stats.mean_interval([]).n == 0
    with pytest.raises(ValueError, match="level.*95.*0.*1"):
        stats.mean_interval([1.0, 2.0], level=95)


def test_one_value_has_no_interval():
    alone = stats.mean_rate([0.25])
    assert (alone.mean, alone.n) == (0.25, 1) and math.isnan(alone.low) and math.isnan(alone.high)
    assert str(alone) == "0.250" and str(stats.Estimate(0.25, 0.2, 0.3, 9)) == "0.250 [0.200, 0.300]"
    assert f"{alone:.2f}" == "0.25" and f"{stats.Estimate(0.25, 0.2, 0.3, 9):.1f}" == "0.2 [0.2, 0.3]"


def test_an_estimate_as_results_and_back():
    rate = stats.wilson(3, 9)
    assert rate.results("go_to/success") == {
        "go_to/success": rate.mean,
        "go_to/success_low": rate.low,
        "go_to/success_high": rate.high,
    }
    assert stats.estimate_of(rate.results("go_to/success"), "go_to/success", 9) == rate
    inner = {"unlocked/wood": 0.5, "unlocked_low/wood": 0.25, "unlocked_high/wood": 0.75}
    assert stats.estimate_of(inner, "unlocked/wood") == (0.5, 0.25, 0.75, 0)
    assert all(map(math.isnan, stats.estimate_of({"loss": "nan"}, "loss")[:3]))  # as in JSON


@pytest.mark.parametrize("n", [1, 7, 12, 1000])
def test_a_rate_lies_within_its_interval_at_both_ends(n):
    for successes in (0, n):
        found = stats.wilson(successes, n)
        assert found.low <= found.mean <= found.high
