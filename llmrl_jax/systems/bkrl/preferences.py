"""BK-Pref: a chat model says which of two windows is better, and a preference transformer learns from that.

Every pair is asked about in both orders. An answer that follows the order and not the windows is a tie, and so is one
that can be read in one order only, which may do so; how often the first window wins is reported as the position bias.
Replies come through the cache, so that an interrupted run goes on where it was (`--run.resume`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Bool
from safetensors.numpy import load_file, save_file

from llmrl_jax.chat import BudgetExceeded, ChatRequest, Message
from llmrl_jax.chat.protocol import CHOICES
from llmrl_jax.core.activity import doing
from llmrl_jax.core.config import to_json
from llmrl_jax.core.files import new_draft, write_whole
from llmrl_jax.data.transitions import DataError
from llmrl_jax.run.folder import write_summary
from llmrl_jax.systems.bkrl import prompts
from llmrl_jax.systems.bkrl.agent import make_features, seen_parts
from llmrl_jax.systems.bkrl.asking import Asked, asking, save_potential
from llmrl_jax.systems.bkrl.collected import Windows
from llmrl_jax.systems.bkrl.config import PreferRun
from llmrl_jax.systems.bkrl.manifest import ArtifactError, digest
from llmrl_jax.systems.bkrl.preference_model import Pairs, PreferenceModelConfig, PreferencePotential, fit
from llmrl_jax.systems.bkrl.scripted import ScriptedJudge


ANSWERS = "preferences.jsonl"
WEIGHTS = "preference_model.safetensors"
AT_ONCE = 32
"""Pairs per batch of requests."""


@dataclass(frozen=True)
class Answer:
    """What the model said about one pair."""

    forward: float | None
    """Of the pair in order: 1, the second is better; 0, the first; 0.5, a tie; None, unreadable."""
    backward: float | None
    """Of the pair in the other order."""
    margin: float | None = None
    """How much more likely the answer that the second is better is than the other, in nats, summed over both orders;
    None: not known."""

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


def statistics(answers: list[Answer], earned: np.ndarray) -> dict[str, float]:
    """What is reported of answers.

    **Arguments:** `earned`, `[P, 2]`, the returns from the first step of the windows on: a window in which the episode
    ends well has its reward.
    **Returns:** `unreadable`, replies; `first_wins`, how often the window that is shown first wins, of answers that are
    no tie (0.5: no position bias); `consistent`, pairs whose answers agree in both orders, of those with two; `ties`;
    `agreement` with the order of returns, of pairs whose returns differ and that are no tie, and their number
    `compared`.
    """
    every = [x for a in answers for x in (a.forward, a.backward)]
    clear = [x for x in every if x is not None and x != 0.5]
    both = [a for a in answers if a.forward is not None and a.backward is not None]
    said = [a.second_wins for a in answers]
    known = np.array([x is not None and x != 0.5 for x in said], bool)
    differ = earned[:, 0] != earned[:, 1]
    compared = known & differ
    wins = np.array([x if x is not None else 0.5 for x in said])
    right = (wins > 0.5) == (earned[:, 1] > earned[:, 0])

    def share(count: float, of: float) -> float:
        return count / of if of else float("nan")

    return {
        "pairs": float(len(answers)),
        "unreadable": float(sum(x is None for x in every)),
        "first_wins": share(sum(x == 0 for x in clear), len(clear)),
        "consistent": share(sum(a.forward == 1 - a.backward for a in both), len(both)),  # type: ignore[operator]
        "ties": float(sum(x == 0.5 for x in said)),
        "agreement": share(float(right[compared].sum()), float(compared.sum())),
        "compared": float(compared.sum()),
    }


def ask(asked: Asked, config: PreferRun, windows: Windows) -> tuple[list[Answer], str]:
    """Ask about pairs: window `2 i` and window `2 i + 1`, in both orders.

    **Returns:** the answers, fewer than pairs if the budget is spent; and why it stopped, empty: it did not.
    """
    thoughts = config.answers == "written"
    said, system = asked.captions(windows), prompts.preference_system(asked.world, thoughts)
    count = len(windows) // 2
    answers: list[Answer] = []
    with doing(f"asking {asked.chat.model.name}", count, "pairs") as activity:
        for start in range(0, count, AT_ONCE):
            these = range(start, min(start + AT_ONCE, count))
            orders = [(2 * i + a, 2 * i + 1 - a) for i in these for a in (0, 1)]
            requests = [
                ChatRequest(
                    (
                        Message("system", system),
                        Message("user", prompts.preference_pair(said[first], said[second], thoughts)),
                    ),
                    **config.chat.sampling,
                    extra={} if thoughts else {CHOICES: list(prompts.RANKS)},
                )
                for first, second in orders
            ]
            try:
                replies = asked.chat.model.complete(requests)
            except BudgetExceeded as error:
                return answers, str(error)
            found = [prompts.read_preference(reply.text) for reply in replies]
            scores = [reply.choices[0].scores for reply in replies]
            for i in range(0, len(found), 2):
                answers.append(Answer(found[i], found[i + 1], _margin(scores[i], scores[i + 1])))
            _record(asked, windows, answers)
            activity.done = len(answers)
    return answers, ""


def _margin(forward: tuple[float, ...], backward: tuple[float, ...]) -> float | None:
    """How much more likely it is that the second window is better, from the log-probabilities of `prompts.RANKS` in
    both orders; None: they are not known."""
    return (forward[1] - forward[0]) - (backward[1] - backward[0]) if forward and backward else None


def _record(asked: Asked, windows: Windows, answers: list[Answer]) -> None:
    """One line per pair: its windows, by episode and step, and the answers in both orders."""
    lines = []
    for i, answer in enumerate(answers):
        where = [[int(windows.episode[j]), int(windows.time[j])] for j in (2 * i, 2 * i + 1)]
        returns = [float(windows.earned[j]) for j in (2 * i, 2 * i + 1)]
        row = {"windows": where, "returns": returns, "forward": answer.forward, "backward": answer.backward}
        if answer.margin is not None:
            row["margin"] = round(answer.margin, 4)
        lines.append(json.dumps(row) + "\n")
    write_whole(asked.folder / ANSWERS, "".join(lines))


def draw(asked: Asked, config: PreferRun) -> tuple[Windows, Bool[np.ndarray, " P"]]:
    """The windows of all pairs, `2 i` and `2 i + 1`, and which pairs are of episodes that nothing is fitted to."""
    count = min(max(1, round(config.validation_share * config.pairs)), config.pairs - 1)
    validates = np.zeros(config.pairs, bool)
    validates[1 + np.arange(count) * config.pairs // max(1, count)] = True  # evenly spaced
    where = np.zeros((2, 2 * config.pairs), int)
    for episodes, pairs in ((asked.shown, ~validates), (asked.held, validates)):
        place = np.flatnonzero(np.repeat(pairs, 2))
        where[:, place] = _places(asked, config.windows.window, episodes, len(place))
    return asked.data.at(where[0], where[1], config.windows.window, gamma=config.gamma), validates


def _places(asked: Asked, window: int, episodes: np.ndarray, number: int) -> np.ndarray:
    """The episodes and first steps of windows, int `[2, number]`; those of a pair are never the same.

    **Raises:** `DataError` if the episodes have but one.
    """

    def draw(count: int) -> np.ndarray:
        some = asked.data.sample(asked.rng, count, window, episodes)
        return np.stack([some.episode, some.time])

    found = draw(number)
    if number and np.maximum(asked.data.lengths[episodes] - window + 1, 0).sum() < 2:
        raise DataError(
            f"{len(episodes)} of {len(asked.data)} episodes have one window of {window} steps; two are needed for a "
            "pair: collect more, or take a shorter --window"
        )
    while len(same := np.flatnonzero((found[:, ::2] == found[:, 1::2]).all(0))):
        found[:, 2 * same + 1] = draw(len(same))
    return found


def of_answers(windows: Windows, answers: list[Answer], reads: tuple[str, ...]) -> Pairs:
    """The pairs that have an answer. **Arguments:** `reads`, the parts of observations that are kept."""
    kept = [i for i, answer in enumerate(answers) if answer.second_wins is not None]
    index = np.array([[2 * i, 2 * i + 1] for i in kept], int).reshape(-1, 2)
    obs = {name: windows.obs[name][index] for name in reads}
    wins = np.array([answers[i].second_wins for i in kept], np.float32)
    return Pairs(obs, windows.action[index], wins)


def make_model(asked_env: Any, family: str, config: PreferenceModelConfig, params: Any, window: int) -> Any:
    """The preference transformer of a world."""
    reads = seen_parts(asked_env, family)
    space: Any = asked_env.observation_space(asked_env.default_params)
    features = make_features(space, reads, flat=True)
    return PreferencePotential(config, params, features, reads, len(asked_env.action_names), window)


def load_model(env: Any, family: str, config: PreferenceModelConfig, path: Path, window: int) -> Any:
    """The preference transformer whose weights `save_weights` wrote.

    **Raises:** `ArtifactError` for weights of a model of other sizes."""
    model = make_model(env, family, config, load_weights(path), window)
    spaces = env.observation_space(env.default_params).spaces
    obs = {name: jax.ShapeDtypeStruct((1, *spaces[name].shape), spaces[name].dtype) for name in model.reads}
    wanted = flatten_dict(jax.eval_shape(model.init, jax.random.key(0), obs), sep="/")
    found = flatten_dict(model.params, sep="/")
    for name in sorted(wanted.keys() | found.keys()):
        here, there = (str(tree[name].shape) if name in tree else "nothing" for tree in (found, wanted))
        if here != there:
            raise ArtifactError(
                f"{path} has the weights of another model: {name} is {here}, and {there} is needed; make it again"
            )
    return model


def prefer(config: PreferRun) -> dict[str, Any]:
    """Ask about pairs, fit the model, and write the potential to the run's folder.

    **Returns:** the summary. **Raises:** `ValueError` if no pair to learn from got an answer but a tie; what `asking`
    and the chat model raise.
    """
    with asking(config, "bkrl-prefer", ScriptedJudge) as asked:
        windows, validates = draw(asked, config)
        answers, stopped = ask(asked, config, windows)
        spent = asked.chat.spent
        summary: dict[str, Any] = {
            **statistics(answers, windows.earned.reshape(-1, 2)[: len(answers)]),
            "calls": spent.calls,
            "tokens": spent.tokens,
            "usd": spent.usd,
            **({"stopped": stopped} if stopped else {}),
        }
        reads = seen_parts(asked.env, asked.world.family)
        pairs = of_answers(windows, answers, reads)
        answered = [answer.second_wins is not None for answer in answers]
        held = validates[: len(answers)][answered]
        if not (pairs.second_wins[~held] != 0.5).any():
            write_summary(asked.folder, summary)
            raise ValueError(
                f"{asked.chat.model.name} answered {len(pairs)} of {config.pairs} pairs in a readable way, "
                f"{int(summary['ties'])} of them with a tie, and none of those to learn from has a winner"
                f"{': ' + stopped if stopped else ''}; ask about more --pairs, or choose another --chat.model; the "
                f"replies are in {asked.folder / 'chat.jsonl'}"
            )
        model = make_model(asked.env, asked.world.family, config.model, (), config.windows.window)
        key = jax.random.key(config.run.seed)
        params, found = fit(model, pairs.take(~held), config.model, key, pairs.take(held))
        summary |= found
        model.params = jax.device_get(params)
        save_weights(asked.folder / WEIGHTS, model.params)
        thoughts = config.answers == "written"
        asked_for = prompts.preference_system(asked.world, thoughts), prompts.preference_pair("", "", thoughts)
        prompt = digest(*asked_for)
        options = to_json(config.model)
        summary |= save_potential(asked, "bk-pref", model, prompt, (WEIGHTS,), options=options, report=summary)
        write_summary(asked.folder, summary)
        print(
            f"{int(summary['pairs'])} pairs by {asked.chat.model.name}: the first window wins in "
            f"{100 * summary['first_wins']:.0f}%, both orders agree in {100 * summary['consistent']:.0f}%, "
            f"{100 * summary['agreement']:.0f}% of {int(summary['compared'])} agree with the order of returns; "
            f"the model agrees with {100 * summary['validation_accuracy']:.0f}% of those in other "
            f"episodes, by which its epoch was chosen; {asked.cost()}"
        )
        print(f"Everything is in {asked.folder}")
    return summary


def save_weights(path: Path, params: Any) -> None:
    """Write the parameters of a preference transformer, atomically."""
    flat = {"/".join(name): np.asarray(x) for name, x in flatten_dict(params).items()}
    with new_draft(path) as draft:
        save_file(flat, draft)


def load_weights(path: Path) -> Any:
    """The parameters that `save_weights` wrote."""
    return unflatten_dict({tuple(name.split("/")): x for name, x in load_file(path).items()})
