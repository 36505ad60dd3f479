"""rejax's PPO on CartPole-v1; run by the peers' interpreter. Its evaluations are switched off while it is timed."""

import json
import sys
import time

import jax
from rejax import PPO


def main(steps, repeats):
    algorithm = PPO.create(
        env="CartPole-v1",
        num_envs=4,
        num_steps=128,
        num_epochs=4,
        num_minibatches=4,
        learning_rate=2.5e-4,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
        agent_kwargs={"activation": "tanh"},
    )
    evaluate = algorithm.eval_callback
    silent = algorithm.replace(eval_callback=lambda algorithm, state, key: ())
    started = time.perf_counter()
    train = jax.jit(silent.train).lower(jax.random.key(0)).compile()
    compile_seconds = time.perf_counter() - started
    samples, returns = [], []
    for seed in range(repeats + 1):
        started = time.perf_counter()
        state, _ = jax.block_until_ready(train(jax.random.key(seed)))
        samples.append(steps / (time.perf_counter() - started))
        returns.append(float(jax.jit(evaluate)(algorithm, state, jax.random.key(seed))[1].mean()))
    return {"samples": samples[1:], "compile_seconds": compile_seconds, "returns": returns[1:]}


if __name__ == "__main__":
    print(json.dumps(main(*(int(x) for x in sys.argv[1:]))))
