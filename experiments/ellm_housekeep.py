"""ELLM in Housekeep: the oracle's goals and those of a scripted adviser beside novelty bonuses, other goals, and the
world's own reward.

    python experiments/ellm_housekeep.py                                    # every agent, three seeds, macro actions
    python experiments/ellm_housekeep.py --tier low --steps 1000000         # by low-level actions
    python experiments/ellm_housekeep.py --agents oracle rnd --task 3 --seeds 1

Every agent is the preset `housekeep-macro` or `housekeep` of `llmrl ellm pretrain` with the flags that the page of ELLM
names. Runs are written to `<out>/<agent>-<seed>`; those that exist are continued, or read if they are finished, so it
can be stopped at any time. `<out>/results.json` has the curves, the held-out episodes of the trained agents and those
of random play, and `<out>/curves.png` their picture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from commands import command
from ellm_runs import Agents, Runs, compare

from llmrl_jax.options.command import parse
from llmrl_jax.systems.ellm.config import EllmConfig, preset


NAMES = {
    "oracle": "oracle's goals",
    "chat": "scripted adviser's goals",
    "novelty": "all placements as goals",
    "uniform": "random goals",
    "extrinsic": "Housekeep's reward",
    "rnd": "RND",
    "noveld": "NovelD",
    "apt": "APT",
}


@dataclass(frozen=True)
class Experiment:
    """ELLM's agents and baselines on one fixed task."""

    agents: tuple[str, ...] = tuple(NAMES)
    """Any of `oracle`, `chat`, `novelty`, `uniform`, `extrinsic`, `rnd`, `noveld`, `apt`."""
    tier: Literal["macro", "low"] = "macro"
    """Actions: whole trips, or the six low-level ones."""
    task: int = 1
    """The fixed task, 1 to 4."""
    seeds: int = 3
    """Number of seeds per agent, from 0."""
    steps: int = 300_000
    """Environment steps of each run."""
    episodes: int = 100
    """Held-out episodes per agent and seed."""
    out: str = ""
    """Folder of the runs and of the results; empty: `runs/ellm_housekeep_<tier>_<task>`."""


def configs(base: EllmConfig) -> dict[str, EllmConfig]:
    """The settings of every agent."""
    return {
        "oracle": base,
        **{name: replace(base, suggester=name) for name in ("chat", "novelty", "uniform")},  # type: ignore[arg-type]
        "extrinsic": replace(base, suggester="none", extrinsic=1.0),
        **{name: replace(base, suggester="none", bonus=name) for name in ("rnd", "noveld", "apt")},  # type: ignore[arg-type]
    }


def main() -> None:
    x = parse(Experiment, description=__doc__)
    base = preset("housekeep-macro" if x.tier == "macro" else "housekeep")
    base = replace(base, env=base.env.replace("Task1", f"Task{x.task}"))
    line = command(Path(__file__).name, x)
    agents = Agents(configs(base), NAMES, "place_success", "misplaced objects put right", line)
    out = x.out or f"runs/ellm_housekeep_{x.tier}_{x.task}"
    compare(agents, x.agents, Runs(x.seeds, x.steps, x.episodes, out))


if __name__ == "__main__":
    main()
