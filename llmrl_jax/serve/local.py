"""Our own Llama as a chat model, in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from llmrl_jax.chat import (
    ChatError,
    ChatReply,
    ChatRequest,
    Choice,
    ContextExceeded,
    ServerError,
    Usage,
    strip_thinking,
)
from llmrl_jax.chat.protocol import CHOICES, settle
from llmrl_jax.chat.thinking import opens_thinking
from llmrl_jax.chat.wire import to_wire
from llmrl_jax.lm.cache import Prefix
from llmrl_jax.serve.request import ApiError, Ask, Sample
from llmrl_jax.serve.sampler import Sampler
from llmrl_jax.serve.scorer import Scorer
from llmrl_jax.serve.served import ContextOverflow, Served
from llmrl_jax.serve.wire import read_chat, template_variables


WIDER = 4
"""Factor on the batch size of prompts with a common prefix, if their own keys and values are few."""
WIDER_BYTES = 2 * 1024**3
"""Most memory of the keys and values of such a batch."""


class LocalLlama:
    """Chat model on this machine's devices (`ChatModel`), for use with the cache, the recorder and the budget.

    A request has the same meaning as for `llmrl serve`, including seeds: both give the same text, and the text does not
    depend on the other requests of the batch. Requests of one shape are answered in one batch. The common prefix of
    a call's prompts is computed once, and cached for the next call; such batches are `WIDER`. (So a logit can differ
    in its last bits, and a sample changes only if two tokens tie to that.) It may be called from several threads; the
    device runs one batch at a time.

    `extra` may contain `top_k`, `min_p` and `repetition_penalty`, or `guided_choice`, a list of at least two texts: the
    reply is the one with the highest log-probability as the whole reply, with the token that ends it, and
    `Choice.scores` has that of each; nothing is sampled, and `max_tokens` has no effect. (vLLM's field of that name
    gives a text of the list too, token by token, without scores.) What the chat template reads may be set, as in
    `llmrl serve`: `chat_template_kwargs`, `enable_thinking`, `reasoning_effort`. Any other field that would change the
    reply is refused by name.

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
        self._sampler, self._wide = Sampler(served, max_batch), Sampler(served, WIDER * max_batch)
        self._scorer = Scorer(served, max_batch, self._sampler.programs)
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._end = self._end_of_reply()

    @classmethod
    def load(cls, path_or_id: str | Path, *, max_batch: int = 16, name: str = "", **options: Any) -> LocalLlama:
        """Load one from a folder or hub id. **Arguments:** `options`, those of `Served.load` except `name`."""
        return cls(Served.load(path_or_id, **options), max_batch=max_batch, name=name)

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer a batch (`ChatModel.complete`). Stop strings end answers, not thoughts: a sample that ended within its
        thoughts is sampled again without them."""
        openings = [self._opening(request) for request in requests]
        stops = [not opening and bool(request.stop) for opening, request in zip(openings, requests)]
        unstopped = [dataclasses.replace(request, stop=()) for request in requests]
        outcomes = self._outcomes([r if stop else u for r, u, stop in zip(requests, unstopped, stops)])
        retries = [i for i, stop in enumerate(stops) if stop and _ended_in_thoughts(outcomes[i])]
        for i, outcome in zip(retries, self._outcomes([unstopped[i] for i in retries]) if retries else ()):
            outcomes[i] = outcome
        return settle([_trimmed(*parts) for parts in zip(outcomes, requests, openings)])

    def close(self) -> None:
        """Cancel the replies that are written, and wait for the device's current step or compilation: a process must
        not end while another thread is in a compiled program. Callers that wait for a reply get a `ChatError`, and so
        do later ones."""
        self._closed.set()
        with self._lock:
            pass

    def _check_open(self) -> None:
        """**Raises** `_Closed` after `close`."""
        if self._closed.is_set():
            raise _Closed

    def _opening(self, request: ChatRequest) -> str:
        """The tag with which a request's prompt begins thoughts; empty if it does not."""
        body, extra = to_wire(self.served.name, request)
        try:
            variables = template_variables({**body, **extra}, self.served)
            prompt = self.served.template.render(body["messages"], add_generation_prompt=True, **variables)  # type: ignore[union-attr]
        except (ApiError, ValueError):  # for which the request is refused when it is read
            return ""
        return opens_thinking(prompt)

    def _end_of_reply(self) -> tuple[int, ...]:
        """The token that ends a reply: the first stop token that the template writes after one, else the tokenizer's or
        the first of the model; none without stop tokens."""
        tokenizer, stop = self.served.tokenizer, self.served.stop_tokens or ()
        messages = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": "Reply"}]
        try:
            text = self.served.template.render(messages)  # type: ignore[union-attr]
        except ValueError:  # it asks for other messages
            text = ""
        written = tokenizer.encode(text.rpartition("Reply")[2])
        return tuple([token for token in (*written, tokenizer.eos_id, *stop) if token in stop][:1])

    def _outcomes(self, requests: Sequence[ChatRequest]) -> list[ChatReply | ChatError]:
        """The outcome of each request."""
        asks: list[Ask] = []
        outcomes: list[ChatReply | ChatError] = []
        indices: list[int] = []
        chosen: list[tuple[int, Ask, list[str]]] = []
        closed = ChatError(f"{self.name} was closed before it replied")  # what is not answered until then
        closed.calls = 0
        for i, request in enumerate(requests):
            body, extra = to_wire(self.served.name, request)
            texts = extra.pop(CHOICES, None)
            if texts is not None:  # nothing is written; the scorer counts the tokens of the texts
                body["max_tokens"] = 1
            try:
                read = read_chat({**body, **extra}, self._sampler, request.max_tokens).asks
                if texts is not None:
                    chosen.append((i, read[0], self._choices(texts, request.n)))
            except ApiError as error:
                kind = ContextExceeded if error.code == "context_length_exceeded" else ServerError
                outcomes.append(kind(f"{self.name}: {error}", status=error.status))
            else:
                if texts is None:
                    asks += read
                    indices.append(i)
                outcomes.append(closed)
        with self._lock, contextlib.suppress(_Closed):
            self._check_open()
            sampler, prefix = self._plan(asks)
            suffixes = asks if prefix is None else [_drop_tokens(ask, prefix.size) for ask in asks]
            for batch in sampler.batches(suffixes):
                started = time.monotonic()
                outputs: list[list[Sample]] = []
                for written in sampler.run([suffixes[i] for i in batch], prefix):
                    self._check_open()
                    outputs = written
                seconds = time.monotonic() - started
                for i, samples in zip(batch, outputs):
                    outcomes[indices[i]] = ChatReply(
                        choices=tuple(Choice(sample.text, sample.finish) for sample in samples),
                        model=self.served.name,
                        usage=Usage(len(asks[i].tokens), sum(sample.count for sample in samples)),
                        fingerprint=self.served.fingerprint,
                        seconds=seconds,
                    )
            for i, reply in self._choose(chosen):
                outcomes[i] = reply
        return outcomes

    def _choices(self, texts: Any, n: int) -> list[str]:
        """The texts of a `guided_choice`. **Raises:** `ApiError`."""
        if not isinstance(texts, list) or len(texts) < 2 or not all(isinstance(x, str) and x for x in texts):
            raise ApiError(f"{CHOICES} is {texts!r}; a list of at least 2 texts is needed", param=CHOICES)
        if n != 1:
            raise ApiError(f"n is {n} with {CHOICES}, whose reply is not drawn; leave n out", param="n")
        return texts

    def _choose(self, chosen: Sequence[tuple[int, Ask, list[str]]]) -> Iterator[tuple[int, ChatReply | ChatError]]:
        """The replies to requests that list them, with the index of each."""
        started, pairs, fits = time.monotonic(), [], []
        for i, ask, texts in chosen:
            try:
                pairs += [
                    self._scorer.pair(ask.tokens, [*self.served.tokenizer.encode(text), *self._end]) for text in texts
                ]
            except ContextOverflow as error:
                yield i, ContextExceeded(f"{self.name}: {error}", status=400)
            else:
                fits.append((i, ask, texts))
        rows = itertools.chain.from_iterable(self._scorer.run(pairs))
        for i, ask, texts in fits:
            self._check_open()
            log_probs = list(itertools.islice(rows, len(texts)))
            scores = tuple(float(sum(row)) for row in log_probs)
            yield (
                i,
                ChatReply(
                    choices=(Choice(texts[scores.index(max(scores))], "stop", scores),),
                    model=self.served.name,
                    usage=Usage(len(ask.tokens), sum(len(row) for row in log_probs)),
                    fingerprint=self.served.fingerprint,
                    seconds=time.monotonic() - started,
                ),
            )

    def _plan(self, asks: Sequence[Ask]) -> tuple[Sampler, Prefix | None]:
        """The sampler that answers requests, and the common prefix of their prompts."""
        prefix = self._sampler.prefix(asks) if asks else None
        if prefix is None:
            return self._sampler, None
        model, ladder = self.served.model, self._wide.programs.ladder
        tokens = max(len(ask.tokens) for ask in asks) - prefix.size, max(ask.sampling.max_tokens for ask in asks)
        slot = 2 * model.config.num_hidden_layers * model.config.kv_heads * model.config.size
        slots = self._wide.max_batch * sum(map(ladder.length, tokens))
        wide = slots * slot * jnp.dtype(model.dtype).itemsize <= WIDER_BYTES
        return self._wide if wide else self._sampler, prefix


class _Closed(Exception):
    """The model was closed while it replied."""


def _ended_in_thoughts(outcome: ChatReply | ChatError) -> bool:
    """Return whether a sample of a reply ended before its answer began."""
    return isinstance(outcome, ChatReply) and any(
        c.finish_reason == "stop" and bool(c.text) and not strip_thinking(c.text) for c in outcome.choices
    )


def _trimmed(outcome: ChatReply | ChatError, request: ChatRequest, opening: str) -> ChatReply | ChatError:
    """A reply up to its stop strings, with the tag that its prompt ended with: parsers of replies look for it."""
    if isinstance(outcome, ChatError) or CHOICES in request.extra:
        return outcome
    choices = (dataclasses.replace(c, text=opening + c.text).cut(request.stop) for c in outcome.choices)
    return dataclasses.replace(outcome, choices=tuple(choices))


def _drop_tokens(ask: Ask, tokens: int) -> Ask:
    """A request whose prompt lacks its first tokens."""
    return dataclasses.replace(ask, tokens=ask.tokens[tokens:])
