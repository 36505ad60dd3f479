"""Levels of other JAX grid worlds (`navix:ID`, `xland-minigrid:ID`) with random actions, run by the peers' interpreter.

Neither has BabyAI's missions, and neither package has a cheaper reset than its automatic ones, which generate a new
world for every row in every step once they are batched (`own`: navix's `step`, XLand-MiniGrid's `GymAutoResetWrapper`;
its `DmEnvAutoResetWrapper` resets on the next step, and computes as much). So each level is also measured with our
reset around its plain step (`pool`): ended rows continue in one of a pool of generated worlds. Both are compiled with
XLA's defaults and with its older loop emitters, which are faster for our worlds. Observations go into the carry. The
samples of the variants alternate.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Level(NamedTuple):
    """A level of a package, as functions of one environment."""

    reset: Callable[[Any], Any]
    """`key -> timestep`."""
    step: Callable[[Any, Any], Any]
    """`(timestep, action) -> timestep`, without a reset."""
    ended: Callable[[Any], Any]
    """Whether a timestep ends its episode."""
    own: Callable[[Any, Any], Any]
    """`(timestep, action) -> timestep`, with the package's automatic reset."""
    keep: Callable[[Any, Any], Any]
    """`(fresh, timestep) -> fresh`, with what the package's own reset takes over from the old episode."""
    actions: int


def navix_level(id: str) -> Level:
    import navix

    env = navix.make(id)

    def keep(fresh, timestep):  # the pictures of the tiles, which no symbolic observation reads
        return fresh.replace(state=fresh.state.replace(cache=timestep.state.cache))

    return Level(env.reset, env._step, lambda timestep: timestep.is_done(), env.step, keep, len(env.action_set))


def xminigrid_level(id: str) -> Level:
    import xminigrid
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = xminigrid.make(id)

    def step(timestep, action):
        return env.step(params, timestep, action)

    def own(timestep, action):
        return GymAutoResetWrapper(env).step(params, timestep, action)

    reset = lambda key: env.reset(params, key)  # noqa: E731
    return Level(reset, step, lambda timestep: timestep.last(), own, lambda fresh, _: fresh, env.num_actions(params))


LEVELS = {"navix": navix_level, "xland-minigrid": xminigrid_level}


def from_pool(level: Level, pool: Any, index: jax.Array, timesteps: Any) -> Any:
    """Replace the rows of `timesteps` that ended by row `index` of the pool."""
    fresh = jax.tree.map(lambda x: x[index], pool)
    fresh, ended = level.keep(fresh, timesteps), level.ended(timesteps)
    pick = lambda new, old: jnp.where(ended.reshape(ended.shape + (1,) * (old.ndim - 1)), new, old)  # noqa: E731
    return jax.tree.map(pick, fresh, timesteps)


def rollout(level: Level, reset: str, num_envs: int, steps: int, pool_size: int, renew: bool) -> Callable:
    """`(key, timesteps, pool, total) -> the same three`, `steps` steps of all environments with random actions.

    **Arguments:** `reset`, `"own"` or `"pool"`; `renew`, whether every call first generates a new pool.
    """

    def run(key, timesteps, pool, total):
        def body(carry, key):
            timesteps, total = carry
            bits = jax.random.bits(key, (num_envs,), jnp.uint32)  # one draw for the action and the world
            action = (bits % level.actions).astype(jnp.int32)
            timesteps = jax.vmap(level.own if reset == "own" else level.step)(timesteps, action)
            reward = timesteps.reward
            if reset == "pool":
                index = (bits >> 16) % pool_size
                timesteps = from_pool(level, pool, index, timesteps)
            seen = (timesteps.observation, reward)
            return (timesteps, total + sum(jnp.sum(x).astype(jnp.int32) for x in seen)), None

        if renew and reset == "pool":
            pool = jax.vmap(level.reset)(jax.random.split(jax.random.fold_in(key, 1), pool_size))
        (timesteps, total), _ = jax.lax.scan(body, (timesteps, total), jax.random.split(key, steps))
        return timesteps, pool, total

    return run


def emitters() -> dict[str, dict[str, Any]]:
    """Compiler options by name; jaxlib 0.11 removed the older emitters."""
    older = jax.__version_info__ < (0, 11) and jax.default_backend() == "cpu"
    return {"default": {}} | ({"older": {"xla_cpu_use_fusion_emitters": False}} if older else {})


def measure(level: Level, num_envs: int, steps: int, repeats: int, pool_size: int, renew: bool) -> list[dict[str, Any]]:
    """Samples of steps/s and compile seconds of every reset and compiler option."""
    reset_all = jax.jit(jax.vmap(level.reset))
    first = reset_all(jax.random.split(jax.random.key(0), num_envs))
    pool = reset_all(jax.random.split(jax.random.key(3), pool_size))
    variants = []
    for reset, (name, options) in itertools.product(("own", "pool"), emitters().items()):
        started = time.perf_counter()
        program = jax.jit(rollout(level, reset, num_envs, steps, pool_size, renew), compiler_options=options)
        program = program.lower(jax.random.key(1), first, pool, jnp.int32(0)).compile()
        took = time.perf_counter() - started
        variants.append(
            {"reset": reset, "emitters": name, "compile_seconds": took, "samples": [], "program": program}
            | {"carry": (first, pool, jnp.int32(0))}
        )
    for i in range(repeats + 1):
        for variant in variants:
            key = jax.random.fold_in(jax.random.key(2), i)
            started = time.perf_counter()
            variant["carry"] = jax.block_until_ready(variant["program"](key, *variant["carry"]))
            variant["samples"].append(num_envs * steps / (time.perf_counter() - started))
    shown = ("reset", "emitters", "compile_seconds")
    return [{name: v[name] for name in shown} | {"samples": v["samples"][1:]} for v in variants]


def main(num_envs: int, steps: int, repeats: int, pool_size: int, renew: int, *names: str) -> dict[str, Any]:
    """`{"package ID": its variants}`, or `{"error": ...}` instead of the variants."""
    results: dict[str, Any] = {}
    for name in names:
        package, id = name.split(":")
        try:
            results[f"{package} {id}"] = measure(LEVELS[package](id), num_envs, steps, repeats, pool_size, bool(renew))
        except Exception as error:  # a level that fails must not discard the others
            results[f"{package} {id}"] = {"error": f"{type(error).__name__}: {error}"[:200]}
    return results


if __name__ == "__main__":
    print(json.dumps(main(*(int(n) for n in sys.argv[1:6]), *sys.argv[6:])))
