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


WEIGHTLESS = without("model.safetensors")
"""For what is to be refused before the weights are read, which may take minutes."""


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
    Row("no name", "lm generate x --model ''", "model's name.*empty"),
    Row("no name to tune", "lm sft --model '' --data {data}/rows.jsonl", "model's name.*empty"),
    Row("no name to serve", "serve --model ''", "--model.*empty"),
    Row("no name in GLAM", "glam train --preset demo --model ''", "model's name.*empty"),
    Row("no such folder", "lm generate x --model nowhere", "'nowhere'.*OWNER/NAME"),
    Row("no such folder in GLAM", "glam train --preset demo --model nowhere", "'nowhere'.*OWNER/NAME"),
    Row("no such folder to test", "glam test --preset demo --model nowhere --tests no_modification_test",
        "'nowhere'.*OWNER/NAME", compiles=KEYS),
    Row("a file", "lm generate x --model {data}/rows.jsonl", "rows.jsonl.*GGUF"),
    Row("an empty folder", "lm generate x --model {tmp}", r"no config\.json.*model"),
    Row("an empty folder in GLAM", "glam train --preset demo --model {tmp}", r"no config\.json.*model"),
    Row("no tokenizer.json", GENERATE, "tokenizer.json.*tokenizer.json",
        prepare=without("tokenizer.json")),
    Row("no tokenizer.json to tune", SFT, "tokenizer.json.*tokenizer.json",
        prepare=without("tokenizer.json")),
    Row("no weights", GENERATE, r"no weights.*model\.safetensors",
        prepare=without("model.safetensors")),
    Row("weights cut short", GENERATE, r"model\.safetensors.*damaged", prepare=cut),
    Row("weights of text", GENERATE, r"model\.safetensors.*damaged",
        files={WEIGHTS: "weights"}),
    Row("NaN weights", GENERATE,
        "model.norm.weight.*NaN",
        prepare=poisoned(np.nan), compiles=READ),
    Row("infinite weights to tune", SFT, "model.norm.weight.*NaN",
        prepare=poisoned(-np.inf), compiles=READ),
    Row("NaN weights to serve", "serve --model {model} --port 0",
        "model.norm.weight.*NaN",
        prepare=poisoned(np.nan), compiles=READ),
    Row("config.json is a list", GENERATE, "config.json.*JSON",
        files={"model/config.json": "[]"}),
    Row("config.json is bytes", GENERATE, "config.json", files={"model/config.json": b"\xff\xfe\x00"}),
    Row("a width of text", GENERATE, "config.json.*hidden_size.*'wide'", prepare=config(hidden_size="wide")),
    Row("a fraction of a layer", GENERATE, r"config.json.*num_hidden_layers.*1\.5",
        prepare=config(num_hidden_layers=1.5)),
    Row("a billion layers", GENERATE, "config.json.*num_hidden_layers.*1000000000",
        prepare=config(num_hidden_layers=10**9)),
    Row("an end beyond the vocabulary", GENERATE, "config.json.*eos_token_id.*99",
        prepare=config(eos_token_id=99)),
    Row("another architecture", FIT, "model_type 'gpt2'", prepare=config(model_type="gpt2")),
    Row("an adapter of nothing", f"{GENERATE} --adapter nowhere", "'nowhere'", compiles=READ),
    Row("an adapter that is a model", f"{GENERATE} --adapter {{model}}", "adapter_config.json", compiles=READ),
    Row("no template to chat with", f"{GENERATE} --chat", "chat template.*--chat"),
)  # fmt: skip

GENERATING = (
    Row("an unknown word", "lm generate zebra --model {model}", "'zebra'.*among.*12"),
    Row("no prompt", "lm generate '' --model {model}", "prompt.*empty"),
    Row("no tokens", f"{GENERATE} --max-new-tokens 0", "--max-new-tokens.* 0;.*1"),
    Row("too many tokens", f"{GENERATE} --max-new-tokens 1e9",
        "--max-new-tokens.*1000000000.*24.*19"),
    Row("a fraction of a token", f"{GENERATE} --max-new-tokens 1.5", "--max-new-tokens: '1.5'"),
    Row("no samples", f"{GENERATE} --samples 0", "--samples.*0.*1"),
    Row("NaN temperature", f"{GENERATE} --temperature nan",
        "--temperature.*nan; 0.*1e-06"),
    Row("negative temperature", f"{GENERATE} --temperature=-1", "--temperature.*-1.0; 0"),
    Row("negative top-k", f"{GENERATE} --top-k=-1", "--top-k.*-1"),
    Row("NaN top-p", f"{GENERATE} --top-p nan", "--top-p.*nan"),
    Row("top-p above 1", f"{GENERATE} --top-p 2", "--top-p.*2.0"),
    Row("NaN min-p", f"{GENERATE} --min-p nan", "--min-p.*nan"),
    Row("a temperature of nothing", f"{GENERATE} --temperature 1e-46",
        "--temperature.*1e-46; 0"),
    Row("an endless penalty", f"{GENERATE} --repetition-penalty 1e46",
        "--repetition-penalty.*1e.46.*0.001.*1000"),
    Row("no penalty at all", f"{GENERATE} --repetition-penalty 0", "--repetition-penalty is 0.0; "),
    Row("a negative seed of sampling", f"{GENERATE} --seed=-1", "--seed.*-1.*0.*4294967295"),
    Row("a seed of sampling of 40 bits", f"{GENERATE} --seed 1e12", "--seed.*1000000000000.*0.*4294967295"),
    Row("an empty stop string", f"{GENERATE} --stop ''", "string.*empty"),
    Row("a stop string that cannot be", f"{GENERATE} --stop zebra", "stop string 'zebra'"),
    Row("another quantisation", f"{GENERATE} --quantize int3", "'int3'.*'--quantize'"),
)  # fmt: skip

TUNING = (
    Row("a batch larger than the data", f"{SFT} --sft.batch-size 9 --no-pack",
        "3.*9.*--sft.batch-size", prepare=WEIGHTLESS),
    Row("parts of a batch", f"{SFT} --sft.microbatches 2", "--sft.batch-size 1.*--sft.microbatches 2"),
    Row("a chunk that does not divide", f"{SFT} --sft.head-chunk 3",
        "--sft.head-chunk.*3.*8", prepare=WEIGHTLESS),
    Row("rows beyond the positions", f"{SFT} --length 99", "--length.*99.*24"),
    Row("no rank", f"{SFT} --lora.rank 0", "--lora.rank.*0.*1.*LoRA"),
    Row("no targets", f"{SFT} --lora.targets", "--lora.targets.*empty.*q_proj"),
    Row("a wrong target", f"{SFT} --lora.targets q_prj", "--lora.targets.*'q_prj'.*'q_proj'"),
    Row("a quantised base that is trained", f"{SFT} --tune full --quantize int8",
        "--tune lora.*--quantize"),
    Row("more devices than there are", f"{SFT} --mesh data=999", "data=999.*999"),
    Row("more prompts than rows", f"{GRPO} --grpo.prompts 4", "3.*--grpo.prompts",
        prepare=WEIGHTLESS),
    Row("groups that do not divide", f"{GRPO} --grpo.minibatches 7",
        "--grpo.prompts 3 x --grpo.group 8 = 24.*--grpo.minibatches 7"),
    Row("an answer beyond the positions", f"{GRPO} --grpo.max-new-tokens 20",
        r"20 \(--grpo.max-new-tokens\).*24"),
    Row("a misspelt reward", GRPO.replace("contains", "contain"), "'contain'.*'contains'"),
    Row("a reward without a file", GRPO.replace("contains", ":f"), "reward.*':f'; FILE.py:FUNCTION"),
    Row("an end token beyond the vocabulary", f"{GRPO} --grpo.stop-tokens 99",
        "--grpo.stop-tokens.*99.*vocabulary.*0.*15", prepare=WEIGHTLESS),
    Row("a stop string to tune with that cannot be", f"{GRPO} --stop zebra", "stop string 'zebra'", prepare=WEIGHTLESS),
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
    Row("parts that do not divide", f"{FIT} --microbatches 3", "--microbatches.*3.*--batch-size 16"),
    Row("a chunk that does not fit", f"{FIT} --head-chunk 3", "--head-chunk.*3.*8"),
    Row("no memory", f"{FIT} --memory 0", "memory.*'0'"),
    Row("memory of words", f"{FIT} --memory lots", "memory.*'lots'.*16GiB"),
    Row("the settings of another command", f"{FIT} --config {{cartpole}}/config.json",
        "`llmrl rl train`.*`llmrl lm fit`"),
)  # fmt: skip

ROWS = (*PLACES, *GENERATING, *TUNING, *FITTING)
