"""A memory that holds each frame once, against one of whole observations, byte for byte."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from envs_jax import spaces, testing
from envs_jax.env import Environment, Stack
from envs_jax.resets import VectorEnv
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.parallel.memory import available, nbytes
from llmrl_jax.rl.dqn import DQNConfig, make_dqn
from llmrl_jax.rl.frames import STEPS_PER_END, Frames
from llmrl_jax.rl.networks import NetworkQPolicy
from llmrl_jax.rl.replay import Replay
from llmrl_jax.run.checkpoint import Checkpoints


ROWS, LENGTH, CHUNK = 2, 40, 4
STACKS = {"image": Stack(4, "first"), "depth": Stack(2, "zeros")}
WHOLE = Replay(ROWS * LENGTH, rows=ROWS)
ONCE = replace(WHOLE, stacked=STACKS)


def history(steps, rate, seed=0):
    """Played steps of two rows, leaves `[steps, 2]`, and which ended an episode. Every frame has its own number."""
    rng = np.random.default_rng(seed)
    kinds = rng.random((2, steps, ROWS)) < rate / 2
    count = iter(range(1, 2**16 - 1))

    def frame():
        number = next(count)
        return {"image": np.array([number >> 8, number & 255], np.uint8), "depth": np.float32(number)}

    def begun():
        first = frame()
        blank = {"first": first, "zeros": jax.tree.map(np.zeros_like, first)}
        return {name: [blank[stack.fill][name]] * (stack.frames - 1) + [first[name]] for name, stack in STACKS.items()}

    def seen(stacks):
        return {name: np.stack(x, axis=-1) for name, x in stacks.items()} | {"goals": np.int32(next(count))}

    columns = []
    for row in range(ROWS):
        stacks, column = begun(), []
        for t in range(steps):
            new = frame()
            after = {name: [*x[1:], new[name]] for name, x in stacks.items()}
            column.append((seen(stacks), seen(after)))
            stacks = begun() if kinds[:, t, row].any() else after
        columns.append(jax.tree.map(lambda *x: np.stack(x), *column))
    obs, next_obs = jax.tree.map(lambda *x: np.stack(x, axis=1), *columns)
    numbers = np.arange(steps * ROWS, dtype=np.float32).reshape(steps, ROWS)
    return Transitions(obs, np.int32(numbers), numbers, next_obs, kinds[0], kinds[1]), kinds.any(axis=0)


@functools.cache
def program(memory, name, *static):
    return jax.jit(getattr(memory, name), static_argnums=static)


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def started(memory, past):
    return memory.init(jax.tree.map(lambda x: x[0, 0], past))


def newest(count, buffer):
    """The indices of the newest `count` steps of each row, all rows."""
    times = (int(buffer.next) - 1 - np.arange(count)) % LENGTH
    return (times[:, None] * ROWS + np.arange(ROWS)).reshape(-1)


@pytest.mark.parametrize("rate", [0.04, 0.5])  # none is forgotten; and more ends than there are places for
def test_what_is_read_is_what_whole_storage_returns(rate):
    steps = 3 * LENGTH
    past, ended = jax.tree.map(lambda x: x[2:], history(steps + 2, rate))  # it begins in the middle of an episode
    whole, once = started(WHOLE, past), started(ONCE, past)
    places, least = LENGTH // STEPS_PER_END + 1, LENGTH
    for t in range(CHUNK, steps + 1, CHUNK):
        chunk = jax.tree.map(lambda x, t=t: x[t - CHUNK : t], past)
        whole = program(WHOLE, "add")(whole, chunk)
        once = program(ONCE, "add")(once, chunk, ended[t - CHUNK : t])
        ends = [np.flatnonzero(ended[:t, row]) for row in range(ROWS)]
        held = min([t, LENGTH, *(t - 1 - x[-places - 1] for x in ends if len(x) > places)])
        least = min(least, held) if t >= LENGTH else least
        assert int(once.frames.readable) == held and int(ONCE.num_readable(once)) == held * ROWS
        index = np.resize(newest(held, once), ROWS * LENGTH)
        same(program(ONCE, "get")(once, index), program(WHOLE, "get")(whole, index))
        for n in (1, 3):
            same(program(ONCE, "n_step", 2)(once, index, n, 0.5), program(WHOLE, "n_step", 2)(whole, index, n, 0.5))
    assert (least < LENGTH) == (rate > 0.1)
    key = jax.random.key(1)
    drawn = program(ONCE, "draw", 2)(once, key, 4096)
    assert set(np.asarray(drawn.index)) == set(newest(held, once))
    if held == LENGTH:  # the same key draws the same steps
        np.testing.assert_array_equal(drawn.index, program(WHOLE, "draw", 2)(whole, key, 4096).index)


def test_a_chunk_with_more_ends_than_places():
    """All of it arrives at once, and most of it is forgotten at once; what is left can be drawn, and nothing else."""
    past, ended = history(2 * LENGTH, 0.6, seed=3)
    memory = replace(ONCE, prioritized=True)
    whole, once = started(WHOLE, past), started(memory, past)
    for half in (slice(0, LENGTH), slice(LENGTH, 2 * LENGTH)):
        chunk = jax.tree.map(lambda x, half=half: x[half], past)
        whole, once = program(WHOLE, "add")(whole, chunk), program(memory, "add")(once, chunk, ended[half])
        held = int(once.frames.readable)
        assert 1 <= held < LENGTH // 2
        index = newest(held, once)
        fits = np.resize(index, ROWS * LENGTH)
        same(program(memory, "get")(once, fits), program(WHOLE, "get")(whole, fits))
        drawn = program(memory, "draw_prioritized", 2)(once, jax.random.key(0), 1024)
        assert set(np.asarray(drawn.index)) == set(index)
        np.testing.assert_allclose(drawn.probability, 1 / len(index), rtol=1e-6)


def test_frames_are_held_once():
    item = jax.tree.map(lambda x: x[0, 0], history(1, 0.1)[0])
    buffer = jax.eval_shape(ONCE.init, item)
    shapes = {name: x.shape for name, x in buffer.frames.frames.items()}
    assert shapes == {"image": (LENGTH + 4, ROWS, 2), "depth": (LENGTH + 4, ROWS)}
    assert {name: x.shape for name, x in buffer.frames.finals.items()} == {"image": (3, ROWS, 2), "depth": (3, ROWS)}
    assert set(buffer.items.obs) == set(buffer.items.next_obs) == {"goals"}


def test_bad_input():
    with pytest.raises(ValueError, match="`rows`"):
        Replay(10, stacked=STACKS)
    past, _ = history(1, 0.1)
    item = jax.tree.map(lambda x: x[0, 0], past)
    with pytest.raises(ValueError, match="`ended`"):
        ONCE.add(ONCE.init(item), past)
    with pytest.raises(ValueError, match=r"'image'.*\[2, 4\].*3"):
        Frames(5, 1, {"image": Stack(3, "first")}).init(item.obs)
    with pytest.raises(ValueError, match="'film'.*missing.*3"):
        Frames(5, 1, {"film": Stack(3, "first")}).init(item.obs)


def test_a_memory_that_cannot_fit_is_refused(monkeypatch):
    state, _ = programs(True)
    needed = nbytes(state.replay)
    env, policy = EpisodeStatistics(Film(True)), NetworkQPolicy(3, hidden=(8,), features=pixels)
    learner = make_dqn(CONFIG, env, (), policy)
    monkeypatch.setattr("llmrl_jax.rl.replay.available", lambda copies: needed - 1)
    message = "192.*0.0 GB.*0.0 GB.*dqn.replay_size.*192"
    with pytest.raises(ValueError, match=message):
        learner.init(jax.random.key(0))
    assert needed > 27 * 8 * 4 + 2 * 8 * 4 and available() > 1e8


# --- DQN --------------------------------------------------------------------------------------------------------------


@struct.dataclass
class Clip:
    film: jax.Array
    time: jax.Array


class Film(Environment):
    """A world whose observation is a stack of random frames. Episodes end after 12 steps or are cut after 13."""

    id = "Film-v0"

    def __init__(self, declared):
        self.declared = declared

    @property
    def stacked(self):
        return {"image": Stack(3, "first")} if self.declared else {}

    @property
    def default_params(self):
        return ()

    def reset(self, key, params):
        film = jnp.broadcast_to(jax.random.bits(key, (4, 1), jnp.uint8), (4, 3))
        return {"image": film}, Clip(film, jnp.int32(0))

    def step(self, key, state, action, params):
        film = jnp.concatenate([state.film[:, 1:], jax.random.bits(key, (4, 1), jnp.uint8)], axis=1)
        after = Clip(film, state.time + 1)
        reward = (film[0, -1] % 3 == action).astype(jnp.float32)
        return {"image": film}, after, reward, (after.time == 12) & (film[0, -1] < 128), after.time >= 13, {}

    def observation_space(self, params):
        return spaces.Dict({"image": spaces.Box(0, 255, (4, 3), np.uint8)})

    def action_space(self, params):
        return spaces.Discrete(3)


CONFIG = DQNConfig(
    num_envs=8,
    num_steps=5,
    gradient_steps=2,
    batch_size=8,
    replay_size=8 * 24,
    n_step=3,
    replay="prioritized",
    target_every=1,
    pool_size=4,
)


def pixels(obs, batch_dims):
    return obs["image"].reshape(*obs["image"].shape[:batch_dims], -1) / 255.0


@functools.cache
def programs(declared, mesh=None):
    env = EpisodeStatistics(Film(declared))
    learner = make_dqn(CONFIG, env, (), NetworkQPolicy(3, hidden=(8,), features=pixels), mesh)
    state = learner.init(jax.random.key(0))
    shardings = None if mesh is None else (jax.tree.map(lambda x: x.sharding, state), None)
    return state, jax.jit(learner.update, out_shardings=shardings)


def test_the_kit_checks_declared_stacks():
    world, rows = Film(True), VectorEnv(Film(True), 4, pool_size=2)
    testing.check_contract(world, ())
    first, state = jax.jit(rows.reset)(jax.random.key(0), ())
    play = jax.jit(lambda state, key: testing.play(rows, (), state, key, 20))
    played = jax.tree.map(np.array, play(state, jax.random.key(1)) | {"state": ()})
    testing.check_stacks(world, first, played)
    blank = type("Blank", (Film,), {"stacked": {"image": Stack(3, "zeros")}})(True)
    with pytest.raises(AssertionError, match="Film-v0.*'image'.*zeros"):
        testing.check_stacks(blank, first, played)
    played["final"]["image"][7, 2, 1, 0] ^= 1
    with pytest.raises(AssertionError, match="'image'.*newest"):
        testing.check_stacks(world, first, played)
    short = type("Short", (Film,), {"stacked": {"image": Stack(2, "first")}})(True)
    with pytest.raises(AssertionError, match=r"'image'.*\(4, 3\).*2"):
        testing.check_contract(short, ())


def learned(updates, declared, mesh=None):
    state, update = programs(declared, mesh)
    for _ in range(updates):
        state, metrics = update(state)
    return state, metrics


@pytest.mark.slow
def test_dqn_learns_the_same_from_frames_held_once():
    """Prioritised, in three steps, past the memory's end: the same parameters, priorities and metrics."""
    (whole, a), (once, b) = learned(7, False), learned(7, True)
    assert int(once.replay.frames.readable) == 24
    same(a, b)
    for name in ("params", "opt_state", "runner"):
        same(getattr(whole, name), getattr(once, name))
    same(whole.replay.priorities, once.replay.priorities)
    assert whole.replay.items.obs["image"].shape == (24, 8, 4, 3) and not once.replay.items.obs


@pytest.mark.slow
def test_frames_are_split_over_eight_devices():
    mesh = jax.make_mesh((4, 2, 1), ("data", "fsdp", "tensor"), (AxisType.Auto,) * 3)
    (one, _), (eight, _) = learned(1, True), learned(1, True, mesh)
    same(one.replay.frames, eight.replay.frames)
    frames = eight.replay.frames
    over, axes = ("data", "fsdp"), {"next": (), "readable": (), "next_end": (0,), "ended": (0,)}
    for name, part in vars(frames).items():
        wanted = [PartitionSpec(*[None] * axis, over) for axis in axes.get(name, (1,))] or [PartitionSpec()]
        for leaf in jax.tree.leaves(part):
            assert leaf.sharding.is_equivalent_to(NamedSharding(mesh, wanted[0]), leaf.ndim), name


@pytest.mark.slow
def test_a_checkpoint_has_every_frame(tmp_path):
    """Saved in mid-episode and restored into a new state: the same bits, and the same next update."""
    (state, _), (other, update) = learned(4, True), programs(True)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, state)
        checkpoints.wait()
        back, _ = checkpoints.restore(other)
    same(bits(state), bits(back))
    same(bits(update(state)[0]), bits(update(back)[0]))


def bits(state):
    """A state with its keys as words."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, state)
