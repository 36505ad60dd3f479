"""Evaluations of linear policies by gymnax's own RolloutWrapper; run by the peers' interpreter."""

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.experimental import RolloutWrapper


def main(id, path, episodes, repeats):
    params = jnp.asarray(np.load(path))

    def forward(policy, obs, key):
        weights = policy.reshape(obs.shape[0] + 1, -1)
        return jnp.argmax(obs @ weights[:-1] + weights[-1])

    rollouts = RolloutWrapper(forward, env_name=id)

    def evaluate(key, params):
        return rollouts.population_rollout(jax.random.split(key, episodes), params)[-1]

    started = time.perf_counter()
    program = jax.jit(evaluate).lower(jax.random.key(0), params).compile()
    compile_seconds = time.perf_counter() - started
    samples = []
    for i in range(repeats + 1):
        started = time.perf_counter()
        jax.block_until_ready(program(jax.random.key(i), params))
        samples.append(len(params) / (time.perf_counter() - started))
    return {"samples": samples[1:], "compile_seconds": compile_seconds}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
