"""Fine-tuning a language model as the optimizer: its prompts and rewards.

Random policies are evaluated and shown as a history; the model proposes the next one, whose return in the environment
is the reward. Answers are parsed on the host and evaluated on the device by the same
program as any other policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from envs_jax import tracing
from llmrl_jax import lm
from llmrl_jax.agents.population import Evaluator, episode_keys, make_population_evaluator
from llmrl_jax.core.activity import doing
from llmrl_jax.lm import Generation, StopStrings
from llmrl_jax.lm.tokens import FastTokenizer, load_tokenizer
from llmrl_jax.run.loop import RunResult
from llmrl_jax.run.metrics import read as read_metrics
from llmrl_jax.systems.props.config import HELD_OUT, PUBLISHED_SCALES, FinetuneConfig, FinetuneRun
from llmrl_jax.systems.props.describe import describe
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import Format, HistoryView, ProposalPrompt, Row
from llmrl_jax.systems.props.proposals import Grammar, parse
from llmrl_jax.systems.props.tasks import Task, get
from llmrl_jax.tuning import (
    ChatTemplate,
    Prompts,
    encode_prompt,
    from_text,
    make_grpo,
    make_reward_evaluation,
    pad_prompts,
)
from llmrl_jax.tuning.grpo import check_grpo
from llmrl_jax.tuning.rewards import Reward
from llmrl_jax.workflows.experiment import Experiment
from llmrl_jax.workflows.tuning import load_base, mesh_of, train, with_end_tokens, with_template


LEVEL = 0.75
"""Quantile of the returns of random policies that is scaled to 0. The mean is unsuitable: if large actions are costly,
a few policies have returns so low that standing still would score close to the optimum (Mountain Car: mean -1,600,
optimum 100)."""

PUBLISHED_REACH = 10.0
"""The published data are drawn from U(-10, 10), beyond the bound of 6 stated in the prompt."""

TAGGED = (
    "First reason about the question inside <think> and </think>. Then give your answer, the line of parameters in the "
    "form that you are asked for, inside <policy> and </policy>. Write nothing outside of the two pairs of tags."
)
"""The system message of `compat="paper"`, in our own words."""

_TAGS = re.compile(r"<think>.*?</think>\s*<policy>(.*?)</policy>", re.DOTALL)


@dataclass(frozen=True)
class Setting:
    """A task as used in fine-tuning."""

    task: Task
    policy: Policy
    evaluate: Evaluator
    prompt: ProposalPrompt
    low: float
    """The return that is scaled to 0: a quantile of random policies, see `LEVEL`, or the published constant."""
    high: float
    """The return that is scaled to 1: the largest known, or the published constant."""
    rows: tuple[Row, ...]
    """Random policies and their mean returns."""


@dataclass(frozen=True)
class Question:
    """A prompt, and the data with which its answers are compared."""

    setting: int
    """The index of its task."""
    text: str
    """The user message."""
    rows: tuple[Row, ...]

    @property
    def best(self) -> float:
        """The largest return shown."""
        return max(row.value for row in self.rows)


def largest_return(task: Task) -> float:
    """The known upper bound of returns; else the larger of the two published optima.

    **Raises:** `ValueError` if there is neither."""
    optima = [settings.optimum for settings in (task.props, task.plus) if settings.optimum is not None]
    if task.bound is None and not optima:
        raise ValueError(
            f"the task {task.name!r} has no known optimum, so nothing to measure its returns by; choose another task"
        )
    return max(optima) if task.bound is None else task.bound


def make_settings(config: FinetuneConfig, key: jax.Array) -> list[Setting]:
    """Draw and evaluate the random policies of each task, one program per task; training tasks come first.

    **Arguments:** `config`; `key`, typed, the source of all randomness.
    **Raises:** `ValueError` for a task without a known optimum, or one whose random policies reach it; what `Task.make`
    and `describe` raise.
    """
    names = (*config.tasks, *config.held_out_tasks)
    return [_make_setting(config, get(name), jax.random.fold_in(key, i)) for i, name in enumerate(names)]


def _make_setting(config: FinetuneConfig, task: Task, key: jax.Array) -> Setting:
    paper = config.compat == "paper"
    high = 0.0 if paper else largest_return(task)
    task_settings = task.plus if config.method == "props+" else task.props
    env, env_params, policy = task.make(task_settings)
    evaluate = make_population_evaluator(env, env_params, policy)
    prompt = ProposalPrompt(
        policy,
        iterations=config.iterations,
        optimum=task_settings.optimum if config.optimum == "true" else None,
        step_size=task.step_in(policy),
        environment=describe(env, env_params, policy) if config.method == "props+" else "",
        explain=config.explain and not paper,  # the system message requests it
    )
    draw_key, play_key = jax.random.split(key)
    params = _draw(config, policy, draw_key)
    keys = jax.vmap(lambda k: episode_keys(k, config.episodes))(episode_keys(play_key, config.policies))
    values = np.asarray(evaluate(params, keys).mean, np.float64)
    rows = tuple(Row(tuple(p), v) for p, v in zip(np.asarray(params, np.float64).tolist(), values.tolist()))
    low = float(np.quantile(values, LEVEL))
    if paper:
        low, high = PUBLISHED_SCALES[task.name]
    if not low < high:
        raise ValueError(
            f"a quarter of the random policies earn {low:.4g} on {task.name!r}, whose largest known return is "
            f"{high:.4g}: there is nothing to improve; choose another task"
        )
    return Setting(task, policy, evaluate, prompt, low, high, rows)


def _draw(config: FinetuneConfig, policy: Policy, key: jax.Array) -> Float[Array, "N n"]:
    if config.compat == "paper":
        reach = PUBLISHED_REACH
        return jax.random.uniform(key, (config.policies, policy.num_params), jnp.float32, -reach, reach)
    return replace(policy, init="box").sample(key, config.policies)


def make_questions(config: FinetuneConfig, settings: Sequence[Setting]) -> tuple[list[Question], list[Question]]:
    """The training prompts and the held-out prompts, including those of held-out tasks. No policy is in two prompts.

    **Arguments:** `config`; `settings`, see `make_settings`.
    """
    training: list[Question] = []
    held_out: list[Question] = []
    aside = config.prompts // HELD_OUT
    for i, setting in enumerate(settings):
        questions = []
        for start in range(0, config.prompts * config.history, config.history):
            rows = setting.rows[start : start + config.history]
            questions.append(Question(i, setting.prompt.render(HistoryView().render(rows), 1), rows))
        if i < len(config.tasks):
            training += questions[:-aside]
        held_out += questions[-aside:][: config.eval_prompts]
    return training, held_out


def encode_question(
    config: FinetuneConfig, question: Question, tokenizer: FastTokenizer, template: ChatTemplate | None
) -> list[int]:
    """The tokens of a prompt: messages in the model's chat template, or plain text if it has none."""
    messages = [{"role": "user", "content": question.text}]
    if config.compat == "paper":
        messages.insert(0, {"role": "system", "content": TAGGED})
    row: dict[str, Any] = {"messages": messages}
    if template is None:
        row = {"prompt": "\n\n".join(message["content"] for message in messages)}
    return encode_prompt(row, "the prompt", tokenizer, template)[1]


def read_answer(
    config: FinetuneConfig, text: str, question: Question, policy: Policy
) -> tuple[bool, bool, tuple[float, ...]]:
    """Check the format of an answer, and read the policy that it proposes.

    **Returns:** whether the soft and the hard format are satisfied, and the parameters, empty if the hard format is
    not. The soft format is a complete set of parameters with any values; the hard one is what `llmrl props run`
    accepts: within the box after rounding to the requested decimals, and not in the history. With `compat="paper"` they
    are the tags, and the tags around the right number of parameters.
    """
    if config.compat == "paper":
        match = _TAGS.search(text)
        parsed = parse(match[1].strip() if match else "", Grammar.for_policy(policy, compat="paper"))
        proposal = parsed.proposals[0] if parsed.proposals else ()
        return match is not None, bool(proposal), proposal
    loose = Grammar.for_policy(policy, beyond="keep", finer="keep", repeated="keep")
    soft = bool(parse(text, loose).proposals)
    evaluated = {Format().texts(row.params) for row in question.rows}
    parsed = parse(text, Grammar.for_policy(policy), evaluated)
    return soft, bool(parsed.proposals), parsed.proposals[0] if parsed.proposals else ()


def normalized(value: Float[Array, "P n"], low: Float[Array, "P 1"], high: Float[Array, "P 1"]) -> Float[Array, "P n"]:
    """Returns scaled from `Setting.low` and `Setting.high` to [0, 1]."""
    return jnp.clip((value - low) / (high - low), 0.0, 1.0)


def improvement(
    config: FinetuneConfig,
    value: Float[Array, "P n"],
    best: Float[Array, "P 1"],
    low: Float[Array, "P 1"],
    high: Float[Array, "P 1"],
) -> Float[Array, "P n"]:
    """Improvement of a proposal over the best policy in its prompt, from 0 to 1: the gain in `normalized`.

    With `compat="paper"`: `clip((new - old) * new / old, 0, 1)`, or `new` if `old` is 0. That formula has the wrong
    sign if the returns have different signs (from -50 to 90 it gives 0, from 90 to -50 it gives 1), and, being in units
    of return, it saturates for nearly every gain.

    **Arguments:** `value`, mean returns of the proposals; `best`, the largest return shown; `low` and `high`, see
    `normalized`.
    """
    if config.compat == "paper":
        gain = (value - best) * value / jnp.where(best == 0, 1.0, best)
        return jnp.clip(jnp.where(best == 0, value, gain), 0.0, 1.0)
    return jnp.maximum(normalized(value, low, high) - normalized(best, low, high), 0.0)


def make_reward(
    config: FinetuneConfig,
    settings: Sequence[Setting],
    questions: Sequence[Question],
    tokenizer: Any,
    key: jax.Array,
    stops: StopStrings | None = None,
) -> Reward:
    """The reward of answers to `questions`, inside jit: the sum of four parts.

    `soft_format` and `hard_format`, see `read_answer`, are 0 or `config.format_weight`. `policy`, the mean return on
    the task's scale, and `improvement` are from 0 to 1, and 0 if the hard format is not satisfied or the return is not
    finite. All answers to a prompt are evaluated on the same episodes, which ranks them with less noise; a task that is
    not in the batch has no cost.

    **Arguments:** `questions`, in the order of `make_grpo`'s prompts; `tokenizer`; `key`, for the episodes; `stops`,
    strings that end an answer.
    """
    settings_of = np.array([q.setting for q in questions], np.int32)
    in_use = sorted(set(settings_of.tolist()))
    widest = max(settings[i].policy.num_params for i in in_use)
    bests = np.array([q.best for q in questions], np.float32)
    lows, highs = (np.array([getattr(s, name) for s in settings], np.float32) for name in ("low", "high"))

    def on_text(prompts: list[str], completions: list[str], rows: list[Mapping[str, Any]]) -> np.ndarray:
        lines = np.zeros((len(completions), 2 + widest), np.float32)
        for line, text, row in zip(lines, completions, rows, strict=True):
            question = row["question"]
            soft, hard, params = read_answer(config, text, question, settings[question.setting].policy)
            line[:2] = soft, hard
            line[2 : 2 + len(params)] = params
        return lines

    answers = from_text(on_text, tokenizer, [{"question": q} for q in questions], stops, shape=(2 + widest,))

    def reward(replies: Generation, indices: Int[Array, " P"]) -> dict[str, Float[Array, "P n"]]:
        read = answers(replies, indices)
        soft, hard = read[..., 0], read[..., 1]
        settings_in_batch = jnp.asarray(settings_of)[indices]
        keys = jax.vmap(lambda i: episode_keys(jax.random.fold_in(key, i), config.judged_episodes))(indices)
        value = jnp.zeros(hard.shape, jnp.float32)
        for i in in_use:
            mine = (hard > 0) & (settings_in_batch == i)[:, None]
            params = read[..., 2 : 2 + settings[i].policy.num_params]
            value = jnp.where(mine, _returns(settings[i].evaluate, params, mine, keys), value)
        good = (hard > 0) & jnp.isfinite(value)
        low, high = (jnp.asarray(x)[settings_in_batch][:, None] for x in (lows, highs))
        gained = improvement(config, value, jnp.asarray(bests)[indices][:, None], low, high)
        return {
            "soft_format": config.format_weight * soft,
            "hard_format": config.format_weight * hard,
            "policy": jnp.where(good, normalized(value, low, high), 0.0),
            "improvement": jnp.where(good, gained, 0.0),
        }

    return reward


def _returns(
    evaluate: Evaluator, params: Float[Array, "P n k"], mine: Bool[Array, "P n"], keys: Key[Array, "P E"]
) -> Float[Array, "P n"]:
    """The mean returns of the policies in `mine`; arbitrary numbers for the others. Nothing is played if `mine` is
    empty."""
    rows = params.reshape(-1, params.shape[-1])
    chosen = mine.reshape(-1)
    # unrequested rows repeat a requested one, so that they do not prolong the loop
    source = jnp.where(chosen, jnp.arange(chosen.size), jnp.argmax(chosen))

    def play() -> Float[Array, " R"]:
        return evaluate(rows[source], keys[source // mine.shape[1]]).mean

    return tracing.cond(jnp.any(chosen), play, lambda: jnp.zeros(chosen.shape, jnp.float32)).reshape(mine.shape)


# --- the run ----------------------------------------------------------------------------------------------------------


DATA = 0xDA7A
"""Folded into the seed for random policies and for the episodes of proposals."""
PARTS = ("soft_format", "hard_format", "policy", "improvement")


def _encode(
    config: FinetuneRun,
    settings: Sequence[Setting],
    questions: Sequence[Question],
    tokenizer: FastTokenizer,
    template: ChatTemplate | None,
) -> Prompts:
    tokens = [encode_question(config.data, question, tokenizer, template) for question in questions]
    longest = max(range(len(tokens)), key=lambda i: len(tokens[i]))
    if len(tokens[longest]) > config.max_prompt:
        raise ValueError(
            f"a prompt of {settings[questions[longest].setting].task.name!r} has {len(tokens[longest])} tokens, more "
            f"than --max-prompt {config.max_prompt}: raise it, or lower --history"
        )
    return pad_prompts(tokens, tokenizer.pad_id)


def _evaluation(
    config: FinetuneRun, settings: Sequence[Setting], evaluations: Mapping[int, Callable[..., dict[str, float]]]
) -> Callable[[Any, jax.Array], dict[str, float]]:
    """The mean over the training tasks, and the results per task if there are several.

    **Arguments:** `evaluations`, one for each index of `settings`."""

    def evaluate(state: Any, key: jax.Array) -> dict[str, float]:
        results = {i: evaluation(state, key) for i, evaluation in evaluations.items()}
        training = [results[i] for i in range(len(config.data.tasks))]
        values = {name: sum(x[name] for x in training) / len(training) for name in training[0]}
        if len(results) > 1:
            for i, x in results.items():
                values |= {f"{settings[i].task.name}/{name}": value for name, value in x.items()}
        return values

    return evaluate


@dataclass(frozen=True)
class _Data:
    """The training and evaluation data of a run."""

    settings: Sequence[Setting]
    training: tuple[list[Question], Prompts]
    held_out: Mapping[int, tuple[list[Question], Prompts]]
    """By index of `settings`."""


def _make_data(
    config: FinetuneRun, key: jax.Array, tokenizer: FastTokenizer, template: ChatTemplate | None, positions: int
) -> _Data:
    """**Raises:** `ValueError` for prompts that exceed `max_prompt` or the model's maximum length."""
    with doing("playing the policies of the prompts"):
        settings = make_settings(config.data, key)
        training, held_out = make_questions(config.data, settings)

    def encoded(questions: list[Question]) -> tuple[list[Question], Prompts]:
        return questions, _encode(config, settings, questions, tokenizer, template)

    data = _Data(
        settings,
        encoded(training),
        {i: encoded([q for q in held_out if q.setting == i]) for i in range(len(settings))},
    )
    longest = max(prompts.tokens.shape[1] for _, prompts in (data.training, *data.held_out.values()))
    if longest + config.grpo.max_new_tokens > positions:
        raise ValueError(
            f"the longest prompt has {longest} tokens and an answer up to {config.grpo.max_new_tokens} "
            f"(grpo.max_new_tokens): more than the model's {positions} positions"
        )
    for setting in settings:
        print(
            f"{setting.task.title}: {config.data.prompts} prompts; a return of {setting.low:.4g} counts as 0, "
            f"{setting.high:.4g} as 1",
            flush=True,
        )
    return data


def finetune(config: FinetuneRun) -> Path:
    """Fine-tune, and write the adapter and the summary into the run's folder. **Returns:** that folder."""
    if not config.model:
        raise ValueError("the model is missing: give --model, a folder, a GGUF file, a hub id or smollm2-135m")
    for name in (*config.data.tasks, *config.data.held_out_tasks):
        get(name).make()  # a missing package is named before the model is loaded and any task is played
    folder = lm.locate(config.model)
    shape, tokenizer = lm.read_config(folder), load_tokenizer(folder)
    config, template = with_template(config, folder)
    data_key, learn_key, judge_key = jax.random.split(jax.random.fold_in(jax.random.key(config.run.seed), DATA), 3)
    data = _make_data(config, data_key, tokenizer, template, shape.max_position_embeddings)
    questions, prompts = data.training
    grpo, mesh = with_end_tokens(config.grpo, folder, tokenizer), mesh_of(config)
    check_grpo(grpo, prompts, mesh, shape.vocab_size)
    model, variables = load_base(config, folder, mesh)
    reward = make_reward(config.data, data.settings, questions, tokenizer, learn_key)
    learner = make_grpo(grpo, model, variables, prompts, reward, mesh=mesh, take=True)
    evaluations = {}
    for i, (questions, prompts) in data.held_out.items():
        reward = make_reward(config.data, data.settings, questions, tokenizer, jax.random.fold_in(judge_key, i))
        evaluations[i] = make_reward_evaluation(grpo, model, prompts, reward)
    weight = config.data.format_weight
    valid = "valid" if weight == 1 else f"valid x {weight:g}"
    labels = {"reward": "reward", "reward/hard_format": valid, "reward/improvement": "improvement"}
    during = _evaluation(config, data.settings, evaluations)
    x = Experiment(config, learner, updates=config.updates, during=during, shown=labels, unit="answers", at_ends=True)
    return train(x, "props-finetune", partial(_summary, config, data), model, tokenizer, template).folder


def _summary(config: FinetuneRun, data: _Data, result: RunResult) -> dict[str, Any]:
    """The contents of the summary, except for the written files."""
    lines = [line for line in read_metrics(result.folder / "metrics.jsonl") if line["kind"] == "eval"]
    results = [{n: v for n, v in line.items() if n not in ("kind", "update", "steps")} for line in lines]
    values: dict[str, Any] = {
        "tasks": config.data.tasks,
        "held_out_tasks": config.data.held_out_tasks,
        "prompts": len(data.training[0]),
        "held_out_prompts": sum(len(questions) for questions, _ in data.held_out.values()),
        "scales": {s.task.name: [s.low, s.high] for s in data.settings},
        "before": results[0],
    }
    if result.stopped:
        return values
    values["after"] = results[-1]
    for name in ("reward", *(f"reward/{part}" for part in PARTS)):
        print(f"held out, {name}: {values['before'][name]:.3f} -> {values['after'][name]:.3f}")
    return values
