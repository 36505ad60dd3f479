"""The updates after which the host logs, saves, evaluates or exchanges."""

from __future__ import annotations

from llmrl_jax.rl.learner import Exchange
from llmrl_jax.run.config import RunConfig


class Boundaries:
    """The intervals, in updates, at which a run logs, saves, evaluates and exchanges; 0: never."""

    def __init__(self, config: RunConfig, last: int, evaluates: bool, exchange: Exchange | None):
        """**Arguments:** `config`; `last`, the run's last update; `evaluates`, whether there is an evaluation;
        `exchange`, the learner's."""
        self.log, self.save, self.last = config.log_every, config.checkpoint_every, last
        self.eval = config.eval_every if evaluates else 0
        self.exchange = 0 if exchange is None else exchange.every

    def next(self, update: int) -> int:
        """The first boundary after `update`, at which a chunk of updates ends at the latest."""
        every = [n for n in (self.log, self.save, self.eval, self.exchange) if n]
        return min([self.last, *((update // n + 1) * n for n in every)])

    def due(self, every: int, update: int) -> bool:
        """Whether work that is due every `every` updates and at the end is due after `update`."""
        return bool(every) and (update % every == 0 or update == self.last)
