"""Commands whose options are the fields of a dataclass: presets, `--config`, `--print-config` and `--run.resume`.

A new command needs a configuration with a kind, a function, and the decorator `command`:

    @dataclass(frozen=True)
    class TrainConfig(Checked):                             # checks the bounds of fields
        KIND: ClassVar[str] = "rl train"        # the command's full name, written into config.json
        algo: str = "ppo"
        "The docstring under a field is the help text of its flag."
        steps: Steps = field(default=1_000_000, metadata=FREE)  # from 1; FREE: a resumed run may change it
        run: RunConfig = field(default_factory=RunConfig)       # BaseRunConfig without a training loop

    @command(TrainConfig)
    def train(config: TrainConfig) -> int:
        "Train an algorithm in an environment."                 # the help text of the command
        from llmrl_jax.workflows import rl_training             # import heavy modules here: help stays fast

        rl_training.train(config)
        return 0

    COMMANDS = {"train": train}

A field that is itself a dataclass gives `--field.option`; annotated with `tyro.conf.arg(name="")` its options have no
prefix. A field without a default is a required flag. The sources of the settings, highest precedence first:

1. the flags;
2. `--config FILE`, YAML, JSON or TOML, with the options nested as in a run's config.json (which is such a file);
3. for a resumed run its own config.json; else what `start` returns (for example a preset); else the defaults.

`start(get)` returns the initial settings. `get(name)` is the value of an option on the command line, in the file or in
the resumed run (None: not given), so that the settings can depend on `get("preset")` or `get("algo")`. The class of the
returned settings is the class of the command's settings: it may differ by algorithm if all share a `KIND`.

The function is called with complete and checked settings. If they have a `run`, the run's folder is known to be
writable by then, and a resumed run to keep all options that are not FREE.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import say
from llmrl_jax.core.checks import bound
from llmrl_jax.options.published import NONE, Table
from llmrl_jax.options.settings import (
    blank,
    checked,
    draft,
    names_of_command,
    overlaid,
    read_values,
    shown,
    spelled,
    to_yaml,
)
from llmrl_jax.run.config import BaseRunConfig, find_run, flag, refuse_changes, resume_value, resumed


Get = Callable[[str], str | None]
"""`(name) -> value`: the value of an option given so far; None if it was not given."""
Start = Callable[[Get], Any]
Reader = Callable[[dict[str, Any], Path], dict[str, Any]]
"""`(values, path) -> values`: the options in a file of another format."""


# --- parsing --------------------------------------------------------------------------------------------------------


def whole_number(text: str) -> int:
    """An integer as users write it: `1500000`, `1_500_000`, `1.5e6`.

    **Raises:** `ValueError` for a fraction, what is not a number, or one of more than 64 bits.
    """
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a whole number") from None
    if value.is_finite() and abs(value) >= 2**63:
        raise ValueError(f"{text!r} is too large; at most {2**63 - 1} is possible")
    if not value.is_finite() or value != value.to_integral_value():
        raise ValueError(f"{text!r} is not a whole number")
    return int(value)


_REGISTRY = ConstructorRegistry()


@_REGISTRY.primitive_rule
def _integers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda args: whole_number(args[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


_RULES: list[Any] = []
"""What the rule below is looking at: it asks tyro for its own rule."""


@_REGISTRY.struct_rule
def _parts(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Dataclasses are built without their checks, which `parse` makes when all flags are read: tyro would name a part
    by its place in the program."""
    if not dataclasses.is_dataclass(info.type) or _RULES:
        return None
    _RULES.append(info)
    try:
        spec = ConstructorRegistry.get_struct_spec(info)
    finally:
        _RULES.pop()
    if not isinstance(spec, StructConstructorSpec):
        return spec  # type: ignore[return-value]  # tyro's message about an invalid default
    fields = tuple(_with_bound(f) for f in spec.fields)
    return dataclasses.replace(spec, fields=fields, instantiate=lambda **values: draft(info.type, values))


def _with_bound(f: StructFieldSpec) -> StructFieldSpec:
    """A field whose help text ends with its bound, as in "Discount per step. From 0 to 1."."""
    limits = bound(f.type)
    if limits is None or not limits.help:
        return f

    def text() -> str:
        before = f.helptext() if callable(f.helptext) else f.helptext
        return f"{(before or '').rstrip()} {limits.help[0].upper()}{limits.help[1:]}.".lstrip()

    return dataclasses.replace(f, helptext=text)


def _checking(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that checks its arguments that are dataclasses, then calls `function`."""
    parameters = inspect.signature(function, eval_str=True).parameters

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        for name, value in options.items():
            flag = shown(parameters[name].annotation, name)
            options[name] = checked(value, name if flag else "", flag)
        return function(*args, **options)

    return call


def parse(
    function: Callable[..., Any], prog: str | None = None, args: Sequence[str] | None = None, **tyro_options: Any
) -> Any:
    """`tyro.cli` with the parsing that all our commands share: `--steps 1e6` for integers.

    **Arguments:** `function`, or a dataclass; `prog`, the program's name; `args`, the command line (None: of
    the process); `tyro_options`, further arguments of `tyro.cli`.
    **Returns:** what the function returns, or the dataclass.
    **Raises:** what the function and the checks of its settings raise, with options spelled as flags.
    """
    if isinstance(function, type):
        result = tyro.cli(function, prog=prog, args=args, registry=_REGISTRY, **tyro_options)
        return (checked(result[0]), *result[1:]) if isinstance(result, tuple) else checked(result)
    with spelled(lambda: names_of_command(function)):
        return tyro.cli(_checking(function), prog=prog, args=args, registry=_REGISTRY, **tyro_options)


def parser_of(function: Callable[..., Any]) -> Any:
    """The options of a function that `parse` reads, as an `argparse.ArgumentParser`."""
    with warnings.catch_warnings():  # tyro recommends its own completion, which knows no groups of commands
        warnings.simplefilter("ignore")
        return tyro.extras.get_parser(function, registry=_REGISTRY)


# --- defaults ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """The parts of an unparsed command line on which defaults depend."""

    args: Sequence[str]
    path: Path
    """The file of `--config`."""
    file: dict[str, Any]
    """Its values."""
    folder: str
    """The run to resume; empty: none."""
    saved: dict[str, Any]
    """The values of its config.json."""

    def get(self, name: str) -> str | None:
        """The value of an option: the flag, else that of the file, else that of the resumed run."""
        value = flag(self.args, f"--{name}")
        for values in (self.file, self.saved):
            value = value if value is not None else _find(values, name)
        return value


def _find(values: Mapping[str, Any], name: str) -> str | None:
    """An option in a file's values: at the top level, or in a part whose options have no prefix."""
    for part in (values, *(v for v in values.values() if isinstance(v, Mapping))):
        if name in part and not isinstance(part[name], Mapping):
            return str(part[name])
    return None


def read_command_line(config: type, args: Sequence[str], read: Reader | None) -> CommandLine:
    """Read what a command line names. **Arguments:** `config`, the class of the settings; `args`; `read`, a reader of
    files in other formats.

    **Raises:** what `read_values`, `find_run` and `unstamped` raise."""
    kind = getattr(config, "KIND", "")
    path, file = Path(), {}
    named = flag(args, "--config")
    if named == "":
        raise ValueError("--config names no file; give a path, or leave it out")
    if named:
        path, values = read_values(named)
        file = configs.unstamped(values, kind, path)
        if read is not None:
            file = read(file, path)
        if _is_of_a_run(path, values):  # a new run with another's settings
            file = dict(configs.upgraded(config, file))
            of_that_run = ("name", "resume", "resume_from", "accept_gaps")  # what is about that run only
            file |= {"run": {n: v for n, v in file["run"].items() if n not in of_that_run}} if "run" in file else {}
    try:
        folder, saved = _resumed_folder(args, file), {}
    except ValueError as error:
        raise ValueError(f"{path}: {error}" if "run" in file else str(error)) from None
    if folder:
        source = find_run(folder)
        values = configs.read_json(source)
        saved = configs.unstamped(values, kind, source, run=folder) if isinstance(values, dict) else {}
        saved.pop("preset", None)  # runs before version 1 hold the preset's values beside its name
    return CommandLine(args, path, file, folder, saved)


def _is_of_a_run(path: Path, values: Mapping[str, Any]) -> bool:
    """Return whether a file is the config.json that a run wrote, or a copy of it: it lies beside the run's other files,
    or has every option of `run` and its kind or, as earlier versions wrote it, the name of its folder or none. A user
    may write a file of that name too."""
    run = values.get("run", {})
    if path.name != "config.json" or not isinstance(run, Mapping):
        return False
    has_neighbours = any((path.parent / name).exists() for name in ("metrics.jsonl", "status.json", "summary.json"))
    is_complete = all(f.name in run for f in dataclasses.fields(BaseRunConfig))
    return has_neighbours or is_complete and ("kind" in values or run["name"] in ("", path.resolve().parent.name))


def _resumed_folder(args: Sequence[str], file: Mapping[str, Any]) -> str:
    """The folder of the run to resume, from the flags or the file; empty: none. **Raises:** `ValueError` for values in
    the file of other types."""
    section = file.get("run")
    run_values = dict(section) if isinstance(section, Mapping) else {}
    run_values |= {name: value for name in ("name", "out") if (value := flag(args, f"--run.{name}"))}
    if (resume := flag(args, "--run.resume")) is not None:
        run_values["resume"] = resume_value(resume) if resume else run_values.get("resume") or True
    if not run_values.get("resume"):
        return ""
    for name, kind in (("name", str), ("out", str), ("resume", bool | str)):
        if name in run_values:
            configs.from_json(kind, run_values[name], f"run.{name}")
    run = BaseRunConfig(run_values.get("name", ""), run_values.get("out", "runs"), resume=run_values["resume"])
    return os.path.join(run.out, run.name)


# --- commands -------------------------------------------------------------------------------------------------------


def command(
    config: type,
    *,
    start: Start | None = None,
    preset: str = "",
    preset_help: str = "",
    read: Reader | None = None,
    frequent: Sequence[str] = (),
    published: Table = NONE,
) -> Callable[[Callable[[Any], int]], Callable[[Any], int]]:
    """Make a function of a configuration a command; see the module's docstring.

    **Arguments:** `config`, the configuration's class; `start`, returns the initial settings; `preset`, the name of the
    default preset: with it the command has `--preset`, with the help text `preset_help`; `read`, a reader of files in
    other formats; `frequent`, the options that `--help` describes, in this order, as the command line spells them
    without the dashes ("env", "run.name"); empty: all; `published`, the options of a published program.
    **Returns:** a decorator. It does not wrap the function, which Python code calls with a configuration.
    """

    def decorate(work: Callable[[Any], int]) -> Callable[[Any], int]:
        def prepare(args: Sequence[str]) -> Callable[..., int]:
            line = read_command_line(config, args, read)
            default = blank(config) if start is None else start(line.get)
            saved, note = None, ""
            if line.folder:
                _check_kind(start, line, default)
                saved = default = resumed(type(default), line.folder)
                if preset and (flag(args, "--preset") is not None or "preset" in line.file):
                    note = f"note: the preset has no effect: the run {line.folder} keeps its own settings"
            file = {name: value for name, value in line.file.items() if name != "preset" or not preset}
            try:
                default = overlaid(default, file)
            except ValueError as error:
                raise ValueError(f"{line.path}: {error}") from error
            return _prepared(work, default, saved, line.folder, (preset, preset_help), note)

        def begin(values: Mapping[str, Any]) -> Any:
            """The initial settings of a run with these values, before any option was applied."""
            return blank(config) if start is None else start(CommandLine((), Path(), {}, "", dict(values)).get)

        work.prepare, work.begin = prepare, begin  # type: ignore[attr-defined]
        work.frequent, work.published = frequent, published  # type: ignore[attr-defined]
        return work

    return decorate


def _check_kind(start: Start | None, line: CommandLine, default: Any) -> None:
    """**Raises** `ValueError` if other options than those of the run to resume would decide the class of the settings,
    as `--algo dqn` for a run of PPO."""
    if start is None:
        return
    saved_settings = start(dataclasses.replace(line, args=(), file={}).get)
    if type(saved_settings) is not type(default):
        changed = [(n, v) for n, v in line.saved.items() if isinstance(v, str) and line.get(n) != v]
        name, value = changed[0]
        raise ValueError(
            f"--{name} is {line.get(name)}, but the run {line.folder} was begun with {value}: leave --{name} out, or "
            "choose another --run.name without --run.resume"
        )


def _prepared(
    work: Callable[[Any], int], default: Any, saved: Any, folder: str, preset: tuple[str, str], note: str
) -> Callable[..., int]:
    """The function whose signature is the command line: the settings, `--config`, `--print-config` and `--preset`."""

    def call(settings: Any, print_config: bool) -> int:
        if saved is not None:
            refuse_changes(folder, saved, settings)
        if note:
            say(note)
        if print_config:
            print(to_yaml(settings), end="")
            return 0
        if isinstance(getattr(settings, "run", None), BaseRunConfig):
            from llmrl_jax.run.folder import check_folder

            check_folder(settings.run)
        return work(settings)

    file_help = (
        "Options from a file, YAML, JSON or TOML, by their names; a run's config.json is one. Flags win over it."
    )
    print_help = "Print all options as YAML, which `--config` reads, and end."
    parameters: dict[str, tuple[Any, Any]] = {
        "config": (Annotated[str, tyro.conf.arg(name="config", help=file_help)], ""),
        "print_config": (Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help=print_help)], False),
        "settings": (Annotated[type(default), tyro.conf.arg(name="")], default),
    }
    if preset[0]:
        parameters = {"preset": (Annotated[str, tyro.conf.arg(help=preset[1])], preset[0]), **parameters}
    return _with_signature(lambda **values: call(values["settings"], values["print_config"]), parameters, work)


def _with_signature(
    function: Callable[..., int], parameters: Mapping[str, tuple[Any, Any]], like: Callable[..., Any]
) -> Callable[..., int]:
    """The function with these parameters (name -> annotation, default), and the name and docstring of `like`."""
    function.__name__, function.__doc__ = like.__name__, like.__doc__
    function.__annotations__ = {name: hint for name, (hint, _) in parameters.items()} | {"return": int}
    signature = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=hint)
        for name, (hint, value) in parameters.items()
    ]
    function.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    function.frequent = like.frequent  # type: ignore[attr-defined]
    return function
