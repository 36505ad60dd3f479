"""Blackjack-v1 as Gymnasium 1.3 has it (Sutton and Barto, example 5.1)."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from envs_jax import spaces
from envs_jax.boards import RED, WHITE, write
from envs_jax.toytext.tables import Outcome, TabularEnvironment, tabulate


CARDS = {card: 4 / 13 if card == 10 else 1 / 13 for card in range(1, 11)}
"""The values of cards (ace: 1) and their probabilities: the deck is infinite."""

Hand = tuple[int, bool, bool]
"""The sum, whether an ace counts 11 in it, and whether it is a natural (21 with two cards)."""

HANDS: list[Hand] = [
    *((total, False, False) for total in range(4, 32)),
    *((total, True, False) for total in range(12, 22)),
    (21, True, True),
]
"""The hands of a player: without a usable ace (over 21: bust), with one, and the natural."""

INDEX = {player: index for index, player in enumerate(HANDS)}

DEALERS = 110
"""The number of pairs of the dealer's cards: the open one, and the other, which may be unseen."""

STICK = 0
UNSEEN = 0
"""Stands for the dealer's second card until it is drawn."""


def hand(cards: list[int]) -> Hand:
    """The `Hand` of a list of cards."""
    usable = 1 in cards and sum(cards) + 10 <= 21
    return sum(cards) + 10 * usable, usable, sorted(cards) == [1, 10]


def draw(current: Hand, card: int) -> Hand:
    """A hand of at least two cards after drawing another one."""
    total, usable, _ = current
    low = total - 10 * usable + card
    usable = (usable or card == 1) and low + 10 <= 21
    return low + 10 * usable, usable, False


def encode(player: Hand, upcard: int, hidden: int) -> int:
    """The table row for the player's hand and the dealer's two cards; `hidden` may be `UNSEEN`."""
    return INDEX[player] * DEALERS + (upcard - 1) * 11 + hidden


def decode(index: int) -> tuple[Hand, int, int]:
    """The player's hand and the dealer's two cards; the inverse of `encode`."""
    hand_index, dealer = divmod(index, DEALERS)
    return HANDS[hand_index], dealer // 11 + 1, dealer % 11


@functools.cache
def _dealt(current: Hand) -> dict[int, float]:
    """The final scores of a dealer with a given hand (bust: 0), with their probabilities. The dealer draws up to 17."""
    if current[0] >= 17:
        return {current[0] if current[0] <= 21 else 0: 1.0}
    scores: dict[int, float] = {}
    for card, prob in CARDS.items():
        for score, score_prob in _dealt(draw(current, card)).items():
            scores[score] = scores.get(score, 0.0) + prob * score_prob
    return scores


def _pay(player: Hand, dealer: Hand, score: int, natural: bool, sab: bool) -> float:
    """The reward for sticking with a hand, given the dealer's first two cards and final score."""
    if sab and player[2] and not dealer[2]:
        return 1.0
    if natural and not sab and player[2] and score < 21:
        return 1.5
    return float(np.sign(player[0] - score))


class Blackjack(TabularEnvironment):
    """Come closer to 21 than the dealer, but not beyond.

    Observation: int32 `[3]`: the player's sum, the dealer's open card, whether the player has a usable ace. Actions:
    stick (0), hit (1). Reward: 1, 0 or -1 at the end. Terminated by sticking or by going over 21; no time limit.

    The dealer's second card is drawn when it is revealed: the distribution is the same, and `optimal_values` cannot use
    the hidden card.
    """

    names = ("stick", "hit")
    reference = "BlackjackEnv"

    def __init__(self, natural: bool = False, sab: bool = True):
        """**Arguments:** `natural`, whether winning with a natural pays 1.5; `sab`, Sutton and Barto's rules instead,
        under which a natural wins unless the dealer has one too. The defaults are those of Gymnasium's registry."""
        self.natural, self.sab = natural, sab
        hits: dict[Hand, list[Outcome]] = {}
        """The outcomes of hitting, as hand indices, for each hand of at most 21."""
        for player in HANDS:
            if player[0] <= 21:
                hands = [(prob, draw(player, card)) for card, prob in CARDS.items()]
                hits[player] = [(p, INDEX[h], -1.0 if h[0] > 21 else 0.0, h[0] > 21) for p, h in hands]

        def stick(player, upcard, hidden):
            """Rewards and their probabilities."""
            rewards: dict[float, float] = {}
            for card, card_prob in CARDS.items() if hidden == UNSEEN else [(hidden, 1.0)]:
                dealer = hand([upcard, card])
                for score, prob in _dealt(dealer).items():
                    reward = _pay(player, dealer, score, natural, sab)
                    rewards[reward] = rewards.get(reward, 0.0) + card_prob * prob
            return rewards

        def outcomes(index, action):
            player, upcard, hidden = decode(index)
            if player[0] > 21:
                return [(1.0, index, 0.0, True)]
            if action == STICK:
                return [(prob, index, reward, True) for reward, prob in stick(player, upcard, hidden).items()]
            return [(prob, after * DEALERS + index % DEALERS, *outcome) for prob, after, *outcome in hits[player]]

        ranks = [min(rank, 10) for rank in range(1, 14)]
        starts = [encode(hand([a, b]), upcard, UNSEEN) for upcard, a, b in itertools.product(ranks, repeat=3)]
        size = len(HANDS) * DEALERS
        observations = [(total, upcard, usable) for (total, usable, _), upcard, _ in map(decode, range(size))]
        super().__init__(tabulate(size, 2, outcomes), starts, observations=np.array(observations, np.int32))

    def observation_space(self, params):
        return spaces.Box(0, np.array([31, 10, 1], np.int32), (3,), np.int32)

    def read(self, inner):
        if not hasattr(inner, "player"):
            raise ValueError("the BlackjackEnv has no cards yet; call its reset first")
        theirs, ours = (bool(inner.natural), bool(inner.sab)), (self.natural, self.sab)
        if theirs != ours:
            raise ValueError(f"the BlackjackEnv has (natural, sab) = {theirs}, {self.id} {ours}; make both the same")
        return encode(hand(inner.player), *inner.dealer[:2])

    def render(self, state):
        """The dealer's open card above, the player's sum below with a star for a usable ace: uint8 `[160, 128, 3]`."""
        (total, usable, _), upcard, _ = decode(int(state.index))
        picture = np.full((160, 128, 3), (7, 99, 36), np.uint8)
        picture[12:72, 42:86] = WHITE
        write(picture, "A" if upcard == 1 else str(upcard), 28, 64, RED)
        write(picture, f"{total}*" if usable else str(total), 104, 64, WHITE)
        return picture
