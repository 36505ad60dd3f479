"""Bad input about GGUF files and models by name. `tests/unit/lm/test_gguf.py` has the faults within files."""

from __future__ import annotations

import struct
from pathlib import Path

from llmrl_jax import lm
from tests.cli.bad_input.models import READ
from tests.cli.bad_input.row import Row
from tests.gguf_files import metadata, write
from tests.lm_random import random_variables


GENERATE = "lm generate hello --model {tmp}/model.gguf --max-new-tokens 3"
CONFIG = lm.LlamaConfig(4, 8, 16, 1, 2, 1, max_position_embeddings=24, tie_word_embeddings=True)
TOKENS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["h", "e", "l", "he"],
    "tokenizer.ggml.merges": ["h e"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1],
}


def gguf(change=None, *, arch: str = "llama", **fields: object):
    """Write a model, with changed fields, and change its bytes."""

    def prepare(tmp: Path) -> None:
        from safetensors.numpy import load_file

        folder = lm.save_hf(tmp / "hf", CONFIG, random_variables(lm.Llama(CONFIG))["params"])
        tensors = load_file(folder / "model.safetensors")
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        said = metadata(CONFIG, arch) | TOKENS | {name.replace("__", "."): value for name, value in fields.items()}
        kept = {name: value for name, value in said.items() if value is not None}
        path = write(tmp / "model.gguf", tensors, kept, arch=arch, heads=(2, 1))
        if change is not None:
            path.write_bytes(change(path.read_bytes()))

    return prepare


def patched(at: int, form: str, value: int):
    return lambda raw: raw[:at] + struct.pack(form, value) + raw[at + struct.calcsize(form) :]


FILES = (
    Row("a text", "lm generate x --model {tmp}/notes.txt", "notes.txt.*GGUF",
        files={"notes.txt": "hello"}),
    Row("a text called gguf", GENERATE, "model.gguf.*GGUF.*GGUF",
        files={"model.gguf": "hello"}),
    Row("nothing called gguf", GENERATE, r"model\.gguf.*not a GGUF", files={"model.gguf": ""}),
    Row("only the first bytes", GENERATE, r"model\.gguf.*cut.*header",
        files={"model.gguf": b"GGUF\3\0\0\0"}),
    Row("the header cut", GENERATE, r"model\.gguf.*cut.*header", prepare=gguf(lambda raw: raw[:400])),
    Row("the weights cut", GENERATE, "model.gguf.*tensor",
        prepare=gguf(lambda raw: raw[:-40])),
    Row("the weights cut, to serve", "serve --model {tmp}/model.gguf --port 0", "model.gguf.*tensor",
        prepare=gguf(lambda raw: raw[:-40])),
    Row("the weights cut, in GLAM", "glam train --preset demo --model {tmp}/model.gguf",
        "model.gguf.*tensor", prepare=gguf(lambda raw: raw[:-40])),
    Row("the weights cut, to convert", "lm convert --model {tmp}/model.gguf --out {tmp}/out",
        "model.gguf.*tensor", prepare=gguf(lambda raw: raw[:-40])),
    Row("a version", GENERATE, "model.gguf.*GGUF.*7.*2, 3", prepare=gguf(patched(4, "<I", 7))),
    Row("big-endian", GENERATE, "version 3", prepare=gguf(patched(4, ">I", 3))),
    Row("a count of fields", GENERATE, "model.gguf", prepare=gguf(patched(16, "<Q", 2**63))),
    Row("an architecture", GENERATE, "'gemma9'",
        prepare=gguf(arch="gemma9")),
    Row("no layers", GENERATE, r"lack.*llama\.block_count", prepare=gguf(llama__block_count=None)),
    Row("layers of text", GENERATE, "llama.block_count.*'one'",
        prepare=gguf(llama__block_count="one")),
    Row("a billion layers", GENERATE, "num_hidden_layers.*1000000000", prepare=gguf(llama__block_count=10**9)),
    Row("experts", GENERATE, "llama.expert_count.*8", prepare=gguf(llama__expert_count=8)),
    Row("no tokenizer", GENERATE, "tokenizer.ggml.model", prepare=gguf(tokenizer__ggml__model=None)),
    Row("a tokenizer", GENERATE, "tokenizer 'bert'", prepare=gguf(tokenizer__ggml__model="bert")),
    Row("words", GENERATE, "'smolm'",
        prepare=gguf(tokenizer__ggml__pre="smolm")),
    Row("no template", f"{GENERATE} --chat", "model.gguf.*--chat",
        prepare=gguf()),
    Row("to fit", "lm fit --model {tmp}/model.gguf", r"model\.gguf.*cut", prepare=gguf(lambda raw: raw[:300])),
    Row("as an adapter", "lm generate 'what colour' --model {model} --adapter {tmp}/model.gguf --max-new-tokens 3",
        r"model\.gguf.*folder", prepare=gguf(), compiles=READ),
    Row("a folder of one", "lm generate x --model {tmp}", "config.json.*model.gguf",
        prepare=gguf()),
)  # fmt: skip

NAMES = (
    Row("nearly a name", "lm generate x --model smollm2-135", "'smollm2-135'.*'smollm2-135m'"),
    Row("nearly a name, to serve", "serve --model smolm2-135m", "'smolm2-135m'.*'smollm2-135m'"),
    Row("nearly a name, in GLAM", "glam train --preset demo --model smollm-135m", "'smollm2-135m'"),
    Row("nearly a name, to ask", "props run --tasks nim --chat.model local:smollm2 --run.out {tmp}/runs",
        "'smollm2'.*'smollm2-135m'"),
    Row("a conversion to nowhere", "lm convert --model nowhere --out {tmp}/out", "'nowhere'"),
    Row("a conversion onto a folder", "lm convert --model {model} --out {model}", "/model.*exists"),
    Row("a conversion into a file", "lm convert --model {model} --out {tmp}/x/y", "--out.*x/y",
        files={"x": "1"}),
    Row("a conversion to a dtype", "lm convert --model {model} --out {tmp}/out --dtype int3", "int3"),
)  # fmt: skip

ROWS = (*FILES, *NAMES)
