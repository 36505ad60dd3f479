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
        """The prompt as tokens, checked to be equal to `tokenizer.encode` of the rendered text; see `CompiledPrompt`.

        **Arguments:** `tokenizer`; `max_length`, the largest number of tokens allowed (a model's positions minus the
        answer's), of which the longest case may need fewer; None for no limit; `heal`, whether the white space at the
        end of the prompt is moved to the answer, where tokenizers expect it (" turn left"), or stays in the prompt, as
        in GLAM's own code; `bos`, whether the prompt begins with the tokenizer's `bos_id` (default: it begins with
        `prefix_ids`, as every text of that tokenizer);
        `overflow`, "refuse" if a longest case beyond `max_length` is an error, "report" if such prompts are cut when
        they occur, and recognised by their length.
        **Raises:** `PromptError` if the longest case exceeds `max_length`, if tokens depend on the neighbours (the
        border is named), or if the tokenizer has no `bos_id` but `bos` is true.
        """
        return CompiledPrompt(self, tokenizer, max_length, heal=heal, bos=bos, overflow=overflow)
