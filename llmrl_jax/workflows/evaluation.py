"""The evaluation of a finished or interrupted run on held-out episodes, and one episode of it: `llmrl eval` and
`llmrl play`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from envs_jax.env import Environment, has_picture
from envs_jax.spaces import Discrete
from llmrl_jax.agents.play import Episode
from llmrl_jax.core.checks import COUNT, check_seed, in_interval
from llmrl_jax.core.files import check_writable, json_text
from llmrl_jax.report.video import write_gif
from llmrl_jax.rl.rollout import step_info
from llmrl_jax.workflows.experiment import (
    Experiment,
    Results,
    check_saved,
    experiment_of,
    larger_results,
    record,
    restore,
    write_results,
)
from llmrl_jax.workflows.loading import settings_of


def evaluate(
    folder: str | Path,
    config: Any = None,
    *,
    episodes: int = 0,
    checkpoint: int = -1,
    seed: int = 0,
    gif: bool = False,
    json: bool = False,
) -> Results:
    """Evaluate a run's checkpoint on held-out episodes beside random actions, print the results, and write
    `eval-UPDATE.json`, unless it has those of more episodes.

    **Arguments:** `folder`, the run's; `config`, its settings, with `experiment()` (None: read from the folder);
    `episodes`, for each way of acting
    (0: as many as the run's own evaluations); `checkpoint`, by update number (-1: newest); `seed`, of the episodes;
    `gif`, whether to also write an episode; `json`, whether to print the results as JSON.
    **Returns:** the results by name, floats or dicts of them: means over the episodes (returns in units of the reward,
    lengths in steps, success as a fraction) and the bounds of their 95% intervals.
    **Raises:** `ValueError` for numbers out of range, a run without an environment, or one of another kind;
    `FileNotFoundError` for a missing run or checkpoint.

    **Example:** of a run that `train` wrote.

    ```pycon
    >>> import llmrl_jax as lr
    >>> results = lr.evaluate("runs/cartpole", episodes=16)
    >>> 8 <= results["greedy/episode_length"] <= 500
    True
    >>> results["random/episode_return_low"] < results["random/episode_return"]
    True
    ```
    """
    folder = Path(folder)
    config = settings_of(folder) if config is None else config
    episodes = episodes or config.eval_episodes
    in_interval("episodes", episodes, COUNT)
    check_seed("seed", seed)
    check_writable(folder, "the run's folder", folder=True)
    check_saved(folder, checkpoint)
    x = _experiment(folder, config)
    if gif and x.video is None:
        _check_pictures(x, "gif is set")
    state, update = restore(folder, config, x.learner, checkpoint)
    results = x.results(state, x.key(seed), episodes)
    before = larger_results(folder, update, episodes)
    written = None if before else write_results(x, folder, update, seed, episodes, results)
    video = record_video(x, state, x.key(seed), folder / "episode.gif") if gif else None
    if json:
        files = ({"file": written} if written else {}) | ({"gif": video} if video else {})
        print(json_text({"run": folder, "episodes": episodes, "update": update, **x.about, **results, **files}))
        return results
    in_env = f", {x.about['env']}" if x.about.get("env") else ""
    print(f"{folder}, checkpoint of update {update}{in_env}, {episodes} episodes each")
    print(x.report(results, episodes))
    print(where_written(folder, update, before, video))
    return results


def where_written(folder: Path, update: int, before: int, video: Path | None) -> str:
    """A sentence on the files of an evaluation. **Arguments:** `before`, see `larger_results`."""
    file = folder / f"eval-{update}.json"
    results = f"{file} stays: it has {before} episodes" if before else f"The results are in {file}"
    return results + (f", and the episode {'is ' if before else ''}in {video}" if video else "")


def play(
    folder: Path,
    config: Any,
    *,
    checkpoint: int = -1,
    seed: int = 0,
    sampled: bool = False,
    gif: str = "",
) -> Episode | None:
    """Play one held-out episode of a run's policy, and print its steps.

    **Arguments:** `sampled`, whether actions are sampled, not the most likely; `gif`, a file for its pictures; the
    others as for `evaluate`.
    **Returns:** the episode; None of a policy that writes, whose conversation is printed.
    **Raises:** as `evaluate`; `ValueError` for pictures of an environment that has none, or of a conversation.
    """
    check_seed("seed", seed)
    check_saved(folder, checkpoint)
    if gif:
        check_writable(Path(gif), "the GIF")
    x = _experiment(folder, config)
    if gif:
        _check_pictures(x, f"gif is {gif}")
    state, update = restore(folder, config, x.learner, checkpoint)
    key = jax.random.fold_in(x.key(seed), 0)
    if x.conversation is not None:
        print(f"{folder}, checkpoint of update {update}, {'sampled' if sampled else 'greedy'} replies")
        print(x.conversation(state, key, not sampled))
        return None
    episode = record(x, state, key, greedy=not sampled)
    assert x.env is not None
    print(f"{folder}, checkpoint of update {update}, {'sampled' if sampled else 'greedy'} actions")
    print(transcript(x.env, x.variables(x, state)[2], episode))
    if gif:
        print(f"The episode is in {write_gif(gif, pictures(x.env, episode))}")
    return episode


def _experiment(folder: Path, config: Any) -> Experiment:
    """The experiment of a run. **Raises:** `ValueError` if it has no environment."""
    x = experiment_of(folder, config)
    if x.env is None:
        raise ValueError(f"the run in {folder} has no environment to play in: train one with --env")
    return x


def _check_pictures(x: Experiment, given: str) -> None:
    """**Raises** `ValueError` for pictures of a conversation, or of an environment that has none."""
    if x.conversation is not None:
        raise ValueError(f"{given}, but a conversation has no pictures: leave --gif out")
    if x.env is not None and not has_picture(x.env):
        raise ValueError(f"{given}, but {x.env.unwrapped.id} has no picture: leave --gif out")


def transcript(env: Environment, env_params: Any, episode: Episode) -> str:
    """An episode as text: what there is to see in letters or words before each step, then the action and its reward."""
    lines = []
    for t in range(len(episode) + 1):
        view = episode.view_at(t)
        text = env.ascii(view["state"]) or "\n".join(env.describe(view["obs"]).values())
        if text:
            lines += ["", text]
        if t < len(episode):
            action = action_text(env, env_params, episode.action[t])
            reward = float(episode.reward[t])
            lines.append(f"step {t + 1}: {action}" + (f", reward {reward:g}" if reward else ""))
    total = float(np.sum(episode.reward))
    outcome = "" if "success" not in step_info(env, env_params) else ", success" if episode.success else ", no success"
    return "\n".join([*lines, "", f"{len(episode)} steps, return {total:g}{outcome}"]).lstrip("\n")


def action_text(env: Environment, env_params: Any, action: Any) -> str:
    """An action in words: its name, or its numbers."""
    if isinstance(env.action_space(env_params), Discrete):
        return env.action_names[int(action)]
    return np.array2string(np.asarray(action), precision=3, separator=", ")


def pictures(env: Environment, episode: Episode) -> list[np.ndarray]:
    """The pictures of an episode's states, uint8 `[H, W, 3]`. **Raises:** `ValueError` if the environment has none."""
    try:
        return [env.render(episode.view_at(t)["state"]) for t in range(len(episode) + 1)]
    except NotImplementedError as error:
        raise ValueError(f"{error}: leave --gif out") from None


def record_video(x: Experiment, state: Any, key: jax.Array, path: Path) -> Path:
    """Write an episode as an animated GIF: as the experiment draws it, else its pictures."""
    if x.video is not None:
        return x.video(state, key, path)
    assert x.env is not None
    return write_gif(path, pictures(x.env, record(x, state, jax.random.fold_in(key, 0))))
