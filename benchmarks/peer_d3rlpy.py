"""d3rlpy as a peer of `benchmarks.offline_rl`, run by an interpreter of its own: it answers a request on each line."""

import json
import sys
import time

import d3rlpy
import numpy as np
import torch


OBS, ACTIONS = 17, 6


def dataset(count, discrete):
    """The random steps of `benchmarks.offline_rl.data`."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count + 1, OBS), np.float32)
    action = rng.integers(0, ACTIONS, count) if discrete else rng.uniform(-1, 1, (count, ACTIONS)).astype(np.float32)
    ends = (np.arange(1, count + 1) % 1000 == 0).astype(np.float32)
    reward = rng.standard_normal(count, np.float32)
    space = d3rlpy.constants.ActionSpace.DISCRETE if discrete else d3rlpy.constants.ActionSpace.CONTINUOUS
    return d3rlpy.dataset.MDPDataset(
        x[:-1],
        action[:, None] if discrete else action,
        reward[:, None],
        np.zeros(count, np.float32),
        timeouts=ends,
        action_space=space,
        action_size=ACTIONS,
    )


def main(count, batch, threads):
    torch.set_num_threads(threads)
    data, made = {}, {}
    answers = sys.stdout
    sys.stdout = sys.stderr  # d3rlpy logs to standard output
    for line in sys.stdin:
        request = json.loads(line)
        name, key = request["name"], json.dumps([request["name"], request["options"]])
        discrete = name.startswith("Discrete")
        if discrete not in data:
            data[discrete] = dataset(count, discrete)
        if key not in made:
            config = getattr(d3rlpy.algos, f"{name}Config")(batch_size=batch, **request["options"])
            made[key] = config.create(device="cpu:0")
            made[key].build_with_dataset(data[discrete])
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < request["seconds"]:
            made[key].update(data[discrete].sample_transition_batch(batch))
            done += 1
        answers.write(json.dumps({"rate": done / (time.perf_counter() - started)}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*(int(x) for x in sys.argv[1:]))
