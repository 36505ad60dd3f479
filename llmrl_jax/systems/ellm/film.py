"""An episode as a video: the world's picture beside the captions, the goals, the action, and what it earned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from llmrl_jax.agents.play import Actor, Episode, make_recorder, policy_actor
from llmrl_jax.core.activity import doing
from llmrl_jax.report.video import FAINT, GOOD, Section, draw_panel, write_gif
from llmrl_jax.systems.ellm.goals import read_names


FPS, HOLD = 3.0, 4.0
"""Frames per second, and the seconds that the last frame stays."""


@dataclass(frozen=True)
class Moment:
    """What is drawn about one step."""

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


def record(env: Any, env_params: Any, policy: Any, params: Any, frozen: Any, key: jax.Array) -> Episode:
    """One episode of an agent. **Arguments:** `env`, with goals, not batched; see `make_recorder`."""

    def actor(variables: Any) -> Actor:
        params, frozen = variables
        inner = policy_actor(policy, params, frozen, False)

        def act(obs, carry, first, keys):
            action, carry, _ = inner.act(obs, carry, first, keys)
            return action, carry, ()

        return Actor(act, inner.initial_carry)

    return make_recorder(env, env_params, actor)((params, frozen), key)


def moments(env: Any, env_params: Any, played: Episode) -> list[Moment]:
    """What is drawn about each step and the end of an episode, `T + 1`."""
    state = played.views["state"]
    ids = hasattr(state, "reached")
    names = read_names(env_params.goals.names, int(env_params.goals.count)) if ids else []
    earned = np.asarray(state.earned, np.float64)
    found: list[Moment] = []
    so_far: list[str] = []
    for t in range(len(played) + 1):
        text = env.describe(played.at(t)["obs"])
        shown = text.pop("goals")
        if ids:
            goals: Any = [names[i] for i in np.asarray(state.goals[t]) if i >= 0]
        else:
            goals = shown.split(", ") if shown else []
        last = t == len(played)
        gain = 0.0 if last else earned[t + 1] - earned[t]
        action = "" if last else env.action_names[int(played.action[t])]
        new: Any = () if last or not ids else np.flatnonzero(state.reached[t + 1] & ~state.reached[t])
        reached = action if gain else ""
        if len(new):  # of two synonyms, which are reached together, the one that was done
            reached = action if action in (names[i] for i in new) else names[new[0]]
        captions = [phrase for name, whole in text.items() for phrase in _phrases(env, name, whole)]
        total = float(earned[min(t + 1, len(played))])
        goals, done = tuple(dict.fromkeys(goals)), tuple(dict.fromkeys(so_far))
        found.append(Moment(tuple(captions), goals, action, reached, float(gain), total, done))
        so_far += [reached] if reached else []
    return found


def _phrases(env: Any, name: str, text: str) -> list[str]:
    separator = env.captions[name].separator
    joined = text if separator.isspace() and "\n" not in separator else text.replace(separator, "\n")
    return [line for line in joined.replace(". ", ".\n").split("\n") if line.strip()]


def draw(picture: np.ndarray, moment: Moment, step: int, ending: str) -> np.ndarray:
    """One frame, uint8 `[H, W, 3]`."""
    if moment.action:
        sections = [Section("action", (moment.action,), most=1)]
    else:
        sections = [Section("the end", (ending,), most=1)]
    if moment.reached:
        sections.append(Section("reaches the goal", (f"{moment.reached}: {moment.earned:+.2f}",), GOOD, most=2))
    sections.append(Section("goals", (", ".join(moment.goals) or "none",), most=4))
    if moment.captions:
        sections.append(Section("the state", moment.captions, most=8))
    if moment.so_far:
        sections.append(Section("reached before", (", ".join(moment.so_far),), FAINT, most=3))
    return draw_panel(picture, f"step {step}", sections, f"reward for goals so far: {moment.total:.2f}")


def write(env: Any, env_params: Any, played: Episode, file: Path) -> Path:
    """Write an episode as an animated GIF. **Returns:** the file."""
    shown = moments(env, env_params, played)
    ending = "the world ended the episode" if played.success else "time is up"
    frames: list[np.ndarray] = []
    with doing("drawing", len(shown), "frames") as activity:
        for t, moment in enumerate(shown):
            frames.append(draw(env.render(played.at(t)["state"]), moment, t, ending))
            activity.done = t + 1
    return write_gif(file, _paused(frames, shown), fps=FPS, hold=HOLD)


def _paused(frames: Sequence[np.ndarray], shown: Sequence[Moment]) -> list[np.ndarray]:
    """Frames, of which those that reach a goal are shown twice as long."""
    return [frame for frame, moment in zip(frames, shown, strict=True) for _ in range(2 if moment.reached else 1)]
