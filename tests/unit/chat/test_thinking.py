"""Thoughts in replies: every parser reads the answer only, and stop strings end answers."""

from __future__ import annotations

import time

import pytest

from llmrl_jax.advice.sandbox.admission import code_block
from llmrl_jax.advice.sandbox.spec import SandboxError
from llmrl_jax.chat import Choice, strip_thinking
from llmrl_jax.chat.thinking import cut_at_stop, opens_thinking
from llmrl_jax.systems.bkrl import prompts as bkrl
from llmrl_jax.systems.ellm import prompts as ellm
from llmrl_jax.systems.ellm.prompts import read_yes
from llmrl_jax.systems.props.proposals import Grammar, parse


FORMATS = {
    "think": "<think>{}</think>",
    "no opening": "{}</think>",
    "names": "<thinking>{}</thinking>",
    "thought": "<thought>{}</thought>\n",
    "reasoning": "<reasoning>{}</reasoning>",
    "case": "<THINK>{}</Think>",
    "attributes": '<think effort="low">{}</think>',
    "white space": "<think\n>{}</think >",
    "namespace": "<seed:think>{}</seed:think>",
    "several": "<think>{0}</think>\n<think>{0}</think>",
    "nested": "<think><thinking>{0}</thinking>{0}</think>",
    "other end": "<think>{}</thinking>",
    "mistral": "[THINK]{}[/THINK]",
    "kimi": "\u25c1think\u25b7{}\u25c1/think\u25b7",
    "cohere": "<|START_THINKING|>{}<|END_THINKING|>",
    "open thoughts": "<|begin_of_thought|>{}<|end_of_thought|>",
    "gemma": "<|channel>thought\n{}<channel|>",
    "harmony": "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>",
    "harmony, commentary": "<|channel|>analysis<|message|>{0}<|end|><|channel|>commentary<|message|>{0}<|end|>"
    "<|start|>assistant<|channel|>final <|constrain|>text<|message|>",
    "harmony without tokens": "analysisWe see: {}assistantfinal",
}
PROGRAM = "def compute_potential(obs, past_obs, past_actions):\n    return 1.0, {}\n"


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_no_parser_reads_thoughts(form):
    goals = form.format("\nOptions:\n- attack zombie\n- place table\n") + "\n\n- Drink water\n- Eat plant"
    assert ellm.read_goals(goals) == ["drink water", "eat plant"]
    assert bkrl.read_goals(goals) == ["Drink water", "Eat plant"]
    rank = form.format("At first [Rank] A > B; but B opens the door.") + "\n[Thoughts] B. [Rank] B > A"
    assert bkrl.read_preference(rank) == 1.0
    code = form.format("First:\n```python\nx = 1\n```\nno.") + f"\n```python\n{PROGRAM}```"
    assert code_block(code) == PROGRAM
    assert read_yes(form.format("Yes or no?\n\n") + "\n\nNo.") is False
    assert parse(form.format("params[0]: 5\n") + "\nparams[0]: 2", Grammar(1, -6, 6, 1)).proposals == ((2.0,),)


@pytest.mark.parametrize(
    "opening", ["<think>", "<Reasoning>\n", "[THINK]", "<|channel|>analysis<|message|>", "analysisWe "]
)
def test_thoughts_that_were_cut_hold_no_answer(opening):
    text = f"{opening}First:\n- attack zombie\n[Rank] A > B\n```python\nx = 1\n```\nparams[0]: 5\n"
    assert strip_thinking(text) == "" and ellm.read_goals(text) is None and bkrl.read_goals(text) == []
    assert bkrl.read_preference(text) is None and read_yes(f"{opening}Yes") is None
    assert [problem.reason for problem in parse(text, Grammar(1, -6, 6, 1)).problems] == ["none"]
    with pytest.raises(SandboxError, match="Python"):
        code_block(text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\n\n</think>\n\nYes", "Yes"),
        ("<think/>\nYes", "Yes"),
        ("- a\n<think>b</think>\n- c", "- a\n\n- c"),
        ("a <think> b", "a"),
        ("<think>a</think>b</think> c", "c"),
        ("<think>of `</think>`: a</think>b", "b"),
        ("Write `<think>` first", "Write `<think>` first"),
        ("```python\nx.split('</think>')  # <think>\n```", "```python\nx.split('</think>')  # <think>\n```"),
        ("a:\n```python\nx = 1\n</think>\n```python\ny = 1\n```", "```python\ny = 1\n```"),
        ("<think>a</think><answer>\nYes\n</answer>", "Yes"),
        ("<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>Yes<|END_RESPONSE|>", "Yes"),
        ("<answer>Yes</answer>", "<answer>Yes</answer>"),
        ("<|channel|>final<|message|>a<|return|>", "a"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final", ""),
        ("[Thoughts] a [Rank] b", "[Thoughts] a [Rank] b"),
        ("Analysis: a. The final word", "Analysis: a. The final word"),
        ("analysis of the assistant: fine", "analysis of the assistant: fine"),
    ],
)
def test_answers(text, answer):
    assert strip_thinking(text) == answer and strip_thinking(answer) == answer


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("a\n\nb", "a"),
        ("\n\na", ""),
        ("<think>\na\n\nb\n</think>\n\nc\n\nd", "<think>\na\n\nb\n</think>\n\nc"),
        ("a\n\nb</think>\n\nc\nd", "a\n\nb</think>\n\nc\nd"),
        ("<think>a\n\nb", "<think>a\n\nb"),
        ("a END b\n\nc", "a "),
    ],
)
def test_stop_strings_end_answers(text, cut):
    assert cut_at_stop(text, ("\n\n", "END")) == cut and cut_at_stop(text, ()) == text
    assert Choice(text, "length").cut(("\n\n", "END")) == Choice(cut, "length" if cut == text else "stop")


def test_prompts_that_open_thoughts():
    assert opens_thinking("<|im_start|>assistant\n<think>\n") == "<think>"
    assert opens_thinking("assistant\n<think>\n\n</think>\n\n") == opens_thinking("assistant\n") == ""


@pytest.mark.parametrize(
    "text",
    [
        *(
            tag * 20_000
            for tag in ("<think>", "</think>", "<think></thinking>", "<think/>", "`<think>`", "```\n", "< ")
        ),
        *(tag * 10_000 for tag in ("```\n</think>\n", "<|channel|>final", "<")),
        *(begin + rest * 20_000 for begin, rest in (("<think", " "), ("<", "a-"), ("analysisA", "assistant"))),
        "```\n" + "</think>" * 9000,
    ],
)
def test_the_time_is_linear(text):
    started = time.process_time()
    strip_thinking(text)
    assert time.process_time() - started < 2
