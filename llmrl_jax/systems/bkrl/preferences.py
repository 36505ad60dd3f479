"""BK-Pref: a chat model says which of two windows is better, and a preference transformer learns from that.

Every pair is asked about in both orders. An answer that follows the order and not the windows is a tie, and so is one
that can be read in one order only, which may do so; how often the first window wins is reported as the position bias.
Replies come through the cache, so that an interrupted run goes on where it was (`--run.resume`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from llmrl_jax.chat import BudgetExceeded, ChatRequest, Message
from llmrl_jax.chat.protocol import CHOICES
from llmrl_jax.core.activity import doing
from llmrl_jax.core.config import to_json
from llmrl_jax.core.files import write_whole
from llmrl_jax.data.transitions import DataError
from llmrl_jax.run.folder import write_summary
from llmrl_jax.systems.bkrl import prompts
from llmrl_jax.systems.bkrl.advice import AdviceRun, advice_run, save_potential
from llmrl_jax.systems.bkrl.artifacts import read_answers
from llmrl_jax.systems.bkrl.build import observed_parts
from llmrl_jax.systems.bkrl.collect import Windows
from llmrl_jax.systems.bkrl.config import PreferRun
from llmrl_jax.systems.bkrl.potentials import digest
from llmrl_jax.systems.bkrl.preference_model import WEIGHTS, Pairs, fit, make_model, save_weights
from llmrl_jax.systems.bkrl.scripted import ScriptedJudge


ANSWERS = "preferences.jsonl"
AT_ONCE = 32
"""Pairs per batch of requests."""


@dataclass(frozen=True)
class Answer:
    """The model's answers about one pair."""

    forward: float | None
    """Of the pair in order: 1, the second is better; 0, the first; 0.5, a tie; None, unreadable."""
    backward: float | None
    """Of the pair in the other order."""
    margin: float | None = None
    """Log-odds of the answer that the second is better, in nats, summed over both orders; None: not known."""

    @property
    def second_wins(self) -> float | None:
        """The answer that does not depend on the order: that of `margin`, and without one 0.5 where both orders
        contradict each other, or one is unreadable; None: both are."""
        if self.margin is not None:
            return 0.5 + 0.5 * float(np.sign(self.margin))
        if self.forward is None and self.backward is None:
            return None
        if self.forward is None or self.backward is None:
            return 0.5
        return self.forward if self.forward == 1 - self.backward else 0.5


def statistics(answers: list[Answer], returns: np.ndarray) -> dict[str, float]:
    """Statistics of answers.

    **Arguments:** `returns`, `[P, 2]`, the returns from the first step of the windows on: a window in which the episode
    ends well has its reward.
    **Returns:** `unreadable`, replies; `first_wins`, how often the window that is shown first wins, of answers that are
    no tie (0.5: no position bias); `consistent`, pairs whose answers agree in both orders, of those with two; `ties`;
    `agreement` with the order of returns, of pairs whose returns differ and that are no tie, and their number
    `compared`.
    """
    choices = [x for a in answers for x in (a.forward, a.backward)]
    clear = [x for x in choices if x is not None and x != 0.5]
    complete = [a for a in answers if a.forward is not None and a.backward is not None]
    wins = np.array([0.5 if a.second_wins is None else a.second_wins for a in answers])
    compared = (wins != 0.5) & (returns[:, 0] != returns[:, 1])
    agrees = (wins > 0.5) == (returns[:, 1] > returns[:, 0])

    def fraction(count: float, total: float) -> float:
        return count / total if total else float("nan")

    return {
        "pairs": float(len(answers)),
        "unreadable": float(sum(x is None for x in choices)),
        "first_wins": fraction(sum(x == 0 for x in clear), len(clear)),
        "consistent": fraction(sum(a.forward == 1 - a.backward for a in complete), len(complete)),  # type: ignore[operator]
        "ties": float(sum(a.second_wins == 0.5 for a in answers)),
        "agreement": fraction(float(agrees[compared].sum()), float(compared.sum())),
        "compared": float(compared.sum()),
    }


def ask(run: AdviceRun, config: PreferRun, windows: Windows) -> tuple[list[Answer], str]:
    """Ask about pairs: window `2 i` and window `2 i + 1`, in both orders.

    **Returns:** the answers, fewer than pairs if the budget is spent; and why it stopped, empty: it did not.
    """
    thoughts = config.answers == "written"
    texts, system = run.captions(windows), prompts.preference_system(run.world, thoughts)
    count = len(windows) // 2
    answers: list[Answer] = []
    with doing(f"asking {run.chat.model.name}", count, "pairs") as activity:
        for start in range(0, count, AT_ONCE):
            batch = range(start, min(start + AT_ONCE, count))
            orders = [(texts[2 * i + a], texts[2 * i + 1 - a]) for i in batch for a in (0, 1)]
            extra = {} if thoughts else {CHOICES: list(prompts.RANKS)}
            requests = [
                ChatRequest(
                    (Message("system", system), Message("user", prompts.preference_pair(*order, thoughts))),
                    **config.chat.sampling,
                    extra=extra,
                )
                for order in orders
            ]
            try:
                replies = run.chat.model.complete(requests)
            except BudgetExceeded as error:
                return answers, str(error)
            read = [(prompts.read_preference(reply.text), reply.choices[0].scores) for reply in replies]
            for (forward, scores), (backward, backward_scores) in zip(read[::2], read[1::2]):
                answers.append(Answer(forward, backward, _margin(scores, backward_scores)))
            _record(run, windows, answers)
            activity.done = len(answers)
    return answers, ""


def _margin(forward: tuple[float, ...], backward: tuple[float, ...]) -> float | None:
    """Log-odds that the second window is better, from the log-probabilities of `prompts.RANKS` in both orders;
    None: they are not known."""
    return (forward[1] - forward[0]) - (backward[1] - backward[0]) if forward and backward else None


def _record(run: AdviceRun, windows: Windows, answers: list[Answer]) -> None:
    """One line per pair: its windows, by episode and step, and the answers in both orders."""
    lines = []
    for i, answer in enumerate(answers):
        starts = [[int(windows.episode[j]), int(windows.time[j])] for j in (2 * i, 2 * i + 1)]
        returns = [float(windows.return_from_start[j]) for j in (2 * i, 2 * i + 1)]
        row = {"windows": starts, "returns": returns, "forward": answer.forward, "backward": answer.backward}
        if answer.margin is not None:
            row["margin"] = round(answer.margin, 4)
        lines.append(json.dumps(row) + "\n")
    write_whole(run.folder / ANSWERS, "".join(lines))


def sample_pairs(run: AdviceRun, config: PreferRun) -> tuple[Windows, Bool[np.ndarray, " P"]]:
    """The windows of all pairs, `2 i` and `2 i + 1`, and which pairs are of episodes that nothing is fitted to."""
    count = min(max(1, round(config.validation_share * config.pairs)), config.pairs - 1)
    validates = np.zeros(config.pairs, bool)
    validates[1 + np.arange(count) * config.pairs // max(1, count)] = True  # evenly spaced
    starts = np.zeros((2, 2 * config.pairs), int)
    for episodes, pairs in ((run.train, ~validates), (run.validation, validates)):
        index = np.flatnonzero(np.repeat(pairs, 2))
        starts[:, index] = _sample_starts(run, config.windows.window, episodes, len(index))
    return run.data.windows_at(starts[0], starts[1], config.windows.window, gamma=config.gamma), validates


def labels(run: AdviceRun, config: PreferRun) -> tuple[Windows, Bool[np.ndarray, " P"], list[Answer]]:
    """The windows, the pairs that nothing is fitted to, and the answers of the file `config.labels`.

    Pairs with a window of a validation episode validate, as with a model's answers; if there are none, or nothing
    else, evenly spaced ones do.
    """
    (episode, step), rows = read_answers(config.labels, run.data, config.windows.window)
    answers = [Answer(*row) for row in rows]
    if len(answers) < 2:
        raise DataError(f"{config.labels} has {len(answers)} pair; at least two are needed, one to validate with")
    validates: np.ndarray = np.isin(episode, run.validation).reshape(-1, 2).any(axis=1)  # type: ignore[assignment]
    if bool(validates.all()) or not bool(validates.any()):
        count = min(max(1, round(config.validation_share * len(answers))), len(answers) - 1)
        validates = np.zeros(len(answers), bool)
        validates[1 + np.arange(count) * len(answers) // count] = True
    windows = run.data.windows_at(episode, step, config.windows.window, gamma=config.gamma)
    _record(run, windows, answers)
    return windows, validates, answers


def _sample_starts(run: AdviceRun, window: int, episodes: np.ndarray, number: int) -> np.ndarray:
    """The episodes and first steps of windows, int `[2, number]`; those of a pair are never the same.

    **Raises:** `DataError` if the episodes have but one.
    """

    def sample(count: int) -> np.ndarray:
        windows = run.data.sample(run.rng, count, window, episodes)
        return np.stack([windows.episode, windows.time])

    starts = sample(number)
    if number and np.maximum(run.data.lengths[episodes] - window + 1, 0).sum() < 2:
        raise DataError(
            f"{len(episodes)} of {len(run.data)} episodes have one window of {window} steps; two are needed for a "
            "pair: collect more, or take a shorter --window"
        )
    while len(duplicates := np.flatnonzero((starts[:, ::2] == starts[:, 1::2]).all(0))):
        starts[:, 2 * duplicates + 1] = sample(len(duplicates))
    return starts


def labeled_pairs(windows: Windows, answers: list[Answer], reads: tuple[str, ...]) -> Pairs:
    """The pairs that have an answer. **Arguments:** `reads`, the parts of observations that are kept."""
    wins = {i: answer.second_wins for i, answer in enumerate(answers) if answer.second_wins is not None}
    index = np.array([[2 * i, 2 * i + 1] for i in wins], int).reshape(-1, 2)
    obs = {name: windows.obs[name][index] for name in reads}
    return Pairs(obs, windows.action[index], np.array([*wins.values()], np.float32))


def prefer(config: PreferRun) -> dict[str, Any]:
    """Ask about pairs, fit the model, and write the potential to the run's folder.

    **Returns:** the summary. **Raises:** `ValueError` if no pair to learn from got an answer but a tie; what
    `advice_run` and the chat model raise.
    """
    with advice_run(config, "bkrl-prefer", ScriptedJudge) as run:
        stopped, author = "", config.labels or run.chat.model.name
        if config.labels:
            windows, validates, answers = labels(run, config)
        else:
            windows, validates = sample_pairs(run, config)
            answers, stopped = ask(run, config, windows)
        summary: dict[str, Any] = {
            **statistics(answers, windows.return_from_start.reshape(-1, 2)[: len(answers)]),
            **run.spent(stopped),
        }
        reads = observed_parts(run.env, run.world.family)
        pairs = labeled_pairs(windows, answers, reads)
        validation = validates[: len(answers)][[answer.second_wins is not None for answer in answers]]
        if not (pairs.second_wins[~validation] != 0.5).any():
            write_summary(run.folder, summary)
            raise ValueError(
                f"{author} answered {len(pairs)} of {len(validates)} pairs in a readable way, "
                f"{int(summary['ties'])} of them with a tie, and none of those to learn from has a winner"
                f"{': ' + stopped if stopped else ''}; ask about more --pairs, or choose another --chat.model; the "
                f"replies are in {run.folder / 'chat.jsonl'}"
            )
        model = make_model(run.env, run.world.family, config.model, (), config.windows.window)
        key = jax.random.key(config.run.seed)
        params, accuracies = fit(model, pairs.take(~validation), config.model, key, pairs.take(validation))
        summary |= accuracies
        model.params = jax.device_get(params)
        save_weights(run.folder / WEIGHTS, model.params)
        thoughts = config.answers == "written"
        prompt = digest(prompts.preference_system(run.world, thoughts), prompts.preference_pair("", "", thoughts))
        options = to_json(config.model)
        summary |= save_potential(
            run, "bk-pref", model, prompt, (WEIGHTS,), options=options, report=summary, author=author
        )
        write_summary(run.folder, summary)
        print(
            f"{int(summary['pairs'])} pairs by {author}: the first window wins in "
            f"{100 * summary['first_wins']:.0f}%, both orders agree in {100 * summary['consistent']:.0f}%, "
            f"{100 * summary['agreement']:.0f}% of {int(summary['compared'])} agree with the order of returns; "
            f"the model agrees with {100 * summary['validation_accuracy']:.0f}% of those in other "
            f"episodes, by which its epoch was chosen; {run.cost()}"
        )
        print(f"Everything is in {run.folder}")
    return summary
