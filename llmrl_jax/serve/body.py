"""Receiving the body of a request, as a JSON object."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from llmrl_jax.serve.errors import ApiError
from llmrl_jax.serve.inbox import Gone


if TYPE_CHECKING:
    from starlette.requests import Request

LONGEST_NUMBER = 64
"""Characters of a number in a request. Python needs quadratic time for long ones."""


async def read_body(request: Request, limit: int, seconds: float) -> dict[str, Any]:
    """The JSON object of a request.

    **Arguments:** `request`; `limit`, its bytes; `seconds`, until its end.
    **Raises:** `ApiError`; `Gone` when the client disconnects."""
    from starlette.requests import ClientDisconnect

    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a web page cannot send this type to another site without permission
        raise ApiError(f"the content type is {kind!r}; application/json is needed", 415)
    content, size = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    content += part
                elif size > 16 * limit:  # it is read up to here, so that the client receives the error
                    break
    except TimeoutError:
        raise ApiError(f"the body was not received within {seconds:g} s", 408) from None
    except ClientDisconnect:
        raise Gone from None
    if size > limit:
        raise ApiError(f"the body is longer than the {limit} bytes that this server takes", 413)
    try:
        body = json.loads(
            bytes(content),
            parse_constant=_no_constant,
            parse_int=partial(_number, int),
            parse_float=partial(_number, float),
        )
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, json.JSONDecodeError | _NotTaken) else "it cannot be read"
        raise ApiError(f"the body is not JSON: {why}") from None
    if not isinstance(body, dict):
        raise ApiError(f"the body is a JSON {type(body).__name__}; an object is needed")
    return body


class _NotTaken(ValueError):
    """A value that this server does not read."""


def _no_constant(name: str) -> Any:
    raise _NotTaken(f"it holds {name}")


def _number(kind: Callable[[str], Any], digits: str) -> Any:
    if len(digits) > LONGEST_NUMBER:
        raise _NotTaken(f"it holds a number of {len(digits)} characters; at most {LONGEST_NUMBER} are read")
    return kind(digits)
