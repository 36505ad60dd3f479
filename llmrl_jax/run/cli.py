"""The command line: `llmrl <group> <command> [options]`.

A group is a module in `llmrl_jax/run/commands/`; it defines `COMMANDS`, a mapping from a command's name to a function.
tyro makes the options from the function's signature (a dataclass argument annotated with
`tyro.conf.arg(name="")` gives its fields, each documented by the docstring under it). The first line of the module's
docstring describes the group, that of the function the command. Modules are imported only when their group is used.
A command returns None or an exit code. Where its defaults depend on the command line (a preset, a run to resume), its
attribute `prepare` makes the function to call from the arguments.
"""

from __future__ import annotations

import ast
import dis
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmrl_jax.chat.errors import ChatError


COMMANDS_PACKAGE = "llmrl_jax.run.commands"
USER_ERRORS = (KeyError, ValueError, TypeError, OSError, ModuleNotFoundError, ChatError)
"""What our own code raises where the user's input cannot be right."""


def _groups() -> dict[str, str]:
    """Every group and the first line of its description, without importing it."""
    found = {}
    for path in sorted((Path(__file__).parent / "commands").glob("*.py")):
        if not path.stem.startswith("_"):
            found[path.stem] = _first_line(ast.get_docstring(ast.parse(path.read_text())))
    return found


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]


def _usage(prog: str, what: str, rows: dict[str, str], about: str) -> str:
    width = max(map(len, rows), default=0)
    lines = [f"usage: {prog} <{what}> ...", "", about, "", f"{what}s:"]
    lines += [f"  {name:<{width}}  {text}" for name, text in rows.items()]
    lines += ["", f"`{prog} <{what}> --help` tells more.", ""]
    return "\n".join(lines)


def _choose(args: Sequence[str], prog: str, what: str, rows: dict[str, str], about: str) -> str | None:
    """The group or command that the first argument names; None where help was asked for and printed.

    **Raises:** `_Usage` where there is none, or an unknown one, naming the nearest.
    """
    if args and args[0] in ("-h", "--help"):
        print(_usage(prog, what, rows, about), end="")
        return None
    if not args:
        raise _Usage(_usage(prog, what, rows, about) + f"error: a {what} is missing")
    if args[0] not in rows:
        from envs_jax.registry import nearest

        raise _Usage(f"error: unknown {what} {args[0]!r}{nearest(args[0], list(rows))} (known: {', '.join(rows)})")
    return args[0]


class _Usage(Exception):
    """A command line that names nothing to run."""


def _is_ours(error: BaseException) -> bool:
    """Whether an exception was raised on purpose by this project's own code: by a `raise`, not by an operation."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code, module = trace.tb_frame.f_code, trace.tb_frame.f_globals.get("__name__", "")
    raised = dis.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"
    return raised and module.split(".")[0] in ("llmrl_jax", "envs_jax", "benchmarks", "__main__")


def _message(error: BaseException) -> str:
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


def _run(args: list[str], prog: str) -> int:
    groups = _groups()
    about = "Reinforcement learning with language models, in one XLA program."
    about += "\nAnywhere: --debug shows the traceback of an error; --version prints the version."
    group = _choose(args, prog, "group", groups, about)
    if group is None:
        return 0
    module = importlib.import_module(f"{COMMANDS_PACKAGE}.{group}")
    commands: dict[str, Callable[..., Any]] = module.COMMANDS
    rows = {name: _first_line(f.__doc__) for name, f in commands.items()}
    name = _choose(args[1:], f"{prog} {group}", "command", rows, groups[group])
    if name is None:
        return 0
    import tyro

    command = commands[name]
    prepare = getattr(command, "prepare", None)
    if prepare is not None:  # a command whose defaults depend on its arguments: a preset, a run to resume
        command = prepare(args[2:])
    result = tyro.cli(command, prog=f"{prog} {group} {name}", args=args[2:])
    return result if isinstance(result, int) else 0


def _default_compilation_cache() -> None:
    """Keep compiled programs between processes, unless the user's environment says otherwise."""
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    from llmrl_jax.run.config import use_compilation_cache

    chosen = os.environ.get("LLMRL_COMPILATION_CACHE", "~/.cache/llmrl_jax")
    try:
        use_compilation_cache(chosen)
    except OSError as error:
        print(f"warning: no compilation cache: {error}", file=sys.stderr)


def _asks_for_help(args: Sequence[str]) -> bool:
    return not args or any(a in ("-h", "--help") for a in args)


def guard(run: Callable[[], int], debug: bool = False) -> int:
    """Call `run` and turn what it raises into a line on stderr and an exit code, as `main` returns it."""
    try:
        return run()
    except _Usage as error:
        print(error, file=sys.stderr)
        return 2
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        print("\nerror: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from llmrl_jax.run.loop import RunStopped

        stopped = isinstance(error, RunStopped)
        if debug or not (stopped or isinstance(error, USER_ERRORS) and _is_ours(error)):
            traceback.print_exc()
            return 1
        print(f"error: {_message(error)} (--debug shows where)", file=sys.stderr)
        return 1 if stopped else 2


def main(args: Sequence[str] | None = None, prog: str = "llmrl") -> int:
    """Run one command. **Returns:** 0; 2 for a wrong command line or input; 1 where a run stopped for a fault."""
    left = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in left
    left = [a for a in left if a != "--debug"]
    if left[:1] == ["--version"]:
        from llmrl_jax import __version__

        print(__version__)
        return 0

    def run() -> int:
        if not _asks_for_help(left):
            _default_compilation_cache()
        return _run(left, prog)

    return guard(run, debug)


if __name__ == "__main__":
    sys.exit(main())
