"""Reader of the two published YAML schemas: that of the release and that of the fine-tuning repository.

Every key is read, and each deviation from the published programs is reported in a note. Template files are optional: if
the folder of a named template does not exist, the built-in prompt of the same kind is used, and reported in a note.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import envs_jax
from llmrl_jax.core.checks import nearest
from llmrl_jax.core.files import expanded
from llmrl_jax.systems.props.config import PolicyConfig, PropsConfig, ReplyConfig, TemplateConfig
from llmrl_jax.systems.props.prompts import HistoryView, digits
from llmrl_jax.systems.props.tasks import TASKS, get


RELEASE_TASKS = {
    "cont_space_llm_num_optim": "props",
    "cont_space_llm_num_optim_rndm_proj": "props",
    "dist_state_llm_num_optim": "props",
    "cont_state_llm_num_optim_semantics": "props+",
    "dist_state_llm_num_optim_semantics": "props+",
}
"""Dispatch keys of the release, with their methods."""

FINETUNE_TASKS = (
    "mountaincar", "pendulum", "blackjack", "cartpole", "grid_world", "hopper", "mc_continuous", "inverted_pendulum",
    "pong", "swimmer", "walker", "reacher", "double_pendulum", "inverted_double_pendulum", "half_cheetah", "maze",
    "nim", "cliff_walking", "navigation",
)  # fmt: skip
"""Dispatch keys of the fine-tuning repository; the environment is given by `gym_env_name`."""

MUJOCO = ("InvertedPendulum", "InvertedDoublePendulum", "Reacher", "Swimmer", "Hopper", "Walker2d", "HalfCheetah")

SHARED = {
    "task", "num_episodes", "gym_env_name", "render_mode", "env_kwargs", "logdir", "max_traj_count", "max_traj_length",
    "template_dir", "llm_si_template_name", "llm_output_conversion_template_name", "env_desc_file", "llm_model_name",
    "num_evaluation_episodes", "warmup_episodes", "warmup_dir", "bias", "rank", "optimum",
}  # fmt: skip
RELEASE = SHARED | {
    "dim_actions", "dim_states", "search_step_size", "ollama_num_ctx", "include_trajectories", "feedback_interval",
    "param_min", "param_max", "buffer_top_k", "buffer_recent_j",
}  # fmt: skip
FINETUNE = SHARED | {
    "experiments", "continuous", "num_position_bins", "num_theta_bins", "grid_size", "actions", "states",
    "llm_ui_template_name", "model_type", "base_model", "record_video", "use_replay_buffer", "reset_llm_conversation",
    "step_size", "print_episode", "max_limit", "title",
}  # fmt: skip

TEXTS = {
    "template_dir", "llm_si_template_name", "llm_ui_template_name", "llm_output_conversion_template_name",
    "env_desc_file",
}  # fmt: skip
COUNTS = {
    "num_episodes", "num_evaluation_episodes", "warmup_episodes", "rank", "max_traj_count", "max_traj_length",
    "buffer_top_k", "buffer_recent_j", "experiments", "print_episode", "grid_size",
}  # fmt: skip
NUMBERS = {"optimum", "search_step_size", "step_size", "param_min", "param_max"}
"""Keys by the type of their values, apart from those that any value suits."""

ROWS = ("hopper", "mc_continuous")
"""Dispatch keys whose dialogue shows `max_traj_length` rows of the replay buffer; the others show 100."""

WORLDS = {
    "CliffWalking-v0": "CliffWalking-v1",
    "FrozenLake-v0": "FrozenLake-v1",
    "gym_navigation:NavigationTrack-v0": "NavigationTrack-v0",
    "gym_examples/Maze-v0": "maze-sample-3x3-v0",
}
"""Older or other spellings of environment ids."""


@dataclass(frozen=True)
class Published:
    """The contents of a published file, as our settings."""

    schema: str
    """`release` or `finetune`."""
    task: str
    config: PropsConfig
    model: str
    """As in `ChatConfig.model`: a server's model, or `local:` and a folder or id."""
    adapter: str
    """A folder with adapters for the model, if that is `OFFLINE`."""
    logdir: str
    seeds: int
    """Number of searches, the published `experiments`."""
    record_video: bool
    print_every: int
    notes: tuple[str, ...]
    """Deviations from the published program."""


def _null_as_none(value: Any) -> Any:
    """None for the several spellings of null in the published files."""
    return None if isinstance(value, str) and value.strip().lower() in ("none", "null", "") else value


def _typed(name: str, value: Any) -> Any:
    """The value of a key, as the type that is read. **Raises:** `ValueError` for another one."""
    if value is None:
        return None
    if name in COUNTS | NUMBERS:
        try:  # YAML reads 1e-3 as text
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number) and (name in NUMBERS or number.is_integer()):
            return number if name in NUMBERS else int(number)
        expected = "a number" if name in NUMBERS else "a whole number"
    elif name in TEXTS:
        if isinstance(value, str):
            return value
        expected = "a text"
    elif name == "env_kwargs":
        if isinstance(value, Mapping):
            return value
        expected = "a mapping of the environment's options"
    else:
        return value
    raise ValueError(f"{name} is {value!r}; {expected} is needed")


def _count(value: Any, name: str) -> int:
    """The size of a list of lists, or a number."""
    if isinstance(value, list):
        inner = value[0] if len(value) == 1 and isinstance(value[0], list) else value
        return len(inner)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it is a positive number, or a list of ids")
    return value


def read_published(data: Mapping[str, Any], source: str = "the file", folder: str | Path = ".") -> Published:
    """Read one published configuration.

    **Arguments:** `data`, the file's keys; `source`, its name for errors; `folder`, a base of `template_dir`, used if
    it does not exist relative to the working directory.
    **Raises:** `ValueError` for an unknown key, task or environment, with the nearest name, for a value of another type
    than the key's, and for sizes that differ from the environment's.
    """
    task_key = data.get("task")
    if task_key in RELEASE_TASKS:
        schema, keys = "release", RELEASE
    elif task_key in FINETUNE_TASKS:
        schema, keys = "finetune", FINETUNE
    else:
        names = [*RELEASE_TASKS, *FINETUNE_TASKS]
        raise ValueError(f"{source}: task is {task_key!r}{nearest(str(task_key), names)} (known: {', '.join(names)})")
    for key in data:
        if key not in keys:
            raise ValueError(f"{source}: unknown key {key!r}{nearest(key, sorted(keys))}")
    try:
        values = {key: _typed(key, _null_as_none(value)) for key, value in data.items()}
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    if "gym_env_name" not in values:
        raise ValueError(f"{source}: gym_env_name is missing; it names the world, CartPole-v1 say")
    return _Reader(schema, values, source, Path(folder)).read()


class _Reader:
    """Converts one file to `Published`."""

    def __init__(self, schema: str, values: dict[str, Any], source: str, folder: Path):
        self.schema, self.values, self.source, self.folder = schema, values, source, folder
        self.notes: list[str] = []
        self.note = self.notes.append
        self.used = {"task"}
        """Keys that were read or mentioned in a note."""

    def get(self, name: str, default: Any = None) -> Any:
        self.used.add(name)
        value = self.values.get(name)
        return default if value is None else value

    def read(self) -> Published:
        task = self._task()
        legacy = self.schema == "finetune" and self._is_legacy()
        method: Any = RELEASE_TASKS.get(self.values["task"], "legacy" if legacy else "props")
        if self.schema == "finetune" and not legacy and "semantic" in self.get("llm_si_template_name", ""):
            method = "props+"
        table = get(task).step is None
        kind = self._kind(table)
        templates = self._templates(method)
        options: dict[str, Any] = {}
        if not legacy:  # the dialogue starts from one matrix
            optimum = self.get("optimum")
            options = {
                "warmup": self.get("warmup_episodes", 0),
                "optimum": "true" if optimum is None else digits(optimum),
                "history": self._history(method, table),
            }
            if not table or templates.llm_si_template_name:
                options["step_size"] = self.get("search_step_size", self.get("step_size", 0.0))
        replay = legacy and self._replays()
        if replay:
            options = self._buffer()
        if templates.llm_si_template_name and not legacy and not table:
            self.note(
                f"{templates.llm_si_template_name} may name a box of its own: unless it has the slots low and high, "
                "parameters may lie anywhere, as for the published parser"
            )
        tuned = self.schema == "finetune"
        config = PropsConfig(
            method=method,
            iterations=self.get("num_episodes", 0),
            episodes=self.get("num_evaluation_episodes", 0),
            warmup_episodes=0 if tuned else 1,
            max_steps=self._limit(task),
            policy=PolicyConfig(
                kind=kind,
                rank=self.get("rank", 0) if kind == "projection" else 0,
                init=None if table else self._init(kind),
                **({} if table else self._box()),
            ),
            **options,
            reply=ReplyConfig(
                retries=3 if tuned else 4,
                on_failure="repeat" if tuned else "stop",
                repeat="last" if tuned and not legacy else "best",
            ),
            templates=templates,
            use_replay_buffer=replay,
            reset_llm_conversation=legacy and self._resets(),
        )
        self._check_rank(task, config.policy)
        self._note_unused(legacy)
        model, adapter = self._model()
        logdir, video = str(self.get("logdir", "")), bool(self.get("record_video", False))
        seeds, print_every = self.get("experiments", 1), self.get("print_episode", 0)
        if Path(logdir).name != logdir:
            self.note(f"logdir {logdir}: the run is called {Path(logdir).name}, in the folder --out")
        for key, value in self.values.items():
            if key not in self.used and value is not None:
                self.note(f"{key} {value} is not read: it has no meaning for {method} on {task}")
        return Published(
            schema=self.schema,
            task=task,
            config=config,
            model=model,
            adapter=adapter,
            logdir=logdir,
            seeds=seeds,
            record_video=video,
            print_every=print_every,
            notes=tuple(self.notes),
        )

    def _task(self) -> str:
        """The task of the file's environment, which must have the file's sizes."""
        world = str(self.get("gym_env_name"))
        env_id = WORLDS.get(world, world)
        if env_id != world:
            self.note(f"gym_env_name {world} is {env_id} here")
        base, _, version = env_id.rpartition("-v")
        if base in MUJOCO and version != "5":
            self.note(f"gym_env_name {world} is played as {base}-v5")
            env_id = f"{base}-v5"
        options = dict(self.get("env_kwargs", {}))
        slippery = options.pop("is_slippery", None)
        if base == "CliffWalking" and slippery:
            env_id = "CliffWalkingSlippery-v1"
        elif slippery is not None and base != "CliffWalking" and not (base == "FrozenLake" and slippery):
            options["is_slippery"] = slippery
        tasks = {task.env: name for name, task in TASKS.items()}
        if env_id not in tasks:
            raise ValueError(
                f"{self.source}: there is no task for gym_env_name {world!r}{nearest(env_id, list(tasks))} "
                f"(there are {', '.join(tasks)})"
            )
        name = tasks[env_id]
        query = "&".join(f"{key}={str(value).lower()}" for key, value in options.items())
        name = f"{name}?{query}" if query else name
        try:
            env, params, policy = get(name).make()
        except TypeError as error:
            raise ValueError(f"{self.source}: env_kwargs: {error}") from None
        names = ("dim_actions", "dim_states") if self.schema == "release" else ("actions", "states")
        for key, size in zip(names, (policy.act_size, policy.obs_size)):
            value = self.get(key)
            if isinstance(value, list) and len(value) > 1 and isinstance(value[0], list):
                continue  # a product of several ranges, as blackjack's
            if value is not None and _count(value, key) != size:
                raise ValueError(f"{self.source}: {key} says {_count(value, key)}, but {env_id} has {size}")
        if self.get("grid_size") and self.get("grid_size") ** 2 != policy.obs_size:
            raise ValueError(f"{self.source}: grid_size {self.get('grid_size')} is not that of {env_id}")
        return name

    def _is_legacy(self) -> bool:
        """Return whether it is the dialogue over a matrix, not the later numeric prompt."""
        names = " ".join(str(self.get(k, "")) for k in ("llm_si_template_name", "llm_ui_template_name"))
        numeric = any(word in names for word in ("numeric", "num_optim", "semantic", "non_standard/"))
        return not numeric or bool(self.get("use_replay_buffer", False)) and "numeric" not in names

    def _kind(self, table: bool) -> Any:
        """The kind of the policy; None: the task's own."""
        projection = self.values["task"] == "cont_space_llm_num_optim_rndm_proj"
        if not projection and self.get("bias") is not False:
            return None
        if table:
            key, remedy = ("task", "use a task of tables") if projection else ("bias", "leave it out")
            raise ValueError(
                f"{self.source}: {key} is {self.values[key]!r}, but the policy of {self.get('gym_env_name')} is a "
                f"table, which has no weights; {remedy}"
            )
        return "projection" if projection else "linear_nobias"

    def _init(self, kind: Any) -> Any:
        """The initial distribution of the file's published program."""
        if kind == "linear_nobias":
            return "uniform_3"
        if self.schema == "finetune":
            return "uniform_3.5"
        return None if self._box() else "normal_unbounded"  # a box in the file applies to initial policies too

    def _replays(self) -> bool:
        """Return whether the dialogue shows the replay buffer; programs without that option always do."""
        if self.values.get("use_replay_buffer") is None:
            self.note("use_replay_buffer is not given: the replay buffer is shown, as before there was such an option")
        return bool(self.get("use_replay_buffer", True))

    def _resets(self) -> bool:
        """Return whether the dialogue is cleared; programs without that option always do."""
        if self.values.get("reset_llm_conversation") is None:
            self.note(
                "reset_llm_conversation is not given: every question stands alone, as before there was such an option"
            )
        return bool(self.get("reset_llm_conversation", True))

    def _buffer(self) -> dict[str, Any]:
        """The shown part of the replay buffer, as these keys are documented, though not all programs read them."""
        options: dict[str, Any] = {}
        if count := self.get("max_traj_count", 0):
            options["buffer_episodes"] = count
            self.note(
                f"max_traj_count {count}: the replay buffer holds the last {count} episodes; its programs keep all"
            )
        if length := self.get("max_traj_length", 0):
            task = self.values["task"]
            rows = task in ROWS
            options["buffer_rows" if rows else "buffer_steps"] = length
            self.note(
                f"max_traj_length {length} is how many rows of the replay buffer are shown, as by the program of {task}"
                if rows
                else f"max_traj_length {length}: the replay buffer holds the last {length} steps of an episode; its "
                "programs keep all, and show 100 rows as well"
            )
        return options

    def _limit(self, task: str) -> int:
        """`max_traj_length`: the maximum episode length in the release; in its last versions a length of history."""
        length = 0 if self.schema == "finetune" else self.get("max_traj_length", 0)
        if not length:
            return 0
        limit = int(envs_jax.make(get(task).env)[1].max_steps)
        if limit < length:
            self.note(f"max_traj_length {length}: the world itself ends an episode after {limit} steps")
        return min(length, limit)

    def _box(self) -> dict[str, Any]:
        """The box of a linear policy; a table's entries are its actions."""
        bounds = {"low": self.get("param_min"), "high": self.get("param_max")}
        return {name: value for name, value in bounds.items() if value is not None}

    def _check_rank(self, task: str, chosen: PolicyConfig) -> None:
        """Check `rank`, the number of parameters, against the environment; for a projection it is free."""
        size = get(task).make(**chosen.chosen)[2].num_params
        if self.get("rank", size) != size:
            raise ValueError(
                f"{self.source}: rank is {self.get('rank')}, but the policy of {task} has {size} parameters"
            )

    def _history(self, method: str, table: bool) -> HistoryView:
        steps = 200 if self.get("include_trajectories", method == "props+" and table) else 0
        top, recent = self.get("buffer_top_k"), self.get("buffer_recent_j")
        if top is not None or recent is not None:
            return HistoryView(top=top, last=recent, trajectory_steps=steps)
        key = "max_traj_count" if self.schema == "release" else "max_traj_length"
        if key == "max_traj_length" and self.get(key) is not None:
            self.note(
                f"max_traj_length {self.get(key)} is how many rows of history a prompt shows, as in its last versions"
            )
        return HistoryView(last=self.get(key) or None, trajectory_steps=steps)

    def _templates(self, method: str) -> TemplateConfig:
        """The user's templates if they exist; else the built-in ones, with a note."""
        system, question, conversion = names = (
            "llm_si_template_name", "llm_ui_template_name", "llm_output_conversion_template_name"
        )  # fmt: skip
        named = {key: self.get(key) for key in names if self.get(key)}
        if method != "legacy":
            if question in named:
                self.note(f"{question} {named.pop(question)} is not filled, as in the published program")
            converts = named.pop(conversion, None)
            if converts not in (None, named.get(system)):  # the release lists the same one twice, and fills it once
                self.note(
                    f"{conversion} {converts} is not filled: the reasons why a reply could not be read are said in its "
                    "place"
                )
        directory = self.get("template_dir", "")
        if not named:
            if directory:
                self.note(f"template_dir {directory} is not read: no template is named that this method fills")
            return TemplateConfig()
        fallback = f"so the prompt is ours of the kind {method} in place of {' and '.join(named.values())}"
        if not directory:
            self.note(f"there is no template_dir, {fallback}")
            return TemplateConfig()
        folders = [expanded(directory), self.folder / directory]
        folder = next((path for path in folders if path.is_dir()), None)
        if folder is None:
            self.note(f"there is no folder {directory} here, {fallback}")
            return TemplateConfig()
        for key, name in named.items():
            if not (folder / name).is_file():
                files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.j2"))
                raise ValueError(f"{self.source}: {key} {name!r} is not in {folder}{nearest(name, files)}")
        return TemplateConfig(str(folder), env_desc_file=self.get("env_desc_file", ""), **named)

    def _model(self) -> tuple[str, str]:
        """`(model, adapter)`."""
        name, kind = str(self.get("llm_model_name", "")), str(self.get("model_type", "")).upper()
        if not name:
            raise ValueError(f"{self.source}: llm_model_name is missing")
        base = self.get("base_model")
        if name.upper() == "OFFLINE":
            kind, name = "OFFLINE", ""
        if kind == "OFFLINE":
            if not base:
                raise ValueError(
                    f"{self.source}: an OFFLINE model needs base_model, the folder or id that was fine-tuned"
                )
            return f"local:{base}", name
        if kind == "HF":
            return f"local:{name}", ""
        if name.startswith("ollama:"):
            self.note(f"{name} is the model {name.removeprefix('ollama:')} of the server at --chat.base-url")
            return name.removeprefix("ollama:"), ""
        return name, ""

    def _note_unused(self, legacy: bool) -> None:
        """Notes on keys that have no effect here, or a different one."""
        if self.get("render_mode"):
            self.note(f"render_mode {self.get('render_mode')}: nothing is shown while searching; see --video")
        if self.get("warmup_dir"):
            self.note("warmup_dir is not read: policies of the warm-up are drawn from the seed")
        if self.schema == "finetune" and not legacy and self.get("reset_llm_conversation") is False:
            self.note("reset_llm_conversation is of the legacy protocol; every question stands alone, as published")
        if not legacy and self.get("use_replay_buffer"):
            self.note("use_replay_buffer is of the legacy protocol and is not read")
        for name in ("continuous", "num_position_bins", "num_theta_bins"):
            if (name == "continuous") != bool(self.get(name, name == "continuous")):
                self.note(f"{name}: {self.values[name]}; whether a policy is linear or a table follows from the world")
        if self.get("ollama_num_ctx"):
            self.note("ollama_num_ctx is the server's to set")
        if self.get("max_limit"):
            self.note("max_limit is not read: the curve's axis follows its values")
