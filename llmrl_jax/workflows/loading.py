"""Runs of any kind, from their folder alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl_jax.core import config as configs
from llmrl_jax.options import kinds
from llmrl_jax.workflows.experiment import Experiment, check_saved, experiment_of, kind_of_run, restore


def settings_of(folder: str | Path) -> Any:
    """The settings of a run whose policy acts in an environment, with `experiment()`.

    **Raises:** `FileNotFoundError` without a run; `ValueError` for a run of another kind.
    """
    folder = Path(folder)
    kind_of_run(folder)
    file = folder / "config.json"
    values = configs.read_object(file)
    config = kinds.loaded(values, file)
    if not hasattr(config, "experiment"):
        kind, supported = kinds.kind_of(values) or "(unknown)", ", ".join(kinds.with_attribute("experiment"))
        hint = "; `llmrl kalm test` plays it" if kind == "kalm ground" else ""
        raise ValueError(
            f"{folder} is a run of llmrl {kind}, and runs of {supported} can be evaluated and played{hint}"
        )
    return config


@dataclass(frozen=True)
class Loaded:
    """A run: what it trains, and the state of a checkpoint."""

    experiment: Experiment
    state: Any
    update: int
    """The checkpoint's update."""

    def act(self, obs: Any, carry: Any = (), first: Any = None) -> tuple[Any, Any]:
        """The most likely actions of the policy, for a batch of observations.

        **Arguments:** `obs`, leaves `[B, ...]`; `carry`, of a policy with memory, what the call before returned, or
        `experiment.policy.initial_carry(B)`; `first`, bool `[B]`, whether an episode begins (None: nowhere).
        **Returns:** the actions, leaves `[B, ...]`, and the carry.
        """
        import jax
        import jax.numpy as jnp

        params, frozen, _ = self.experiment.variables(self.experiment, self.state)
        rows = jax.tree.leaves(obs)[0].shape[0]
        first = jnp.zeros(rows, bool) if first is None else first
        distribution, _, carry = self.experiment.policy.step(params, frozen, obs, carry, first)
        return distribution.mode(), carry


def load(folder: str | Path, checkpoint: int = -1) -> Loaded:
    """Experiment of a run with the state of a checkpoint, by update number (-1: the newest).

    **Raises:** as `settings_of`; `FileNotFoundError` for a missing checkpoint.
    **Returns:** `Loaded`: `experiment`, `state`, `update`, and `act`, the most likely actions.

    **Example:**

    ```pycon
    >>> import jax, jax.numpy as jnp, llmrl_jax as lr
    >>> run = lr.load("runs/cartpole")  # of `train`'s example
    >>> action, carry = jax.jit(run.act)(jnp.zeros((3, 4)))
    >>> run.update, action.shape
    (2, (3,))
    ```
    """
    folder = Path(folder)
    config = settings_of(folder)
    check_saved(folder, checkpoint)
    x = experiment_of(folder, config)
    return Loaded(x, *restore(folder, config, x.learner, checkpoint))
