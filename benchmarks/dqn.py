"""DQN: gradient steps per second beside torch's, the part of the machine's matrix rate, and the whole program."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import envs_jax
from benchmarks.harness import OURS, REPEATS, Figure, Result, Row, aim, compiled, fastest, rates, speedup, threads
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.parallel import Placement
from llmrl_jax.rl.dqn import DQN, DQNConfig, DQNState, dqn_loss
from llmrl_jax.rl.gradient import clipped_adam, traced_floats
from llmrl_jax.rl.networks import NetworkQPolicy
from llmrl_jax.rl.replay import BufferState
from llmrl_jax.systems.ellm.build import Ellm, build
from llmrl_jax.systems.ellm.config import EMBEDDED


TITLE = "DQN: gradient steps, compared with torch"

ROWS, CAPACITY = 32, 200_000
FIRST = ("symbols", "text", "goals", "hidden_0")
"""Layers on inputs, which need no gradient; a head's `hidden_0` is not one of them."""
ACTIONS, FEATURES = 17, 128
SQUARE = 1024
BAR_PEER, BAR_RATE = 2, 60


@dataclass
class Case:
    """A network, its learner with a full memory, and the same in torch."""

    name: str
    learner: DQN
    state: DQNState
    flop: float
    """Floating-point operations of the matrix products in one gradient step."""
    peers: Callable[[dict[str, Any]], dict[str, Any]]
    """From the whole n-step transitions of the memory to `benchmarks.torch_dqn.Peer`s, by what sets them apart."""


def products(params: Any, batch: int, tables: int = 0, gathered: int = 0) -> float:
    """Operations of the matrix products of a step of double DQN: each kernel forwards for the observations, and for the
    next ones with both parameters; backwards to its weights, and to its inputs unless they are the network's.

    **Arguments:** `tables`, multiply-adds per observation with matrices that are not learned; `gathered`, weights of a
    first layer whose rows are added instead of multiplied, which are not counted.
    """
    total = 2.0 * tables - 4 * gathered
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [str(getattr(p, "key", p)) for p in path]
        if names[-1] == "kernel":
            outermost = names[-2] in FIRST and names[0] in ("encoder", "hidden_0")
            total += leaf.size * (4 if outermost else 5)
    return 2 * batch * total


def filled(draw: Callable[[], Any], actions: int, rng: np.random.Generator) -> BufferState:
    """A full memory of random steps; one in 200 ends an episode."""
    lead = (CAPACITY // ROWS, ROWS)
    steps = Transitions(
        obs=draw(),
        action=jnp.asarray(rng.integers(0, actions, lead), jnp.int32),
        reward=jnp.asarray(rng.random(lead), jnp.float32),
        next_obs=draw(),
        terminated=jnp.asarray(rng.random(lead) < 0.005),
        truncated=jnp.zeros(lead, bool),
    )
    return BufferState(steps, jnp.int32(0), jnp.int32(CAPACITY))


def state_of(learner: DQN, config: DQNConfig, buffer: BufferState) -> DQNState:
    """The part of DQN's state that gradient steps read."""
    hparams = traced_floats(config)
    params, frozen = learner.policy.init(jax.random.key(0), jax.tree.map(lambda x: x[0], buffer.items.obs))
    target = jax.tree.map(lambda x: x + 0.01, params)
    opt_state = clipped_adam(hparams).init(params)
    return DQNState(params, frozen, target, opt_state, buffer, (), hparams, jax.random.key(1), jnp.int32(0))


def settings(batch: int, steps: int, **more: Any) -> DQNConfig:
    """The embedded preset's, with another batch and number of gradient steps, and uniform replay."""
    sizes = {"batch_size": batch, "gradient_steps": steps, "replay_size": CAPACITY, "num_envs": ROWS}
    uniform = {"replay": "uniform"} | {name: getattr(DQNConfig(), name) for name in ("priority_alpha", "priority_beta")}
    return dataclasses.replace(EMBEDDED.dqn, **sizes, **uniform, **more)


def embedded() -> Ellm:
    """The embedded preset, with the encoder that needs no download."""
    return build(dataclasses.replace(EMBEDDED, encoder="hashed"))


def ellm_case(made: Ellm, batch: int, steps: int) -> Case:
    """The embedded preset's network on Crafter's symbols, captions and goals."""
    from benchmarks import torch_dqn

    rng = np.random.default_rng(0)
    space: Any = made.env.observation_space(made.env_params)
    lead = (CAPACITY // ROWS, ROWS)

    def draw() -> Any:
        return {
            name: jnp.asarray(rng.integers(x.low, np.asarray(x.high) + 1, (*lead, *x.shape)).astype(x.dtype))
            for name, x in space.spaces.items()
        }

    config = settings(batch, steps, learning_starts=0)
    learner = DQN(config, made.env, made.env_params, made.policy, Placement(None))
    state = state_of(learner, config, filled(draw, len(made.spec.captions), rng))
    view = space.spaces["view"]
    tables = {
        "planes": [int(np.max(view.high)) + 1] * view.shape[-1],
        "phrases": np.asarray(made.encoder.encode_texts(made.env.captions["text"].phrases)),
        "goals": np.asarray(made.policy.table),
    }

    def peers(replay: dict[str, Any]) -> dict[str, Any]:
        def one(added: bool) -> Any:
            networks = [torch_dqn.Branches(jax.device_get(p), tables, added) for p in (state.params, state.target)]
            return torch_dqn.Peer(networks[0], networks[1], replay, config)

        return {"one-hot vectors, ": one(added=False), "rows added, ": one(added=True)}

    ones = int(np.prod(view.shape[:-1])) * sum(tables["planes"])
    gathered = ones * EMBEDDED.network.width if jax.default_backend() == "cpu" else 0
    flop = products(state.params, batch, tables["goals"].size, gathered)
    return Case(f"ELLM's embedded network, batch {batch}", learner, state, flop, peers)


def plain_case(batch: int, steps: int) -> Case:
    """Two hidden layers of 512 and dueling heads on a vector; the world is not played."""
    from benchmarks import torch_dqn

    rng = np.random.default_rng(0)
    env, params = envs_jax.make("CartPole-v1")
    config = settings(batch, steps, learning_starts=0)
    policy = NetworkQPolicy(ACTIONS, hidden=(512, 512), dueling=True)
    learner = DQN(config, EpisodeStatistics(env), params, policy, Placement(None))

    def draw() -> Any:
        return {"vector": jnp.asarray(rng.normal(size=(CAPACITY // ROWS, ROWS, FEATURES)), jnp.float32)}

    state = state_of(learner, config, filled(draw, ACTIONS, rng))

    def peers(replay: dict[str, Any]) -> dict[str, Any]:
        networks = [torch_dqn.Plain(jax.device_get(p)) for p in (state.params, state.target)]
        return {"": torch_dqn.Peer(networks[0], networks[1], replay, config)}

    return Case(f"MLP 512 x 512, batch {batch}", learner, state, products(state.params, batch), peers)


def whole(case: Case) -> tuple[dict[str, Any], jax.Array]:
    """The memory as whole n-step transitions for the peer, and the discounts of ours."""
    learner, state = case.learner, case.state
    index = jnp.arange(CAPACITY)
    gamma, n = state.hparams["gamma"], learner.config.n_step
    batch, discount = jax.jit(lambda buffer: learner.memory.n_step(buffer, index, n, gamma))(state.replay)
    host = jax.device_get(batch)
    replay = {
        "obs": host.obs,
        "next_obs": host.next_obs,
        "action": host.action.astype(np.int64),
        "reward": host.reward,
        "discount": np.where(host.terminated, 0, np.asarray(discount)).astype(np.float32),
    }
    return replay, discount


def agree(case: Case, peer: Any) -> None:
    """**Raises** `AssertionError` unless both compute the same loss and gradient norm on the same transitions."""
    import torch

    learner, state = case.learner, case.state
    index = np.random.default_rng(1).integers(0, CAPACITY, learner.config.batch_size)
    gamma, delta = state.hparams["gamma"], state.hparams["huber_delta"]
    batch, discount = learner.memory.n_step(state.replay, jnp.asarray(index), learner.config.n_step, gamma)

    def loss(params: Any) -> jax.Array:
        parts = (params, state.frozen, state.target, batch, learner.policy, discount)
        return dqn_loss(*parts, double=True, delta=delta)[0]

    value, grads = jax.jit(jax.value_and_grad(loss))(state.params)
    theirs = peer.loss(peer.batch(torch.from_numpy(index)))
    norm = torch.sqrt(sum(g.square().sum() for g in torch.autograd.grad(theirs, list(peer.network.parameters()))))
    np.testing.assert_allclose(theirs.item(), float(value), rtol=1e-3)
    np.testing.assert_allclose(norm.item(), float(optax.tree.norm(grads)), rtol=1e-3)


@dataclass
class Samples:
    """Seconds per gradient step, or of one matrix product."""

    wall: list[float]
    cpu: list[float]


def clocks(samples: Samples) -> tuple[list[float], list[float]]:
    """Both."""
    return samples.wall, samples.cpu


def sampled(calls: dict[str, tuple[Callable[[], Any], int]], rounds: int) -> dict[str, Samples]:
    """Each call in turn, `rounds` times, after one call that is not counted: the load of the machine is shared.

    **Arguments:** `calls`, by name, with the amount that one call does.
    """
    found = {name: Samples([], []) for name in calls}
    for call, _ in calls.values():
        jax.block_until_ready(call())
    for _ in range(rounds):
        for name, (call, amount) in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(call())
            found[name].wall.append((time.perf_counter() - wall) / amount)
            found[name].cpu.append((time.process_time() - cpu) / amount)
    return found


def measure(case: Case, rounds: int, compile_torch: bool) -> tuple[list[Row], list[str]]:
    """Rows of ours and torch's, and the targets."""
    import torch

    from benchmarks import torch_peer

    learner, state, steps = case.learner, case.state, case.learner.config.gradient_steps

    def learn(state: DQNState, key: jax.Array) -> Any:
        (params, opt_state, _, _), metrics = learner._learn(state, key)
        return params, opt_state, metrics

    program, took = compiled(learn, state, jax.random.key(2))
    square = jnp.ones((SQUARE, SQUARE))
    product, _ = compiled(lambda x: x @ x, square)
    peers = case.peers(whole(case)[0])
    for peer in peers.values():
        agree(case, peer)
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        OURS: (lambda: program(state, jax.random.key(3)), steps),
        "product": (lambda: product(square), 1),
    }
    built: dict[str, float] = {}
    cores = len(os.sched_getaffinity(0))
    ways: list[tuple[str, int, Any, Any]] = []
    compile_torch = compile_torch and not torch_peer.compiler_error()
    torch._dynamo.reset()
    for kind, peer in peers.items():
        ways += [(f"{kind}{torch_peer.EAGER}", n, peer, None) for n in sorted({1, cores})]
        if compile_torch:
            torch.set_num_threads(1)
            started, loss = time.perf_counter(), torch.compile(peer.loss, dynamic=False)
            peer.steps(1, loss)
            how = f"{kind}{torch_peer.COMPILED}"
            built[f"{how}, {threads(1)}"] = time.perf_counter() - started
            ways.append((how, 1, peer, loss))
    for how, count, peer, loss in ways:
        few = max(1, steps // 4) if count == 1 else 1

        def call(few: int = few, count: int = count, peer: Any = peer, loss: Any = loss) -> float:
            torch.set_num_threads(count)
            return peer.steps(few, loss)

        calls[f"{how}, {threads(count)}"] = (call, few)
    found = sampled(calls, rounds)
    unit = "gradient steps/s"
    rows = [Row(case.name, OURS, unit, rates(1, found[OURS].wall), took, f"{case.flop / 1e6:.0f} MFLOP a step")]
    per_cpu = [Row(case.name, OURS, "gradient steps/CPU s", rates(1, found[OURS].cpu))]
    for name in calls:
        if name not in (OURS, "product"):
            rows.append(Row(case.name, "torch", unit, rates(1, found[name].wall), built.get(name), name))
            per_cpu.append(Row(case.name, "torch", "gradient steps/CPU s", rates(1, found[name].cpu), None, name))
    peak, flop = found["product"], 2.0 * SQUARE**3
    pairs = [(Figure.of(ours), Figure.of(its)) for ours, its in zip(clocks(found[OURS]), clocks(peak))]
    shares = [(its / ours).scaled(100 * case.flop / flop) for ours, its in pairs]
    best, best_cpu = fastest(rows[1:]), fastest(per_cpu[1:])
    ratio, ratio_cpu = speedup(rows[:1], rows[1:]), speedup(per_cpu[:1], per_cpu[1:])
    rate = [flop / its.value / 1e9 for _, its in pairs]
    bars = [
        f"{case.name}: {ratio:.2f} times torch ({best.note}) {aim(ratio, BAR_PEER)}; per second of CPU time "
        f"{ratio_cpu:.2f} times ({best_cpu.note})",
        f"{case.name}: {shares[0]:.0f}% of the matrix rate {aim(shares[0], BAR_RATE)}; per second of CPU time "
        f"{shares[1]:.0f}% ({rate[0]:.0f} GFLOP/s in a product of {SQUARE} x {SQUARE}, {rate[1]:.0f} per second of CPU "
        "time)",
    ]
    return rows + per_cpu, bars


def program(made: Ellm, updates: int) -> tuple[Row, Row]:
    """Environment, acting and learning in one program, with the memory full enough to learn: steps and gradient steps
    per second. A sample renews the pool of episodes once."""
    config = EMBEDDED.dqn
    made = dataclasses.replace(made, config=dataclasses.replace(made.config, dqn=config))
    learner = made.learner()
    state = learner.init(jax.random.key(0))
    state = state.replace(replay=state.replay.replace(size=jnp.int32(config.learning_starts)))
    update, took = compiled(learner.update, state, donate_argnums=0)
    holder = [state]

    def call() -> Any:
        for _ in range(updates):
            holder[0], metrics = update(holder[0])
        return metrics

    found = sampled({"all": (call, updates)}, REPEATS)["all"].wall
    case = "ELLM, embedded preset, whole program"
    note = f"{config.num_envs} worlds, {config.gradient_steps} gradient steps in {learner.steps_per_update} steps"
    return (
        Row(case, OURS, "steps/s", rates(learner.steps_per_update, found), took, note),
        Row(case, OURS, "gradient steps/s", rates(config.gradient_steps, found)),
    )


def run(quick: bool) -> Result:
    """Gradient steps alone for two networks at two batch sizes, and ELLM's whole program."""
    made = embedded()
    steps, rounds = (4, REPEATS) if quick else (32, 3 * REPEATS)
    rows: list[Row] = []
    bars: list[str] = []
    for batch in (64,) if quick else (64, 256):
        for case in (ellm_case(made, batch, steps), plain_case(batch, steps)):
            more, reached = measure(case, rounds, compile_torch=batch == 64 and not quick)
            rows, bars = rows + more, bars + reached
    rows += program(made, 2 if quick else EMBEDDED.dqn.pool_every)
    notes = [
        "A gradient step: a batch drawn uniformly from a full memory of 200,000 steps, the double, dueling loss over "
        f"{EMBEDDED.dqn.n_step} steps, clipping, Adam. torch has the same weights, its memory in tensors with the sums "
        "over these steps made in advance, and fused Adam. Both compute the same loss and gradient norm, within 1e-3, "
        "before anything is timed. Samples alternate.",
        "The operations are those of the matrix products, counted from the shapes; the matrix rate is that of XLA's "
        f"float32 product of {SQUARE} x {SQUARE} in the same rounds. Ours adds rows of ELLM's first layer, which are "
        "not counted, in place of a product with one-hot vectors, half of all operations; torch has a line for each "
        "way (`embedding_bag` adds its rows).",
        "CPU time counts all threads, and waiting ones if they spin, as torch's do.",
        "ELLM's embedded network: view, inventory, captions and goals of CrafterText-v1, 139 actions, width 128. "
        f"The MLP: {FEATURES} features, {ACTIONS} actions, dueling.",
    ]
    return Result(rows, bars, notes)
