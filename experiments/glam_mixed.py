"""The mixed task of the paper (five kinds of missions, 8 x 8 room, 8 objects) by PPO on a small Llama, from one prior.

The prior replaces the pretrained model, so it is trained once and shared by all seeds:

    python experiments/glam_mixed.py --run.name mixed --run.seed 0
    python experiments/glam_mixed.py --run.name mixed-1 --run.seed 1 --prior runs/mixed/prior
    python experiments/glam_mixed.py --run.name mixed-2 --run.seed 2 --prior runs/mixed/prior

That of 2026-11-25 (the first command, about an hour of a core up to there) is committed: `--prior
experiments/priors/mixed` starts with RL.

For comparison, with the same number of steps: `llmrl glam train --agent symbolic` and `--agent drrn` in the same
environment. The numbers are in docs/systems/glam-results.md, the logs in `experiments/results/mixed/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from llmrl_jax.options.command import parse
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.glam.config import DEMO, GlamConfig
from llmrl_jax.systems.glam.demo import prior_then_ppo
from llmrl_jax.workflows.curriculum import PriorConfig, ReadingConfig


ENV = "BabyAI-Text/MixedTrainLocal-v0"


@dataclass(frozen=True)
class Experiment:
    """The mixed task by PPO on a small Llama."""

    glam: GlamConfig = field(
        default_factory=lambda: replace(
            DEMO,
            env=ENV,
            embedded=replace(DEMO.embedded, layers=4, spare_words=128),
            score_rows=16,
            score_widths=5,
            ppo=replace(
                DEMO.ppo,
                num_envs=128,
                num_steps=64,
                microbatches=1,
                learning_rate=3e-4,
                entropy_coef=0.02,
                gamma=0.99,
                gae_lambda=0.99,
            ),
        )
    )
    imitation: PriorConfig = field(
        default_factory=lambda: PriorConfig(updates=4000, batch_size=64, noise=0.25, seen_only=True, learning_rate=1e-3)
    )
    reading: ReadingConfig = field(
        default_factory=lambda: ReadingConfig(
            associations=1200,
            goals=4000,
            updates=1500,
            env=ENV,
            rows=40_000,
            questions=6,
            goal_only=0.5,
            invented=0.5,
        )
    )
    steps: int = 184 * 128 * 64
    """Number of environment steps of RL; 1.5 million, as in the paper, are 3 to 4 hours of a core."""
    episodes: int = 1000
    """Held-out episodes per evaluation, before and after."""
    prior: str = ""
    """Folder of an existing prior (`runs/NAME/prior`), to start with RL; empty: train the prior."""
    run: RunConfig = field(default_factory=lambda: RunConfig(checkpoint_every=20, eval_every=50))


def main() -> None:
    x = parse(Experiment, description=__doc__)
    prior_then_ppo(
        x.glam, x.imitation, x.steps, x.run, episodes=x.episodes, command="glam-mixed", prior=x.prior, reading=x.reading
    )


if __name__ == "__main__":
    main()
