"""Our own Llama as a chat model, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl_jax.chat import ChatError, ChatReply, ChatRequest, Choice, ContextExceeded, ServerError, Usage
from llmrl_jax.chat.protocol import settle
from llmrl_jax.chat.wire import to_wire
from llmrl_jax.serve.errors import ApiError
from llmrl_jax.serve.request import Ask
from llmrl_jax.serve.sampler import Sampler
from llmrl_jax.serve.served import Served
from llmrl_jax.serve.wire import read_chat


class LocalLlama:
    """A chat model on this machine's devices (`ChatModel`), for use with the cache, the recorder and the budget.

    A request has the same meaning as for `llmrl serve`, including seeds: both give the same text, and the text does not
    depend on the other requests of the batch. Requests of one shape are answered in one batch. It may be called from
    several threads; the device runs one batch at a time.

    `extra` may contain `top_k`, `min_p` and `repetition_penalty`; any other field is refused by name.

    **Arguments:** `served`, see `Served.load`; it must have a chat template; `max_batch`, concurrent continuations;
    `name`, by default the model's name with a fingerprint of its weights, so that a cache never confuses two
    fine-tuned models.
    **Raises:** `ValueError` without a chat template; `complete` raises `ServerError` with the status 400 for a request
    that the model cannot answer (`ChatModel.complete`).
    """

    def __init__(self, served: Served, *, max_batch: int = 16, name: str = ""):
        if served.template is None:
            raise ValueError(
                f"the model {served.name!r} has no chat template, so it cannot be chatted with: take an "
                "instruction-tuned model, or name a template for it: `plain`, or a file with one"
            )
        self.served = served
        self.name = name or f"{served.name}@{served.fingerprint}"
        self._sampler = Sampler(served, max_batch)
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path_or_id: str | Path, *, max_batch: int = 16, name: str = "", **options: Any) -> LocalLlama:
        """Load one from a folder or hub id. **Arguments:** `options`, those of `Served.load` except `name`."""
        return cls(Served.load(path_or_id, **options), max_batch=max_batch, name=name)

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer a batch (`ChatModel.complete`)."""
        asks: list[Ask] = []
        outcomes: list[ChatReply | ChatError] = []
        places: list[int] = []
        for i, request in enumerate(requests):
            body, extra = to_wire(self.served.name, request, "max_tokens")
            try:
                asks += read_chat({**body, **extra}, self._sampler, request.max_tokens).asks
            except ApiError as error:
                kind = ContextExceeded if error.code == "context_length_exceeded" else ServerError
                outcomes.append(kind(f"{self.name}: {error}", status=error.status))
            else:
                places.append(i)
                outcomes.append(ServerError(f"{self.name}: not answered"))
        with self._lock:
            for batch in self._sampler.batches(asks):
                started = time.monotonic()
                found = list(self._sampler.run([asks[i] for i in batch]))[-1]
                seconds = time.monotonic() - started
                for i, samples in zip(batch, found):
                    outcomes[places[i]] = ChatReply(
                        choices=tuple(Choice(sample.text, sample.finish) for sample in samples),
                        model=self.served.name,
                        usage=Usage(len(asks[i].tokens), sum(sample.count for sample in samples)),
                        fingerprint=self.served.fingerprint,
                        seconds=seconds,
                    )
        return settle(outcomes)
