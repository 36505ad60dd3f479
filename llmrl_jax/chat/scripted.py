"""Scripted advisers: rules that replace a language model, and are always labelled as scripted."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence

from llmrl_jax.chat.protocol import ChatReply, ChatRequest, Choice, Message, Usage, sample_key


class ScriptedAdviser(ABC):
    """The base class of scripted advisers: a subclass implements `advise`.

    It answers in text, as a model does, so that its replies pass through the same parser; callers see only the text.
    Its name begins with `scripted-adviser/`, also in caches, records and figures. It needs no network, costs nothing,
    and gives the same reply to the same request.
    """

    @property
    def name(self) -> str:
        """`scripted-adviser/` and the class's name."""
        return f"scripted-adviser/{type(self).__name__}"

    @abstractmethod
    def advise(self, messages: Sequence[Message], rng: random.Random) -> str:
        """The reply's text.

        **Arguments:** `messages`, the conversation; `rng`, which depends only on the request and the sample's index:
        use it for answers that differ between samples, or for a given error rate.
        """

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer a batch (`ChatModel.complete`); stop strings end a text, tokens are not counted."""
        return [self._reply(request) for request in requests]

    def _reply(self, request: ChatRequest) -> ChatReply:
        choices = []
        for sample in range(request.sample, request.sample + request.n):
            seed = hashlib.sha256(sample_key(self.name, request, sample).encode()).digest()
            text = self.advise(request.messages, random.Random(seed))
            choices.append(Choice(text).cut(request.stop))
        return ChatReply(tuple(choices), model=self.name, usage=Usage())
