"""BK-Code: a chat model writes `compute_potential`, sees its values on sampled windows, and improves it.

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
from llmrl_jax.systems.bkrl.advice import AdviceRun, advice_run, save_potential
from llmrl_jax.systems.bkrl.artifacts import program_source
from llmrl_jax.systems.bkrl.build import make_env
from llmrl_jax.systems.bkrl.collect import Windows, pad_starts
from llmrl_jax.systems.bkrl.config import CodeRun
from llmrl_jax.systems.bkrl.potentials import MIN_STD, ProgramPotential, digest, on_windows
from llmrl_jax.systems.bkrl.prompts import program_parts, world_of
from llmrl_jax.systems.bkrl.scripted import ScriptedCoder


PROGRAM, CANDIDATES = "program.json", "programs.jsonl"
SAMPLED, STARTS = 256, 32
"""Windows on which programs are admitted, and those of them that are made starts of an episode."""


@dataclass
class Candidate:
    """A candidate program and its evaluation."""

    round: int
    number: int
    repair: int
    """Number of repairs that led to it."""
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
    values, returns = values[windows.has_next], windows.return_to_go[windows.has_next]
    if not len(values) or np.ptp(values) == 0 or np.ptp(returns) == 0:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(stats.spearmanr(values, returns).statistic)


class ProgramSearch:
    """The conversation about programs."""

    def __init__(self, config: CodeRun, run: AdviceRun):
        self.config, self.run = config, run
        k = config.windows.window
        self.tests = run.data.sample(run.rng, config.tests, k, run.validation, gamma=config.gamma)
        self.system = prompts.code_system(run.world, k)
        self.candidates: list[Candidate] = []
        self.best: Candidate | None = None

    def _observation(self) -> dict[str, Any]:
        """One observation of the environment, of which sample windows are drawn."""
        return {name: x[0, -1] for name, x in self._numbers(self.tests).items()}

    def _numbers(self, windows: Windows) -> dict[str, Any]:
        return {name: windows.obs[name] for name in program_parts(self.run.world, self.run.env)}

    def _sampled(self) -> tuple[Any, Any, Any]:
        k, total = self.config.windows.window, len(self.tests)
        count = min(SAMPLED, total)
        # the last ones as at the start of an episode, as shaping shows them
        missing, starts = np.zeros(total, int), min(STARTS, count // 2)
        missing[count - starts : count] = 1 + np.arange(starts) % k
        windows = pad_starts(self.tests, missing)
        obs = {name: x[:count] for name, x in self._numbers(windows).items()}
        now, past = ({name: x[:, part] for name, x in obs.items()} for part in (-1, slice(0, -1)))
        return now, past, windows.action[:count]

    def admitted(self, replies: Sequence[str]) -> list[Program | SandboxError]:
        """For each reply its program, or why it has none; several are admitted at a time."""
        results: dict[int, Program | SandboxError] = {}
        sources: dict[int, str] = {}
        for i, reply in enumerate(replies):
            try:
                sources[i] = code_block(reply)
            except SandboxError as error:
                results[i] = error
        results |= dict(zip(sources, self.admitted_sources(list(sources.values()))))
        return [results[i] for i in range(len(replies))]

    def admitted_sources(self, sources: Sequence[str]) -> list[Program | SandboxError]:
        """For each text its program, or why it has none."""
        return admit_many(
            sources,
            self._observation(),
            window=self.config.windows.window,
            actions=len(self.run.env.action_names),
            windows=self._sampled(),
        )

    def take(self, source: str) -> None:
        """Admit and judge one program that no model of this run wrote."""
        candidate = Candidate(0, 0, 0, source)
        self.candidates.append(candidate)
        (result,) = self.admitted_sources([source])
        candidate.refused = str(result) if isinstance(result, SandboxError) else self.judge(candidate, result)

    @property
    def comparable(self) -> bool:
        """Return whether rewards follow some of the windows by which programs are compared, and not all equally."""
        returns = self.tests.return_to_go[self.tests.has_next]
        return bool(len(returns) and np.ptp(returns))

    def judge(self, candidate: Candidate, program: Program) -> str:
        """Compare a program with the rewards to come. **Returns:** why it is refused; empty: it is not."""
        values = on_windows(ProgramPotential(program), self.tests)
        candidate.spread = float(values.std())
        if not candidate.spread > MIN_STD:
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
        replies = [choice.text for choice in self.run.chat.model.complete([request])[0].choices]
        waiting = [(i, first, reply) for i, reply in enumerate(replies)]
        for repair in range(config.repairs + 1):
            refused = []
            for (i, messages, reply), result in zip(waiting, self.admitted([reply for _, _, reply in waiting])):
                candidate = Candidate(number, i, repair)
                self.candidates.append(candidate)
                reason = str(result) if isinstance(result, SandboxError) else self.judge(candidate, result)
                if not reason:
                    continue
                candidate.refused, candidate.source = reason, reply
                answer = Message("assistant", strip_thinking(reply) or "(no text)")
                refused.append((i, (*messages, answer, Message("user", prompts.code_repair(reason)))))
            if repair == config.repairs or not refused:
                return
            requests = [
                ChatRequest(conversation, sample=number * config.candidates + i, **config.chat.sampling)
                for i, conversation in refused
            ]
            answers = self.run.chat.model.complete(requests)
            waiting = [(i, conversation, answer.text) for (i, conversation), answer in zip(refused, answers)]

    def _first(self, number: int) -> tuple[Message, ...]:
        """The conversation with which a round begins."""
        start = (Message("system", self.system), Message("user", prompts.CODE_WRITE))
        run, best = self.run, self.best
        if best is None or best.program is None:
            return start
        rng = np.random.default_rng((self.config.run.seed, self.config.windows.seed, number))
        windows = run.data.sample(rng, self.config.shown, self.config.windows.window, run.train)
        values = self._values(best.program, windows)
        correlation = best.correlation if self.comparable else None
        samples = prompts.code_improve(run.captions(windows), values, correlation)
        answer = Message("assistant", f"```python\n{best.source.rstrip()}\n```")
        return (*start, answer, Message("user", samples))

    @staticmethod
    def _values(program: Program, windows: Windows) -> list[dict[str, float]]:
        """The potential of windows, and its components."""
        rows = []
        for i in range(len(windows)):
            now = {name: x[i, -1] for name, x in windows.obs.items()}
            past = {name: x[i, :-1] for name, x in windows.obs.items()}
            potential, components = program(now, past, windows.action[i])
            rows.append({"potential": float(potential), **{name: float(x) for name, x in components.items()}})
        return rows


def write_programs(config: CodeRun) -> dict[str, Any]:
    """Ask for programs, or read one, and write the best one to the run's folder: `program.json` with its
    `potential.json`, and all candidates to `programs.jsonl`.

    **Returns:** the summary. **Raises:** `ValueError` if no program was admitted; what `advice_run`, `program_source`
    and the chat model raise.
    """
    source = program_source(config.program, world_of(make_env(config.windows.env))) if config.program else ""
    with advice_run(config, "bkrl-code", ScriptedCoder) as run:
        writing = ProgramSearch(config, run)
        if not writing.comparable:
            print(
                "note: no reward follows the windows of the held-out episodes, so programs cannot be compared, and the "
                "first one is kept: collect more episodes"
            )
        stopped, author = "", config.program or run.chat.model.name
        if source:
            writing.take(source)
            _record(run, writing.candidates)
        rounds = 0 if source else config.rounds
        with doing(f"{author} writes programs", rounds, "rounds") as activity:
            for number in range(rounds):
                try:
                    writing.round(number)
                except BudgetExceeded as error:
                    stopped = str(error)
                    break
                finally:
                    _record(run, writing.candidates)
                activity.done = number + 1
        refused = [c for c in writing.candidates if c.refused]
        summary = {
            "candidates": len(writing.candidates),
            "admitted": len(writing.candidates) - len(refused),
            "refused": len(refused),
            "comparable": writing.comparable,
            **run.spent(stopped),
        }
        if writing.best is None or writing.best.program is None:
            write_summary(run.folder, summary)
            reason = refused[-1].refused if refused else stopped
            subject = f"{author} was not admitted" if source else f"{author} wrote no program that was admitted"
            raise ValueError(f"{subject}; the last reason was: {reason}")
        summary |= _save(run, writing, writing.best, summary)
        write_summary(run.folder, summary)
        _print(run, writing, summary)
    return summary


def _save(run: AdviceRun, writing: ProgramSearch, best: Candidate, summary: dict[str, Any]) -> dict[str, Any]:
    assert best.program is not None
    best.program.save(run.folder / PROGRAM)
    prompt = digest(best.source) if writing.config.program else digest(writing.system, prompts.CODE_WRITE)
    report = summary | {"correlation": best.correlation}
    potential, author = ProgramPotential(best.program), writing.config.program
    statistics = save_potential(run, "bk-code", potential, prompt, (PROGRAM,), report=report, author=author)
    return {"correlation": best.correlation, **statistics}


def _record(run: AdviceRun, candidates: list[Candidate]) -> None:
    lines = [json.dumps(candidate.to_json()) + "\n" for candidate in candidates]
    write_whole(run.folder / CANDIDATES, "".join(lines))


def _print(run: AdviceRun, writing: ProgramSearch, summary: dict[str, Any]) -> None:
    for candidate in writing.candidates:
        outcome = candidate.refused or f"rank correlation {candidate.correlation:+.3f}"
        repair = f", repair {candidate.repair}" if candidate.repair else ""
        print(f"round {candidate.round}, candidate {candidate.number}{repair}: {outcome}")
    print(
        f"kept: round {writing.best.round}, candidate {writing.best.number}, "  # type: ignore[union-attr]
        f"rank correlation {summary['correlation']:+.3f} with the rewards of {len(run.validation)} held-out episodes, "
        f"by which it was chosen; {run.cost()}; everything is in {run.folder}"
    )
