"""A small world of BK-RL with episodes of random play, for tests."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from llmrl_jax.systems.bkrl.collected import Collected


ID = "BabyAI-Text-GoToLocal-RedBall-S20?room_size=6&num_dists=2"


@functools.cache
def world():
    return envs_jax.make(ID)[0]


@functools.cache
def played(episodes: int = 12, steps: int = 14) -> Collected:
    """Episodes of random play, each cut after `steps` steps if it does not end before."""
    env = world()
    params = env.default_params.replace(max_steps=np.int32(steps))

    @jax.jit
    def play(keys):
        def one(key):
            obs, state = env.reset(key, params)

            def step(carry, key):
                obs, state = carry
                action = jax.random.randint(key, (), 0, 7)
                after, state, reward, terminated, truncated, _ = env.step(key, state, action, params)
                return (after, state), (obs, action, reward, terminated, truncated & ~terminated, after)

            return jax.lax.scan(step, (obs, state), jax.random.split(jax.random.fold_in(key, 1), steps))[1]

        return jax.vmap(one)(keys)

    obs, action, reward, terminated, truncated, after = jax.device_get(
        play(jax.random.split(jax.random.key(3), episodes))
    )
    lengths = np.argmax(terminated | truncated, axis=1) + 1

    def joined(before, last):
        return np.concatenate([np.append(before[i, :n], last[i, n - 1 : n], 0) for i, n in enumerate(lengths)])

    flat = lambda x: np.concatenate([x[i, :n] for i, n in enumerate(lengths)])  # noqa: E731
    return Collected(
        obs=jax.tree.map(joined, obs, after),
        action=flat(action).astype(np.int32),
        reward=flat(reward),
        terminated=flat(terminated),
        truncated=flat(truncated),
        digest="test",
    )


def observation() -> dict[str, jnp.ndarray]:
    """One observation."""
    return {name: x[0] for name, x in played().obs.items()}
