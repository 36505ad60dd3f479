"""Runs of searches for policies: the implementation of `llmrl props run`."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from llmrl_jax.chat.protocol import BudgetExceeded, ChatError
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.report.figures import text_table
from llmrl_jax.report.video import write_gif
from llmrl_jax.run.config import refuse_changes
from llmrl_jax.run.folder import folder_name, opened, write_summary
from llmrl_jax.run.signals import StopRequest
from llmrl_jax.systems.props.adviser import PolicyAdviser
from llmrl_jax.systems.props.pictures import draw_curves, draw_parameters
from llmrl_jax.systems.props.settings import PropsRun
from llmrl_jax.systems.props.study import Result, Study
from llmrl_jax.systems.props.tasks import PUBLISHED, Task, get
from llmrl_jax.workflows.chat_model import SCRIPTED, Chat, ChatConfig, make_chat


RESULT = "result.json"
TRACEBACK = "error.txt"
"""File with the traceback of a failed search."""
FRAMES = 80
"""Maximum number of frames in a video."""


def chosen_tasks(names: Sequence[str]) -> list[Any]:
    """Tasks by name or environment id (`tasks.get`); `all` is the paper's table."""
    return list(PUBLISHED) if list(names) == ["all"] else [get(name) for name in names]


def run_searches(config: PropsRun) -> int:
    """Run the configured searches, and write the run to its folder.

    **Returns:** the exit code: 0, or 1 if a search ended with an error.
    **Raises:** `ValueError` for incompatible settings, `ModuleNotFoundError` for a missing extra, before anything is
    written.
    """
    tasks = chosen_tasks(config.tasks)
    config.search.templates.check()
    config.chat.check()
    if config.search.asks:
        config.chat.check_usable()
    for task in tasks:
        task.make()
    with opened(config.run, "props") as folder:
        return _run_in(folder, config, tasks)


def _run_in(folder: Path, config: PropsRun, tasks: Sequence[Task]) -> int:
    if config.run.resume:
        refuse_changes(folder, configs.load_config(PropsRun, folder / "config.json"), config)
    if not config.search.asks and config.chat.model != SCRIPTED:
        print(f"note: {config.search.method} asks no model, so {config.chat.model} is not asked")
    asked = config.chat if config.search.asks else ChatConfig()
    chat = make_chat(asked, PolicyAdviser(), folder)
    seeds = range(config.run.seed, config.run.seed + config.seeds)
    studies = [
        Study(task, config.search, seed, chat.model, config.chat.sampling, folder / f"{folder_name(task.name)}-{seed}")
        for task in tasks
        for seed in seeds
    ]
    configs.save_config(config, folder / "config.json")
    who = chat.model.name if config.search.asks else config.search.method
    print(f"{len(studies)} searches by {config.search.method} ({who}); everything is in {folder}", flush=True)
    with StopRequest() as request:
        results = _search_all(studies, config, request, chat)
    return finish(folder, config, studies, results, chat, request.name)


def _search_all(studies: Sequence[Study], config: PropsRun, request: StopRequest, chat: Chat) -> list[dict[str, Any]]:
    """Run every search to its end, or until stopped."""
    spent: list[str] = []

    def one(study: Study) -> dict[str, Any]:
        name = f"{study.task.name}, seed {study.seed}"

        def report(result: Result) -> None:
            activity.what = f"{name}: round {result.rounds}, best {result.value:.2f}"
            if config.print_every and result.rounds % config.print_every == 0:
                print(
                    f"{name}: round {result.rounds}, best {result.value:.2f} ({result.episodes} episodes)", flush=True
                )

        failure = ""
        try:
            with doing(name) as activity:
                study.run(lambda: bool(request.name or spent), report)
        except BudgetExceeded as error:
            spent.append(failure := str(error))
        except ChatError as error:
            failure = str(error)
        except Exception as error:  # the other searches continue and keep their results
            failure = f"{type(error).__name__}: {error}"
            (study.folder / TRACEBACK).write_text(traceback.format_exc())
        if request.aborted:
            raise KeyboardInterrupt
        if known := _judged(study):
            return known
        # a signal leaves little time: unfinished searches are judged when they are finished
        judged = study.done or bool(failure) or not request.name
        with doing(f"{name}: final episodes"):
            summary = (study.judge() if judged else study.unjudged()) | {"finished": study.done}
        if failure:
            summary["stopped"] = failure
        if summary["stopped"]:
            print(f"{name}: stopped: {summary['stopped']}", flush=True)
        if study.done:
            final = "nothing" if summary["final"] is None else f"{summary['final']:.2f}"
            chance = f" (random actions {summary['random']:.2f})" if "random" in summary else ""
            print(f"{name}: best {summary['value']:.2f}, in fresh episodes {final}{chance}", flush=True)
        configs.save_config(summary, study.folder / RESULT)
        return summary

    pool = ThreadPoolExecutor(config.workers)
    try:
        return list(pool.map(one, studies))
    except KeyboardInterrupt:  # pending replies are not awaited
        chat.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _judged(study: Study) -> dict[str, Any] | None:
    """The result of a search that an earlier part of the run finished; None if there is none."""
    try:
        summary = json.loads((study.folder / RESULT).read_text())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(summary, dict):  # damaged: it is judged again
        return None
    whole = study.done and summary.get("finished") and summary.get("rounds") == study.result.rounds
    return summary if whole and summary.get("final") is not None else None


def finish(
    folder: Path,
    config: PropsRun,
    studies: Sequence[Study],
    results: list[dict[str, Any]],
    chat: Chat,
    stopped: str,
) -> int:
    """Write figures, the table and the summary; videos, which may fail, come last."""
    for study in studies:
        draw_parameters(study.folder, study.log, study.task.title)
    draw_curves(folder / "curves.png", {s.folder.name: s.log for s in studies}, [s.task for s in studies])
    header = ["task", "seed", "best while searching", "in fresh episodes (+- standard error)", "random actions there"]
    rows = [[*header, "episodes", "steps"]]
    for r in results:
        found = (_mean_text(r, name) for name in ("final", "random"))
        rows.append([r["task"], str(r["seed"]), f"{r['value']:.2f}", *found, str(r["episodes"]), str(r["steps"])])
    print(text_table(rows))
    values: dict[str, Any] = {
        "method": config.search.method,
        "asked": chat.model.name if config.search.asks else "",
        "searches": results,
    }
    values |= {"spent": chat.budget.report(), "stopped": stopped}
    write_summary(folder, values)
    filmed = not config.video or bool(stopped) or _film(studies, results)
    unfinished = sum(not r["finished"] for r in results)
    if unfinished:
        print(f"{unfinished} searches are not finished; continue them with --run.resume {folder}")
    if stopped and unfinished:
        return 0  # a requested stop: a requeued job continues, even if one search had ended early
    return int(any(r["stopped"] for r in results) or not filmed)


def _mean_text(result: dict[str, Any], name: str) -> str:
    """A mean return of a result and its standard error, if there is one; empty without a mean."""
    if result.get(name) is None:
        return ""
    error = result.get(f"{name}_standard_error")
    return f"{result[name]:.2f}" + ("" if error is None else f" +- {error:.2f}")


def _film(studies: Sequence[Study], results: Sequence[dict[str, Any]]) -> bool:
    """Write an episode of each best policy. **Returns:** False, after a message, if one cannot be drawn."""
    for study, result in zip(studies, results):
        if result["params"] is None:
            continue
        key = jax.random.fold_in(study.key, 0x7FFFFFFE)
        try:
            _, frames = study.recorder.play(jnp.asarray(result["params"], jnp.float32), key, FRAMES)
        except RuntimeError as error:
            print(f"{study.task.name} has no video: {error}", flush=True)
            return False
        write_gif(study.folder / "episode.gif", frames, fps=15.0)
    return True
