"""Training runs: the implementation of `llmrl ellm pretrain`, `finetune`, `explore` and `offline`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from llmrl_jax.chat import ChatError
from llmrl_jax.core.checks import nearest, refuse_unread
from llmrl_jax.core.learner import Learner
from llmrl_jax.core.statistics import estimate_of
from llmrl_jax.lm.encoder_weights import resolved
from llmrl_jax.rl.branches import BranchQPolicy
from llmrl_jax.rl.policy import Policy
from llmrl_jax.rl.seeds import check_exchange
from llmrl_jax.run.folder import begin, opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.ellm import offline
from llmrl_jax.systems.ellm.build import Ellm, build, load_run, make_env
from llmrl_jax.systems.ellm.closed_goals import (
    ClosedGoalSpec,
    PairAnswers,
    answers_of_run,
    counts_line,
    pair_counts,
    with_answers,
)
from llmrl_jax.systems.ellm.config import (
    Downstream,
    EllmConfig,
    ExploreRun,
    FinetuneRun,
    OfflineRun,
    PretrainRun,
    StartValue,
    Tune,
)
from llmrl_jax.systems.ellm.eval import EpisodeStats, make_goal_evaluator, play_random, report, summarise, write_video
from llmrl_jax.systems.ellm.goals import GoalSpec, goal_spec_for
from llmrl_jax.systems.ellm.open_goals import COUNTS
from llmrl_jax.systems.ellm.scripted import ScriptedJudge, ScriptedSuggester
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.chat_model import Chat, make_chat
from llmrl_jax.workflows.experiment import Experiment, several_seeds


PROGRESS_METRICS = {"episode_earned": "goal reward", "epsilon": "epsilon"}
"""Metrics beside the progress bar, after those of the environment."""


def pretrain(config: PretrainRun) -> RunResult:
    """Train with goals as the reward, evaluate, and write the run to its folder, with `eval-UPDATE.json`.

    **Returns:** how it ended. **Raises:** what `build` and `llmrl_jax.run.loop.train` raise.
    """
    return _train(*_components(_settled(config)), "ellm")


def finetune(config: FinetuneRun) -> RunResult:
    """Train a pretrained agent further. **Returns** and **Raises:** as `pretrain`, and what `load_run` raises."""
    return _train(*_components(config), "ellm-finetune")


def explore(config: ExploreRun) -> RunResult:
    """Train a new agent, of whose random actions a pretrained one chooses a part. **Returns** and **Raises:** as
    `finetune`."""
    return _train(*_components(config), "ellm-explore")


def experiment(config: Any) -> Experiment:
    """The experiment of a run of `pretrain`, `finetune`, `explore` or `offline`, without its chat model. **Raises:**
    what these raise."""
    config, built, guide = _components(config)
    return _experiment(config, built, built.learner(guide=guide), guide)


def _components(config: Any) -> tuple[Any, Ellm, Guide | None]:
    """The settings of a run, its components, and the guide of its exploration, if a pretrained agent is one."""
    if not isinstance(config, Downstream):
        return config, build(config.ellm), None
    config, before, state = _after(config)
    built = build(config.ellm)
    frozen = _same_tables(built, before, state)
    if not isinstance(config, FinetuneRun):
        return config, built, Guide(before.policy, state.params, frozen)
    policy = Pretrained(built.policy, state.params, frozen, config.tune, config.reinit, config.value)
    return config, dataclasses.replace(built, policy=policy), None


def learn_offline(config: OfflineRun) -> RunResult:
    """Train an agent on recorded steps, whose goals and rewards are those of the settings. **Returns:** as `pretrain`.
    **Raises:** what `build` and `llmrl_jax.systems.ellm.offline` raise."""
    folder = Path(config.buffer)
    ellm = offline.settled(_settled(config).ellm, offline.steps_in(folder))
    config = dataclasses.replace(config, ellm=ellm)
    built = build(ellm)
    episodes = offline.read_buffer(folder, built)
    key = jax.random.fold_in(jax.random.key(config.run.seed), offline.RELABELLED)
    steps, earned = offline.relabelled_steps(built, episodes, key)
    print(f"{len(earned)} episodes, {len(steps.reward)} steps; their goals now pay {earned.mean():.2f} per episode")
    return _train(config, built, None, "ellm-offline", offline.make_offline(built, steps))


def _settled(config: Any) -> Any:
    """The settings with the encoder that `auto` stands for, so that a run that is resumed elsewhere keeps it; a chat
    model that suggests goals can be asked."""
    if config.ellm.suggester == "chat":
        config.chat.check_usable()
    return dataclasses.replace(config, ellm=dataclasses.replace(config.ellm, encoder=resolved(config.ellm.encoder)))


def _experiment(config: Any, built: Ellm, learner: Learner, guide: Any = None) -> Experiment:
    @functools.cache
    def player(episodes: int) -> Callable[..., EpisodeStats]:
        return make_goal_evaluator(built.env, built.policy, episodes)

    def variables(_: Any, state: Any) -> tuple[Any, Any, Any]:
        return state.params, state.frozen if guide is None else state.frozen["own"], state.runner.env_params

    def agent(state: Any, key: jax.Array, episodes: int) -> dict[str, float]:
        return summarise(built.spec, player(episodes)(*variables(None, state), key))

    def baseline(state: Any, key: jax.Array, episodes: int) -> dict[str, Any]:
        random = play_random(built.env, state.runner.env_params, key, episodes)
        return {"random": summarise(built.spec, random)}

    x = Experiment(
        config,
        learner,
        built.policy,
        built.env,
        evaluate=lambda state, key, episodes: {"agent": agent(state, key, episodes)},
        baseline=baseline,
        report=lambda results, episodes: _report(config, built, results, episodes),
        during=lambda state, key: agent(state, key, config.eval_episodes),
        about={"env": built.config.env},
        variables=variables,
        video=lambda state, key, path: write_video(built, variables(None, state), key, path),
        shown=built.spec.progress_metrics | PROGRESS_METRICS,
        unit="steps" if learner.unit == "environment steps" else learner.unit,
    )
    return several_seeds(x, built.config.mesh)


def _train(config: Any, built: Ellm, guide: Any, command: str, learner: Learner | None = None) -> RunResult:
    if built.asks:
        check_exchange(getattr(config, "seeds", 1))
    with opened(config.run, command) as folder:
        chat = _chat(config, built, folder)
        try:
            answers = _ask_pairs(config, built, chat, folder)
            if answers is not None:
                built = dataclasses.replace(built, env_params=with_answers(built.env_params, answers))
            if learner is None:
                learner = built.learner(chat.model if chat else None, config.chat.sampling, guide)
            x = _experiment(config, built, learner, guide)
            return experiments.train(x, folder, facts=lambda result: _suggestions(built, result.state, chat, answers))
        finally:
            if chat:
                chat.close()


def _chat(config: Any, built: Ellm, folder: Path) -> Chat | None:
    if built.config.suggester != "chat":
        return None
    adviser = ScriptedJudge() if isinstance(built.spec, ClosedGoalSpec) else ScriptedSuggester(built.spec)
    return make_chat(config.chat, adviser, folder)


def _ask_pairs(config: Any, built: Ellm, chat: Chat | None, folder: Path) -> PairAnswers | None:
    """The answers of the chat model about closed-form goals, of which it is asked before the run begins."""
    if chat is None or not isinstance(built.spec, ClosedGoalSpec):
        return None
    begin(folder, config)  # a run whose budget ends here can be resumed
    judge = built.config.judge
    try:
        return answers_of_run(folder, chat.model, built.spec, config.chat.sampling, judge.samples, judge.share)
    except ChatError as error:
        raise type(error)(f"{error}; --run.resume {folder} then continues the run") from None


def _suggestions(built: Ellm, state: Any, chat: Chat | None, answers: PairAnswers | None) -> dict[str, Any]:
    """Counts of the questions to the chat model and of its answers, and their cost."""
    if chat is None:
        return {}
    spent = chat.spent
    if answers is not None:
        numbers: dict[str, Any] = pair_counts(answers, built.spec)
        print(counts_line(numbers, spent.calls))
    else:
        counts = jax.device_get(state.runner.env_params.answers.counts)
        print(f"{int(counts[0])} states asked about, {spent.calls} requests sent, {spent.tokens} tokens")
        numbers = {name: int(n) for name, n in zip(COUNTS, counts, strict=True)}
    return {"suggestions": numbers, "chat": {"calls": spent.calls, "tokens": spent.tokens, "usd": spent.usd}}


def _report(config: Any, built: Ellm, results: dict[str, Any], episodes: int) -> str:
    """Results of held-out episodes, of the agent and of random actions, as text."""
    description = "episodes from the start of training" if built.spec.fixed_start else "held-out episodes"
    lines = [f"{episodes} {description}, with 95% intervals:", report(results, built.spec)]
    if isinstance(config, Downstream):
        agent, random = (f"{estimate_of(results[who], 'episode_return'):.2f}" for who in ("agent", "random"))
        lines.append(f"reward of the task {config.task!r}: {agent} per episode, of random actions {random}")
    return "\n".join(lines)


# --- a pretrained agent on a single task ------------------------------------------------------------------------------


def _after(config: Any) -> tuple[Any, Ellm, Any]:
    """The settings of a run that uses a pretrained agent, the agent, and its state."""
    settled = _settled(config)
    on_task(settled, goal_spec_for(make_env(settled.ellm)))  # a wrong task is found before a checkpoint is read
    _, before, state, _ = load_run(Path(config.from_run), config.checkpoint)
    if before.config.learner != "dqn":
        raise ValueError(
            f"{config.from_run} was trained by {before.config.learner}; an agent of dqn is needed: name another run "
            "with --from"
        )
    if config.ellm.learner != "dqn":
        raise ValueError(
            f"learner is {config.ellm.learner}, but a pretrained agent is used by dqn only: leave --learner out"
        )
    closed = isinstance(before.spec, ClosedGoalSpec)
    if not closed and (before.config.suggester == "none" or not before.config.goal_conditioned):
        raise ValueError(f"the agent of {config.from_run} observes no goals; one that does is needed")
    config = _settled(config)
    pretrained = dataclasses.replace(before.config, encoder=resolved(before.config.encoder))
    # weights that are finetuned know the texts of their encoder; the agent that guides `explore` keeps its own
    names = ("observe", "goal_conditioned", "network", *(("encoder",) if isinstance(config, FinetuneRun) else ()))
    for name in names:
        value, expected = getattr(config.ellm, name), getattr(pretrained, name)
        if value != expected:
            raise ValueError(f"{name} is {value}, but the agent of {config.from_run} has {expected}: give it the same")
    decided = on_task(config, before.spec)
    _refuse_overridden(config, before, decided)
    return dataclasses.replace(config, ellm=decided), before, state


def _refuse_overridden(config: Any, before: Ellm, decided: EllmConfig) -> None:
    """**Raises** `ValueError` for settings that the task decides otherwise, unless they are the pretrained run's, which
    are the defaults."""
    settings, usual = config.ellm, before.config
    subject = "a single task, which is the goal and the reward,"
    names = [f.name for f in dataclasses.fields(EllmConfig) if f.name != "env"]
    refuse_unread(settings, [n for n in names if getattr(settings, n) != getattr(decided, n)], subject, usual=usual)
    if not config.run.resume:
        refuse_unread(config, ("chat",), subject)
    task = _task_of(settings.env, before.spec)
    if settings.env != usual.env and task not in ("", config.task):
        raise ValueError(
            f"env is {settings.env}, but task is {config.task!r}: leave the task out of --env, or --env out"
        )


def _task_of(env: str, spec: GoalSpec) -> str:
    """The single task of an environment's id; empty: none."""
    if isinstance(spec, ClosedGoalSpec):
        return next((task for task in spec.tasks if spec.task_id(env, task) == env), "")
    return dict(parse_qsl(env.partition("?")[2])).get("task", "")


def on_task(config: Any, spec: GoalSpec) -> EllmConfig:
    """The settings with a single task as the environment's reward and as the goal that the agent observes; closed-form
    goals are those of the oracle."""
    steps = spec.tasks.get(config.task)
    if steps is None:
        names = list(spec.tasks)
        raise ValueError(f"task is {config.task!r}{nearest(config.task, names)}; known are {', '.join(names)}")
    if isinstance(spec, ClosedGoalSpec):
        if config.subgoals:
            raise ValueError(f"subgoals is True, but the task {config.task!r} has no steps: leave --subgoals out")
        env = spec.task_id(config.ellm.env, config.task)
        task = {"env": env, "suggester": "oracle", "fixed": (), "intrinsic": 0.0, "extrinsic": 1.0}
        return dataclasses.replace(config.ellm, **task, **_plain())
    if not steps:
        raise ValueError(f"the task {config.task!r} has no goal that an agent could observe: choose another --task")
    name, _, query = config.ellm.env.partition("?")
    options = [option for option in query.split("&") if option and not option.startswith("task=")]
    goals = tuple(dict.fromkeys(steps if config.subgoals else steps[-1:]))
    if config.subgoals and len(goals) == 1:
        raise ValueError(
            f"subgoals is True, but the task {config.task!r} has one goal, {goals[0]!r}, which the agent sees anyway: "
            "leave --subgoals out"
        )
    return dataclasses.replace(
        config.ellm,
        env=f"{name}?{'&'.join([*options, f'task={config.task}'])}",  # that of a resumed run has the task already
        suggester="fixed",
        fixed=goals,
        once=len(goals) > 1,  # of several goals those remain that were not reached; a single one stays until the end
        intrinsic=0.0,
        extrinsic=1.0,
        **_plain(),
    )


def _plain() -> dict[str, Any]:
    """Options of pretraining that a single task does not read, at their defaults."""
    default = EllmConfig()
    return {
        name: getattr(default, name) for name in ("goals", "judge", "uniform_goals", "bonus", "rnd", "noveld", "apt")
    }


def _same_tables(built: Ellm, before: Ellm, state: Any) -> Any:
    """The pretrained agent's frozen part. **Raises:** `ValueError` for an environment with other actions."""
    if (built.spec.actions, built.spec.captions) != (before.spec.actions, before.spec.captions):
        counts = before.spec.actions, built.spec.actions
        raise ValueError(
            f"the pretrained agent has {counts[0]} actions, and the world {counts[1]}: choose the same --env"
        )
    return state.frozen


class Pretrained(Policy):
    """A Q-policy that starts from given weights and trains a part of them, a `llmrl_jax.rl.policy.Policy`.

    What is not trained is in `frozen`: the optimizer does not see it, and it is saved once.
    """

    def __init__(
        self,
        policy: BranchQPolicy,
        params: Any,
        frozen: Any,
        tune: Tune = "all",
        reinit: bool = False,
        value: StartValue = "zero",
    ):
        """**Arguments:** `policy`; its `params` and `frozen`; `tune`, `all` weights, those of the heads (`critic`), or
        those of their last layers (`linear`); `reinit`, whether these weights of the heads start at random; `value`,
        how the value of a state starts: at `zero`, or as given (`keep`).

        With `zero` the network's values start as its advantages, which choose the same actions (values of actions are
        the sum of both, 1511.06581, eq. 9). Given values are sums of the rewards of many goals. One task pays less, and
        ends the episode: with `keep` its success is worth less than what other actions seem to earn, and the agent
        avoids it until all values have fallen."""
        self.policy, self.tune, self.reinit, self.value = policy, tune, reinit, value
        self.heads, self.epsilon, self.temperature = policy.heads, policy.epsilon, policy.temperature
        self._params, self._frozen = params, frozen

    def _in_heads(self, path: tuple[str, ...]) -> bool:
        return path[0] in self.heads and (self.tune != "linear" or path[1] == "out")

    def init(self, key, obs):
        params = flatten_dict(self._params)
        if self.reinit:
            new = flatten_dict(self.policy.init(key, obs)[0])
            params = {path: new[path] if self._in_heads(path) else x for path, x in params.items()}
        if self.value == "zero":
            params = {path: jnp.zeros_like(x) if path[:2] == ("value", "out") else x for path, x in params.items()}
        trained = {path: x for path, x in params.items() if self.tune == "all" or self._in_heads(path)}
        remaining = {path: x for path, x in params.items() if path not in trained}
        return unflatten_dict(trained), {"own": self._frozen, "rest": unflatten_dict(remaining)}

    def _all_params(self, params: Any, frozen: Any) -> Any:
        return unflatten_dict({**flatten_dict(frozen["rest"]), **flatten_dict(params)})

    def q(self, params, frozen, obs):
        return self.policy.q(self._all_params(params, frozen), frozen["own"], obs)


class Guide(Policy):
    """A trained Q-policy whose `init` gives its weights, for `llmrl_jax.rl.dqn.make_dqn(guide=...)`."""

    def __init__(self, policy: BranchQPolicy, params: Any, frozen: Any):
        """**Arguments:** `policy`; its `params` and `frozen`."""
        self.policy, self._weights = policy, (params, frozen)

    def init(self, key, obs):
        return jax.tree.map(lambda x: x, self._weights)

    def q(self, params, frozen, obs):
        return self.policy.q(params, frozen, obs)
