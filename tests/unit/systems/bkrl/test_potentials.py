"""Potentials on windows: of preferences, of goals beside the host's way, of programs; what they are refused for."""

from __future__ import annotations

import dataclasses
import functools
import json
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from llmrl_jax.advice.sandbox import Program, Spec
from llmrl_jax.advice.sandbox.spec import Part
from llmrl_jax.advice.sandbox.stablehlo import lower
from llmrl_jax.advice.sandbox.trace import trace
from llmrl_jax.lm.encoder import HashedEncoder
from llmrl_jax.rl.shaping import NO_ACTION, Window
from llmrl_jax.systems.bkrl import goals, potentials
from llmrl_jax.systems.bkrl.build import observed_parts
from llmrl_jax.systems.bkrl.collect import pad_starts
from llmrl_jax.systems.bkrl.config import GoalsRun, PreferenceModelConfig, WindowConfig
from llmrl_jax.systems.bkrl.goals import (
    GoalPotential,
    Library,
    action_sentence,
    by_phrases,
    embedder,
    exact_potential,
    make_library,
    split_windows,
    unit,
)
from llmrl_jax.systems.bkrl.potentials import ArtifactError, Manifest, RandomPotential, Scaled, fixed_scale, on_windows
from llmrl_jax.systems.bkrl.preference_model import (
    WEIGHTS,
    Encoded,
    Pairs,
    Scorer,
    bradley_terry,
    distil,
    fit,
    make_model,
    save_weights,
)
from llmrl_jax.systems.bkrl.prompts import TEXT, world_of
from llmrl_jax.systems.bkrl.train import load_potential
from tests.bkrl_world import played, world


SMALL = PreferenceModelConfig(width=8, feed_forward=8, hidden=8, epochs=40, batch_size=16, learning_rate=1e-2)


@functools.cache
def model(window=2):
    return make_model(world(), "babyai", SMALL, (), window)


def test_bradley_terry_by_hand():
    first, second = jnp.array([0.0, 2.0, 1.0]), jnp.array([1.0, 0.0, 1.0])
    found = bradley_terry(first, second, jnp.array([1.0, 0.0, 0.5]), 0.0)
    p = np.array([np.exp(1) / (np.exp(1) + 1), np.exp(2) / (np.exp(2) + 1), 0.5])
    np.testing.assert_allclose(found, -np.log(p), rtol=1e-5)
    smooth = bradley_terry(first[:1], second[:1], jnp.array([1.0]), 0.2)
    np.testing.assert_allclose(smooth, -0.8 * np.log(p[0]) - 0.2 * np.log(1 - p[0]), rtol=1e-5)


class PlainScorer(nn.Module):
    """The preference transformer of flax's own layers."""

    @nn.compact
    def __call__(self, vectors, action):
        width, steps = vectors.shape[-1], action.shape[1]
        verbs = nn.Embed(5, width, name="action")(action - NO_ACTION)
        x = jnp.zeros((len(action), 2 * steps + 1, width)).at[:, ::2].set(vectors).at[:, 1::2].set(verbs)
        x += self.param("place", nn.initializers.normal(0.02), x.shape[1:])
        real = jnp.ones(x.shape[:2], bool).at[:, :-1].set(jnp.repeat(action != NO_ACTION, 2, axis=1))
        mask = np.tril(np.ones((2 * steps + 1,) * 2, bool)) & real[:, None, None, :]
        y = nn.LayerNorm(name="norm_0")(x)
        x += nn.MultiHeadDotProductAttention(1, qkv_features=width, name="attention")(y, y, mask=mask)
        y = nn.LayerNorm(name="norm_1")(x)
        x += nn.Dense(width, name="out")(nn.relu(nn.Dense(6, name="hidden")(y)))
        x = nn.LayerNorm(name="norm_2")(x)
        query, key = nn.Dense(width, name="query")(x[:, -1]), nn.Dense(width, name="key")(x)
        scores = jnp.where(real, jnp.einsum("bw,bsw->bs", query, key) / np.sqrt(width), -1e9)
        return jnp.sum(nn.softmax(scores) * nn.Dense(1, name="value")(x)[..., 0], axis=-1)


def test_the_scorer_is_that_of_plain_layers():
    """Also where a window begins before its episode, in values and in gradients."""
    keys = jax.random.split(jax.random.key(0), 3)
    vectors, action = jax.random.normal(keys[0], (3, 5, 8)), jnp.asarray([[1, 0, 3, 2], [-1, -1, 0, 1], [-1] * 4])
    theirs, ours = PlainScorer(), Scorer(4, 4, 8, 6)
    params = jax.jit(theirs.init)(keys[1], vectors, action)
    nothing = Encoded(jnp.zeros((1, 5, 8)), jnp.zeros((1, 5, 16)))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(
        jnp.shape, jax.eval_shape(ours.init, keys[2], nothing, action[:1])
    )
    rng = np.random.default_rng(0)
    # biases, too
    params = jax.tree.map(lambda x: np.asarray(x) + 0.3 * rng.normal(size=x.shape).astype(np.float32), params)

    def score(params):
        return ours.apply(params, ours.apply(params, vectors, method="encoded"), action)

    def summed(how):
        def total(params):
            found = how(params)
            return jnp.sum(found), found

        (_, found), slopes = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
        return found, slopes

    (found, one), (want, other) = summed(score), summed(lambda p: theirs.apply(p, vectors, action))
    np.testing.assert_allclose(found, want, atol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), one, other)


@pytest.mark.slow
def test_a_model_learns_what_decides():
    """The window whose last action is the larger one wins: learned, and told apart in pairs that were kept back."""
    windows = played().sample(np.random.default_rng(0), 512, 2)
    obs = {"image": windows.obs["image"].reshape(256, 2, 3, 7, 7, 3)}
    action = windows.action.reshape(256, 2, 2)
    last = action[:, :, -1]
    wins = np.where(last[:, 1] == last[:, 0], 0.5, last[:, 1] > last[:, 0]).astype(np.float32)
    pairs = Pairs(obs, action, wins)
    few = dataclasses.replace(SMALL, epochs=15)
    order = np.arange(256)
    params, found = fit(model(), pairs.take(order[64:]), few, jax.random.key(0), pairs.take(order[:64]))
    assert found["validation_accuracy"] > 0.9, found
    # before an episode there is no action, and what stands there changes nothing
    vectors = jnp.asarray(np.random.default_rng(1).normal(size=(1, 3, 8)), jnp.float32)
    none = jnp.full((1, 2), NO_ACTION)

    @jax.jit
    def value(vectors):
        encoded = model().scorer.apply({"params": params["scorer"]}, vectors, method="encoded")
        return model().value(params, Window(encoded, none, jnp.zeros(1, jnp.int32)))

    one, other = value(vectors), value(vectors.at[:, :2].set(7.0))
    np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.slow
def test_a_head_is_distilled():
    windows = played().sample(np.random.default_rng(0), 256, 2)
    values = (windows.action[:, -1] == 2).astype(np.float32) * 3 + 5
    held = np.arange(256) % 4 == 0
    few = dataclasses.replace(SMALL, epochs=15)
    seen = {"image": windows.obs["image"]}
    params, found = distil(model(), (seen, windows.action), values, few, jax.random.key(0), held)
    assert found["test_explained"] > 0.75, found
    # its mean stays, so that no more is paid or taken at terminal states than by the exact values
    scores = np.asarray(model().score(params, jax.tree.map(jnp.asarray, seen), jnp.asarray(windows.action)))
    assert abs(scores.mean() - values.mean() / values.std()) < 0.2


def library(encoder):
    names = ("go to the red ball", "turn left", "look for objects")
    windows = played().sample(np.random.default_rng(5), 6, 3)
    led, reached = split_windows(world(), world_of(world()).verbs, windows)
    keys = by_phrases(encoder, world())([a + b for a, b in zip(led, reached)])
    of_key = np.random.default_rng(1).random((6, 3)) < 0.5
    return Library(names, keys, of_key, unit(encoder.encode_texts(names)))


def goal_potential(threshold):
    encoder = HashedEncoder()
    verbs = encoder.encode_texts([action_sentence(verb) for verb in world_of(world()).verbs])
    phrases = encoder.encode_texts(world().captions[TEXT].phrases)
    return GoalPotential(library(encoder), phrases, verbs, 4, threshold)


@pytest.mark.parametrize("threshold", [-1.0, 0.2])
def test_goals_on_the_device_are_those_of_the_host(threshold):
    encoder, windows = HashedEncoder(), played().sample(np.random.default_rng(7), 64, 4)
    led, reached = split_windows(world(), world_of(world()).verbs, windows)
    embed = by_phrases(encoder, world())
    wanted = exact_potential(embed(led), embed(reached), library(encoder), threshold)
    np.testing.assert_allclose(on_windows(goal_potential(threshold), windows), wanted, atol=1e-5)
    assert len(np.unique(np.round(wanted, 4))) > 8


def test_a_library_of_one_situation():
    whole, windows = library(HashedEncoder()), played().sample(np.random.default_rng(7), 8, 4)
    of_key = np.array([[True, False, True]])
    one = dataclasses.replace(whole, keys=whole.keys[:1], of_key=of_key)
    some = goal_potential(-1.0)
    tables = (np.asarray(some.params[name]) for name in ("phrases", "verbs"))
    phrases, verbs = tables
    found = on_windows(GoalPotential(one, phrases, verbs[1:], 4, -1.0), windows)
    led, reached = split_windows(world(), world_of(world()).verbs, windows)
    embed = by_phrases(HashedEncoder(), world())
    np.testing.assert_allclose(found, exact_potential(embed(led), embed(reached), one, -1.0), atol=1e-5)


def test_situations_are_embedded_as_what_is_compared_with_them():
    """With whole texts, a window that was asked about is nearest to itself."""
    encoder, windows = HashedEncoder(), played().sample(np.random.default_rng(5), 6, 3)
    led, reached = split_windows(world(), world_of(world()).verbs, windows)
    texts = [a + b for a, b in zip(led, reached)]
    for kind, wanted in (
        ("phrases", by_phrases(encoder, world())(texts)),
        ("whole", unit(encoder.encode_texts([". ".join(text) for text in texts]))),
    ):
        found = make_library(texts, [["a goal"]] * 6, embedder(kind, encoder, world()), encoder)
        np.testing.assert_allclose(found.keys, wanted, atol=1e-6)


def test_words_fit_rooms_of_any_size():
    """A larger room has longer texts, of the same phrases."""
    small, large = world(), envs_jax.make("BabyAI-Text-GoToLocal-RedBall-S30")[0]
    about = potentials.observation_spec(small, (TEXT,))
    made = Manifest("bk-goal", "babyai", about, tuple(small.action_names), 4, 1.0, "m", "p", "d", {})
    assert small.observation_space(None).spaces[TEXT].shape != large.observation_space(None).spaces[TEXT].shape
    potentials.check_fits(made, large, "x")
    other = dataclasses.replace(made, observation={TEXT: ["phrases", "0" * 64]})
    with pytest.raises(ArtifactError, match="x reads 'text'"):
        potentials.check_fits(other, large, "x")


def test_a_run_keeps_its_potential(saved, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    potentials.pin(run, saved)
    potentials.pin(run, saved)  # a resume
    made = potentials.load_manifest(saved)
    potentials.save_manifest(saved, dataclasses.replace(made, report={"usd": 1.0}))
    potentials.pin(run, saved)  # the same potential
    potentials.save_manifest(saved, dataclasses.replace(made, scale=2.0))
    with pytest.raises(ArtifactError, match="another potential"):
        potentials.pin(run, saved)


def test_goals_at_the_start_of_an_episode():
    """Where nothing led here, the situations are looked up by what is seen, not in the order of the library."""
    windows = pad_starts(played().sample(np.random.default_rng(7), 40, 4), np.arange(40) % 5)
    assert (windows.action[4::5] == NO_ACTION).all() and (windows.action[::5] != NO_ACTION).all()
    assert (windows.obs[TEXT][4::5] == windows.obs[TEXT][4::5, -1:]).all()
    encoder = HashedEncoder()
    led, reached = split_windows(world(), world_of(world()).verbs, windows)
    book = world().captions[TEXT]
    newest = [book.phrases_of(row) for row in windows.obs[TEXT][:, -1]]
    assert led[4::5] == reached[4::5] == newest[4::5]
    assert reached[3] == [action_sentence(world_of(world()).verbs[windows.action[3, -1]]), *newest[3]]
    embed = by_phrases(encoder, world())
    wanted = exact_potential(embed(led), embed(reached), library(encoder), -1.0)
    potential = goal_potential(-1.0)
    np.testing.assert_allclose(on_windows(potential, windows), wanted, atol=1e-5)
    for name, axis in (("keys", 1), ("of_key", 0)):
        potential.params[name] = np.flip(potential.params[name], axis)
    np.testing.assert_allclose(on_windows(potential, windows), wanted, atol=1e-5)


def test_a_head_is_fitted_to_starts_of_episodes_too(monkeypatch):
    fitted = {}

    def distil(model, windows, values, config, key, held):
        fitted.update(obs=windows[0], action=windows[1], values=values)
        return {}, {}

    monkeypatch.setattr(goals, "distil", distil)
    encoder = HashedEncoder()
    asked = types.SimpleNamespace(env=world(), world=world_of(world()), data=played(), validation=np.array([0]))
    config = GoalsRun(WindowConfig(window=4), texts="whole", distilled=64, threshold=-1.0)
    goals._distilled(config, asked, library(encoder), encoder)
    missing = (fitted["action"] == NO_ACTION).sum(1)
    assert (missing[:-8] == 0).all() and missing[-8:].tolist() == [1, 2, 3, 4] * 2
    start = fitted["obs"]["image"][-1]
    assert (start == start[-1]).all()
    windows = pad_starts(played().sample(np.random.default_rng(1), 64, 4), missing)
    np.testing.assert_array_equal(fitted["obs"]["image"], windows.obs["image"])
    embed = embedder("whole", encoder, world())
    led, reached = split_windows(world(), asked.world.verbs, windows)
    np.testing.assert_allclose(fitted["values"], exact_potential(embed(led), embed(reached), library(encoder), -1.0))


def test_a_random_potential_has_its_seed_and_is_scaled():
    windows = played().sample(np.random.default_rng(0), 256, 0)
    one, same, other = (on_windows(RandomPotential(world(), seed), windows) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.9
    potential = RandomPotential(world(), 0)
    scale, about = fixed_scale(potential, windows)
    assert about["std"] == pytest.approx(one.std(), rel=1e-4)
    assert on_windows(Scaled(potential, scale), windows).std() == pytest.approx(1, rel=1e-4)


def test_a_constant_potential_says_nothing():
    class Constant(RandomPotential):
        def value(self, params, window):
            return jnp.full(window.action.shape[0], 2.0)

    with pytest.raises(ValueError, match=r"\b2 .*32 collected"):
        fixed_scale(Constant(world(), 0), played().sample(np.random.default_rng(0), 32, 0))


@pytest.fixture
def saved(tmp_path):
    """A potential of preferences with random weights, on disk."""
    some = model()
    some.params = some.init(jax.random.key(1), jax.tree.map(lambda x: jnp.asarray(x[:1]), played().obs))
    save_weights(tmp_path / WEIGHTS, some.params)
    about = Manifest(
        kind="bk-pref",
        family="babyai",
        observation=potentials.observation_spec(world(), observed_parts(world(), "babyai")),
        actions=tuple(world().action_names),
        window=2,
        scale=3.0,
        model="m",
        prompt="p",
        data="d",
        files={WEIGHTS: ""},
        options=dataclasses.asdict(SMALL),
    )
    potentials.save_manifest(tmp_path, about)
    return tmp_path


def test_what_is_loaded_is_what_was_saved(saved):
    windows = played().sample(np.random.default_rng(0), 32, 2)
    found = load_potential(saved, world(), "bk-pref")
    np.testing.assert_allclose(on_windows(found, windows), 3 * on_windows(model(), windows), rtol=1e-5)
    assert found.window == 2 and found.reads == ("image",)


def test_files_of_another_model_are_refused(saved, tmp_path):
    """Also where a new manifest has their hash."""
    about, wide = potentials.load_manifest(saved), dataclasses.replace(SMALL, width=16)
    potentials.save_manifest(saved, dataclasses.replace(about, options=dataclasses.asdict(wide)))
    with pytest.raises(ArtifactError, match="preference_model.safetensors.*encoder/"):
        load_potential(saved, world(), "bk-pref")
    some = library(HashedEncoder())
    verbs = np.zeros((7, some.keys.shape[1]), np.float32)
    phrases = np.zeros((len(world().captions[TEXT]), some.keys.shape[1]), np.float32)
    tables = {"keys": some.keys, "of_key": some.of_key, "goals": some.vectors, "phrases": phrases, "verbs": verbs}
    words = potentials.observation_spec(world(), (TEXT,))
    files = {goals.GOALS: "", goals.TABLES: ""}
    options = {"threshold": 0.0, "head": None}
    about = dataclasses.replace(about, kind="bk-goal", observation=words, window=4, files=files, options=options)
    for names, match in ((["a", "b", "c"], None), (["a", "b"], "goals.safetensors.*goals.json")):
        (tmp_path / goals.GOALS).write_text(json.dumps({"goals": names}))
        goals.save_file({name: np.ascontiguousarray(x) for name, x in tables.items()}, tmp_path / goals.TABLES)
        potentials.save_manifest(tmp_path, about)
        if match is None:
            assert load_potential(tmp_path, world(), "bk-goal").window == 4
            continue
        with pytest.raises(ArtifactError, match=match):
            load_potential(tmp_path, world(), "bk-goal")


def test_artifacts_that_do_not_fit_are_refused(saved):
    load = lambda env=None, kind="bk-pref": load_potential(saved, env or world(), kind)  # noqa: E731
    with pytest.raises(ArtifactError, match="bk-pref.*bk-code.*--alg bk-pref"):
        load(kind="bk-code")
    with pytest.raises(ArtifactError, match="babyai.*Crafter-Text-Reward.*crafter"):
        load(envs_jax.make("Crafter-Text-Reward")[0])
    weights = (saved / WEIGHTS).read_bytes()
    (saved / WEIGHTS).write_bytes(weights[:-9])
    with pytest.raises(ArtifactError, match=r"preference_model\.safetensors.*cut"):
        load()
    (saved / WEIGHTS).unlink()
    with pytest.raises(ArtifactError, match=r"lacks preference_model\.safetensors"):
        load()
    (saved / WEIGHTS).write_bytes(weights)
    file = saved / potentials.MANIFEST
    whole = file.read_text()
    file.write_text(whole.replace('"scale": 3.0', '"scale": 4.0'))
    with pytest.raises(ArtifactError, match=r"potential\.json.*checksum"):
        load()
    file.write_text(whole[:-30])
    with pytest.raises(ArtifactError, match=r"potential\.json.*cut"):
        load()
    values = json.loads(whole)
    values["manifest"]["format"] = 9
    file.write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match="format 9"):
        load()
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"`llmrl bkrl code`.*potential\.json"):
        load()


def test_a_program_fits_its_manifest(tmp_path):
    """Both are hashed, and a file of another potential may have taken the place of one, with a new manifest."""
    source = "def compute_potential(obs, past_obs, past_actions):\n    return obs['image'][3, 5, 0] * 1.0, {}\n"
    traced = trace(source, Spec((Part("image", (7, 7, 3), "uint8"),), 2))
    version = jax.export.maximum_supported_calling_convention_version
    Program(lower(traced), version, source, traced.spec, (), 10.0, {}).save(tmp_path / "program.json")
    observation, actions = potentials.observation_spec(world(), ("image",)), tuple(world().action_names)
    about = Manifest("bk-code", "babyai", observation, actions, 2, 3.0, "m", "p", "d", {"program.json": ""})
    potentials.save_manifest(tmp_path, about)
    windows = played().sample(np.random.default_rng(0), 32, 2)
    found = on_windows(load_potential(tmp_path, world(), "bk-code"), windows)
    np.testing.assert_allclose(found, 3 * windows.obs["image"][:, -1, 3, 5, 0].astype(float))
    potentials.save_manifest(tmp_path, dataclasses.replace(about, window=5))
    with pytest.raises(ArtifactError, match="program.json.*{'image': .7, 7, 3.}.*2"):
        load_potential(tmp_path, world(), "bk-code")


def test_other_shapes_are_refused(saved):
    found = potentials.load_manifest(saved)
    for change, match in (
        ({"observation": {"picture": [[3], "uint8"]}}, "'picture'"),
        ({"observation": {"image": [[5, 5, 3], "uint8"]}}, r"'image'.*uint8\[5, 5, 3\]"),
        ({"actions": ("left",)}, "1 actions"),
    ):
        with pytest.raises(ArtifactError, match=match):
            potentials.check_fits(dataclasses.replace(found, **change), world(), saved)
