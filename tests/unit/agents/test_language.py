"""GLAM's policy, prior and evaluation, on sizes that compile in seconds."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import tracing
from envs_jax.babyai.bot.expert import expert_action
from envs_jax.env import innermost
from llmrl_jax.agents.language import action_logits
from llmrl_jax.core.config import from_json
from llmrl_jax.lm import Candidates, Llama, LlamaConfig, Scores
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.precision import RATIO_BOUNDS, exact_rounding, ratio_bound
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.glam import demo
from llmrl_jax.systems.glam.build import build, grouping, make_world, paddings
from llmrl_jax.systems.glam.config import GLAM, PRESETS, preset
from llmrl_jax.workflows import curriculum
from llmrl_jax.workflows.curriculum import PriorConfig, make_prior, save_prior
from tests.glam import FULL, TINY, observations, program, weights


@pytest.fixture(scope="module")
def tiny():
    return program()


@pytest.fixture(scope="module")
def batch():
    return observations()


def test_nine_actions_are_six_and_three_that_do_nothing(tiny):
    nine = build(replace(TINY, num_actions=9))
    assert nine.env.action_names == (*tiny.env.action_names, "sleep", "do nothing", "think")
    assert "sleep, do nothing, think" in nine.prompt.prompt.units[0].texts[0] or not nine.config.list_actions
    with pytest.raises(ValueError, match="num_actions.*8.*7.*9 adds sleep"):
        build(replace(TINY, num_actions=8))


def test_weights_that_are_trained_are_float32(tiny, batch, tmp_path):
    """Whatever the model computes in: steps of 1e-6 would be lost in bfloat16, and PPO's loop takes no other type."""
    folder = save_prior(tmp_path / "tiny", tiny, weights(FULL)[0]["params"])
    glam = build(replace(TINY, model=str(folder), tune="full", dtype="bfloat16"))
    params, _ = glam.policy.init(jax.random.key(0), batch)
    assert glam.policy.model.dtype == jnp.bfloat16
    assert {x.dtype.name for x in jax.tree.leaves(params)} == {"float32"}


def test_mixed_precision_is_the_models_and_bounds_the_first_ratio_as_bfloat16_does():
    glam = build(replace(TINY, dtype="mixed"))
    policy = glam.policy
    assert glam.learner().compiler_options == exact_rounding(jnp.bfloat16)
    assert build(TINY).learner().compiler_options == {}
    assert (policy.model.dtype, policy.model.matmul_dtype) == (jnp.float32, jnp.bfloat16)
    assert ratio_bound(policy, None) == RATIO_BOUNDS["bfloat16"]


def scores(total, mean, raw):
    total = jnp.asarray([total], jnp.float32)
    zeros = jnp.zeros((1, total.shape[1], 2), jnp.float32)
    return Scores(
        sum=total,
        mean=jnp.asarray([mean], jnp.float32),
        per_word=total / 3,
        log_probs=zeros,
        raw_sum=jnp.asarray([raw], jnp.float32),
        hidden=jnp.zeros((1, 3), jnp.float32),
    )


def test_each_definition_of_the_action_probabilities():
    found = scores([np.log(0.5), np.log(0.25)], [-1.0, -2.0], [3.0, 7.0])
    assert np.allclose(action_logits(found, "sum"), [[np.log(0.5), np.log(0.25)]])
    assert np.allclose(action_logits(found, "mean"), [[-1.0, -2.0]])
    assert np.allclose(action_logits(found, "per_word"), [[np.log(0.5) / 3, np.log(0.25) / 3]])
    assert np.allclose(action_logits(found, "raw_logits"), [[3.0, 7.0]])
    assert np.allclose(action_logits(found, "max_normalised"), [[1.0, 0.5]])


@pytest.mark.parametrize("actions, cap", [(3, 0.576), (6, 0.352), (9, 0.254)])
def test_the_first_released_code_capped_every_probability(actions, cap):
    """At most e / (e + A - 1)."""
    certain = scores([0.0] + [-80.0] * (actions - 1), [0.0] * actions, [0.0] * actions)
    probs = Categorical(action_logits(certain, "max_normalised")).probs
    assert float(probs[0, 0]) == pytest.approx(cap, abs=6e-4)


def test_the_first_released_code_was_uniform_where_all_probabilities_vanish():
    nothing = scores([-200.0, -150.0], [0.0, 0.0], [0.0, 0.0])
    assert np.allclose(action_logits(nothing, "max_normalised"), 0.0)


def test_adapters_are_trained_over_a_base_that_is_not(tiny, batch):
    params, frozen = weights()
    assert set(params) == {"lora", "value"} and set(frozen) == {"params"}

    def total(params):
        distribution, value, _ = tiny.policy.step(params, frozen, batch, (), jnp.zeros(6, bool))
        return jnp.sum(distribution.log_probs[:, 0]) + jnp.sum(value)

    grads = jax.jit(jax.grad(total))(params)
    norms = jax.tree.map(lambda g: float(jnp.abs(g).max()), grads["lora"]["layers"])
    assert norms["self_attn"]["q_proj"]["b"] > 0 and norms["mlp"]["down_proj"]["b"] > 0


def test_step_and_unroll_agree_in_every_bit_that_matters(tiny, batch):
    params, frozen = weights()
    first = jnp.zeros(6, bool)
    step, value, _ = jax.jit(tiny.policy.step)(params, frozen, batch, (), first)
    two = jax.tree.map(lambda x: jnp.stack([x, x]), batch)
    unrolled, values = jax.jit(tiny.policy.unroll)(params, frozen, two, (), jnp.zeros((2, 6), bool))
    assert np.allclose(step.log_probs, unrolled.log_probs[1], atol=1e-6)
    assert np.allclose(value, values[0], atol=1e-6)


def test_full_tuning_trains_every_weight():
    params, frozen = weights(FULL)
    assert set(params) == {"params", "value"} and frozen == {}


def test_the_value_gradient_can_be_kept_out_of_the_model(tiny, batch):
    params, frozen = weights()
    params = {**params, "lora": jax.tree.map(lambda x: x + 0.01, params["lora"])}

    def value(lora, policy):
        return jnp.sum(policy.step({**params, "lora": lora}, frozen, batch, (), jnp.zeros(6, bool))[1])

    def reach(policy):
        grads = jax.jit(jax.grad(lambda lora: value(lora, policy)))(params["lora"])
        return max(float(jnp.abs(g).max()) for g in jax.tree.leaves(grads))

    assert reach(tiny.policy) > 0
    assert reach(replace(tiny.policy, stop_value_gradient=True)) == 0


@pytest.mark.slow
def test_cloning_lowers_the_loss_and_is_saved_as_a_model_folder(tmp_path):
    glam = program(FULL)
    learner = make_prior(PriorConfig(updates=30, batch_size=32, noise=0.2, learning_rate=3e-2), glam)
    state = learner.init(jax.random.key(0))
    state, metrics = jax.jit(lambda s: jax.lax.scan(lambda s, _: learner.update(s), s, None, length=30))(state)
    loss = metrics["loss"]
    assert float(loss[-5:].mean()) < 0.6 * float(loss[0])

    folder = save_prior(tmp_path / "prior", glam, state.params["params"])
    loaded = build(replace(TINY, model=str(folder)))
    obs = observations()
    params, frozen = loaded.policy.init(jax.random.key(9), obs)
    score = jax.jit(loaded.policy.scores)
    fresh = score(params, frozen, obs).sum  # adapters start at zero, so this is the base
    assert np.allclose(fresh, glam.policy.scores(state.params, state.frozen, obs).sum, atol=1e-5)


@pytest.mark.slow
def test_cloning_expects_over_the_noise():
    """Half of the loss is the expert's action and half the mean over all: one number by hand, no draw in it."""
    glam = program(FULL)
    config = PriorConfig(updates=2, batch_size=8, noise=0.5, stride=1)
    learner = make_prior(config, glam)
    before = jax.jit(learner.init)(jax.random.key(0))
    after, metrics = jax.jit(learner.update)(before)

    @jax.jit
    def known(before, after):
        best = jax.vmap(lambda state: expert_action(state, glam.env))(innermost(after.env_state.env))
        return glam.policy.scores(before.params, before.frozen, after.obs).sum, best

    scores, best = map(np.asarray, known(before, after))
    best = np.minimum(best, scores.shape[1] - 1)
    expected = -np.mean(0.5 * np.take_along_axis(scores, best[:, None], 1)[:, 0] + 0.5 * scores.mean(1))
    assert float(metrics["loss"]) == pytest.approx(float(expected), abs=1e-4)
    assert float(metrics["agreement"]) == pytest.approx(float((scores.argmax(1) == best).mean()))


def test_settings_of_a_prior_from_before_it_had_that_name_are_read():
    """As `runs/NAME/imitation/config.json` held them when the class was CloneConfig."""
    saved = {"updates": 60, "batch_size": 512, "stride": 4, "noise": 0.5, "seen_only": False}
    saved |= {"learning_rate": 0.003, "max_grad_norm": 1.0}
    assert from_json(PriorConfig, saved) == PriorConfig()


def test_a_stop_in_imitation_stops_the_run(tmp_path, monkeypatch, capsys):
    def interrupted(learner, run, *, title, **how):
        assert title == "imitation", "RL began after a stop"
        return RunResult(None, 1, 8, 1.0, 1.0, "SIGTERM", tmp_path / "r" / title)

    monkeypatch.setattr(curriculum, "run_training", interrupted)
    run = RunConfig(name="r", out=str(tmp_path), progress="off")
    config = PriorConfig(updates=1, batch_size=8, stride=1)
    assert demo.prior_then_ppo(TINY, config, 16, run, episodes=4) == {"stopped": "SIGTERM"}
    assert not (tmp_path / "r" / "prior").exists()
    assert "Stopped in imitation" in capsys.readouterr().out


@pytest.mark.slow
def test_what_was_interrupted_ends_with_the_same_summary(tmp_path):
    """Stopped after one of three updates and resumed: the prior is found again, and so is the success before RL."""
    run = RunConfig(name="whole", out=str(tmp_path), progress="off")
    config = PriorConfig(updates=2, batch_size=8, stride=1)
    whole = demo.prior_then_ppo(TINY, config, 48, run, episodes=20)
    cut = replace(run, name="cut")
    demo.prior_then_ppo(TINY, config, 16, cut, episodes=20)
    resumed = demo.prior_then_ppo(TINY, config, 48, replace(cut, resume=True), episodes=20)
    for name in ("before", "after", "after_greedy", "steps"):
        assert resumed[name] == whole[name], name


def test_paddings_by_length_change_no_score():
    """`score_widths` is speed alone."""
    plain, sorted_ = (build(replace(TINY, score_rows=2, score_widths=n)) for n in (1, 3))
    assert len(sorted_.policy.widths) == 2 and plain.policy.widths == ()
    obs = observations()
    params, frozen = weights()
    expected = jax.jit(plain.policy.scores)(params, frozen, obs)
    found = jax.jit(sorted_.policy.scores)(params, frozen, obs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, expected)
    with pytest.raises(ValueError, match="score_widths.*-1"):
        build(replace(TINY, score_widths=-1))


ABOUT_135M = LlamaConfig(49152, 576, 1536, 30, 9, 3, max_position_embeddings=2048)
ACTIONS = Candidates([[5, 6], [5, 7], [8, 9, 10], [11], [12], [13]])


@pytest.mark.parametrize(
    ("platform", "changes", "rows", "lengths"),
    [
        ("cpu", {}, 0, 1),
        ("gpu", {}, 16, 4),  # divides 32 prompts of play and minibatches of 64; at least 16
        ("tpu", {"num_envs": 256}, 64, 4),  # a quarter of play
        ("gpu", {"num_envs": 24}, 12, 4),  # minibatches of 48: the largest common divisor up to 16
        ("gpu", {"num_envs": 31}, 0, 1),  # no size but 1 and 31 divides both
        ("gpu", {"num_envs": 1, "minibatches": 1}, 0, 1),  # less work than the launches of a pass
    ],
)
def test_the_device_chooses_groups_and_lengths(monkeypatch, platform, changes, rows, lengths):
    monkeypatch.setattr(tracing, "platform", lambda: platform)
    config = replace(GLAM, ppo=replace(GLAM.ppo, **changes))
    assert grouping(config, None, ABOUT_135M, 498, ACTIONS) == (rows, paddings(498, lengths))


@pytest.mark.slow
def test_play_and_learning_compute_groups_of_one_size(monkeypatch):
    """Of any other size, a device may round sums in another order."""
    shapes, tree = set(), Llama.tree

    def spied(self, tokens, *others):
        shapes.add(tokens.shape)
        return tree(self, tokens, *others)

    monkeypatch.setattr(Llama, "tree", spied)

    def traced(count):
        glam = build(replace(TINY, score_widths=count, ppo=replace(TINY.ppo, num_envs=8, minibatches=1)))
        learner = glam.learner()
        state = jax.eval_shape(learner.init, jax.random.key(0))
        shapes.clear()
        jax.eval_shape(learner.update, state)
        return glam.policy.widths, glam.compiled.max_length, set(shapes)

    widths, longest, found = traced(3)
    assert len(widths) == 2 and found == {(8, width) for width in (*widths, longest)}
    assert traced(1)[2] == {(8, longest), (32, longest)}, "else batches of play and minibatches"


def test_options_name_groups_and_lengths(monkeypatch):
    def chosen(mesh=None, **options):
        return grouping(replace(GLAM, **options), mesh, ABOUT_135M, 498, ACTIONS)

    assert paddings(498, 4) == (125, 249, 374)
    assert chosen(score_widths=2) == (16, (249,))  # a CPU too
    assert chosen(score_rows=8) == (8, ()) and chosen(score_rows=8, score_widths=2) == (8, (249,))
    monkeypatch.setattr(tracing, "platform", lambda: "gpu")
    assert chosen(score_widths=1) == (0, ()) and chosen(score_rows=8) == (8, paddings(498, 4))
    mesh = make_mesh("data=8")
    assert chosen(mesh) == (0, ()), "the mesh's devices are CPUs"
    assert chosen(mesh, score_widths=2) == (16, (249,))
    with pytest.raises(ValueError, match="score_rows.*12.*8.*8"):
        chosen(mesh, score_rows=12, score_widths=2)


@pytest.mark.slow
def test_what_all_prompts_share_is_computed_once_and_changes_nothing():
    """The same scores, values and gradients, in groups too; and PPO's first ratio is 1."""
    config = replace(TINY, history=2, list_actions=True, score_rows=2, score_widths=2)
    glam = program(config)
    head = glam.policy.prefix
    assert glam.tokenizer.decode(head).startswith("Possible action of the agent:")
    obs = observations(config)
    assert (np.asarray(glam.policy.prompts(obs)[0])[:, : len(head)] == np.array(head)).all()
    params, frozen = weights(config)
    params = {**params, "lora": jax.tree.map(lambda x: x + 0.05, params["lora"])}

    def outcome(policy):
        def loss(params):
            distribution, value = policy.act(params, frozen, obs)
            return jnp.sum(distribution.log_probs[:, 1]) + jnp.sum(value**2), (distribution.log_probs, value)

        return jax.jit(jax.grad(loss, has_aux=True))(params)

    (grads, found), (whole_grads, whole) = outcome(glam.policy), outcome(replace(glam.policy, prefix=()))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, whole)
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(whole_grads))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * scale), grads, whole_grads)
    learner = glam.learner()
    _, metrics = jax.jit(lambda key: learner.update(learner.init(key)))(jax.random.key(0))
    assert float(metrics["first_ratio_error"]) < 1e-5
    assert float(metrics["sampling_near_one"]) == 1
    # of the first gradient step alone: later ones have moved
    assert 0 <= float(metrics["sampling_kl"]) < 1e-10 < float(metrics["approx_kl"])


@pytest.mark.slow
def test_gradients_by_length_are_the_same_gradients():
    """Microbatches of rows of similar length, by the form of the policy for it, change speed only."""
    ppo = replace(TINY.ppo, microbatches=2)
    plain, sized = (replace(TINY, ppo=ppo, score_rows=n, score_widths=4 if n else 1) for n in (0, 4))
    policy = program(sized).policy
    chosen = build(replace(TINY, score_widths=4))
    assert chosen.policy.rows == 4 and chosen.ppo == ppo and program(plain).ppo == ppo, "one size, in play and learning"
    bug = build(replace(TINY, score_widths=4, ppo=replace(TINY.ppo, value_broadcast="glam")))
    assert bug.ppo.microbatches == 1, "which compares values of one microbatch"
    assert [bucket.max_prompt_length for bucket in policy.buckets(4).values()] == [*sorted(policy.widths), None]
    assert not policy.buckets(5) and not program(plain).policy.buckets(4)

    def updated(config):
        learner = program(config).learner()
        return jax.jit(lambda key: learner.update(learner.init(key)))(jax.random.key(0))

    (state, metrics), (want, want_metrics) = updated(sized), updated(plain)
    assert float(metrics["first_ratio_error"]) < 1e-5
    for name in ("loss", "policy_loss", "value_loss", "entropy", "grad_norm"):
        assert float(metrics[name]) == pytest.approx(float(want_metrics[name]), rel=1e-4, abs=1e-6), name
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), state.params, want.params)


def test_the_published_values():
    """Carta et al., 2302.02662."""
    ppo = GLAM.ppo
    assert (ppo.num_envs * ppo.num_steps, ppo.epochs, ppo.minibatches) == (1280, 4, 20)
    assert (ppo.learning_rate, ppo.adam_eps, ppo.gamma, ppo.gae_lambda) == (1e-6, 1e-5, 0.99, 0.99)
    assert (ppo.clip_eps, ppo.entropy_coef, ppo.value_loss_coef, ppo.max_grad_norm) == (0.2, 0.01, 0.5, 0.5)
    assert (GLAM.reward_scale, GLAM.history, GLAM.num_actions, GLAM.value_width) == (20.0, 3, 6, 1024)
    assert not ppo.normalize_advantages and ppo.bootstrap_truncation
    assert GLAM.tune == "full"
    lora = PRESETS["glam-lora"]
    assert (lora.tune, lora.ppo.learning_rate) == ("lora", 1e-4)
    assert replace(lora, tune="full", ppo=ppo) == GLAM, "nothing else differs"
    code = PRESETS["glam-code"]
    assert code.scoring == "raw_logits" and code.tune == "full" and code.ppo.value_broadcast == "glam"
    assert not code.ppo.bootstrap_truncation and code.candidate_space == "separate"


def test_where_the_space_before_an_action_goes():
    assert TINY.candidate_space == "healed" and program().compiled.heal
    assert not build(replace(TINY, candidate_space="separate")).compiled.heal


def test_wrong_names_suggest_the_nearest():
    with pytest.raises(KeyError, match="'glam-code'"):
        preset("glam-coed")
    with pytest.raises(KeyError, match="MixedTrainLocal-v0"):
        build(replace(TINY, env="BabyAI-Text/MixedTranLocal-v0"))


def test_sizes_that_do_not_fit_are_refused_before_anything_is_built():
    with pytest.raises(ValueError, match="num_actions.*8.*7"):
        build(replace(TINY, num_actions=8))
    with pytest.raises(ValueError, match=r"embedded\.hidden_size.*16.*embedded\.heads.*3"):
        build(replace(TINY, embedded=replace(TINY.embedded, heads=3)))
    with pytest.raises(ValueError, match=r"46 tokens.*\b10\b"):
        build(replace(TINY, max_prompt=10))


@pytest.mark.parametrize(
    ("env", "missing"),
    [
        ("BabyAI-GoToObjS4-v0", "BabyAI-GoToObjS4-v0'.*'text'"),
        ("CrafterText-v1", "CrafterText-v1'.*'mission'"),
        ("CartPole-v1", "CartPole-v1'.*'text'.*'mission'"),
    ],
)
def test_worlds_without_a_goal_or_a_text_are_refused(env, missing):
    with pytest.raises(TypeError, match=f"{missing}.*BabyAI-Text/.*llmrl envs list BabyAI-Text"):
        build(replace(TINY, env=env))


def test_a_prompt_longer_than_the_models_positions_is_refused(tmp_path):
    import json

    folder = save_prior(tmp_path / "short", program(FULL), weights(FULL)[0]["params"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 20}))
    with pytest.raises(ValueError, match=r"46 tokens.*\b18\b"):
        build(replace(TINY, model=str(folder)))


def test_only_the_first_actions_are_offered():
    env, params = make_world(replace(TINY, num_actions=3))
    assert env.action_names == ("turn left", "turn right", "go forward")
    assert env.action_space(params).n == 3
