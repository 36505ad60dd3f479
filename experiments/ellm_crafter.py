"""ELLM in Crafter with 139 actions: the oracle's goals beside novelty bonuses, other goals, and no goals at all.

    python experiments/ellm_crafter.py                                   # every agent, three seeds
    python experiments/ellm_crafter.py --agents embedded rnd --seeds 1   # some of them
    python experiments/ellm_crafter.py --agents embedded plain --steps 300000 --out runs/ellm_crafter_changes

Every agent is a preset of `llmrl ellm pretrain`, or `embedded` without its three changes; none sees the world's own
reward but `extrinsic`. Runs are written to `<out>/<agent>-<seed>`; those that exist are continued, or read if they are
finished, so it can be stopped at any time. `<out>/results.json` has the curves, the held-out episodes of the trained
agents and those of random play, and `<out>/curves.png` their picture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from commands import command
from ellm_runs import Agents, Runs, compare

from llmrl_jax.options.command import parse
from llmrl_jax.systems.ellm.config import EMBEDDED, PRESETS


NAMES = {
    "embedded": "oracle's goals",
    "novelty": "all actions as goals",
    "uniform": "random goals",
    "extrinsic": "Crafter's reward",
    "rnd": "RND",
    "noveld": "NovelD",
    "apt": "APT",
}
PLAIN = replace(
    EMBEDDED,
    network=replace(EMBEDDED.network, pointing=False),
    dqn=replace(EMBEDDED.dqn, replay="uniform", n_step=3),
)
CHANGED = {
    "plain": PLAIN,
    "plain-slow": replace(PLAIN, dqn=replace(PLAIN.dqn, epsilon_steps=400_000)),
    "plain-adviser": replace(PLAIN, suggester="chat"),
}
"""`embedded` without its three changes; `plain` with an epsilon that falls more slowly, and with the scripted adviser's
goals."""


@dataclass(frozen=True)
class Experiment:
    """ELLM's agents and baselines."""

    agents: tuple[str, ...] = tuple(NAMES)
    """Presets of `llmrl ellm pretrain`, or `plain`, `plain-slow`, `plain-adviser`."""
    seeds: int = 3
    """Number of seeds per agent, from 0."""
    steps: int = 1_000_000
    """Environment steps of each run."""
    episodes: int = 100
    """Held-out episodes per agent and seed."""
    out: str = "runs/ellm_crafter"
    """Folder of the runs and of the results."""


def main() -> None:
    x = parse(Experiment, description=__doc__)
    line = command(Path(__file__).name, x)
    agents = Agents(PRESETS | CHANGED, NAMES, "achievements", "achievements per episode", line)
    compare(agents, x.agents, Runs(x.seeds, x.steps, x.episodes, x.out))


if __name__ == "__main__":
    main()
