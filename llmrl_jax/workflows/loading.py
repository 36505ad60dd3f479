"""Runs of any kind, from their folder alone."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

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

    def __repr__(self) -> str:
        return f"Loaded({str(self.experiment.config.run.folder)!r}, update={self.update})"

    @functools.cached_property
    def _row(self) -> Any:
        """The form of one observation, leaves with shapes; without an environment, of the recorded ones."""
        x = self.experiment
        if x.env is None:
            recorded = x.variables(x, self.state)[1].given[0].obs
            return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), recorded)
        return jax.eval_shape(x.env.reset, jax.random.key(0), x.env_params)[0]

    def act(self, obs: Any, carry: Any = (), first: Any = None) -> tuple[Any, Any]:
        """The most likely actions of the policy, for a batch of observations.

        **Arguments:** `obs`, leaves `[B, ...]`; `carry`, of a policy with memory, what the call before returned, or
        `experiment.policy.initial_carry(B)`; `first`, bool `[B]`, whether an episode begins (None: nowhere).
        **Returns:** the actions, leaves `[B, ...]`, and the carry.
        **Raises:** `ValueError` for observations of another form, as one without the axis of rows; `TypeError` for a
        policy that writes.
        """
        x = self.experiment
        if not hasattr(x.policy, "step"):
            raise TypeError(f"the policy of {x.config.run.folder} writes its actions: play it with `llmrl play`")
        obs = jax.tree.map(jnp.asarray, obs, is_leaf=lambda leaf: isinstance(leaf, list))
        named, expected = (dict(jax.tree_util.tree_leaves_with_path(tree)) for tree in (obs, self._row))
        for path in {**expected, **named}:
            shape, row = (list(tree[path].shape) if path in tree else None for tree in (named, expected))
            if not shape or shape[1:] != row:
                raise ValueError(
                    f"obs{jax.tree_util.keystr(path)} has the shape {shape}, and rows of {row} are needed: one "
                    "observation is a batch of one, obs[None]"
                )
        params, frozen, _ = x.variables(x, self.state)
        first = jnp.zeros(jax.tree.leaves(obs)[0].shape[0], bool) if first is None else first
        distribution, _, carry = x.policy.step(params, frozen, obs, carry, first)
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
