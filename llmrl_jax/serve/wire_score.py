"""The format of `/v1/score`: parsing requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from llmrl_jax.chat.wire import quote
from llmrl_jax.serve.errors import ApiError
from llmrl_jax.serve.fields import blamed, check_model, checked_text, go_on, is_prompt, read_prompts, tokens_of
from llmrl_jax.serve.scorer import Pair, Scorer
from llmrl_jax.serve.wire import IGNORED


@dataclass(frozen=True)
class ScoreRequest:
    """Parsed prompts and candidates."""

    pairs: tuple[Pair, ...]
    """Prompt by prompt."""
    prompts: int
    candidates: int


def read_score(
    body: Mapping[str, Any],
    scorer: Scorer,
    max_pairs: int | None = None,
    max_tokens: int | None = None,
    max_characters: int | None = None,
    check: Callable[[], None] = go_on,
) -> ScoreRequest:
    """A body of `/v1/score`.

    **Arguments:** `body`; `scorer`; `max_pairs`, of a prompt and a candidate; `max_tokens`, the sum of the tokens of
    all pairs, that is with each prompt counted once per candidate; `max_characters`, the same of their characters,
    because a tokenizer may merge the end of a prompt with a candidate, so each pair is tokenized on its own; `check`,
    see `read_completion`.
    **Raises:** `ApiError`, naming the field."""
    known = {"model", "prompt", "candidates"}
    for name in sorted(set(body) - known - IGNORED):
        if body[name] is not None:
            text = f"the field {quote(name)!r} is unknown here; known are {', '.join(sorted(known))}"
            raise ApiError(text, param=quote(name))
    served = scorer.served
    check_model(body, served)
    prompts, candidates = read_prompts(body), body.get("candidates")
    if not isinstance(candidates, list) or not candidates or not all(map(is_prompt, candidates)):
        raise ApiError(
            f"candidates is {quote(candidates)}; a list of at least 1 text, or list of token ids, is needed",
            param="candidates",
        )
    count = len(prompts) * len(candidates)
    if max_pairs is not None and count > max_pairs:
        raise ApiError(
            f"{len(prompts)} prompts x {len(candidates)} candidates are {count} pairs; at most {max_pairs} are scored "
            "in a request: send several requests",
            param="candidates",
        )
    texts = [[len(text) for text in each if isinstance(text, str)] for each in (prompts, candidates)]
    length = sum(texts[0]) * len(texts[1]) + sum(texts[1]) * len(prompts)
    if max_characters is not None and length > max_characters:
        raise ApiError(
            f"the pairs of a prompt and a candidate have {length} characters together, each prompt counted once per "
            f"candidate; at most {max_characters} are read in a request: send several requests",
            param="candidates",
        )
    spent, encoded = 0, []
    for prompt in prompts:
        check()
        encoded.append(tokens_of(served, prompt))
        if len(encoded[-1]) >= served.context:
            raise ApiError(
                f"a prompt has {len(encoded[-1])} tokens, and the context is {served.context}, with the candidate; "
                "shorten it",
                param="prompt",
                code="context_length_exceeded",
            )
        spent += len(encoded[-1]) * len(candidates)
        _refuse_tokens(spent, max_tokens)
    for candidate in candidates:
        check()
        if isinstance(candidate, str):
            blamed("candidates", partial(checked_text, candidate))
            blamed("candidates", partial(served.refuse_early, candidate))
    pairs: list[Pair] = []
    for prompt, tokens in zip(prompts, encoded):
        for candidate in candidates:
            check()
            pairs.append(blamed("candidates", partial(scorer.encode, prompt, candidate, tokens)))
            spent += len(pairs[-1].candidate)
            _refuse_tokens(spent, max_tokens)
    return ScoreRequest(tuple(pairs), len(prompts), len(candidates))


def _refuse_tokens(spent: int, limit: int | None) -> None:
    if limit is not None and spent > limit:
        raise ApiError(
            f"the pairs of a prompt and a candidate have more than {limit} tokens together, as many as are scored in a "
            "request: send several requests",
            param="candidates",
        )
