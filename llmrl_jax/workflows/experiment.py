"""An experiment: the objects that a run's settings describe, and what every kind of run does with them.

A system builds one `Experiment` from its settings. `train` trains its learner, evaluates it beside random actions and
writes the run's results; `restore` reads a checkpoint into it; `evaluate` is `llmrl eval`, and `record` an episode for
`llmrl play`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import jax

from envs_jax.env import Environment
from llmrl_jax.agents.play import Episode, actor_of, make_recorder
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing, say
from llmrl_jax.core.checks import at_least, check_seed
from llmrl_jax.core.learner import Learner
from llmrl_jax.core.statistics import over_runs
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.seeds import select_run, vmap_learners
from llmrl_jax.run.checkpoint import Checkpoints
from llmrl_jax.run.folder import folder_name, opened, saved_updates, write_summary
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.run.progress import SHOWN


HELD_OUT = 0x4E1D
"""Folded into the seed for held-out episodes."""

Results = dict[str, Any]
"""Results of held-out episodes by name; those under `agent` are the agent's own."""


def _variables(x: Experiment, state: Any) -> tuple[Any, Any, Any]:
    return state.params, state.frozen, x.env_params


@dataclass(frozen=True)
class Language:
    """The language model of a policy, whose weights are among `Experiment.variables`: `params`, and `lora` or none."""

    model: Any
    """A `llmrl_jax.lm.Llama`."""
    tokenizer: Any
    base: str = ""
    """The model that it began as, for `llmrl_jax.lm.load`; empty: one that is built in, with random weights."""


@dataclass(frozen=True)
class Experiment:
    """Environment, learner and evaluation of a run.

    `train` trains it, `load` and `evaluate` read it from its run's folder.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> x = lr.settings_class("ppo")(env="CartPole-v1").experiment()
    >>> isinstance(x, lr.Experiment), type(x.env).__name__, x.learner.steps_per_update
    (True, 'EpisodeStatistics', 1024)
    ```
    """

    config: Any
    """The run's settings, with `run` (a `RunConfig`), `steps` (without `updates`) and `eval_episodes`."""
    learner: Learner
    policy: Any = None
    """See `llmrl_jax.rl.policy`. None: nothing that acts."""
    env: Environment | None = None
    """The environment with the agent's wrappers, not batched; None: recorded steps or text."""
    env_params: Any = None
    evaluate: Callable[[Any, jax.Array, int], Results] | None = None
    """`(state, key, episodes) -> results` of held-out episodes."""
    baseline: Callable[[Any, jax.Array, int], Results] | None = None
    """`(state, key, episodes) -> results` of random actions in the same episodes; None: `evaluate` has them."""
    report: Callable[[Results, int], str] = field(default=lambda results, episodes: "")
    """The results of `results` as text."""
    during: Callable[[Any, jax.Array], Mapping[str, float]] | None = None
    """`(state, key) -> metrics`, every `run.eval_every` updates."""
    at_ends: bool = False
    """Whether `during` is called at the start and at the end even if `run.eval_every` is 0."""
    updates: int = 0
    """Updates of the whole run; 0: those that `config.steps` takes."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the file of an evaluation says besides its results."""
    held_out: int = HELD_OUT
    variables: Callable[[Experiment, Any], tuple[Any, Any, Any]] = _variables
    """`(experiment, state) -> params, frozen, env_params` of the policy that plays."""
    video: Callable[[Any, jax.Array, Path], Path] | None = None
    """`(state, key, path) -> path`: writes an episode as a GIF; None: the pictures of its states."""
    conversation: Callable[[Any, jax.Array, bool], str] | None = None
    """`(state, key, greedy) -> text`: an episode of a policy that writes, for `llmrl play`."""
    language: Language | None = None
    """The language model that acts; None: the policy is none."""
    title: str = ""
    shown: Mapping[str, str] = field(default_factory=lambda: SHOWN)
    """Metrics beside the progress bar; see `llmrl_jax.run.loop.train`."""
    unit: str = "steps"
    """What the learner's steps are called."""

    def key(self, seed: int) -> jax.Array:
        """Key of held-out episodes."""
        return jax.random.fold_in(jax.random.key(seed), self.held_out)

    def results(self, state: Any, key: jax.Array, episodes: int) -> Results:
        """Results of held-out episodes, beside those of random actions."""
        assert self.evaluate is not None
        results = self.evaluate(state, key, episodes)
        for name, value in (self.baseline(state, key, episodes) if self.baseline else {}).items():
            results[name] = {**results[name], **value} if name in results else value
        return results


def train(
    x: Experiment,
    folder: Path | None = None,
    *,
    facts: Callable[[RunResult], Mapping[str, Any]] | None = None,
    at_end: bool = True,
    again: str = "",
) -> RunResult:
    """Train, evaluate what was learnt beside random actions, and write `eval-UPDATE.json` and `summary.json`.

    A run whose settings have `run.resume` continues from its last checkpoint, with the bits of an uninterrupted one.

    **Arguments:** `x`; `folder`, the run's, which is open (None: that of `x.config.run`, which is opened and locked);
    `facts`, more for the summary; `at_end`, whether the run ends with an evaluation; `again`, see
    `llmrl_jax.run.loop.train`.
    **Returns:** how it ended: `state`, `update`, `steps`, `seconds`, `folder`.
    **Raises:** what `llmrl_jax.run.loop.train` raises: `RunStopped` for a loss that is not finite or a metric above its
    bound, `FileExistsError` for a new run in a folder with another one.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> options = {"ppo": lr.PPOConfig(num_envs=8, num_steps=32), "run": lr.RunConfig(name="cartpole")}
    >>> config = lr.settings_class("ppo")(env="CartPole-v1", steps=512, eval_episodes=16, **options)
    >>> result = lr.train(config.experiment())
    >>> result.update, result.steps, str(result.folder)
    (2, 512, 'runs/cartpole')
    ```
    """
    if folder is None:
        with opened(x.config.run, folder_name(x.title)) as folder:
            return train(x, folder, facts=facts, at_end=at_end, again=again)
    config, run = x.config, x.config.run
    if run.eval_every and x.during is None:
        raise ValueError(
            f"run.eval_every is {run.eval_every}, but there is nothing to evaluate on: leave it out, or give "
            "--run.eval-every 0 to a run that is resumed"
        )
    updates = x.updates or -(-config.steps // x.learner.steps_per_update)
    if x.at_ends and x.during is not None:
        run = replace(run, eval_every=run.eval_every or updates)
    reports: list[str] = []
    unit = x.unit.split()[-1]

    def finish(result: RunResult) -> None:
        """Evaluate, and write what came out; the run is finished after that."""
        values: Results = {unit: result.steps, **result.facts(unit), **(facts(result) if facts else {})}
        if at_end and x.evaluate is not None and not result.stopped:
            results = x.results(result.state, x.key(config.run.seed), config.eval_episodes)
            if not larger_results(folder, result.update, config.eval_episodes):  # of `llmrl eval`, before a resume
                write_results(x, folder, result.update, config.run.seed, config.eval_episodes, results)
            values |= {
                **results.get("agent", {}),
                **{name: value for name, value in results.items() if name != "agent"},
            }
            reports.append(x.report(results, config.eval_episodes))
        if jax.process_index() == 0:
            write_summary(folder, values)

    result = run_training(
        x.learner,
        run,
        num_updates=updates,
        evaluate=x.during if run.eval_every else None,
        full_config=config,
        folder=folder,
        title=x.title,
        shown=x.shown,
        again=again,
        finish=finish,
    )
    rate = f"{result.steps_per_second:.0f}" if result.steps_per_second >= 100 else f"{result.steps_per_second:.3g}"
    if jax.process_index() == 0:
        print(*reports, f"{result.steps} {x.unit} at {rate} per second; everything is in {result.folder}", sep="\n")
    return result


def write_results(x: Experiment, folder: Path, update: int, seed: int, episodes: int, results: Results) -> Path:
    """Write the results of an evaluation. **Returns:** the file, `eval-UPDATE.json`."""
    path = folder / f"eval-{update}.json"
    if jax.process_index() == 0:
        configs.save_config({"update": update, **x.about, "seed": seed, "episodes": episodes, **results}, path)
    return path


def larger_results(folder: Path, update: int, episodes: int) -> int:
    """The episodes of the results of an update that are there already, if they are more than `episodes`; else 0. A look
    at a few episodes does not replace them."""
    try:
        before = configs.read_object(folder / f"eval-{update}.json")
    except (FileNotFoundError, ValueError):  # a damaged one is replaced
        return 0
    agent = before.get("agent")  # of `ellm eval`, whose agents have their counts; of KALM its name
    count = before.get("episodes") or (agent.get("episodes") if isinstance(agent, dict) else 0) or 0
    return int(count) if count > episodes else 0


# --- several seeds ----------------------------------------------------------------------------------------------------


def several_seeds(x: Experiment, mesh: str = "", *, one_by_one: bool = False) -> Experiment:
    """The experiment with as many seeds as its configuration has (`seeds`), in one program: `x` itself for one.

    All runs are evaluated on the same held-out episodes. Results are means with Student's intervals over the runs
    (`llmrl_jax.core.statistics.over_runs`); the policy that plays is that of the first.

    **Arguments:** `mesh`, the option that splits the environments over devices; `one_by_one`, see `vmap_learners`.
    **Raises:** `ValueError` for a mesh, for seeds beyond the largest, and what `vmap_learners` raises.
    """
    seeds, seed = getattr(x.config, "seeds", 1), x.config.run.seed
    if seeds == 1:
        return x
    if mesh:
        raise ValueError(f"seeds is {seeds} and mesh is {mesh}: several seeds run on one device, leave --mesh out")
    check_seed(f"the last of --seeds {seeds} from --run.seed {seed}", seed + seeds - 1)

    def over_seeds(function: Any, *, values: bool) -> Any:
        def results(state: Any, *args: Any) -> Results:
            return over_runs([function(select_run(state, i), *args) for i in range(seeds)], values=values)

        return function and results

    def of_first(function: Any) -> Any:
        return function and (lambda state, *args: function(select_run(state, 0), *args))

    def report(results: Results, episodes: int) -> str:
        return f"means of {seeds} seeds, with intervals over them (of random actions over episodes)\n" + x.report(
            results, episodes
        )

    return replace(
        x,
        learner=vmap_learners(x.learner, seeds, one_by_one=one_by_one),
        evaluate=over_seeds(x.evaluate, values=True),
        baseline=of_first(x.baseline),
        during=over_seeds(x.during, values=True),
        report=report,
        variables=lambda _, state: x.variables(x, select_run(state, 0)),
        video=of_first(x.video),
    )


# --- finished and interrupted runs ------------------------------------------------------------------------------------


def kind_of_run(folder: Path, *kinds: str) -> str:
    """The command that made a run, such as `rl train`; empty for runs of old versions.

    **Arguments:** `kinds`, those that are possible; none: any.
    **Raises:** `FileNotFoundError` without a run; `ValueError` for a run of another command.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"there is no run in {folder}: it has no config.json")
    kind = configs.read_object(path).get("kind", "")
    if kinds and kind not in kinds:
        named = " or ".join(f"llmrl {name}" for name in kinds)
        raise ValueError(f"{folder} is a run of llmrl {kind or '(unknown)'}; one of {named} is needed")
    return kind


def check_saved(folder: Path, checkpoint: int = -1) -> None:
    """**Raises** `FileNotFoundError` if a run has no checkpoint, or not that of the update `checkpoint` (-1: any)."""
    at_least("checkpoint", checkpoint, -1)
    saved = saved_updates(folder)
    if not saved or checkpoint >= 0 and checkpoint not in saved:
        of_update = f"of update {checkpoint} " if checkpoint >= 0 else ""
        listed = f"it has {', '.join(map(str, saved))}: choose one with --checkpoint" if saved else "the run saved none"
        raise FileNotFoundError(f"there is no checkpoint {of_update}in {folder / 'checkpoints'}; {listed}")


def experiment_of(folder: Path, config: Any) -> Experiment:
    """The experiment of a run with the settings `config`, whose `run` names its folder from here on: it may have been
    moved, or named after the settings were written."""
    folder = folder.resolve()
    config = replace(config, run=replace(config.run, out=str(folder.parent), name=folder.name))
    return on_these_devices(config).experiment()


def on_these_devices(config: Any) -> Any:
    """The settings of a run without a mesh that the devices here cannot make, as of a run of eight on one."""
    changes: dict[str, Any] = {}
    for part in fields(config):
        value = getattr(config, part.name)
        if is_dataclass(value):
            changes[part.name] = on_these_devices(value)
        elif part.name == "mesh" and value:
            try:
                make_mesh(value)
            except ValueError as error:
                say(f"note: {error}: the run's mesh is left out here")
                changes["mesh"] = ""
    return replace(config, **changes)


def restore(folder: Path, config: Any, learner: Learner, checkpoint: int = -1) -> tuple[Any, int]:
    """The state of a run's checkpoint (-1: the newest), and its update.

    **Raises:** `FileNotFoundError` for a missing checkpoint.
    """
    check_saved(folder, checkpoint)
    with doing(f"{folder.name}: compiling and computing the initial state"):
        state = learner.init(jax.random.key(config.run.seed))
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), state)
    frozen = state.frozen
    del state  # its memory is needed for the loaded state
    with (
        doing(f"{folder.name}: reading the checkpoint"),
        Checkpoints(folder, config=config, read_only=True) as checkpoints,
    ):
        return checkpoints.restore(like, None if checkpoint < 0 else checkpoint, frozen)


def restore_first(folder: Path, config: Any, learner: Learner, checkpoint: int = -1) -> tuple[Any, int]:
    """`restore` of a run's learner, or of the first of its several seeds.

    **Arguments:** `learner`, that of one seed."""
    if getattr(config, "seeds", 1) == 1:
        return restore(folder, config, learner, checkpoint)
    say(f"note: {folder} has {config.seeds} seeds, of which the first is used")
    state, update = restore(folder, config, vmap_learners(learner, config.seeds), checkpoint)
    return select_run(state, 0), update


def record(x: Experiment, state: Any, key: jax.Array, *, greedy: bool = True) -> Episode:
    """One episode of a state's policy; its views have `obs` and `state`.

    **Raises:** `ValueError` without an environment.
    """
    if x.env is None:
        raise ValueError("the run has no environment to play in: train one with --env")
    params, frozen, env_params = x.variables(x, state)
    return make_recorder(x.env, env_params, actor_of(x.policy, greedy))((params, frozen), key)
