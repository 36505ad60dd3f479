"""The optimizer of a search, built from its settings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from envs_jax.env import Environment
from llmrl_jax.chat import ChatModel
from llmrl_jax.systems.props.compat.legacy import LegacyOptimizer, LegacyTemplates, published_grammar
from llmrl_jax.systems.props.config import PropsConfig
from llmrl_jax.systems.props.describe import describe
from llmrl_jax.systems.props.llm import EvoLLM, LanguageModelOptimizer, Polished
from llmrl_jax.systems.props.optimizers import make_numeric
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import HistoryView, ProposalPrompt
from llmrl_jax.systems.props.proposals import Asking, Grammar
from llmrl_jax.systems.props.tasks import Task


def make_optimizer(
    config: PropsConfig, task: Task, env: Environment, env_params: Any, policy: Policy, model: ChatModel, chat: Any
) -> Any:
    """The optimizer of one search.

    **Arguments:** `env`, `env_params` and `policy`, of the task; `model`, queried by the methods that use one; `chat`,
    `temperature` and `max_tokens` of its replies, by name.
    **Raises:** `ValueError` or `FileNotFoundError` for incompatible settings, before any query.
    """
    if not config.asks:
        return make_numeric(config.method, policy)
    arm = config.arm(task)
    reply, templates = config.reply, config.templates
    asking = Asking(retries=reply.retries, on_failure=reply.on_failure, failures=reply.failures, **chat)
    description = partial(describe, env, env_params, policy, max_steps=arm.max_steps)
    optimizer: Any
    if config.method == "evollm":
        view = HistoryView(top=10, last=10, order="ascending")
        optimizer = EvoLLM(
            model, policy, arm.iterations, population=config.population, block=config.block,
            view=view if config.history == HistoryView() else config.history, asking=asking, warmup=max(1, arm.warmup),
        )  # fmt: skip
    elif config.method == "legacy":
        optimizer = LegacyOptimizer(
            model,
            policy,
            arm.iterations,
            environment=description(hints=config.hints, hide=config.hide),
            templates=LegacyTemplates(
                templates.folder,
                templates.llm_si_template_name,
                templates.llm_ui_template_name,
                templates.llm_output_conversion_template_name,
            ),
            grammar=published_grammar(policy, **reply.chosen),
            asking=asking,
            use_replay_buffer=config.use_replay_buffer,
            buffer_rows=config.buffer_rows,
            buffer_episodes=config.buffer_episodes,
            buffer_steps=config.buffer_steps,
            reset_llm_conversation=config.reset_llm_conversation,
        )
    else:
        plus = config.method == "props+"
        name = templates.llm_si_template_name
        prompt = ProposalPrompt(
            policy,
            iterations=arm.iterations,
            optimum=arm.optimum,
            step_size=config.step_size or task.step or 1.0,
            environment=description(hints=config.hints, hide=config.hide) if plus else "",
            explain=config.explain,
            proposals=config.proposals,
            evaluation_episodes=arm.episodes,
            template=Path(name) if name else None,
            template_dir=templates.folder,
            env_desc_file=templates.env_desc_file,
        )
        loose = {} if prompt.names_box or policy.kind == "table" else {"beyond": "keep"}
        grammar = Grammar.of(policy, proposals=config.proposals, **(loose | reply.chosen))
        optimizer = LanguageModelOptimizer(
            model, prompt, grammar=grammar, view=config.view(policy), asking=asking, repeat=reply.repeat,
            warmup=arm.warmup,
        )  # fmt: skip
    if config.polish:
        optimizer = Polished(optimizer, make_numeric(config.polish, policy), rounds=config.polish_rounds)
    return optimizer
