"""PRDC (Ran et al., 2306.06569): TD3+BC that imitates the action of the nearest recorded pair, not that of the state.

The actor maximises `lambda Q(s, pi(s)) - (pi(s) - a*)^2`, with `a*` the action of the recorded pair `(s', a')` that is
nearest to `(s, pi(s))` where states count `beta` times. Defaults are the authors', with their `alpha` for Hopper.

Neighbours are found by brute force on the device, in blocks: so the learner stays one program, which vmaps and runs on
accelerators. The authors' k-d tree is faster for millions of steps on a CPU in few dimensions; in KALM's 91 it compares
nearly all pairs too. The cost is `2 N B (n + D)` operations per step of the actor: 12 GFLOP for a million steps of
HalfCheetah and a batch of 256.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from envs_jax import tracing
from llmrl_jax.core.checks import NonNegativeFloat, PositiveInt
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.offline import Context
from llmrl_jax.rl.offline_data import Batch, batch_of
from llmrl_jax.rl.registry import OfflineAlgorithm
from llmrl_jax.rl.td3_bc import TD3BC, TD3BCConfig


@dataclass(frozen=True)
class PRDCConfig(TD3BCConfig):
    """Hyper-parameters, with the authors' defaults."""

    NAME: ClassVar[str] = "prdc"
    alpha: NonNegativeFloat = 2.5
    """Weight of the value beside imitation; the authors have 40 for HalfCheetah."""
    beta: NonNegativeFloat = 2.0
    """Weight of states beside actions in distances."""
    block: PositiveInt = 8192
    """Recorded steps that are compared at once; memory grows with it, results stay the same."""


products = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
"""Products of distances, which are differences of large numbers: factors rounded to TF32 or bfloat16 would give other
neighbours."""

PARTS = 128
"""Steps of a block whose distances are compared one by one, once it is known that the nearest is among them."""


class PRDC(TD3BC):
    """Policy regularisation with dataset constraint."""

    def imitated_action(self, action: Float[Array, "B D"], batch: Batch, context: Context) -> Float[Array, "B D"]:
        best = (jnp.full(action.shape[0], jnp.inf), action)
        for steps, count in zip(context.frozen.given, context.frozen.sizes):
            best = self.nearer(best, steps, count, batch.obs, action, context)
        return best[1]

    def nearer(
        self,
        best: tuple[Float[Array, " B"], Float[Array, "B D"]],
        steps: Transitions,
        count: Int[Array, ""],
        x: Float[Array, "B n"],
        action: Float[Array, "B D"],
        context: Context,
    ) -> tuple[Float[Array, " B"], Float[Array, "B D"]]:
        """Smaller of the distances of `best` and those to the first `count` of `steps`, up to a constant of each
        row, and its action."""
        parts = min(PARTS, self.config.block, len(steps))
        strip = min(self.config.block, len(steps)) // parts
        size = parts * strip
        beta = context.hparams["beta"]
        queries = jnp.concatenate([-2 * beta**2 * x, -2 * action], axis=1)

        def keys_of(rows: Transitions) -> tuple[Float[Array, "k n"], Float[Array, "k D"], Float[Array, " k"]]:
            batch_rows = batch_of(rows, context.frozen.table)
            squares = beta**2 * jnp.sum(batch_rows.obs**2, axis=-1) + jnp.sum(batch_rows.action**2, axis=-1)
            return jnp.concatenate([batch_rows.obs, batch_rows.action], axis=-1), batch_rows.action, squares

        def look(nearest, i):
            start = jnp.minimum(i * size, len(steps) - size)  # the last block may overlap the one before
            pairs, _, squares = keys_of(
                jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), steps)
            )
            squares = jnp.where(start + jnp.arange(size) < count, squares, jnp.inf)
            # the smallest of every `strip`-th step: a minimum over columns, which is fast where an argmin is not
            smallest = (products(queries, pairs.T) + squares).reshape(len(x), parts, strip).min(axis=1)
            index = jnp.argmin(smallest, axis=1)
            smallest = jnp.min(smallest, axis=1)
            nearer = smallest < nearest[0]
            return (jnp.where(nearer, smallest, nearest[0]), jnp.where(nearer, start + index, nearest[1])), None

        begin = (jnp.full(len(x), jnp.inf), jnp.zeros(len(x), jnp.int32))
        smallest, first = tracing.scan(look, begin, jnp.arange(-(-len(steps) // size)))[0]

        def pick(query, first):
            rows = first + strip * jnp.arange(parts)
            pairs, actions, squares = keys_of(jax.tree.map(lambda leaf: leaf[rows], steps))
            return actions[jnp.argmin(jnp.where(rows < count, products(pairs, query) + squares, jnp.inf))]

        nearer = smallest < best[0]
        nearest_action = jnp.where(nearer[:, None], jax.vmap(pick)(queries, first), best[1])
        return jnp.where(nearer, smallest, best[0]), nearest_action


ALGORITHM = OfflineAlgorithm(PRDCConfig, PRDC)
