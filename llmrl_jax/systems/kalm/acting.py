"""A grounded model as a policy: it carries out instructions in the world itself.

The places are those of an imagined episode (`llmrl_jax.systems.kalm.imagination`), but each state is the world's. With
states that carry returns the model is a decision transformer (Chen et al., 2021): each state comes with the return that
is still wanted, which the rewards reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import tracing
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents.evaluate import Episodes
from llmrl_jax.agents.play import Actor, advance, begin
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import at_least
from llmrl_jax.systems.kalm import patterns
from llmrl_jax.systems.kalm.grounded import Grounded
from llmrl_jax.systems.kalm.worlds import INSTRUCTION, STATE


def make_player(found: Grounded, level: str, episodes: int, together: int = 64) -> Callable[[jax.Array], Episodes]:
    """Build `play(key) -> Episodes` of NumPy arrays: episodes of a level, in which the most likely actions are taken.

    **Arguments:** `found`, the model; `together`, episodes that are played at once. Episode `i` starts as that of
    `llmrl_jax.agents.evaluate.make_evaluator` with the same key.
    **Raises:** `ValueError` if a number is below 1.
    """
    at_least("episodes", episodes, 1)
    at_least("together", together, 1)
    world, model, units = found.world, found.model, found.units
    env = EpisodeStatistics(world.make(level))
    params, horizon, together = env.default_params, world.horizon[level], min(together, episodes)
    said = world.instructions.of(level)
    tokens, lengths = map(jnp.asarray, patterns.prompts([world.instructions.texts[i] for i in said], found.tokenizer))

    def act(variables: Any) -> Actor:
        layers = model.each_layer(variables)

        def choose(obs: Any, carry: Any, first: Any, keys: Any) -> tuple[Any, Any, Any]:
            cache, wanted = carry
            state = obs[STATE] if found.returns is None else jnp.concatenate([obs[STATE], wanted[:, None]], axis=-1)
            hidden, cache = model.advance(variables, cache, model.enter_state(variables, units, state), layers)
            action = model.act(variables, hidden)
            _, cache = model.advance(variables, cache, model.enter_action(variables, action), layers)
            return action, (cache, wanted), ()

        return Actor(choose)

    @jax.jit
    def run(variables: Any, key: jax.Array, first: jax.Array) -> Episodes:
        actor = act(variables)
        keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(first + jnp.arange(together))
        rows = begin(env, params, actor, keys[:, 0], keys[:, 1])
        number = rows.obs[INSTRUCTION] - said.start
        cache = model.start(variables, tokens[number], lengths[number], 2 * horizon)
        wanted = jnp.full(together, 0.0 if found.returns is None else found.returns, jnp.float32)
        blank = Episodes(*(jnp.zeros(together, kind) for kind in (bool, jnp.float32, jnp.int32, jnp.int32)))

        def step(carry: Any, _: None) -> tuple[Any, None]:
            rows, results = carry
            rows, seen = advance(env, params, actor, rows, hold=False)
            cache, wanted = rows.carry
            here = Episodes(
                seen.info["success"], seen.info["episode_return"], seen.info["episode_length"], results.task
            )
            results = jax.tree.map(lambda old, new: jnp.where(seen.ended, new, old), results, here)
            return (rows.replace(carry=(cache, wanted - seen.reward)), results), None

        (_, results), _ = tracing.scan(step, (rows.replace(carry=(cache, wanted)), blank), length=horizon)
        return results

    def play(key: jax.Array) -> Episodes:
        parts = []
        with doing(f"{level}: playing", episodes, "episodes") as activity:
            while activity.done < episodes:
                made = jax.device_get(run(found.variables, key, jnp.int32(activity.done)))
                kept = min(together, episodes - activity.done)
                parts.append(jax.tree.map(lambda x, n=kept: x[:n], made))
                activity.done += kept
        return jax.tree.map(lambda *x: np.concatenate(x), *parts)

    return play
