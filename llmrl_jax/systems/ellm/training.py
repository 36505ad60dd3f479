"""Training runs: the implementation of `llmrl ellm pretrain`, `finetune`, `explore` and `offline`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import jax

from llmrl_jax.chat import ChatError
from llmrl_jax.core.checks import nearest, refuse_unread
from llmrl_jax.core.learner import Learner
from llmrl_jax.lm.encoder_names import resolved
from llmrl_jax.rl.seeds import check_exchange
from llmrl_jax.run.folder import begin, opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.ellm import evaluating, evaluation, offline
from llmrl_jax.systems.ellm.build import Ellm, build
from llmrl_jax.systems.ellm.closed import ScriptedJudge, judged_counts, judged_line, judgements, with_judged
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.facts import ClosedFacts, WorldFacts
from llmrl_jax.systems.ellm.goals import COUNTS
from llmrl_jax.systems.ellm.pretrained import Guide, Pretrained
from llmrl_jax.systems.ellm.runs import load_run
from llmrl_jax.systems.ellm.scripted import ScriptedSuggester
from llmrl_jax.systems.ellm.settings import Downstream, ExploreRun, FinetuneRun, OfflineRun, PretrainRun
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.chat_model import Chat, make_chat
from llmrl_jax.workflows.experiment import Experiment, several_seeds


SHOWN = {"episode_earned": "goal reward", "epsilon": "epsilon"}
"""Metrics beside the progress bar, after those of the world."""


def pretrain(config: PretrainRun) -> RunResult:
    """Train with goals as the reward, evaluate, and write the run to its folder, with `eval-UPDATE.json`.

    **Returns:** how it ended. **Raises:** what `build` and `llmrl_jax.run.loop.train` raise.
    """
    config = _settled(config)
    return _train(config, build(config.ellm), "ellm")


def finetune(config: FinetuneRun) -> RunResult:
    """Train a pretrained agent further. **Returns** and **Raises:** as `pretrain`, and what `load_run` raises."""
    return _train(*_finetuned(config), "ellm-finetune")


def _finetuned(config: FinetuneRun) -> tuple[FinetuneRun, Ellm]:
    config, before, state = _after(config)
    made = build(config.ellm)
    frozen = _same_tables(made, before, state)
    policy = Pretrained(made.policy, state.params, frozen, config.tune, config.reinit, config.value)
    return config, dataclasses.replace(made, policy=policy)


def explore(config: ExploreRun) -> RunResult:
    """Train a new agent, of whose random actions a pretrained one chooses a part. **Returns** and **Raises:** as
    `finetune`."""
    config, made, guide = _guided(config)
    return _train(config, made, "ellm-explore", guide)


def _guided(config: ExploreRun) -> tuple[ExploreRun, Ellm, Guide]:
    config, before, state = _after(config)
    made = build(config.ellm)
    return config, made, Guide(before.policy, state.params, _same_tables(made, before, state))


def experiment(config: Any) -> Experiment:
    """What a run of `pretrain`, `finetune`, `explore` or `offline` trains, without its chat model, and how it is
    judged. **Raises:** what these raise."""
    guide = None
    if isinstance(config, FinetuneRun):
        config, made = _finetuned(config)
    elif isinstance(config, ExploreRun):
        config, made, guide = _guided(config)
    else:
        made = build(config.ellm)
    return _experiment(config, made, made.learner(guide=guide), guide)


def learn_offline(config: OfflineRun) -> RunResult:
    """Train an agent on recorded steps, whose goals and rewards are those of the settings. **Returns:** as `pretrain`.
    **Raises:** what `build` and `llmrl_jax.systems.ellm.offline` raise."""
    folder = Path(config.buffer)
    ellm = offline.settled(_settled(config).ellm, offline.steps_in(folder))
    config = dataclasses.replace(config, ellm=ellm)
    made = build(ellm)
    episodes = offline.read_buffer(folder, made)
    key = jax.random.fold_in(jax.random.key(config.run.seed), offline.RELABELLED)
    steps, earned = offline.relabelled_steps(made, episodes, key)
    print(f"{len(earned)} episodes, {len(steps.reward)} steps; their goals now pay {earned.mean():.2f} per episode")
    return _train(config, made, "ellm-offline", learner=offline.make_offline(made, steps))


def _settled(config: Any) -> Any:
    """The settings with the encoder that `auto` stands for, so that a run that is resumed elsewhere keeps it; a chat
    model that suggests goals can be asked."""
    if config.ellm.suggester == "chat":
        config.chat.check_usable()
    return dataclasses.replace(config, ellm=dataclasses.replace(config.ellm, encoder=resolved(config.ellm.encoder)))


def _after(config: Any) -> tuple[Any, Ellm, Any]:
    """The settings of a run that uses a pretrained agent, the agent, and its state."""
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
    closed = isinstance(before.facts, ClosedFacts)
    if not closed and (before.config.suggester == "none" or not before.config.goal_conditioned):
        raise ValueError(f"the agent of {config.from_run} observes no goals; one that does is needed")
    config = _settled(config)
    own = dataclasses.replace(before.config, encoder=resolved(before.config.encoder))
    # weights that are finetuned know the texts of their encoder; the agent that guides `explore` keeps its own
    same = ("observe", "goal_conditioned", "network", *(("encoder",) if isinstance(config, FinetuneRun) else ()))
    for name in same:
        mine, its = getattr(config.ellm, name), getattr(own, name)
        if mine != its:
            raise ValueError(f"{name} is {mine}, but the agent of {config.from_run} has {its}: give it the same")
    decided = on_task(config, before.facts)
    _refuse_overridden(config, before, decided)
    return dataclasses.replace(config, ellm=decided), before, state


def _refuse_overridden(config: Any, before: Ellm, decided: EllmConfig) -> None:
    """**Raises** `ValueError` for settings that the task decides otherwise, unless they are the pretrained run's, which
    are the defaults."""
    given, usual = config.ellm, before.config
    who = "a single task, which is the goal and the reward,"
    names = [f.name for f in dataclasses.fields(EllmConfig) if f.name != "env"]
    refuse_unread(given, [n for n in names if getattr(given, n) != getattr(decided, n)], who, usual=usual)
    if not config.run.resume:
        refuse_unread(config, ("chat",), who)
    own = _task_of(given.env, before.facts)
    if given.env != usual.env and own not in ("", config.task):
        raise ValueError(f"env is {given.env}, but task is {config.task!r}: leave the task out of --env, or --env out")


def _task_of(env: str, facts: WorldFacts) -> str:
    """The single task of a world's id; empty: none."""
    if isinstance(facts, ClosedFacts):
        return next((task for task in facts.tasks if facts.task_id(env, task) == env), "")
    return dict(parse_qsl(env.partition("?")[2])).get("task", "")


def on_task(config: Any, facts: WorldFacts) -> EllmConfig:
    """The settings with a single task as the world's reward and as the goal that the agent observes; closed-form goals
    are those of the oracle."""
    steps = facts.tasks.get(config.task)
    if steps is None:
        known = list(facts.tasks)
        raise ValueError(f"task is {config.task!r}{nearest(config.task, known)}; known are {', '.join(known)}")
    if isinstance(facts, ClosedFacts):
        if config.subgoals:
            raise ValueError(f"subgoals is True, but the task {config.task!r} has no steps: leave --subgoals out")
        env = facts.task_id(config.ellm.env, config.task)
        task = {"env": env, "suggester": "oracle", "fixed": (), "intrinsic": 0.0, "extrinsic": 1.0}
        return dataclasses.replace(config.ellm, **task, **_plain())
    if not steps:
        raise ValueError(f"the task {config.task!r} has no goal that an agent could observe: choose another --task")
    name, _, query = config.ellm.env.partition("?")
    options = [option for option in query.split("&") if option and not option.startswith("task=")]
    shown = tuple(dict.fromkeys(steps if config.subgoals else steps[-1:]))
    if config.subgoals and len(shown) == 1:
        raise ValueError(
            f"subgoals is True, but the task {config.task!r} has one goal, {shown[0]!r}, which the agent sees anyway: "
            "leave --subgoals out"
        )
    return dataclasses.replace(
        config.ellm,
        env=f"{name}?{'&'.join([*options, f'task={config.task}'])}",  # that of a resumed run has the task already
        suggester="fixed",
        fixed=shown,
        once=len(shown) > 1,  # of several goals those remain that were not reached; a single one stays until the end
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


def _same_tables(made: Ellm, before: Ellm, state: Any) -> Any:
    """The pretrained agent's frozen part. **Raises:** `ValueError` for a world with other actions."""
    if (made.facts.actions, made.facts.captions) != (before.facts.actions, before.facts.captions):
        counts = before.facts.actions, made.facts.actions
        raise ValueError(
            f"the pretrained agent has {counts[0]} actions, and the world {counts[1]}: choose the same --env"
        )
    return state.frozen


def _experiment(config: Any, made: Ellm, learner: Learner, guide: Any = None) -> Experiment:
    @functools.cache
    def player(episodes: int) -> Callable[..., evaluation.Played]:
        return evaluation.make_player(made.env, made.facts, made.policy, episodes)

    def variables(_: Any, state: Any) -> tuple[Any, Any, Any]:
        return state.params, _own(state.frozen, guide), state.runner.env_params

    def agent(state: Any, key: jax.Array, episodes: int) -> dict[str, float]:
        return evaluation.summarise(made.facts, player(episodes)(*variables(None, state), key))

    def baseline(state: Any, key: jax.Array, episodes: int) -> dict[str, Any]:
        played = evaluation.play_random(made.env, made.facts, state.runner.env_params, key, episodes)
        return {"random": evaluation.summarise(made.facts, played)}

    x = Experiment(
        config,
        learner,
        made.policy,
        made.env,
        evaluate=lambda state, key, episodes: {"agent": agent(state, key, episodes)},
        baseline=baseline,
        report=lambda results, episodes: _report(config, made, results, episodes),
        during=lambda state, key: agent(state, key, config.eval_episodes),
        about={"env": made.config.env},
        variables=variables,
        film=lambda state, key, path: evaluating.film_episode(made, variables(None, state), key, path),
        shown=made.facts.shown | SHOWN,
        unit="steps" if learner.unit == "environment steps" else learner.unit,
    )
    return several_seeds(x, made.config.mesh)


def _train(config: Any, made: Ellm, command: str, guide: Any = None, learner: Learner | None = None) -> RunResult:
    if made.asks:
        check_exchange(getattr(config, "seeds", 1))
    with opened(config.run, command) as folder:
        chat = _chat(config, made, folder)
        made = _judged(config, made, chat, folder)
        if learner is None:
            learner = made.learner(chat.model if chat else None, config.chat.sampling, guide)
        x = _experiment(config, made, learner, guide)
        try:
            return experiments.train(x, folder, facts=lambda result: _asked(made, result.state, chat, folder))
        finally:
            if chat:
                chat.close()


def _own(frozen: Any, guide: Any) -> Any:
    return frozen if guide is None else frozen["own"]


def _chat(config: Any, made: Ellm, folder: Path) -> Chat | None:
    if made.config.suggester != "chat":
        return None
    adviser = ScriptedJudge() if isinstance(made.facts, ClosedFacts) else ScriptedSuggester(made.facts)
    return make_chat(config.chat, adviser, folder)


def _judged(config: Any, made: Ellm, chat: Chat | None, folder: Path) -> Ellm:
    """The parts of a run whose closed-form goals are those of the chat model, which is asked before it begins."""
    if chat is None or not isinstance(made.facts, ClosedFacts):
        return made
    begin(folder, config)  # a run whose budget ends here can be resumed
    how = made.config.judge
    try:
        found = judgements(folder, chat.model, made.facts, config.chat.sampling, how.samples, how.share)
    except ChatError as error:
        chat.close()
        raise type(error)(f"{error}; --run.resume {folder} then continues the run") from None
    return dataclasses.replace(made, env_params=with_judged(made.env_params, found))


def _asked(made: Ellm, state: Any, chat: Chat | None, folder: Path) -> dict[str, Any]:
    """What the chat model was asked, and what it cost."""
    if chat is None:
        return {}
    spent = chat.spent
    if isinstance(made.facts, ClosedFacts):
        numbers: dict[str, Any] = judged_counts(folder, made.facts, made.config.judge.share)
        print(judged_line(numbers, spent.calls))
    else:
        counts = jax.device_get(state.runner.env_params.answers.counts)
        print(f"{int(counts[0])} states asked about, {spent.calls} requests sent, {spent.tokens} tokens")
        numbers = {name: int(n) for name, n in zip(COUNTS, counts, strict=True)}
    return {"suggestions": numbers, "chat": {"calls": spent.calls, "tokens": spent.tokens, "usd": spent.usd}}


def _report(config: Any, made: Ellm, results: dict[str, Any], episodes: int) -> str:
    """Results of held-out episodes, of the agent and of random actions, as text."""
    which = "episodes from the start of training" if made.facts.fixed_start else "held-out episodes"
    lines = [f"{episodes} {which}, with 95% intervals:", evaluation.report(results, made.facts)]
    if isinstance(config, Downstream):
        own, other = (
            f"{x['episode_return']:.2f} [{x['episode_return_low']:.2f}, {x['episode_return_high']:.2f}]"
            for x in (results["agent"], results["random"])
        )
        lines.append(f"reward of the task {config.task!r}: {own} per episode, of random actions {other}")
    return "\n".join(lines)
