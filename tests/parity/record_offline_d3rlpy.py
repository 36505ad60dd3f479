"""Record some steps of d3rlpy's offline algorithms into tests/data: `.venv-d3rlpy/bin/python` on this file.

d3rlpy pins what this project does not, so it has an environment of its own: `make .venv-d3rlpy/.peers`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "offline_d3rlpy.npz"
ROWS, BATCH, WIDTH, ACTIONS, HIDDEN, STEPS = 512, 64, 5, 2, (32, 32), 200
CHOICES = 6
"""Discrete actions."""
NETWORKS = ("imitator", "policy", "q_funcs", "value_func")


def transitions() -> dict[str, np.ndarray]:
    """Steps of a random walk, with a reward that depends on state and action."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    action = np.tanh(rng.normal(size=(ROWS, ACTIONS))).astype(np.float32)
    return {
        "obs": obs,
        "action": action,
        "reward": (obs[:, 0] - np.square(action[:, 0] - np.tanh(obs[:, 1]))).astype(np.float32),
        "next_obs": (0.8 * obs + 0.3 * np.pad(action, ((0, 0), (0, WIDTH - ACTIONS)))).astype(np.float32),
        "terminated": (rng.random(ROWS) < 0.05).astype(np.float32),
        # one of the last actions is rare, and the first ones are frequent, by the state
        "choice": np.minimum(rng.geometric(0.6, ROWS) - 1 + 2 * (obs[:, 0] > 0.5), CHOICES - 1).astype(np.int32),
    }


def main() -> None:
    sys.path.insert(0, str(ROOT / "experiments"))
    import d3rlpy
    from offline_d3rlpy import minibatch

    columns, rng = transitions(), np.random.default_rng(1)
    rows = np.stack([rng.integers(0, ROWS, BATCH) for _ in range(STEPS)])
    found: dict[str, np.ndarray] = {**columns, "rows": rows.astype(np.int16)}
    factory = d3rlpy.models.VectorEncoderFactory(list(HIDDEN))
    actor, critic = {"actor_encoder_factory": factory}, {"critic_encoder_factory": factory}
    algorithms = {
        "bc": d3rlpy.algos.BCConfig(batch_size=BATCH, encoder_factory=factory, learning_rate=1e-3),
        "iql": d3rlpy.algos.IQLConfig(batch_size=BATCH, **actor, **critic, value_encoder_factory=factory),
        "cql": d3rlpy.algos.CQLConfig(batch_size=BATCH, **actor, **critic),
        "discrete_bc": d3rlpy.algos.DiscreteBCConfig(batch_size=BATCH, encoder_factory=factory, learning_rate=1e-3),
        "discrete_bcq": d3rlpy.algos.DiscreteBCQConfig(
            batch_size=BATCH, encoder_factory=factory, learning_rate=1e-3, share_encoder=False, action_flexibility=0.7
        ),
    }
    for name, config in algorithms.items():
        d3rlpy.seed(0)
        learner = config.create(device="cpu:0")
        discrete = name.startswith("discrete")
        learner.create_impl((WIDTH,), CHOICES if discrete else ACTIONS)
        steps = {**columns, "action": columns["choice"][:, None].astype(np.float32)} if discrete else columns
        for step in range(STEPS + 1):
            if step in (0, 1, STEPS):
                for part in NETWORKS:
                    module = getattr(learner.impl._modules, part, None)
                    for key, value in {} if module is None else module.state_dict().items():
                        found[f"{name}/{step}/{part}.{key}"] = value.detach().numpy().copy()
            if step < STEPS:
                learner.update(minibatch(steps, rows[step]))
        if discrete:
            found[f"{name}/played"] = learner.predict(columns["obs"]).astype(np.int32)
    np.savez_compressed(DATA, **found, version=np.array(d3rlpy.__version__))


if __name__ == "__main__":
    main()
