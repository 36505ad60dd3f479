"""Our Llama as a chat model: what `lm.generate` says, whatever is asked beside it, in few programs."""

from __future__ import annotations

import dataclasses
import importlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from llmrl_jax import lm
from llmrl_jax.chat import (
    Budget,
    Budgeted,
    BudgetExceeded,
    Cached,
    ChatError,
    ChatReply,
    ChatRequest,
    Choice,
    ContextExceeded,
    Message,
    Recorder,
    ServerError,
    read_jsonl,
    strip_thinking,
)
from llmrl_jax.chat.protocol import outcomes_of
from llmrl_jax.chat.wire import sample_seed
from llmrl_jax.lm.rope import rotations
from llmrl_jax.serve import Ask, LocalLlama, Sampler, Sampling, Served, programs
from llmrl_jax.serve.programs import roomy, width
from llmrl_jax.tuning import ChatTemplate
from llmrl_jax.tuning.template import PLAIN
from tests.lm_random import random_variables
from tests.serving import CONFIG, TEMPLATE


pytest_plugins = ("tests.serving",)

generating = importlib.import_module("llmrl_jax.lm.generate")


@pytest.fixture(scope="module")
def served(served):
    return dataclasses.replace(served, name="tiny")


@pytest.fixture(scope="module")
def llama(served):
    return LocalLlama(served, max_batch=8)


def ask(text="Colors: red", **options):
    return ChatRequest((Message("user", text),), **{"max_tokens": 12, "seed": 3, **options})


def generated(served, request, config):
    """Reply of `lm.generate` to one request alone, without padding."""
    tokens = served.encode_chat([{"role": m.role, "content": m.content} for m in request.messages])
    key = jax.random.key(sample_seed(request.seed, request.sample))
    stops = (
        lm.StopStrings.build(served.tokenizer, request.stop, served.model.config.vocab_size) if request.stop else None
    )
    rows, lengths = np.array([tokens], np.int32), np.array([len(tokens)], np.int32)
    found = lm.generate(served.model, served.variables, rows, lengths, key, config, stops=stops)
    return found, found.texts(served.tokenizer, stops, start=True)[0], len(tokens)


def test_it_says_what_generate_says(served, llama):
    request = ask(n=3, temperature=0.8, top_p=0.95)
    config = lm.SamplingConfig(12, temperature=0.8, top_p=0.95, samples=3)
    found, texts, prompt = generated(served, request, config)
    reply = llama.complete([request])[0]
    assert [choice.text for choice in reply.choices] == texts
    assert reply.usage.prompt_tokens == prompt and reply.usage.completion_tokens == found.lengths.sum()
    reasons = {lm.Finish.LENGTH: "length", lm.Finish.STOP_TOKEN: "stop"}
    assert [c.finish_reason for c in reply.choices] == [reasons[int(f)] for f in found.finish[0]]
    assert reply.model == "tiny" and reply.fingerprint == served.fingerprint and reply.seconds > 0
    # the samples from index 5 on are those of another seed, as a server is asked for them
    later = dataclasses.replace(request, sample=5)
    assert [c.text for c in llama.complete([later])[0].choices] == generated(served, later, config)[1]
    assert llama.complete([later])[0].text != reply.text


@pytest.mark.slow
def test_a_text_does_not_depend_on_what_is_asked_beside_it(llama):
    requests = [
        ask("drop", max_tokens=9),
        ask("Colors: " + "red, " * 9, temperature=0.5, seed=4),
        ask("go forward", max_tokens=70),
        ask("pick up", temperature=0.0),
        ask("turn left", n=2, top_p=0.9, extra={"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.3}),
        ask("toggle"),
        ask("drop", max_tokens=9, seed=8),
    ]
    alone = [llama.complete([request])[0] for request in requests]
    together = llama.complete(requests[::-1])[::-1]
    assert [[c.text for c in reply.choices] for reply in together] == [
        [c.text for c in reply.choices] for reply in alone
    ]
    assert [reply.usage for reply in together] == [reply.usage for reply in alone]
    assert [c.finish_reason for r in together for c in r.choices] == [c.finish_reason for r in alone for c in r.choices]
    assert together[0].text != together[6].text  # another seed
    free = [llama.complete([ask(seed=None)])[0].text for _ in range(3)]
    assert len(set(free)) > 1


@pytest.mark.slow
def test_what_prompts_begin_with_is_read_once(served):
    """For all of a call, and for later ones; a text is the one that a request alone gets. Ended rows leave."""
    alone, llama = LocalLlama(served, max_batch=4), LocalLlama(served, max_batch=4)
    long = "Colors: " + "red, " * 40
    requests = [ask(f"{long}{word}", temperature=0.7, seed=i, max_tokens=3 + 9 * i) for i, word in enumerate("abcdef")]
    want = [alone.complete([request])[0] for request in requests]
    assert alone._sampler._prefix is None
    widths, batches = [], []
    for sampler in (llama._sampler, llama._wide):
        record(sampler.programs, widths, batches)
    got = llama.complete(requests)
    assert [reply.text for reply in got] == [reply.text for reply in want]
    assert [reply.usage for reply in got] == [reply.usage for reply in want]
    prefix = llama._sampler._prefix
    assert prefix.size >= 64 and widths == [64]  # what differs is padded to 64 tokens
    assert batches[0] == 16 and batches[-1] == 1 and batches == sorted(batches, reverse=True)
    assert llama.complete(requests[3:4])[0].text == want[3].text and llama._sampler._prefix is prefix
    other = llama.complete([ask("go"), ask("drop")])
    assert [reply.text for reply in other] == [alone.complete([ask(word)])[0].text for word in ("go", "drop")]
    assert llama._sampler._prefix is prefix and len(widths) == 3


def record(programs, widths, batches):
    """Note the padded lengths of prompts, and the rows of every piece of answers."""
    read, advance = programs.read, programs.advance
    programs.read = lambda tokens, *rest: widths.append(tokens.shape[1]) or read(tokens, *rest)
    programs.advance = lambda state, *rest: batches.append(len(state.keys)) or advance(state, *rest)


def test_few_programs_serve_many_prompts(served, llama):
    compiled = [programs._read, programs._start, programs._advance]
    llama.complete([ask()])
    before = [program._cache_size() for program in compiled]
    requests = [
        ask("a" * (1 + i), max_tokens=1 + 3 * i, seed=i, temperature=0.1 * i, stop=(f"{i}",), extra={"top_k": i})
        for i in range(20)
    ]
    requests += [ask(seed=1, top_p=0.5), ask(extra={"min_p": 0.1, "repetition_penalty": 1.5})]
    lengths = {len(served.encode_chat([{"role": "user", "content": "a" * (1 + i)}])) for i in range(20)}
    assert len(lengths) > 10
    for request in requests:
        llama.complete([request])
    assert [program._cache_size() for program in compiled] == before
    assert [width(n, 256) for n in (1, 64, 65, 129, 200)] == [64, 64, 128, 256, 256]
    assert [width(n, 100) for n in (1, 65)] == [64, 100]


def test_a_reply_is_chosen_by_its_probability(served, llama, tmp_path):
    """Hand-computed: the log-probability of the whole text and its end after the prompt, from one pass over both."""
    texts = ["go forward", "drop", "go"]
    requests = [ask(text, extra={"guided_choice": texts}) for text in ("Colors: red", "pick up")]
    found = llama.complete([requests[0], ask("drop", max_tokens=9), requests[1]])
    log_probs = jax.jit(lambda v, tokens: jax.nn.log_softmax(served.model.apply(v, tokens).logits[0]))
    for request, reply in zip(requests, found[::2]):
        prompt = served.encode_chat([{"role": m.role, "content": m.content} for m in request.messages])
        expected = []
        for text in texts:
            tokens = [*served.tokenizer.encode(text), served.tokenizer.eos_id]
            row = np.zeros((1, len(prompt) + 16), np.int32)  # one program: nothing after a token changes its logits
            row[0, : len(prompt) + len(tokens)] = prompt + tokens
            chances = np.asarray(log_probs(served.variables, row))[len(prompt) - 1 :]
            expected.append(float(chances[np.arange(len(tokens)), np.array(tokens)].sum()))
        np.testing.assert_allclose(reply.choices[0].scores, expected, atol=1e-4)
        assert reply.text == texts[int(np.argmax(expected))] and reply.usage.prompt_tokens == len(prompt)
    assert found[1].text == llama.complete([ask("drop", max_tokens=9)])[0].text and found[1].choices[0].scores == ()
    cached = Cached(llama, tmp_path / "c.sqlite")
    first, again = cached.complete([requests[0]])[0], cached.complete([requests[0]])[0]
    assert again.cached == 1 and again.choices == first.choices  # a batch changes the last bits of scores
    np.testing.assert_allclose(first.choices[0].scores, found[0].choices[0].scores, atol=1e-4)
    for wrong in (["one"], "go forward", ["a", ""]):
        with pytest.raises(ServerError, match="2 texts"):
            llama.complete([ask(extra={"guided_choice": wrong})])
    with pytest.raises(ServerError, match="n.*2.*guided_choice"):
        llama.complete([ask(n=2, extra={"guided_choice": texts})])


@pytest.mark.parametrize(
    ("after", "stop", "end"),
    [("<|begin_of_text|>", (1, 0), (0,)), ("\n", (0, 1), (1,)), ("\n", (9, 0), (9,)), ("<|end_of_text|>", (), ())],
    ids=["template", "tokenizer", "model", "none"],
)
def test_the_end_of_a_reply_that_is_chosen(served, after, stop, end):
    template = ChatTemplate(TEMPLATE.replace("\n{%", f"{after}{{%"), {})
    assert LocalLlama(dataclasses.replace(served, template=template, stop_tokens=stop))._end == end


def test_texts_to_choose_from_need_no_room_for_a_reply(served, llama):
    texts = ["go", "drop"]
    roomy, long = (ask(max_tokens=tokens, extra={"guided_choice": texts}) for tokens in (1, served.context))
    assert llama.complete([roomy])[0].choices == llama.complete([long])[0].choices
    with pytest.raises(ContextExceeded):
        llama.complete([ask(extra={"guided_choice": ["go", "drop " * served.context]})])


def test_stop_strings_end_a_text_where_the_device_would(served, llama):
    whole = llama.complete([ask(max_tokens=40)])[0].text
    free = ask(max_tokens=40)
    tried = 0
    for at in range(3, len(whole) - 3, 5):
        stop = whole[at : at + 3]
        if "\ufffd" in stop:
            continue
        tried += 1
        request = dataclasses.replace(free, stop=(stop, "never said"))
        with_device = generated(served, dataclasses.replace(request, stop=(stop,)), lm.SamplingConfig(40))
        reply = llama.complete([request])[0]
        assert reply.text == with_device[1][0] == whole[: whole.find(stop)]
        assert reply.choices[0].finish_reason == "stop"
        assert reply.usage.completion_tokens == int(with_device[0].lengths[0, 0])
        if tried == 3:
            break
    assert tried == 3


def test_it_stands_behind_cache_recorder_and_budget(llama, tmp_path):
    budgeted = Budgeted(llama, Budget(calls=2))
    chain = Cached(Recorder(budgeted, tmp_path / "asked.jsonl"), tmp_path / "replies.sqlite")
    assert chain.name == llama.name == f"tiny@{llama.served.fingerprint}"
    first = chain.complete([ask(n=2)])[0]
    assert first.cached == 0 and chain.complete([ask(n=2)])[0].cached == 2
    assert [c.text for c in chain.complete([ask(n=2)])[0].choices] == [c.text for c in first.choices]
    chain.complete([ask("another")])
    with pytest.raises(BudgetExceeded):
        chain.complete([ask("a third")])
    assert len(list(read_jsonl(tmp_path / "asked.jsonl"))) >= 2


def test_what_it_cannot_answer_is_named_and_the_rest_is_answered(llama):
    requests = [
        ask("x " * 150, max_tokens=200),
        ask(),
        ask(extra={"logit_bias": {"5": 1}}),
        ask(n=9),
        ask(extra={"top_k": "many"}),
        ask(extra={"min_p": 2}),
    ]
    outcomes = outcomes_of(llama, requests)
    assert isinstance(outcomes[1], ChatReply)
    said = [str(outcome) for outcome in outcomes if isinstance(outcome, ServerError)]
    assert "and max_tokens is 200: together" in said[0] and "the context is 256; " in said[0]
    assert 'logit_bias is {"5": 1}, which this server does not support' in said[1]
    assert "n is 9; at most 8 continuations" in said[2]
    assert "top_k is many; an integer" in said[3]
    assert "min_p is 2.0; it must lie in [0, 1]" in said[4]
    assert [isinstance(outcome, ContextExceeded) for outcome in outcomes] == [True, *[False] * 5]
    assert all(outcome.status == 400 for i, outcome in enumerate(outcomes) if i != 1)


def test_it_needs_a_chat_template_and_sound_options(served):
    with pytest.raises(ValueError, match="'tiny'.*chat template"):
        LocalLlama(dataclasses.replace(served, template=None))
    with pytest.raises(ValueError, match="max_batch.*0"):
        LocalLlama(served, max_batch=0)
    with pytest.raises(ValueError, match="context.*300.*256"):
        dataclasses.replace(served, context=300)
    with pytest.raises(ValueError, match="token 9999"):
        dataclasses.replace(served, stop_tokens=(9999,))
    with pytest.raises(ValueError, match="name.*empty"):
        dataclasses.replace(served, name="")
    for options, said in (
        ({"max_tokens": 0}, "max_tokens.*0"),
        ({"temperature": -1.0}, "temperature.*-1.0"),
        ({"temperature": float("nan")}, "temperature.*nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty.*0.0"),
        ({"repetition_penalty": 1e-46}, r"repetition_penalty.*1e-46.*\[0.001, 1000\].*1"),
        ({"repetition_penalty": 1e39}, r"repetition_penalty.*1e\+39"),
        ({"temperature": 1e-40}, r"temperature.*1e-40.*\[1e-06, 1e\+06\].*0"),
        ({"temperature": float("inf")}, "temperature.*inf"),
        ({"top_k": -1}, "top_k.*-1.*0"),
        ({"top_k": 2**31}, "top_k.*2147483648"),
        ({"stop": ("a",) * 65}, "65 strings.*64"),
        ({"stop": ("",)}, "stop.*empty"),
    ):
        with pytest.raises(ValueError, match=said):
            Sampling(**{"max_tokens": 1, **options})


def test_a_folder_says_how_its_texts_end(served, tmp_path):
    config = served.model.config
    lm.save_hf(tmp_path / "model", config, served.variables["params"])
    served.tokenizer.save(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    loaded = Served.load(tmp_path / "model")
    assert loaded.name == "model" and loaded.stop_tokens == (config.eos_token_id,) and loaded.context == 256
    assert loaded.template is not None

    # a token that the text above would go on behind
    greedy = Sampling(12, temperature=0.0)
    prompt = Ask(tuple(loaded.encode("Colors: red")), greedy)
    said = generating.generate(
        served.model,
        served.variables,
        np.array([prompt.tokens], np.int32),
        np.array([len(prompt.tokens)], np.int32),
        jax.random.key(0),
        lm.SamplingConfig(12, temperature=0.0),
    ).tokens[0, 0]
    end = int(said[4])
    assert end not in said[:4]
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": [config.eos_token_id, end]}))
    loaded = Served.load(tmp_path / "model")
    assert loaded.stop_tokens == (config.eos_token_id, end)
    last = list(Sampler(loaded).run([prompt]))[-1][0][0]
    assert (last.count, last.finish) == (5, "stop")
    assert last.text == loaded.tokenizer.decode(said[:4])


def test_fingerprints_tell_weights_apart(served):
    params = served.variables["params"]
    again = dataclasses.replace(served, variables={"params": jax.tree.map(jnp.asarray, params)})
    assert again.fingerprint == served.fingerprint
    embedding = np.array(params["embed_tokens"]["embedding"])
    embedding[7, 3] = np.nextafter(embedding[7, 3], 1)
    swapped = np.array(params["embed_tokens"]["embedding"])[::-1].copy()
    prints = {served.fingerprint}
    for other in (embedding, swapped):
        changed = {**params, "embed_tokens": {"embedding": other}}
        prints.add(dataclasses.replace(served, variables={"params": changed}).fingerprint)
    half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), params)
    prints.add(dataclasses.replace(served, variables={"params": half}).fingerprint)
    # a cache of replies must not take one template's for another's
    prints.add(dataclasses.replace(served, template=ChatTemplate(PLAIN, {})).fingerprint)
    prints.add(dataclasses.replace(served, template=ChatTemplate(PLAIN, {"bos_token": "<s>"})).fingerprint)
    prints.add(dataclasses.replace(served, stop_tokens=(*served.stop_tokens, 9)).fingerprint)
    assert len(prints) == 7


def test_adapters_act(served, tmp_path):
    lm.save_hf(tmp_path / "model", served.model.config, served.variables["params"])
    served.tokenizer.save(tmp_path / "model")
    adapted = served.model.clone(lora=lm.LoRAConfig(rank=2))
    variables = random_variables(adapted, scale=1.0)
    variables = {"params": served.variables["params"], "lora": variables["lora"]}
    lm.save_adapter(tmp_path / "adapter", adapted, variables, base="tiny")
    both = Served.load(tmp_path / "model", adapter=tmp_path / "adapter", chat_template="plain")
    assert both.name == "model+adapter" and both.fingerprint != served.fingerprint
    prompt = Ask(tuple(both.encode("Colors: red")), Sampling(12, temperature=0.0))
    merged = {"params": lm.merge(both.variables["params"], both.variables["lora"], both.model.lora)}
    plain = dataclasses.replace(both, model=served.model, variables=merged)
    texts = [list(Sampler(s).run([prompt]))[-1][0][0].text for s in (both, plain, served)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "llama3", "yarn"])
def test_room_for_padding_changes_no_position(kind):
    options = {"llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}}.get(kind, {})
    rope = lm.RopeConfig(type=kind, factor=1.0 if kind == "default" else 2.0, **options)
    model = lm.Llama(dataclasses.replace(CONFIG, rope=rope))
    positions = np.arange(256)[None]
    for before, after in zip(rotations(model.config, positions), rotations(roomy(model).config, positions)):
        np.testing.assert_array_equal(before, after)
    assert roomy(model).config.max_position_embeddings == 512


def test_a_text_far_beyond_the_context_is_not_read_to_its_end(served, monkeypatch):
    read, whole = [], type(served.tokenizer).encode
    monkeypatch.setattr(
        type(served.tokenizer), "encode", lambda self, text: read.append(len(text)) or whole(self, text)
    )
    for text in ("go forward, " * 82_500, "a" * 990_000):
        with pytest.raises(ValueError, match=r"990000 characters.*\d+ tokens.*\d+"):
            served.encode(text)
    assert sum(read) <= 4 * 32 * 256
    assert len(served.encode("go " * 80)) <= 256


@pytest.mark.parametrize(("start", "text"), [(False, " red ball"), (True, "red ball")])
def test_a_completion_begins_with_the_space_after_its_prompt(served, sentencepiece, monkeypatch, start, text):
    """With a tokenizer whose decoder drops it, in every piece of the answer; a reply in a chat has none."""
    tokens = sentencepiece.encode("red ball")
    output = lm.Generation(
        np.array([[tokens]]), np.array([[len(tokens)]]), np.zeros((1, 1, len(tokens))), np.zeros(()), np.array([[1]])
    )
    sampler = Sampler(dataclasses.replace(served, tokenizer=sentencepiece), max_batch=1)
    monkeypatch.setattr(sampler.programs, "advance", lambda *_: SimpleNamespace(output=output))
    for stop in ((), (" green",)):
        how = Sampling(len(tokens), stop=stop, pieces=True)
        ((sample,),) = next(sampler.run([Ask((1,), how, start=start)]))
        assert sample.text == "".join(sample.pieces) == text and sample.finish == "length"


def test_prompts_of_one_seed_draw_apart(served):
    sampler = Sampler(served, max_batch=4)
    how = Sampling(10, seed=5)
    asks = [Ask(tuple(served.encode("red")), how, row) for row in (0, 1)]
    found = list(sampler.run(asks))[-1]
    assert found[0][0].text != found[1][0].text
    want = lm.generate(
        served.model,
        served.variables,
        np.array([asks[0].tokens] * 2, np.int32),
        np.full(2, len(asks[0].tokens), np.int32),
        jax.random.key(5),
        lm.SamplingConfig(10),
    ).texts(served.tokenizer)
    assert [samples[0].text for samples in found] == [row[0] for row in want]
    assert sampler.batches([asks[0]] * 9) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    three = Ask(asks[0].tokens, dataclasses.replace(how, n=3))
    assert sampler.capacity(three) == 1 and sampler.batches([three, asks[0], three]) == [[0], [2], [1]]


def test_empty_and_strange_prompts(served):
    assert served.encode("") == [served.tokenizer.bos_id]
    backend = tokenizers.Tokenizer.from_str(served.tokenizer.backend.to_str())
    backend.post_processor = None
    no_start = dataclasses.replace(served, tokenizer=lm.FastTokenizer(backend))
    with pytest.raises(ValueError, match="prompt.*empty"):
        no_start.encode("")
    with pytest.raises(ValueError, match="token 5000"):
        served.check([1, 5000])
    with pytest.raises(ValueError, match="token -1"):
        served.check([1, -1])
    refusing = dataclasses.replace(served, template=ChatTemplate("{{ raise_exception('users first') }}", {}))
    with pytest.raises(ServerError, match="users first"):
        LocalLlama(refusing, name="x").complete([ask()])
    assert LocalLlama(refusing, name="x").complete([]) == []


def test_stop_strings_end_answers_and_not_thoughts(served, monkeypatch):
    """A sample that ended within its thoughts, or right after, is drawn again without stop strings."""
    texts = {
        "thinks": "<think>\na cow\n\nwater\n</think>\n\n- Drink water\n\nYou see",
        "brief": "<think></think>\n\n- Eat",
        "plain": "- Drink water\n\nYou see",
    }
    stops = []

    def outcomes(self, requests):
        stops.append([bool(request.stop) for request in requests])
        replies = [ChatReply((Choice(texts[r.messages[0].content]).cut(()),), "tiny") for r in requests]
        cut = [
            reply.text[: min((at for s in r.stop if (at := reply.text.find(s)) >= 0), default=None)]
            for r, reply in zip(requests, replies)
        ]
        return [dataclasses.replace(reply, choices=(Choice(text),)) for reply, text in zip(replies, cut)]

    monkeypatch.setattr(LocalLlama, "_outcomes", outcomes)
    replies = LocalLlama(served).complete([ask(name, stop=("\n\n",)) for name in texts])
    assert stops == [[True] * 3, [False] * 2]
    assert [reply.text for reply in replies] == [
        texts["thinks"][: -len("\n\nYou see")],
        texts["brief"],
        "- Drink water",
    ]


def test_thoughts_that_the_template_opens_begin_with_its_tag(served, llama):
    """Parsers of replies look for it; stop strings are then looked for in the answer only."""
    opened = dataclasses.replace(served, template=ChatTemplate(TEMPLATE.replace(">{%", "><think>\n{%"), {}))
    model = LocalLlama(opened, max_batch=8)
    (reply,) = model.complete([ask(stop=("a", "e"), temperature=0.0)])
    assert reply.text.startswith("<think>") and reply.usage.completion_tokens == 12
    assert strip_thinking(reply.text) == ""
    (reply,) = model.complete([ask(extra={"guided_choice": ["red", "blue"]}, seed=None)])
    assert reply.text in ("red", "blue")


def test_thoughts_are_opened_by_request(served, monkeypatch):
    """The tag is that of the request's own prompt: variables and messages may turn thoughts off."""
    off = "enable_thinking is false or '/no_think' in messages[0].content"
    opened = TEMPLATE.replace(">{%", f">{{% if {off} %}}<think></think>{{% else %}}<think>{{% endif %}}{{%")
    stops = []

    def outcomes(self, requests):
        stops.append([bool(request.stop) for request in requests])
        return [ChatReply((Choice("- Eat\n\nYou"),), "tiny") for _ in requests]

    monkeypatch.setattr(LocalLlama, "_outcomes", outcomes)
    model = LocalLlama(dataclasses.replace(served, template=ChatTemplate(opened, {})))
    requests = [
        ask(stop=("\n\n",)),
        ask(stop=("\n\n",), extra={"enable_thinking": False}),
        ask(stop=("\n\n",), extra={"chat_template_kwargs": {"enable_thinking": False}}),
        ask(stop=("\n\n",), extra={"reasoning_effort": "none"}),
        ask("/no_think", stop=("\n\n",)),
    ]
    replies = model.complete(requests)
    assert stops == [[False, True, True, True, True]]
    assert [reply.text for reply in replies] == ["<think>- Eat\n\nYou", *["- Eat"] * 4]
    assert [strip_thinking(reply.text) for reply in replies] == ["", *["- Eat"] * 4]


def test_close_ends_the_replies_that_are_written(served):
    """A process that ends while a thread is in a compiled program aborts."""
    model, writing = LocalLlama(served), threading.Event()

    def run(asks, prefix):
        for _ in range(500):
            writing.set()
            time.sleep(0.01)
            yield [[None]]

    model._sampler.run = run
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(model.complete, [ask()])
        assert writing.wait(10)
        model.close()
        with pytest.raises(ChatError, match="closed"):
            waiting.result(10)
    (outcome,) = outcomes_of(model, [ask()])
    assert isinstance(outcome, ChatError) and outcome.calls == 0
