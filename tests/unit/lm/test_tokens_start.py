"""What comes before a text: what the tokenizer puts there, in every place where a model reads a text."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from envs_jax.text import Literal, Prompt, PromptError
from llmrl_jax import lm
from llmrl_jax.lm.tokens import FastTokenizer, WordTokenizer, load_tokenizer
from llmrl_jax.serve import Served
from llmrl_jax.serve.scorer import Scorer
from llmrl_jax.systems.glam.build import check_vocabulary
from llmrl_jax.tuning import ChatTemplate, encode_prompt, encode_row
from tests.tokenizer_fixtures import begins_with


TEXT = "Possible action of the agent: turn left"
BOS = "<|begin_of_text|>"


def kinds(bpe) -> dict[str, tuple[FastTokenizer, list[int]]]:
    """Tokenizers that name the same token, and what each puts before a text."""
    template = begins_with(BOS, bpe.backend)
    both = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    closed = processors.TemplateProcessing(
        single=f"{BOS} $A <|end_of_text|>", pair="$A $B", special_tokens=[(BOS, 0), ("<|end_of_text|>", 1)]
    )
    found = {}
    for name, processor, start in (
        ("llama 3", both, [0]),
        ("template", template, [0]),
        ("an end too", closed, [0]),
        ("roberta", processors.RobertaProcessing(("<|end_of_text|>", 1), (BOS, 0)), [0]),
        ("smollm2", processors.ByteLevel(trim_offsets=False), []),
        ("none", None, []),
    ):
        backend = Tokenizer.from_str(bpe.backend.to_str())
        backend.post_processor = processor
        found[name] = FastTokenizer(backend, **bpe.specials), start
    return found


KINDS = ("llama 3", "template", "an end too", "roberta", "smollm2", "none")


@pytest.mark.parametrize("name", KINDS)
def test_the_post_processor_decides(bpe, name, tmp_path):
    tokenizer, start = kinds(bpe)[name]
    assert (list(tokenizer.prefix_ids), tokenizer.bos_id) == (start, 0)
    plain = tokenizer.encode(TEXT)
    assert plain[0] != 0, "a part of a text begins with no special token"
    assert tokenizer.encode_start(TEXT) == start + plain
    assert tokenizer.encode_start(BOS + TEXT) == [0, *plain], "it is not repeated where the text spells it"
    assert tokenizer.encode_start("") == [0], "something to start from"
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).prefix_ids == tokenizer.prefix_ids


@pytest.mark.parametrize("add", [None, True, False])
@pytest.mark.parametrize("name", ["llama 3", "template", "roberta", "smollm2", "none"])
def test_it_is_what_transformers_puts_there(bpe, name, add, tmp_path):
    from transformers import PreTrainedTokenizerFast

    tokenizer, _ = kinds(bpe)[name]
    tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | ({} if add is None else {"add_bos_token": add})))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path).encode(TEXT)
    ours = load_tokenizer(tmp_path).encode_start(TEXT)
    assert theirs[: len(ours)] == ours and len(theirs) == len(ours) + (name == "roberta")


def test_a_prefix_may_have_several_tokens_and_a_vocabulary_of_words(tmp_path):
    words = WordTokenizer.from_texts(["go left"])
    words.backend.post_processor = processors.TemplateProcessing(
        single="left <eos> $A", pair="$A $B", special_tokens=[("left", 3), ("<eos>", 1)]
    )
    words.save(tmp_path)
    read = load_tokenizer(tmp_path)
    assert read.prefix_ids == (3, 1) and read.encode_start("go") == [3, 1, 2] and read.encode_start("") == [3, 1]
    assert WordTokenizer.from_texts(["go"]).encode_start("") == []


@pytest.mark.parametrize("name", ["llama 3", "smollm2"])
def test_every_place_asks_the_tokenizer(bpe, name, tmp_path, monkeypatch):
    tokenizer, start = kinds(bpe)[name]
    prompt, response = "Possible action:", " drop"
    head, both = bpe.encode(prompt), bpe.encode(prompt + response)
    # rows of fine-tuning
    example = encode_row({"prompt": prompt, "response": response}, "f:1", tokenizer)
    assert example.tokens == [*start, *both, 1]
    assert example.learn == [False] * len(start + head) + [True] * (len(both) - len(head) + 1)
    assert encode_row({"prompt": "", "response": "drop"}, "f:1", tokenizer).tokens == [0, *bpe.encode("drop"), 1]
    # prompts of GRPO, and chat without and with a template that writes the token itself
    assert encode_prompt({"prompt": prompt}, "f:1", tokenizer)[1] == start + head
    tokenizer.save(tmp_path)
    said = {"messages": [{"role": "user", "content": prompt}]}
    plain = ChatTemplate.load(tmp_path, "plain")
    own = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", tokenizer.specials)
    assert encode_prompt(said, "f:1", tokenizer, plain) == (prompt, start + head)
    assert encode_prompt(said, "f:1", tokenizer, own) == (BOS + prompt, [0, *head])
    chat = {"messages": [*said["messages"], {"role": "assistant", "content": "drop"}]}
    answered = encode_row(chat, "f:1", tokenizer, plain)
    assert answered.tokens == [*start, *bpe.encode(prompt + "\n\ndrop"), 1]
    assert answered.learn.index(True) >= len(start + head), "the prefix and the prompt are context"
    # the server: completions, scores and chat
    model = lm.Llama(lm.LlamaConfig(bpe.vocab_size, 16, 24, 1, 2))
    served = Served("tiny", model, {}, tokenizer, plain)
    assert served.encode(prompt) == start + head and served.encode("") == [0]
    assert served.encode_chat(said["messages"]) == start + head
    pair = Scorer(served).encode(prompt, response)
    assert pair.prompt == (*start, *head) and pair.candidate == tuple(both[len(head) :])
    # prompts of worlds
    compiled = Prompt(Literal(prompt)).compile(tokenizer)
    assert np.asarray(compiled({})[0]).tolist() == start + head and compiled.top_token == max(head)
    check_vocabulary(compiled, max(head) + 1, "m")
    with pytest.raises(ValueError, match=f"{max(head)}.*0 to {max(head) - 1}:"):
        check_vocabulary(compiled, max(head), "m")
    forced = [np.asarray(Prompt(Literal(prompt)).compile(tokenizer, bos=b)({})[0]).tolist() for b in (True, False)]
    assert forced == [[0, *head], head]
    with pytest.raises(PromptError, match="bos asks"):
        Prompt(Literal(prompt)).compile(FastTokenizer(tokenizer.backend), bos=True)
    # the command
    from llmrl_jax.cli.commands.lm import generate

    def stop(llama, variables, rows, lengths, *args, **options):
        raise InterruptedError(str(np.asarray(rows).tolist()))

    (tmp_path / "config.json").write_text(json.dumps(model.config.to_hf()))
    (tmp_path / "chat_template.jinja").write_text(own.source)
    monkeypatch.setattr(lm, "load", lambda *args, **options: (SimpleNamespace(config=model.config), {}))
    monkeypatch.setattr(lm, "end_tokens", lambda *args: (1,))
    monkeypatch.setattr(lm, "stream", stop)
    monkeypatch.setattr(lm, "generate", stop)
    with pytest.raises(InterruptedError) as found:
        generate(str(tmp_path), prompt)
    assert json.loads(str(found.value)) == [start + head]
    with pytest.raises(InterruptedError) as found:
        generate(str(tmp_path), prompt, chat=True)
    assert json.loads(str(found.value)) == [[0, *head]], "the template writes it"


@pytest.mark.parametrize("kind", ["bare", "words"])
def test_texts_that_are_not_unicode_are_refused(bare, kind):
    tokenizer = bare if kind == "bare" else WordTokenizer.from_texts(["go"], spare=4)
    with pytest.raises(ValueError, match=r"'\\ud800'.*1"):
        tokenizer.encode("a\ud800")
    with pytest.raises(ValueError, match="character 0"):
        tokenizer.encode_batch(["go", "\udfff"])


def test_files_of_tokenizers_that_are_wrong_are_named(bpe, tmp_path):
    bpe.save(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    for text, message in (
        ("[]", r"tokenizer_config\.json.*list.*JSON"),
        ("{", "tokenizer_config.json.*not JSON"),
        ('{"bos_token": 1}', r"tokenizer_config\.json.*bos_token.*1.*text"),
        ('{"bos_token": "<s>"}', "tokenizer_config.json.*bos_token '<s>'"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_tokenizer(tmp_path)
