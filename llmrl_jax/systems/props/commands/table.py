"""`llmrl props table`: the published tasks by several methods, beside the published figures."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from llmrl_jax.agents.population import make_population_evaluator
from llmrl_jax.core.config import to_json
from llmrl_jax.core.files import write_whole
from llmrl_jax.run import info
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.folder import folder_name, held
from llmrl_jax.run.loop import train as run_training
from llmrl_jax.run.signals import StopRequest
from llmrl_jax.systems.props.adviser import PolicyAdviser
from llmrl_jax.systems.props.config import PropsConfig
from llmrl_jax.systems.props.optimizers import NUMERIC, make_numeric
from llmrl_jax.systems.props.search import closed, closing_of, iterations_of, judge, make_search, population_of
from llmrl_jax.systems.props.study import Study
from llmrl_jax.systems.props.tasks import PUBLISHED, Task, get


SCRIPTED = "scripted"
TITLES = {
    SCRIPTED: "scripted adviser", "random_search": "random search", "hill_climbing": "hill climbing", "ars": "ARS",
    "cma_es": "CMA-ES", "open_es": "OpenAI-ES", "cem": "CEM",
}  # fmt: skip
EPISODES = 20
"""Of an evaluation, as published."""
PAGE = "props-table.md"

INTRODUCTION = """# ProPS: the fifteen tasks

Mean return in fresh episodes of the best policy of each search, over seeds (+- standard error over them). How many
seeds, episodes of search at most and fresh episodes stands in the last column: the published budget is 400
proposals of 20 episodes, 8,000 in all. Methods with populations play as many whole ones as fit, and the centers of
those that draw around one (`episodes` in the JSON). All methods search the same parameters in the same box (linear
policies in [-6, 6], tables over their actions), each with one setting for all tasks. Linear outputs are not clipped, so
that MuJoCo's costs of actions beyond their range count, as they do in Gymnasium.
*Bound* is what no policy exceeds in the mean, where that is known exactly. The published columns are those of the
paper's page, with gpt-4o and 10 seeds: they are means while searching, not in fresh episodes, and their spread is
called a standard error in one place and a standard deviation in another. The *scripted adviser* is a fixed local search
that answers in a language model's stead, through the same prompts and the same parser; it is no language model.
`seconds` in the JSON are no speeds: the machine had other work, and some searches were stopped in between
(null: their seconds were not kept).

Made by `llmrl props table`; the figures are in [props-table.json](props-table.json).

"""


def table(
    tasks: tuple[str, ...] = ("all",),
    methods: tuple[str, ...] = (SCRIPTED, "random_search", "ars", "cma_es"),
    seeds: int = 10,
    budget: int = 8000,
    final_episodes: int = 100,
    workers: int = 2,
    out: Path = Path("docs/systems"),
    work: Path = Path("runs/props-table"),
    again: bool = False,
) -> int:
    """The fifteen tasks by several methods beside the published figures, as a page and JSON; goes on where it stopped.

    Args:
        tasks: Tasks, by name; `all`: the paper's fifteen.
        methods: `scripted`, the scripted adviser, and numeric methods (random_search, hill_climbing, ars, cma_es,
            open_es, cem).
        seeds: Searches of each.
        budget: Episodes of each search.
        final_episodes: Fresh episodes for the best policy of each.
        workers: Searches of the scripted adviser at a time.
        out: Folder of the page `props-table.md` and of `props-table.json`.
        work: Folder for the searches: logs, checkpoints, learning curves. One that was stopped goes on from there.
        again: Measure anew: what is there already of these tasks and methods is removed first.
    """
    for name, value, least in (
        ("seeds", seeds, 1), ("budget", budget, EPISODES), ("final_episodes", final_episodes, 2),
        ("workers", workers, 1),
    ):  # fmt: skip
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
    for method in methods:
        if method != SCRIPTED and method not in NUMERIC:
            raise ValueError(f"there is no method {method!r}; there are {SCRIPTED}, {', '.join(NUMERIC)}")
    chosen = list(PUBLISHED) if list(tasks) == ["all"] else [get(name) for name in tasks]
    record = out / "props-table.json"
    with contextlib.ExitStack() as stack:
        for folder in sorted({out.resolve(), work.resolve()}):  # two tables in one place would lose each other's rows
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(folder))
        request = stack.enter_context(StopRequest())
        rows: list[dict[str, Any]] = json.loads(record.read_text())["rows"] if record.exists() else []
        if again:
            rows = [r for r in rows if not (r["method"] in methods and any(r["task"] == t.name for t in chosen))]
            for task in chosen:
                for method in methods:
                    for path in _folders(work, task, method, seeds, budget):
                        shutil.rmtree(path, ignore_errors=True)
            _write(out, rows)
        measured = False
        for task in chosen:
            for method in methods:
                asked = {"task": task.name, "method": method, "seeds": seeds, "budget": budget}
                asked["final_episodes"] = final_episodes
                if any(row.items() >= asked.items() for row in rows):
                    continue
                found = None if request.name else _measured(task, asked, workers, work, request)
                if found is None:
                    print(f"stopped by {request.name}; the same command{' without --again' * again} goes on")
                    return 0
                rows = [r for r in rows if (r["task"], r["method"]) != (task.name, method)] + [asked | found]
                _write(out, rows)
                measured = True
                print(f"{task.name}, {method}: {_mean(found)} ({found['seconds']:.0f} s)", flush=True)
        if not measured:
            _write_page(out, rows)
            print(f"all of it is measured already (--again measures anew); the page is {out / PAGE}")
    return 0


def _folders(work: Path, task: Task, method: str, seeds: int, budget: int) -> list[Path]:
    """Where searches are kept: one of all seeds, or the scripted adviser's, one for each."""
    begin = f"{folder_name(task.name)}-{budget}"
    return (
        [work / f"{begin}-{seed}" for seed in range(seeds)]
        if method == SCRIPTED
        else [work / f"{begin}-{method}-{seeds}"]
    )


def _measured(
    task: Task, asked: dict[str, Any], workers: int, work: Path, request: StopRequest
) -> dict[str, Any] | None:
    """What a row says, beside what was asked for; None where a signal stopped it."""
    seeds, budget, final = asked["seeds"], asked["budget"], asked["final_episodes"]
    found: Any
    if asked["method"] == SCRIPTED:
        found = _by_adviser(task, seeds, budget, final, workers, work, request)
    else:
        found = _by_numbers(task, asked["method"], seeds, budget, final, work, request)
    if found is None:
        return None
    values, best, steps, episodes, seconds = found
    spread = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return {
        "final": float(np.mean(values)),
        "standard_error": spread,
        "finals": [float(v) for v in values],
        "best": [float(v) for v in best],
        "episodes": int(episodes),
        "steps": int(np.sum(steps)),
        "seconds": round(seconds, 1),
        "date": time.strftime("%Y-%m-%d"),
    }


@dataclass(frozen=True)
class NumericRun:
    """A search by a numeric method, all seeds side by side."""

    task: str
    method: str
    seeds: int
    run: RunConfig
    episodes: int = EPISODES


def _by_numbers(
    task: Task, method: str, seeds: int, budget: int, final: int, work: Path, request: StopRequest
) -> tuple[Any, Any, Any, int, float] | None:
    """Final and best returns, steps, the episodes of one search, and seconds; as a run in `work`, saved after every
    iteration."""
    env, env_params, policy = task.make()
    evaluate = make_population_evaluator(env, env_params, policy)
    optimizer = make_numeric(method, policy)
    (folder,) = _folders(work, task, method, seeds, budget)
    run = RunConfig(
        name=folder.name,
        out=str(work),
        checkpoint_every=1,
        keep=1,
        resume=(folder / "config.json").exists(),
        progress="bar" if sys.stdout.isatty() else "off",
    )
    result = run_training(
        make_search(optimizer, evaluate, seeds=seeds, episodes=EPISODES),
        run,
        num_updates=iterations_of(optimizer, budget, EPISODES),
        full_config=NumericRun(task.name, method, seeds, run),
        title=f"{task.name}, {method}",
        shown={"best": "best", "episode_return": "mean"},
        again="the same command goes on",
    )
    if result.stopped:
        request.name = result.stopped
        return None
    started = time.monotonic()
    state = jax.jit(lambda state: closed(optimizer, evaluate, state, EPISODES))(result.state)
    returns = jax.device_get(jax.jit(lambda state: judge(evaluate, state, final))(state))
    seconds = result.seconds + result.compile_seconds + time.monotonic() - started
    played = (result.update * population_of(optimizer) + closing_of(optimizer)) * EPISODES
    return returns.mean(axis=1, dtype=np.float64), state.value, state.steps, played, seconds


def _by_adviser(
    task: Task, seeds: int, budget: int, final: int, workers: int, work: Path, request: StopRequest
) -> tuple[Any, Any, Any, int, float] | None:
    """ProPS's loop with the scripted adviser; the warm-up counts. See `_by_numbers`."""
    started = time.monotonic()
    arm = task.props
    warmup = min(arm.warmup, budget // EPISODES - 1)
    iterations = max(1, budget // EPISODES - warmup)
    config = PropsConfig(
        iterations=iterations, episodes=EPISODES, warmup=warmup, final_episodes=final, warmup_episodes=EPISODES
    )

    folders = _folders(work, task, SCRIPTED, seeds, budget)

    def one(seed: int) -> dict[str, Any]:
        chat = {"temperature": 1.0, "max_tokens": 100_000}
        study = Study(task, config, seed, PolicyAdviser(), chat, folders[seed])
        study.run(lambda: bool(request.name))
        return study.judge() if study.done else study.unjudged()

    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(one, range(seeds)))
    if any(f["final"] is None for f in found):
        return None
    seconds = time.monotonic() - started
    columns = ([f[name] for f in found] for name in ("final", "value", "steps"))
    return *columns, max(f["episodes"] for f in found), seconds


def _figure(pair: tuple[float, float | None] | None) -> str:
    if pair is None:
        return ""
    return f"{pair[0]:.2f}" if pair[1] is None else f"{pair[0]:.2f} +- {pair[1]:.2f}"


def _mean(row: dict[str, Any]) -> str:
    return _figure((row["final"], row["standard_error"]))


def _write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The page and its record."""
    out.mkdir(parents=True, exist_ok=True)
    facts = {"versions": info.versions(), "machine": info.machine()}
    write_whole(out / "props-table.json", json.dumps(to_json({**facts, "rows": list(rows)}), indent=1) + "\n")
    _write_page(out, rows)


def _write_page(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    methods = [m for m in TITLES if any(row["method"] == m for row in rows)]
    head = ["task", "parameters", "bound", "best published baseline", "ProPS", "ProPS+", *(TITLES[m] for m in methods)]
    head.append("seeds, episodes, fresh")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for task in PUBLISHED:
        mine = {row["method"]: row for row in rows if row["task"] == task.name}
        if not mine:
            continue
        baseline = next(iter(task.published.items()))
        cells = [task.title, str(task.num_params), "" if task.bound is None else f"{task.bound:g}"]
        cells += [f"{baseline[0]} {_figure(baseline[1])}", *(_figure(task.published[m]) for m in ("ProPS", "ProPS+"))]
        for m in methods:
            row = mine.get(m)
            cells.append("" if row is None else _mean(row))
        said = {f"{row['seeds']}, {row['budget']:,}, {row['final_episodes']}" for row in mine.values()}
        cells.append("; ".join(sorted(said)))
        lines.append("| " + " | ".join(cells) + " |")
    write_whole(out / PAGE, INTRODUCTION + "\n".join(lines) + "\n")
