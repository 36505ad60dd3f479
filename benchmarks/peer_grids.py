"""Levels of other JAX grid worlds (`navix:ID`, `xland-minigrid:ID`) with random actions, run by the peers' interpreter.

Neither has BabyAI's missions. Both reset automatically inside their own `step`; observations go into the carry.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp


def measure(step, reset, actions, num_envs, steps, repeats):
    """`step(state, action) -> (state, [arrays])`, one environment. Returns samples of steps/s and compile seconds."""
    state = jax.jit(jax.vmap(reset))(jax.random.split(jax.random.key(0), num_envs))

    def rollout(key, state, total):
        def body(carry, key):
            state, total = carry
            action = jax.random.randint(key, (num_envs,), 0, actions)
            state, seen = jax.vmap(step)(state, action)
            return (state, total + sum(jnp.sum(x).astype(jnp.int32) for x in seen)), None

        return jax.lax.scan(body, (state, total), jax.random.split(key, steps))[0]

    started = time.perf_counter()
    run = jax.jit(rollout).lower(jax.random.key(1), state, jnp.int32(0)).compile()
    compile_seconds = time.perf_counter() - started
    total, samples = jnp.int32(0), []
    for i in range(repeats + 1):
        started = time.perf_counter()
        state, total = jax.block_until_ready(run(jax.random.fold_in(jax.random.key(2), i), state, total))
        samples.append(num_envs * steps / (time.perf_counter() - started))
    return {"samples": samples[1:], "compile_seconds": compile_seconds}


def navix_level(id, *args):
    import navix

    env = navix.make(id)

    def step(timestep, action):
        timestep = env.step(timestep, action)
        return timestep, [timestep.observation, timestep.reward]

    return measure(step, env.reset, len(env.action_set), *args)


def xminigrid_level(id, *args):
    import xminigrid
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = xminigrid.make(id)
    env = GymAutoResetWrapper(env)

    def step(timestep, action):
        timestep = env.step(params, timestep, action)
        return timestep, [timestep.observation, timestep.reward]

    return measure(step, lambda key: env.reset(params, key), env.num_actions(params), *args)


if __name__ == "__main__":
    sizes = [int(n) for n in sys.argv[1:4]]
    results = {}
    levels = {"navix": navix_level, "xland-minigrid": xminigrid_level}
    for name in sys.argv[4:]:
        who, id = name.split(":")
        try:
            results[f"{who} {id}"] = levels[who](id, *sizes)
        except Exception as error:  # a level that fails must not discard the others
            results[f"{who} {id}"] = {"error": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(results))
