"""BabyAI against minigrid 3.2.0: episodes of every level, taken over and played step for step."""

from __future__ import annotations

import pytest

from tests.parity.babyai_compare import IDS, compare


SEEDS, FEW = 100, 40
"""Episodes of each level in the slow run and in the ordinary one."""

FAST = (
    "BabyAI-GoToRedBallGrey-v0",
    "BabyAI-PickupLoc-v0",
    "BabyAI-PutNextLocalS5N3-v0",
    "BabyAI-MixedTrainLocal-v0",
    "BabyAI-KeyCorridorS3R2-v0",
    "BabyAI-MiniBossLevel-v0",
)
"""Every action and every kind of goal, for the ordinary run."""


@pytest.mark.parametrize(
    ("id", "seeds"), [*((id, FEW) for id in FAST), *(pytest.param(id, SEEDS, marks=pytest.mark.slow) for id in IDS)]
)
def test_minigrid_plays_the_same(id, seeds):
    found = compare(id, seeds)
    assert not found.difference
    assert found.sought, "no goal-seeking episode succeeded, so nothing was compared at a success"
    assert found.steps > 2 * seeds
