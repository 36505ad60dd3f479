"""Craftax-Classic with random actions, run by the peers' interpreter: rows of a benchmark as JSON.

Craftax's own resets make a world in every step once they are
batched, so its plain step is measured, with ended rows continued in one of a pool of worlds. Observations go into the
carry. XLA's defaults and its older loop emitters are both measured.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def rollout(env: Any, params: Any, num_envs: int, steps: int, pool_size: int) -> Callable[..., Any]:
    """`(key, states, pool, total) -> (states, total)`, `steps` steps of all environments with random actions."""

    def run(key: Any, states: Any, pool: Any, total: Any) -> Any:
        def body(carry: Any, key: Any) -> Any:
            states, total = carry
            act_key, step_key, pool_key = jax.random.split(key, 3)
            actions = jax.random.randint(act_key, (num_envs,), 0, 17)
            keys = jax.random.split(step_key, num_envs)
            obs, states, reward, done, _ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, states, actions, params)
            index = jax.random.randint(pool_key, (num_envs,), 0, pool_size)
            fresh = jax.tree.map(lambda x: x[index], pool)
            pick = lambda new, old: jnp.where(done.reshape(done.shape + (1,) * (old.ndim - 1)), new, old)  # noqa: E731
            states = jax.tree.map(pick, fresh, states)
            return (states, total + jnp.sum(obs) + jnp.sum(reward)), None

        return jax.lax.scan(body, (states, total), jax.random.split(key, steps))[0]

    return run


def craftax_rows(sizes: list[int], steps: int, repeats: int, pool_size: int) -> list[dict[str, Any]]:
    from craftax.craftax_classic.envs.craftax_symbolic_env import CraftaxClassicSymbolicEnvNoAutoReset

    env = CraftaxClassicSymbolicEnvNoAutoReset()
    params = env.default_params
    options: dict[str, dict[str, Any]] = {"XLA's defaults": {}}
    if jax.__version_info__ < (0, 11) and jax.default_backend() == "cpu":  # jaxlib 0.11 removed the older emitters
        options["older loop emitters"] = {"xla_cpu_use_fusion_emitters": False}
    make = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))
    pool = make(jax.random.split(jax.random.key(0), pool_size), params)[1]
    rows = []
    for num_envs in sizes:
        states = jax.tree.map(lambda x, n=num_envs: x[jnp.arange(n) % pool_size], pool)
        for name, chosen in options.items():
            started = time.perf_counter()
            program = jax.jit(rollout(env, params, num_envs, steps, pool_size), compiler_options=chosen)
            program = program.lower(jax.random.key(1), states, pool, jnp.float32(0)).compile()
            took = time.perf_counter() - started
            carry, samples = (states, jnp.float32(0)), []
            for i in range(repeats + 1):
                started = time.perf_counter()
                carry = jax.block_until_ready(program(jax.random.key(2 + i), carry[0], pool, carry[1]))
                samples.append(num_envs * steps / (time.perf_counter() - started))
            rows.append(
                {
                    "case": "Craftax-Classic's rules",
                    "who": "Craftax-Classic-Symbolic 1.6.1",
                    "unit": "steps/s",
                    "samples": samples[1:],
                    "compile_seconds": took,
                    "note": f"{num_envs} worlds; our pool of resets around its step; {name}",
                }
            )
    return rows


def main(size: str, repeats: int, pool_size: int) -> None:
    quick = size == "quick"
    rows = craftax_rows([32] if quick else [1024, 256], 5 if quick else 32, repeats, 8 if quick else pool_size)
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
