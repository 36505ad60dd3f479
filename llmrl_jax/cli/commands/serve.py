"""Our Llama behind an OpenAI-compatible server."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any, Literal


def serve(
    model: str,
    adapter: str = "",
    chat_template: str = "",
    name: str = "",
    host: str = "127.0.0.1",
    port: int = 8000,
    key_variable: str = "",
    allow_anyone: bool = False,
    max_batch: int = 16,
    max_queue: int = 64,
    max_request_bytes: int = 1_000_000,
    context: int = 0,
    default_tokens: int = 512,
    dtype: Literal["float32", "bfloat16"] = "float32",
    quantize: Literal["none", "int8", "nf4"] = "none",
    max_pairs: int = 1024,
    warm_up: bool = False,
    access_log: bool = False,
) -> None:
    """Serve a language model: /v1/models, /v1/completions, /v1/chat/completions, /v1/score, /metrics and /health.

    Args:
        model: A Hugging Face folder or hub id, a GGUF file, or smollm2-135m (`llmrl doctor` says how to get it).
        adapter: A peft adapter of the model: a folder or hub id; empty: none.
        chat_template: Replaces the model's own: `plain` (the messages joined), or a file with a template.
        name: The model's name in requests; empty: the name of the folder or file, or the hub id.
        host: Address to listen on; the default is reachable only from this machine.
        port: Port to listen on; 0: any free port.
        key_variable: The environment variable with the API key that requests must send; empty: no key.
        allow_anyone: Allow an address that other machines reach without a key.
        max_batch: Maximum number of continuations generated at a time.
        max_queue: Maximum number of waiting prompts; more are refused with status 429 and Retry-After.
        max_request_bytes: Maximum bytes of a request.
        context: Maximum tokens of a prompt with its answer; 0: the model's positions.
        default_tokens: Maximum tokens of a chat answer if the request gives none.
        dtype: Type of the weights and of the computation.
        quantize: Store the matrices in 8.5 (int8) or 4.5 (nf4) bits per weight.
        max_pairs: Maximum number of prompts x candidates of a scoring request.
        warm_up: Compile all programs before the port opens; `--context` and `--max-batch` limit their number.
        access_log: Write a line per request to stderr, without prompts, answers and keys.
    """
    import jax.numpy as jnp

    from llmrl_jax.chat.client import read_key
    from llmrl_jax.serve.app import LOOPBACK, Limits, make_app
    from llmrl_jax.serve.engine import Engine
    from llmrl_jax.serve.served import Served
    from llmrl_jax.serve.server import bind, check_extra, is_loopback, listen, url_of

    if not model:
        raise ValueError("--model is empty; name a model folder, a GGUF file, a hub id or smollm2-135m")
    counts = {
        "--max-batch": max_batch,
        "--max-queue": max_queue,
        "--max-request-bytes": max_request_bytes,
        "--max-pairs": max_pairs,
        "--default-tokens": default_tokens,
    }
    for flag, value in counts.items():
        if value < 1:
            raise ValueError(f"{flag} is {value}; at least 1 is needed")
    if context < 0:
        raise ValueError(f"--context is {context}; give a number of tokens, or 0 for all of the model's positions")
    key = read_key(key_variable, "that requests must send")
    local = is_loopback(host)
    if not local and not key and not allow_anyone:
        raise ValueError(
            f"{host} is reached from other machines, and there is no key: name the environment variable that holds one "
            "(--key-variable), or allow requests without a key (--allow-anyone)"
        )
    limits = Limits(
        request_bytes=max_request_bytes,
        requests=max_batch + 2 * max_queue,
        score_pairs=max_pairs,
        default_tokens=default_tokens,
    )
    check_extra()  # what is missing is found before the model is loaded, and so is a port that is taken
    with bind(host, port) as sock:
        served = Served.load(
            model,
            adapter=adapter,
            name=name,
            context=context,
            dtype=jnp.dtype(dtype),
            quantize=None if quantize == "none" else quantize,
            chat_template=chat_template,
        )
        engine = Engine(served, max_batch=max_batch, max_queue=max_queue)
        try:
            if warm_up:
                count = engine.programs.warm_up(lambda line: print(line, flush=True))
                print(f"compiled {count} programs", flush=True)
            app = make_app(engine, key=key, limits=limits, hosts=LOOPBACK | {host} if local and not key else None)
            if access_log:
                _log_access()
            chat = "" if served.template else " (no chat template: no /v1/chat/completions)"
            listen(sock)
            print(f"{served.name} ({served.fingerprint}) answers at {url_of(sock)}{chat}", flush=True)
            _until_signal(app, sock)
        finally:
            engine.close(0)
    print("stopped", flush=True)
    # A compilation cannot be interrupted, and the interpreter would crash in it at its end; it would wait for a text
    # that is still tokenized.
    if engine.stuck or app.state.readers.busy:
        sys.stderr.flush()
        os._exit(0)


def _log_access() -> None:
    """Write the access log to stderr."""
    import logging

    from llmrl_jax.serve.metrics import access

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False


def _until_signal(app: Any, sock: Any) -> None:
    """Serve until SIGINT or SIGTERM; uvicorn raises the signal again after it has stopped."""
    from llmrl_jax.serve.server import run

    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(app, sock)
    except KeyboardInterrupt:
        pass
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


COMMAND = serve
