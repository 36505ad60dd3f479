"""Gate for programs that a language model wrote: text in, a trusted program or a reason out."""

from llmrl_jax.advice.sandbox.admission import admit, admit_many, code_block
from llmrl_jax.advice.sandbox.program import Program
from llmrl_jax.advice.sandbox.spec import Limits, SandboxError, Spec, spec_of


__all__ = ["Limits", "Program", "SandboxError", "Spec", "admit", "admit_many", "code_block", "spec_of"]
