"""A report on runs as one HTML page: numbers, curves, settings, episodes and origin, without scripts or requests.

The page is a template of Jinja (`templates/report.html.j2`) with autoescape, so that whatever run files hold is text;
pictures are data inside it. A content security policy in its head forbids scripts and requests.
"""

from __future__ import annotations

import base64
import io
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmrl_jax.core import statistics as stats
from llmrl_jax.report import compare, figures, results, runs as run_facts
from llmrl_jax.report.compare import SEED, Run
from llmrl_jax.run import metrics as sinks
from llmrl_jax.run.curves import INK


MOST_LOSSES = 3
"""Losses that are drawn if no metrics are named."""
GIF_LIMIT, GIFS_LIMIT = 8 << 20, 48 << 20
"""Bytes of one animation, and of all, that a page holds; larger ones are left out by name."""


@dataclass(frozen=True)
class Source:
    """A run of a report, and what only its command knows."""

    folder: Path
    settings: Any
    """Its settings; see `llmrl_jax.report.compare.settings_of`."""
    kind: str = ""
    """The command that created it, such as `rl train`."""
    command: Callable[[], str] = str
    """Returns a command line that makes such a run; called for one run of each setting."""
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Its settings that differ from the defaults, and those."""


def page(sources: Sequence[Source], metrics: Sequence[str] = (), title: str = "", *, version: str) -> str:
    """The report as HTML.

    **Arguments:** `sources`, the runs; `metrics`, of training and of evaluations while training, to draw: empty, those
    of `main_metrics`; `title`, empty: the names of the runs; `version`, of the library.
    **Raises:** `ValueError` for a metric that no run has, or a damaged line of metrics.
    """
    sources_by_folder = {source.folder: source for source in sources}
    seeds = [seed for s in sources for seed in compare.by_seed(compare.read_all(s.folder, s.settings))]
    groups = compare.by_settings(seeds)
    available = [metric_names(groups, kind) for kind in ("train", "eval")]
    for name in metrics:
        if not any(name in names for names in available):
            listed = ", ".join(sinks.sorted_names({*available[0], *available[1]})) or "none"
            raise ValueError(f"--metrics has {name!r}, which no run has; they have {listed}")
    train, evals = ([name for name in metrics or main_metrics(names) if name in names] for names in available)
    facts = {folder: run_facts.read_facts(folder, folder.parent) for folder in sources_by_folder}
    names = {folder: facts[folder].name for folder in facts}
    chosen = [source.folder for source in sources]
    environment = _environment()
    return environment.get_template("report.html.j2").render(
        title=title or _title(list(names.values())),
        version=version,
        date=time.strftime("%Y-%m-%d %H:%M"),
        colors=[figures.color(i) for i in range(len(groups))],
        metrics=train,
        groups=[_group(group, train, facts, sources_by_folder) for group in groups],
        curves=[*(_training_curve(groups, name) for name in train), *(_evaluation_curve(groups, n) for n in evals)],
        evaluation=_evaluation_table(groups),
        summary=_summary_table(groups),
        differing=_differences(groups),
        episodes=_episodes(chosen, names),
        runs=[_row(source, facts[source.folder]) for source in sources],
        versions=_versions(chosen, names),
    )


def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("llmrl_jax.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _printable(value: Any) -> Any:
    """A value without what HTML cannot hold: control characters and halves of surrogate pairs."""
    if type(value) is not str:  # such as markup, which was made of values that went through here
        return value
    return "".join(c if c in "\n\t" or c >= " " and not "\ud800" <= c <= "\udfff" else "\ufffd" for c in value)


def _title(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# --- metrics ----------------------------------------------------------------------------------------------------------


def metric_names(groups: Sequence[Sequence[Run]], kind: str) -> list[str]:
    """The names of the metrics that runs have, in training (`train`) or in at least two evaluations (`eval`)."""
    names: dict[str, None] = {}
    for run in (run for group in groups for run in group):
        counts: dict[str, int] = {}
        for line in run.train if kind == "train" else run.evals:
            for name, value in line.items():
                of_seed = name.partition("/")[0].isdecimal()
                if name not in sinks.OF_LINES and not of_seed and stats.is_number(value):
                    counts[name] = counts.get(name, 0) + 1
        fitting = {name for name, count in counts.items() if count > 1 or kind == "train"}
        names |= {name: None for name in sinks.sorted_names(fitting) if not stats.is_bound(name, fitting)}
    return list(names)


def main_metrics(names: Sequence[str]) -> list[str]:
    """Success, returns and rewards among metrics, in all tasks together, and the first losses."""
    main = [n for last in run_facts.METRICS for n in names if n.split("/")[-1] == last and not _is_of_task(n, names)]
    losses = [name for name in names if name.endswith("loss")]
    return main + losses[:MOST_LOSSES]


def _is_of_task(name: str, names: Sequence[str]) -> bool:
    """Return whether a metric is that of one of several tasks: `sampled/go_to/success` beside `sampled/success`."""
    *parts, last = name.split("/")
    return any("/".join([*parts[:i], last]) in names for i in range(len(parts)))


# --- tables -----------------------------------------------------------------------------------------------------------


def _folders(group: Sequence[Run]) -> list[Path]:
    """The folders of a group's runs, each once: several seeds may have one."""
    return list(dict.fromkeys(run.folder for run in group))


def _group(
    group: Sequence[Run],
    metrics: Sequence[str],
    facts: Mapping[Path, run_facts.RunFacts],
    sources: Mapping[Path, Source],
) -> dict[str, Any]:
    final, speed = {}, math.nan
    for metric in metrics:
        selected = _selected(group, metric)
        line = compare.lines([selected], None)[0] if selected else None
        final[metric] = results.estimate_text(line.final) if line else ""
        speed = line.steps_per_second if line else speed
    source = sources[group[0].folder]
    states = dict.fromkeys(facts[folder].state for folder in _folders(group))
    steps = sorted({facts[folder].steps for folder in _folders(group)})
    return {
        "label": compare.label(group),
        "seeds": ", ".join(str(run.settings.get(SEED, "?")) for run in group),
        "state": ", ".join(states),
        "steps": " to ".join(str(n) for n in dict.fromkeys((steps[0], steps[-1]))),
        "final": final,
        "speed": "" if math.isnan(speed) else results.number_text(speed),
        "command": source.command(),
        "settings": [
            [name, _json(value), "" if default is run_facts.ABSENT else _json(default)]
            for name, (value, default) in source.changed.items()
        ],
    }


def _selected(group: Sequence[Run], metric: str) -> list[Run]:
    """The runs of a group with the lines of a metric; those without are left out."""
    return [selected for run in group if (selected := run.select(metric)).train]


def _json(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def _evaluation_table(groups: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """A row for each result and a column for each group, with how each was evaluated, and the values of the seeds."""
    columns: list[list[tuple[Run, results.Evaluation]]] = []
    for group in groups:
        first = {run.folder: run for run in reversed(group)}
        read = [(first[folder], results.read_evaluation(folder)) for folder in _folders(group)]
        columns.append([(run, evaluation) for run, evaluation in read if evaluation is not None])
    table = _table(groups, [[evaluation.results for _, evaluation in column] for column in columns])
    if table["rows"]:
        for fact in ("update", "episodes"):
            cells = [dict.fromkeys(str(evaluation.facts.get(fact, "?")) for _, evaluation in c) for c in columns]
            table["rows"].append([f"({fact})", *(", ".join(values) for values in cells)])
    each = [
        [name, run.name, ", ".join(f"{value:.6g}" for value in result.values)]
        for column in columns
        for run, evaluation in column
        for name, result in evaluation.results.items()
    ]
    return table | {"each": sorted(each, key=lambda row: row[0])}


def _summary_table(groups: Sequence[Sequence[Run]]) -> dict[str, Any]:
    def of_run(folder: Path) -> dict[str, results.Result]:
        evaluation = results.read_evaluation(folder)
        return results.summary_of(folder, evaluation.results if evaluation else ())

    return _table(groups, [[of_run(folder) for folder in _folders(group)] for group in groups])


def _table(
    groups: Sequence[Sequence[Run]], columns: Iterable[Sequence[Mapping[str, results.Result]]]
) -> dict[str, Any]:
    """Results by name, a column for each group."""
    estimates = [results.over_seeds(column) for column in columns]
    names = dict.fromkeys(name for column in estimates for name in column)
    empty = stats.Estimate(math.nan, math.nan, math.nan, 0)
    rows = [[name, *(results.estimate_text(column.get(name, empty)) for column in estimates)] for name in names]
    return {"head": ["result", *map(compare.label, groups)], "rows": rows}


def _differences(groups: Sequence[Sequence[Run]]) -> dict[str, Any]:
    rows = [[name, *cells] for name, cells in compare.differing(groups).items()]
    return {"head": ["setting", *map(compare.label, groups)], "rows": rows}


def _row(source: Source, facts: run_facts.RunFacts) -> list[str]:
    summary, values = run_facts.read_summary(source.folder), run_facts.read_values(source.folder) or {}
    section, machine = values.get("run"), summary.get("machine")
    seed = section.get("seed", "?") if isinstance(section, Mapping) else "?"
    seeds = values.get(compare.SEEDS, 1)
    several = f" and {seeds - 1} more" if isinstance(seeds, int) and seeds > 1 else ""
    parts = [str(machine[name]) for name in ("cpu", "devices") if name in machine] if isinstance(machine, dict) else []
    return [
        facts.name,
        facts.folder,
        f"llmrl {source.kind}" if source.kind else "?",
        f"{seed}{several}",
        facts.state + (f" ({facts.why})" if facts.why else ""),
        facts.progress(),
        facts.date,
        str(summary.get("commit") or "unknown"),
        ", ".join(parts),
    ]


def _versions(folders: Sequence[Path], names: Mapping[Path, str]) -> list[list[str]]:
    """Versions of packages, and the runs that were made with them."""
    groups: dict[str, list[str]] = {}
    for folder in folders:
        versions = run_facts.read_summary(folder).get("versions")
        if isinstance(versions, dict):
            text = ", ".join(f"{package} {version}" for package, version in versions.items())
            groups.setdefault(text, []).append(names[folder])
    return [[text, ", ".join(runs)] for text, runs in groups.items()]


# --- pictures ---------------------------------------------------------------------------------------------------------


def _training_curve(groups: Sequence[Sequence[Run]], metric: str) -> dict[str, str]:
    figure, axis = figures.new_axis(5.4, 3.1)
    series = [(i, selected) for i, group in enumerate(groups) if (selected := _selected(group, metric))]
    colors = [figures.color(i) for i, _ in series]
    compare.plot(axis, [selected for _, selected in series], colors, [""] * len(series))
    return {"title": f"{metric} in training", "svg": _svg(figure)}


def _evaluation_curve(groups: Sequence[Sequence[Run]], metric: str) -> dict[str, str]:
    figure, axis = figures.new_axis(5.4, 3.1)
    from matplotlib.ticker import EngFormatter

    for i, group in enumerate(groups):
        points = evaluation_points(group, metric)
        if points:
            mean, low, high = np.asarray([estimate[:3] for estimate in points.values()], np.float64).T
            bars = np.nan_to_num([np.maximum(mean - low, 0), np.maximum(high - mean, 0)])
            axis.errorbar(list(points), mean, bars, fmt="o-", ms=4, lw=1.4, capsize=2.5, color=figures.color(i))
    axis.set_xlabel("steps", color=INK)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    return {"title": f"{metric} in evaluations", "svg": _svg(figure)}


def evaluation_points(group: Sequence[Run], metric: str) -> dict[int, stats.Estimate]:
    """Steps -> the metric of the evaluations there: over the seeds that have one, or of a single seed with its own
    interval."""
    by_steps: dict[int, list[dict[str, Any]]] = {}
    for run in group:
        for line in run.select(metric).evals:
            if "steps" in line:
                by_steps.setdefault(int(line["steps"]), []).append(line)
    evaluated = sum(bool(run.select(metric).evals) for run in group)
    lines_of = {steps: lines for steps, lines in sorted(by_steps.items()) if len(lines) == evaluated}
    points = {}
    for steps, lines in lines_of.items():
        values = [line[metric] for line in lines]
        points[steps] = stats.run_interval(metric, values) if len(lines) > 1 else stats.estimate_of(lines[0], metric, 1)
    return points


def _svg(figure: Any) -> str:
    """A figure as SVG, in base64. Its text is text, which is smaller than outlines, in a font of the reader's."""
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "llmrl_jax", "font.family": "sans-serif"}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    return base64.b64encode(content.getvalue()).decode()


def _episodes(folders: Sequence[Path], names: Mapping[Path, str]) -> list[dict[str, str]]:
    """The animations in the folders of runs."""
    episodes, total = [], 0
    for folder in folders:
        for path in sorted(folder.glob("*.gif")):
            size, name = path.stat().st_size, f"{names[folder]}/{path.name}"
            reason = f"larger than {GIF_LIMIT >> 20} MiB" if size > GIF_LIMIT else ""
            reason = reason or (f"the page holds {GIFS_LIMIT >> 20} MiB already" if total + size > GIFS_LIMIT else "")
            content = b"" if reason else path.read_bytes()
            if not reason and not content.startswith((b"GIF87a", b"GIF89a")):
                reason, content = "not a GIF", b""
            total += len(content)
            episodes.append({"name": name, "gif": base64.b64encode(content).decode(), "reason": reason})
    return episodes
