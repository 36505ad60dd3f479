"""Lessons for a small Llama without pre-training, before RL in a text environment.

GLAM relies on the knowledge of a pre-trained language model; a randomly initialised model has none. These lessons are a
stand-in for it in runs that download nothing, and every summary says so:

1. **Associations** (`association`): rows of random tokens in which names have values, and questions for them.
2. **Reading** (`question`): questions and answers about the positions of objects, from the environment's captions.
3. **Imitation** (`make_prior`) of a noisy expert, a prior of adjustable strength, which RL then improves. Imitation of
   recorded demonstrations is `llmrl glam clone`.

A pre-trained model knows that two mentions of "a blue key" in a text refer to the same object. A randomly initialised
model learns this slowly from actions alone. In reading, the end of every prompt repeats its captions, the goal's first
(without its name) and then others, so that the model mainly learns reference.

A small model can answer a good part of these questions without reference, by naming positions that were not named yet,
and stays there: after 5,000 updates of 32 texts of the mixed task, it named the goal's position with 1.2 to 1.6 nats,
hardly better than a guess among five objects. Associations are the same lesson without words, can be answered by
reference only, and are a third as long. After them, objects whose names stand right before the question are found. The
goal's, whose name is only at the beginning, are found after rows that ask for it alone
(`docs/systems/glam-results.md`, "The mixed task and the baselines").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from envs_jax.env import Environment
from llmrl_jax import lm
from llmrl_jax.agents.babyai import NoisyExpert
from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import Checked, Fraction, NonNegativeInt, PositiveFloat, PositiveInt, PositiveOrInf
from llmrl_jax.core.files import replacing, write_whole
from llmrl_jax.core.learner import Learner
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.run.checkpoint import CheckpointError
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.tuning import Example, SFTConfig, make_sft, pack
from llmrl_jax.tuning.sft import learning_rates


class Program(Protocol):
    """A language model in an environment, as `llmrl_jax.systems.glam.build.Glam`."""

    @property
    def env(self) -> Environment:
        """Wrapped as for RL, not batched."""
        ...

    @property
    def env_params(self) -> Any: ...

    @property
    def policy(self) -> Any:
        """A `llmrl_jax.agents.language.ScoringPolicy` with every weight tuned (no adapters)."""
        ...

    @property
    def tokenizer(self) -> Any: ...


Build = Callable[[str], Program]
"""From an environment's id to the program with the untrained model."""


@dataclass(frozen=True)
class PriorConfig(Checked):
    """Settings of the prior."""

    updates: PositiveInt = 60
    """Number of gradient steps."""
    batch_size: PositiveInt = 512
    """Demonstrated steps per gradient step, one from each of as many environments."""
    stride: PositiveInt = 4
    """Environment steps between two gradient steps, so that batches differ."""
    noise: Fraction = 0.5
    """Probability that the expert acts uniformly at random (the prior imitates that too)."""
    seen_only: bool = False
    """Whether the expert searches for a goal out of view by turning left (true) or knows its position (false). Actions
    that depend on information absent from the text cannot be learnt."""
    learning_rate: PositiveFloat = 3e-3
    """Adam's learning rate, with 10% warm-up and cosine decay to zero at the last update."""
    max_grad_norm: PositiveOrInf = 1.0
    """Maximum global gradient norm; inf: none."""


@dataclass(frozen=True)
class ReadingConfig(Checked):
    """Settings of the reading lesson."""

    updates: NonNegativeInt = 0
    """Number of gradient steps; 0: no lesson."""
    env: str = "BabyAI-Text/GoToLocalS7N4-v0"
    """Environment whose captions are read; its vocabulary must be that of the training environment."""
    rows: PositiveInt = 40_000
    """Number of texts, each used as often as the updates allow."""
    batch_size: PositiveInt = 32
    """Texts per gradient step."""
    learning_rate: PositiveFloat = 2e-3
    """Adam's peak learning rate, with 5% warm-up and cosine decay to a tenth."""
    questions: NonNegativeInt = 0
    """Questions of a text after the goal's, for objects drawn from all in view, so that what was not named yet is no
    hint: in turn another goal in the words of the text's, and a name; 0: every other object once, in any order."""
    associations: NonNegativeInt = 0
    """Gradient steps of a lesson before this one, with twice the batch size, in which random tokens stand for names and
    positions (`association`); 0: none."""
    goals: NonNegativeInt = 0
    """Gradient steps of a lesson after the associations, of rows that ask for the value of their goal alone
    (`association`); 0: none."""
    goal_only: Fraction = 0.0
    """Fraction of the texts that end after the positions of the goal's objects, if one is in view."""
    invented: Fraction = 0.0
    """Fraction of the texts in which about half of the colours and object types are replaced by random spare tokens
    (`embedded.spare_words`), drawn per text. This teaches reference in general, not only for known names."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("associations", "goals"):
            if getattr(self, name) and not self.updates:
                raise ValueError(
                    f"{name} is {getattr(self, name)} and updates is 0: this lesson comes before the reading lesson; "
                    f"give updates too, or leave {name} 0"
                )


# --- associations -----------------------------------------------------------------------------------------------------


NAMES, VALUES = 20, 40
"""How many tokens a row of associations draws its names from, and how many its values."""
REPEATED, SHORT, BARE = 0.4, 0.3, 0.5
"""The fraction of rows that only repeat, of the others those whose names are single tokens, and the fraction of
questions that are a name alone. All three are easier, and learned first: of names of two tokens alone, the loss stays
near its start for 800 updates of 64 rows in one trial and for more than 1,600 in another; with easier rows for 300 to
400."""


def association(tokens: Sequence[int], rng: np.random.Generator, alone: bool = False) -> Example:
    """A row in which three to seven names of two tokens have values of one to three, all drawn for it.

    It begins as a prompt does: a goal (`goal` and a name), every name with its value after a comma, `end`, and the
    value of the goal's name. Then every name is asked for, in another order: the name and its value, or `goal`, the
    name, up to three other tokens, `end`, and its value. The values that are said again are trained on. Names share
    tokens ("red ball", "red key"), as those of objects do, so both tokens of a name are needed.

    **Arguments:** `tokens`, at least 60 that rows are made of. Some rows are easier (`REPEATED`, `SHORT`): up to 19
    tokens and, after up to 11 others, the same again, all but the first of which are trained on; or names of one token.
    `alone`: a row of two to five names that ends after the goal's value; values are one token, and all are different.
    """
    ids = [int(i) for i in rng.permutation(tokens)[: NAMES + VALUES]]
    if not alone and rng.random() < REPEATED:
        size, gap = int(rng.integers(4, 20)), int(rng.integers(12))
        row = [*ids[:size], *ids[NAMES : NAMES + gap], *ids[:size]]
        return Example(row, [i > size + gap for i in range(len(row))])
    firsts, seconds = ids[: rng.integers(2, 6)], ids[6 : 6 + rng.integers(2, 4)]
    goal, comma, end, values = ids[9], ids[10], ids[11], ids[NAMES:]
    names = [(first, second) for first in firsts for second in seconds]
    count = rng.integers(2, 6) if alone else rng.integers(3, 8)
    chosen = [names[i] for i in rng.permutation(len(names))[:count]]
    if rng.random() < SHORT:
        chosen = [(token,) for token in ids[12 : 12 + len(chosen)]]
    if alone:
        value_of = {name: [value] for name, value in zip(chosen, values, strict=False)}
    else:
        value_of = {name: [int(v) for v in rng.choice(values, rng.integers(1, 4))] for name in chosen}
    first = chosen[rng.integers(len(chosen))]
    parts: list[tuple[Iterable[int], bool]] = [((goal, *first), False)]
    parts += [((comma, *name, *value), False) for name, value in value_of.items()]
    parts += [((end,), False), (value_of[first], True)]
    for i in () if alone else rng.permutation(len(chosen)):
        distractors = [int(v) for v in rng.choice(values, rng.integers(4))]
        bare = rng.random() < BARE
        parts += [(chosen[i] if bare else (goal, *chosen[i], *distractors, end), False), (value_of[chosen[i]], True)]
    return Example([t for part, _ in parts for t in part], [learn for part, learn in parts for _ in part])


def association_rows(tokenizer: WordTokenizer, count: int, seed: int, alone: float = 0.0) -> list[Example]:
    """`count` rows of a tokenizer's words and spare tokens; a fraction `alone` of them ask for their goal alone.

    **Raises:** `ValueError` if it has too few.
    """
    special = {tokenizer.backend.token_to_id(name) for name in (tokenizer.PAD, tokenizer.EOS)}
    tokens = [i for i in range(tokenizer.vocab_size) if i not in special]
    if len(tokens) < NAMES + VALUES:
        raise ValueError(
            f"reading.associations and reading.goals need {NAMES + VALUES} tokens and the model has {len(tokens)}: "
            "give it spare words (embedded.spare_words), or leave them 0"
        )
    rng = np.random.default_rng(seed)
    return [association(tokens, rng, bool(rng.random() < alone)) for _ in range(count)]


# --- reading ----------------------------------------------------------------------------------------------------------


OBJECT = r"\w+ (?:ball|box|key|door)"
NAMED = re.compile(rf"(?:a|the) ({OBJECT})")
SIGHTING = re.compile(rf"You see an? (?:open |closed |locked )?({OBJECT}) ([^,]+),")


def question(text: str, rng: np.random.Generator, questions: int = 0) -> tuple[list[str], list[bool]] | None:
    """The continuation of a prompt: pieces of text, and which of them are trained on. None if nothing is in view.

    The positions of the goal's objects come first, in the goal's order and without their names, since the prompt has
    just stated the goal; only objects in view, and the nearest of several with one name. The names of the others are
    given, since their order is unpredictable: each once, or `questions` draws from all objects, of which every other
    one is a goal of its own, the text's with other objects ("Goal of the agent: go to the blue key Action 0:").
    """
    positions: dict[str, str] = {}
    for name, position in sorted(SIGHTING.findall(text), key=lambda pair: sum(map(int, re.findall(r"\d+", pair[1])))):
        positions.setdefault(name, position)
    goal = [name for name in _goal_objects(text) if name in positions]
    names = list(positions)
    if not names:
        return None
    rng.shuffle(names)
    other_questions = [(f" {name}", [name]) for name in names if name not in goal]
    if questions:
        other_questions = [_question(text, names, rng, as_goal=i % 2 == 0) for i in range(questions)]
    pieces = [f" {positions[name]}," for name in goal]
    learn = [True] * len(goal)
    for words, answers in other_questions:
        pieces += [words, *(f" {positions[name]}," for name in answers)]
        learn += [False] + [True] * len(answers)
    return pieces, learn


def _goal_objects(text: str) -> list[str]:
    """The objects that a prompt's goal names, and not what the agent sees or carries."""
    return list(dict.fromkeys(NAMED.findall(text.partition("You see")[0].partition("Observation")[0])))


def _question(text: str, names: list[str], rng: np.random.Generator, as_goal: bool) -> tuple[str, list[str]]:
    """A question: its words, and the objects in view whose positions answer it."""
    slots = _goal_objects(text)
    if not as_goal or not slots or len(slots) > len(names):
        name = names[rng.integers(len(names))]
        return f" {name}", [name]
    objects = [names[i] for i in rng.choice(len(names), len(slots), replace=False)]
    replaced = dict(zip(slots, objects, strict=True))
    goal = NAMED.sub(lambda match: match[0].replace(match[1], replaced[match[1]]), text.partition(" Observation")[0])
    return f" {goal} {' '.join(text.split()[-2:])}", objects


def invented_names(text: str, ids: list[int], tokenizer: WordTokenizer, rng: np.random.Generator) -> list[int]:
    """`ids` with about half of the colours and object types in `text` replaced by spare tokens."""
    words = sorted({word for name, _ in SIGHTING.findall(text) for word in name.split()})
    renamed = [word for word, it in zip(words, rng.random(len(words)) < 0.5, strict=True) if it]
    new_ids: dict[int | None, int] = {}
    for word, spare in zip(renamed, rng.choice(tokenizer.spare_ids, len(renamed), replace=False), strict=True):
        forms = (word, *(f"{word}{mark}" for mark in tokenizer.MARKS))
        new_ids |= dict.fromkeys(map(tokenizer.backend.token_to_id, forms), int(spare))
    return [new_ids.get(i, i) for i in ids]


def reading_rows(program: Program, config: ReadingConfig, seed: int) -> list[Example]:
    """The texts of the reading lesson, from states that a noisy expert visits.

    **Arguments:** `program`, whose environment is visited and whose prompts are continued.
    **Raises:** `ValueError` if `config.invented` is used without enough spare tokens.
    """
    tokenizer = program.tokenizer
    if config.invented and len(getattr(tokenizer, "spare_ids", ())) < 16:  # six colours and four kinds are replaced
        raise ValueError(
            f"invented is {config.invented}, which needs a model of 16 spare tokens at least: give "
            "embedded.spare_words, or leave it 0"
        )
    expert = NoisyExpert(program.env, program.env_params, 512, 0.5, seen_only=True)

    @jax.jit
    def play(obs: Any, state: Any, key: jax.Array) -> Any:
        obs, state = expert.play(jax.random.split(key, 4), jax.random.fold_in(key, 4), obs, state)
        return obs, state, *program.policy.prompts(obs)

    rng = np.random.default_rng(seed)
    key = jax.random.key(seed)
    obs, state = expert.reset(key)
    rows: list[Example] = []
    while len(rows) < config.rows:
        key = jax.random.fold_in(key, len(rows))
        obs, state, tokens, lengths = play(obs, state, key)
        for row, length in zip(np.asarray(tokens), np.asarray(lengths), strict=True):
            example = _reading_row(row[:length].tolist(), tokenizer, config, rng)
            if example is not None:
                rows.append(example)
    return rows[: config.rows]


def _reading_row(ids: list[int], tokenizer: Any, config: ReadingConfig, rng: np.random.Generator) -> Example | None:
    """A prompt, without loss, and its continuation; None if nothing is in view."""
    text = tokenizer.backend.decode(ids)
    continued = question(text, rng, config.questions)
    if continued is None:
        return None
    pieces, trained = continued
    goals = [*trained, False].index(False)
    if goals and config.goal_only and rng.random() < config.goal_only:
        pieces, trained = pieces[:goals], trained[:goals]
    learn = [False] * len(ids)
    for piece, trains in zip(pieces, trained, strict=True):
        tokens = tokenizer.encode(piece)
        ids = ids + tokens
        learn += [trains] * len(tokens)
    if config.invented and rng.random() < config.invented:
        ids = invented_names(text, ids, tokenizer, rng)
    return Example(ids, learn)


# --- imitation --------------------------------------------------------------------------------------------------------


@struct.dataclass
class PriorState:
    """State of imitation learning between updates."""

    params: Any
    frozen: Any
    opt_state: Any
    env_state: Any
    obs: Any
    key: jax.Array
    update: jax.Array


def prior_learning_rates(config: PriorConfig) -> optax.Schedule:
    """The learning rate of each update: above 0 at the first, the full one after the warm-up, 0 at the last."""
    options = SFTConfig(learning_rate=config.learning_rate, schedule="cosine", warmup=0.1, final_fraction=0.0)
    return learning_rates(options, config.updates)


def make_prior(config: PriorConfig, program: Program, base: Any = None) -> Learner:
    """A learner whose update is one gradient step on a batch of demonstrations.

    **Arguments:** `program`, which learns; `base`, initial weights of the model, None: random.

    The loss is the negative log-probability of the demonstrated action's tokens after the prompt, as in supervised
    fine-tuning, so the model learns to generate actions, not only to rank them. It is the expectation over the noisy
    expert's choice instead of a sample of it: the same gradient on average, with far less variance. `agreement` is the
    rate at which the model's most likely action is the expert's own (noise-free) one.
    """
    policy = program.policy
    expert = NoisyExpert(program.env, program.env_params, config.batch_size, config.noise, config.seen_only)
    schedule = prior_learning_rates(config)
    optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(schedule))

    def init(key: jax.Array) -> PriorState:
        env_key, model_key, run_key = jax.random.split(key, 3)
        obs, env_state = expert.reset(env_key)
        drawn, frozen = policy.init(model_key, obs)
        params = drawn if base is None else {**drawn, "params": jax.tree.map(jnp.copy, base)}
        return PriorState(params, frozen, optimizer.init(params), env_state, obs, run_key, jnp.int32(0))

    def loss_fn(params, frozen, obs, best):
        scores = policy.scores(params, frozen, obs).sum
        chosen = jnp.take_along_axis(scores, best[:, None], axis=1)[:, 0]
        expected = (1 - config.noise) * chosen + config.noise * jnp.mean(scores, axis=1)
        return -jnp.mean(expected), jnp.mean(jnp.argmax(scores, axis=-1) == best)

    def update(state: PriorState) -> tuple[PriorState, dict[str, jax.Array]]:
        key = jax.random.fold_in(state.key, state.update)
        keys = jax.vmap(lambda t: jax.random.fold_in(key, t))(jnp.arange(config.stride + 1))
        obs, env_state = expert.play(keys[:-1], keys[-1], state.obs, state.env_state)
        best = expert.best(env_state)
        (loss, agreement), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, state.frozen, obs, best)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        state = state.replace(
            params=optax.apply_updates(state.params, updates),
            opt_state=opt_state,
            env_state=env_state,
            obs=obs,
            update=state.update + 1,
        )
        return state, {"loss": loss, "agreement": agreement, "grad_norm": optax.tree.norm(grads)}

    return Learner(init=init, update=update, steps_per_update=config.batch_size * config.stride)


def save_prior(folder: str | Path, program: Program, params: Any) -> Path:
    """Write base weights as an ordinary model folder with tokenizer, for `--model FOLDER`.

    **Arguments:** `folder`, which must not exist; `program`, which was trained; `params`, the base.
    """
    path = lm.save_hf(folder, program.policy.model.config, params)
    program.tokenizer.save(path)
    return path


# --- runs of lessons --------------------------------------------------------------------------------------------------


ALONE = 0.9
"""Fraction of the rows of the lesson of goals that ask for their goal alone; the others keep what was learned."""


def continuation(folder: Path) -> str:
    """Instructions to continue a run whose lessons are in `folder`, for messages."""
    return f"the same command continues it with --run.resume {folder}"


def train_lesson(
    name: str, learner: Learner, config: Any, updates: int, run: RunConfig, folder: Path, shown: tuple[str, ...]
) -> RunResult:
    """Train a lesson: a resumable run of its own inside the folder of the run that it prepares.

    Gaps in its log, which only its curve is drawn from, are accepted: `--run.resume-from` means the checkpoints of
    `run`.

    **Arguments:** `config`, the lesson's; `run`, that of what follows; `shown`, metrics beside the progress bar.
    **Raises:** what `llmrl_jax.run.loop.train` raises; for a damaged checkpoint a `CheckpointError` with a remedy that
    the command has, whose flags do not choose a lesson's checkpoint.
    """
    settings = RunConfig(
        name=name,
        out=str(folder),
        seed=run.seed,
        log_every=5,
        progress=run.progress,
        resume=(folder / name / "config.json").exists(),
        accept_gaps=True,
    )
    try:
        return run_training(
            learner,
            settings,
            num_updates=updates,
            full_config=config,
            title=name,
            shown={metric: metric for metric in shown},
            again=continuation(folder),
        )
    except CheckpointError as error:
        if error.__cause__ is None:  # not damaged
            raise
        raise CheckpointError(
            f"a checkpoint in {folder / name} is damaged ({error.__cause__}): delete that folder, so that this lesson "
            "begins again"
        ) from error


def learn_reading(build: Build, config: ReadingConfig, run: RunConfig, folder: Path) -> list[RunResult]:
    """Fine-tune a randomly initialised model on associations and goals, if configured, and on the texts of the reading
    lesson.

    **Returns:** the results of the lessons; of fewer if one was stopped."""
    program = build(config.env)
    results: list[RunResult] = []

    def lesson(name: str, rows: list[Example], updates: int, batch_size: int, final: float) -> None:
        """A lesson, from the weights that the last one left."""
        data = pack(rows, max(len(row.tokens) for row in rows))
        model = program.policy.model
        model = model.clone(config=replace(model.config, max_position_embeddings=2 * data.tokens.shape[1]))
        variables = dict(jax.jit(model.init)(jax.random.key(run.seed), jnp.zeros((1, 1), jnp.int32)))
        if results:
            variables["params"] = results[-1].state.params
        rate = config.learning_rate
        options = SFTConfig(batch_size, learning_rate=rate, warmup=0.05, final_fraction=final, adam_b2=0.98)
        learner = make_sft(options, model, variables, data, updates, take=True)
        results.append(train_lesson(name, learner, config, updates, run, folder, ("loss",)))

    for name, updates, batch_size, alone in (
        ("associations", config.associations, 2 * config.batch_size, 0.0),
        ("goals", config.goals, config.batch_size, ALONE),
    ):
        if updates:
            print(f"1/3  a small Llama learns {config.rows} rows of random tokens: {name}", flush=True)
            rows = association_rows(program.tokenizer, config.rows, run.seed, alone)
            lesson(name, rows, updates, batch_size, 0.3)
            if results[-1].stopped:
                return results
    print(f"1/3  a small Llama reads {config.rows} texts about {config.env}", flush=True)
    lesson("reading", reading_rows(program, config, run.seed), config.updates, config.batch_size, 0.1)
    return results


def imitate(
    build: Build, env: str, config: PriorConfig, run: RunConfig, folder: Path, reading: ReadingConfig
) -> list[RunResult]:
    """Clone the noisy expert, after the reading lesson if configured, and write the model to `folder/prior`.

    **Arguments:** `env`, the environment of RL; `run`, that of RL, and `folder`, its folder.
    **Returns:** the results of the runs without their states; if the last run was stopped, no model is written."""
    program = build(env)
    results = learn_reading(build, reading, run, folder) if reading.updates else []
    if not results or not results[-1].stopped:
        print(f"1/3  a small Llama imitates a noisy expert in {env}: the stand-in for pre-training", flush=True)
        base = results[-1].state.params if results else None
        learner = make_prior(config, program, base)
        columns = ("loss", "agreement")
        results.append(train_lesson("imitation", learner, config, config.updates, run, folder, columns))
        if not results[-1].stopped:
            with replacing(folder / "prior") as draft:
                save_prior(draft, program, results[-1].state.params["params"])
    return [replace(result, state=None) for result in results]


def check_words(env: str, program: Program, reading_env: str, reading: Program) -> None:
    """**Raises** `ValueError` if the words of the reading lesson have other numbers than those of training."""
    training, lesson = (x.tokenizer.backend.get_vocab() for x in (program, reading))
    if training != lesson:
        differing = sorted(set(training) ^ set(lesson))
        raise ValueError(
            f"the reading lesson's environment {reading_env} has other words than {env}"
            f"{f' ({differing[0]!r} is in one of them only)' if differing else ''}, so that numbers of tokens would "
            "mean others: give the lesson an environment of the same language and description"
        )


def note_lessons(folder: Path, reading: ReadingConfig, imitation: PriorConfig) -> None:
    """Note the settings of the lessons, which the run's own settings do not have. **Raises:** `ValueError` if the run
    was begun with others."""
    path = folder / "lessons.json"
    lessons = {"reading": configs.identity(reading), "imitation": configs.identity(imitation)}
    values = configs.to_json(
        {f"{name}.{option}": x for name, options in lessons.items() for option, x in options.items()}
    )
    if path.exists() and (changed := configs.differences(configs.read_json(path), values)):
        raise ValueError(
            f"the run {folder} was begun with other lessons: {'; '.join(changed)} (saved -> now); put these back, or "
            "choose another name"
        )
    write_whole(path, json.dumps(values, indent=1) + "\n")
