"""`llmrl props run` and `llmrl props list`."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import tyro

from llmrl_jax.chat.errors import BudgetExceeded, ChatError
from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import nearest
from llmrl_jax.core.config import FREE
from llmrl_jax.run.chat_model import SCRIPTED, Chat, ChatConfig, make_chat
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.flags import flag
from llmrl_jax.run.folder import folder_name, held, open_folder, write_summary
from llmrl_jax.run.report.figures import text_table
from llmrl_jax.run.report.media import write_gif
from llmrl_jax.run.signals import StopRequest
from llmrl_jax.systems.props.adviser import PolicyAdviser
from llmrl_jax.systems.props.config import PropsConfig
from llmrl_jax.systems.props.pictures import draw_curves, draw_parameters
from llmrl_jax.systems.props.published import read_published
from llmrl_jax.systems.props.study import Result, Study
from llmrl_jax.systems.props.tasks import PUBLISHED, TASKS, Task, get


RESULT = "result.json"
TRACEBACK = "error.txt"
"""Of a search that an error ended, for who looks for its cause."""
FRAMES = 80
"""Pictures of an episode's states in a video, at most."""


@dataclass(frozen=True)
class PropsRun:
    """Searches: which tasks, by which method, who is asked, and where it is written."""

    config: str = field(default="", metadata=FREE)
    """A YAML file: one of the two published schemas, or this command's own options; flags win over it."""
    tasks: tuple[str, ...] = ("mountain_car_continuous",)
    """Tasks, by name (`llmrl props list`) or world; `all`: the paper's fifteen."""
    seeds: int = 1
    """Searches of each task, with the seeds `seed`, `seed` + 1, ..."""
    seed: int = 0
    """Of the first."""
    search: Annotated[PropsConfig, tyro.conf.arg(name="")] = field(default_factory=PropsConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    video: bool = field(default=False, metadata=FREE)
    """Also write an episode of the best policy of each search, `episode.gif`."""
    workers: int = field(default=4, metadata=FREE)
    """Searches at a time; what they ask a server goes out side by side."""
    print_every: int = field(default=50, metadata=FREE)
    """Rounds between two lines about a search; 0: only its end."""
    name: str = field(default="", metadata=FREE)
    """Name of the run; it writes to `<out>/<name>/`. Empty: `props` and the time."""
    out: str = field(default="runs", metadata=FREE)
    """Folder that holds all runs."""
    resume: bool = field(default=False, metadata=FREE)
    """Continue the run `<out>/<name>` from its logs."""

    def __post_init__(self):
        for name, least in (("seeds", 1), ("workers", 1), ("print_every", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if not self.tasks:
            raise ValueError("tasks is empty; name at least one, or all")


def chosen_tasks(names: Sequence[str]) -> list[Any]:
    """Tasks by name or world (`tasks.get`); `all` is the paper's table."""
    return list(PUBLISHED) if list(names) == ["all"] else [get(name) for name in names]


def _read_file(path: Path) -> PropsRun:
    """The options that a YAML file stands for; what it is read otherwise is printed.

    **Raises:** `FileNotFoundError`; `ValueError` for what is not YAML or holds an unknown key."""
    import yaml

    if not path.is_file():
        here = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        raise FileNotFoundError(f"there is no configuration {path}{nearest(path.name, here)}")
    try:
        data = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds a {type(data).__name__}; keys with values are needed")
    if "gym_env_name" not in data and "task" not in data:
        return replace(configs.from_json(PropsRun, data), config=str(path))
    found = read_published(data, path.name, path.parent)
    print(f"{path.name}: the published schema `{found.schema}`")
    for note in found.notes:
        print(f"  note: {note}")
    return PropsRun(
        config=str(path),
        tasks=(found.task,),
        seeds=found.seeds,
        search=found.config,
        chat=ChatConfig(model=found.model, adapter=found.adapter),
        video=found.record_video,
        print_every=found.print_every or 50,
        name=Path(found.logdir).name,
    )


def _prepare_run(args: Sequence[str]) -> Callable[..., int]:
    """`run` with the defaults of the file or of the run to resume that the command line names."""
    given = {name: flag(args, name) for name in ("--config", "--name", "--out")}
    default = PropsRun()
    if "--resume" in args and given["--name"]:
        saved = Path(given["--out"] or default.out).expanduser() / str(given["--name"]) / "config.json"
        default = replace(configs.load_config(PropsRun, saved), resume=True)
    elif given["--config"]:
        default = _read_file(Path(given["--config"]).expanduser())

    def prepared(config: Annotated[PropsRun, tyro.conf.arg(name="")] = default) -> int:
        return _run(config)

    prepared.__doc__ = run.__doc__
    return prepared


def run() -> int:
    """Search for policies: ProPS, ProPS+, EvoLLM, the legacy dialogue, or a numeric method, on any of the tasks.

    Without a model it asks a scripted adviser, which is no language model. `--config FILE` reads both published YAML
    schemas unchanged; any flag wins over it. `--name NAME --resume` goes on where a run stopped."""
    raise AssertionError("prepared by _prepare_run")


run.prepare = _prepare_run  # type: ignore[attr-defined]


def _run(config: PropsRun) -> int:
    tasks = chosen_tasks(config.tasks)
    config.chat.check()
    kept = RunConfig(name=config.name, out=config.out, resume=config.resume)
    folder = open_folder(kept, "props")
    with held(folder):
        return _run_in(folder, config, tasks)


def _run_in(folder: Path, config: PropsRun, tasks: Sequence[Task]) -> int:
    if config.resume:
        saved = configs.load_config(PropsRun, folder / "config.json")
        if changed := configs.differences(configs.identity(saved), configs.identity(config)):
            raise ValueError(f"{folder} was run with other options: {'; '.join(changed)}; choose another name")
    if not config.search.asks and config.chat.model != SCRIPTED:
        print(f"note: {config.search.method} asks nobody, so {config.chat.model} is not asked")
    asked = config.chat if config.search.asks else ChatConfig()
    chat = make_chat(asked, PolicyAdviser(), folder)
    seeds = range(config.seed, config.seed + config.seeds)
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
    return _finish(folder, config, studies, results, chat, request.name)


def _search_all(studies: Sequence[Study], config: PropsRun, request: StopRequest, chat: Chat) -> list[dict[str, Any]]:
    """Every search to its end, or to where it was stopped."""
    spent: list[str] = []

    def one(study: Study) -> dict[str, Any]:
        name = f"{study.task.name}, seed {study.seed}"

        def report(found: Result) -> None:
            if config.print_every and found.rounds % config.print_every == 0:
                print(f"{name}: round {found.rounds}, best {found.value:.2f} ({found.episodes} episodes)", flush=True)

        failure = ""
        try:
            study.run(lambda: bool(request.name or spent), report)
        except BudgetExceeded as error:
            spent.append(failure := str(error))
        except ChatError as error:
            failure = str(error)
        except Exception as error:  # the other searches go on, and keep what they found
            failure = f"{type(error).__name__}: {error}"
            (study.folder / TRACEBACK).write_text(traceback.format_exc())
        if request.aborted:
            raise KeyboardInterrupt
        if known := _judged(study):
            return known
        # a signal leaves little time, and what is not finished is judged when it is
        judged = study.done or bool(failure) or not request.name
        found = (study.judge() if judged else study.unjudged()) | {"finished": study.done}
        if failure:
            found["stopped"] = failure
        if found["stopped"]:
            print(f"{name}: stopped: {found['stopped']}", flush=True)
        if study.done:
            final = "nothing" if found["final"] is None else f"{found['final']:.2f}"
            print(f"{name}: best {found['value']:.2f}, in fresh episodes {final}", flush=True)
        configs.save_config(found, study.folder / RESULT)
        return found

    pool = ThreadPoolExecutor(config.workers)
    try:
        return list(pool.map(one, studies))
    except KeyboardInterrupt:  # nobody waits for the answers that are on their way
        chat.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _judged(study: Study) -> dict[str, Any] | None:
    """What an earlier part of the run wrote of a search that was finished then; None where there is no such thing."""
    try:
        found = json.loads((study.folder / RESULT).read_text())
    except (FileNotFoundError, ValueError):
        return None
    whole = study.done and found.get("finished") and found.get("rounds") == study.result.rounds
    return found if whole and found.get("final") is not None else None


def _finish(
    folder: Path,
    config: PropsRun,
    studies: Sequence[Study],
    results: list[dict[str, Any]],
    chat: Chat,
    stopped: str,
) -> int:
    """Pictures, the table and the summary; what may fail, the videos, comes last."""
    for study in studies:
        draw_parameters(study.folder, study.log, study.task.title)
    draw_curves(folder / "curves.png", {s.folder.name: s.log for s in studies}, [s.task for s in studies])
    rows = [["task", "seed", "best while searching", "in fresh episodes", "episodes", "steps"]]
    for r in results:
        final = "" if r["final"] is None else f"{r['final']:.2f} +- {r['final_standard_error'] or 0:.2f}"
        rows.append([r["task"], str(r["seed"]), f"{r['value']:.2f}", final, str(r["episodes"]), str(r["steps"])])
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
        print(f"{unfinished} searches are not finished; go on with --name {folder.name} --resume")
    if stopped and unfinished:
        return 0  # it did what it was told, whatever became of single searches: a job that is queued again goes on
    return int(any(r["stopped"] for r in results) or not filmed)


def _film(studies: Sequence[Study], results: Sequence[dict[str, Any]]) -> bool:
    """Write an episode of each best policy; False where one cannot be drawn, which is told."""
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


def list_tasks() -> None:
    """The tasks: their worlds, policies and published figures."""
    rows = [["task", "world", "parameters", "told optimum", "ProPS", "ProPS+"]]
    for task in TASKS.values():
        figures = [
            f"{task.published[m][0]:.2f} +- {task.published[m][1]:.2f}" if m in task.published else ""
            for m in ("ProPS", "ProPS+")
        ]
        told = "" if task.props.optimum is None else f"{task.props.optimum:g}"
        rows.append([task.name, task.env, str(task.num_params), told, *figures])
    print(text_table(rows))
