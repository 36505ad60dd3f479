"""Fine-tuning of language models on text: rows, packing, chat templates; supervised, and by rewards (GRPO, RLOO)."""

from llmrl_jax.tuning.grpo import GRPOConfig, Prompts, make_grpo, make_reward_evaluation, pad_prompts
from llmrl_jax.tuning.loss import token_log_probs
from llmrl_jax.tuning.packing import Packed, pack
from llmrl_jax.tuning.rewards import (
    REWARDS,
    RewardError,
    check_response,
    from_text,
    load_reward,
    rewards_named,
    text_reward,
    try_reward,
)
from llmrl_jax.tuning.rows import DataError, Example, check_vocabulary, encode_prompt, encode_row, read_rows
from llmrl_jax.tuning.sft import SFTConfig, make_evaluation, make_sft
from llmrl_jax.tuning.template import ChatTemplate, TemplateError


__all__ = [
    "ChatTemplate",
    "DataError",
    "Example",
    "GRPOConfig",
    "Packed",
    "Prompts",
    "REWARDS",
    "RewardError",
    "SFTConfig",
    "TemplateError",
    "check_response",
    "check_vocabulary",
    "encode_prompt",
    "encode_row",
    "from_text",
    "load_reward",
    "make_evaluation",
    "make_grpo",
    "make_reward_evaluation",
    "make_sft",
    "pack",
    "pad_prompts",
    "read_rows",
    "rewards_named",
    "text_reward",
    "token_log_probs",
    "try_reward",
]
