"""Thoughts in replies: the one place that tells them from the answer.

Reasoning models think before they answer. A server with a reasoning parser keeps the thoughts out of `content`; others,
and models in this process, leave them in the text. What a model weighs there is no answer, so parsers of replies call
`strip_thinking` first. Recognised are

* XML tags, in any case, with attributes, white space or a namespace: `<think>`, `<thinking>`, `<thought>`,
  `<thoughts>`, `<reasoning>`, `<reflection>`, `<scratchpad>`;
* tokens: Mistral's `[THINK]`, Kimi's `\u25c1think\u25b7`, Cohere's `<|START_THINKING|>`, `<|begin_of_thought|>`,
  Gemma's `<|channel>thought`;
* channels of the harmony format (gpt-oss), of which `final` is the answer, with their tokens or without them
  (`analysis...assistantfinal...`).

Thoughts without an end, cut by the token limit, extend to the end of the text. An end without a beginning, which the
chat template wrote, ends thoughts that began with the text. Thoughts that a template opened and the token limit cut
hold no tag: nothing in the text distinguishes them from an answer.

Between backquotes, and in a fenced code block of the answer, tags are text, except a closing tag that is alone on its
line: a fence that thoughts left open would otherwise hide their end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence


_NAME = r"(?:[\w-]+:)?(?:think(?:ing)?|thoughts?|reasoning|reflection|scratchpad)"
_TOKEN = re.compile(
    rf"(?P<opening><\s*{_NAME}(?:\s[^<>]*)?(?<!/)>|\[THINK\]|\u25c1think\u25b7|<\|START_THINKING\|>"
    r"|<\|begin_of_thought\|>|<\|channel>\s*thought\b)"
    rf"|(?P<closing><\s*/\s*{_NAME}\s*>|\[/THINK\]|\u25c1/think\u25b7|<\|END_THINKING\|>|<\|end_of_thought\|>"
    r"|<channel\|>)"
    rf"|(?P<empty><\s*{_NAME}\s*/>)"
    r"|(?P<fence>^[ \t]*(?P<marker>`{3,}|~{3,})(?P<language>[^`\n]*)$)",
    re.IGNORECASE | re.MULTILINE,
)
_HEADER = re.compile(r"<\|channel\|>\s*(?P<channel>\w+)(?:<\|constrain\|>|[^<])*(?:<\|message\|>|$)")
_HEADER_END = re.compile(r"<\|(?:end|return|call|start|channel)\|>")
_BARE_CHANNELS = re.compile(r"\s*analysis(?:.*assistantfinal|(?=[A-Z]).*)", re.DOTALL)
_ANSWER = re.compile(
    r"<answer>(.*?)(?:</answer>)?|<\|START_RESPONSE\|>(.*?)(?:<\|END_RESPONSE\|>)?"
    r"|<\|begin_of_solution\|>(.*?)(?:<\|end_of_solution\|>)?",
    re.DOTALL | re.IGNORECASE,
)

Span = tuple[int, int]


def strip_thinking(text: str) -> str:
    """Answer of a reply: its text without thoughts, and without the tags around an answer that follows thoughts.

    **Returns:** the text without white space at both ends; empty if the reply was cut within its thoughts.
    """
    spans = _thoughts(text)
    answer = "".join(text[start:end] for start, end in _gaps(spans, len(text))).strip()
    wrapped = _ANSWER.fullmatch(answer) if spans else None
    return next(group for group in wrapped.groups() if group is not None).strip() if wrapped else answer


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """A reply up to the first stop string of its answer. Thoughts, and white space after them, do not count: a model
    that thinks in paragraphs would otherwise never get to its answer."""
    ends = []
    for start, end in _gaps(_thoughts(text), len(text)):
        begin = end - len(text[start:end].lstrip()) if start else start
        ends += [index for string in stop if (index := text.find(string, begin, end)) >= 0]
    return text[: min(ends, default=len(text))]


def opens_thinking(prompt: str) -> str:
    """The opening tag that a prompt ends with, if its template wrote one; empty otherwise."""
    tags = [match for match in _TOKEN.finditer(prompt) if match["opening"]]
    return tags[-1][0] if tags and not prompt[tags[-1].end() :].strip() else ""


def _gaps(spans: Sequence[Span], length: int) -> Iterator[Span]:
    """The spans that lie between others, up to the end of the text."""
    position = 0
    for start, end in (*spans, (length, length)):
        if position < start:
            yield position, start
        position = end


def _thoughts(text: str) -> list[Span]:
    """The spans of the thoughts with their tags, in order."""
    if _HEADER.search(text):
        return _channels(text)
    if bare := _BARE_CHANNELS.match(text):
        return [(0, bare.end())]
    spans: list[Span] = []
    begin: int | None = None
    marker = ""
    for match in _TOKEN.finditer(text):
        if begin is not None:  # within thoughts; those in thoughts end with them
            if match["closing"] and not _quoted(text, match):
                spans.append((begin, match.end()))
                begin = None
        elif marker and not (match["closing"] and _is_own_line(text, match)):  # within a code block
            if match["marker"] == marker and not match["language"].strip():
                marker = ""
        elif match["fence"]:
            marker = match["marker"]
        elif _quoted(text, match):
            continue
        elif match["opening"]:
            begin = match.start()
        elif match["empty"]:
            spans.append(match.span())
        else:  # the template wrote the opening tag
            spans, marker = [(0, match.end())], ""
    return spans if begin is None else [*spans, (begin, len(text))]


def _quoted(text: str, match: re.Match[str]) -> bool:
    """Return whether a tag is between backquotes."""
    start, end = match.span()
    return text[max(0, start - 1) : start] == "`" == text[end : end + 1]


def _is_own_line(text: str, match: re.Match[str]) -> bool:
    """Return whether a tag is alone on its line."""
    start, end = match.span()
    line = text[text.rfind("\n", 0, start) + 1 : start] + text[end : (text.find("\n", end) + 1 or len(text) + 1) - 1]
    return not line.strip()


def _channels(text: str) -> list[Span]:
    """The spans of a reply in harmony's channels that are not the message of `final`."""
    spans: list[Span] = []
    position = 0
    for header in _HEADER.finditer(text):
        if header["channel"] == "final":
            spans.append((position, header.end()))
            end = _HEADER_END.search(text, header.end())
            position = end.start() if end else len(text)
    return [*spans, (position, len(text))] if position < len(text) else spans
