"""A prompt: a template that can be compiled for a tokenizer."""

from __future__ import annotations

from envs_jax.text.compiled import CompiledPrompt
from envs_jax.text.phrases import Tokenizer
from envs_jax.text.template import Template


class Prompt(Template):
    """A template of `Literal`, `Choice`, `Slot` and `Block` parts.

    `render` gives its text on the host; `compile` turns it into a function from slots to tokens that runs inside jit.
    """

    def compile(
        self,
        tokenizer: Tokenizer,
        max_length: int | None = None,
        *,
        heal: bool = True,
        bos: bool | None = None,
        overflow: str = "refuse",
    ) -> CompiledPrompt:
        """The prompt as tokens, proved equal to `tokenizer.encode` of the rendered text; see `CompiledPrompt`.

        **Arguments:** `tokenizer`; `max_length`, the tokens that there is room for (a model's positions, less the
        answer's), of which the longest case may need fewer; None where there is room for anything; `heal`, whether
        the white space that the prompt ends with is left to the answer, where tokenizers want it (" turn left"), or
        ends the prompt, as GLAM's own code had it; `bos`, whether the prompt begins with the tokenizer's `bos_id`
        (default: where it has one); `overflow`, "refuse" where a longest case beyond `max_length` is
        an error, "report" where such prompts are cut when they occur, and recognised by their length.
        **Raises:** `PromptError` where the longest case exceeds `max_length`, where tokens depend on the neighbours
        (the border is named), or where the tokenizer has no `bos_id` but `bos` is true.
        """
        return CompiledPrompt(self, tokenizer, max_length, heal=heal, bos=bos, overflow=overflow)
