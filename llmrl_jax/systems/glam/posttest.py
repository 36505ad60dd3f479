"""Post-training tests: a trained agent with other words, other actions and other levels.

Carta et al. (2302.02662); files and rewrites are those of `post-training_tests.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

import envs_jax
from envs_jax.actions import ChosenActions
from envs_jax.env import Environment
from envs_jax.text import PromptError
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents.agent import Agent
from llmrl_jax.agents.evaluate import Episodes, make_evaluator
from llmrl_jax.agents.language import HeadsPolicy, ScoringPolicy
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import nearest
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.systems.glam.build import (
    EXTRA_ACTIONS,
    Glam,
    candidates_of,
    longest_answer,
    make_agent,
    paddings,
    prompted,
    shared_prefix,
    with_actions,
)
from llmrl_jax.systems.glam.config import GlamConfig
from llmrl_jax.systems.glam.prompts import (
    ENGLISH,
    NO_MODIFICATION,
    REWRITES,
    SYNONYMS,
    VARIANTS,
    find_rewrite,
    find_variant,
    glam_prompt,
    rewritten,
    unknown_words,
)


TEXT = "BabyAI-Text/"
MIXED, GO_TO = f"{TEXT}MixedTrainLocal-v0", f"{TEXT}GoToLocal-v0"
"""Training environments of the published agents."""

PARTS: dict[str, dict[str, str]] = {
    **{name: {"rewrite": name} for name in REWRITES["english"]},
    **{name: {"actions": name} for name in (*SYNONYMS, "extra_actions")},
    **{name: {"variant": name} for name in VARIANTS},
    "test_tasks": {"env": f"{TEXT}MixedTestLocal-v0"},
    "composition": {"env": f"{TEXT}PickUpSeqPickUpLocal-v0"},
    "go_to": {"env": GO_TO},
    "french": {"language": "french"},
}
"""The parts of a test, by name; `+` joins several."""

TESTS = (
    *REWRITES["english"],
    "test_tasks",
    "composition",
    "synonym_actions",
    "second_synonym_actions",
    "extra_actions",
    "go_to",
    "go_to+french",
)
"""The published tests, and the English base of the French one."""

VARIANT_TESTS = (NO_MODIFICATION, *VARIANTS)
"""The training prompt, and its equivalent variants."""

AGENTS = ("Random", "DRRN", "NPAE", "Flan-T5 0-shot", "GFlan-T5")

PAPER: dict[str, dict[str, float]] = {
    NO_MODIFICATION: dict(zip(AGENTS, (0.15, 0.14, 0.17, 0.11, 0.89), strict=True)),
    "other_name_same_categories": dict(zip(AGENTS, (0.15, 0.15, 0.16, 0.09, 0.87), strict=True)),
    "no_meaning_words": dict(zip(AGENTS, (0.15, 0.16, 0.16, 0.11, 0.77), strict=True)),
    "composition": dict(zip(AGENTS, (0.05, 0.06, 0.06, 0.02, 0.12), strict=True)),
    "synonym_actions": dict(zip(AGENTS, (0.15, 0.17, 0.16, 0.01, 0.12), strict=True)),
    "go_to+french": dict(zip(AGENTS, (0.30, 0.31, 0.30, 0.03, 0.01), strict=True)),
    "go_to": {"Flan-T5 0-shot": 0.27, "GFlan-T5": 0.99},
}
"""The paper's success rates by test and agent, read from a figure to within 0.01."""


class NotTestable(ValueError):
    """A test that does not apply to this agent."""


@dataclass(frozen=True)
class PostTest:
    """Changes to an agent's prompts, actions or environment; empty fields keep those of training."""

    name: str
    rewrite: str = NO_MODIFICATION
    """A key of `prompts.REWRITES`."""
    actions: str = ""
    """A key of `prompts.SYNONYMS`, or `extra_actions`."""
    env: str = ""
    """An environment id."""
    language: str = ""
    """Language of the prompt and actions; empty: that of the agent's own environment."""
    variant: str = ""
    """A key of `prompts.VARIANTS`."""


def parse_test(name: str) -> PostTest:
    """The test `name`: one of `PARTS`, or several of them, as in `go_to+french`.

    **Raises:** `KeyError` for an unknown part, with the nearest name; `ValueError` for two parts that change the same
    field.
    """
    fields: dict[str, str] = {}
    for part in name.split("+"):
        if part not in PARTS:
            raise KeyError(f"there is no test {part!r}{nearest(part, list(PARTS))} (there are {', '.join(PARTS)})")
        for changed, value in PARTS[part].items():
            if changed in fields:
                raise ValueError(f"the test {name!r} names {fields[changed]} and {value}: only one {changed} can be")
            fields[changed] = value
    test = PostTest(name, **fields)
    if test.language == "french" and test.actions in SYNONYMS:
        raise ValueError(f"the test {name!r} is in French, in which {test.actions} has no words")
    if test.language == "french" and test.variant in ENGLISH:
        raise ValueError(f"the test {name!r} is in French, in which {test.variant} has no words")
    return test


def published_env(env: str, language: str = "english") -> str:
    """The name of an environment in GLAM's files: `BabyAI-MixedTrainLocal-v0`, `BabyAI-GoToFrench-v0`."""
    name = "BabyAI-" + env.removeprefix(TEXT).removeprefix("BabyAI-")
    if language == "french":
        name = name.replace("GoToLocal-", "GoTo-").replace("-v0", "French-v0")
    return name


def paper_row(test: PostTest, env: str, trained_on: str = "") -> dict[str, float]:
    """The paper's success rates by agent; empty if it has none for the test or for agents of this training environment.

    **Arguments:** `env`, the environment of tests that name none; `trained_on`, the environment in which the agent was
    trained, empty for an untrained one.
    """
    mixed, go_to = published_env(MIXED), published_env(GO_TO)
    trained = not trained_on or published_env(trained_on) in (mixed, *([go_to] if test.env == GO_TO else []))
    return dict(PAPER.get(test.name, {})) if trained and (test.env or published_env(env) == mixed) else {}


def action_words(config: GlamConfig, test: PostTest, names: Sequence[str]) -> tuple[str, ...]:
    """The names of the actions in a test; `names`, those in training."""
    if test.actions in SYNONYMS:
        return SYNONYMS[test.actions][: config.num_actions]
    return (*names[: config.num_actions], *(EXTRA_ACTIONS if test.actions else ()))


KEPT_OPTIONS = ("describe", "language", "done_actions", "actions", "compat")
"""Options of an environment id that its tests keep: those of descriptions and actions. Options that define a level are
excluded."""


def world_of(test: PostTest, env: str) -> str:
    """The environment id of a test: `env`, if the test names none, or its own with those options of `env` that every
    environment has (`KEPT_OPTIONS`)."""
    options = "&".join(f"{name}={value}" for name, value in _options(env).items() if name in KEPT_OPTIONS)
    return "?".join(filter(None, [test.env, options])) if test.env else env


def language_of(test: PostTest, env: str) -> str:
    """The language of a test, for an agent of the environment `env`."""
    return test.language or _options(env).get("language", "english")


def _options(env: str) -> dict[str, str]:
    """The options of an environment id, by name."""
    return dict(option.partition("=")[::2] for option in env.partition("?")[2].split("&"))


def _world(config: GlamConfig, test: PostTest) -> tuple[Environment, Any]:
    """The environment of a test with its actions, and its parameters. **Raises:** `NotTestable`, see `prepare`."""
    env, params = envs_jax.make(world_of(test, config.env))
    if test.actions and config.num_actions > 6:
        raise NotTestable(f"{test.actions} has words for six actions, and this agent has {config.num_actions}")
    if test.actions == "extra_actions":
        return EpisodeStatistics(ChosenActions(env, config.num_actions, EXTRA_ACTIONS)), params
    return EpisodeStatistics(with_actions(env, config.num_actions)), params


@dataclass(frozen=True)
class Trial:
    """A test prepared for an agent."""

    env: Environment
    """Wrapped, not batched."""
    env_params: Any
    policy: Any
    actions: tuple[str, ...]
    """The names of the actions in the prompt, in English."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(getattr(self.env.unwrapped, "task_names", ("task",)))  # type: ignore[attr-defined]

    def play(
        self, params: Any, frozen: Any, key: jax.Array, episodes: int, modes: Mapping[str, bool]
    ) -> dict[str, Episodes]:
        """Whole episodes from fresh resets, see `make_evaluator`, for each mode of acting: its name, and whether it is
        greedy."""
        run = make_evaluator(self.env, self.env_params, self.policy, episodes=episodes)
        return {mode: run(params, frozen, key, greedy=greedy) for mode, greedy in modes.items()}


def prepare(agent: Agent, test: PostTest) -> Trial:
    """Prepare a test for a trained agent: the same weights, with the test's environment and words.

    **Raises:** `NotTestable` if the agent cannot read the test's words; `PromptError` if its prompts exceed the model's
    maximum length or cannot be assembled.
    """
    config = agent.config
    if isinstance(agent, Glam):
        return _language(agent, test)
    if test != PostTest(test.name, env=test.env):
        raise NotTestable(f"the agent {config.agent} knows the words and actions of training only, or none")
    test_agent = make_agent(replace(config, env=world_of(test, config.env)))
    return Trial(
        test_agent.env,
        test_agent.env_params,
        test_agent.policy,
        action_words(config, test, test_agent.env.action_names),
    )


def _language(glam: Glam, test: PostTest) -> Trial:
    """`prepare` for a language model: another prompt, and other candidates if it scores any."""
    config, policy, tokenizer = glam.config, glam.policy, glam.tokenizer
    language = language_of(test, config.env)
    english = test.actions in SYNONYMS or test.variant in ENGLISH or test.rewrite not in REWRITES[language]
    if language != "english" and english:
        raise NotTestable(f"{test.name} has no words in {language}, in which this agent was trained")
    env, env_params = _world(config, test)
    env = prompted(env, config)
    words = action_words(config, test, env.action_names)
    options: dict[str, Any] = {"history": config.history, "list_actions": config.list_actions, "language": language}
    template = glam_prompt(env, words, **options, wording=find_variant(test.variant, language))
    if test.variant and template.prompt.units == glam_prompt(env, words, **options).prompt.units:
        raise NotTestable(f"{test.variant} changes the list of actions, which the prompt of training does not have")
    template = rewritten(template, find_rewrite(test.rewrite, language))
    unknown = unknown_words(tokenizer, template)
    if unknown:
        listed = ", ".join(unknown[:6]) + (f" and {len(unknown) - 6} more" if len(unknown) > 6 else "")
        raise NotTestable(
            f"the tokenizer has no token for {listed}: this test needs a model with an open vocabulary (a byte-level "
            "or SentencePiece tokenizer, by --model)"
        )
    if isinstance(policy, HeadsPolicy) and len(words) != policy.action_head.actions:
        raise NotTestable(f"the action head has {policy.action_head.actions} logits, but the test {len(words)} actions")
    room = policy.model.config.max_position_embeddings - longest_answer(tokenizer, template)
    compiled = template.compile(tokenizer, room, heal=glam.compiled.heal)
    changed: dict[str, Any] = {
        "prompts": template.batched(compiled),
        "prefix": shared_prefix(compiled),
        "widths": paddings(compiled.max_length, len(policy.widths) + 1),
    }
    if isinstance(policy, ScoringPolicy):
        changed["candidates"] = candidates_of(template, compiled)
    return Trial(env, env_params, replace(policy, **changed), words)


@dataclass(frozen=True)
class Outcome:
    """The result of a test."""

    test: PostTest
    env: str
    """The environment id."""
    actions: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    episodes: Mapping[str, Episodes] = field(default_factory=dict)
    """By mode of acting: `sampled`, `greedy`; empty if the test was skipped."""
    skipped: str = ""
    """Why the test was skipped."""


def run_tests(
    agent: Agent, params: Any, frozen: Any, tests: Sequence[PostTest], key: jax.Array, episodes: int
) -> Iterator[Outcome]:
    """Run tests in sequence: `episodes` sampled and `episodes` greedy episodes each.

    Every test starts from the same key. A test that does not apply to the agent is reported, with the reason.
    """
    for test in tests:
        env = world_of(test, agent.config.env)
        try:
            with doing(f"{test.name}: preparing the prompts"):
                trial = prepare(agent, test)
        except (NotTestable, PromptError) as error:
            yield Outcome(test, env, skipped=str(error))
            continue
        with doing(test.name):
            played = trial.play(params, frozen, key, episodes, {"sampled": False, "greedy": True})
        yield Outcome(test, env, trial.actions, trial.tasks, played)


def run_random(config: GlamConfig, tests: Sequence[PostTest], key: jax.Array, episodes: int) -> Iterator[Outcome]:
    """Run tests with uniformly random actions, which do not depend on words: tests with the same environment and number
    of actions share their episodes."""
    cache: dict[tuple[str, int], dict[str, Episodes]] = {}
    for test in tests:
        name = world_of(test, config.env)
        try:
            env, env_params = _world(config, test)
        except NotTestable as error:
            yield Outcome(test, name, skipped=str(error))
            continue
        words = action_words(config, test, env.action_names)
        trial = Trial(env, env_params, RandomPolicy(len(words)), words)
        if (name, len(words)) not in cache:
            with doing(test.name):
                cache[name, len(words)] = trial.play((), (), key, episodes, {"sampled": False})
        yield Outcome(test, name, words, trial.tasks, cache[name, len(words)])
