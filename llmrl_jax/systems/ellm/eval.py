"""Held-out episodes: achievements, the Crafter score, returns, categories of goals; `llmrl ellm eval`; videos."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from llmrl_jax.agents.evaluate import make_evaluator
from llmrl_jax.agents.play import Episode, Step, actor_of, make_recorder
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import COUNT, check_seed, in_interval
from llmrl_jax.core.files import check_writable, json_text
from llmrl_jax.core.statistics import estimate_of, mean_interval, wilson
from llmrl_jax.parallel import Placement
from llmrl_jax.report.figures import text_table
from llmrl_jax.report.video import FAINT, GOOD, Section, draw_panel, write_gif
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.run.pytrees import mesh_of
from llmrl_jax.systems.ellm.build import HELD_OUT, Ellm, load_run, make_env, make_world, texts_of
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.goals import CATEGORIES, GoalSpec, GoalWrapper
from llmrl_jax.systems.ellm.open_goals import OpenGoalSpec, read_names
from llmrl_jax.workflows import evaluation as run_evaluation
from llmrl_jax.workflows.experiment import larger_results


ALL_GOALS = "all"
FPS, HOLD = 3.0, 4.0
"""Frames per second of a video, and the seconds that the last frame stays."""


@struct.dataclass
class EpisodeStats:
    """`E` episodes, as NumPy arrays."""

    unlocked: Any
    """bool `[E, achievements]`."""
    earned: Any
    """float32 `[E]`, the sum of the rewards for goals."""
    episode_return: Any
    """float32 `[E]`, of the environment's own rewards."""
    length: Any
    """int32 `[E]`."""
    tally: Any
    """int32 `[E, 2, 4]`, suggestions and rewards of each category."""
    unknown: Any
    """float32 `[E]`, the fraction of steps in states that had not been answered."""
    measures: Mapping[str, Any] = struct.field(default_factory=dict)
    """float32 `[E]` each, the `measures` of the specification."""


def make_goal_evaluator(env: GoalWrapper, policy: Any, episodes: int) -> Callable[..., EpisodeStats]:
    """Build `play(params, frozen, env_params, key, greedy=False) -> EpisodeStats`, compiled once.

    **Arguments:** `env`, not batched; `policy`, see `llmrl_jax.rl.policy.Policy`. The environment's parameters, which
    have the known suggestions, are an argument: they change while a run learns.
    """

    def outcomes(step: Step) -> EpisodeStats:
        info = step.info
        kinds = [
            jnp.stack([info[f"episode_{event}/{kind}"] for kind in CATEGORIES], -1) for event in ("suggested", "paid")
        ]
        return EpisodeStats(
            unlocked=info["achievements"] > 0,
            earned=info["episode_earned"],
            episode_return=info["episode_return"],
            length=info["episode_length"],
            tally=jnp.stack(kinds, axis=1).astype(jnp.int32),
            unknown=info["episode_unknown"],
            measures={name: info[f"episode_{name}"] for name in env.spec.measures},
        )

    evaluate = make_evaluator(env, None, policy, episodes=episodes, lanes=episodes, outcomes=outcomes)

    def play(params: Any, frozen: Any, env_params: Any, key: jax.Array, greedy: bool = False) -> EpisodeStats:
        params, frozen, env_params, key = _committed((params, frozen, env_params, key))
        return evaluate(params, frozen, key, greedy=greedy, env_params=env_params)

    return play


def play_random(env: GoalWrapper, env_params: Any, key: jax.Array, episodes: int) -> EpisodeStats:
    """Episodes of random actions, with the starts of `make_goal_evaluator` for the same key."""
    play = make_goal_evaluator(env, RandomPolicy(env.spec.actions), episodes)
    with doing("random actions"):
        return play((), (), env_params, key)


def _committed(tree: Any) -> Any:
    """Arrays that stay where they are, or are on every device of the mesh of the others: jit compiles again where the
    same arrays could move in one call and not in the next, as those of a new state and of one that a run has
    updated."""
    arrays = jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jnp.asarray(x), tree)
    mesh = mesh_of(arrays)
    if mesh is not None:
        return Placement(mesh).device_put(arrays)
    return jax.tree.map(lambda x: jax.device_put(x, x.sharding), arrays)


def crafter_score(success: np.ndarray) -> float:
    """Crafter's score in percent (Hafner, 2109.06780): `exp(mean ln(1 + s)) - 1` over achievements.

    **Arguments:** `success`, the fraction of episodes with each achievement.
    """
    return float(np.exp(np.mean(np.log1p(100 * np.asarray(success, np.float64)))) - 1)


def summarise(spec: GoalSpec, stats: EpisodeStats) -> dict[str, float]:
    """Numbers about episodes, by name: means with the ends of their 95% intervals, the score, success per
    achievement, and suggestions and rewards per category."""
    count = len(stats.length)
    numbers: dict[str, float] = {"episodes": float(count)}
    means = {
        "achievements": stats.unlocked.sum(axis=1),
        "earned": stats.earned,
        "episode_return": stats.episode_return,
        "episode_length": stats.length,
        **stats.measures,
    }
    if not spec.achievements:
        del means["achievements"]
    for name, values in means.items():
        numbers |= mean_interval(values.astype(np.float64)).results(name)
    if spec.achievements:
        numbers["score"] = crafter_score(stats.unlocked.mean(axis=0))
    numbers["unknown"] = float(stats.unknown.mean())
    for name, won in zip(spec.achievements, stats.unlocked.T, strict=True):
        rate = wilson(int(won.sum()), count)
        numbers |= {f"unlocked/{name}": rate.mean, f"unlocked_low/{name}": rate.low, f"unlocked_high/{name}": rate.high}
    return numbers | category_shares(stats.tally.sum(axis=0))


def category_shares(tally: np.ndarray) -> dict[str, float]:
    """Counts of suggested and of rewarded goals, and the fraction of each category.

    **Arguments:** `tally`, int `[2, 4]`: suggestions, rewards. **Returns:** fractions are nan where there are none."""
    shares: dict[str, float] = {}
    for event, row in zip(("suggested", "paid"), tally):
        total = int(row.sum())
        shares[event] = float(total)
        shares |= {f"{event}/{kind}": int(n) / total if total else math.nan for kind, n in zip(CATEGORIES, row)}
    return shares


def report(results: Mapping[str, Mapping[str, float]], spec: GoalSpec) -> str:
    """Results of several agents as tables: means with intervals, success per achievement, categories of goals."""

    def share(values: Mapping[str, float], name: str) -> str:
        return "-" if math.isnan(values[name]) else f"{100 * values[name]:.1f}%"

    names = list(results)
    rows = [["", *names]]
    first = {"achievements": "achievements per episode"} if spec.achievements else {}
    labels = {**first, **spec.measures, "earned": "reward for goals", "episode_length": "steps"}
    rows += [
        [label, *(f"{estimate_of(values, name):.2f}" for values in results.values())] for name, label in labels.items()
    ]
    if spec.achievements:
        rows.append(["Crafter score", *(f"{values['score']:.2f}%" for values in results.values())])
    tables = [text_table(rows)]
    unlocked = [
        name for name in spec.achievements if any(values[f"unlocked/{name}"] > 0 for values in results.values())
    ]
    if unlocked:
        rows = [["episodes with", *names]]
        rows += [[name, *(share(values, f"unlocked/{name}") for values in results.values())] for name in unlocked]
        tables.append(text_table(rows))
    if any(values["suggested"] for values in results.values()):
        tables.append(categories_table(results))
    return "\n\n".join(tables)


def categories_table(results: Mapping[str, Mapping[str, float]]) -> str:
    """The four-way table: fractions of suggested and of rewarded goals by category, for several agents."""
    rows = [["goals", "", "count", *(kind.replace("_", " ") for kind in CATEGORIES)]]
    for name, values in results.items():
        for event, label in (("suggested", "suggested"), ("paid", "rewarded")):
            if not values[event]:
                continue
            shares = (values[f"{event}/{kind}"] for kind in CATEGORIES)
            cells = ("-" if math.isnan(x) else f"{100 * x:.1f}%" for x in shares)
            rows.append([name, label, f"{values[event]:.0f}", *cells])
    return text_table(rows)


# --- llmrl ellm eval --------------------------------------------------------------------------------------------------


def evaluate(
    folder: Path,
    *,
    episodes: int = 100,
    goals: Sequence[str] = (),
    checkpoint: int = -1,
    seed: int = 0,
    gif: bool = False,
    json: bool = False,
) -> dict[str, Any]:
    """Evaluate a checkpoint on held-out episodes beside random play, print the results, and write `eval-UPDATE.json`,
    unless it has those of more episodes.

    **Arguments:** `folder`, the run's; `episodes`, of each agent and goal; `goals`, single goals to give the agent, one
    after another (`all`: those that can have an effect); `checkpoint`, by update number (-1: newest); `seed`, of the
    episodes; `gif`, whether to also write an episode; `json`, whether to print the results as JSON.

    Where every episode has the same start and goals, that of training, greedy actions play one episode. Runs of several
    seeds are evaluated as by `llmrl eval`, over seeds and without greedy actions.

    **Raises:** `ValueError` for numbers out of range and unknown goals; what `load_run` raises.
    """
    in_interval("episodes", episodes, COUNT)
    check_seed("seed", seed)
    check_writable(folder, "the run's folder", folder=True)
    config, built, state, update = load_run(folder, checkpoint)
    if (seeds := getattr(config, "seeds", 1)) > 1:
        if goals:
            raise ValueError(
                f"{folder} has the agents of {seeds} seeds, and single goals are given to one: leave --goals out"
            )
        options: dict[str, Any] = {"checkpoint": checkpoint, "seed": seed, "gif": gif, "json": json}
        return run_evaluation.evaluate(folder, config, episodes=episodes, **options)
    single = _goals(built, goals)
    key = jax.random.fold_in(jax.random.key(seed), HELD_OUT)
    play = make_goal_evaluator(built.env, built.policy, episodes)
    deterministic = built.spec.fixed_start and built.config.suggester != "uniform"  # random goals make episodes differ
    greedy = make_goal_evaluator(built.env, built.policy, 1) if deterministic and episodes > 1 else play
    params = state.runner.env_params
    played = {
        "agent": play(state.params, state.frozen, params, key),
        "greedy": greedy(state.params, state.frozen, params, key, greedy=True),
        "random": play_random(built.env, params, key, episodes),
    }
    summaries = {name: summarise(built.spec, stats) for name, stats in played.items()}
    results: dict[str, Any] = {"update": update, "env": built.config.env, "seed": seed, **summaries}
    if single:
        results["goals"] = sweep(built, state, single, key, episodes)
    before = larger_results(folder, update, episodes)
    if not before:
        configs.save_config(results, folder / f"eval-{update}.json")
    weights = (state.params, state.frozen, params)
    video = write_video(built, weights, key, folder / "episode.gif") if gif else None
    if json:
        files = ({} if before else {"file": folder / f"eval-{update}.json"}) | ({"gif": video} if video else {})
        print(json_text({"run": folder, "episodes": episodes, **results, **files}))
        return results
    print(f"{folder}, checkpoint of update {update}, {built.config.env}, {episodes} episodes each")
    if built.spec.fixed_start:
        note = "; greedy actions always play the same episode, which is played once" if deterministic else ""
        print(f"note: every episode has the start of training, so none is held out{note}")
    print(report(summaries, built.spec))
    if single:
        print("\n" + sweep_table(results["goals"]))
    print(run_evaluation.where_written(folder, update, before, video))
    return results


def _goals(built: Ellm, names: Sequence[str]) -> list[str]:
    if list(names) == [ALL_GOALS]:
        return list(built.spec.single_goals)
    for name in names:
        built.spec.with_goal(built.env_params, name)
    return list(names)


def sweep(
    built: Ellm, state: Any, goals: Sequence[str], key: jax.Array, episodes: int
) -> dict[str, dict[str, dict[str, float]]]:
    """The fraction of episodes in which each goal was reached, given to the agent as its only goal, and that of random
    play, with 95% Wilson intervals. One compiled program plays all goals."""
    default = EllmConfig()
    config = replace(
        built.config, suggester="fixed", fixed=(goals[0],), **{name: getattr(default, name) for name in _UNREAD}
    )
    env, _ = make_world(config, make_env(built.config))
    agent = make_goal_evaluator(env, built.policy, episodes)
    chance = make_goal_evaluator(env, RandomPolicy(env.spec.actions), episodes)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for goal in goals:
        params = env.spec.with_goal(env.default_params, goal)
        played = {"agent": agent(state.params, state.frozen, params, key), "random": chance((), (), params, key)}
        results[goal] = {}
        for name, stats in played.items():
            rate = wilson(int((stats.earned > 0).sum()), episodes)
            results[goal][name] = {"success": rate.mean, "low": rate.low, "high": rate.high}
    return results


_UNREAD = (
    *("goals", "judge", "uniform_goals", "bonus", "rnd", "noveld", "apt", "intrinsic", "extrinsic"),
    *("threshold", "once", "gate", "compat"),
)
"""Options of training that a sweep over goals does not follow: a goal is reached by its own action, with its effect,
however the run paid for it."""


def sweep_table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Success per goal, of the agent and of random play."""
    rows = [["goal reached", "agent", "random"]]
    for goal, values in results.items():
        cells = (f"{x['success']:.2f} [{x['low']:.2f}, {x['high']:.2f}]" for x in values.values())
        rows.append([goal, *cells])
    return text_table(rows)


# --- video ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """Texts beside the image of one step."""

    captions: tuple[str, ...]
    """Sentences about the state."""
    goals: tuple[str, ...]
    """The goals of the state."""
    action: str
    """The action taken; empty at the end of the episode."""
    reached: str
    """The goal that the action reached; empty: none."""
    earned: float
    """The reward of the action for goals."""
    total: float
    """Rewards for goals up to now, that of the action included."""
    so_far: tuple[str, ...] = ()
    """Goals that the episode reached before the action, in their order."""


def frames_of(env: Any, env_params: Any, played: Episode) -> list[Frame]:
    """The texts about each step and the end of an episode, `T + 1`."""
    state = played.views["state"]
    ids = isinstance(env.spec, OpenGoalSpec)
    names = read_names(env_params.goals.names, int(env_params.goals.count)) if ids else []
    earned = np.asarray(state.earned, np.float64)
    frames: list[Frame] = []
    so_far: list[str] = []
    for t in range(len(played) + 1):
        text = env.describe(played.view_at(t)["obs"])
        goals_text = text.pop("goals")
        if ids:
            goals: Any = [names[i] for i in np.asarray(state.goals[t]) if i >= 0]
        else:
            goals = goals_text.split(", ") if goals_text else []
        last = t == len(played)
        gain = 0.0 if last else earned[t + 1] - earned[t]
        action = "" if last else env.action_names[int(played.action[t])]
        new: Any = () if last or not ids else np.flatnonzero(state.reached[t + 1] & ~state.reached[t])
        reached = action if gain else ""
        if len(new):  # of two synonyms, which are reached together, the one that was done
            reached = action if action in (names[i] for i in new) else names[new[0]]
        captions = [phrase for name, part in text.items() for phrase in _phrases(env, name, part)]
        total = float(earned[min(t + 1, len(played))])
        goals, previous = tuple(dict.fromkeys(goals)), tuple(dict.fromkeys(so_far))
        frames.append(Frame(tuple(captions), goals, action, reached, float(gain), total, previous))
        so_far += [reached] if reached else []
    return frames


def _phrases(env: Any, name: str, text: str) -> list[str]:
    separator = env.captions[name].separator
    joined = text if separator.isspace() and "\n" not in separator else text.replace(separator, "\n")
    return [line for line in joined.replace(". ", ".\n").split("\n") if line.strip()]


def draw(picture: np.ndarray, frame: Frame, step: int, ending: str) -> np.ndarray:
    """One frame, uint8 `[H, W, 3]`."""
    if frame.action:
        sections = [Section("action", (frame.action,), most=1)]
    else:
        sections = [Section("the end", (ending,), most=1)]
    if frame.reached:
        sections.append(Section("reaches the goal", (f"{frame.reached}: {frame.earned:+.2f}",), GOOD, most=2))
    sections.append(Section("goals", (", ".join(frame.goals) or "none",), most=4))
    if frame.captions:
        sections.append(Section("the state", frame.captions, most=8))
    if frame.so_far:
        sections.append(Section("reached before", (", ".join(frame.so_far),), FAINT, most=3))
    return draw_panel(picture, f"step {step}", sections, f"reward for goals so far: {frame.total:.2f}")


def write_video(built: Ellm, weights: tuple[Any, Any, Any], key: jax.Array, path: Path) -> Path:
    """Write a GIF of the first episode, with captions and goals also where the agent sees none. Frames that reach a
    goal are shown twice as long.

    **Arguments:** `weights`, of the policy, its frozen part, and the environment's parameters.
    """
    params, frozen, env_params = weights
    env = built.env
    if not env.captions and texts_of(env.unwrapped):
        text: Any = f"{built.config.observe}+text"
        config = replace(built.config, observe=text)
        env, _ = make_world(config, make_env(built.config))
    with doing("recording an episode"):
        record = make_recorder(env, env_params, actor_of(built.policy))
        played = record((params, frozen), jax.random.fold_in(key, 0))
    texts = frames_of(env, env_params, played)
    ending = "the world ended the episode" if played.success else "time is up"
    pictures: list[np.ndarray] = []
    with doing("drawing", len(texts), "frames") as activity:
        for t, frame in enumerate(texts):
            picture = draw(env.render(played.view_at(t)["state"]), frame, t, ending)
            pictures += [picture] * (2 if frame.reached else 1)
            activity.done = t + 1
    return write_gif(path, pictures, fps=FPS, hold=HOLD)
