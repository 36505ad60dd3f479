"""Several methods on the published tasks, compared with the published results: the implementation of `llmrl props
table`."""

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
from types import NoneType
from typing import Any

import jax
import numpy as np

from llmrl_jax.agents.population import make_population_evaluator
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import nearest
from llmrl_jax.core.config import read_json, to_json
from llmrl_jax.core.files import check_writable, write_whole
from llmrl_jax.run import info
from llmrl_jax.run.checkpoint import CheckpointError
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.folder import begin, folder_name, held, open_folder
from llmrl_jax.run.loop import train as run_training
from llmrl_jax.run.signals import StopRequest
from llmrl_jax.systems.props.config import EPISODES, SCRIPTED, PropsConfig, TableConfig
from llmrl_jax.systems.props.optimizers import NUMERIC, make_numeric
from llmrl_jax.systems.props.scripted import PolicyAdviser
from llmrl_jax.systems.props.search import (
    evaluate_centers,
    iterations_of,
    judge,
    make_search,
    num_final_evaluations,
    population_of,
)
from llmrl_jax.systems.props.study import Study
from llmrl_jax.systems.props.tasks import PUBLISHED, TASKS, Task, get
from llmrl_jax.systems.props.train import chosen_tasks


TITLES = {
    SCRIPTED: "scripted adviser", "random_search": "random search", "hill_climbing": "hill climbing", "ars": "ARS",
    "cma_es": "CMA-ES", "open_es": "OpenAI-ES", "cem": "CEM",
}  # fmt: skip
PAGE = "props-table.md"
RECORD = "props-table.json"
ROW: dict[str, Any] = {
    "task": str, "method": str, "seeds": int, "budget": int, "final_episodes": int, "final": (int, float),
    "standard_error": (int, float, NoneType),
}  # fmt: skip
"""Entries of a row of the record that the page needs: names and types."""

INTRODUCTION = """# ProPS: the fifteen tasks

Mean return in fresh episodes of the best policy of each search, over seeds (+- standard error over them). The last
column has the numbers of seeds, of episodes of search at most, and of fresh episodes: the published budget is 400
proposals of 20 episodes, 8,000 in all. Methods with populations play as many whole ones as fit, and the centers of
those that draw around one (`episodes` in the JSON). All methods search the same parameters in the same box (linear
policies in [-6, 6], tables over their actions), each with one setting for all tasks. Linear outputs are not clipped, so
that MuJoCo's costs of actions beyond their range count, as they do in Gymnasium.
*Bound* is the largest possible mean, where it is known exactly. The published columns are those of the
paper's page, with gpt-4o and 10 seeds: they are means while searching, not in fresh episodes, and their spread is
called a standard error in one place and a standard deviation in another. The *scripted adviser* is a fixed local search
that answers in place of a language model, through the same prompts and the same parser; it is no language model.
`seconds` in the JSON do not measure speed: the machine had other work, and some searches were stopped in between
(null: their seconds were not kept).

Made by `llmrl props table`; the figures are in [props-table.json](props-table.json).

"""


def make_table(config: TableConfig) -> int:
    """Run the missing measurements, and write the page after each task and method.

    The searches are saved in the run's folder, where a later call continues stopped ones.

    **Returns:** 0. **Raises:** `ValueError` for an unknown method.
    """
    for method in config.methods:
        if method != SCRIPTED and method not in NUMERIC:
            methods = [SCRIPTED, *NUMERIC]
            raise ValueError(
                f"there is no method {method!r}{nearest(method, methods)} (there are {', '.join(methods)})"
            )
    tasks = chosen_tasks(config.tasks)
    check_writable(config.page, "--page", folder=True)
    # errors are raised before anything is written
    earlier = _rows(config.page)
    pairs = [(task, method) for task in tasks for method in config.methods]
    _check_packages([pair for pair in pairs if config.again or not _is_measured(earlier, _row_key(config, *pair))])
    work = open_folder(config.run, "props-table")
    with contextlib.ExitStack() as stack:
        for folder in sorted({config.page.resolve(), work.resolve()}):  # two tables in one folder would lose rows
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(folder))
        begin(work, config)
        request = stack.enter_context(StopRequest())
        rows = _remove(config, tasks, work) if config.again else _rows(config.page)
        measured = False
        for task in tasks:
            for method in config.methods:
                key = _row_key(config, task, method)
                if _is_measured(rows, key):
                    continue
                with doing(f"{task.name}, {method}"):
                    measurements = None if request.name else _measure(task, key, config.workers, work, request)
                if measurements is None:
                    flag = " (without --again)" if config.again else ""
                    print(f"stopped by {request.name}; continue with --run.resume {work}{flag}")
                    return 0
                rows = [r for r in rows if (r["task"], r["method"]) != (task.name, method)] + [key | measurements]
                _write(config.page, rows)
                measured = True
                print(f"{task.name}, {method}: {_mean(measurements)} ({measurements['seconds']:.0f} s)", flush=True)
        if not measured:
            _write_page(config.page, rows)
            print(f"all of it is measured already (--again measures once more); the page is {config.page / PAGE}")
    return 0


def _row_key(config: TableConfig, task: Task, method: str) -> dict[str, Any]:
    """The entries of a row that the settings determine."""
    key = {"task": task.name, "method": method, "seed": config.run.seed, "seeds": config.seeds}
    return key | {"budget": config.budget, "final_episodes": config.final_episodes}


def _is_measured(rows: Sequence[dict[str, Any]], key: dict[str, Any]) -> bool:
    return any(row.items() >= key.items() for row in rows)


def _check_packages(measurements: Sequence[tuple[Task, str]]) -> None:
    """**Raises** `ModuleNotFoundError` for a package that a task or a method lacks."""
    policies = {task.name: task.make()[2] for task, _ in measurements}
    for task, method in measurements:
        if method in NUMERIC:
            make_numeric(method, policies[task.name])


def _rows(page: Path) -> list[dict[str, Any]]:
    """The rows of a page's record; rows without a seed, from older versions, started from seed 0.

    **Raises:** `ValueError` for a record that this command did not write."""
    record = page / RECORD
    if not record.exists():
        return []
    value = read_json(record)
    rows = value.get("rows") if isinstance(value, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"{record} has no list of rows, as `llmrl props table` writes it: put the file back")
    for i, row in enumerate(rows):
        if not isinstance(row, dict) or not all(isinstance(row.get(name), kind) for name, kind in ROW.items()):
            raise ValueError(
                f"{record}: row {i + 1} of `rows` is {str(row)[:60]}; {', '.join(ROW)} are needed: put the file back, "
                "or take the row out"
            )
    return [{"seed": 0, **row} for row in rows]


def _remove(config: TableConfig, tasks: Sequence[Task], work: Path) -> list[dict[str, Any]]:
    """Remove the searches of these tasks and methods, and their rows. **Returns:** the others."""
    names = [task.name for task in tasks]
    rows = [r for r in _rows(config.page) if r["method"] not in config.methods or r["task"] not in names]
    for task in tasks:
        for method in config.methods:
            for path in _folders(work, task, method, config.run.seed, config.seeds, config.budget):
                shutil.rmtree(path, ignore_errors=True)
    _write(config.page, rows)
    return rows


def _folders(work: Path, task: Task, method: str, seed: int, seeds: int, budget: int) -> list[Path]:
    """The folders of searches: one per search for the scripted adviser, one for all seeds for other methods."""
    start = f"{folder_name(task.name)}-{budget}"
    if method == SCRIPTED:
        return [work / f"{start}-{i}" for i in range(seed, seed + seeds)]
    return [work / f"{start}-{method}-{seeds}{f'-from-{seed}' if seed else ''}"]


def _measure(task: Task, key: dict[str, Any], workers: int, work: Path, request: StopRequest) -> dict[str, Any] | None:
    """The results of a row, besides its settings; None if a signal stopped it."""
    budget, final = key["budget"], key["final_episodes"]
    folders = _folders(work, task, key["method"], key["seed"], key["seeds"], budget)
    measurements: Any
    if key["method"] == SCRIPTED:
        measurements = _search_by_adviser(task, key["seed"], folders, budget, final, workers, request)
    else:
        measurements = _search_numerically(task, key, folders[0], request)
    if measurements is None:
        return None
    values, best, steps, episodes, seconds = measurements
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
    """A search by a numeric method, all seeds in parallel."""

    task: str
    method: str
    seeds: int
    run: RunConfig
    episodes: int = EPISODES


def _search_numerically(
    task: Task, key: dict[str, Any], folder: Path, request: StopRequest
) -> tuple[Any, Any, Any, int, float] | None:
    """Final and best returns, steps, episodes per search, and seconds; as a run in `folder`, saved after every
    iteration."""
    env, env_params, policy = task.make()
    evaluate = make_population_evaluator(env, env_params, policy)
    method, seeds = key["method"], key["seeds"]
    optimizer = make_numeric(method, policy)
    run = RunConfig(
        name=folder.name,
        out=str(folder.parent),
        seed=key["seed"],
        checkpoint_every=1,
        keep=1,
        resume=(folder / "config.json").exists(),
        accept_gaps=True,  # the table reads nothing from the log
        progress="bar" if sys.stdout.isatty() else "off",
    )
    try:
        result = run_training(
            make_search(optimizer, evaluate, seeds=seeds, episodes=EPISODES),
            run,
            num_updates=iterations_of(optimizer, key["budget"], EPISODES),
            full_config=NumericRun(task.name, method, seeds, run),
            title=f"{task.name}, {method}",
            shown={"best": "best", "episode_return": "mean"},
            again="the table continues it",
        )
    except CheckpointError as error:
        remedy = f"measure it once more with --again --tasks {task.name} --methods {method}"
        raise CheckpointError(f"{error}: {remedy}") from error
    if result.stopped:
        request.name = result.stopped
        return None
    started = time.monotonic()
    state = jax.jit(lambda state: evaluate_centers(optimizer, evaluate, state, EPISODES))(result.state)
    returns = jax.device_get(jax.jit(lambda state: judge(evaluate, state, key["final_episodes"]))(state))
    seconds = result.seconds + result.compile_seconds + time.monotonic() - started
    played = (result.update * population_of(optimizer) + num_final_evaluations(optimizer)) * EPISODES
    return returns.mean(axis=1, dtype=np.float64), state.value, state.steps, played, seconds


def _search_by_adviser(
    task: Task, first: int, folders: Sequence[Path], budget: int, final: int, workers: int, request: StopRequest
) -> tuple[Any, Any, Any, int, float] | None:
    """ProPS's loop with the scripted adviser; the warm-up counts towards the budget. See `_search_numerically`."""
    started = time.monotonic()
    settings = task.props
    warmup = min(settings.warmup, budget // EPISODES - 1)
    iterations = max(1, budget // EPISODES - warmup)
    config = PropsConfig(
        iterations=iterations, episodes=EPISODES, warmup=warmup, final_episodes=final, warmup_episodes=EPISODES
    )

    def run_search(i: int) -> dict[str, Any]:
        chat = {"temperature": 1.0, "max_tokens": 100_000}
        study = Study(task, config, first + i, PolicyAdviser(), chat, folders[i])
        study.run(lambda: bool(request.name))
        return study.judge() if study.finished else study.unjudged()

    with ThreadPoolExecutor(workers) as pool:
        summaries = list(pool.map(run_search, range(len(folders))))
    if any(f["final"] is None for f in summaries):
        return None
    seconds = time.monotonic() - started
    columns = ([f[name] for f in summaries] for name in ("final", "value", "steps"))
    return *columns, max(f["episodes"] for f in summaries), seconds


def _figure(pair: tuple[float, float | None]) -> str:
    return f"{pair[0]:.2f}" if pair[1] is None else f"{pair[0]:.2f} +- {pair[1]:.2f}"


def _mean(row: dict[str, Any]) -> str:
    return _figure((row["final"], row["standard_error"]))


def _write(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the page and its record."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"versions": info.versions(), "machine": info.machine()}
    write_whole(folder / RECORD, json.dumps(to_json({**facts, "rows": list(rows)}), indent=1) + "\n")
    _write_page(folder, rows)


def _write_page(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the page: the published tasks in the paper's order, then the others."""
    tasks = {task.name: task for task in PUBLISHED} | {row["task"]: get(row["task"]) for row in rows}
    methods = [m for m in TITLES if any(row["method"] == m for row in rows)]
    head = ["task", "parameters", "bound", "best published baseline", "ProPS", "ProPS+", *(TITLES[m] for m in methods)]
    head.append("seeds, episodes, fresh")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for task in tasks.values():
        rows_by_method = {row["method"]: row for row in rows if row["task"] == task.name}
        if not rows_by_method:
            continue
        size = task.num_params if task.name in TASKS else task.make()[2].num_params  # options may change it
        cells = [task.title, str(size), "" if task.bound is None else f"{task.bound:g}"]
        baseline = "".join(f"{name} {_figure(figures)}" for name, figures in list(task.published.items())[:1])
        cells += [baseline, *(_figure(task.published[m]) if task.published else "" for m in ("ProPS", "ProPS+"))]
        cells += [_mean(rows_by_method[m]) if m in rows_by_method else "" for m in methods]
        counts = {f"{row['seeds']}, {row['budget']:,}, {row['final_episodes']}" for row in rows_by_method.values()}
        cells.append("; ".join(sorted(counts)))
        lines.append("| " + " | ".join(cells) + " |")
    write_whole(folder / PAGE, INTRODUCTION + "\n".join(lines) + "\n")
