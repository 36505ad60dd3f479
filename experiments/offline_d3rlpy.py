"""d3rlpy's side of `experiments/offline_mujoco.py`, run by an interpreter of its own: one algorithm, file and seed.

    python offline_d3rlpy.py '{"algorithm": "TD3PlusBC", "data": "steps.npz", "out": "actor.npz", "seed": 0, ...}'

Gradient steps are d3rlpy's `update`, on batches that NumPy draws uniformly, with replacement, from all steps of the
file. (d3rlpy's own buffer drops the last step of an episode that timed out, whose next observation it does not have;
the file has it.) The actor's layers are written as `offline_policies.write_actor` writes them, with the mean and
deviation of observations, its actions for a few observations, by which the reader checks what it read, and the means
of the losses over the last steps.
"""

import json
import sys
import time

import d3rlpy
import numpy as np
import torch


def minibatch(columns, rows):
    """Some steps as d3rlpy's algorithms read them; none of these reads the next actions or the list of transitions."""
    part = {name: x[rows] for name, x in columns.items()}
    one = np.ones((len(rows), 1), np.float32)
    return d3rlpy.dataset.TransitionMiniBatch(
        part["obs"],
        part["action"],
        part["reward"][:, None],
        part["next_obs"],
        np.zeros_like(part["action"]),
        part["terminated"][:, None],
        one,
        [],
    )


def layers(policy):
    """The weights of the actor's mean, layer by layer."""
    last = policy._fc if hasattr(policy, "_fc") else policy._mu
    every = [x for x in policy._encoder.modules() if isinstance(x, torch.nn.Linear)] + [last]
    return {
        f"{i}.{name}": array
        for i, layer in enumerate(every)
        for name, array in (("kernel", layer.weight.detach().numpy().T), ("bias", layer.bias.detach().numpy()))
    }


def main(asked):
    torch.set_num_threads(asked["threads"])
    d3rlpy.seed(asked["seed"])
    rng = np.random.default_rng(asked["seed"])
    with np.load(asked["data"]) as file:
        columns = {
            name: file[name].astype(np.float32) for name in ("obs", "action", "reward", "next_obs", "terminated")
        }
    count, width = columns["obs"].shape
    mean, std, scaler = np.zeros(width, np.float32), np.ones(width, np.float32), None
    if asked["normalize"]:
        mean, std = columns["obs"].mean(axis=0), columns["obs"].std(axis=0) + 1e-3
        scaler = d3rlpy.preprocessing.StandardObservationScaler(mean=mean, std=std, eps=0.0)
    config = getattr(d3rlpy.algos, asked["algorithm"] + "Config")(observation_scaler=scaler, **asked["settings"])
    learner = config.create(device="cpu:0")
    learner.create_impl((width,), columns["action"].shape[1])
    started, losses = time.perf_counter(), []
    for step in range(asked["steps"]):
        losses.append(learner.update(minibatch(columns, rng.integers(0, count, config.batch_size))))
        if (step + 1) % 1000 == 0:
            rate = (step + 1) / (time.perf_counter() - started)
            print(f"{step + 1}/{asked['steps']} gradient steps, {rate:.1f}/s", flush=True)
    seconds = time.perf_counter() - started
    probe = columns["obs"][:: max(1, count // 64)]
    found = {"mean": mean, "std": std, "probe": probe, "probe_action": learner.predict(probe)}
    last = losses[-asked["averaged"] :]
    names = {name for loss in last for name in loss}  # TD3+BC has its actor's loss in every second step
    found |= {f"loss.{name}": np.mean([loss[name] for loss in last if name in loss]) for name in sorted(names)}
    np.savez(asked["out"], **found, **layers(learner.impl.policy), seconds=np.float64(seconds))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
