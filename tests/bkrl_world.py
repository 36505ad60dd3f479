"""Worlds of BK-RL with episodes, for tests: random play in a small room, and made-up episodes of Crafter."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from llmrl_jax.systems.bkrl.collect import EpisodeDataset


ID = "BabyAI-Text-GoToLocal-RedBall-S20?room_size=6&num_dists=2"


@functools.cache
def world():
    return envs_jax.make(ID)[0]


@functools.cache
def played(episodes: int = 12, steps: int = 14) -> EpisodeDataset:
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
    return EpisodeDataset(
        obs=jax.tree.map(joined, obs, after),
        action=flat(action).astype(np.int32),
        reward=flat(reward),
        terminated=flat(terminated),
        truncated=flat(truncated),
        digest="test",
    )


CRAFTER = "Crafter-Text-Reward?view=true&image=none"


def crafter_played(episodes: int = 10, steps: int = 12) -> EpisodeDataset:
    """Episodes of observations and actions that Crafter could have, drawn at random: no world is compiled. Texts say
    what the inventory has; some steps earn a reward, and every second episode ends by death."""
    env = envs_jax.make(CRAFTER)[0]
    rng, space, book = np.random.default_rng(0), env.observation_space(env.default_params).spaces, env.captions["text"]
    count, number = episodes * (steps + 1), {phrase: i for i, phrase in enumerate(book.phrases)}

    def drawn(name):
        low, high = (
            np.broadcast_to(space[name].low, space[name].shape),
            np.broadcast_to(space[name].high, space[name].shape),
        )
        if np.dtype(space[name].dtype).kind == "f":
            return rng.uniform(low, high, (count, *space[name].shape)).astype(space[name].dtype)
        return rng.integers(low, high + 1, (count, *space[name].shape)).astype(space[name].dtype)

    obs = {name: drawn(name) for name in space if name != "text"}
    obs["inventory"][:, 4:] = np.minimum(obs["inventory"][:, 4:], 1)
    text = np.full((count, *space["text"].shape), -1, space["text"].dtype)
    for row, held in zip(text, obs["inventory"]):
        needs = [f"{a}: {n}/9{end}" for a, n, end in zip(("health", "food", "drink", "energy"), held, ",,,.")]
        facing = f"face {rng.choice(['water', 'grass', 'stone'])} at your front."
        said = [
            "You see nothing away from you.You",
            facing,
            "Your status:",
            *needs,
        ]
        said += ["Your have", f"{held[5]} wood,"] if held[5] else ["You have nothing in your inventory."]
        row[: len(said)] = [number[phrase] for phrase in said]
    ends = (np.arange(episodes * steps) + 1) % steps == 0
    died = ends & (np.arange(episodes * steps) // steps % 2 == 0)
    return EpisodeDataset(
        obs=obs | {"text": text},
        action=rng.integers(0, len(env.action_names), episodes * steps).astype(np.int32),
        reward=(rng.random(episodes * steps) < 0.3).astype(np.float32),
        terminated=died,
        truncated=ends & ~died,
        digest="test",
    )


def observation() -> dict[str, jnp.ndarray]:
    """One observation."""
    return {name: x[0] for name, x in played().obs.items()}
