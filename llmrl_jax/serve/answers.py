"""OpenAI's wire format: writing answers."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from llmrl_jax.serve.inbox import Disconnected, Inbox, ended
from llmrl_jax.serve.request import ApiError, Ask, Sample
from llmrl_jax.serve.served import Served
from llmrl_jax.serve.wire import ScoreRequest


class Answer:
    """The bodies of a request's answer, whole or in chunks.

    **Arguments:** `served`; `asks`; `chat`, which of the two formats; `request_id`, from which the answer's id is made.
    """

    def __init__(self, served: Served, asks: Sequence[Ask], chat: bool, request_id: str):
        self._served, self._asks, self._chat = served, asks, chat
        prefix = "chatcmpl" if chat else "cmpl"
        self._head = {
            "id": f"{prefix}-{request_id.removeprefix('req_')}",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": served.fingerprint,
        }
        self._sent: dict[int, Sample] = {}

    def body(self, outputs: Sequence[Sequence[Sample]]) -> dict[str, Any]:
        """The body for all samples of every prompt."""
        choices: list[dict[str, Any]] = []
        for sample in (sample for samples in outputs for sample in samples):
            choice: dict[str, Any] = {"index": len(choices), "finish_reason": sample.finish}
            if self._chat:
                choice["message"] = {"role": "assistant", "content": sample.text, "refusal": None}
            else:
                choice["text"] = sample.text
            choices.append({**choice, "logprobs": self._log_probs(sample, Sample("", 0, ""))})
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": self.usage(outputs)}

    def chunks(self, prompt: int, samples: Sequence[Sample]) -> list[dict[str, Any]]:
        """The chunks for the new part of a prompt's samples."""
        n, chunks = self._asks[0].sampling.n, []
        for index, sample in enumerate(samples, prompt * n):
            before = self._sent.get(index, Sample("", 0, ""))
            if self._chat and index not in self._sent:
                chunks.append(self._chunk(index, {"role": "assistant", "content": ""}, None, None))
            new = sample.text[len(before.text) :]
            if len(sample.text) < len(before.text):  # what was sent stays
                sample = replace(sample, text=before.text)
            self._sent[index] = sample
            if new or len(sample.pieces) > len(before.pieces):
                delta: Any = {"content": new} if self._chat else new
                chunks.append(self._chunk(index, delta, None, self._log_probs(sample, before)))
            if sample.finish and not before.finish:
                chunks.append(self._chunk(index, {} if self._chat else "", sample.finish, None))
        return chunks

    def last_chunk(self, outputs: Sequence[Sequence[Sample]]) -> dict[str, Any]:
        """The last chunk: the token usage and no choice."""
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": [], "usage": self.usage(outputs)}

    def usage(self, outputs: Sequence[Sequence[Sample]]) -> dict[str, int]:
        """Token usage: a prompt counts once for any number of samples."""
        prompt = sum(len(ask.tokens) for ask in self._asks)
        completion = sum(sample.count for samples in outputs for sample in samples)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _chunk(self, index: int, delta: Any, finish: str | None, log_probs: Any) -> dict[str, Any]:
        choice = {"index": index, "delta" if self._chat else "text": delta, "finish_reason": finish}
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": [{**choice, "logprobs": log_probs}]}

    def _log_probs(self, sample: Sample, before: Sample) -> dict[str, Any] | None:
        """Log-probabilities of the tokens that were not sent before."""
        if not self._asks[0].sampling.pieces:
            return None
        start = len(before.pieces)
        pieces, log_probs = sample.pieces[start:], sample.log_probs[start:]
        if self._chat:
            content = [
                {"token": piece, "logprob": value, "bytes": list(piece.encode()), "top_logprobs": []}
                for piece, value in zip(pieces, log_probs)
            ]
            return {"content": content, "refusal": None}
        starts = [len("".join(sample.pieces[: start + i])) for i in range(len(pieces))]
        return {
            "tokens": list(pieces),
            "token_logprobs": list(log_probs),
            "top_logprobs": None,
            "text_offset": starts,
        }


def score_body(request: ScoreRequest, served: Served, log_probs: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The answer of `/v1/score`."""
    data = []
    for i in range(request.prompts):
        candidates = []
        for a in range(request.candidates):
            index = i * request.candidates + a
            pair, values = request.pairs[index], log_probs[index]
            total = sum(values)
            candidates.append(
                {
                    "index": a,
                    "tokens": list(pair.candidate),
                    "log_probs": list(values),
                    "sum": total,
                    "mean": total / len(values),
                }
            )
        data.append({"index": i, "candidates": candidates})
    prompt = sum(len(request.pairs[i * request.candidates].prompt) for i in range(request.prompts))
    total_tokens = prompt + sum(len(pair.candidate) for pair in request.pairs)
    usage = {"prompt_tokens": prompt, "total_tokens": total_tokens}
    head = {"object": "score", "model": served.name, "system_fingerprint": served.fingerprint}
    return {**head, "data": data, "usage": usage}


def model_body(served: Served, created: int) -> dict[str, Any]:
    """An entry of `/v1/models`."""
    return {
        "id": served.name,
        "object": "model",
        "created": created,
        "owned_by": "llmrl_jax",
        "max_model_len": served.context,
    }


# --- over HTTP: JSON, errors, server-sent events --------------------------------------------------------------------


log = logging.getLogger("llmrl_jax.serve")


def note_tokens(scope: Any, usage: dict[str, int]) -> None:
    """Leave the token usage for the access log and the metrics."""
    scope["llmrl.tokens"] = usage["prompt_tokens"], usage.get("completion_tokens", 0)


class Events:
    """An answer as server-sent events (an ASGI application)."""

    def __init__(self, inbox: Inbox, answer: Answer, usage: bool, count: int, request_id: str):
        self._inbox, self._answer, self._usage, self._request_id = inbox, answer, usage, request_id
        self._outputs: list[list[Sample]] = [[] for _ in range(count)]
        self.release: Callable[[], None] = lambda: None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        head = {**headers_of(self._request_id), "content-type": "text/event-stream; charset=utf-8"}
        head |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
        raw = [(name.encode(), value.encode()) for name, value in head.items()]

        async def event(data: Any, more_body: bool = True) -> None:
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": more_body})

        try:
            async with self._inbox.watching(receive):
                await send({"type": "http.response.start", "status": 200, "headers": raw})
                try:
                    while not ended(self._outputs):
                        index, self._outputs[index] = await self._inbox.next()
                        for chunk in self._answer.chunks(index, self._outputs[index]):
                            await event(chunk)
                    if self._usage:
                        await event(self._answer.last_chunk(self._outputs))
                except (Disconnected, OSError):
                    return
                except ApiError as error:
                    await event(error.body())
                except Exception:
                    log.exception("request %s failed", self._request_id)
                    await event(failed(self._request_id).body())
                await event("[DONE]", more_body=False)
        finally:
            note_tokens(scope, self._answer.usage(self._outputs))
            self.release()


def failed(request_id: str) -> ApiError:
    """The answer to an internal error: the id under which the log has the details."""
    return ApiError(f"the server failed; its log has the details under {request_id}", 500)


def headers_of(request_id: str) -> dict[str, str]:
    """The headers of every answer."""
    return {"x-request-id": request_id} if request_id else {}


def json_response(data: Any, status: int = 200, request_id: str = "", headers: dict[str, str] | None = None) -> Any:
    """A response with a JSON body."""
    from starlette.responses import Response

    content = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(content, status, {**headers_of(request_id), **(headers or {})}, "application/json")


def refusal(error: ApiError, request_id: str) -> Any:
    """The response for an error."""
    after = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if error.status == 401:
        after["www-authenticate"] = "Bearer"
    if error.close:
        after["connection"] = "close"
    return json_response(error.body(), error.status, request_id, after)
