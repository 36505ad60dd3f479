"""Fine-tuning a language model as the optimizer: its prompts and rewards.

Random policies are evaluated and shown as a history; the model proposes the next one, whose return in the environment
is the reward (props reference, section 7). Answers are parsed on the host and evaluated on the device by the same
program as any other policy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from envs_jax import tracing
from llmrl_jax.agents.population import Evaluator, episode_keys, make_population_evaluator
from llmrl_jax.core.checks import Checked, NonNegativeFloat, PositiveInt
from llmrl_jax.lm import Generation, StopStrings
from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.systems.props.describe import describe
from llmrl_jax.systems.props.history import Format, HistoryView, Row
from llmrl_jax.systems.props.parser import Grammar, parse
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import ProposalPrompt
from llmrl_jax.systems.props.tasks import Task, get
from llmrl_jax.tuning import ChatTemplate, encode_prompt, from_text
from llmrl_jax.tuning.rewards import Reward


HELD_OUT = 5
"""One prompt in this many is held out: a fifth, as published."""

LEVEL = 0.75
"""Quantile of the returns of random policies that is scaled to 0. The mean is unsuitable: if large actions are costly,
a few policies have returns so low that standing still would score close to the optimum (Mountain Car: mean -1,600,
optimum 100)."""

PUBLISHED_REACH = 10.0
"""The published data are drawn from U(-10, 10), beyond the bound of 6 stated in the prompt."""

PUBLISHED_SCALES: Mapping[str, tuple[float, float]] = {"mountain_car_continuous": (-200.0, 100.0), "swimmer": (0, 250)}
"""The returns that the published rewards scale to 0 and 1."""

TAGGED = (
    "First reason about the question inside <think> and </think>. Then give your answer, the line of parameters in the "
    "form that you are asked for, inside <policy> and </policy>. Write nothing outside of the two pairs of tags."
)
"""The system message of `compat="paper"`, in our own words."""

_TAGS = re.compile(r"<think>.*?</think>\s*<policy>(.*?)</policy>", re.DOTALL)


@dataclass(frozen=True)
class FinetuneConfig(Checked):
    """Prompts and rewards of fine-tuning. The defaults are the corrected form."""

    tasks: tuple[str, ...] = ("mountain_car_continuous", "cartpole")
    """Training tasks, by name (`llmrl props list`) or environment id."""
    held_out_tasks: tuple[str, ...] = ()
    """Tasks used only for evaluation, before and after training."""
    policies: PositiveInt = 4000
    """Number of random policies per task, shown in the prompts."""
    history: PositiveInt = 5
    """Rows of history per prompt; published: 1, which leaves nothing to compare."""
    episodes: PositiveInt = 20
    """Episodes per evaluation of a policy shown in a prompt."""
    judged_episodes: PositiveInt = 20
    """Episodes per evaluation of a proposed policy; published: 1, which rewards luck."""
    eval_prompts: PositiveInt = 128
    """Maximum number of held-out prompts per task in an evaluation."""
    method: Literal["props", "props+"] = "props"
    """`props`: numbers only; `props+`: the prompt also describes the environment."""
    iterations: PositiveInt = 400
    """`N` in the prompt's "iteration 1 of N"."""
    optimum: Literal["true", "hidden"] = "true"
    """Whether prompts state the published optimum, if there is one, which is oracle knowledge."""
    explain: bool = True
    """Ask for an explanation after the proposal."""
    format_weight: NonNegativeFloat = 1.0
    """Weight of each of the two format parts of the reward; published: 1. A valid reply gets their sum even if its
    policy earns nothing, so where good policies are rare, a smaller weight lets them decide what is learnt."""
    compat: Literal["", "paper"] = ""
    """`paper`: data drawn from U(-10, 10), beyond the bounds stated in the prompt; answers in <think> and <policy>
    tags, with unbounded numbers; the published scales, and the published `improvement` with its sign error."""

    def __post_init__(self):
        super().__post_init__()
        if not self.tasks:
            raise ValueError("tasks is empty; name at least one to learn on")
        names = [get(name).name for name in (*self.tasks, *self.held_out_tasks)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"the task {twice[0]!r} is named twice among tasks and held_out_tasks; name it once")
        if self.prompts < HELD_OUT:
            raise ValueError(
                f"{self.policies} policies in prompts of {self.history} rows make {self.prompts} prompts of a task; at "
                f"least {HELD_OUT} are needed, one of them held out: raise --policies, or lower --history"
            )
        if self.compat == "paper":
            for name in names:
                if name not in PUBLISHED_SCALES:
                    scaled = ", ".join(PUBLISHED_SCALES)
                    raise ValueError(
                        f"there are no published rewards for {name!r}, only for {scaled}; leave compat out"
                    )

    @property
    def prompts(self) -> int:
        """Number of prompts per task, including held-out ones."""
        return self.policies // self.history


PUBLISHED = FinetuneConfig(tasks=("mountain_car_continuous",), history=1, judged_episodes=1, compat="paper")
"""The published fine-tuning on Mountain Car (continuous)."""


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
    shown: tuple[Row, ...]

    @property
    def best(self) -> float:
        """The largest return shown."""
        return max(row.value for row in self.shown)


def largest_return(task: Task) -> float:
    """The known upper bound of returns; else the larger of the two published optima.

    **Raises:** `ValueError` if there is neither."""
    optima = [arm.optimum for arm in (task.props, task.plus) if arm.optimum is not None]
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
    arm = task.plus if config.method == "props+" else task.props
    env, env_params, policy = task.make(arm)
    evaluate = make_population_evaluator(env, env_params, policy)
    prompt = ProposalPrompt(
        policy,
        iterations=config.iterations,
        optimum=arm.optimum if config.optimum == "true" else None,
        step_size=task.step or 1.0,
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
    learnt: list[Question] = []
    held_out: list[Question] = []
    aside = config.prompts // HELD_OUT
    for place, setting in enumerate(settings):
        questions = []
        for start in range(0, config.prompts * config.history, config.history):
            shown = setting.rows[start : start + config.history]
            questions.append(Question(place, setting.prompt.render(HistoryView().render(shown, Format()), 1), shown))
        if place < len(config.tasks):
            learnt += questions[:-aside]
        held_out += questions[-aside:][: config.eval_prompts]
    return learnt, held_out


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
        reading = parse(match[1].strip() if match else "", Grammar.of(policy, compat="paper"))
        proposal = reading.proposals[0] if reading.proposals else ()
        return match is not None, bool(proposal), proposal
    form = Format()
    loose = Grammar.of(policy, beyond="keep", finer="keep", repeated="keep")
    soft = bool(parse(text, loose).proposals)
    seen = {form.texts(row.params) for row in question.shown}
    reading = parse(text, Grammar.of(policy), seen, form)
    return soft, bool(reading.proposals), reading.proposals[0] if reading.proposals else ()


def share(value: Float[Array, "P n"], low: Float[Array, "P 1"], high: Float[Array, "P 1"]) -> Float[Array, "P n"]:
    """Returns scaled from `Setting.low` and `Setting.high` to [0, 1]."""
    return jnp.clip((value - low) / (high - low), 0.0, 1.0)


def improvement(
    config: FinetuneConfig,
    value: Float[Array, "P n"],
    best: Float[Array, "P 1"],
    low: Float[Array, "P 1"],
    high: Float[Array, "P 1"],
) -> Float[Array, "P n"]:
    """Improvement of a proposal over the best policy in its prompt, from 0 to 1: the gain in `share`.

    With `compat="paper"`: `clip((new - old) * new / old, 0, 1)`, or `new` if `old` is 0. That formula has the wrong
    sign if the returns have different signs (from -50 to 90 it gives 0, from 90 to -50 it gives 1), and, being in units
    of return, it saturates for nearly every gain.

    **Arguments:** `value`, mean returns of the proposals; `best`, the largest return shown; `low` and `high`, see
    `share`.
    """
    if config.compat == "paper":
        gain = (value - best) * value / jnp.where(best == 0, 1.0, best)
        return jnp.clip(jnp.where(best == 0, value, gain), 0.0, 1.0)
    return jnp.maximum(share(value, low, high) - share(best, low, high), 0.0)


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
    asked = sorted(set(settings_of.tolist()))
    widest = max(settings[i].policy.num_params for i in asked)
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

    def reward(replies: Generation, places: Int[Array, " P"]) -> dict[str, Float[Array, "P n"]]:
        read = answers(replies, places)
        soft, hard = read[..., 0], read[..., 1]
        places_of = jnp.asarray(settings_of)[places]
        keys = jax.vmap(lambda place: episode_keys(jax.random.fold_in(key, place), config.judged_episodes))(places)
        value = jnp.zeros(hard.shape, jnp.float32)
        for i in asked:
            mine = (hard > 0) & (places_of == i)[:, None]
            params = read[..., 2 : 2 + settings[i].policy.num_params]
            value = jnp.where(mine, _returns(settings[i].evaluate, params, mine, keys), value)
        good = (hard > 0) & jnp.isfinite(value)
        low, high = (jnp.asarray(x)[places_of][:, None] for x in (lows, highs))
        gained = improvement(config, value, jnp.asarray(bests)[places][:, None], low, high)
        return {
            "soft_format": config.format_weight * soft,
            "hard_format": config.format_weight * hard,
            "policy": jnp.where(good, share(value, low, high), 0.0),
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
