"""Generating against Hugging Face transformers: greedy tokens in float32, scores, and its logit processors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.lm.generate import Finish, generate
from llmrl_jax.lm.sampling import SamplingConfig, process
from llmrl_jax.lm.stops import StopStrings
from tests.parity.lm_cases import Case


pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NEW = 40
LENGTHS = np.array([30, 7, 1, 22], np.int32)
TOKENS = np.random.default_rng(3).integers(3, 64, (4, 30)).astype(np.int32)
KEY = jax.random.key(0)
CASES = [
    Case("default", 1e4, 2, False, 8, False),
    Case("llama3", 5e5, 8, True, 16, False),
    Case("yarn", 1e6, 1, False, 24, False),
]


def theirs(folder, **options):
    """transformers' `generate` of each row alone: the new tokens and the scores before them, `[4]` lists."""
    model = transformers.LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    rows = []
    for row, length in enumerate(LENGTHS):
        prompt = torch.tensor(TOKENS[row : row + 1, :length]).long()
        with torch.no_grad():
            out = model.eval().generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False, pad_token_id=0,
                return_dict_in_generate=True, output_logits=True, **options,
            )  # fmt: skip
        logits = np.stack([x[0].numpy() for x in out.logits])
        rows.append((out.sequences[0, length:].numpy(), logits))
    return rows


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_greedy_is_that_of_transformers(case, penalty, tmp_path):
    model, variables = lm.load(case.write(tmp_path))
    config = SamplingConfig(NEW, temperature=0.0, repetition_penalty=penalty, stop_tokens=())
    out = generate(model, variables, TOKENS, LENGTHS, KEY, config)
    for row, (tokens, logits) in enumerate(theirs(tmp_path, repetition_penalty=penalty, eos_token_id=None)):
        np.testing.assert_array_equal(out.tokens[row, 0], tokens)
        want = np.asarray(jax.nn.log_softmax(logits))[np.arange(NEW), tokens]
        np.testing.assert_allclose(out.log_probs[row, 0], want, atol=1e-4)
    assert penalty == 1.0 or len(np.unique(out.tokens)) > 30


def test_stop_tokens_are_those_of_transformers(tmp_path):
    model, variables = lm.load(CASES[0].write(tmp_path))
    free = theirs(tmp_path, eos_token_id=None)
    stops = [int(free[0][0][5]), int(free[1][0][9])]
    out = generate(model, variables, TOKENS, LENGTHS, KEY, SamplingConfig(NEW, temperature=0.0, stop_tokens=stops))
    for row, (tokens, _) in enumerate(theirs(tmp_path, eos_token_id=stops)):
        assert out.lengths[row, 0] == len(tokens)
        np.testing.assert_array_equal(out.tokens[row, 0, : len(tokens)], tokens)
        assert (out.finish[row, 0] == Finish.STOP_TOKEN) == (tokens[-1] in stops)


def test_stop_strings_are_those_of_transformers(tmp_path):
    """Their criterion also looks into the prompt; here a letter of the alphabet that prompts do not use begins each."""
    model, variables = lm.load(CASES[0].write(tmp_path))
    import tokenizers
    from tokenizers import decoders, models

    rng = np.random.default_rng(0)
    names = ["<pad>", "<s>", "</s>", *"abcdefghij"]
    while len(names) < 64:
        name = "".join(rng.choice(list("abcdefghijĠ"), 3))
        names += [] if name in names else [name]
    backend = tokenizers.Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    backend.decoder = decoders.ByteLevel()
    ours = lm.FastTokenizer(backend)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    free = theirs(tmp_path, eos_token_id=None)
    found = 0
    for row in range(4):
        prompt = ours.decode(TOKENS[row, : LENGTHS[row]])
        text = ours.decode(free[row][0])
        strings = [s for i in range(4, 30) if (s := text[i : i + 4]) not in prompt + text[: i + 3]][:2]
        stops = StopStrings.build(ours, strings, 64)
        out = generate(
            model, variables, TOKENS, LENGTHS, KEY, SamplingConfig(NEW, temperature=0.0, stop_tokens=()), stops=stops
        )
        want = theirs(tmp_path, eos_token_id=None, stop_strings=strings, tokenizer=fast)[row][0]
        # Theirs may begin in the prompt: compared where the text alone decides.
        if any(s in ours.decode(want) for s in strings):
            found += 1
            np.testing.assert_array_equal(out.tokens[row, 0, : int(out.lengths[row, 0])], want)
            assert out.finish[row, 0] == Finish.STOP_STRING
    assert found >= 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"top_k": 10},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"repetition_penalty": 1.7},
        {"temperature": 1.4, "top_k": 30, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2},
    ],
    ids=str,
)
def test_processors_are_those_of_transformers(options, seed):
    rng = np.random.default_rng(seed)
    logits = (3 * rng.standard_normal((4, 100))).astype(np.float32)
    ids = rng.integers(0, 100, (4, 20))
    kinds = {
        "repetition_penalty": transformers.RepetitionPenaltyLogitsProcessor,
        "temperature": transformers.TemperatureLogitsWarper,
        "top_k": transformers.TopKLogitsWarper,
        "top_p": transformers.TopPLogitsWarper,
        "min_p": transformers.MinPLogitsWarper,
    }
    want = torch.tensor(logits)
    for name, kind in kinds.items():
        if name in options:
            want = kind(options[name])(torch.tensor(ids), want)
    seen = np.zeros((4, 1, 100), bool)
    np.put_along_axis(seen[:, 0], ids, True, axis=1)
    got = process(jnp.asarray(logits)[:, None], jnp.asarray(seen), SamplingConfig(1, **options))[:, 0]
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)
