"""Learners of written replies are exact: what was written is what is learned, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.flatten_util import ravel_pytree

from envs_jax.env import Wrapper
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.multiturn import learner as learners, rollout, words
from llmrl_jax.multiturn.evaluate import Evaluator
from llmrl_jax.multiturn.group import make_group_learner
from llmrl_jax.multiturn.health import Watch, prompt_numbers
from llmrl_jax.multiturn.loss import Batch, Room, from_world, reply_sums, score_tokens, totals, turn_loss, uses
from llmrl_jax.multiturn.ppo import TurnPPO, make_turn_ppo
from llmrl_jax.multiturn.record import NOTHING, REPLY, REREAD, WORLD
from llmrl_jax.multiturn.rollout import Conversation, worlds_of
from llmrl_jax.systems.agent.build import make_learner
from llmrl_jax.systems.agent.clone import clone
from llmrl_jax.systems.agent.config import AgentConfig, CloneRun, TrainConfig
from llmrl_jax.systems.agent.train import conversation, evaluators, random_summary, summarise, table
from tests.unit.multiturn.conversations import GROUP, PPO, agent


CASES = {
    "free": {},
    "hot": {"temperature": 1.7},
    "constrained": {"decoding": "constrained", "temperature": 0.6},
    "tags": {"decoding": "constrained", "format": "tags", "reply_tokens": 9, "think": False},
    "reprompt": {"memory": "reprompt", "window": 1, "temperature": 1.3},
}


@cache
def learner_of(name: str):
    program = agent(**CASES[name])
    return program, make_turn_ppo(PPO, program.policy, program.env, program.env_params)


@cache
def played(name: str):
    """Three updates of a case: the states and metrics."""
    program, learner = learner_of(name)
    update = jax.jit(learner.update)
    states, metrics = [_read(learner.init(jax.random.key(0)))], []  # a run too has no weak types
    for _ in range(3):
        state, values = update(states[-1])
        states.append(state)
        metrics.append({name: float(x) for name, x in values.items()})
    return program, learner, update, states, metrics


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "free")) for name in CASES])
def test_the_first_ratio_is_one(name):
    _, learner, _, _, metrics = played(name)
    for values in metrics:
        assert values["first_ratio_error"] <= 1e-5, values
        assert values["nonfinite"] == 0 and 0 < values["utilisation"] < 1
    assert metrics[-1]["approx_kl"] > 0  # the policy did change
    assert learner.bounds["first_ratio_error"] == 1e-4
    if CASES[name].get("decoding") == "constrained":
        assert all(values["valid"] == 1 for values in metrics)
    else:
        assert metrics[0]["valid"] < 1


def test_no_call_of_the_host_is_in_an_update():
    program, learner, *_ = played("free")
    jaxpr = jax.make_jaxpr(learner.update)(jax.eval_shape(learner.init, jax.random.key(0)))
    names = set(primitives(jaxpr.jaxpr))
    assert {"scan", "while", "cond"} & names and not [name for name in names if "callback" in name]


def primitives(jaxpr):
    """The names of all operations of a program, inner ones included."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from primitives(inner)


@pytest.mark.slow
def test_an_update_is_a_function_of_its_state():
    """A state that was written and read goes on bit for bit, in the middle of turns."""
    _, _, update, states, _ = played("free")
    middle = states[1]
    assert (middle.rows.writes | (middle.rows.read > 0)).any()
    after, _ = update(_read(middle))
    for a, b in zip(jax.tree.leaves(_numbers(after)), jax.tree.leaves(_numbers(states[2])), strict=True):
        np.testing.assert_array_equal(a, b)


def _numbers(state):
    """A state with its keys as numbers."""

    def plain(x):
        return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return jax.tree.map(plain, state)


def _keys(state, like):
    def wrap(x, old):
        return jax.random.wrap_key_data(x) if jnp.issubdtype(old.dtype, jax.dtypes.prng_key) else x

    return jax.tree.map(wrap, state, like)


def _read(state):
    """A state as it is read from a checkpoint: equal, and without weak types."""
    return _keys(jax.tree.map(jnp.asarray, jax.device_get(_numbers(state))), state)


def test_a_state_that_is_donated_leaves_its_policy_whole():
    policy = agent(decoding="constrained").policy
    tables = policy.init(jax.random.key(0))[1]["replies"]
    jax.block_until_ready(jax.jit(lambda x: x, donate_argnums=0)(tables))
    assert all(x.is_deleted() for x in jax.tree.leaves(tables))
    assert not any(x.is_deleted() for x in jax.tree.leaves(policy.replies) if isinstance(x, jax.Array))


def test_a_collapse_is_reported_and_remembered():
    """Replies that are longer than usual and do not end: a run that is read again reports it at the same update."""
    _, learner, update, states, metrics = played("free")
    names = {"thought_length", "repetition", "information", "agreement", "truncated", "reply_length", "entropy"}
    assert names | set(learner.alarms) <= set(metrics[0]) and "reward_std" not in metrics[0]
    assert learner.alarms.keys() == Watch().alarms.keys() and not any(metrics[-1][name] for name in learner.alarms)
    watch = states[0].watch
    usual = watch.usual | {"reply_length": jnp.float32(1), "truncated": jnp.float32(0)}
    calm = watch.replace(
        updates=jnp.int32(100), recent=usual, usual=usual, noise={name: 0 * x for name, x in usual.items()}
    )
    state, found = states[0].replace(watch=calm), []
    for i in range(5):
        state, values = update(state)
        found.append(float(values["alarm/length_jump"]))
        if i == 2:
            middle = state
    assert found == [0, 0, 0, 0, 1]
    again = _read(middle)
    for expected in found[3:]:
        again, values = update(again)
        assert values["alarm/length_jump"] == expected


@cache
def batch_of(name: str):
    """A second rollout, as the gradient sees it: some rows begin in the middle of a turn."""
    program, made = learner_of(name)
    learner = TurnPPO(PPO, program.policy, program.env, program.env_params, None)
    state = _read(made.init(jax.random.key(0)))
    flat, unflatten = ravel_pytree(state.params)  # adapters and values start at zero
    state = state.replace(params=unflatten(flat + 0.02 * jax.random.normal(jax.random.key(1), flat.shape)))

    @jax.jit
    def play(state, key):
        before = state.rows.length
        rows, record, steps = learner.conversation.play(state.params, state.frozen, state.rows, key, PPO.num_steps)
        credit, _ = learner.credit(record, steps, state.hparams)
        new = jnp.arange(record.token.shape[1]) >= before[:, None]
        batch = Batch(record, credit, credit.learn & new, new & (record.role != 0))
        return state.replace(rows=learner.keep(rows, record, credit)), batch

    state, _ = play(state, jax.random.key(4))
    return program, state, play(state, jax.random.key(5))[1]


def gradient(name, state, batch, **changes):
    """The gradient of the policy's loss over a batch of a case, flat."""
    compute, hparams = differentiated(name, tuple(changes.items()))
    return np.asarray(compute(state.params, state.frozen, batch, state.hparams | hparams))


@cache
def differentiated(name, changes):
    """The compiled gradient of a case's loss with changed options, and its hyper-parameters."""
    policy = learner_of(name)[0].policy
    config = replace(PPO, entropy_coef=0.02, value_loss_coef=0.0, **dict(changes))

    @jax.jit
    def compute(params, frozen, batch, hparams):
        def loss(params):
            return turn_loss(policy, params, frozen, batch, totals(batch), config, hparams)[0]

        return ravel_pytree(jax.grad(loss)(params))[0]

    coefficients = {name: getattr(config, name) for name in ("entropy_coef", "value_loss_coef", "echo_coef")}
    return compute, {name: jnp.float32(x) for name, x in coefficients.items()}


@pytest.mark.parametrize("name", ["constrained", pytest.param("reprompt", marks=pytest.mark.slow)])
def test_only_replies_have_a_gradient(name):
    """What stands at the tokens of the world, of padding, and of replies without alternative is not read."""
    program, state, batch = batch_of(name)
    learn = batch.credit.learn
    assert learn.any() and (batch.record.role == WORLD).any() and (batch.record.role == 0).any()
    if name == "constrained":
        assert ((batch.record.role == REPLY) & ~batch.record.free).any()
    usual = gradient(name, state, batch)
    noise = jax.random.normal(jax.random.key(1), learn.shape)
    other = batch.replace(
        credit=batch.credit.replace(advantage=jnp.where(learn, batch.credit.advantage, 5 * noise)),
        record=batch.record.replace(log_prob=jnp.where(learn, batch.record.log_prob, noise)),
    )
    np.testing.assert_array_equal(usual, gradient(name, state, other))
    changed = batch.replace(credit=batch.credit.replace(advantage=batch.credit.advantage + 1.0))
    assert not np.allclose(usual, gradient(name, state, changed))


def test_padding_is_not_seen():
    program, state, batch = batch_of("free")
    padding = batch.record.role == 0
    assert padding.any()
    token = jnp.where(padding, program.tokenizer.vocab_size - 1, batch.record.token)
    other = batch.replace(record=batch.record.replace(token=token))
    np.testing.assert_array_equal(gradient("free", state, batch), gradient("free", state, other))


def test_replies_that_are_read_again_are_not_the_worlds():
    """With `reprompt` the text of a second turn repeats the first observation and reply: with `echo_coef` the world's
    tokens alone are learned, and the prompt that `information` compares is what follows the reply."""
    program = agent(memory="reprompt", window=1, decoding="constrained", format="action", reply_tokens=2)
    conversation = Conversation(program.policy, worlds_of(program.env, 16), once=True, whole=True)
    params, frozen = program.policy.init(jax.random.key(0))
    rows = conversation.start(jax.random.key(1), program.env_params)
    record = jax.jit(conversation.play, static_argnums=4)(params, frozen, rows, jax.random.key(2), 24)[1]
    learned = from_world(Batch(record, None, None, record.role != NOTHING))
    word = np.vectorize(lambda token: program.tokenizer.decode([token]))
    numbers, (words, role, begins) = (
        prompt_numbers(record),
        (np.asarray(x) for x in (record.token, record.role, record.begins)),
    )
    prompts = []
    for row in range(16):
        _, *second = np.flatnonzero(begins[row])
        reply = word(words[row, role[row] == REPLY])
        for begin in second[:1]:
            text, whose = word(words[row, begin : begin + 12]).tolist(), role[row, begin : begin + 12].tolist()
            first = ["Observation:", "The", "password", "is", text[4], "Reply:"]
            assert text == [*first, reply[0], "Observation:", "Nothing", "happens.,", "Reply:", text[-1]]
            assert whose[:11] == [WORLD] * 6 + [REREAD] + [WORLD] * 4
            assert learned[row, begin : begin + 11].tolist() == [False] + [True] * 5 + [False] + [True] * 4
            prompts.append(int(numbers[row, begin + 10]))
    assert len(prompts) > 1 and len(set(prompts)) == 1


def test_tokens_of_the_world_are_learned_if_asked_for():
    program, state, batch = batch_of("free")
    with_echo = gradient("free", state, batch, echo_coef=0.5)
    assert not np.allclose(with_echo, gradient("free", state, batch))


@pytest.mark.slow
def test_chunks_of_the_head_change_nothing():
    program, state, batch = batch_of("constrained")
    variables = program.policy.variables(state.params, state.frozen)
    whole = score_tokens(program.policy, variables, state.frozen["replies"], batch.record)
    parts = score_tokens(program.policy, variables, state.frozen["replies"], batch.record, chunk=32)
    learn = np.asarray(batch.credit.learn)
    np.testing.assert_allclose(np.asarray(whole.log_prob)[learn], np.asarray(parts.log_prob)[learn], atol=1e-6)
    np.testing.assert_allclose(np.asarray(whole.entropy)[learn], np.asarray(parts.entropy)[learn], atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [pytest.param({}, marks=pytest.mark.slow), {"echo_coef": 0.5, "head_chunk": 8}],
    ids=["replies", "world"],
)
@pytest.mark.parametrize("name", ["constrained", pytest.param("reprompt", marks=pytest.mark.slow)])
def test_short_arrays_change_nothing(name, options):
    """The gradient from the hidden states that are used beside that from all; with too few of them it is no number."""
    program, state, batch = batch_of(name)
    config, hparams = replace(PPO, **options), state.hparams | {k: jnp.float32(v) for k, v in options.items()}
    read, valued = (int(x.sum(1).max()) for x in uses(batch, config))
    length = batch.record.token.shape[1]
    assert 0 < valued < read < (0.9 if options else 0.5) * length

    @partial(jax.jit, static_argnums=1)
    def compute(params, room):
        def loss(params):
            return turn_loss(program.policy, params, state.frozen, batch, totals(batch), config, hparams, room)

        return jax.value_and_grad(loss, has_aux=True)(params)

    usual, short = compute(state.params, None), compute(state.params, Room(length, read, valued))
    for a, b in zip(*map(jax.tree.leaves, (usual, short)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)
    for room in (Room(length, read - 1, valued), Room(length, read, valued - 1)):
        assert np.isnan(compute(state.params, room)[0][0])


@pytest.mark.slow
def test_parts_in_order_of_length_change_nothing(monkeypatch):
    """The gradient of a minibatch in parts, each in the room that fits it, beside that of all rows at once."""
    program, state, batch = batch_of("free")
    learner = TurnPPO(PPO, program.policy, program.env, program.env_params, None)
    length, gradients = batch.record.token.shape[1], []
    monkeypatch.setattr(learners, "SPARED", (0.8, 0.4, 0.0))
    monkeypatch.setattr(learners, "WORTH", 1.0)
    for rows in (8, 2):
        monkeypatch.setattr(learners, "PART", rows * length)
        assert learner._parts(8, length) == 8 // rows and len(learner._rooms(length)) == 4
        gradients.append(jax.jit(learner._gradient)(state.params, state.frozen, batch, state.hparams))
    for a, b in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def test_the_largest_room_holds_all_that_is_used():
    """Over rollouts that are shorter than a turn, so that many rows are in the middle of one."""
    program, state, _ = batch_of("free")
    config = replace(PPO, num_steps=7, echo_coef=0.1)
    learner = TurnPPO(config, program.policy, program.env, program.env_params, None)
    room = learner._rooms(learner.conversation.size + config.num_steps)[-1]

    @jax.jit
    def play(rows, key):
        before = rows.length
        rows, record, steps = learner.conversation.play(state.params, state.frozen, rows, key, config.num_steps)
        credit, _ = learner.credit(record, steps, state.hparams)
        new = jnp.arange(record.token.shape[1]) >= before[:, None]
        batch = Batch(record, credit, credit.learn & new, new & (record.role != 0))
        return learner.keep(rows, record, credit), [jnp.max(jnp.sum(x, axis=1)) for x in uses(batch, config)]

    rows, most = learner.first_rows(jax.random.key(3)), np.zeros(2, int)
    for i in range(20):
        rows, used = play(rows, jax.random.key(i))
        most = np.maximum(most, used)
    assert config.num_steps < most[0] <= room.read < room.tokens and 0 < most[1] <= room.valued


def test_values_of_play_are_those_of_a_pass_over_rows():
    program, state, batch = batch_of("constrained")
    variables = program.policy.variables(state.params, state.frozen)
    hidden = score_tokens(program.policy, variables, state.frozen["replies"], batch.record).hidden
    expected = np.asarray(program.policy.value(state.params, hidden))
    record = jax.device_get(batch.record)
    used = np.asarray(batch.new) & (record.decides | record.bootstraps)
    assert (record.value[np.asarray(batch.new) & ~used] == 0).all() and used.sum() > 8
    np.testing.assert_allclose(record.value[used], expected[used], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", ["turn", "cispo"])
def test_other_ratios_have_the_gradient_of_the_usual_one_before_a_step(ratio):
    """Where all ratios are one, GSPO's and CISPO's gradients are PPO's."""
    program, state, batch = batch_of("free")
    fresh = batch.replace(credit=batch.credit.replace(learn=batch.fresh))
    usual = gradient("free", state, fresh)
    np.testing.assert_allclose(gradient("free", state, fresh, ratio=ratio), usual, rtol=2e-3, atol=2e-6)


MEMORIES = [{}, pytest.param({"memory": "reprompt", "window": 1}, marks=pytest.mark.slow)]


@pytest.mark.parametrize("memory", MEMORIES, ids=["append", "reprompt"])
def test_conversations_are_those_of_a_loop_in_python(memory):
    """Every token of whole episodes, by stepping one world at a time with the actions that the replies name."""
    program = agent(decoding="constrained", **memory)
    policy, tokenizer, env = program.policy, program.tokenizer, program.env
    evaluator = Evaluator(policy, env, program.env_params, 6, 96, chunk=32, at_once=4)
    params, frozen = policy.init(jax.random.key(1))
    key = jax.random.key(2)
    episodes = evaluator(params, frozen, key)
    assert [program._cache_size() for program in (evaluator._begin, evaluator._play, evaluator._replace)] == [1, 1, 1]
    begin, _ = jax.random.split(key)
    for i in range(6):
        obs, state = env.reset(jax.random.fold_in(begin, i), program.env_params)
        tokens, roles = episodes.tokens[i].tolist(), episodes.roles[i]
        place, total, past, turns, done = 0, 0.0, [], 0, False
        while not done:
            turn = tokenizer.encode(policy.text.render(obs, opening=turns == 0))
            earlier = past[-1:] if memory else []
            message = [*(token for parts in earlier for part in parts for token in part), *turn]
            assert tokens[place : place + len(message)] == message
            whose = [role for parts in earlier for role, part in zip((WORLD, REREAD), parts) for _ in part]
            assert roles[place : place + len(message)].tolist() == whose + [WORLD] * len(turn)
            place += len(message)
            reply = []
            while place < len(tokens) and roles[place] == REPLY:
                reply.append(tokens[place])
                place += 1
            past.append((turn, reply))
            text = tokenizer.decode([t for t in reply if t != tokenizer.eos_id])
            action = env.action_names.index(policy.replies.format.parse(text))
            obs, state, reward, terminated, truncated, _ = env.step(
                jax.random.key(9), state, jnp.int32(action), program.env_params
            )
            total += float(reward)
            turns += 1
            done = bool(terminated | truncated)
        assert place == len(tokens) and turns == episodes.turns[i] == episodes.valid[i]
        assert total == episodes.returns[i] and episodes.success[i] == (total > 0)


@pytest.mark.slow
@pytest.mark.parametrize("memory", MEMORIES, ids=["append", "reprompt"])
def test_groups_begin_in_one_state_and_rows_end(memory):
    program = agent(decoding="constrained", **memory)
    learner = make_group_learner(replace(GROUP, anchor_coef=1.0), program.policy, program.env, program.env_params)
    state = learner.init(jax.random.key(0))
    update = jax.jit(learner.update)
    for _ in range(2):
        state, metrics = update(state)
        assert float(metrics["first_ratio_error"]) <= 1e-5 and float(metrics["finished"]) == 1
        assert 0 < float(metrics["utilisation"]) < 1 and float(metrics["episodes"]) == GROUP.num_envs
        assert 0 <= float(metrics["reward_std"]) <= 1
    assert state.rows == ()


@pytest.mark.slow
def test_a_long_episode_is_cut_and_counted():
    program = agent(decoding="constrained")
    least = sum(program.policy.text.sizes) + program.policy.text.sizes[1] + 5
    config = replace(PPO, episode_tokens=least, minibatches=1, epochs=1)
    learner = make_turn_ppo(config, program.policy, program.env, program.env_params)
    _, metrics = jax.jit(learner.update)(learner.init(jax.random.key(0)))
    # there is room for one turn: episodes that it does not end are cut, and count as failures
    assert float(metrics["episodes"]) == float(metrics["turns"]) > float(metrics["cut_episodes"]) > 0
    with pytest.raises(ValueError, match=str(least)):
        make_turn_ppo(replace(config, episode_tokens=least - 1), program.policy, program.env, program.env_params)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"reply_tokens.*1"):
        agent(decoding="constrained", format="tags", reply_tokens=1)
    with pytest.raises(ValueError, match=r"window.*2"):
        agent(window=2)
    with pytest.raises(TypeError, match="CartPole"):
        agent(env="CartPole-v1")
    with pytest.raises(ValueError, match=r"default_action.*jump"):
        agent(default_action="jump")
    program = agent(**CASES["reprompt"])
    with pytest.raises(ValueError, match=r"group\.episode_tokens.*12"):
        make_group_learner(replace(GROUP, episode_tokens=12), program.policy, program.env, program.env_params)
    with pytest.raises(ValueError, match=r"kl_coef.*0\.1"):
        program = agent()
        make_turn_ppo(replace(PPO, kl_coef=0.1), program.policy, program.env, program.env_params)
    with pytest.raises(ValueError, match=r"group.*4.*turn_ppo"):
        make_learner(TrainConfig(agent=program.config, group=GROUP), program)
    anchored = replace(GROUP, anchor_coef=1.0)
    with pytest.raises(ValueError, match="group.anchor-coef is 1.0.*grpo"):
        make_learner(TrainConfig(agent=program.config, algo="grpo", group=anchored), program)
    with pytest.raises(TypeError, match="Notes-Recall-v0"):
        clone(CloneRun(agent=replace(program.config, tune="full")))
    with pytest.raises(ValueError, match="tune.*lora"):
        clone(CloneRun(agent=AgentConfig()))


def test_replies_have_the_means_of_their_tokens():
    """Sums over replies beside a loop, with which a mean over turns weighs each reply the same."""
    _, _, batch = batch_of("free")
    numbers = np.random.default_rng(0).normal(size=batch.record.token.shape).astype(np.float32)
    ours = np.asarray(reply_sums(batch.record, jnp.asarray(numbers) * batch.credit.learn))
    learn, decides = np.asarray(batch.credit.learn), np.asarray(batch.record.decides)
    for row, place in zip(*np.nonzero(learn), strict=True):
        begin = np.flatnonzero(decides[row, :place])[-1]
        following = np.flatnonzero(decides[row, place:])
        end = place + following[0] + 1 if len(following) else learn.shape[1]
        expected = (numbers[row] * learn[row])[begin + 1 : end].sum()
        np.testing.assert_allclose(ours[row, place], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("memory", ["append", pytest.param("reprompt", marks=pytest.mark.slow)])
def test_what_a_row_writes_does_not_depend_on_when_it_reads(memory, monkeypatch):
    """Episodes of eight rows, in two calls, where one row of four reads four tokens in a step, and where two read
    all."""
    program = agent(memory=memory)
    params, frozen = program.policy.init(jax.random.key(0))
    monkeypatch.setattr(rollout, "LEAST", 1)
    records = []
    for group, readers, read in ((4, 1, 1), (2, 2, 64)):
        monkeypatch.setattr(rollout, "GROUP", {"other": group})
        monkeypatch.setattr(rollout, "READERS", readers)
        monkeypatch.setattr(rollout, "READ", {"other": read})
        evaluator = Evaluator(program.policy, program.env, program.env_params, 8, 96, chunk=20)
        assert evaluator.conversation.chunk == min(group * read, readers * program.policy.prompt_tokens)
        records.append(evaluator(params, frozen, jax.random.key(1)))
    for parts in zip(*(played.tokens for played in records), strict=True):
        np.testing.assert_array_equal(*parts)
    assert sum(len(x) for x in records[0].tokens) > 8 * 20  # episodes are longer than a call


def test_success_is_that_of_an_environment_that_reports_it():
    class Unreported(Wrapper):
        def step(self, key, state, action, params):
            *step, info = super().step(key, state, action, params)
            return *step, {name: x for name, x in info.items() if name != "success"}

    program = agent()
    params, frozen = program.policy.init(jax.random.key(0))
    for env, reports in ((program.env, True), (EpisodeStatistics(Unreported(program.env.env)), False)):
        program = replace(program, env=env)
        key = jax.random.key(1)
        played = evaluators(program, 96)(2)(params, frozen, key)
        rows = {"sampled": summarise(played), "random": random_summary(program, key, 2)}
        assert [{"success", "success_low", "success_high"} <= set(row) for row in rows.values()] == [reports] * 2
        assert ("success" in table(rows, 2), "success" in conversation(program, played)) == (reports, reports)


def test_greedy_is_the_likeliest_token_that_is_offered():
    policy, replies = (program := agent(decoding="constrained", temperature=1.7)).policy, program.policy.replies
    logits = jax.random.normal(jax.random.key(0), (32, policy.model.config.vocab_size))
    state, left = jnp.full(32, replies.start), jnp.full(32, policy.reply_tokens)
    write = jax.jit(
        lambda greedy: policy.write(replies, logits, state, left, jax.random.split(jax.random.key(1), 32), greedy)
    )
    offered = np.asarray(replies.allowed(state, left))
    best = np.where(offered, logits, -np.inf).argmax(-1)
    drawn = policy.write(replies, logits, state, left, jax.random.split(jax.random.key(1), 32))[0]
    np.testing.assert_array_equal(write(True)[0], best)
    np.testing.assert_array_equal(write(False)[0], drawn)
    assert (np.asarray(drawn) != best).any()


def test_what_is_packed_is_unpacked():
    tree = {
        "float": jnp.array([0.7, -jnp.inf]),
        "half": jnp.array([0.5, -1.5], jnp.bfloat16),
        "flags": jnp.array([[True, False], [False, True]]),
        "small": jnp.array([-3, 2], jnp.int8),
        "large": jnp.array([2**32 - 1, 7], jnp.uint32),
    }
    packed = words.pack(tree)
    assert packed.shape == (2, 6)
    unpacked = words.unpack(jnp.stack([packed, packed[::-1]], axis=1), jax.eval_shape(lambda: tree))
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(unpacked), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(y[:, 0], x)
        np.testing.assert_array_equal(y[:, 1], x[::-1])
