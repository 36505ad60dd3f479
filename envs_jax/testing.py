"""The conformance kit: checks that every registered environment must pass, for use when developing a new one too.

`check_contract` only traces (under a second); `check` also runs. Both raise `AssertionError`, naming the environment
and the failed check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import spaces, tracing
from envs_jax.env import Environment, Wrapper
from envs_jax.resets import ResetPolicy, VectorEnv, VectorState


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _types(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Leaf path -> shape and dtype."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): (tuple(x.shape), str(x.dtype)) for path, x in leaves}


def _same_types(a: Any, b: Any, label: str) -> None:
    left, right = _types(a), _types(b)
    wrong = sorted(path for path in left.keys() | right.keys() if left.get(path) != right.get(path))
    lines = [f"{path or 'it'}: {left.get(path)} and {right.get(path)}" for path in wrong]
    assert not wrong, f"{label} differ in structure: {'; '.join(lines)}"


def assert_same(a: Any, b: Any, label: str, atol: float = 0.0) -> None:
    """Assert that two pytrees are equal: bit for bit, or floats within `atol`."""
    _same_types(a, b, label)
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b)):
        x, y = (np.asarray(jax.random.key_data(z) if _is_key(z) else z) for z in (x, y))
        close = np.issubdtype(x.dtype, np.floating) and atol
        equal = np.allclose(x, y, rtol=atol, atol=atol) if close else np.array_equal(x, y)
        assert equal, f"{label} differ at {jax.tree_util.keystr(path) or 'their only leaf'}:\n{x}\n{y}"


def _finite(tree: Any, label: str) -> None:
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        if not _is_key(x) and jnp.issubdtype(x.dtype, jnp.inexact):
            assert np.all(np.isfinite(np.asarray(x))), f"{label}{jax.tree_util.keystr(path)} is not finite"


def _rows(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


class _Traced(Wrapper):
    """An environment whose functions are traced once, no matter how often they are called."""

    def __init__(self, env: Environment):
        super().__init__(env)
        self.reset, self.step = jax.jit(env.reset), jax.jit(env.step)  # type: ignore[method-assign]


def _abstract(env: Environment, params: Any) -> tuple[Any, Any, Any, Any]:
    key = jax.eval_shape(lambda: jax.random.key(0))
    obs, state = jax.eval_shape(env.reset, key, params)
    action = jax.eval_shape(env.action_space(params).sample, key)
    return obs, state, action, jax.eval_shape(env.step, key, state, action, params)


def check_contract(
    env: Environment, params: Any, *, policies: tuple[ResetPolicy, ...] = ("pool",), x64: bool = True
) -> None:
    """Check types and structure, without compiling anything.

    `reset` and `step` trace; they agree on observation and state; observations have the shape and dtype of their space;
    the reward is float32 and the two flags bool, all scalars; with `x64`, `jax_enable_x64` changes no type, since
    environments are 32-bit regardless of the user's setting; batched under every reset policy of `policies`, the
    observation before a reset is present, and the state keeps its structure.
    """
    name = env.id or type(env).__name__
    env = _Traced(env)
    key = jax.eval_shape(lambda: jax.random.key(0))
    obs, state, action, result = _abstract(env, params)
    assert isinstance(result, tuple) and len(result) == 6, f"{name}: step returns {len(result)} values, not 6"
    after, next_state, reward, terminated, truncated, info = result
    _same_types(obs, after, f"{name}: the observations of reset and step")
    _same_types(state, next_state, f"{name}: the states before and after a step")
    member = jax.eval_shape(env.observation_space(params).sample, key)
    _same_types(obs, member, f"{name}: the observation and a member of its space")
    for x, dtype, label in (
        (reward, "float32", "reward"),
        (terminated, "bool", "terminated"),
        (truncated, "bool", "truncated"),
    ):
        assert x.shape == () and str(x.dtype) == dtype, f"{name}: {label} is {x.dtype}{list(x.shape)}, not {dtype}[]"
    _check_captions(env, params, name)
    assert isinstance(info, dict), f"{name}: info is {type(info).__name__}, not a dict"
    assert "final_observation" not in info, f"{name}: final_observation belongs to the batch, not to one environment"
    if x64:
        with jax.enable_x64(True):
            wide = _abstract(env, params)
        _same_types((obs, state, action, result), wide, f"{name}: with and without x64, types")
    for policy in policies:
        batch = VectorEnv(env, 2, policy=policy, pool_size=2, reset_ratio=1)
        obs, state, action, result = _abstract(batch, params)
        label = f"{name} under the reset policy {policy}"
        _same_types(state, result[1], f"{label}: the states before and after a step")
        assert "final_observation" in result[5], f"{label}: no final_observation"
        _same_types(obs, result[5]["final_observation"], f"{label}: the observation and the final one")


def _check_captions(env: Environment, params: Any, name: str) -> None:
    """Check the declared captions, stacks and keys of an environment against its spaces."""
    space = env.observation_space(params)
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    for caption, book in env.captions.items():
        part = parts.get(caption)
        assert isinstance(part, spaces.Box), f"{name}: the caption {caption!r} is no part of the observation"
        low, high = np.min(part.low), np.max(part.high)
        assert low == -1 and high == len(book) - 1, f"{name}: {caption!r} is in [{low}, {high}], of {len(book)} ids"
    for stacked, stack in env.stacked.items():
        shape = tuple(getattr(parts.get(stacked), "shape", ()))
        label = f"{name}: {stacked!r} has the shape {shape}, not a stack of {stack.frames}"
        assert shape[-1:] == (stack.frames,), label
    for caption in env.episode_captions:
        assert caption in env.captions, f"{name}: {caption!r} is among episode_captions, but not among captions"
    actions = env.action_space(params)
    for key, action in env.keys.items():
        is_valid = isinstance(actions, spaces.Discrete) and 0 <= action < actions.n
        assert is_valid and key not in ("q", "r", "?"), f"{name}: the key {key!r} stands for {action}"


def play(env: VectorEnv, params: Any, state: Any, key: jax.Array, steps: int) -> dict[str, Any]:
    """Random play in a batch: the values of `VectorEnv.step` by name (`obs`, `final`, `reward`, `terminated`,
    `truncated`), with a leading axis `steps`, and the last `state`."""
    return play_beside([env], params, state, key, steps)[0]


def play_beside(
    batches: Sequence[VectorEnv], params: Any, state: VectorState, key: jax.Array, steps: int
) -> list[dict[str, Any]]:
    """Random play in the first of several batches of one environment, and the results of the same steps in the others.

    Every step starts from the state of the first batch, with one key and one action for all; if a reset policy takes
    episodes from a pool, it is that of `state`.
    **Returns:** for each batch the values of `play`, and `env`, the states of its environments; the last `state` is
    that of the first batch.
    """
    space = batches[0].action_space(params)

    def step(state, t):
        act_key, step_key = jax.random.split(jax.random.fold_in(key, t))
        action = space.sample(act_key)
        results = []
        for batch in batches:
            start = state.replace(pool=state.pool if batch.policy == "pool" else None)
            obs, after, reward, terminated, truncated, info = batch.step(step_key, start, action, params)
            flags = {"reward": reward, "terminated": terminated, "truncated": truncated}
            results.append(({"obs": obs, "final": info["final_observation"], **flags}, after))
        envs = [{**values, "env": after.env} for values, after in results] if len(batches) > 1 else [results[0][0]]
        return results[0][1].replace(pool=state.pool), envs

    state, played = tracing.scan(step, state, jnp.arange(steps))
    return [{"state": state, **played[0]}, *played[1:]]


def check_x64(env: Environment, params: Any, *, num_envs: int = 4, resets: Callable[..., Any] | None = None) -> None:
    """Check that `jax_enable_x64` changes no initial state: observations and states of `num_envs` resets are the same,
    floats within 1e-6. A draw of `jax.random` without a dtype has the width of the setting, and so another value.

    `check_contract` checks types only, without compiling anything.

    **Arguments:** `resets`, jitted `reset` of a batch of keys, if the caller has compiled it.
    """
    resets = resets or jax.jit(jax.vmap(env.reset, in_axes=(0, None)))
    keys = jax.random.split(jax.random.key(0), num_envs)
    narrow = resets(keys, params)
    with jax.enable_x64(True):
        wide = resets(keys, params)
    assert_same(narrow, wide, f"{env.id or type(env).__name__}: with and without x64, resets", atol=1e-6)


def check_stacks(env: Environment, first: Any, played: Mapping[str, Any]) -> None:
    """Check that declared stacks (`Environment.stacked`) are what a replay buffer takes them for: each step drops the
    oldest frame, and an episode begins with its first frame behind copies of it, or zeros.

    **Arguments:** `first`, observations at the start of episodes, leaves `[N, ...]`; `played`, the values of `play`
    from there on."""
    done = np.asarray(played["terminated"] | played["truncated"])
    for part, stack in env.stacked.items():
        start, obs, final = (np.asarray(x[part]) for x in (first, played["obs"], played["final"]))
        before = np.concatenate([start[None], obs[:-1]])
        assert np.array_equal(final[..., :-1], before[..., 1:]), f"{env.id}: {part!r} is no stack of the newest frames"
        begins = np.concatenate([start, obs[done]])
        expected = begins[..., -1:] if stack.fill == "first" else np.zeros_like(begins[..., -1:])
        label = f"{env.id}: {part!r} at the start of an episode is not filled with {stack.fill}"
        assert np.array_equal(begins[..., :-1], np.broadcast_to(expected, begins[..., :-1].shape)), label


def _check_resets(name: str, policies: Sequence[str], played: list[dict[str, Any]], atol: float) -> None:
    """Check that reset policies agree on everything except the episodes that they start.

    From one state, with one key and one action, the reward, the flags and the observation before any reset are the same
    under every policy, and so are the rows that continue.

    **Arguments:** `policies`, of which the first is `none`, and `played`, the values of `play_beside` under each.
    """
    baseline = played[0]
    goes_on = ~(baseline["terminated"] | baseline["truncated"])
    for policy, candidate in zip(policies[1:], played[1:]):
        label = f"{name}: the policies none and {policy}"
        for part in ("reward", "terminated", "truncated"):
            assert_same(baseline[part], candidate[part], f"{label}, {part},", atol)
        assert_same(baseline["obs"], candidate["final"], f"{label}, the observation before a reset,", atol)
        ours, theirs = (_rows((x["obs"], x["env"]), goes_on) for x in (baseline, candidate))
        assert_same(ours, theirs, f"{label}, rows that continue,", atol)


def _check_devices(
    name: str, run: Callable[..., Any], start: VectorState, single: Any, key: Any, devices: int, atol: float
):
    """Check that play is the same on one device, `single`, and with its rows split over `devices`: bit for bit with
    `atol` 0.

    Physics in floating point needs an `atol`: how the compiler fuses products and sums depends on the shape.

    **Raises:** `RuntimeError` if there are fewer devices.
    """
    if len(jax.devices()) < devices:
        raise RuntimeError(f"{devices} devices are needed and {len(jax.devices())} present; see XLA_FLAGS")
    axis = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((devices,), ("rows",), axis, devices=jax.devices()[:devices])
    split, replicated = jax.NamedSharding(mesh, jax.P("rows")), jax.NamedSharding(mesh, jax.P())
    start = VectorState(jax.device_put(start.env, split), jax.device_put(start.pool, replicated))
    sharded = run(start, jax.device_put(key, replicated))
    for leaf in jax.tree.leaves(sharded[0]["state"].env):
        assert leaf.sharding.is_equivalent_to(split, leaf.ndim), f"{name}: play is not split over the devices"
    assert_same(single, sharded, f"{name}: play on one device and on {devices}", atol=atol)


def check(
    env: Environment,
    params: Any,
    *,
    key: jax.Array | None = None,
    steps: int = 8,
    num_envs: int = 8,
    policies: tuple[ResetPolicy, ...] = ("always", "pool", "optimistic"),
    eager: bool = True,
    x64: bool = True,
    devices: int = 0,
    devices_atol: float = 0.0,
) -> None:
    """Check an environment by running it: everything in `check_contract`, and more.

    Random play of `num_envs` rows under `vmap` and `scan` is the same when repeated with the same key; every
    observation is a member of its space; every leaf is finite; one row stepped alone, outside `vmap` and `scan`, is the
    same, and without `jit` too; reset policies agree with `none` on everything except the episodes that they start;
    `jax_enable_x64` changes nothing (`check_x64`).

    Most of the time is compilation, so programs are few: resets of a batch (and the same under x64), play under all
    policies at once (and the same on several devices), and a reset and a step of one row.

    **Arguments:** `key`, for all randomness (default: seed 0); `steps`; `num_envs`, even; `policies` to compare (fewer
    compile faster); `eager`, whether to run without `jit` too, which is slow; `x64`, whether initial states under
    `jax_enable_x64` must equal those of 32 bits (third-party environments may depend on the setting); `devices`, if not
    0, the number of devices to split the rows over, with the same result; `devices_atol`, how far floats may differ
    then, and between reset policies, each of which the compiler fuses differently.
    **Raises:** `AssertionError`; `RuntimeError` if there are fewer devices.
    """
    name = env.id or type(env).__name__
    key = jax.random.key(0) if key is None else key
    check_contract(env, params, policies=("always", "pool", "optimistic", "next_step", "none"))
    resets = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))
    if x64:
        check_x64(env, params, num_envs=num_envs, resets=resets)

    order: tuple[ResetPolicy, ...] = ("pool", "none", *(policy for policy in policies if policy != "pool"))
    batches = [VectorEnv(env, num_envs, policy=p, pool_size=num_envs, reset_ratio=2) for p in order]
    reset_keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(2 * num_envs))
    first, states = resets(reset_keys[:num_envs], params)
    start = VectorState(states, resets(reset_keys[num_envs:], params))
    run = jax.jit(lambda start, key: play_beside(batches, params, start, key, steps))
    everything = run(start, key)
    assert_same(everything, run(start, key), f"{name}: two runs with one key")
    _finite((first, start, everything), name)
    played = everything[0]
    space = env.observation_space(params)
    observations: list[tuple[Any, tuple[int, ...]]] = [(jax.device_get(first), ())]
    observations += [(jax.device_get(played[part]), (t,)) for part in ("final", "obs") for t in range(steps)]
    for batch_obs, index in observations:
        for row in range(num_envs):
            obs = _rows(batch_obs, (*index, row))
            assert space.contains(obs), f"{name}: the observation {[*index, row]} is not in {space}:\n{obs}"
    check_stacks(env, first, jax.device_get(played))
    _check_alone(env, params, name, batches[0], (reset_keys[num_envs - 1], key), first, played, eager)
    baseline, *candidates = (jax.device_get(everything[i]) for i in (1, 0, *range(2, len(order))))
    _check_resets(name, ("none", "pool", *order[2:]), [baseline, *candidates], devices_atol)
    if devices:
        _check_devices(name, run, start, everything, key, devices, devices_atol)


def _check_alone(
    env: Environment,
    params: Any,
    name: str,
    batch: VectorEnv,
    keys: tuple[jax.Array, jax.Array],
    first: Any,
    played: dict[str, Any],
    eager: bool,
) -> None:
    """Check that the last row, reset and stepped outside `vmap` and `scan`, equals that of the batch.

    **Arguments:** `keys`, for the reset of the row and for the play; `first` and `played`, the results of the batch;
    `eager`, whether to run without `jit` too."""
    row = batch.num_envs - 1
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    obs, state = reset(keys[0], params)
    assert_same(obs, _rows(first, row), f"{name}: reset alone and under vmap", atol=1e-6)
    if eager:
        assert_same((obs, state), env.reset(keys[0], params), f"{name}: reset with and without jit", atol=1e-6)
    for t in range(len(played["reward"])):
        act_key, step_key = jax.random.split(jax.random.fold_in(keys[1], t))
        action = batch.action_space(params).sample(act_key)[row]
        arguments = jax.random.fold_in(step_key, row), state, action, params
        result = step(*arguments)
        if eager and t == 0:
            assert_same(result, env.step(*arguments), f"{name}: step with and without jit", atol=1e-6)
        batched = [_rows(played[part], (t, row)) for part in ("final", "reward", "terminated", "truncated")]
        assert_same(
            [result[0], *result[2:5]], batched, f"{name}, step {t}: a step alone and under vmap and scan", atol=1e-5
        )
        state = result[1]
        if result[3] | result[4]:
            break
