"""Runs of searches for policies: the implementation of `llmrl props run`."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.chat.protocol import BudgetExceeded, ChatError
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import refuse_unread
from llmrl_jax.core.files import write_whole
from llmrl_jax.report import figures
from llmrl_jax.report.figures import text_table
from llmrl_jax.report.video import write_gif
from llmrl_jax.run.config import refuse_changes
from llmrl_jax.run.curves import INK
from llmrl_jax.run.folder import folder_name, opened, write_summary
from llmrl_jax.run.signals import StopRequest
from llmrl_jax.systems.props.config import PropsRun
from llmrl_jax.systems.props.scripted import PolicyAdviser
from llmrl_jax.systems.props.study import Result, Study
from llmrl_jax.systems.props.tasks import PUBLISHED, Task, get
from llmrl_jax.workflows.chat_model import SCRIPTED, Chat, ChatConfig, make_chat


RESULT = "result.json"
TRACEBACK = "error.txt"
"""File with the traceback of a search that failed when it last ran."""
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
    policies = [task.make(**config.search.policy.chosen)[2] for task in tasks]
    tables = all(policy.kind == "table" for policy in policies) and not config.search.templates.llm_si_template_name
    if tables and not config.run.resume:  # a run that is resumed has the settings with which it began
        refuse_unread(config.search, ("step_size",), "the prompt of a table")
    with opened(config.run, "props") as folder:
        return _run_in(folder, config, tasks)


def _run_in(folder: Path, config: PropsRun, tasks: Sequence[Task]) -> int:
    if config.run.resume:
        refuse_changes(folder, configs.load_config(PropsRun, folder / "config.json"), config)
    if not config.search.asks and config.chat.model != SCRIPTED:
        print(f"note: {config.search.method} asks no model, so {config.chat.model} is not asked")
    chat = make_chat(config.chat if config.search.asks else ChatConfig(), PolicyAdviser(), folder)
    seeds = range(config.run.seed, config.run.seed + config.seeds)
    studies = [
        Study(task, config.search, seed, chat.model, config.chat.sampling, folder / f"{folder_name(task.name)}-{seed}")
        for task in tasks
        for seed in seeds
    ]
    configs.save_config(config, folder / "config.json")
    proposer = chat.model.name if config.search.asks else config.search.method
    print(f"{len(studies)} searches by {config.search.method} ({proposer}); everything is in {folder}", flush=True)
    with StopRequest() as request:
        results = _search_all(studies, config, request, chat)
    return finish(folder, config, studies, results, chat, request.name)


def _search_all(studies: Sequence[Study], config: PropsRun, request: StopRequest, chat: Chat) -> list[dict[str, Any]]:
    """Run every search to its end, or until stopped."""
    spent: list[str] = []

    def run_study(study: Study) -> dict[str, Any]:
        name = f"{study.task.name}, seed {study.seed}"

        def report(result: Result) -> None:
            activity.what = f"{name}: round {result.rounds}, best {result.value:.2f}"
            if config.print_every and result.rounds % config.print_every == 0:
                print(f"{activity.what} ({result.episodes} episodes)", flush=True)

        failure = ""
        (study.folder / TRACEBACK).unlink(missing_ok=True)
        try:
            with doing(name) as activity:
                study.run(lambda: bool(request.name or spent), report)
        except BudgetExceeded as error:
            spent.append(failure := str(error))
        except ChatError as error:
            failure = str(error)
        except Exception as error:  # the other searches continue and keep their results
            failure = f"{type(error).__name__}: {error}"
            write_whole(study.folder / TRACEBACK, traceback.format_exc())
        if request.aborted:
            raise KeyboardInterrupt
        if finished := _finished(study):
            return finished
        # a signal leaves little time: unfinished searches are judged when they are finished
        judged = study.finished or bool(failure) or not request.name
        with doing(f"{name}: final episodes"):
            summary = (study.judge() if judged else study.unjudged()) | {"finished": study.finished}
        if failure:
            summary["stopped"] = failure
        if summary["stopped"]:
            print(f"{name}: stopped: {summary['stopped']}", flush=True)
        if study.finished:
            final = "nothing" if summary["final"] is None else f"{summary['final']:.2f}"
            chance = f" (random actions {summary['random']:.2f})" if "random" in summary else ""
            print(f"{name}: best {summary['value']:.2f}, in fresh episodes {final}{chance}", flush=True)
        configs.save_config(summary, study.folder / RESULT)
        return summary

    pool = ThreadPoolExecutor(config.workers)
    try:
        return list(pool.map(run_study, studies))
    except KeyboardInterrupt:  # pending replies are not awaited
        chat.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _finished(study: Study) -> dict[str, Any] | None:
    """The result of a search that an earlier part of the run finished; None if there is none."""
    try:
        summary = json.loads((study.folder / RESULT).read_text())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(summary, dict):  # damaged: it is judged again
        return None
    # a round that stopped the search is played again when it resumes, so the number of rounds alone may agree
    same = all(summary.get(name) == getattr(study.result, name) for name in ("rounds", "stopped"))
    return summary if study.finished and summary.get("finished") and same and summary.get("final") is not None else None


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
        means = (_mean_text(r, name) for name in ("final", "random"))
        rows.append([r["task"], str(r["seed"]), f"{r['value']:.2f}", *means, str(r["episodes"]), str(r["steps"])])
    print(text_table(rows))
    model = chat.model.name if config.search.asks else ""
    values = {"method": config.search.method, "asked": model, "searches": results}
    write_summary(folder, values | {"spent": chat.budget.report(), "stopped": stopped})
    has_videos = not config.video or bool(stopped) or _write_videos(studies, results)
    unfinished = sum(not r["finished"] for r in results)
    if unfinished:
        print(f"{unfinished} searches are not finished; continue them with --run.resume {folder}")
    if stopped and unfinished:
        return 0  # a requested stop: a requeued job continues, even if one search had ended early
    return int(any(r["stopped"] for r in results) or not has_videos)


def _mean_text(result: dict[str, Any], name: str) -> str:
    """A mean return of a result and its standard error, if there is one; empty without a mean."""
    if result.get(name) is None:
        return ""
    error = result.get(f"{name}_standard_error")
    return f"{result[name]:.2f}" + ("" if error is None else f" +- {error:.2f}")


def _write_videos(studies: Sequence[Study], results: Sequence[dict[str, Any]]) -> bool:
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


# --- figures ----------------------------------------------------------------------------------------------------------


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rounds of a search in which policies were evaluated."""
    if not path.exists():
        return []
    return [line for line in map(json.loads, path.read_text().splitlines()) if line.get("values")]


MOST_NAMES = 6
"""The largest number of searches in a panel that its legend names."""


def draw_curves(path: Path, logs: Mapping[str, Path], tasks: Sequence[Any]) -> Path | None:
    """Plot mean returns over the number of episodes: for every search a line of the best so far and points of the best
    of each round; one panel per task.

    **Arguments:** `path`, of the figure; `logs`, of the searches, by name; `tasks`, theirs, in the same order.
    **Returns:** the path of the figure, or None if nothing was evaluated.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels: dict[str, tuple[Any, dict[str, list[dict[str, Any]]]]] = {}
    for (name, log), task in zip(logs.items(), tasks, strict=True):
        if lines := read_log(log):
            panels.setdefault(task.name, (task, {}))[1][name] = lines
    if not panels:
        return None
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.0 * rows + 0.3), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(rows, columns)).reshape(-1)
    for axis, (task, searches) in zip(axes, panels.values()):
        for i, (name, lines) in enumerate(searches.items()):
            episodes, color = [line["episodes"] for line in lines], figures.color(i)
            axis.plot(episodes, [max(line["values"]) for line in lines], ".", ms=4, color=color, alpha=0.4, mew=0)
            axis.plot(episodes, [line["best"] for line in lines], color=color, lw=1.6, label=name)
        if task.bound is not None:
            axis.axhline(task.bound, color="#999999", lw=0.8, ls="--")
        if 1 < len(searches) <= MOST_NAMES:
            axis.legend(frameon=False, fontsize=7, loc="best")
        axis.set_title(task.title, fontsize=9.5, color=INK)
        axis.set_xlabel("episodes", fontsize=8.5, color=INK)
        axis.set_ylabel("mean return", fontsize=8.5, color=INK)
        axis.grid(axis="y", color="#dddddd", lw=0.7)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(colors=INK, labelsize=8)
    for axis in axes[len(panels) :]:
        axis.axis("off")
    marks = [
        Line2D([], [], color=INK, lw=1.6, label="best so far, a line per search"),
        Line2D([], [], color=INK, ls="", marker=".", alpha=0.6, label="best of a round"),
    ]
    if any(task.bound is not None for task, _ in panels.values()):
        marks.append(Line2D([], [], color="#999999", lw=0.8, ls="--", label="largest possible mean"))
    figure.legend(handles=marks, frameon=False, fontsize=8, loc="outside lower center", ncols=len(marks))
    return figures.save(figure, path)


def draw_parameters(folder: Path, log: Path, title: str) -> Path | None:
    """`parameters.png`: all policies of a search, projected on the first two principal components, coloured by mean
    return (the lowest tenth in one colour, since it would otherwise dominate the scale), the best one ringed.

    **Returns:** the path of the figure, or None if fewer than three policies were evaluated.
    """
    lines = read_log(log)
    params = np.array([p for line in lines for p in line["params"]], np.float64)
    values = np.array([v for line in lines for v in line["values"]], np.float64)
    if len(values) < 3:
        return None
    centred = params - params.mean(axis=0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ directions[:2].T
    if flat.shape[1] < 2:
        flat = np.concatenate([flat, np.zeros_like(flat)], axis=1)
    fractions = sizes**2 / max(float((sizes**2).sum()), 1e-12)
    figure, axis = figures.new_axis(5.0, 4.0)
    points = axis.scatter(flat[:, 0], flat[:, 1], c=values, s=16, cmap="viridis", lw=0, vmin=np.percentile(values, 10))
    best = int(np.flatnonzero(values == lines[-1]["best"])[0])  # not one of a shorter, luckier evaluation
    axis.scatter(*flat[best], s=90, facecolors="none", edgecolors="#cc6677", lw=1.6)
    figure.colorbar(points, ax=axis, label="mean return", extend="min")
    for name, fraction, set_label in zip(("first", "second"), fractions, (axis.set_xlabel, axis.set_ylabel)):
        set_label(f"{name} component ({100 * fraction:.0f}% of the variance)", fontsize=8.5, color=INK)
    axis.set_title(f"{title}: {len(values)} policies, the best at {values[best]:.2f}", fontsize=9.5, color=INK)
    return figures.save(figure, folder / "parameters.png")
