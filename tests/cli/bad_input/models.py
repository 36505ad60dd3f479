"""Bad input about models and data: folders, weights, adapters, rewards, and the flags of `llmrl lm`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.cli.bad_input.row import Row


GENERATE = "lm generate 'what colour is grass ?' --model {model} --max-new-tokens 3"
SFT = "lm sft --model {model} --data {data}/rows.jsonl --length 8 --sft.batch-size 1 --run.out {tmp}/runs"
GRPO = (
    "lm grpo --model {model} --data {data}/rows.jsonl --reward contains --grpo.prompts 3 --grpo.max-new-tokens 4 "
    "--run.out {tmp}/runs"
)
FIT = "lm fit --model {model} --length 8 --new-tokens 4"
WEIGHTS = "model/model.safetensors"
READ = r"jit\(<lambda>\)|broadcast_in_dim"
"""Programs of a few lines that place weights on the device."""
KEYS = r"jit\((stage|unstack|_threefry_\w+|convert_element_type)\)"
"""Programs of a few lines that make random keys."""


def poisoned(value: float):
    """Put one value that is not finite into the weights."""

    def write(tmp: Path) -> None:
        tensors = load_file(tmp / WEIGHTS)
        tensors["model.norm.weight"] = np.full_like(tensors["model.norm.weight"], value)
        save_file(tensors, tmp / WEIGHTS)

    return write


def cut(tmp: Path) -> None:
    """Cut the weights short, as a download that was interrupted."""
    path = tmp / WEIGHTS
    path.write_bytes(path.read_bytes()[:-40])


def without(name: str):
    return lambda tmp: (tmp / "model" / name).unlink()


def config(**changes: object):
    """Change fields of the model's config.json."""

    def write(tmp: Path) -> None:
        path = tmp / "model" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return write


def reward(name: str, source: str, error: str, **how: object) -> Row:
    """A reward of the user that cannot be used; without source there is no file."""
    files = {"r.py": source} if source else {}
    return Row(f"a reward: {name}", GRPO.replace("contains", "{tmp}/r.py:f"), error, files=files, **how)  # type: ignore[arg-type]


PLACES = (
    Row("no name", "lm generate x --model ''", "model's name is empty; give a folder"),
    Row("no name to tune", "lm sft --model '' --data {data}/rows.jsonl", "model's name is empty; give a folder"),
    Row("no name to serve", "serve --model ''", "--model is empty; name a model folder"),
    Row("no name in GLAM", "glam train --preset demo --model ''", "model's name is empty; give a folder"),
    Row("no such folder", "lm generate x --model nowhere", "no model folder 'nowhere' .*OWNER/NAME"),
    Row("no such folder in GLAM", "glam train --preset demo --model nowhere", "no model folder 'nowhere' .*OWNER/NAME"),
    Row("no such folder to test", "glam test --preset demo --model nowhere --tests no_modification_test",
        "no model folder 'nowhere' .*OWNER/NAME", compiles=KEYS),
    Row("a file", "lm generate x --model {data}/rows.jsonl", "rows.jsonl is a file, and not a GGUF file; give a"),
    Row("an empty folder", "lm generate x --model {tmp}", "holds no config.json: it is not a model folder"),
    Row("an empty folder in GLAM", "glam train --preset demo --model {tmp}", "holds no config.json: it is not a model"),
    Row("no tokenizer.json", GENERATE, "has no tokenizer.json: copy the model's tokenizer.json",
        prepare=without("tokenizer.json")),
    Row("no tokenizer.json to tune", SFT, "has no tokenizer.json: copy the model's tokenizer.json",
        prepare=without("tokenizer.json")),
    Row("no weights", GENERATE, "holds no weights, neither model.safetensors nor",
        prepare=without("model.safetensors")),
    Row("weights cut short", GENERATE, "is damaged or cut short: .*; copy or download it again", prepare=cut),
    Row("weights of text", GENERATE, "is damaged or cut short: .*; copy or download it again",
        files={WEIGHTS: "weights"}),
    Row("NaN weights", GENERATE,
        "the tensor model.norm.weight has values that are NaN or infinite, .*download it again",
        prepare=poisoned(np.nan), compiles=READ),
    Row("infinite weights to tune", SFT, "the tensor model.norm.weight has values that are NaN or infinite",
        prepare=poisoned(-np.inf), compiles=READ),
    Row("NaN weights to serve", "serve --model {model} --port 0",
        "the tensor model.norm.weight has values that are NaN",
        prepare=poisoned(np.nan), compiles=READ),
    Row("config.json is a list", GENERATE, "config.json holds list, not a JSON object",
        files={"model/config.json": "[]"}),
    Row("config.json is bytes", GENERATE, "config.json", files={"model/config.json": b"\xff\xfe\x00"}),
    Row("a width of text", GENERATE, "config.json: .*hidden_size is 'wide'", prepare=config(hidden_size="wide")),
    Row("a fraction of a layer", GENERATE, r"config.json: .*num_hidden_layers is 1\.5",
        prepare=config(num_hidden_layers=1.5)),
    Row("a billion layers", GENERATE, "config.json: .*num_hidden_layers is 1000000000",
        prepare=config(num_hidden_layers=10**9)),
    Row("an end beyond the vocabulary", GENERATE, "config.json: .*eos_token_id is 99",
        prepare=config(eos_token_id=99)),
    Row("another architecture", FIT, "model_type 'gpt2' is not supported", prepare=config(model_type="gpt2")),
    Row("an adapter of nothing", f"{GENERATE} --adapter nowhere", "no model folder 'nowhere'", compiles=READ),
    Row("an adapter that is a model", f"{GENERATE} --adapter {{model}}", "holds no adapter_config.json", compiles=READ),
    Row("no template to chat with", f"{GENERATE} --chat", "has no chat template; leave --chat out"),
)  # fmt: skip

GENERATING = (
    Row("an unknown word", "lm generate zebra --model {model}", "the word 'zebra' is not among the 12"),
    Row("no prompt", "lm generate '' --model {model}", "the prompt is empty"),
    Row("no tokens", f"{GENERATE} --max-new-tokens 0", "--max-new-tokens is 0; at least 1 is needed"),
    Row("too many tokens", f"{GENERATE} --max-new-tokens 1e9",
        "--max-new-tokens is 1000000000; the model has 24 .*at most 19"),
    Row("a fraction of a token", f"{GENERATE} --max-new-tokens 1.5", "--max-new-tokens: '1.5' is not a whole number"),
    Row("no samples", f"{GENERATE} --samples 0", "--samples is 0; at least 1 is needed"),
    Row("NaN temperature", f"{GENERATE} --temperature nan",
        "--temperature is nan; 0, which is greedy, or from 1e-06 to"),
    Row("negative temperature", f"{GENERATE} --temperature=-1", "--temperature is -1.0; 0, which is greedy, or"),
    Row("negative top-k", f"{GENERATE} --top-k=-1", "--top-k is -1; "),
    Row("NaN top-p", f"{GENERATE} --top-p nan", "--top-p is nan; "),
    Row("top-p above 1", f"{GENERATE} --top-p 2", "--top-p is 2.0; "),
    Row("NaN min-p", f"{GENERATE} --min-p nan", "--min-p is nan; "),
    Row("a temperature of nothing", f"{GENERATE} --temperature 1e-46",
        "--temperature is 1e-46; 0, which is greedy, or"),
    Row("an endless penalty", f"{GENERATE} --repetition-penalty 1e46",
        "--repetition-penalty is 1e.46; from 0.001 to 1000"),
    Row("no penalty at all", f"{GENERATE} --repetition-penalty 0", "--repetition-penalty is 0.0; "),
    Row("a negative seed of sampling", f"{GENERATE} --seed=-1", "--seed is -1; from 0 to 4294967295 is needed"),
    Row("a seed of sampling of 40 bits", f"{GENERATE} --seed 1e12", "--seed is 1000000000000; from 0 to 4294967295"),
    Row("an empty stop string", f"{GENERATE} --stop ''", "a stop string is empty"),
    Row("a stop string that cannot be", f"{GENERATE} --stop zebra", "the stop string 'zebra' cannot occur"),
    Row("another quantisation", f"{GENERATE} --quantize int3", "invalid choice 'int3' for argument '--quantize'"),
)  # fmt: skip

TUNING = (
    Row("a batch larger than the data", f"{SFT} --sft.batch-size 9 --no-pack",
        "data make 3 rows, fewer than the 9 of one batch: lower --sft.batch-size", compiles=READ),
    Row("parts of a batch", f"{SFT} --sft.microbatches 2", "--sft.batch-size 1 is not divided by --sft.microbatches 2"),
    Row("a chunk that does not divide", f"{SFT} --sft.head-chunk 3",
        "--sft.head-chunk is 3; it must divide the 8 tokens of a row", compiles=READ),
    Row("rows beyond the positions", f"{SFT} --length 99", "--length is 99, but the model has 24 positions"),
    Row("no rank", f"{SFT} --lora.rank 0", "--lora.rank is 0; at least 1 is needed .leave LoRA out"),
    Row("no targets", f"{SFT} --lora.targets", "--lora.targets is empty; name some of q_proj"),
    Row("a wrong target", f"{SFT} --lora.targets q_prj", "--lora.targets has 'q_prj', .*did you mean 'q_proj'"),
    Row("a quantised base that is trained", f"{SFT} --tune full --quantize int8",
        "take --tune lora, or leave --quantize"),
    Row("more devices than there are", f"{SFT} --mesh data=999", "data=999 needs 999 devices"),
    Row("more prompts than rows", f"{GRPO} --grpo.prompts 4", "there are 3 prompts, .*lower --grpo.prompts",
        compiles=READ),
    Row("groups that do not divide", f"{GRPO} --grpo.minibatches 7",
        "--grpo.prompts 3 x --grpo.group 8 = 24 rows are not divided by --grpo.minibatches 7"),
    Row("an answer beyond the positions", f"{GRPO} --grpo.max-new-tokens 20",
        r"completion up to 20 \(--grpo.max-new-tokens\): more than the model's 24 positions"),
    Row("a misspelt reward", GRPO.replace("contains", "contain"), "no reward 'contain'; did you mean 'contains'"),
    Row("a reward without a file", GRPO.replace("contains", ":f"), "reward is ':f'; FILE.py:FUNCTION is needed"),
    Row("an end token beyond the vocabulary", f"{GRPO} --grpo.stop-tokens 99",
        "--grpo.stop-tokens has 99, which cannot occur: the model's vocabulary is 0 to 15", compiles=READ),
    reward("no file", "", "there is no file .*r.py to take the reward"),
    reward("no function", "def g(prompts, completions, rows): ...", "r.py has no function 'f'"),
    reward("not Python", "def f(:", "r.py raised SyntaxError when it was executed .*; correct the file"),
    reward("a module that raises", "raise RuntimeError('no')", "r.py raised RuntimeError .*: no; correct the file"),
    reward("text for a number", "def f(prompts, completions, rows): return ['a' for _ in completions]",
        "reward's function",
        compiles=READ),
    reward("too few numbers", "def f(prompts, completions, rows): return [1.0] * 7", "reward's function",
        compiles=READ),
    reward("NaN", "def f(prompts, completions, rows): return [float('nan') for _ in completions]", "reward's function",
        compiles=READ),
    reward("an import that fails", "from math import foo", "r.py raised ImportError .*foo.*; correct the file"),
    reward("a missing import", "import no_such", "r.py raised ModuleNotFoundError .*'no_such'; correct the file"),
    reward("a program that exits", "raise SystemExit", "r.py raised SystemExit .*; correct the file"),
    reward("a number beyond all floats", "def f(prompts, completions, rows): return [10**400 for _ in completions]",
        "reward's function gave .*int too large", compiles=READ),
    reward("another signature", "def f(): return 1.0", "reward's function", compiles=READ),
)  # fmt: skip

FITTING = (
    Row("parts that do not divide", f"{FIT} --microbatches 3", "--microbatches is 3; it must divide --batch-size 16"),
    Row("a chunk that does not fit", f"{FIT} --head-chunk 3", "--head-chunk is 3; it must divide length, 8"),
    Row("no memory", f"{FIT} --memory 0", "memory is '0'; a device has some"),
    Row("memory of words", f"{FIT} --memory lots", "memory is 'lots'; a size is needed, as 16GiB"),
    Row("the settings of another command", f"{FIT} --config {{cartpole}}/config.json",
        "has the options of `llmrl rl train`, not of `llmrl lm fit`"),
)  # fmt: skip

ROWS = (*PLACES, *GENERATING, *TUNING, *FITTING)
