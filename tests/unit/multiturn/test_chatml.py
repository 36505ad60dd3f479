"""Conversations in the markers of chat models are, token by token, what those models were trained on."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

import envs_jax
from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.multiturn.rollout import Conversation, worlds_of
from llmrl_jax.multiturn.text import CHATML, FreeText, TurnText, TurnWording, continued
from tests.unit.multiturn.conversations import agent


START, END = "<|im_start|>", "<|im_end|>"
ACTIONS = "You act in a world, one action a turn. Actions: wait, red, green, blue, yellow."
GREEN = f"{START}user\n{ACTIONS}\nObservation: The password is green.,{END}\n{START}assistant\n"
NOTHING = f"{END}\n{START}user\nObservation: Nothing happens.,{END}\n{START}assistant\n"


@pytest.fixture(scope="module")
def chat(bare) -> FastTokenizer:
    """A tokenizer that knows the markers."""
    backend = Tokenizer.from_str(bare.backend.to_str())
    backend.add_special_tokens([START, END])
    return FastTokenizer(backend, eos_token=END)


def decoded(tokenizer: FastTokenizer, pieces) -> list[str]:
    """The text of each row, with markers."""
    rows = zip(*map(np.asarray, pieces), strict=True)
    return [tokenizer.backend.decode(tokens[:length].tolist(), skip_special_tokens=False) for tokens, length in rows]


def test_a_marker_that_is_there_is_not_repeated():
    """Of rows whose text so far ends with the marker, 9, with another token, and of one without a text."""
    before = jnp.array([[5, 9, 0], [9, 5, 0], [9, 0, 0], [7, 7, ~9]]), jnp.array([2, 2, 0, 3])
    turn = jnp.array([[9, 1, 2, 0]] * 3 + [[9, 1, 2, 3]]), jnp.array([3, 3, 3, 4])
    tokens, lengths = continued(9, before, turn)
    rows = [row[:n].tolist() for row, n in zip(np.asarray(tokens), np.asarray(lengths), strict=True)]
    assert rows == [[1, 2], [9, 1, 2], [9, 1, 2], [1, 2, 3]]
    assert continued(-1, before, turn) is turn


@pytest.mark.parametrize("kind", ["device", "host"])
def test_the_line_break_before_a_reply_is_the_prompts(chat, kind):
    env, params = envs_jax.make("Notes-Recall-v0")
    if kind == "device":
        text = TurnText(env, chat, CHATML)
        obs, _ = env.reset(jax.random.key(0), params)
        sentence = env.describe(obs)["text"] + ","
        obs = jax.tree.map(lambda x: jnp.asarray(x)[None], obs)
    else:
        text, sentence = FreeText(chat, env.action_names, CHATML), "The password is green."
        obs = {name: jnp.asarray(ids)[None] for name, ids in zip(text.names, text("", sentence)[0], strict=True)}
    first = decoded(chat, text.heads(obs))[0] + decoded(chat, text.turns(obs, opening=True))[0]
    assert first == GREEN.replace("The password is green.,", sentence)
    later = f"{END}\n{START}user\nObservation: {sentence}{END}\n{START}assistant\n"
    assert decoded(chat, text.turns(obs)) == [later]
    assert text.end == chat.eos_id


def test_white_space_before_a_reply_is_the_replys_without_a_line_break(chat):
    """As it has been: " Reply: " ends with the colon."""
    text = FreeText(chat, ("up", "down"), TurnWording(reply=" Reply: "))
    obs = {name: jnp.asarray(ids)[None] for name, ids in zip(text.names, text("", "one")[0], strict=True)}
    assert decoded(chat, text.turns(obs)) == [" Observation: one Reply:"] and text.end == -1


@pytest.mark.parametrize("window", [None, 0, 1])
def test_a_turn_that_follows_a_reply_ends_it_once(chat, window):
    """Of two rows the first one's reply ends with the marker, the other's was cut before it."""
    program = agent(**{} if window is None else {"memory": "reprompt", "window": window})
    env, params = envs_jax.make("Notes-Recall-v0")
    config = replace(program.policy.model.config, vocab_size=chat.vocab_size)
    policy = replace(program.policy, model=program.policy.model.clone(config=config), text=TurnText(env, chat, CHATML))
    conversation = Conversation(policy, worlds_of(program.env, 2), 160)
    rows = conversation.start(jax.random.key(0), program.env_params)
    password = decoded(chat, (rows.queue, rows.queued))
    word = chat.encode("wait")[0]
    for tokens in ([word, word], [chat.eos_id, word]):
        rows = rows.replace(token=jnp.array(tokens))
        rows = rows.replace(past=conversation._with_reply(rows, jnp.ones(2, bool)))
    _, state = env.reset(jax.random.key(0), params)
    obs, *_ = env.step(jax.random.key(1), state, jnp.int32(0), params)
    obs = jax.tree.map(lambda x: jnp.stack([x, x]), obs)
    (queue, queued), past = conversation._following(obs, rows.past, rows.token)
    ours = decoded(chat, (jnp.where(queue < 0, ~queue, queue), queued))
    word_text = chat.decode([word])
    if window is None:
        assert ours == [NOTHING.removeprefix(END), NOTHING]
    elif window == 0:
        assert ours == [f"{START}user\n{ACTIONS}\nObservation: {NOTHING.split('Observation: ')[1]}"] * 2
    else:
        replies = [f"{word_text}{END}", f"{word_text}{word_text}{END}"]
        assert ours == [f"{a}{b}{NOTHING.removeprefix(END)}" for a, b in zip(password, replies, strict=True)]
        # behind the head, of which it ends the message, the marker is there whatever the reply before
        rows = rows.replace(past=past)
        (queue, queued), _ = conversation._following(obs, conversation._with_reply(rows, jnp.ones(2, bool)), rows.token)
        again = decoded(chat, (jnp.where(queue < 0, ~queue, queue), queued))
        assert all(text.count(f"{ACTIONS}{NOTHING}") == 1 for text in again)
        assert again[0].endswith(f"{END}{NOTHING.removeprefix(END)}") and again[1].endswith(f"{word_text}{NOTHING}")
        assert not any(END + END in text for text in again)
