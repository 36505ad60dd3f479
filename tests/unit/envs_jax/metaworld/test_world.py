"""Meta-World as an environment on C MuJoCo: options, observations, ends, composite tasks, the cache of scenes."""

from __future__ import annotations

import importlib.machinery
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import metaworld
from envs_jax.metaworld import poses, scene
from envs_jax.metaworld.tasks import COMPOSITES, ENTITIES, TASKS


pytest.importorskip("mujoco")
KEY = jax.random.key(0)
needs_scenes = pytest.mark.skipif(
    importlib.util.find_spec("metaworld") is None, reason="its scenes need the package metaworld"
)


def make(name, **options):
    return envs_jax.make(f"MetaWorld/{name}-v3", **{"backend": "c", **options})


def play(env, params, drawn, steps):
    """Episodes of the expert with given draws `[B, n]`, in one batch: the states and results of every step."""

    def episode(drawn):
        obs, state = env.begin(drawn)

        def body(state, _):
            action = metaworld.expert_action(env, state)
            obs, state, reward, terminated, truncated, info = env.step(KEY, state, action, params)
            return state, (obs, state, reward, terminated, truncated, info["success"])

        return obs, state, jax.lax.scan(body, state, None, length=steps)[1]

    return jax.device_get(jax.jit(jax.vmap(episode))(jnp.asarray(drawn, jnp.float32)))


def corners(name):
    """Two vectors that a reset may draw."""
    low, high = np.array(TASKS[name].low), np.array(TASKS[name].high)
    return [low + 0.3 * (high - low), low + 0.6 * (high - low)]


def test_every_task_has_an_id_and_blocks_in_the_observation():
    assert set(envs_jax.ids("MetaWorld/")) == {f"MetaWorld/{name}-v3" for name in TASKS} and len(TASKS) == 22
    for task in TASKS.values():
        assert all(part.name in ENTITIES for part in task.parts) and len(task.stages) <= len(task.parts)


@needs_scenes
def test_entities_are_blocks_of_the_frame():
    env, params = make("hammer", obs="entities")
    plain, _ = make("hammer")
    drawn = jnp.asarray(corners("hammer")[0], jnp.float32)
    (obs, _), (frame, _) = env.begin(drawn), plain.begin(drawn)
    assert obs.shape == env.observation_space(params).shape == (poses.ENTITY,) == (91,)
    expected = np.zeros(91)
    expected[:4], expected[4:7], expected[70:84] = frame[:4], frame[-3:], frame[4:18]
    np.testing.assert_array_equal(obs, np.float32(expected))


@needs_scenes
def test_the_wall_is_an_entity():
    env, _ = make("reach-wall", obs="entities")
    obs, _ = env.begin(jnp.asarray(corners("reach-wall")[0], jnp.float32))
    np.testing.assert_allclose(obs[49:56], [0.1, 0.75, 0.06, 1, 0, 0, 0], atol=1e-6)
    assert not obs[14:49].any() and not obs[56:].any()


@needs_scenes
def test_resets_draw_apart_and_start_there():
    env, params = make("push")
    obs, state = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(KEY, 64), params)
    puck, goal = np.array(obs[:, 4:6]), np.array(obs[:, -3:-1])
    assert np.all(np.linalg.norm(puck - goal, axis=1) >= 0.149)
    assert np.all(puck >= [-0.1001, 0.5999]) and np.all(puck <= [0.1001, 0.7001]) and puck.std(0).min() > 0.02
    np.testing.assert_array_equal(obs[:, :18], obs[:, 18:36])
    np.testing.assert_allclose(state.start.targets[:, 0], obs[:, -3:], atol=1e-7)


@needs_scenes
def test_success_ends_an_episode_only_if_asked_and_time_truncates_it():
    env, params = make("reach")
    _, _, (_, states, reward, terminated, truncated, success) = play(env, params, corners("reach"), 80)
    assert success.any(1).all() and not success[:, 0].any() and not terminated.any() and not truncated.any()
    assert np.all(reward[success] == 10) and np.all(reward[~success] < 10)
    first = success.argmax(1)
    asked = params.replace(ends_at_success=True, max_steps=int(first.min()))
    state = jax.tree.map(lambda x: x[0, first[0] - 1], states)  # one step before success
    *_, terminated, truncated, info = env.step(KEY, state, metaworld.expert_action(env, state), asked)
    assert bool(terminated) and bool(info["success"]) and bool(truncated)


@needs_scenes
@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_go_on_to_their_second_stage(name):
    """Coffee: the button counts only once the mug is there. Door: it is pulled only once it is unlocked."""
    env, params = make(name)
    steps = 220 if name == "locked-door-open" else 120
    obs, _, (seen, states, reward, *_, success) = play(env, params, corners(name), steps)
    assert success.any(1).all()
    stage, targets = states.stage, states.start.targets
    assert np.all(np.diff(stage, axis=1) >= 0) and not stage[:, 0].any() and stage[:, -1].all()
    later = stage == 1
    np.testing.assert_allclose(seen[..., -3:], np.where(later[..., None], targets[..., 1, :], targets[..., 0, :]))
    np.testing.assert_allclose(obs[:, -3:], targets[:, 0, 0])
    before = np.concatenate([np.zeros((len(stage), 1), int), stage[:, :-1]], axis=1)
    assert reward[before == 0].max() <= 5 <= reward[before == 1].min() and reward.max() <= 10
    assert not success[before == 0].any()
    thing = seen[..., 4:7]
    done = np.abs(thing - targets[..., 0, :])[..., 0] <= 0.02
    if name == "make-coffee":
        done = np.linalg.norm(thing - targets[..., 0, :], axis=-1) <= 0.07
    np.testing.assert_array_equal(stage, np.maximum.accumulate(done, axis=1))
    second = seen[..., 11:14] - targets[..., 1, :]
    near = np.abs(second[..., 1]) <= 0.02 if name == "make-coffee" else np.abs(second[..., 0]) <= 0.08
    np.testing.assert_array_equal(success, near & (before == 1))


@needs_scenes
def test_scenes_are_converted_once_and_then_need_no_package(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scene.load.cache_clear()
    converted = scene.load("reach", "stock")
    (file,) = (tmp_path / "llmrl_jax" / "metaworld").iterdir()
    assert file.name.startswith("reach_v3-stock-3.1.1-") and converted.nmocap == 1
    scene.load.cache_clear()
    monkeypatch.setattr(scene.importlib.util, "find_spec", lambda name: None)
    make("reach")  # from the cache
    assert scene.load("reach", "stock").nq == converted.nq
    with pytest.raises(ModuleNotFoundError, match=r"metaworld==3\.1\.1"):
        make("push")
    scene.load.cache_clear()


def test_another_version_of_the_package_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = importlib.machinery.ModuleSpec("metaworld", None, origin="metaworld/__init__.py")
    monkeypatch.setattr(scene.importlib.util, "find_spec", lambda name: here)
    monkeypatch.setattr(scene.importlib.metadata, "version", lambda name: "3.0.0")
    with pytest.raises(ImportError, match=r"metaworld 3\.0\.0"):
        make("reach")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"obs": "pixels"}, "'pixels'.*'state', 'entities'"),
        ({"backend": "warp"}, "backend 'warp'"),
        ({"geometry": "mesh"}, "'mesh'.*'auto', 'stock', 'proxy'"),
        ({"backend": "mjx", "geometry": "stock"}, "geometry='proxy'.*backend='c'"),
        ({"threads": 0}, "threads"),
        ({"task": "reech"}, "'reech'.*'reach'"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        make("reach", **options)


@needs_scenes
def test_actions_and_worlds_are_checked():
    env, params = make("reach")
    _, state = env.begin(jnp.zeros(6))
    with pytest.raises(ValueError, match=r"\[3\].*MetaWorld/reach-v3.*\[4\]"):
        env.step(KEY, state, jnp.zeros(3), params)
    other, _ = envs_jax.make("CartPole-v1")
    with pytest.raises(TypeError, match="expert_action.*Meta-World.*CartPole-v1.*CartPole"):
        metaworld.expert_action(other, None)


@needs_scenes
def test_pictures_show_the_scene_and_the_target():
    env, _ = make("push", geometry="proxy")
    draws = [(0.0, 0.65, 0.02, x, 0.85, 0.02) for x in (-0.1, 0.1)]
    one, other = (env.render(jax.device_get(env.begin(jnp.array(drawn))[1])) for drawn in draws)
    assert one.shape == (480, 480, 3) and one.dtype == np.uint8
    green = [(p[..., 1].astype(int) - p[..., 0] > 60) & (p[..., 1] > p[..., 2] + 40) for p in (one, other)]
    places = [np.argwhere(mask).mean(axis=0) for mask in green]
    assert all(mask.sum() > 30 for mask in green) and np.abs(places[0] - places[1]).max() > 40
    assert (np.abs(one.astype(int) - other).max(axis=-1) > 30).mean() < 0.02  # all else is the same


@needs_scenes
def test_stock_geometry_is_computed_by_c_on_an_accelerator_too(monkeypatch):
    made = {shape: make("reach", backend="auto", geometry=shape)[0] for shape in ("stock", "auto")}
    assert {shape: env.geometry for shape, env in made.items()} == {"stock": "stock", "auto": "stock"}
    made = {shape: make("reach", backend="auto", geometry=shape)[0] for shape in ("stock", "auto")}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert {shape: env.geometry for shape, env in made.items()} == {"stock": "stock", "auto": "proxy"}
    assert type(made["stock"].physics).__name__ == "PhysicsC" and made["stock"].model.ngeom > 30
