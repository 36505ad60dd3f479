"""BK-Code: a chat model writes `compute_potential`, sees what it says of sampled windows, and improves it.

Programs are admitted by `llmrl_jax.advice.sandbox`, and compared by the rank correlation of their potential with the
discounted rewards to come, in episodes that the model has not seen. Programs whose potential does not vary there are
refused. The best one is kept, of all rounds.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from llmrl_jax.advice.sandbox import Program, SandboxError, admit_many, code_block
from llmrl_jax.chat import BudgetExceeded, ChatRequest, Message, strip_thinking
from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import write_whole
from llmrl_jax.run.folder import write_summary
from llmrl_jax.systems.bkrl import prompts
from llmrl_jax.systems.bkrl.artifacts import PROGRAM
from llmrl_jax.systems.bkrl.asking import Asked, asking, save_potential
from llmrl_jax.systems.bkrl.collected import Windows, begun
from llmrl_jax.systems.bkrl.config import CodeRun
from llmrl_jax.systems.bkrl.manifest import digest
from llmrl_jax.systems.bkrl.potentials import LEAST_SPREAD, ProgramPotential, on_windows
from llmrl_jax.systems.bkrl.samples import ScriptedCoder
from llmrl_jax.systems.bkrl.worlds import described


CANDIDATES = "programs.jsonl"
SAMPLED, STARTS = 256, 32
"""Windows on which programs are admitted, and those of them that are made starts of an episode."""


@dataclass
class Candidate:
    """One reply, and what became of it."""

    round: int
    number: int
    repair: int
    """How many repairs led to it."""
    source: str = ""
    refused: str = ""
    """Why there is no program; empty: there is one."""
    correlation: float = float("nan")
    """Spearman's, of its potential and the rewards to come."""
    spread: float = float("nan")
    """Standard deviation of its potential on the windows of the test."""
    components: tuple[str, ...] = ()
    program: Program | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        keep = ("round", "number", "repair", "refused", "correlation", "spread", "components", "source")
        return {name: getattr(self, name) for name in keep}


def correlation(values: np.ndarray, windows: Windows) -> float:
    """Spearman's rank correlation of potentials and the rewards to come; 0 where either is constant. Windows that no
    step follows are left out: shaping takes 0 for the potential of a terminal state, and the rewards after a truncation
    are unknown."""
    values, to_come = values[windows.followed], windows.to_come[windows.followed]
    if not len(values) or np.ptp(values) == 0 or np.ptp(to_come) == 0:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(stats.spearmanr(values, to_come).statistic)


class Writing:
    """The conversation about programs."""

    def __init__(self, config: CodeRun, asked: Asked):
        self.config, self.asked = config, asked
        k = config.windows.window
        self.tests = asked.data.sample(asked.rng, config.tests, k, asked.held, gamma=config.gamma)
        self.system = prompts.code_system(asked.world, k)
        self.candidates: list[Candidate] = []
        self.best: Candidate | None = None

    def _observation(self) -> dict[str, Any]:
        """One observation of the world, of which sample windows are drawn."""
        return {name: x[0, -1] for name, x in self._numbers(self.tests).items()}

    def _numbers(self, windows: Windows) -> dict[str, Any]:
        return {name: windows.obs[name] for name in described(self.asked.world, self.asked.env)}

    def _sampled(self) -> tuple[Any, Any, Any]:
        k, total = self.config.windows.window, len(self.tests)
        count = min(SAMPLED, total)
        # the last ones as at the start of an episode, as shaping shows them
        missing, starts = np.zeros(total, int), min(STARTS, count // 2)
        missing[count - starts : count] = 1 + np.arange(starts) % k
        windows = begun(self.tests, missing)
        obs = {name: x[:count] for name, x in self._numbers(windows).items()}
        now, past = ({name: x[:, part] for name, x in obs.items()} for part in (-1, slice(0, -1)))
        return now, past, windows.action[:count]

    def admitted(self, replies: Sequence[str]) -> list[Program | SandboxError]:
        """For each reply its program, or why it has none; several are admitted at a time."""
        found: dict[int, Program | SandboxError] = {}
        sources: dict[int, str] = {}
        for i, reply in enumerate(replies):
            try:
                sources[i] = code_block(reply)
            except SandboxError as error:
                found[i] = error
        made = admit_many(
            list(sources.values()),
            self._observation(),
            window=self.config.windows.window,
            actions=len(self.asked.env.action_names),
            windows=self._sampled(),
        )
        found |= dict(zip(sources, made))
        return [found[i] for i in range(len(replies))]

    @property
    def comparable(self) -> bool:
        """Whether rewards follow some of the windows by which programs are compared, and not all equally."""
        to_come = self.tests.to_come[self.tests.followed]
        return bool(len(to_come) and np.ptp(to_come))

    def judge(self, candidate: Candidate, program: Program) -> str:
        """Compare a program with the rewards to come. **Returns:** why it is refused; empty: it is not."""
        values = on_windows(ProgramPotential(program), self.tests)
        candidate.spread = float(values.std())
        if not candidate.spread > LEAST_SPREAD:
            return (
                f"the potential has a standard deviation of {candidate.spread:.1g} in {len(values)} situations from "
                "play, so it says nothing about them: let it depend on what differs between situations"
            )
        candidate.program, candidate.source, candidate.components = program, program.source, program.components
        candidate.correlation = correlation(values, self.tests)
        if self.best is None or candidate.correlation > self.best.correlation:
            self.best = candidate
        return ""

    def round(self, number: int) -> None:
        """Ask for candidates, each repaired until it is admitted or the repairs are used up."""
        config = self.config
        first = self._first(number)
        request = ChatRequest(first, n=config.candidates, sample=number * config.candidates, **config.chat.sampling)
        replies = [choice.text for choice in self.asked.chat.model.complete([request])[0].choices]
        waiting = [(i, first, reply) for i, reply in enumerate(replies)]
        for repair in range(config.repairs + 1):
            refused = []
            for (i, messages, reply), made in zip(waiting, self.admitted([reply for _, _, reply in waiting])):
                candidate = Candidate(number, i, repair)
                self.candidates.append(candidate)
                reason = str(made) if isinstance(made, SandboxError) else self.judge(candidate, made)
                if not reason:
                    continue
                candidate.refused, candidate.source = reason, reply
                said = Message("assistant", strip_thinking(reply) or "(no text)")
                again = (*messages, said, Message("user", prompts.code_repair(reason)))
                refused.append((i, again))
            if repair == config.repairs or not refused:
                return
            requests = [
                ChatRequest(again, sample=number * config.candidates + i, **config.chat.sampling)
                for i, again in refused
            ]
            answers = self.asked.chat.model.complete(requests)
            waiting = [(i, again, answer.text) for (i, again), answer in zip(refused, answers)]

    def _first(self, number: int) -> tuple[Message, ...]:
        """The conversation with which a round begins."""
        start = (Message("system", self.system), Message("user", prompts.CODE_WRITE))
        asked, best = self.asked, self.best
        if best is None or best.program is None:
            return start
        rng = np.random.default_rng((self.config.run.seed, self.config.windows.seed, number))
        windows = asked.data.sample(rng, self.config.shown, self.config.windows.window, asked.shown)
        values = self._values(best.program, windows)
        correlation = best.correlation if self.comparable else None
        shown = prompts.code_improve(asked.captions(windows), values, correlation)
        said = Message("assistant", f"```python\n{best.source.rstrip()}\n```")
        return (*start, said, Message("user", shown))

    @staticmethod
    def _values(program: Program, windows: Windows) -> list[dict[str, float]]:
        """The potential of windows, and its components."""
        found = []
        for i in range(len(windows)):
            now = {name: x[i, -1] for name, x in windows.obs.items()}
            past = {name: x[i, :-1] for name, x in windows.obs.items()}
            potential, components = program(now, past, windows.action[i])
            found.append({"potential": float(potential), **{name: float(x) for name, x in components.items()}})
        return found


def write_programs(config: CodeRun) -> dict[str, Any]:
    """Ask for programs, and write the best one to the run's folder: `program.json` with its `potential.json`, and all
    candidates to `programs.jsonl`.

    **Returns:** the summary. **Raises:** `ValueError` if no program was admitted; what `asking` and the chat model
    raise.
    """
    with asking(config, "bkrl-code", ScriptedCoder) as asked:
        writing = Writing(config, asked)
        if not writing.comparable:
            print(
                "note: no reward follows the windows of the held-out episodes, so programs cannot be compared, and the "
                "first one is kept: collect more episodes"
            )
        stopped = ""
        with doing(f"{asked.chat.model.name} writes programs", config.rounds, "rounds") as activity:
            for number in range(config.rounds):
                try:
                    writing.round(number)
                except BudgetExceeded as error:
                    stopped = str(error)
                    break
                finally:
                    _record(asked, writing.candidates)
                activity.done = number + 1
        spent = asked.chat.spent
        refused = [c for c in writing.candidates if c.refused]
        summary = {
            "candidates": len(writing.candidates),
            "admitted": len(writing.candidates) - len(refused),
            "refused": len(refused),
            "comparable": writing.comparable,
            "calls": spent.calls,
            "tokens": spent.tokens,
            "usd": spent.usd,
            **({"stopped": stopped} if stopped else {}),
        }
        if writing.best is None or writing.best.program is None:
            write_summary(asked.folder, summary)
            why = refused[-1].refused if refused else stopped
            raise ValueError(f"{asked.chat.model.name} wrote no program that was admitted; the last reason was: {why}")
        summary |= _save(asked, writing, writing.best, summary)
        write_summary(asked.folder, summary)
        _print(asked, writing, summary)
    return summary


def _save(asked: Asked, writing: Writing, best: Candidate, summary: dict[str, Any]) -> dict[str, Any]:
    assert best.program is not None
    best.program.save(asked.folder / PROGRAM)
    prompt = digest(writing.system, prompts.CODE_WRITE)
    report = summary | {"correlation": best.correlation}
    found = save_potential(asked, "bk-code", ProgramPotential(best.program), prompt, (PROGRAM,), report=report)
    return {"correlation": best.correlation, **found}


def _record(asked: Asked, candidates: list[Candidate]) -> None:
    lines = [json.dumps(candidate.to_json()) + "\n" for candidate in candidates]
    write_whole(asked.folder / CANDIDATES, "".join(lines))


def _print(asked: Asked, writing: Writing, summary: dict[str, Any]) -> None:
    for candidate in writing.candidates:
        said = candidate.refused or f"rank correlation {candidate.correlation:+.3f}"
        again = f", repair {candidate.repair}" if candidate.repair else ""
        print(f"round {candidate.round}, candidate {candidate.number}{again}: {said}")
    print(
        f"kept: round {writing.best.round}, candidate {writing.best.number}, "  # type: ignore[union-attr]
        f"rank correlation {summary['correlation']:+.3f} with the rewards of {len(asked.held)} held-out episodes, by "
        f"which it was chosen; {asked.cost()}; everything is in {asked.folder}"
    )
