"""The BabyAI bot, compared with minigrid's: actions chosen and stepped per second, over consecutive whole episodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import envs_jax
from benchmarks.harness import OURS, Result, Row, aim, compiled, fastest, rates, seconds, speedup
from benchmarks.processes import peer_rows
from benchmarks.python_peers import minigrid_bot


TITLE = "BabyAI's bot: actions per second, compared with minigrid's"

LEVELS = ("GoToLocal-v0", "GoTo-v0", "BossLevel-v0")
NUM_ENVS, STEPS, BAR = 512, 64, 50


def ours(id: str, num_envs: int, steps: int) -> tuple[list[float], float]:
    """Samples of actions per second, and compile seconds; ended episodes are reset from a pool of prepared levels."""
    env, params = envs_jax.make(id)
    venv = envs_jax.VectorEnv(env, num_envs, policy="pool", pool_size=num_envs)
    blank = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *jnp.shape(x))), envs_jax.babyai.initial_memory(env))
    _, state = jax.jit(venv.reset)(jax.random.key(0), params)

    def rollout(key, state, memory, total):
        def body(carry, key):
            state, memory, total = carry
            action, memory = jax.vmap(envs_jax.babyai.bot_action)(state.env, memory)
            _, state, reward, terminated, truncated, _ = venv.step(key, state, action, params)
            memory = envs_jax.resets.select(terminated | truncated, blank, memory)
            return (state, memory, total + jnp.sum(action) + jnp.sum(reward > 0)), None

        return jax.lax.scan(body, (state, memory, total), jax.random.split(key, steps))[0]

    carry = [state, blank, jnp.int32(0)]
    program, compile_seconds = compiled(rollout, jax.random.key(1), *carry)

    def once():
        carry[:] = program(jax.random.key(2), *carry)
        return carry[-1]

    return rates(num_envs * steps, seconds(once)), compile_seconds


def run(quick: bool) -> Result:
    """Actions per second."""
    rows, bars = [], []
    for level in LEVELS[:1] if quick else LEVELS:
        id = f"BabyAI-{level}"
        samples, compile_seconds = ours(id, 32 if quick else NUM_ENVS, 8 if quick else STEPS)
        mine = Row(id, OURS, "actions/s", samples, compile_seconds, "bot, world and view")
        window = 0.2 if quick else 2.0
        theirs = peer_rows(id, "minigrid 3.2.0", "actions/s", minigrid_bot, (id,), window=window)
        rows += [mine, *theirs]
        ratio = speedup([mine], theirs)
        bars.append(f"{id}: {ratio:.0f} times minigrid's bot ({fastest(theirs).note}) {aim(ratio, BAR)}")
    notes = [f"{NUM_ENVS} worlds in one scan of {STEPS} steps; a fresh memory where an episode ended."]
    return Result(rows, bars, notes)
