"""Grounding: a language model and its slots learn from episodes, as a `Learner` (kalm reference, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from llmrl_jax.core.checks import Checked, NonNegativeFloat, at_least
from llmrl_jax.core.learner import Learner
from llmrl_jax.parallel import Placement
from llmrl_jax.rl.gradient import accumulate, descend, in_parts
from llmrl_jax.rl.shuffle import permutations
from llmrl_jax.systems.kalm.patterns import Episodes, Rows
from llmrl_jax.systems.kalm.world_model import Units, WorldModel, targets
from llmrl_jax.tuning.sft import SFTConfig, SFTState, adamw, first_params, learning_rates


@dataclass(frozen=True)
class Weights(Checked):
    """Weights of the three errors, as in the paper."""

    PREFIX: ClassVar[str] = "weights."

    state: NonNegativeFloat = 0.5
    """Squared error of states, or of their changes, in units of the standard deviation."""
    action: NonNegativeFloat = 0.5
    """Nats of discrete actions; squared error of continuous ones."""
    text: NonNegativeFloat = 1.0
    """Nats per token of an explanation."""


def make_grounding(
    config: SFTConfig,
    weights: Weights,
    model: WorldModel,
    variables: Any,
    rows: Rows,
    episodes: Episodes,
    updates: int,
    mesh: Mesh | None = None,
) -> Learner:
    """Build grounding as a `Learner`.

    **Arguments:** `model`, whose language model selects adapters or every weight for training; the slots are always
    trained; `variables`, the language model's; `rows`, at least `config.batch_size`; `updates`, for the schedule.
    **Returns:** the learner. Each epoch takes the rows in a new order. Its metrics are `loss`, `state`, `action`,
    `text` (see `WorldModel.losses`), `grad_norm`, `learning_rate`, `epoch`.
    **Raises:** `ValueError` for fewer rows than a batch.
    """
    at_least("updates", updates, 1)
    count, length = rows.tokens.shape
    if count < config.batch_size:
        raise ValueError(
            f"the data make {count} rows, fewer than the {config.batch_size} of one batch: lower sft.batch_size, or "
            "add data"
        )
    grounding = Grounding(config, weights, model, variables, rows, episodes, updates, Placement(mesh))
    return Learner(grounding.init, grounding.update, config.batch_size * length, unit="places")


class Grounding:
    """The parts of grounding; `make_grounding` documents the arguments."""

    def __init__(
        self,
        config: SFTConfig,
        weights: Weights,
        model: WorldModel,
        variables: Any,
        rows: Rows,
        episodes: Episodes,
        updates: int,
        placement: Placement,
    ):
        self.config, self.weights, self.model, self.variables = config, weights, model, variables
        self.rows, self.episodes, self.placement = rows, episodes, placement
        self.units = Units.of(episodes)
        self.count = rows.tokens.shape[0]
        self.per_epoch = self.count // config.batch_size
        self.rate = learning_rates(config, updates)
        self.trained = "params" if model.llama.lora is None else "lora"

    def init(self, key: jax.Array) -> SFTState:
        adapter_key, slot_key, run_key = jax.random.split(key, 3)
        own = first_params(self.model.llama, self.variables, adapter_key, self.placement.mesh)
        params = {self.trained: own, "slots": self.model.init_slots(slot_key, self.variables)}
        frozen = {
            "base": {} if self.trained == "params" else {"params": self.variables["params"]},
            "rows": jax.tree.map(jnp.asarray, self.rows),
            "episodes": (jnp.asarray(self.episodes.states), jnp.asarray(self.episodes.actions)),
            "units": self.units,
        }
        opt_state = adamw(self.config, params).init(params)
        return self.placement.settled(SFTState(params, frozen, opt_state, run_key, jnp.int32(0)))

    def update(self, state: SFTState) -> tuple[SFTState, dict[str, jax.Array]]:
        epoch, place = state.update // self.per_epoch, state.update % self.per_epoch
        order = permutations(jax.random.fold_in(state.key, epoch), 1, self.count)[0]
        chosen = jax.lax.dynamic_slice(order, (place * self.config.batch_size,), (self.config.batch_size,))
        batch = jax.tree.map(lambda x: x[chosen], state.frozen["rows"])
        (loss, parts, grads) = self._gradient(state.params, state.frozen, batch)
        rate = self.rate(state.update)
        params, opt_state, norm = descend(adamw(self.config, state.params), state.params, grads, state.opt_state, rate)
        metrics = {
            "loss": loss,
            **parts,
            "grad_norm": norm,
            "learning_rate": rate,
            "epoch": (state.update + 1) / self.per_epoch,
        }
        state = state.replace(params=params, opt_state=opt_state, update=state.update + 1)
        return state, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

    def _gradient(self, params: Any, frozen: Any, batch: Rows) -> tuple[jax.Array, dict[str, jax.Array], Any]:
        counts = targets(batch)

        def loss(params: Any, rows: Rows) -> tuple[jax.Array, dict[str, jax.Array]]:
            variables = {**frozen["base"], **params}
            parts = self.model.losses(variables, frozen["units"], self.placement.rows(rows), frozen["episodes"], counts)
            return sum(getattr(self.weights, name) * x for name, x in parts.items()), parts  # type: ignore[return-value]

        def part(rows: Rows) -> tuple[Any, None]:
            (value, parts), grads = jax.value_and_grad(loss, has_aux=True)(params, rows)
            return (value, parts, grads), None

        nothing = {name: jnp.float32(0) for name in counts}
        zero = (jnp.float32(0), nothing, jax.tree.map(jnp.zeros_like, params))
        return accumulate(part, zero, in_parts(batch, self.config.microbatches))[0]
