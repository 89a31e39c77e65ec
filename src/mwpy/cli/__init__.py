"""The `mwpy` command: everything that needs no script of its own.

Each command is a module here, with `_` for each hyphen of its name: its `main(arguments)` returns the exit code,
`make_parser()` describes its options (but `slave` has those of a script), and `mwpy --help` shows the first line of its
docstring. It is imported only when it is called. Modules with an underscore in front are shared by commands.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from mwpy._values.errors import ExitCode, UsageError
from mwpy.app import report_errors, version_string

__all__ = ["commands", "main", "module_of", "summary"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `mwpy` command; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return report_errors(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    match arguments:
        case [command, *rest] if _is_command(command):
            module = importlib.import_module(module_of(command))
            try:
                return int(module.main(rest))
            except SystemExit as ending:  # a parser has printed the help
                return int(ending.code or 0)
        case ["version" | "--version"]:
            print(version_string())
            return ExitCode.OK
        case ["help" | "--help" | "-h"]:
            print(_usage())
            return ExitCode.OK
        case [unknown, *_]:
            import difflib  # only here, as in `commands`

            close = difflib.get_close_matches(unknown, [*commands(), "version", "help"], 1)
            hint = f"do you mean `mwpy {close[0]}`?" if close else f"there are these\n\n{_usage()}"
            raise UsageError(f"there is no command {unknown!r}: {hint}")
    print(_usage(), file=sys.stderr)
    return ExitCode.USAGE


def module_of(command: str) -> str:
    """Return the name of the module of a command, whether it exists or not."""
    return f"{__name__}.{command.replace('-', '_')}"


def _is_command(name: str) -> bool:
    """Whether a name is one of `commands()`. It lists no folder, because each template asks it when it starts."""
    is_name = name.replace("-", "_").isidentifier() and "_" not in name
    return is_name and find_spec(module_of(name)) is not None


def commands() -> list[str]:
    """Return the names of the commands that are modules here."""
    import pkgutil  # only here, as above

    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return [name.replace("_", "-") for name in names if not name.startswith("_")]


def summary(command: str) -> str:
    """Return the first line of a command's docstring: how it is called, a colon, and what it does."""
    return (importlib.import_module(module_of(command)).__doc__ or "").splitlines()[0]


GROUPS = {
    "to run something": ("sweep", "slave", "oversee", "queue", "submit-files", "pack"),
    "to see what a running computation does": ("status", "page", "explain"),
    "to see what a computation did": ("runs", "logs", "compare"),
    "to help a computation": ("doctor", "drain"),
}
"""The commands, by what people want. Those that are in no group come last."""

FIRST = """\
usage: mwpy COMMAND [ARGUMENT ...]

Type this first, to run a program with many settings on this machine:
  mwpy sweep "./program --size {size}" --values size=1,2,4
For a Python script that uses mwpy, type:
  python script.py --mw-help
"""


def _usage() -> str:
    from textwrap import fill  # only here, because templates and slaves load this module

    known, grouped = commands(), [name for names in GROUPS.values() for name in names]
    groups = {**GROUPS, "others": tuple(name for name in known if name not in grouped)}
    lines = [FIRST]
    for title, names in groups.items():
        if found := [name for name in names if name in known]:
            lines.append(f"{title}:")
            for name in found:
                about = summary(name).rpartition(": ")[2]
                lines.append(fill(about, 80, initial_indent=f"  {name:<13}", subsequent_indent=" " * 15))
    return "\n".join([*lines, "", "`mwpy COMMAND --help` shows its options; `mwpy version` prints the version."])
