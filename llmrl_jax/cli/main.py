"""The command line: `llmrl <group> <command> [options]`.

A group is a module in `llmrl_jax/cli/commands/`, or the `commands.py` or `commands/` of a system's folder. It defines
`COMMANDS`, a mapping from a command's name to a function, or `COMMAND`, its only function
(`llmrl <group> [options]`).
tyro makes the options from the function's signature (a dataclass argument annotated with
`tyro.conf.arg(name="")` gives its fields, each documented by the docstring under it). The first sentence of the
module's docstring describes the group, that of the function the command. Modules are imported only when their group is
used.
A command returns None or an exit code. If its defaults depend on the command line (a preset, a file, a run to resume),
its attribute `prepare` returns the function to call for the arguments: `llmrl_jax.options.command.command` adds it to a
function of a configuration, and its module describes how to write such a command. An attribute `submit` is called in
the command's place with `--slurm.*`, whose settings come before the command's arguments. An attribute `published` is
the table of a published program's options (`llmrl_jax.options.published`). `llmrl_jax.cli.help` makes the help texts.
While a command runs, its long work is displayed on stderr (`llmrl_jax.core.activity`).

Every command that uses jax (all except `WITHOUT_JAX`) accepts `--hosts.*`, which joins several processes into one
program (`llmrl_jax.parallel.hosts`), and `--slurm.*`, which submits the rest of the command line to SLURM instead of
running it (`llmrl_jax.run.slurm`).
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import functools
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from llmrl_jax.cli.standins import standins
from llmrl_jax.core.activity import display, quiet, say
from llmrl_jax.options.kinds import PACKAGE, command_modules


USER_ERRORS = (KeyError, ValueError, TypeError, OSError, ModuleNotFoundError)
"""Errors that our code raises for invalid user input; `ChatError` is another."""
WITHOUT_JAX = ("completion", "doctor", "envs list", "runs list")
"""Groups and commands that need no jax: they start faster, and work where it is broken."""
ALONE = ("report", "sweep")
"""Groups that start no backend and join no processes: a sweep leaves the devices to its jobs."""


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of commands: its module, and the first sentence of its description."""

    module: str
    description: str


def groups() -> dict[str, Group]:
    """Every group by name, with what its file says of it. Nothing is imported."""
    result = {}
    for name, module in command_modules().items():
        path = PACKAGE.parent.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        result[name] = Group(module, first_sentence(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))))
    return result


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring, in one line: up to the first full stop before a capital letter or a backquote,
    or else its first paragraph."""
    paragraph = " ".join((text or "").strip().partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", paragraph, maxsplit=1)[0]


def _choose(args: Sequence[str], prog: str, kind: str, rows: dict[str, str], description: str) -> str | None:
    """The group or command that the first argument names; None if help was requested and printed.

    **Raises:** `_Usage` if there is none, or an unknown one, naming the nearest.
    """
    from llmrl_jax.cli import help

    if args and _asks_for_help(args[:1]):
        print(help.usage(prog, kind, rows, description), end="")
        return None
    if not args:
        raise _Usage(help.usage(prog, kind, rows, description) + f"error: a {kind} is missing")
    if args[0] not in rows:
        from llmrl_jax.core.checks import nearest

        raise _Usage(f"error: unknown {kind} {args[0]!r}{nearest(args[0], list(rows))} (known: {', '.join(rows)})")
    return args[0]


class _Usage(Exception):
    """A command line without a valid command."""


def _is_ours(error: BaseException) -> bool:
    """Return whether an exception was raised by a `raise` in this project's code, not by an operation."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code, module = trace.tb_frame.f_code, trace.tb_frame.f_globals.get("__name__", "")
    raised = dis.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"
    return raised and module.split(".")[0] in ("llmrl_jax", "envs_jax", "benchmarks", "__main__")


def _is_a(module: str, name: str, error: BaseException) -> bool:
    """Return whether an error is of the class `name` in `module`, without importing that slow module."""
    return module in sys.modules and isinstance(error, getattr(sys.modules[module], name))


def _lack_of_memory(error: BaseException) -> str:
    """The message of an out-of-memory error, with the remedy; empty for any other error."""
    text = str(error).strip().split("\n")[0]
    device = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
    if not (isinstance(error, MemoryError) or device and ("RESOURCE_EXHAUSTED" in text or "Out of memory" in text)):
        return ""
    detail = f" ({text[:200]})" if text else ""
    return f"not enough memory{detail}: take fewer rows or a smaller model; `llmrl lm fit` computes what fits"


def _message(error: BaseException) -> str:
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


def _find(args: list[str], prog: str) -> tuple[Callable[..., Any], str, list[str]] | None:
    """The command that the first two arguments name, its full name, and its arguments; None if help was requested and
    printed."""
    by_name = groups()
    description = "Reinforcement learning with language models, in one XLA program."
    description += "\nAnywhere: --debug shows the traceback of an error; --version prints the version."
    description += "\nWhere jax is used: --hosts.* joins several processes, --slurm.* submits to SLURM (--hosts.help,"
    description += "\n--slurm.help)."
    group = _choose(args, prog, "group", {name: group.description for name, group in by_name.items()}, description)
    if group is None:
        return None
    module = importlib.import_module(by_name[group].module)
    if hasattr(module, "COMMAND"):
        return module.COMMAND, f"{prog} {group}", args[1:]
    commands: dict[str, Callable[..., Any]] = module.COMMANDS
    rows = {name: first_sentence(f.__doc__) for name, f in commands.items()}
    name = _choose(args[1:], f"{prog} {group}", "command", rows, by_name[group].description)
    if name is None:
        return None
    command = commands[name]
    published = getattr(command, "published", None)
    remaining = args[2:] if published is None else published.translated(args[2:])
    prepare = getattr(command, "prepare", None)
    if prepare is not None:  # a command whose defaults depend on its arguments: a preset, a run to resume
        command = prepare(remaining)
    return command, f"{prog} {group} {name}", remaining


def _help(args: list[str], prog: str) -> int:
    """Print the requested help. Imports no jax, unless it fails without."""
    with contextlib.suppress(Exception), standins() as end:
        target = _find(args, prog)
        end()
        if target is None:
            return 0
        from llmrl_jax.cli.help import help_text

        command, name, left = target
        print(help_text(command, name, everything="--help-all" in left), end="")
        return 0
    return _run(["--help" if arg == "--help-all" else arg for arg in args], prog)


def _run(args: list[str], prog: str) -> int:
    target = _find(args, prog)
    if target is None:
        return 0
    from llmrl_jax.options.command import parse

    command, name, left = target
    with display() if _is_first() else display(quiet):
        result = parse(command, name, left)
    return result if isinstance(result, int) else 0


def _is_first() -> bool:
    """Return whether this is the first of the processes of a program, or the only one."""
    jax = sys.modules.get("jax")
    return jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0


def _take(args: Sequence[str], prefix: str, kind: Any, prog: str) -> tuple[Any, list[str]]:
    """The flags `--<prefix>.*` as a `kind` (its defaults if there are none), and the other arguments.

    **Raises:** `_Usage` for an unknown one, naming the nearest.
    """
    asks = f"--{prefix}.help" in args
    if not asks and not any(a.startswith(f"--{prefix}.") for a in args):
        return kind(), list(args)
    from llmrl_jax.options.command import parse

    flags: Any = dataclasses.make_dataclass("Flags", [(prefix, kind, dataclasses.field(default_factory=kind))])
    if asks:
        from llmrl_jax.cli.help import help_text

        print(help_text(flags, prog), end="")
        raise SystemExit(0)
    result: Any = parse(flags, prog, list(args), return_unknown_args=True)
    parsed, left = result
    for arg in left:
        if arg.startswith(f"--{prefix}."):
            from llmrl_jax.core.checks import nearest

            names = [f"--{prefix}.{f.name.replace('_', '-')}" for f in dataclasses.fields(kind)]
            name = arg.partition("=")[0]
            raise _Usage(f"error: unknown flag {name!r}{nearest(name, names)} (known: {', '.join(names)})")
    return getattr(parsed, prefix), left


def _join_hosts(args: Sequence[str], prog: str) -> list[str]:
    """Join the processes that the flags or a launcher name, and print the devices of each. Does not initialize devices
    if this process is alone. **Returns:** the other arguments."""
    from llmrl_jax.parallel import hosts

    config, left = _take(args, "hosts", hosts.HostsConfig, prog)
    explicit = (config.coordinator, config.num_processes, config.process_id) != (None, None, None)
    if config.mode == "off" or not (explicit or hosts.expected()):
        return left
    table = hosts.initialize(**{f.name: getattr(config, f.name) for f in dataclasses.fields(config)})
    import jax

    if jax.process_index() == 0:
        print(table, flush=True)
    return left


def _submit(args: Sequence[str], prog: str) -> int | None:
    """Submit the rest of a command line with `--slurm.*`, after parsing it. None without such flags."""
    if not any(a.startswith("--slurm.") for a in args):
        return None
    from llmrl_jax.run import slurm

    config, left = _take(args, "slurm", slurm.SlurmConfig, prog)
    if clash := [a for a in left if a.startswith("--hosts.")]:
        raise _Usage(f"error: {clash[0]} beside --slurm.*: the job's processes join as --slurm.mode says; leave it out")
    target = _find(left, prog)
    if target is None:
        return 0
    from llmrl_jax.options.command import parse

    command, name, remaining = target
    if (submit_jobs := getattr(command, "submit", None)) is not None:  # several jobs
        return parse(functools.wraps(command)(functools.partial(submit_jobs, config)), name, remaining)

    @functools.wraps(command)
    def parsed(*args: Any, **kwargs: Any) -> list[Any]:
        return [*args, *kwargs.values()]

    slurm.submit(config, left, parse(parsed, name, remaining))
    return 0


def _default_compilation_cache() -> None:
    """Set the persistent compilation cache, unless the user's environment does."""
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    from llmrl_jax.run.config import use_compilation_cache

    chosen = os.environ.get("LLMRL_COMPILATION_CACHE") or "~/.cache/llmrl_jax"
    try:
        use_compilation_cache(chosen)
    except (OSError, ValueError) as error:  # such as a user without a home folder, in a container
        say(f"warning: no compilation cache: {error}")


def _asks_for_help(args: Sequence[str]) -> bool:
    """Return whether a command line asks for help, or is empty."""
    return not args or any(a in ("-h", "--help", "--help-all") for a in args)


def guard(run: Callable[[], int], debug: bool = False) -> int:
    """Call `run`, and convert its exceptions to a line on stderr and an exit code, as `main` returns it."""
    try:
        return run()
    except _Usage as error:
        say(str(error))
        return 2
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        say("\nerror: interrupted")
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError):
            from llmrl_jax.run.progress import mute_stdout, stdout_has_no_reader

            if stdout_has_no_reader():  # not stderr, or the pipe to another process
                mute_stdout()
                return 0
        return _reported(error, debug)


def _reported(error: Exception, debug: bool) -> int:
    """Print an error that ended a command. **Returns:** the exit code."""
    from llmrl_jax.core.files import lack_of_space

    stopped = _is_a("llmrl_jax.run.loop", "RunStopped", error)
    users = isinstance(error, USER_ERRORS) or _is_a("llmrl_jax.chat.protocol", "ChatError", error)
    if not debug and not stopped and (lack := _lack_of_memory(error) or lack_of_space(error)):
        say(f"error: {lack} (--debug shows where)")
        return 1
    if debug or not (stopped or users and _is_ours(error)):
        say("".join(traceback.format_exception(error)).rstrip())
        return 1
    say(f"error: {_message(error)} (--debug shows where)")
    return 1 if stopped else 2


def main(args: Sequence[str] | None = None, prog: str = "llmrl") -> int:
    """Run one command. **Returns:** 0; 2 for a wrong command line or input; 1 if a run failed."""
    left = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in left
    left = [a for a in left if a != "--debug"]
    if left[-1:] == ["--version"] and (len(left) == 1 or len(left) <= 3 and left[0] in groups()):
        from llmrl_jax import __version__

        print(__version__)
        return 0

    def run() -> int:
        if _asks_for_help(left):
            return _help(left, prog)
        if left[0] in WITHOUT_JAX or " ".join(left[:2]) in WITHOUT_JAX:
            return _run(left, prog)
        submitted = _submit(left, prog)
        if submitted is not None:
            return submitted
        if left[0] in ALONE:
            return _run(left, prog)
        _default_compilation_cache()
        return _run(_join_hosts(left, prog), prog)

    return guard(run, debug)


if __name__ == "__main__":
    sys.exit(main())
