"""Each offline algorithm's targets and losses against NumPy, and one whole step of it."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl import prdc
from llmrl_jax.rl.actors import init_mlp, mlp, mlp_on_concat
from llmrl_jax.rl.awac import AWAC, AWACConfig
from llmrl_jax.rl.bc import BC, BCConfig, cloning_loss
from llmrl_jax.rl.bcq import BCQ, BCQConfig
from llmrl_jax.rl.cql import CQL, CQLConfig, proposed
from llmrl_jax.rl.discrete_bcq import DiscreteBCQ, DiscreteBCQConfig
from llmrl_jax.rl.discrete_cql import DiscreteCQL, DiscreteCQLConfig
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.gradient import traced_floats
from llmrl_jax.rl.iql import IQL, IQLConfig
from llmrl_jax.rl.offline import Context, Frozen
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.prdc import PRDC, PRDCConfig
from llmrl_jax.rl.td3_bc import TD3BC, TD3BCConfig


CONTINUOUS, DISCRETE = ActionKind.box(-1.0, 1.0, 2), ActionKind(3)
ROWS, N, GAMMA, TAU = 4, 3, 0.9, 0.25


def batch(actions):
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=(ROWS, N)), jnp.float32) for _ in range(2))
    action = jnp.array([0, 2, 1, 2]) if actions.discrete else jnp.asarray(rng.uniform(-1, 1, (ROWS, 2)), jnp.float32)
    return Batch(x, action, jnp.array([1.0, -1.0, 0.5, 2.0]), y, jnp.array([False, True, False, False]))


SMALL = {"hidden": (5,), "batch_size": ROWS}


def small(config, **changes):
    names = {"gamma": GAMMA, "tau": TAU} | SMALL | changes
    return config(**{name: x for name, x in names.items() if hasattr(config, name)})


@functools.cache
def begun(kind, config, actions):
    """A method, its networks with targets of their own, the batch, and the results of one step of count 0."""
    method = kind(config, actions)
    rows, hparams = batch(actions), traced_floats(config)
    trained = jax.jit(method.init)(jax.random.key(0), rows, hparams)
    moved = jax.tree.map(lambda x: 0.5 * x + 0.1, trained.target)
    trained = trained.replace(target=moved)
    frozen = Frozen((), (), jnp.zeros(N), jnp.ones(N))
    context = Context(jax.random.key(1), hparams, jnp.int32(0), frozen)
    after, metrics = jax.jit(method.step)(trained, rows, context)
    return method, trained, rows, context, after, {name: float(x) for name, x in metrics.items()}


# --- NumPy ------------------------------------------------------------------------------------------------------------


def net(layers, x, member=None):
    """An MLP, or a member of an ensemble, in float64."""
    x = np.asarray(x, np.float64)
    for i, layer in enumerate(layers):
        kernel, bias = (np.asarray(layer[name], np.float64) for name in ("kernel", "bias"))
        if member is not None:
            kernel, bias = kernel[member], bias[member]
        x = (np.maximum(x, 0) if i else x) @ kernel + bias
    return x


def critics(params, x, action=None):
    """`[K, B]` for given continuous actions, `[K, B, A]` of discrete ones."""
    count = np.asarray(params[0]["bias"]).shape[0]
    if action is None:
        return np.stack([net(params, x, k) for k in range(count)])
    joined = np.concatenate([x, action], axis=-1)
    return np.stack([net(params, joined, k)[..., 0] for k in range(count)])


def pick(q, action):
    return np.take_along_axis(q, np.broadcast_to(np.asarray(action)[..., None], (*q.shape[:-1], 1)), -1)[..., 0]


def targets(rows, value, gamma=GAMMA):
    return np.asarray(rows.reward) + gamma * np.where(rows.terminated, 0, value)


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def log_normal(x, mean, log_std):
    return (-0.5 * ((x - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)).sum(-1)


def huber(error):
    size = np.abs(error)
    return np.where(size < 1, 0.5 * size**2, size - 0.5)


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), b, rtol=2e-4, atol=2e-5)


def followed(trained, after, name, tau=TAU):
    """Return whether a target network made a step of `tau` towards its network after that one's own step."""
    wanted = jax.tree.map(lambda t, p: t + tau * (p - t), trained.target[name], after.params[name])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after.target[name], wanted)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), trained.params[name], after.params[name])
    assert max(jax.tree.leaves(moved)) > 0


# --- networks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outputs", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(9, marks=pytest.mark.slow)]
)
def test_networks_side_by_side_are_networks_of_joined_inputs(outputs):
    layers = init_mlp(jax.random.key(0), 5, (4,), outputs)
    rng = np.random.default_rng(1)
    x, few, many = rng.normal(size=(6, 3)), rng.normal(size=(6, 2)), rng.normal(size=(6, 7, 2))
    x, few, many = (jnp.asarray(a, jnp.float32) for a in (x, few, many))
    joined = np.concatenate([x, few], -1)
    close(mlp(layers, jnp.asarray(joined)), net(layers, joined))
    close(mlp_on_concat(layers, x, few), net(layers, joined))
    repeated = np.broadcast_to(np.asarray(x)[:, None], (6, 7, 3))
    close(mlp_on_concat(layers, x, many), net(layers, np.concatenate([repeated, many], -1)))
    one = init_mlp(jax.random.key(0), 5, (4, 4), outputs)
    bound = 1 / np.sqrt(5)
    assert np.abs(one[0]["kernel"]).max() <= bound and np.abs(one[0]["kernel"]).max() > 0.7 * bound


# --- behavioural cloning ----------------------------------------------------------------------------------------------


def test_bc_by_hand():
    _, trained, rows, _, after, metrics = begun(BC, small(BCConfig, learning_rate=0.01), CONTINUOUS)
    close(metrics["actor_loss"], np.mean((np.tanh(net(trained.params["actor"], rows.obs)) - rows.action) ** 2))
    change = jax.tree.map(lambda a, b: np.abs(a - b), trained.params["actor"], after.params["actor"])
    np.testing.assert_allclose(change[-1]["bias"], 0.01, rtol=1e-3)  # Adam's first step is the step size
    for beta_on in ("logits", "log_probs"):
        _, trained, rows, _, _, metrics = begun(BC, small(BCConfig, beta=0.3, beta_on=beta_on), DISCRETE)
        close(metrics["actor_loss"], cloning(net(trained.params["actor"], rows.obs), rows.action, 0.3, beta_on))
    with pytest.raises(ValueError, match=r"bc\.beta_on.*'probs'.*logits, log_probs"):
        BCConfig(beta_on="probs")


def cloning(logits, action, beta, beta_on):
    log_probs = log_softmax(logits)
    return -pick(log_probs, action).mean() + beta * ((logits if beta_on == "logits" else log_probs) ** 2).mean()


def cloned(action, count, beta_on):
    """The probabilities of the policy of least loss for a state with these actions in the data, `[A]`."""

    def loss(logits):
        rows = Categorical(jnp.broadcast_to(logits, (len(action), count)))
        return cloning_loss(rows, jnp.asarray(action), 0.5, beta_on)

    logits, _ = jax.lax.scan(lambda x, _: (x - jax.grad(loss)(x), None), jnp.zeros(count), None, 2000)
    return np.asarray(jax.nn.softmax(logits))


def test_the_optimum_of_cloning_by_hand():
    """40 actions, of which the data have one, `beta` 0.5. Logits: the gradient is `p - e_1 + z / 40`, so that of the
    first is `40 (1 - p)` and that of the others `-40 (1 - p) / 39`; `p` is where these logits have it."""
    low, high = (1 / (1 + 39 * np.exp(-40 * (1 - p) * (1 + 1 / 39))) - p for p in (0.865, 0.8655))
    assert low > 0 > high
    assert cloned([0], 40, "logits")[0] == pytest.approx(0.8652, abs=1e-3)
    # log-probabilities l: the gradient of the penalty is (l - p sum l) / 40, so p - e_1 + (l - p sum l) / 40 = 0
    probs = cloned([0], 40, "log_probs")
    assert probs[0] == pytest.approx(0.214, abs=2e-3)
    log_probs = np.log(probs)
    np.testing.assert_allclose(probs - np.eye(40)[0] + (log_probs - probs * log_probs.sum()) / 40, 0, atol=1e-5)


def test_likely_actions_of_the_data_depend_on_what_is_penalised():
    """Actions with the shares 0.7, 0.2 and 0.1 of six: an action may be chosen from 0.3 of the largest on."""
    action = [0] * 7 + [1] * 2 + [2]
    for beta_on, count in (("logits", 2), ("log_probs", 6)):
        probs = cloned(action, 6, beta_on)
        assert (probs / probs.max() > DiscreteBCQConfig().flexibility).sum() == count


# --- IQL --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "actions", [CONTINUOUS, pytest.param(DISCRETE, marks=pytest.mark.slow)], ids=["continuous", "discrete"]
)
def test_iql_by_hand(actions):
    """V makes its step first; the targets of Q and the weights of the actor read the new V (algorithm 1)."""
    config = small(IQLConfig, expectile=0.8, beta=2.0, max_weight=1.1, actor_decay_steps=100)
    method, trained, rows, _, after, metrics = begun(IQL, config, actions)
    p, t = trained.params, trained.target

    def q(params):
        given = () if actions.discrete else (rows.action,)
        found = critics(params, rows.obs, *given)
        return pick(found, rows.action) if actions.discrete else found

    best = q(t["critic"]).min(0)
    error = best - net(p["value"], rows.obs)[:, 0]
    close(metrics["value_loss"], np.mean(np.where(error < 0, 0.2, 0.8) * error**2))
    value, next_value = (net(after.params["value"], x)[:, 0] for x in (rows.obs, rows.next_obs))
    advantage = best - value
    assert np.abs(advantage - error).max() > 1e-3, "the step of V shows"
    close(metrics["advantage_mean"], advantage.mean())
    wanted = targets(rows, next_value)
    close(metrics["target_mean"], wanted.mean())
    close(metrics["critic_loss"], np.mean((q(p["critic"]) - wanted) ** 2))
    exponent = np.minimum(np.exp(2.0 * advantage), 1.1)
    assert exponent.max() == 1.1 and exponent.min() < 1.1, "one weight is limited, one is not"
    if actions.discrete:
        log_prob = pick(log_softmax(net(p["actor"], rows.obs)), rows.action)
    else:
        log_prob = log_normal(rows.action, np.tanh(net(p["actor"]["mean"], rows.obs)), np.zeros(2))
    close(metrics["actor_loss"], -np.mean(exponent * log_prob))
    followed(trained, after, "critic")
    np.testing.assert_allclose(
        [float(method.actor_factor(jnp.int32(n))) for n in (0, 50, 100, 200)], [1, 0.5, 0, 0], atol=1e-6
    )


@pytest.mark.parametrize(
    "raw, log_std",
    [(-9.0, -5.0), pytest.param(0.0, 0.0, marks=pytest.mark.slow), pytest.param(9.0, 2.0, marks=pytest.mark.slow)],
)
def test_iql_bounds_its_deviation_as_its_authors_do(raw, log_std):
    actor = IQL(small(IQLConfig), CONTINUOUS).actor
    params = actor.init(jax.random.key(0), N)
    close(params["log_std"], np.zeros(2))
    found = actor.distribution({**params, "log_std": jnp.full(2, raw)}, jnp.zeros((1, N)))
    close(found.log_std, np.full((1, 2), log_std))


# --- TD3+BC -----------------------------------------------------------------------------------------------------------


def test_td3_bc_by_hand():
    """The noise of targets is clipped to a constant, which makes them computable; the actor learns in every second
    step, and the target networks with it."""
    config = small(TD3BCConfig, alpha=1.5, policy_noise=1e6, noise_clip=0.3)
    method, trained, rows, context, after, metrics = begun(TD3BC, config, CONTINUOUS)
    p, t = trained.params, trained.target
    noise = 0.3 * np.sign(jax.random.normal(context.key, (ROWS, 2)))
    action = np.clip(np.tanh(net(t["actor"], rows.next_obs)) + noise, -1, 1)
    wanted = targets(rows, critics(t["critic"], rows.next_obs, action).min(0))
    close(metrics["target_mean"], wanted.mean())
    close(metrics["critic_loss"], ((critics(p["critic"], rows.obs, rows.action) - wanted) ** 2).mean(1).sum())
    jax.tree.map(np.testing.assert_array_equal, (p["actor"], t), (after.params["actor"], after.target))  # step 1
    later, metrics = jax.jit(method.step)(after, rows, context.replace(count=jnp.int32(1)))
    followed(after, later, "actor")
    followed(after, later, "critic")
    action = np.tanh(net(p["actor"], rows.obs))
    q = critics(later.params["critic"], rows.obs, action)[0]
    imitation = np.mean((action - rows.action) ** 2)
    close(metrics["bc_loss"], imitation)
    close(metrics["actor_loss"], imitation - 1.5 * q.mean() / np.abs(q).mean())


# --- PRDC -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block, parts",
    [(5, 2), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((3, 128), (8192, 128), (8192, 2)))],
)
def test_prdc_imitates_the_nearest_recorded_pair(block, parts, monkeypatch):
    monkeypatch.setattr(prdc, "PARTS", parts)
    config = small(PRDCConfig, beta=1.7, block=block)
    method, rng = PRDC(config, CONTINUOUS), np.random.default_rng(4)
    sets = [(rng.normal(size=(n, N)), rng.uniform(-1, 1, (n, 2))) for n in (11, 5)]

    def steps(x, action):
        obs, flags = {"vector": jnp.asarray(x, jnp.float32)}, jnp.zeros(len(x), bool)
        return Transitions(obs, jnp.asarray(action, jnp.float32), jnp.zeros(len(x)), obs, flags, flags)

    sizes = jnp.int32(11), jnp.int32(4)  # the last one is padding
    frozen = Frozen(tuple(steps(*one) for one in sets), (), jnp.zeros(N), jnp.ones(N), sizes)
    context = Context(jax.random.key(0), traced_floats(config), jnp.int32(0), frozen)
    rows, action = batch(CONTINUOUS), rng.uniform(-1, 1, (ROWS, 2))
    found = jax.jit(method.imitated_action)(jnp.asarray(action, jnp.float32), rows, context)
    x, known = (np.concatenate([one[i] for one in sets])[:15] for i in range(2))
    pairs = np.concatenate([1.7 * x, known], 1)
    asked = np.concatenate([1.7 * np.asarray(rows.obs), action], 1)
    nearest = np.linalg.norm(asked[:, None] - pairs, axis=-1).argmin(1)
    close(found, known[nearest])
    assert len(set(nearest)) > 1 and not np.allclose(known[nearest], rows.action)


# --- AWAC -------------------------------------------------------------------------------------------------------------


def test_awac_by_hand_with_discrete_actions():
    config = small(AWACConfig, temperature=0.5)
    _, trained, rows, _, after, metrics = begun(AWAC, config, DISCRETE)
    p, t = trained.params, trained.target

    def value(critic, x):
        return (np.exp(log_softmax(net(p["actor"], x))) * critics(critic, x).min(0)).sum(-1)

    wanted = targets(rows, value(t["critic"], rows.next_obs))
    close(metrics["target_mean"], wanted.mean())
    close(metrics["critic_loss"], ((pick(critics(p["critic"], rows.obs), rows.action) - wanted) ** 2).mean(1).sum())
    now = after.params["critic"]
    advantage = pick(critics(now, rows.obs), rows.action).min(0) - value(now, rows.obs)
    weight = ROWS * np.exp(log_softmax(advantage / 0.5))
    close(metrics["weight_max"], weight.max())
    close(metrics["actor_loss"], -np.mean(weight * pick(log_softmax(net(p["actor"], rows.obs)), rows.action)))
    followed(trained, after, "critic")


@pytest.mark.slow
def test_awac_with_continuous_actions_takes_means_over_its_own():
    config = small(AWACConfig, action_samples=400)
    method, trained, rows, context, _, metrics = begun(AWAC, config, CONTINUOUS)
    mean = np.tanh(net(trained.params["actor"]["mean"], rows.obs))
    assert np.isfinite(metrics["actor_loss"])
    found = method.actor.distribution(trained.params["actor"], rows.obs)
    close(found.mean, mean)
    close(found.log_std, -3.0)  # in the middle of -6 and 0
    drawn = np.random.default_rng(0).normal(mean[:, None], np.exp(-3.0), (ROWS, 4000, 2)).clip(-1, 1)
    many = np.broadcast_to(np.asarray(rows.obs)[:, None], (ROWS, 4000, N))
    wanted = critics(trained.params["critic"], many, drawn).min(0).mean(1)
    value = method.value(trained.params["actor"], trained.params["critic"], rows.obs, jax.random.key(3), 400)
    np.testing.assert_allclose(value, wanted, atol=5e-3)


# --- CQL --------------------------------------------------------------------------------------------------------------


def test_cql_by_hand():
    config = small(
        CQLConfig, action_samples=2, initial_temperature=0.5, initial_alpha=2.0, threshold=1.0, conservative_weight=3.0,
        alpha_learning_rate=0.01, temperature_learning_rate=0.02,
    )  # fmt: skip
    method, trained, rows, context, after, metrics = begun(CQL, config, CONTINUOUS)
    p, t = trained.params, trained.target
    mode = np.tanh(net(p["actor"], rows.next_obs)[:, :2])
    wanted = targets(rows, critics(t["critic"], rows.next_obs, mode).min(0))
    close(metrics["target_mean"], wanted.mean())
    proposal_key, actor_key = jax.random.split(context.key)
    actions, log_density = (np.asarray(x) for x in proposed(method.actor, p["actor"], rows, proposal_key, 2))
    assert actions.shape == (ROWS, 6, 2) and np.abs(actions).max() <= 1
    np.testing.assert_allclose(log_density[:, 4:], np.log(0.25), rtol=1e-6)  # uniform over an area of 4
    for s, x in ((0, rows.obs), (3, rows.next_obs)):  # of the policy: the change of variables of tanh
        mean, log_std = np.split(net(p["actor"], x), 2, -1)
        raw = np.arctanh(actions[:, s])
        close(log_density[:, s], log_normal(raw, mean, log_std) - np.log(1 - actions[:, s] ** 2).sum(-1))
    many = np.broadcast_to(np.asarray(rows.obs)[:, None], (ROWS, 6, N))
    weighted = critics(p["critic"], many, actions) - log_density
    data = critics(p["critic"], rows.obs, rows.action)
    gap = (np.log(np.exp(weighted).sum(-1)) - data).mean(1)
    close(metrics["gap"], gap.mean())
    excess = 3.0 * (gap - 1.0)
    alpha = np.exp(np.log(2.0) + 0.01 * np.sign(excess.sum()))  # a first step of Adam towards a larger alpha excess
    close(metrics["alpha"], alpha)
    td = ((data - wanted) ** 2).mean(1).sum()
    close(metrics["td_loss"], td)
    close(metrics["critic_loss"], td + (alpha * excess).sum())
    action, log_prob = (np.asarray(x) for x in method.actor.sample(p["actor"], rows.obs, actor_key))
    temperature = np.exp(np.log(0.5) + 0.02 * np.sign(log_prob.mean() - 2.0))  # the wanted entropy is -2
    close(metrics["temperature"], temperature)
    q = critics(after.params["critic"], rows.obs, action).min(0)
    close(metrics["actor_loss"], np.mean(temperature * log_prob - q))
    followed(trained, after, "critic")


def test_discrete_cql_by_hand():
    config = small(DiscreteCQLConfig, alpha=3.0, critics=2, target_every=2, learning_rate=0.01)
    method, trained, rows, context, after, metrics = begun(DiscreteCQL, config, DISCRETE)
    p, t = trained.params["critic"], trained.target["critic"]
    best = critics(p, rows.next_obs).mean(0).argmax(-1)
    wanted = targets(rows, pick(critics(t, rows.next_obs), best).min(0))
    close(metrics["target_mean"], wanted.mean())
    every = critics(p, rows.obs)
    chosen = pick(every, rows.action)
    td, gap = huber(chosen - wanted).mean(1).sum(), (np.log(np.exp(every).sum(-1)) - chosen).mean(1).sum()
    close([metrics["td_loss"], metrics["gap"], metrics["critic_loss"]], [td, gap, td + 3 * gap])
    jax.tree.map(np.testing.assert_array_equal, trained.target, after.target)
    later, _ = jax.jit(method.step)(after, rows, context.replace(count=jnp.int32(1)))
    jax.tree.map(np.testing.assert_array_equal, later.params["critic"], later.target["critic"])
    np.testing.assert_array_equal(method.act(trained.params, rows.obs).mode(), every.mean(0).argmax(-1))


# --- BCQ --------------------------------------------------------------------------------------------------------------


def test_bcq_by_hand():
    config = small(BCQConfig, action_samples=6, flexibility=0.2, beta=0.7, lam=0.6)
    method, trained, rows, context, after, metrics = begun(BCQ, config, CONTINUOUS)
    p, t, keys = trained.params, trained.target, jax.random.split(context.key, 3)
    x, y = np.asarray(rows.obs), np.asarray(rows.next_obs)
    mean, log_std = np.split(net(p["imitator"]["encoder"], np.concatenate([x, rows.action], -1)), 2, -1)
    latent = mean + np.exp(log_std) * np.asarray(jax.random.normal(keys[0], (ROWS, 4)))

    def decoded(imitator, x, latent):
        return np.tanh(net(imitator["decoder"], np.concatenate([x, latent], -1)))

    def moved(actor, x, action):
        return np.clip(action + 0.2 * np.tanh(net(actor, np.concatenate([x, action], -1))), -1, 1)

    divergence = 0.5 * (mean**2 + np.exp(2 * log_std) - 1) - log_std  # KL(N(mean, std) || N(0, 1))
    error = decoded(p["imitator"], x, latent) - rows.action
    close(metrics["imitator_loss"], np.mean(error**2) + 0.7 * divergence.mean())
    many, now = np.broadcast_to(y[:, None], (ROWS, 6, N)), after.params["imitator"]
    latent = np.clip(jax.random.normal(keys[1], (ROWS, 6, 4)), -0.5, 0.5)
    q = critics(t["critic"], many, moved(t["actor"], many, decoded(now, many, latent)))
    wanted = targets(rows, (0.6 * q.min(0) + 0.4 * q.max(0)).max(-1))
    close(metrics["target_mean"], wanted.mean())
    close(metrics["critic_loss"], ((critics(p["critic"], x, rows.action) - wanted) ** 2).mean(1).sum())
    latent = np.clip(jax.random.normal(keys[2], (ROWS, 4)), -0.5, 0.5)
    action = moved(p["actor"], x, decoded(now, x, latent))
    close(metrics["actor_loss"], -critics(after.params["critic"], x, action)[0].mean())
    followed(trained, after, "actor")
    followed(trained, after, "critic")
    acted = np.asarray(method.act(p, rows.obs).mode())
    np.testing.assert_array_equal(acted, method.act(p, rows.obs).sample(jax.random.key(9)))
    latent = jnp.broadcast_to(method.latents(jax.random.key(0), 1), (ROWS, 6, 4))
    candidates = np.asarray(method.candidates(p, p["actor"], rows.obs, latent, 0.2))
    q = critics(p["critic"], np.broadcast_to(x[:, None], (ROWS, 6, N)), candidates)[0]
    np.testing.assert_allclose(acted, candidates[np.arange(ROWS), q.argmax(-1)], atol=1e-6)
    same = method.act(p, jnp.broadcast_to(rows.obs[:1], rows.obs.shape)).mode()
    np.testing.assert_allclose(same, np.broadcast_to(acted[:1], same.shape), atol=1e-6)  # of the state, not of the row


@pytest.mark.slow
@pytest.mark.parametrize("said, kept", [(-30.0, -4.0), pytest.param(30.0, 15.0, marks=pytest.mark.slow)])
def test_bcq_bounds_its_deviation(said, kept):
    """The log of the autoencoder's deviation stays between -4 and 15, as in d3rlpy and in the authors' code."""
    method, trained, rows, *_ = begun(BCQ, small(BCQConfig, action_samples=6), CONTINUOUS)
    p = trained.params["imitator"]
    *hidden, last = p["encoder"]
    last = {"kernel": jnp.zeros_like(last["kernel"]), "bias": jnp.array([0.0] * 4 + [said] * 4)}
    found = method.imitator_loss({**p, "encoder": [*hidden, last]}, rows, jax.random.key(3), 1.0)
    latent = np.exp(kept) * np.asarray(jax.random.normal(jax.random.key(3), (ROWS, 4)))
    error = np.tanh(net(p["decoder"], np.concatenate([rows.obs, latent], -1))) - rows.action
    close(found, np.mean(error**2) + 0.5 * (np.exp(2 * kept) - 1) - kept)


@pytest.mark.parametrize("beta_on", ["logits", pytest.param("log_probs", marks=pytest.mark.slow)])
def test_discrete_bcq_by_hand(beta_on):
    config = small(DiscreteBCQConfig, beta=0.4, flexibility=0.9, beta_on=beta_on)
    method, trained, rows, _, _, metrics = begun(DiscreteBCQ, config, DISCRETE)
    p, t = trained.params, trained.target

    def allowed(x):
        probs = np.exp(log_softmax(net(p["imitator"], x)))
        return probs / probs.max(-1, keepdims=True) > 0.9

    offered = allowed(rows.next_obs)
    assert 1 < offered.sum(-1).mean() + 1e-9 and not offered.all(), "some actions are not offered"
    q = np.where(offered, critics(p["critic"], rows.next_obs).mean(0), -np.inf)
    wanted = targets(rows, pick(critics(t["critic"], rows.next_obs), q.argmax(-1)).min(0))
    close(metrics["target_mean"], wanted.mean())
    close(metrics["allowed"], offered.sum(-1).mean())
    close(metrics["critic_loss"], huber(pick(critics(p["critic"], rows.obs), rows.action) - wanted).mean())
    close(metrics["imitator_loss"], cloning(net(p["imitator"], rows.obs), rows.action, 0.4, beta_on))
    best = np.where(allowed(rows.obs), critics(p["critic"], rows.obs).mean(0), -np.inf).argmax(-1)
    np.testing.assert_array_equal(method.act(p, rows.obs).mode(), best)


# --- bad settings -----------------------------------------------------------------------------------------------------


def test_actions_of_another_kind_are_refused():
    for kind, config in ((TD3BC, TD3BCConfig()), (CQL, CQLConfig()), (BCQ, BCQConfig())):
        with pytest.raises(ValueError, match=f"{config.NAME}.*3 discrete"):
            kind(config, DISCRETE)
    for kind, config in ((DiscreteCQL, DiscreteCQLConfig()), (DiscreteBCQ, DiscreteBCQConfig())):
        other = config.NAME.removeprefix("discrete_")
        with pytest.raises(ValueError, match=f"continuous.*{other}"):
            kind(config, CONTINUOUS)
    with pytest.raises(ValueError, match=r"--awac\.action-samples.*4.*discrete"):
        AWAC(replace(AWACConfig(), action_samples=4), DISCRETE)


# --- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (BC, BCConfig(**SMALL)),
        (IQL, IQLConfig(**SMALL)),
        (AWAC, AWACConfig(**SMALL)),
        (DiscreteCQL, DiscreteCQLConfig(**SMALL)),
        (DiscreteBCQ, DiscreteBCQConfig(**SMALL)),
    ],
)
def test_actions_that_are_not_offered_are_neither_played_nor_valued(kind, config):
    method, trained, rows, context, after, metrics = begun(kind, config, DISCRETE)
    step, everything = jax.jit(method.step), jnp.ones((ROWS, 3), bool)
    same, found = step(trained, rows.replace(mask=everything, next_mask=everything), context)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), same.params, after.params)
    assert {name: float(x) for name, x in found.items()} == pytest.approx(metrics, rel=1e-6)
    # networks that prefer the last action by far, which is not offered
    lead = jnp.where(jnp.arange(3) == 2, 1e3, 0.0)

    def tempted(nets):
        heads = {name: net[-1] for name, net in nets.items() if name != "value"}
        return nets | {name: [*nets[name][:-1], head | {"bias": head["bias"] + lead}] for name, head in heads.items()}

    moved = trained.replace(params=tempted(trained.params), target=tempted(trained.target))
    two = jnp.broadcast_to(jnp.arange(3) < 2, (ROWS, 3))
    masked = rows.replace(action=rows.action % 2, mask=two, next_mask=two)
    plain, other, unmasked = (
        {name: float(x) for name, x in step(networks, these, context)[1].items()}
        for networks, these in ((trained, masked), (moved, masked), (moved, masked.replace(mask=None, next_mask=None)))
    )
    assert other == pytest.approx(plain, rel=1e-5) and unmasked != pytest.approx(plain, rel=0.1)
    acted = method.act(moved.params, rows.obs, two)
    assert float(acted.probs[:, 2].max()) == 0 and int(acted.mode().max()) < 2
    assert int(method.act(moved.params, rows.obs).mode().min()) == 2
