"""`llmrl balrog eval`: play, BALROG's files, and the results with their intervals.

All unfinished episodes of an environment step together: their requests are one batch, which a model in this process
answers as one and a server as concurrently as `chat.concurrency` says. An episode's files are written when it ends, and
a resumed run plays the others. Episodes depend on their seeds and the replies, and requests on the episode's seed and
the step, so what was answered before is in the cache.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmrl_jax.chat import ChatModel, ChatRequest
from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import write_whole
from llmrl_jax.core.statistics import mean_interval, wilson
from llmrl_jax.report.figures import text_table
from llmrl_jax.run.folder import begin, opened, write_summary
from llmrl_jax.systems.balrog.agents import Agent, AgentSettings
from llmrl_jax.systems.balrog.build import BabyAIWorlds, CrafterWorlds, Worlds
from llmrl_jax.systems.balrog.config import BABYAI, CRAFTER, TASKS, EvalRun, published_name
from llmrl_jax.systems.balrog.scripted import ScriptedPlayer
from llmrl_jax.workflows.chat_model import make_chat


FOLDER = "leaderboard"
"""The folder, within a run's, with files of BALROG's names and layout."""


@dataclass
class Episode:
    """An episode of a task: its number and seed, and its log."""

    task: str
    number: int
    seed: int
    action_frequency: dict[str, int] = field(default_factory=dict)
    input_tokens: int = 0
    output_tokens: int = 0
    done: bool = False
    """Whether the environment ended it, and not the limit on steps."""
    episode_return: float = 0.0
    num_steps: int = 0
    failed_candidates: list[str] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    """A row of the CSV file per step."""

    @property
    def request_seed(self) -> int:
        """The seed of the episode's requests, 31 bits as servers take; different in episodes of one seed."""
        return _hashed(f"request/{self.seed}/{self.task}/{self.number}") >> 1

    def log(self, stats: Mapping[str, Any], agent: Mapping[str, Any], client: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the JSON file, with BALROG's names and in its order.

        **Arguments:** `stats`, see `Worlds.stats`; `agent` and `client`, their settings."""
        return {
            "task": published_name(self.task),
            "action_frequency": self.action_frequency,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            **({"done": True} if self.done else {}),
            "episode_return": self.episode_return,
            "num_steps": self.num_steps,
            "failed_candidates": self.failed_candidates,
            **stats,
            "process_num": None,
            "seed": self.seed,
            "agent": agent,
            "client": client,
        }

    def csv(self) -> str:
        """The text of the CSV file: a row per step."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, escapechar="˘", quoting=csv.QUOTE_MINIMAL)
        writer.writerow(["Step", "Action", "Reasoning", "Observation", "Reward", "Done"])
        writer.writerows(self.rows)
        return text.getvalue()

    def file(self, folder: Path, ending: str) -> Path:
        """A file of the episode in BALROG's layout, where a task's name with a slash is a folder twice."""
        environment, task = CRAFTER if self.task == CRAFTER else BABYAI, published_name(self.task)
        return folder / environment / task / f"{task}_run_{self.number:02d}.{ending}"


def episode_seed(config: EvalRun, task: str, number: int) -> int:
    """The seed of an episode, 32 bits."""
    if config.seeds == "same":
        return config.run.seed
    return _hashed(f"{config.run.seed}/{task}/{number}")


def _hashed(text: str) -> int:
    """32 bits of a hash."""
    return int.from_bytes(hashlib.sha256(f"balrog/{text}".encode()).digest()[:4], "big")


def play(
    worlds: Worlds,
    episodes: Sequence[Episode],
    settings: AgentSettings,
    model: ChatModel,
    sampling: Mapping[str, Any],
    *,
    max_steps: int = 0,
) -> Iterator[tuple[Episode, dict[str, Any]]]:
    """Play episodes to their ends, in one batch of requests per step.

    **Arguments:** `worlds`, with an environment per episode; `sampling`, fields of every request; `max_steps`, 0 for
    the environments' limits.
    **Yields:** each episode as it ends, and its `Worlds.stats`. **Raises:** what the model raises.
    """
    observations = worlds.reset()
    agents = [Agent(settings, worlds.instruction(i)) for i in range(len(episodes))]
    limits = [max_steps or worlds.limit(i) for i in range(len(episodes))]
    running = list(range(len(episodes)))
    while running:
        requests = [
            ChatRequest(
                agents[i].messages(observations[i]),
                seed=episodes[i].request_seed,
                sample=episodes[i].num_steps,
                **sampling,
            )
            for i in running
        ]
        replies = dict(zip(running, model.complete(requests)))
        answers = {i: agents[i].read(reply.text.strip()) for i, reply in replies.items()}
        actions = [worlds.default] * len(episodes)
        for i, answer in answers.items():
            actions[i] = answer.action if answer.action in worlds.actions else worlds.default
        results = worlds.step(actions)
        for i in list(running):
            episode, answer, result = episodes[i], answers[i], results[i]
            observations[i] = agents[i].after(result.observation, actions[i], answer)
            _count(episode, answer.action, actions[i], replies[i].usage)
            row = (answer.action, answer.reasoning, observations[i].text, result.reward, result.done)
            episode.rows.append((episode.num_steps, *row))
            episode.num_steps += 1
            episode.episode_return += result.reward
            episode.done = result.done
            if result.done or episode.num_steps >= limits[i]:
                running.remove(i)
                yield episode, worlds.stats(i)


def _count(episode: Episode, reply: str, action: str, usage: Any) -> None:
    """Count a step's action and tokens. **Arguments:** `reply`, the action that the model named."""
    episode.action_frequency[action] = episode.action_frequency.get(action, 0) + 1
    if reply != action:
        episode.failed_candidates.append(reply)
    if usage is not None:
        episode.input_tokens += usage.prompt_tokens
        episode.output_tokens += usage.completion_tokens


# --- results ----------------------------------------------------------------------------------------------------------


def _spread(progress: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error, the population's standard deviation over the root of n, as BALROG computes them."""
    mean = sum(progress) / len(progress)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in progress) / len(progress))
    return mean, deviation / math.sqrt(len(progress)) if len(progress) > 1 else 0.0


def read_logs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The logs of finished episodes in a folder of BALROG's layout, by environment."""
    logs: dict[str, list[dict[str, Any]]] = {}
    for environment in (BABYAI, CRAFTER):
        paths = sorted((folder / environment).rglob("*_run_*.json"))
        if paths:
            logs[environment] = [json.loads(path.read_text()) for path in paths]
    return logs


def environment_summary(logs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of BALROG's `ENVIRONMENT_summary.json` (its utils.py), in percent."""
    tasks: dict[str, list[float]] = {}
    for log in logs:
        tasks.setdefault(log["task"], []).append(log["progression"])
    mean, error = _spread([log["progression"] for log in logs])
    spreads = {task: (*_spread(progress), len(progress)) for task, progress in tasks.items()}
    return {
        "progression_percentage": 100 * mean,
        "standard_error": 100 * error,
        "average_steps": sum(log["num_steps"] for log in logs) / len(logs),
        "episodes_played": len(logs),
        "tasks": {
            task: {"progression_percentage": 100 * mean, "standard_error": 100 * error, "episodes_played": n}
            for task, (mean, error, n) in spreads.items()
        },
        "input_tokens": sum(log["input_tokens"] for log in logs),
        "output_tokens": sum(log["output_tokens"] for log in logs),
    }


def leaderboard_summary(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The values of BALROG's `summary.json`: the plain mean of environments, and its standard error."""
    environments = {name: environment_summary(episodes) for name, episodes in logs.items()}
    shown = ("progression_percentage", "standard_error", "episodes_played")
    errors = [values["standard_error"] for values in environments.values()]
    means = [values["progression_percentage"] for values in environments.values()]
    first = next(iter(logs.values()))[0]
    return {
        "average_progress": sum(means) / len(means),
        "standard_error": math.sqrt(sum(error**2 for error in errors)) / len(errors),
        "environments": {name: {key: values[key] for key in shown} for name, values in environments.items()},
        "total_input_tokens": sum(values["input_tokens"] for values in environments.values()),
        "total_output_tokens": sum(values["output_tokens"] for values in environments.values()),
        "client": first["client"],
        "agent": first["agent"],
    }


def results_of(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, float | None]]:
    """Results by task, and of each environment, with 95% intervals: Wilson's of success in BabyAI, Student's of mean
    progression in Crafter; progression lies in [0, 1].

    **Returns:** `progression`, `progression_low`, `progression_high`, BALROG's `standard_error`, `episodes`, `steps` of
    a mean episode, `invalid`, the share of replies without a valid action, and `reply_tokens` of a mean reply."""
    rows: dict[str, dict[str, float | None]] = {}
    for environment, episodes in logs.items():
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for log in episodes:
            groups.setdefault(log["task"].rsplit("/", 1)[-1], []).append(log)
        whole = {environment: list(episodes)}
        tasks = {task: groups[task] for task in TASKS if task in groups}
        for name, group in {**tasks, **whole}.items():
            progress = [log["progression"] for log in group]
            steps = sum(log["num_steps"] for log in group)
            estimate = wilson(sum(progress), len(group)) if environment == BABYAI else mean_interval(progress)
            rows[name] = {
                "progression": estimate.mean,
                "progression_low": _none_if_nan(estimate.low),  # one episode of Crafter has no interval
                "progression_high": _none_if_nan(estimate.high),
                "standard_error": _spread(progress)[1],
                "episodes": len(group),
                "steps": steps / len(group),
                "invalid": sum(len(log["failed_candidates"]) for log in group) / steps,
                "reply_tokens": sum(log["output_tokens"] for log in group) / steps,
            }
    return rows


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


def results_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The results as text, in percent."""
    rows = [["task", "progression %", "95% interval", "standard error", "episodes", "steps", "invalid %"]]
    for name, row in results.items():
        low, high = row["progression_low"], row["progression_high"]
        interval = "" if low is None else f"[{100 * low:.1f}, {100 * high:.1f}]"
        numbers = [f"{100 * row['progression']:.1f}", interval, f"{100 * row['standard_error']:.1f}"]
        rows.append([name, *numbers, f"{row['episodes']:.0f}", f"{row['steps']:.1f}", f"{100 * row['invalid']:.1f}"])
    return text_table(rows)


# --- the command ------------------------------------------------------------------------------------------------------


def descriptions(config: EvalRun, model: ChatModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries `agent` and `client` of BALROG's files; `balrog`, `fixes` and `seeds` are additions."""
    agent = {
        "type": config.agent,
        "remember_cot": True,
        "max_text_history": config.max_text_history,
        "max_image_history": 0,
        "max_cot_history": config.max_cot_history,
        "balrog": config.balrog,
        "fixes": list(config.fixes),
        "seeds": config.seeds,
    }
    client = {
        "client_name": "llmrl_jax",
        "model_id": model.name,
        "base_url": config.chat.base_url,
        "generate_kwargs": config.chat.sampling,
        "alternate_roles": config.alternate_roles,
    }
    return agent, client


def worlds_of(config: EvalRun, episodes: Sequence[Episode]) -> Worlds:
    """The batch of episodes of one environment."""
    seeds = [episode.seed for episode in episodes]
    if episodes[0].task == CRAFTER:
        fixes = config.fixes
        return CrafterWorlds(
            seeds, config.settings.wording, whole_view="view" in fixes, hidden_noop="noop" not in fixes
        )
    return BabyAIWorlds([episode.task for episode in episodes], seeds)


def evaluate(config: EvalRun) -> dict[str, Any]:
    """Play the episodes that have no file yet, write BALROG's files and `summary.json`, and print the results.

    **Returns:** the values of `summary.json`. **Raises:** what the chat model raises; finished episodes and all
    replies are kept, and `--run.resume` goes on."""
    config.chat.check_usable()
    with opened(config.run, "balrog-eval") as folder:
        begin(folder, config)
        target = folder / FOLDER
        chat = make_chat(config.chat, ScriptedPlayer(), folder)
        agent, client = descriptions(config, chat.model)
        started, steps = time.monotonic(), 0
        try:
            for environment in (BABYAI, CRAFTER):
                tasks = [task for task in config.names if (task == CRAFTER) == (environment == CRAFTER)]
                episodes = [
                    Episode(task, number, episode_seed(config, task, number))
                    for task in tasks
                    for number in range(config.episodes)
                ]
                episodes = [episode for episode in episodes if not episode.file(target, "json").exists()]
                if not episodes:
                    continue
                with doing(f"{environment}: {chat.model.name}", len(episodes), "episodes") as activity:
                    for episode, stats in play(
                        worlds_of(config, episodes),
                        episodes,
                        config.settings,
                        chat.model,
                        config.chat.sampling,
                        max_steps=config.max_steps,
                    ):
                        activity.done += 1
                        steps += episode.num_steps
                        _write(episode, target, episode.log(stats, agent, client))
        finally:
            chat.close()
        seconds, spent = time.monotonic() - started, chat.spent
        logs = read_logs(target)
        _write_summaries(target, logs)
        values = {
            "balrog": config.balrog,
            "agent": config.agent,
            "fixes": list(config.fixes),
            "model": chat.model.name,
            "average_progress": leaderboard_summary(logs)["average_progress"] / 100,
            "results": results_of(logs),
            "steps_per_second": steps / seconds if steps else None,
            "calls": spent.calls,
            "usd": spent.usd,
        }
        write_summary(folder, values)
    print(f"BALROG {config.balrog}, agent {config.agent}, model {chat.model.name}")
    print(results_table(values["results"]))
    print(f"{spent.calls} requests. BALROG's files are in {target}")
    return values


def _write(episode: Episode, folder: Path, log: Mapping[str, Any]) -> None:
    """Write an episode's files; the log last, since it says that the episode is finished."""
    episode.file(folder, "csv").parent.mkdir(parents=True, exist_ok=True)
    write_whole(episode.file(folder, "csv"), episode.csv())
    write_whole(episode.file(folder, "json"), json.dumps(log, indent=4))


def _write_summaries(folder: Path, logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    for environment, episodes in logs.items():
        path = folder / environment / f"{environment}_summary.json"
        write_whole(path, json.dumps(environment_summary(episodes), indent=4))
    write_whole(folder / "summary.json", json.dumps(leaderboard_summary(logs), indent=4))
