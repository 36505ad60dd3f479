"""BabyAI against minigrid 3.2.0: episodes of every level, taken over and played step for step."""

from __future__ import annotations

import pytest

from tests.parity.babyai_compare import IDS, compare


SEEDS, FEW = 100, 40
"""Episodes of each level in the slow run and in the ordinary one."""

FAST = (
    "BabyAI-GoToRedBallGrey-v0",
    "BabyAI-GoToLocalS6N3-v0",
    "BabyAI-PickupLoc-v0",
    "BabyAI-PutNextLocalS5N3-v0",
    "BabyAI-MixedTrainLocal-v0",
    "BabyAI-MixedTestLocal-v0",
    "BabyAI-PickUpSeqPickUpLocal-v0",
    "BabyAI-Unlock-v0",
    "BabyAI-KeyCorridorS3R2-v0",
    "BabyAI-OpenDoorsOrderN4Debug-v0",
    "BabyAI-PickupDistDebug-v0",
    "BabyAI-PutNextS5N2Carrying-v0",
    "BabyAI-MoveTwoAcrossS5N2-v0",
    "BabyAI-MiniBossLevel-v0",
    "BabyAI-BossLevel-v0",
    "BabyAI-Text-GoTo-RedBallBlueBox-S20",
)
"""One of each kind of world, for the ordinary run."""


@pytest.mark.parametrize(
    ("id", "seeds"), [*((id, FEW) for id in FAST), *(pytest.param(id, SEEDS, marks=pytest.mark.slow) for id in IDS)]
)
def test_minigrid_plays_the_same(id, seeds):
    found = compare(id, seeds)
    assert not found.difference
    assert found.sought, "no goal-seeking episode succeeded, so nothing was compared at a success"
    assert found.steps > 2 * seeds
