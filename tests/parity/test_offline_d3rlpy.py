"""Offline algorithms beside d3rlpy's, from its initial weights and on its batches (`record_offline_d3rlpy.py`)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.rl.actors import GaussianActor
from llmrl_jax.rl.gradient import TrainState
from llmrl_jax.rl.iql import LOG_STD_MIN
from llmrl_jax.rl.offline import Context
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.registry import algorithm
from tests.paths import DATA


HIDDEN = (32, 32)
ENCODER = ("_encoder._layers.0", "_encoder._layers.2")


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(DATA / "offline_d3rlpy.npz", allow_pickle=False) as file:
        return dict(file)


def layers(recorded: dict[str, np.ndarray], place: str, *last: str) -> list[dict[str, jax.Array]]:
    """The layers of one of d3rlpy's networks; several last ones side by side."""

    def read(name: str) -> tuple[np.ndarray, np.ndarray]:
        return recorded[f"{place}.{name}.weight"].T, recorded[f"{place}.{name}.bias"]

    ends = [read(name) for name in last]
    joined = [np.concatenate(parts, axis=-1) for parts in zip(*ends, strict=True)]
    every = [*(read(name) for name in ENCODER), joined]
    return [{"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)} for kernel, bias in every]


def networks(recorded: dict[str, np.ndarray], name: str, step: int) -> dict[str, Any]:
    """Ours with the weights of d3rlpy's after `step` gradient steps."""
    at = f"{name}/{step}"
    if name in ("bc", "discrete_bc"):
        return {"actor": layers(recorded, f"{at}/imitator", "_fc")}
    if name == "discrete_bcq":
        one = layers(recorded, f"{at}/q_funcs.0", "_fc")
        return {"critic": jax.tree.map(lambda x: x[None], one), "imitator": layers(recorded, f"{at}/imitator", "_fc")}
    both = [layers(recorded, f"{at}/q_funcs.{i}", "_fc") for i in (0, 1)]
    critic = jax.tree.map(lambda *x: jnp.stack(x), *both)
    if name == "cql":
        actor = layers(recorded, f"{at}/policy", "_mu", "_logstd")
        return {"actor": actor, "critic": critic, "log_temperature": jnp.float32(0), "log_alpha": jnp.float32(0)}
    deviation = jnp.asarray(recorded[f"{at}/policy._logstd"][0])
    actor = {"mean": layers(recorded, f"{at}/policy", "_mu"), "log_std": deviation}
    return {"actor": actor, "critic": critic, "value": layers(recorded, f"{at}/value_func", "_fc")}


CHANGES: dict[str, dict[str, Any]] = {
    "iql": {"actor_decay_steps": 0},
    "discrete_bc": {"beta_on": "log_probs"},
    "discrete_bcq": {"beta_on": "log_probs", "learning_rate": 1e-3, "flexibility": 0.7},
}
"""Settings other than our defaults."""


def method_of(name: str, **changes: Any) -> tuple[Any, dict[str, jax.Array]]:
    found = algorithm("bc" if name == "discrete_bc" else name)
    config = found.config(hidden=HIDDEN, batch_size=64, **(CHANGES.get(name, {}) | changes))
    actions = ActionKind(6) if name.startswith("discrete") else ActionKind(low=(-1.0, -1.0), high=(1.0, 1.0))
    method: Any = found.make(config, actions)
    if name == "iql":  # as d3rlpy's: the deviation is a sigmoid of its parameter
        method.actor = GaussianActor(2, HIDDEN, low=LOG_STD_MIN, sigmoid=True)
    return method, {k: jnp.float32(v) for k, v in vars(config).items() if isinstance(v, float)}


def learned(recorded: dict[str, np.ndarray], name: str, steps: int, **changes: Any) -> tuple[Any, TrainState]:
    """The method, and its networks after gradient steps from d3rlpy's initial weights on d3rlpy's batches."""
    method, hparams = method_of(name, **changes)
    first = networks(recorded, name, 0)
    columns = {k: jnp.asarray(recorded[k]) for k in ("obs", "action", "reward", "next_obs")}
    if name.startswith("discrete"):
        columns["action"] = jnp.asarray(recorded["choice"])
    columns["terminated"] = jnp.asarray(recorded["terminated"]) > 0

    def one(trained: TrainState, at: tuple[jax.Array, jax.Array]) -> tuple[TrainState, None]:
        rows, count = at
        batch = Batch(**{k: v[rows] for k, v in columns.items()})
        context = Context(jax.random.fold_in(jax.random.key(0), count), hparams, count, None)  # type: ignore[arg-type]
        return method.step(trained, batch, context)[0], None

    rows = jnp.asarray(recorded["rows"][:steps], jnp.int32)
    begun = TrainState.create(first, [n for n in first if n == "critic"])
    return method, jax.jit(lambda t: jax.lax.scan(one, t, (rows, jnp.arange(steps)))[0])(begun)


def distance(a: Any, b: Any) -> float:
    """The largest difference of any number."""
    return max(float(jnp.max(jnp.abs(x - y))) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_bc_is_d3rlpys(recorded):
    _, found = learned(recorded, "bc", 200)
    wanted, first = networks(recorded, "bc", 200)["actor"], networks(recorded, "bc", 0)["actor"]
    assert distance(found.params["actor"], wanted) < 1e-3 < 0.05 < distance(first, wanted)


def test_discrete_bc_is_d3rlpys(recorded):
    """Version 2.8.1 penalises log-probabilities. With logits, as 2.0.2, weights are others."""
    _, found = learned(recorded, "discrete_bc", 200)
    wanted = networks(recorded, "discrete_bc", 200)["actor"]
    assert distance(found.params["actor"], wanted) < 5e-3
    _, other = learned(recorded, "discrete_bc", 200, beta_on="logits")
    assert distance(other.params["actor"], wanted) > 0.05


@pytest.mark.slow
def test_discrete_bcq_is_d3rlpys(recorded):
    """Its target network is copied after the first step, ours is not, so the critics are compared before that shows."""
    _, first = learned(recorded, "discrete_bcq", 1)
    assert distance(first.params, networks(recorded, "discrete_bcq", 1)) < 1e-5
    method, found = learned(recorded, "discrete_bcq", 200)
    wanted = networks(recorded, "discrete_bcq", 200)
    assert distance(found.params["imitator"], wanted["imitator"]) < 5e-3
    _, other = learned(recorded, "discrete_bcq", 200, beta_on="logits")
    assert distance(other.params["imitator"], wanted["imitator"]) > 0.05
    obs, played = jnp.asarray(recorded["obs"]), recorded["discrete_bcq/played"]
    np.testing.assert_array_equal(method.act(wanted, obs).mode(), played)
    q = method.critics.all_values(wanted["critic"], obs)[0]
    assert (jnp.argmax(q, axis=-1) != played).mean() > 0.05, "some best actions are not likely"


def test_the_first_step_of_iql_is_d3rlpys(recorded):
    """Its critics' targets read V before its step, ours after it, so the critics are compared later."""
    _, found = learned(recorded, "iql", 1)
    wanted = networks(recorded, "iql", 1)
    assert distance(found.params["value"], wanted["value"]) < 1e-6
    assert distance(found.params["actor"], wanted["actor"]) < 1e-6


@pytest.mark.parametrize(("name", "bounds"), [("iql", (0.01, 0.01)), ("cql", (0.03, 0.3))])
def test_after_200_steps_values_and_actions_are_d3rlpys_but_for_noise(recorded, name, bounds):
    """CQL draws other actions than d3rlpy, and IQL's order of steps differs. The bounds, of values and of actions, are
    shares of what the steps changed."""
    method, found = learned(recorded, name, 200)
    first, wanted = networks(recorded, name, 0), networks(recorded, name, 200)
    obs, action = jnp.asarray(recorded["obs"]), jnp.asarray(recorded["action"])

    def seen(params: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        return method.critics(params["critic"], obs, action), method.actor.distribution(params["actor"], obs).mode()

    for x, y, z, bound in zip(seen(found.params), seen(wanted), seen(first), bounds, strict=True):
        error, change = (float(jnp.sqrt(jnp.mean((y - other) ** 2))) for other in (x, z))
        assert error < bound * change
